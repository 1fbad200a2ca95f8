"""Measurements that other projects than Xia et al. published: data/cost/others, all of it published."""

import json
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from bttlab.baseline.gpus import find_gpu
from bttlab.util.places import ROOT
from bttlab.util.settings import from_json
from bttlab_cost.configuration import FineTuning
from bttlab_cost.parallel import ALONE, Parallel
from bttlab_cost.step_memory import RESERVED, Footprint, MemoryCoefficients
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
    reserved_gb: float | None = None  # what the process held of the GPU, where `peak_gb` is what PyTorch allocated
    fits: bool | None = None  # whether it ran, where no peak was published
    memory_gb: float | None = None  # memory of the GPU, where data/gpus.json has none
    longest: int | None = None  # tokens of the longest sequence, at which memory peaked, where `sequence` is a mean
    sharded: bool = False  # whether GPUs exchanged weights during the step
    state: str = "fp32"  # as in `FineTuning`
    # gpus, strategy, link: of several GPUs: how many, how they share the work (`bttlab_cost.parallel`), and their link
    gpus: int = 1
    strategy: str = ""
    link: str = ""
    published: str = ""  # the published value, where `sequences` is computed from it
    left_out: str = ""  # why the model cannot describe this run; such a run counts nowhere
    # source, options: where they are not the project's
    source: str = ""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Peak:
    """A published peak of the memory of a GPU, or whether a run fitted."""

    run: PublishedRun
    config: FineTuning  # at its longest sequence
    parallel: Parallel
    allocated: bool  # whether the published peak is what PyTorch allocated: it does not have the context
    source: str

    @property
    def tokens(self) -> int:
        return self.run.batch * self.config.sequence_length

    def footprint(self, fitted: MemoryCoefficients) -> Footprint:
        """Return the modelled memory, without the context if the published one is without."""
        found = self.parallel.footprint(self.config, fitted)
        return replace(found, lasting=found.lasting - RESERVED) if self.allocated else found

    def ratio(self, fitted: MemoryCoefficients) -> float:
        """Return the modelled over the published peak."""
        return self.footprint(fitted).peak(self.tokens) / (1e9 * self.run.peak_gb)


@dataclass(frozen=True)
class Project:
    """Measurements that a project published."""

    project: str
    fitted: bool  # whether the model is fitted to it, or it is held out
    source: str
    how: str
    runs: list[PublishedRun]
    options: dict[str, Any] = field(default_factory=dict)  # fields of `FineTuning` that all its runs share
    memory_fitted: bool = False  # whether the model of the memory alone is fitted to it
    allocated: bool = False  # as in `Peak`

    def configuration(self, run: PublishedRun) -> FineTuning:
        given = _models()[run.model] | self.options | run.options
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

    def on_its_gpus(self, run: PublishedRun) -> tuple[FineTuning, Parallel]:
        """Return what a run trained, and the GPUs that it had.

        The records count the GPUs that share the optimizer as accumulation; here they are counted as GPUs.
        """
        config = self.configuration(run)
        if run.gpus == 1:
            return config, ALONE
        config = replace(config, accumulation=max(1, config.accumulation // run.gpus))
        return config, Parallel.of(run.gpus, run.strategy, find_gpu(run.gpu), run.link)

    @property
    def peaks(self) -> list[Peak]:
        """Peaks of the memory that were published, and runs of which it is known whether they fitted."""
        found = []
        for run in self.runs:
            if not run.left_out and (run.peak_gb or run.fits is not None):
                config, parallel = self.on_its_gpus(run)
                config = replace(config, sequence_length=run.longest or run.sequence)
                found.append(Peak(run, config, parallel, self.allocated, run.source or self.source))
        return found


@cache
def _models() -> dict[str, dict[str, Any]]:
    return json.loads((FOLDER / "models.json").read_text(encoding="utf-8"))


@cache
def projects() -> list[Project]:
    """Return all projects, those that the model is fitted to first."""
    files = sorted(path for path in FOLDER.glob("*.json") if path.name != "models.json")
    read = [from_json(Project, path.read_text(encoding="utf-8")) for path in files]
    return sorted(read, key=lambda project: not project.fitted)
