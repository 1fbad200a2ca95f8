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
    """A published run on one GPU, or the share of one among several."""

    model: str  # a key of models.json
    method: str
    gpu: str
    # batch, sequence: of a micro-batch
    batch: int
    sequence: int
    checkpointing: bool
    # sequences, seconds: how many sequences it trained in how long
    sequences: float | None = None
    seconds: float | None = None
    # micro-batches of an update, times the GPUs that share the optimizer's work; by default the project's
    accumulation: int | None = None
    peak_gb: float | None = None  # peak of the memory, 10^9 bytes
    longest: int | None = None  # tokens of the longest sequence, at which memory peaked, where `sequence` is a mean
    sharded: bool = False  # whether GPUs exchanged weights during the step: memory is then no whole model's
    state: str = "fp32"  # as in `FineTuning`
    # gpus, strategy, link: of several GPUs: how many, how they share the work (`bttlab_cost.parallel`), and their link
    gpus: int = 1
    strategy: str = ""
    link: str = ""
    published: str = ""  # the published value, where `sequences` is computed from it
    left_out: str = ""  # why the model cannot describe this run; such a run counts nowhere


@dataclass(frozen=True)
class Project:
    """Measurement that a project published."""

    project: str
    fitted: bool  # whether the model is fitted to it, or it is held out
    source: str
    how: str
    runs: list[PublishedRun]
    options: dict[str, Any] = field(default_factory=dict)  # fields of `FineTuning` that all its runs share

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
