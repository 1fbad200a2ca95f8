"""Measurements that other projects than Xia et al. published: data/cost/others, all of it published."""

import json
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from bttlab.util.places import ROOT
from bttlab.util.settings import from_json
from bttlab_cost.configuration import FineTuning
from bttlab_cost.xia2024 import Throughput

FOLDER = ROOT / "data" / "cost" / "others"


@dataclass(frozen=True)
class PublishedRun:
    """A published run on one GPU, or the share of one among several.

    Attributes
    ----------
    model : str
        A key of models.json.
    batch, sequence : int
        Of a micro-batch.
    sequences, seconds : float, optional
        How many sequences it trained in how long.
    accumulation : int, optional
        Micro-batches of an update, times the GPUs that share the optimizer's work; by default the project's.
    peak_gb : float, optional
        Peak of the memory, 10^9 bytes.
    longest : int, optional
        Tokens of the longest sequence, at which memory peaked, where `sequence` is a mean.
    sharded : bool
        Whether GPUs exchanged weights during the step: memory is then no whole model's.
    state : str
        As in `FineTuning`.
    gpus, strategy, link : int, str, str
        Of several GPUs: how many, how they share the work (`bttlab_cost.parallel`), and their link.
    published : str
        The published value, where `sequences` is computed from it.
    left_out : str
        Why the model cannot describe this run; such a run counts nowhere.
    """

    model: str
    method: str
    gpu: str
    batch: int
    sequence: int
    checkpointing: bool
    sequences: float | None = None
    seconds: float | None = None
    accumulation: int | None = None
    peak_gb: float | None = None
    longest: int | None = None
    sharded: bool = False
    state: str = "fp32"
    gpus: int = 1
    strategy: str = ""
    link: str = ""
    published: str = ""
    left_out: str = ""


@dataclass(frozen=True)
class Project:
    """Measurement that a project published.

    Attributes
    ----------
    fitted : bool
        Whether the model is fitted to it, or it is held out.
    options : dict
        Fields of `FineTuning` that all its runs share.
    """

    project: str
    fitted: bool
    source: str
    how: str
    runs: list[PublishedRun]
    options: dict[str, Any] = field(default_factory=dict)

    def configuration(self, run: PublishedRun) -> FineTuning:
        given = _models()[run.model] | self.options
        if run.accumulation:
            given["accumulation"] = run.accumulation
        return FineTuning(
            **{"experts": 1, "top_k": 1, "lora_rank": 16, "precision": "bf16", "kernels": "flash"} | given,
            sequence_length=run.sequence,
            method=run.method,
            checkpointing=run.checkpointing,
            state=run.state,
        )

    @property
    def throughputs(self) -> list[Throughput]:
        """Throughputs of the runs that the model describes, each of one micro-batch."""
        return [
            Throughput(
                run.model, self.project, run.gpu, self.configuration(run), run.batch, run.sequences / run.seconds
            )
            for run in self.runs
            if run.seconds and not run.left_out
        ]

    @property
    def peaks(self) -> list[tuple[FineTuning, int, float]]:
        """Configuration at its longest sequence, batch, and peak of the memory, bytes, where it was published."""
        return [
            (
                replace(self.configuration(run), sequence_length=run.longest or run.sequence),
                run.batch,
                1e9 * run.peak_gb,
            )
            for run in self.runs
            if run.peak_gb and not (run.left_out or run.sharded)
        ]


@cache
def _models() -> dict[str, dict[str, Any]]:
    return json.loads((FOLDER / "models.json").read_text(encoding="utf-8"))


@cache
def projects() -> list[Project]:
    """Return all projects, those that the model is fitted to first."""
    files = sorted(path for path in FOLDER.glob("*.json") if path.name != "models.json")
    read = [from_json(Project, path.read_text(encoding="utf-8")) for path in files]
    return sorted(read, key=lambda project: not project.fitted)
