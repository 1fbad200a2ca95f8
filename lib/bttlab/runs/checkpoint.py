"""Checkpoints: one safetensors file with everything that a run needs to continue, and the file before it.

The tensors are the parameters under their own names, the optimizer state under "optimizer.", and "losses", those of the
current epoch. The header's metadata has two entries: "bttlab", JSON with everything else, and "sha256", a digest over
both. Nothing in the file is executed when it is read.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from bttlab.model import ModelConfig, check_finite
from bttlab.runs.files import resume_command
from bttlab.runs.record import LATEST
from bttlab.runs.settings import CorpusRecord, RunSettings
from bttlab.util.errors import BttlabError
from bttlab.util.files import draft_file, read_regular, sync_folder
from bttlab.util.records import build

PREVIOUS = "checkpoint.previous.safetensors"
FORMAT = 1
MOST_BYTES, MOST_HEADER = 1 << 28, 1 << 22  # of a file, and of its header
_STATE = "optimizer."
_LOSSES = "losses"


class CheckpointError(BttlabError):
    """Raised if a checkpoint cannot be written or read."""


class DamagedCheckpoint(CheckpointError):
    """Raised if a file is damaged or no checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    """State of a run after some samples.

    Parameters
    ----------
    device : str
        What it was last trained on, in words.
    epochs_done : int
        Epochs that are finished, evaluation on dev included.
    losses : ndarray of float32, shape (position,)
        Losses of the current epoch's samples so far; their number is the position in the epoch's order.
    seconds : float
        Measured training time of the current epoch.
    parameters, optimizer_state : mapping of str to ndarray
        As `Trainer.store_parameters` and `store_optimizer_state` return them.

    Raises
    ------
    bttlab.model.StateError
        If one of them is not finite.
    """

    settings: RunSettings
    corpus: CorpusRecord
    device: str
    epochs_done: int
    losses: np.ndarray
    seconds: float
    parameters: Mapping[str, np.ndarray]
    optimizer_state: Mapping[str, np.ndarray]

    def __post_init__(self) -> None:
        check_finite("parameters", self.parameters)
        check_finite("optimizer state", self.optimizer_state)


def tensors_digest(tensors: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 over names, types, shapes and bytes of tensors, in any order."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        digest.update(f"{name} {array.dtype.str} {np.shape(tensors[name])}\n".encode())
        digest.update(array.data)
    return digest.hexdigest()


class CheckpointStore:
    """The checkpoints in a run's folder: the latest and the one before."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        self.latest = self.folder / LATEST
        self.previous = self.folder / PREVIOUS
        self._latest_is_sound = True  # as far as is known
        self._sha256 = ""  # of the checkpoint last loaded or saved here

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint and keep the one before it. A crash at any moment leaves one of them intact.

        Raises
        ------
        CheckpointError
            If it cannot be written; those there were stay.
        """
        data, sha256 = _pack(checkpoint)
        try:
            with draft_file(self.latest, data) as draft:
                if self._latest_is_sound and self.latest.exists():
                    self.latest.replace(self.previous)
                draft.replace(self.latest)
                sync_folder(self.folder)
        except OSError as error:
            raise CheckpointError(
                f"{self.latest} cannot be saved ({error.strerror}, {len(data)} bytes): the checkpoint before it stays; "
                f"make room, or the folder writable, and continue with: {resume_command(self.folder)}"
            ) from None
        self._latest_is_sound, self._sha256 = True, sha256

    def check_unchanged(self) -> None:
        """Check, under the folder's lock, that the checkpoint is still the one that was loaded or saved here.

        Raises
        ------
        CheckpointError
            If another process saved one since: training from the one in memory would undo its work.
        """
        before = self._sha256
        self.load()
        if self._sha256 != before:
            raise CheckpointError(
                f"another process trained the run in {self.folder} after this one read its checkpoint; continue from "
                f"there with: {resume_command(self.folder)}"
            )

    def load(self) -> tuple[Checkpoint, str | None]:
        """Read the latest checkpoint, or the one before if it is damaged or missing.

        Returns
        -------
        checkpoint : Checkpoint
        warning : str or None
            Why the one before was read.

        Raises
        ------
        CheckpointError
            If there is none, or both are damaged.
        """
        try:
            is_there = self.latest.exists() or self.previous.exists()
        except OSError as error:
            raise CheckpointError(
                f"{self.folder} cannot be read ({error.strerror}); ask its owner for the right to"
            ) from None
        if not is_there:
            raise CheckpointError(
                f"{self.folder} holds no checkpoint: name the folder of a run, or start one with: bttlab train --out "
                f"{self.folder}"
            )
        try:
            checkpoint, self._sha256 = _read(self.latest)
            return checkpoint, None
        except DamagedCheckpoint as error:
            self._latest_is_sound = False
            fault = str(error)
        try:
            checkpoint, self._sha256 = _read(self.previous)
            return checkpoint, f"{fault}; going back to the one before, {self.previous.name}"
        except DamagedCheckpoint as error:
            raise CheckpointError(f"{fault}; nor is the one before of use: {error}; start the run again") from None


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint file.

    Raises
    ------
    DamagedCheckpoint
        If it is missing, torn, or not what was written.
    CheckpointError
        If a newer version of bttlab wrote it.
    """
    return _read(path)[0]


def _read(path: Path) -> tuple[Checkpoint, str]:
    """Read a checkpoint file; returns the checkpoint and its digest."""
    try:
        data = read_regular(path, MOST_BYTES)  # a mapped file that another process cuts short would end the interpreter
        header = int.from_bytes(data[:8], "little")
        if header > MOST_HEADER:
            raise ValueError(f"a header of {header} bytes, more than the {MOST_HEADER} of any run")
        tensors = safetensors.numpy.load(data)
        metadata = json.loads(data[8 : 8 + header].decode()).get("__metadata__") or {}
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DamagedCheckpoint(f"{path} cannot be read as a checkpoint ({reason})") from None
    text = metadata.get("bttlab", "")
    if metadata.get("sha256") != _digest(text, tensors):
        raise DamagedCheckpoint(f"{path} is damaged: its content does not have the digest it was written with")
    try:
        values = json.loads(text)
        if values["format"] != FORMAT:
            raise CheckpointError(
                f"{path} is a checkpoint of format {values['format']}, this bttlab reads format {FORMAT}; use the "
                "version of bttlab that wrote it"
            )
        return _unpack(values, tensors), metadata["sha256"]
    except CheckpointError:
        raise
    except (BttlabError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise DamagedCheckpoint(f"{path} is no checkpoint of a run ({error})") from None


def _pack(checkpoint: Checkpoint) -> tuple[bytes, str]:
    """Return a checkpoint file's content and its digest."""
    values = {
        "format": FORMAT,
        "settings": _of_any_host(checkpoint.settings).to_dict(),
        "corpus": checkpoint.corpus.to_dict(),
        "device": checkpoint.device,
        "epochs_done": checkpoint.epochs_done,
        "position": len(checkpoint.losses),
        "seconds": checkpoint.seconds,
    }
    tensors = {
        **checkpoint.parameters,
        **{_STATE + name: np.asarray(array) for name, array in checkpoint.optimizer_state.items()},
        _LOSSES: np.asarray(checkpoint.losses, np.float32),
    }
    text = json.dumps(values, sort_keys=True)
    sha256 = _digest(text, tensors)
    return safetensors.numpy.save(tensors, metadata={"bttlab": text, "sha256": sha256}), sha256


def _of_any_host(settings: RunSettings) -> RunSettings:
    """Return settings without overlay and card: the host that loads a checkpoint chooses these, not its author."""
    return replace(settings, device="reference" if settings.device == "reference" else "auto", overlay=None)


def _digest(text: str, tensors: Mapping[str, np.ndarray]) -> str:
    return hashlib.sha256(f"{tensors_digest(tensors)}\n{text}".encode()).hexdigest()


def _unpack(values: dict, tensors: dict[str, np.ndarray]) -> Checkpoint:
    settings = _of_any_host(RunSettings.from_dict(values["settings"]))
    if isinstance(settings.config, ModelConfig) and settings.config.encoders > len(tensors):
        raise ValueError(f"{settings.config.encoders} encoders in {len(tensors)} tensors")
    shapes = settings.config.parameter_shapes()
    parameters = {name: tensors[name] for name in shapes}
    losses, epochs_done, seconds = tensors[_LOSSES], values["epochs_done"], values["seconds"]
    if any(array.shape != shapes[name] or array.dtype != np.float32 for name, array in parameters.items()):
        raise ValueError("a parameter has another shape than the model's")
    if losses.shape != (values["position"],) or losses.dtype != np.float32:
        raise ValueError(f"position {values['position']} does not go with {losses.shape} losses")
    if type(epochs_done) is not int or epochs_done < 0 or not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{epochs_done} epochs done, {seconds} seconds")
    state = {name.removeprefix(_STATE): array for name, array in tensors.items() if name.startswith(_STATE)}
    corpus = build(CorpusRecord, values["corpus"], "corpus")
    return Checkpoint(settings, corpus, str(values["device"]), epochs_done, losses, seconds, parameters, state)
