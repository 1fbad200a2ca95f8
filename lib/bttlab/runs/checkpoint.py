"""Checkpoints: one safetensors file with everything that a run needs to continue, and the file before it.

The tensors are the parameters under their own names, the optimizer state under "optimizer.", and "losses", those of the
current epoch; of a user's module also its buffers under "buffer:", and what `StoredModule` has under "module:". The
header's metadata has two entries: "bttlab", JSON with everything else, and "sha256", a digest over both. Nothing in the
file is executed when it is read.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from pydantic import Field
from safetensors import SafetensorError

from bttlab.model import ModelConfig, Transformer, check_finite
from bttlab.runs.folder import RunLock, resume_command
from bttlab.runs.record import LATEST
from bttlab.runs.settings import CorpusRecord, RunSettings
from bttlab.runs.stored_module import StoredModule
from bttlab.util.digests import tensors_digest
from bttlab.util.errors import BttlabError
from bttlab.util.files import draft_file, sync_folder, write_file
from bttlab.util.reading import open_regular, parse_json
from bttlab.util.settings import from_values, settings

PREVIOUS, BEST = "checkpoint.previous.safetensors", "checkpoint.best.safetensors"
FORMAT, WITH_MODULE = 1, 2  # the second one has what `StoredModule` has
MOST_OF_HEADER = 100_000_000  # bytes, as of safetensors
_STATE = "optimizer."
_LOSSES = "losses"
_BUFFER, _SPREADS, _OUTPUTS = "buffer:", "module:spreads", "module:outputs"  # no parameter has a colon in its name


class CheckpointError(BttlabError):
    """Raised if a checkpoint cannot be written or read."""


class DamagedCheckpoint(CheckpointError):
    """Raised if a file is damaged or no checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    """State of a run after some samples.

    Parameters
    ----------
    settings : RunSettings
        Of the run.
    corpus : CorpusRecord
        What it trains on.
    device : str
        What it was last trained on, in words.
    epochs_done : int
        Epochs that are finished, evaluation on dev included.
    losses : np.ndarray
        Float32, (position,): losses of the current epoch's samples so far, in the epoch's order.
    seconds : float
        Measured training time of the current epoch.
    parameters, optimizer_state : mapping of str to np.ndarray
        As `Trainer.store_parameters` and `Trainer.store_optimizer_state` return them.
    module : StoredModule, optional
        Of a user's module; None for another model, and of a run that an earlier version began.

    Raises
    ------
    StateError
        If a parameter or the state is not finite.
    """

    settings: RunSettings
    corpus: CorpusRecord
    device: str
    epochs_done: int
    losses: np.ndarray
    seconds: float
    parameters: Mapping[str, np.ndarray]
    optimizer_state: Mapping[str, np.ndarray]
    module: StoredModule | None = None

    @property
    def constant_values(self) -> dict[str, np.ndarray]:
        """Values that a user's module has to have before it is traced: of frozen parameters and buffers, by name."""
        frozen = getattr(self.settings.config, "frozen", ())
        return {name: self.parameters[name] for name in frozen} | dict(self.module.values if self.module else {})

    def __post_init__(self) -> None:
        check_finite("parameters", self.parameters)
        check_finite("optimizer state", self.optimizer_state)


class CheckpointStore:
    """The checkpoints in a run's folder: the latest, the one before, and, if it is kept, that of the best epoch.

    Parameters
    ----------
    folder : path
        Of the run.
    """

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        self.latest, self.previous, self.best = (self.folder / name for name in (LATEST, PREVIOUS, BEST))
        self._latest_is_sound = True  # as far as is known
        self._identity: tuple[int, ...] = ()  # of the file last loaded or saved here

    def save(self, checkpoint: Checkpoint, lock: RunLock | None = None, is_best: bool = False) -> None:
        """Write a checkpoint and keep the one before it. A crash at any moment leaves one of them intact.

        `lock` is checked before anything is written; with `is_best` it is kept as that of the best epoch, too. Raises
        CheckpointError if it cannot be written; earlier ones stay; RunError if the folder is no longer the one that
        was locked.
        """
        data = pack(checkpoint)
        if lock is not None:
            lock.check()
        try:
            if is_best:  # first: after a crash in between, the epoch is trained and compared again
                write_file(self.best, data)
            with draft_file(self.latest, data) as draft:
                if self._latest_is_sound and self.latest.exists():
                    self.latest.replace(self.previous)
                draft.replace(self.latest)
                sync_folder(self.folder)
            self._identity = _identity(os.stat(self.latest))
        except OSError as error:
            way_out = "make room, or the folder writable, and "
            if self.latest.exists():
                way_out = f"the checkpoint before it stays; {way_out}continue with: {resume_command(self.folder)}"
            else:
                way_out += "start the run again"
            raise CheckpointError(
                f"{self.latest} cannot be saved ({error.strerror}, {len(data)} bytes): {way_out}"
            ) from None
        self._latest_is_sound = True

    def check_unchanged(self) -> None:
        """Check, under the folder's lock, that the checkpoint is still the one that was loaded or saved here.

        Raises CheckpointError if another process saved one since: training from the one in memory would undo its work.
        """
        path = self.latest if self._latest_is_sound else self.previous
        try:
            is_same = _identity(os.stat(path)) == self._identity
        except OSError:
            is_same = False
        if not is_same:
            raise CheckpointError(
                f"another process trained the run in {self.folder} after this one read its checkpoint; continue from "
                f"there with: {resume_command(self.folder)}"
            )

    def load(self, best: bool = False) -> tuple[Checkpoint, str | None]:
        """Read the latest checkpoint, or the one before if it is damaged or missing, or that of the best epoch.

        Returns a warning, too, if the one before the latest was read. Raises CheckpointError if there is none, or both
        are damaged.
        """
        try:
            has_checkpoint = self.latest.exists() or self.previous.exists()
            if best and has_checkpoint and not self.best.exists():
                raise CheckpointError(f"{self.folder} keeps no best epoch; train with --keep best, or leave --best out")
        except OSError as error:
            raise CheckpointError(
                f"{self.folder} cannot be read ({error.strerror}); ask its owner for the right to"
            ) from None
        if not has_checkpoint:
            raise CheckpointError(
                f"{self.folder} holds no checkpoint: name the folder of a run, or start one with: bttlab train --out "
                f"{self.folder}"
            )
        if best:
            return read_checkpoint(self.best), None
        try:
            return self._load(self.latest), None
        except DamagedCheckpoint as error:
            self._latest_is_sound, fault = False, str(error)
        try:
            return self._load(self.previous), f"{fault}; going back to the one before, {self.previous.name}"
        except DamagedCheckpoint as error:
            raise CheckpointError(f"{fault}; nor is the one before of use: {error}; start the run again") from None

    def _load(self, path: Path) -> Checkpoint:
        with contextlib.suppress(OSError):
            self._identity = _identity(os.stat(path))
        return read_checkpoint(path)


@settings(CheckpointError)
class _ModuleHeader:
    names: dict[str, str]
    graph_sha256: str


@settings(CheckpointError)
class _Header:
    format: int
    settings: dict[str, Any]
    corpus: CorpusRecord
    device: str
    epochs_done: int = Field(ge=0)
    position: int = Field(ge=0)
    seconds: float = Field(ge=0)


@settings(CheckpointError)
class _HeaderWithModule(_Header):
    module: _ModuleHeader = Field()


def _identity(status: os.stat_result) -> tuple[int, ...]:
    """Return what tells a file from one that is later put in its place."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint file.

    Parameters
    ----------
    path : path
        Of a checkpoint.safetensors.

    Returns
    -------
    Checkpoint
        What it has.

    Raises
    ------
    DamagedCheckpoint
        If it is missing, torn, or not what was written.
    CheckpointError
        If a newer version of bttlab wrote it.
    """
    try:
        data = _read(path)  # a mapped file that another process cuts short would end the interpreter
        tensors = safetensors.numpy.load(data)
        metadata = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        text, sha256 = metadata["bttlab"], metadata["sha256"]
    except (SafetensorError, OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DamagedCheckpoint(f"{path} cannot be read as a checkpoint ({reason})") from None
    if sha256 != _digest(text, tensors):
        raise DamagedCheckpoint(f"{path} is damaged: its content does not have the digest it was written with")
    try:
        header = parse_json(text)
        if header["format"] not in (FORMAT, WITH_MODULE):
            raise CheckpointError(
                f"{path} is a checkpoint of format {header['format']}, this bttlab reads formats {FORMAT} and "
                f"{WITH_MODULE}; use the version of bttlab that wrote it"
            )
        kind = _HeaderWithModule if header["format"] == WITH_MODULE else _Header
        return _unpack(from_values(kind, header), tensors)
    except CheckpointError:
        raise
    except (BttlabError, ValueError, TypeError, KeyError) as error:
        raise DamagedCheckpoint(f"{path} is no checkpoint of a run ({error})") from None


def _read(path: Path) -> bytes:
    """Return a file's bytes; ValueError before they are read if its header says another number of bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(8)
        length = int.from_bytes(head, "little")
        if length > min(MOST_OF_HEADER, size - 8):
            raise ValueError(f"its header says that it has {length:,} bytes itself; the file has {size:,}")
        header = file.read(length)
        ends = [tensor["data_offsets"][1] for name, tensor in parse_json(header).items() if name != "__metadata__"]
        if 8 + length + max(ends, default=0) != size:
            raise ValueError(f"its header says {8 + length + max(ends, default=0):,} bytes; the file has {size:,}")
        return head + header + file.read()


def pack(checkpoint: Checkpoint) -> bytes:
    """Return a checkpoint's file."""
    module = checkpoint.module
    header = _Header(
        format=FORMAT,
        settings=_of_any_host(checkpoint.settings).to_dict(),
        corpus=checkpoint.corpus,
        device=checkpoint.device,
        epochs_done=checkpoint.epochs_done,
        position=len(checkpoint.losses),
        seconds=checkpoint.seconds,
    )
    tensors = {
        **checkpoint.parameters,
        **{_STATE + name: array for name, array in checkpoint.optimizer_state.items()},
        _LOSSES: np.asarray(checkpoint.losses, np.float32),
    }
    if module is not None:
        of_module = _ModuleHeader(names=dict(module.names), graph_sha256=module.graph_sha256)
        header = _HeaderWithModule(**vars(header) | {"format": WITH_MODULE, "module": of_module})
        tensors |= {_BUFFER + name: array for name, array in module.values.items()}
        tensors |= {_SPREADS: module.spreads, _OUTPUTS: module.outputs}
    # safetensors.numpy 0.8.0 stores an array's memory as if it were in C order
    tensors = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    text = json.dumps(asdict(header), sort_keys=True)
    return safetensors.numpy.save(tensors, metadata={"bttlab": text, "sha256": _digest(text, tensors)})


def _of_any_host(settings: RunSettings) -> RunSettings:
    """Return settings without overlay and card: the host that loads a checkpoint chooses these, not its author."""
    return replace(settings, device="reference" if settings.device == "reference" else "auto", overlay=None)


def _digest(text: str, tensors: Mapping[str, np.ndarray]) -> str:
    return hashlib.sha256(f"{tensors_digest(tensors)}\n{text}".encode()).hexdigest()


def _unpack(header: _Header, tensors: dict[str, np.ndarray]) -> Checkpoint:
    settings = _of_any_host(RunSettings.from_dict(header.settings))
    parameters = {name: tensors[name] for name in settings.config.parameter_shapes()}  # trainers check their shapes
    losses = tensors[_LOSSES]
    state = {name.removeprefix(_STATE): array for name, array in tensors.items() if name.startswith(_STATE)}
    module = None
    if isinstance(header, _HeaderWithModule):
        values = {name.removeprefix(_BUFFER): x for name, x in tensors.items() if name.startswith(_BUFFER)}
        of_samples = tensors[_SPREADS], tensors[_OUTPUTS]
        module = StoredModule(values, header.module.names, header.module.graph_sha256, *of_samples)
    return Checkpoint(
        settings, header.corpus, header.device, header.epochs_done, losses, header.seconds, parameters, state, module
    )


def to_weights(folder: Path, path: Path, best: bool = False) -> str | None:
    """Write the weights of a run's checkpoint, with what a reader in PyTorch needs beside them.

    They are the `state_dict` of the dense model, or of the class of a user's module, buffers included. Returns the
    warning of `CheckpointStore.load`. Raises BttlabError if the checkpoint does not have all of a module's state.
    """
    checkpoint, warning = CheckpointStore(folder).load(best)
    config, corpus = checkpoint.settings.config, checkpoint.corpus
    if isinstance(config, ModelConfig):
        model = Transformer(config)
        model.load(checkpoint.parameters)
        dense = model.to_dense()
        config, weights = dense.config, {name: tensor.numpy() for name, tensor in dense.state_dict().items()}
    else:
        weights = _module_state(checkpoint, folder)
    about = {
        "config": json.dumps(config.to_dict()),
        "vocabulary": json.dumps(corpus.vocabulary),
        "intent_labels": json.dumps(corpus.intent_labels),
        "slot_labels": json.dumps(corpus.slot_labels),
    }
    if corpus.tokenizer is not None:
        about["tokenizer"] = corpus.tokenizer
    weights = {name: np.asarray(array, order="C") for name, array in weights.items()}
    write_file(path, safetensors.numpy.save(weights, about), "--weights")
    return warning


def _module_state(checkpoint: Checkpoint, folder: Path) -> dict[str, np.ndarray]:
    """Return the `state_dict` of a user's module, without running its code; BttlabError if it is not complete."""
    module = checkpoint.module
    if module is None:
        raise BttlabError(
            f"{folder} is of a module of your own, and its checkpoint, which an earlier bttlab wrote, has no buffers: "
            "train it again, or load its tensors by name into the class, those of optimizer.* and losses left out, "
            "with load_state_dict(…, strict=False), and set buffers yourself"
        )
    tensors = {**checkpoint.parameters, **module.values}
    for key, name in module.names.items():
        if name not in tensors:
            raise BttlabError(
                f"{folder}: {key} of the module's state_dict is neither a parameter nor a buffer, so the checkpoint "
                "does not have it; load parameters and buffers of its checkpoint by name"
            )
    return {key: tensors[name] for key, name in module.names.items()}
