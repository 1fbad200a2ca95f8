"""The model of a GPU step, fitted to what Xia et al. published, and how wrong it is on what it has not seen.

Times: the 77 throughputs on A40 and A100, and the stages of ten steps on the A40, by least squares of the logarithms
(with a loss that outliers weigh less in). Memory: largest batches for a model that is recomputed; for one whose
activations are all kept the batches that the authors timed stage by stage, the largest they show. The H100's points are
kept aside: nothing is fitted to them.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import cache
from pathlib import Path

import numpy as np
from scipy import optimize

from bttlab.baseline.gpus import find_gpu
from bttlab.cost import xia2024
from bttlab.cost.configuration import CostError
from bttlab.cost.gpu_step import (
    Coefficients,
    MemoryCoefficients,
    fixed_bytes,
    largest_batch,
    step_parts,
    step_seconds,
    token_bytes,
)
from bttlab.cost.xia2024 import LargestBatch, Stages, Throughput
from bttlab.figures import to_json
from bttlab.places import ROOT
from bttlab.records import RecordError, build, write_whole

RECORDED = ROOT / "data" / "cost" / "gpu_model.json"
STAGES_ON = "A40-48GB"
_START = Coefficients(0.55, 0.75, 20e-6, 0.4e-3, 2.0, 100.0)
_LEAST = Coefficients(0.2, 0.5, 3e-6, 1e-6, 0.3, 5.0)
_MOST = Coefficients(1.0, 1.0, 200e-6, 2e-3, 20.0, 400.0)
_OUTLIER = 0.1  # of a logarithm: from here on an error counts less than its square
LEFT_OUT: dict[str, Callable[[Throughput], str]] = {
    "one GPU": lambda point: point.gpu,
    "one model and data set": lambda point: f"{point.model}, {point.data_set}",
    "one model": lambda point: point.model,
}


@dataclass(frozen=True)
class Errors:
    """Relative errors of throughput, absolute, over a group of points.

    Attributes
    ----------
    points : int
    median, nine_of_ten, bias : float
        Their median, what nine of ten stay under, and the median with its sign (above 0: predicted too fast).
    """

    points: int
    median: float
    nine_of_ten: float
    bias: float


@dataclass(frozen=True)
class Calibration:
    """Fitted coefficients and their errors.

    Attributes
    ----------
    time, low, high : Coefficients
        Fitted to all points, and the least and most that leaving out a group of points makes of each.
    memory : MemoryCoefficients
    errors : dict of str to Errors
        Of the fit itself, and for each way to leave out a group of points of all predictions of what was left out.
    """

    time: Coefficients
    low: Coefficients
    high: Coefficients
    memory: MemoryCoefficients
    errors: dict[str, Errors]

    def write(self, path: Path) -> None:
        """Write the file whole, or leave what is there; errors as for `write_whole`."""
        write_whole(path, to_json(asdict(self), indent=1) + "\n")


def fit_time(throughputs: Sequence[Throughput], stages: Sequence[Stages]) -> Coefficients:
    """Return the coefficients that fit best."""

    def logarithms(values: np.ndarray) -> list[float]:
        coefficients = Coefficients(*np.exp(values))
        errors = [math.log(predict(point, coefficients) / point.sequences_per_second) for point in throughputs]
        for point in stages:
            modelled = stage_seconds(point, coefficients)
            errors += [math.log(modelled[stage] / point.seconds[stage]) for stage in ("forward", "backward")]
        return errors

    start, least, most = (np.log(astuple(one)) for one in (_START, _LEAST, _MOST))
    solution = optimize.least_squares(
        logarithms, start, loss="soft_l1", f_scale=_OUTLIER, bounds=(least, most), ftol=1e-5, xtol=1e-4
    )
    return Coefficients(*np.exp(solution.x).tolist())


def predict(point: Throughput, coefficients: Coefficients) -> float:
    """Return the modelled throughput of a measured point, sequences a second."""
    return point.batch / step_seconds(point.config, find_gpu(point.gpu), point.batch, coefficients)


def stage_seconds(point: Stages, coefficients: Coefficients) -> dict[str, float]:
    """Return the modelled seconds of each stage of a measured step."""
    seconds = dict.fromkeys(point.seconds, 0.0)
    for (stage, _, _), value in step_parts(point.config, find_gpu(STAGES_ON), point.batch, coefficients).items():
        seconds[stage] += value
    return seconds


def fit_memory(batches: Sequence[LargestBatch], stages: Sequence[Stages]) -> MemoryCoefficients:
    """Return the multiples of the counted activations: the peak meets the memory half a sequence on."""
    recomputed = [(point.config, find_gpu(point.gpu), point.largest_batch) for point in batches]
    largest: dict[tuple[str, int], Stages] = {}
    for point in stages:
        if not point.config.checkpointing:
            key = (point.model, point.config.top_k)
            largest[key] = max(largest.get(key, point), point, key=lambda one: one.batch)
    kept = [(point.config, find_gpu(STAGES_ON), point.batch) for point in largest.values()]

    def logarithms(values: np.ndarray) -> list[float]:
        coefficients = MemoryCoefficients(*np.exp(values))
        return [
            math.log(
                (gpu.memory_bytes - fixed_bytes(config))
                / ((batch + 0.5) * config.sequence_length * token_bytes(config, coefficients))
            )
            for config, gpu, batch in [*recomputed, *kept]
        ]

    return MemoryCoefficients(*np.exp(optimize.least_squares(logarithms, np.log([1.5, 10.0])).x).tolist())


def errors_of(points: Sequence[Throughput], predicted: Sequence[float]) -> Errors:
    """Return the errors of predictions."""
    ratios = np.array(predicted) / [point.sequences_per_second for point in points]
    off = np.abs(ratios - 1)
    return Errors(len(points), float(np.median(off)), float(np.quantile(off, 0.9)), float(np.median(ratios) - 1))


def leave_out(kind: str) -> dict[str, tuple[list[Throughput], Coefficients]]:
    """Return, for each group of a kind of `LEFT_OUT`, its points and the coefficients fitted without them.

    Stages of what is left out are left out, too: all where it is the GPU that they were timed on.
    """
    group_of, points = LEFT_OUT[kind], xia2024.throughputs()
    fits = {}
    for group in dict.fromkeys(map(group_of, points)):
        inside = [point for point in points if group_of(point) == group]
        others = [point for point in points if group_of(point) != group]
        stages = [] if group == STAGES_ON else [point for point in xia2024.stages() if point.model != group]
        fits[group] = inside, fit_time(others, stages)
    return fits


@cache
def calibrate() -> tuple[Calibration, dict[str, dict[str, Errors]]]:
    """Fit anew; return the calibration, and the errors on each group that was left out, by the kind of group."""
    points = xia2024.throughputs()
    time = fit_time(points, xia2024.stages())
    errors = {"fitted": errors_of(points, [predict(point, time) for point in points])}
    groups: dict[str, dict[str, Errors]] = {}
    fits = [time]
    for kind in LEFT_OUT:
        left_out = leave_out(kind)
        fits += [fit for _, fit in left_out.values()]
        pairs = [(point, predict(point, fit)) for inside, fit in left_out.values() for point in inside]
        errors[f"{kind} left out"] = errors_of(*zip(*pairs, strict=True))
        groups[kind] = {
            group: errors_of(inside, [predict(point, fit) for point in inside])
            for group, (inside, fit) in left_out.items()
        }
    values = np.array([astuple(one) for one in fits])
    low, high = (Coefficients(*ends.tolist()) for ends in (values.min(0), values.max(0)))
    memory = fit_memory(xia2024.largest_batches(), xia2024.stages())
    return Calibration(time, low, high, memory, errors), groups


def modelled_largest_batches(coefficients: MemoryCoefficients) -> list[tuple[LargestBatch, int]]:
    """Return the published largest batches, each with the modelled one."""
    pairs = []
    for point in xia2024.largest_batches():
        memory, length = find_gpu(point.gpu).memory_bytes, point.config.sequence_length
        pairs.append((point, largest_batch(point.config, memory, length, coefficients)))
    return pairs


@cache
def read_calibration(path: Path = RECORDED) -> Calibration:
    """Return the recorded calibration.

    Raises
    ------
    CostError
        If the file is not there, or is not one.
    """
    try:
        return build(Calibration, json.loads(path.read_text(encoding="utf-8")), "")
    except (RecordError, OSError, ValueError) as error:
        raise CostError(
            f"{path} is no calibration of the GPU model ({error}); make it with bttlab cost check --record {path}"
        ) from None
