"""A baseline's record: one JSON file that says what ran, on what, how long, in how much memory, at what energy.

It names no host, no user and no folder, so that it can be passed on.
"""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from bttlab.baseline.receipt import (
    OF_PYTORCH,
    READING,
    Receipt,
    ReceiptQuantity,
    details_of,
    quantities_of,
    settings_of,
)
from bttlab.model import ModelConfig, config_of, initial_parameters
from bttlab.util.digests import tensors_digest
from bttlab.util.errors import BttlabError
from bttlab.util.quantities import Quantity, drop_missing_bands
from bttlab.util.settings import RecordError, from_values

VERSION = 1
# Name of a baseline -> format of the model and flow of its TT layers
FORMATS = {"dense": ("dense", None), "tt": ("tensor", "right_to_left"), "btt": ("tensor", "bidirectional")}
OLDER = ConfigDict(strict=True, extra="ignore")  # of what older records have more


@dataclass(frozen=True)
class Machine:
    """Machine of a baseline; None where something is missing or unknown.

    Attributes
    ----------
    kind : {"cpu", "cuda"}
        Where PyTorch trained.
    name : str
        Of the processor, or of the GPU.
    memory_bytes : int or None
        Of the GPU.
    driver, cuda, cudnn : str or None
        Versions of the NVIDIA driver, and of the CUDA and cuDNN that PyTorch was built with.
    torch, python, system : str
        Versions.
    precision : str
        PyTorch's precision of float32 matrix products: "highest" is FP32 throughout.
    cpu : str
        Model of the host's processor.
    cores : int
        Processors that the process may use.
    threads : int
        That PyTorch used.
    load_before, load_after : list of float
        The system's load averages over 1, 5 and 15 minutes, which show other work on the host.
    """

    kind: str
    name: str
    memory_bytes: int | None
    driver: str | None
    cuda: str | None
    cudnn: str | None
    torch: str
    python: str
    system: str
    precision: str
    cpu: str
    cores: int
    threads: int
    load_before: list[float]
    load_after: list[float]


@dataclass(frozen=True)
class CorpusUsed:
    """The training samples: the corpus's name, how many it has, and the SHA-256 of them all as encoded."""

    name: str
    samples: int
    sha256: str


@dataclass(frozen=True)
class Share:
    """A category's bytes: the most that it held at any time of a step, and what it held at the step's peak."""

    most: Quantity
    at_peak: Quantity


@dataclass(frozen=True)
class Memory:
    """Memory of an eager step by category.

    Attributes
    ----------
    tokens : int
        Length of the utterance, the longest of the corpus that the model takes.
    categories : dict of str to Share
        "parameters", "gradients", "optimizer_state", "activations" (kept for the backward pass), "inputs" and
        "temporaries" (every other tensor); at the peak they add up to it.
    peak : Quantity
        Bytes.
    """

    __pydantic_config__ = OLDER
    tokens: int
    categories: dict[str, Share]
    peak: Quantity


@dataclass(frozen=True)
class Energy:
    """A mode's energy a step.

    Attributes
    ----------
    steps : int
        Steps in the window; they go on after the timed ones until the meter has something to measure.
    per_step : Quantity
        In joules.
    per_step_over_idle : Quantity
        In joules, without what the idle device takes.
    """

    __pydantic_config__ = OLDER
    steps: int
    per_step: Quantity
    per_step_over_idle: Quantity


@dataclass(frozen=True)
class Measurement:
    """What was measured in one mode.

    Attributes
    ----------
    losses, step_seconds : list of float
        Of each step, without warm-up.
    median, lower_quartile, upper_quartile, mean : Quantity
        Of the time of a step, in s.
    difference : Quantity
        Largest relative difference of the first losses from eager's.
    allocated : Quantity
        The most bytes that tensors took.
    reserved : Quantity
        The most bytes that PyTorch reserved for them.
    energy : Energy
        Of a step.
    """

    __pydantic_config__ = OLDER
    losses: list[float]
    step_seconds: list[float]
    median: Quantity
    lower_quartile: Quantity
    upper_quartile: Quantity
    mean: Quantity
    difference: Quantity
    allocated: Quantity
    reserved: Quantity
    energy: Energy


@dataclass(frozen=True)
class Record:
    """Record of a baseline, a JSON file.

    Attributes
    ----------
    version : int
        Of this layout.
    date : str
        When it ended, UTC.
    bttlab : str
        Its version.
    machine : Machine
        Where it ran.
    format : {"dense", "tt", "btt", "module"}
        As for `BaselineSetting`.
    flow : str or None
        Order of contraction; None for dense.
    config : dict
        `ModelConfig.to_dict`, or `ModuleConfig.to_dict`.
    corpus : CorpusUsed
        What it trained on.
    optimizer : str
        Update rule.
    learning_rate : float
        Of every step.
    seed, steps, warmup : int
        As asked for; a stopped baseline has shorter traces.
    idle_power : Quantity
        Watts before training, the device open and with nothing to do.
    memory : Memory
        Of an eager step.
    modes : dict of str to Measurement
        By name.
    skipped : dict of str to str
        Modes that gave no measurement, and why.
    best : str
        The mode with the lowest median.
    batch : int
        Samples per step, all of one length.
    command : str
        Of older records: the command line that repeats it.
    """

    version: Annotated[int, Field(ge=VERSION, le=VERSION)]
    date: str
    bttlab: str
    machine: Machine
    format: str
    flow: str | None
    config: dict[str, Any]
    corpus: CorpusUsed
    optimizer: str
    learning_rate: float
    seed: int
    steps: int
    warmup: int
    idle_power: Quantity
    memory: Memory
    modes: dict[str, Measurement]
    skipped: dict[str, str]
    best: str
    batch: Annotated[int, Field(ge=1)] = 1
    command: str = ""

    def __post_init__(self) -> None:
        if self.best not in self.modes:
            raise RecordError(f"best is {self.best!r}: it must be one of the modes {', '.join(self.modes)}")
        for name, mode in self.modes.items():
            if not mode.losses or len(mode.losses) != len(mode.step_seconds):
                raise RecordError(
                    f"mode {name!r} has {len(mode.losses)} losses and {len(mode.step_seconds)} step times: it must "
                    "have one of each for every step, and a step at least"
                )
        config_of(self.config)  # raises an error if it is none

    @property
    def model(self) -> str:
        return config_of(self.config).short_name

    @property
    def measurement(self) -> Measurement:
        return self.modes[self.best]

    @property
    def setting(self) -> str:
        """What differs from FP32 and batch 1."""
        batch = f", batch {self.batch}" if self.batch > 1 else ""
        return batch + (", TF32" if self.machine.kind == "cuda" and self.machine.precision != "highest" else "")

    def label_of(self, mode: str | None = None) -> str:
        return f"{self.format}, {self.model}{self.setting}, {self.machine.name}, {mode or self.best}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self, dict_factory=drop_missing_bands)

    def write(self, path: str | os.PathLike) -> None:
        """Write the record as a receipt atomically; errors as of `bttlab.util.files.check_output`."""
        self.receipt().write(path, "--record")

    def receipt(self) -> Receipt:
        """Return the receipt whose details are this record: readings of meters, and losses, which repeat."""
        config = config_of(self.config)
        known = isinstance(config, ModelConfig)
        figures = {"peak": self.memory.peak}
        for name, mode in self.modes.items():
            loss = Quantity.measured(sum(mode.losses) / len(mode.losses), "1", "mean of the steps")
            figures |= {f"{name}.median": mode.median, f"{name}.joules": mode.energy.per_step, f"{name}.loss": loss}
        return Receipt(
            title=self.label_of(),
            command=self._command_line(),
            figures=_quantities(figures),
            corpora={self.corpus.name: self.corpus.sha256},
            initial=tensors_digest(initial_parameters(config, self.seed)) if known else "",
            settings=settings_of(
                config,
                **{name: getattr(self, name) for name in ("format", "flow", "learning_rate", "seed", "steps", "batch")},
            ),
            versions={"bttlab": self.bttlab, "torch": self.machine.torch, "python": self.machine.python},
            date=self.date,
            details=self.to_dict(),
        )

    def _command_line(self) -> list[str]:
        """Return the command of `bttlab` that repeats it; empty if options do not name its model, or its precision."""
        fp32 = self.machine.kind == "cpu" or self.machine.precision == "highest"
        kind = FORMATS.get(self.format, ("", None))[0]
        paper = ModelConfig(encoders=self.config.get("encoders", ModelConfig().encoders), format=kind or "tensor")
        if not fp32 or not kind or self.config != paper.to_dict() or self.optimizer != "sgd":
            return []
        options = {
            "--format": self.format,
            "--device": self.machine.kind,
            "--encoders": paper.encoders,
            "--data": self.corpus.name,
            "--steps": self.steps,
            "--batch": self.batch,
            "--warmup": self.warmup,
            "--seed": self.seed,
            "--lr": f"{self.learning_rate:g}",
            "--threads": self.machine.threads,
        }
        return ["baseline", *(str(each) for pair in options.items() for each in pair)]

    @classmethod
    def read(cls, path: str | os.PathLike) -> "Record":
        """Read a record.

        Raises RecordError if the file is no record; the message names the entry.
        """
        try:
            return from_values(cls, details_of(path))
        except BttlabError as error:
            raise RecordError(f"{path} is no baseline record: {error}; make one with bttlab baseline") from None


def _quantities(values: dict[str, Quantity]) -> dict[str, ReceiptQuantity]:
    """Return figures for a receipt: losses and counted bytes repeat, times and joules are a meter's readings."""
    found = {}
    for name, value in values.items():
        repeats = OF_PYTORCH if name == "peak" or name.endswith(".loss") else READING
        found |= quantities_of({name: value.to_dict()}, repeats)
    return found


def load_records(folder: str | os.PathLike) -> list[Record]:
    """Read every record (``*.json``) of a folder, in the order of their names.

    Parameters
    ----------
    folder : path
        None are read if it does not exist.

    Returns
    -------
    list of Record
        The records.

    Raises
    ------
    RecordError
        If a file there is not a record.
    """
    return [Record.read(path) for path in sorted(Path(folder).glob("*.json"))]
