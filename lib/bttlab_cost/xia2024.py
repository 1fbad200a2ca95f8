"""Measurements of Xia et al. (arXiv 2408.04693, repository stsxxx/finetune), data/cost/xia2024, and their equations.

All of it is published. Their scripts take equation 2 (§V) as Throughput = C4 + C2 ln(batch^(1 / (sparsity C3))), with
C3 set to 1.8 for Mixtral and 2.5 for BlackMamba and the other two fitted by least squares to one model, data set and
GPU at a time. Equation 1 has C0 = 62 and C1 = 0.89 there for Mixtral, whose weights take 23.35 GB.
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from bttlab.baseline.gpus import find_gpu
from bttlab.util.places import ROOT
from bttlab_cost.configuration import FineTuning
from bttlab_cost.models import find_model

FOLDER = ROOT / "data" / "cost" / "xia2024"
MEDIANS = {"commonsense": 79, "math": 174}  # tokens of a sequence
NAMES = {"Mixtral-8x7B": "mixtral-8x7b", "BlackMamba-2.8B": "blackmamba-2.8b"}
PROFILED_LENGTH = 128  # tokens of every sequence in the authors' runs that were timed stage by stage
C3 = {"Mixtral-8x7B": 1.8, "BlackMamba-2.8B": 2.5}
C0, C1, MODEL_GB = 62.0, 0.89, 23.35


@dataclass(frozen=True)
class Throughput:
    model: str
    data_set: str
    gpu: str
    config: FineTuning
    batch: int
    sequences_per_second: float


@dataclass(frozen=True)
class Stages:
    """The seconds of a step's stages, "forward", "backward" and "optimizer", on an A40.

    Every sequence has `PROFILED_LENGTH` tokens.
    """

    model: str
    config: FineTuning
    batch: int
    seconds: dict[str, float]


@dataclass(frozen=True)
class LargestBatch:
    """A largest batch of sequences of one length."""

    model: str
    gpu: str
    config: FineTuning
    largest_batch: int


def rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def configuration(model: str, length: int, sparsity: float, padding: str) -> FineTuning:
    top_k = round(8 * sparsity)
    return find_model(f"{NAMES[model]},sequence_length={length},top_k={top_k},padding={padding}")


@cache
def throughputs(name: str = "throughput.csv") -> list[Throughput]:
    """Return the measured throughputs; those of "throughput_h100.csv" are kept aside for a check, and never fitted."""
    return [
        Throughput(
            row["model"],
            row["data_set"],
            row["gpu"],
            configuration(row["model"], MEDIANS[row["data_set"]], float(row["sparsity"]), "longest"),
            int(row["batch"]),
            float(row["sequences_per_s"]),
        )
        for row in rows(name)
    ]


@cache
def stages() -> list[Stages]:
    return [
        Stages(
            row["model"],
            configuration(row["model"], PROFILED_LENGTH, float(row["sparsity"]), "none"),
            int(row["batch"]),
            {stage: float(row[f"{stage}_s"]) for stage in ("forward", "backward", "optimizer")},
        )
        for row in rows("stages.csv")
    ]


@cache
def largest_batches() -> list[LargestBatch]:
    by_memory = {"40": "A100-40GB", "48": "A40-48GB", "80": "A100-80GB"}
    return [
        LargestBatch(
            row["model"],
            by_memory[row["memory_gb"]],
            configuration(row["model"], int(row["sequence"]), float(row["sparsity"]), "none"),
            int(row["largest_batch"]),
        )
        for row in rows("largest_batch.csv")
    ]


def series(points: Sequence[Throughput]) -> dict[tuple[str, str, str], list[Throughput]]:
    groups: dict[tuple[str, str, str], list[Throughput]] = {}
    for point in points:
        groups.setdefault((point.model, point.data_set, point.gpu), []).append(point)
    return groups


def equation_2(points: Sequence[Throughput]) -> Callable:
    """Fit equation 2 to points of one model, data set and GPU; it maps batch and sparsity to sequences a second."""
    c3 = C3[points[0].model]
    batch, sparsity, rate = np.array(
        [(point.batch, point.config.sparsity, point.sequences_per_second) for point in points]
    ).T
    terms = np.stack([np.log(batch) / (sparsity * c3), np.ones_like(rate)], axis=1)
    (c2, c4), *_ = np.linalg.lstsq(terms, rate, rcond=None)
    return lambda batch, sparsity: c2 * np.log(batch) / (sparsity * c3) + c4


def equation_1(point: LargestBatch) -> int:
    """Return what equation 1 gives, with the nominal memory of the GPU."""
    memory = round(find_gpu(point.gpu).memory_mib / 1024 / 8) * 8  # 45 GiB are sold as 48 GB
    share = (1 - C1) + C1 * point.config.sparsity
    return int(C0 * (memory - MODEL_GB) / (point.config.sequence_length * share))
