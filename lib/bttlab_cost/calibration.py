"""The recorded calibration of the model of a GPU step (`bttlab_cost.fitting` makes it), and its errors."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np

from bttlab.baseline.gpus import find_gpu
from bttlab.util.files import write_file
from bttlab.util.places import ROOT
from bttlab.util.quantities import to_json
from bttlab.util.settings import from_json
from bttlab_cost import xia2024
from bttlab_cost.configuration import FineTuning
from bttlab_cost.gpu_step import Coefficients, step_parts, step_seconds
from bttlab_cost.parallel import ALONE
from bttlab_cost.step_memory import MemoryCoefficients
from bttlab_cost.xia2024 import LargestBatch, Stages, Throughput

RECORDED = ROOT / "data" / "cost" / "gpu_model.json"
STAGES_ON = "A40-48GB"
Prediction = tuple[Throughput, Coefficients]  # a measured point, and what predicts it
_DIGITS = 4  # significant ones in the record: an optimum is found to more on every host


@dataclass(frozen=True)
class Errors:
    """Relative errors of throughput, absolute, over a group of points."""

    points: int
    median: float
    nine_of_ten: float  # what nine of ten points stay under
    bias: float  # the median with its sign; above 0: predicted too fast


@dataclass(frozen=True)
class Spread:
    """By how much a throughput may be off: nine of ten points that were not fitted to are nearer."""

    # gpu, host: logarithm of the factor of a step that never waits for its host, and of one that does all the time:
    # hosts and libraries differ more than GPUs do
    gpu: float
    host: float

    def factor(self, host_share: float) -> float:
        """Return the factor, either way, of a step that waits for its host for a share of its time."""
        return math.exp(self.gpu * (1 - host_share) + self.host * host_share)


@dataclass(frozen=True)
class Calibration:
    """Fitted coefficients and their errors."""

    # time, low, high: fitted to all points, and the least and most that leaving out a group of points makes of each
    time: Coefficients
    low: Coefficients
    high: Coefficients
    # fitted to those projects of `bttlab_cost.others` that are for fitting; their kernels are FlashAttention's
    flash: Coefficients
    memory: MemoryCoefficients
    flash_memory: MemoryCoefficients
    # spread, flash_spread: of points that were not fitted to: of the H100, and of projects that were left or held out
    spread: Spread
    flash_spread: Spread
    # memory_spread, flash_memory_spread: logarithm of the factor by which a peak of the memory may be off: nine of ten
    # that were not fitted to are nearer
    memory_spread: float
    flash_memory_spread: float
    # errors: of the fit itself, and for each way to leave out a group of points of all predictions of what was left out
    # memory_errors: of the peaks of the memory with FlashAttention of each project
    errors: dict[str, Errors]
    memory_errors: dict[str, Errors]

    def time_of(self, config: FineTuning) -> Coefficients:
        return self.flash if config.kernels == "flash" else self.time

    def memory_of(self, config: FineTuning) -> MemoryCoefficients:
        return self.flash_memory if config.kernels == "flash" else self.memory

    def write(self, path: Path) -> None:
        rounded = json.loads(to_json(asdict(self)), parse_float=lambda text: float(f"{float(text):.{_DIGITS}g}"))
        write_file(path, json.dumps(rounded, indent=1) + "\n", "--record")


def predict(point: Throughput, coefficients: Coefficients) -> float:
    """Return the modelled throughput of a measured point, sequences a second."""
    return point.batch / step_seconds(point.config, find_gpu(point.gpu), point.batch, coefficients)


def stage_seconds(point: Stages, coefficients: Coefficients) -> dict[str, float]:
    seconds = dict.fromkeys(point.seconds, 0.0)
    for (stage, _, _), value in step_parts(point.config, find_gpu(STAGES_ON), point.batch, coefficients).items():
        seconds[stage] += value
    return seconds


def errors_of(predictions: Iterable[Prediction]) -> Errors:
    return errors_of_ratios([predict(point, fit) / point.sequences_per_second for point, fit in predictions])


def errors_of_ratios(ratios: Sequence[float]) -> Errors:
    """Return the errors of ratios, predicted over measured."""
    off = np.abs(np.array(ratios) - 1)
    return Errors(len(ratios), float(np.median(off)), float(np.quantile(off, 0.9)), float(np.median(ratios) - 1))


def errors_of_equation_2() -> Errors:
    """Return the errors of the published equation 2 on the very points that each of its curves is fitted to."""
    ratios = []
    for members in xia2024.series(xia2024.throughputs()).values():
        fitted = xia2024.equation_2(members)
        ratios += [fitted(point.batch, point.config.sparsity) / point.sequences_per_second for point in members]
    return errors_of_ratios(ratios)


def modelled_largest_batches(coefficients: MemoryCoefficients) -> list[tuple[LargestBatch, int]]:
    """Return the published largest batches, each with the modelled one."""
    return [
        (
            one,
            int(
                ALONE.footprint(one.config, coefficients).tokens(find_gpu(one.gpu).memory_bytes)
                / one.config.sequence_length
            ),
        )
        for one in xia2024.largest_batches()
    ]


@cache
def read_calibration(path: Path = RECORDED) -> Calibration:
    return from_json(Calibration, path.read_text(encoding="utf-8"))
