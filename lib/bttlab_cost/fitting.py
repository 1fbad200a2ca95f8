"""The model of a GPU step, fitted to the measurements of Xia et al., and its errors on points that it has not seen.

Times: the 77 throughputs on A40 and A100, and the stages of ten steps on the A40. The coefficients are the most likely
ones under a prior: least squares of logarithms, with a loss in which outliers weigh less, from several starts. The
model is smooth and its derivatives are exact, so every host finds the same optimum.

Memory: largest batches of a model that is recomputed; of one whose activations are all kept the largest batches that
the authors timed stage by stage. Nothing is fitted to the H100's points.

Runs with FlashAttention have coefficients of their own, fitted to three other projects and tried on more
(`bttlab_cost.others`). Bands come from errors on points, GPUs and projects that were not fitted to.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple
from functools import cache
from itertools import chain

import numpy as np
from scipy import optimize

from bttlab.baseline.gpus import find_gpu
from bttlab_cost import others, xia2024
from bttlab_cost.calibration import (
    STAGES_ON,
    Calibration,
    Errors,
    Prediction,
    Spread,
    errors_of,
    errors_of_ratios,
    predict,
)
from bttlab_cost.configuration import CostError, FineTuning
from bttlab_cost.gpu_step import Coefficients, host_share, stages_of_steps
from bttlab_cost.parallel import ALONE, Parallel
from bttlab_cost.step_memory import MemoryCoefficients
from bttlab_cost.xia2024 import LargestBatch, Stages, Throughput

# What is known of such GPUs before the data, and the standard deviation of its logarithm. It decides where the data say
# nothing: without Mixtral no point has a quantised layer.
_PRIOR = Coefficients(0.55, 0.75, 15e-6, 0.4e-3, 1.0, 100.0, 0.0)
_PRIOR_DEVIATION = np.array([0.3, 0.15, 0.5, 1.0, 0.5, 0.5, 0.3])
_PRIOR_WEIGHT = 0.05
_FLASH_PRIOR_WEIGHT = 0.3  # a project has few points, all of one regime: many rows with one error
_STEP = 1e-20  # imaginary: a function's imaginary part over it is the derivative, to the last bit
LOGIT_BYTES = 10.0  # of a logit in eager PyTorch: in BF16, its copy in FP32 and that copy's gradient
_MEMORY_PRIOR_WEIGHT = 0.01
_OUTLIER = 0.1  # of a logarithm: larger errors count less than their square
_TURNS = np.array(
    [[1, -1, 1, -1, 1, -1, 1], [-1, 1, 1, 1, -1, 1, -1], [1, 1, -1, -1, -1, -1, 1]]
)  # starts around the prior
_WAITS = 1 / 3  # a step that waits longer for its host says how much hosts differ
LEFT_OUT: dict[str, Callable[[Throughput], str]] = {
    "one GPU": lambda point: point.gpu,
    "one model and data set": lambda point: f"{point.model}, {point.data_set}",
    "one model": lambda point: point.model,
}


def fit_time(throughputs: Sequence[Throughput], stages: Sequence[Stages] = (), flash: bool = False) -> Coefficients:
    """Return the most likely coefficients: least squares of the logarithms of times, with a prior.

    The fit begins at the prior and at points around it, and the best optimum is returned. `flash` fits `falloff`, which
    is 0 else, with a heavier prior: a project has few points, many with one error. Raises CostError if a fit does not
    converge.
    """
    groups = _groups(throughputs, stages)
    free = len(_PRIOR_DEVIATION) if flash else -1
    deviation, prior = _PRIOR_DEVIATION[:free], _values(_PRIOR)[:free]
    begin = [prior, *(prior + 1.5 * turn[:free] * deviation for turn in _TURNS)]
    weight = (_FLASH_PRIOR_WEIGHT if flash else _PRIOR_WEIGHT) / deviation

    def errors(values: np.ndarray) -> np.ndarray:
        found = [(weight * (values - prior)).T]
        for config, gpus, batches, measured in groups:
            modelled = stages_of_steps(config, gpus, batches, _coefficients(values))
            modelled["all"] = sum(modelled.values())
            found += [np.log(modelled[stage] / seconds).T for stage, seconds in measured.items()]
        return np.concatenate(found)

    def slopes(values: np.ndarray) -> np.ndarray:
        return errors(values + 1j * _STEP * np.eye(len(values))).imag / _STEP

    solutions = [
        optimize.least_squares(
            lambda values: errors(values[None])[:, 0],
            start,
            jac=slopes,
            loss="soft_l1",
            f_scale=_OUTLIER,
            x_scale=deviation,
            ftol=1e-12,
            xtol=1e-10,
            gtol=1e-12,
        )
        for start in begin
    ]
    best = min(solutions, key=lambda solution: solution.cost)
    if not best.success:
        raise CostError(f"the fit did not converge: {best.message}")
    return Coefficients(*(coefficient.item() for coefficient in astuple(_coefficients(best.x[None]))))


def _values(coefficients: Coefficients) -> np.ndarray:
    """Return the variables of a fit: logarithms, and `falloff` as it is."""
    *positive, falloff = astuple(coefficients)
    return np.array([*np.log(positive), falloff])


def _coefficients(values: np.ndarray) -> Coefficients:
    """Return the coefficients of n fits' variables, shape (n, variables); without the last one, `falloff` is 0."""
    *positive, falloff = np.hsplit(np.pad(values, ((0, 0), (0, 7 - values.shape[1]))), 7)
    return Coefficients(*np.exp(positive), falloff)


def _groups(throughputs: Sequence[Throughput], stages: Sequence[Stages]) -> list[tuple]:
    """Group steps by configuration: it, their GPUs, batches and measured seconds, by stage or as "all"."""
    rows: dict[tuple, list[tuple]] = {}
    for point in throughputs:
        seconds = {"all": point.batch / point.sequences_per_second}
        rows.setdefault((point.config, "all"), []).append((find_gpu(point.gpu), point.batch, seconds))
    for point in stages:
        seconds = {stage: point.seconds[stage] for stage in ("forward", "backward")}
        rows.setdefault((point.config, "stages"), []).append((find_gpu(STAGES_ON), point.batch, seconds))
    groups = []
    for (config, _), members in rows.items():
        gpus, batches, measured = zip(*members, strict=True)
        groups.append((config, gpus, batches, {key: np.array([one[key] for one in measured]) for key in measured[0]}))
    return groups


def fit_memory(batches: Sequence[LargestBatch], stages: Sequence[Stages]) -> MemoryCoefficients:
    """Return the multiples of the counted activations: the peak meets the memory half a sequence on.

    Here logits take `LOGIT_BYTES`: no model is small beside its vocabulary. All ran on one GPU.
    """
    points = [*map(_at_the_limit, batches), *(_at_the_limit(stage) for stage in _largest(stages))]
    return _least_squares(
        lambda found: [math.log(_part_added(*point, found)) for point in points],
        [1.5, 10.0],
        logit=LOGIT_BYTES,
        sharded=1.0,
    )


def _largest(stages: Sequence[Stages]) -> list[Stages]:
    """Return the steps of the largest batch of each model without checkpointing."""
    largest: dict[tuple[str, int], Stages] = {}
    for point in stages:
        if not point.config.checkpointing:
            key = (point.model, point.config.top_k)
            largest[key] = max(largest.get(key, point), point, key=lambda one: one.batch)
    return list(largest.values())


def _at_the_limit(point: LargestBatch | Stages) -> tuple[FineTuning, float, float]:
    """Return what just does not fit: the configuration, tokens, and the bytes of the GPU's memory."""
    largest = isinstance(point, LargestBatch)
    batch, gpu = (point.largest_batch, point.gpu) if largest else (point.batch, STAGES_ON)
    return point.config, (batch + 0.5) * point.config.sequence_length, find_gpu(gpu).memory_bytes


def _part_added(config: FineTuning, tokens: float, memory: float, fitted: MemoryCoefficients) -> float:
    """Return what a step adds to the memory, modelled over what is left for it."""
    footprint = ALONE.footprint(config, fitted)
    return footprint.added(tokens) / (memory - footprint.lasting)


def fit_flash_memory(without: str = "") -> MemoryCoefficients:
    """Return the coefficients that give the published peaks of the fitted projects, all but one if named."""
    peaks = [
        peak
        for project in others.projects()
        if (project.fitted or project.memory_fitted) and project.project != without
        for peak in _measured(project)
    ]
    return _least_squares(lambda found: [math.log(peak.ratio(found)) for peak in peaks], [1.0, 3.0, 12.0, 1.0])


def _least_squares(
    logarithms: Callable[[MemoryCoefficients], list[float]], start: list[float], **known: float
) -> MemoryCoefficients:
    def coefficients(values: np.ndarray) -> MemoryCoefficients:
        return MemoryCoefficients(*np.exp(values).tolist(), **known)

    # The largest phase of a step may change with the coefficients: there the errors have a kink. The prior keeps what
    # no point tells of where it began.
    begin = np.log(start)
    return coefficients(
        optimize.least_squares(
            lambda values: [*logarithms(coefficients(values)), *(_MEMORY_PRIOR_WEIGHT * (values - begin))],
            begin,
            loss="soft_l1",
            f_scale=_OUTLIER,
        ).x
    )


def _measured(project: others.Project) -> list[others.Peak]:
    return [peak for peak in project.peaks if peak.run.peak_gb]


def memory_errors(coefficients: MemoryCoefficients) -> dict[str, Errors]:
    """Return the errors of the published peaks of each project, with FlashAttention."""
    peaks = {project.project: _flash(project) for project in others.projects()}
    return {name: errors_of_ratios([peak.ratio(coefficients) for peak in them]) for name, them in peaks.items() if them}


def _flash(project: others.Project) -> list[others.Peak]:
    return [peak for peak in _measured(project) if peak.config.kernels == "flash"]


def unseen_peaks(flash_memory: MemoryCoefficients) -> list[tuple[others.Peak, MemoryCoefficients]]:
    """Return the published peaks with FlashAttention, each with coefficients of a fit that has not seen its project."""
    found = []
    for project in others.projects():
        fitted = project.fitted or project.memory_fitted
        fit = fit_flash_memory(without=project.project) if fitted else flash_memory
        found += [(peak, fit) for peak in _flash(project)]
    return found


def _eager_ratios() -> list[float]:
    """Return for the published largest batches the peak, half a sequence on, that a fit without their GPU gives, over
    the memory.
    """
    ratios = []
    batches, stages = xia2024.largest_batches(), xia2024.stages()
    for gpu in dict.fromkeys(point.gpu for point in batches):
        fit = fit_memory([point for point in batches if point.gpu != gpu], stages)
        for point in batches:
            if point.gpu == gpu:
                config, tokens, memory = _at_the_limit(point)
                ratios.append(ALONE.footprint(config, fit).peak(tokens) / memory)
    return ratios


def _memory_spread(ratios: Sequence[float]) -> float:
    return float(np.quantile(np.abs(np.log(ratios)), 0.9))


def leave_out(kind: str) -> dict[str, list[Prediction]]:
    """Return, for each group of a kind of `LEFT_OUT`, its points, each with the coefficients fitted without the group.

    Stages of what is left out are left out, too: all where it is the GPU that they were timed on.
    """
    group_of, points = LEFT_OUT[kind], xia2024.throughputs()
    groups = {}
    for group in dict.fromkeys(map(group_of, points)):
        rest = [point for point in points if group_of(point) != group]
        stages = [] if group == STAGES_ON else [point for point in xia2024.stages() if point.model != group]
        fit = fit_time(rest, stages)
        groups[group] = [(point, fit) for point in points if group_of(point) == group]
    return groups


@cache
def calibrate() -> tuple[Calibration, dict[str, dict[str, Errors]]]:
    """Return a new calibration, and the errors on each group that was left out, by the kind of group."""
    points = xia2024.throughputs()
    time = fit_time(points, xia2024.stages())
    errors = {"fitted": errors_of((point, time) for point in points)}
    groups: dict[str, dict[str, Errors]] = {}
    fits = [time]
    for kind in LEFT_OUT:
        left_out = leave_out(kind)
        fits += [predictions[0][1] for predictions in left_out.values()]
        errors[f"{kind} left out"] = errors_of(chain(*left_out.values()))
        groups[kind] = {group: errors_of(predictions) for group, predictions in left_out.items()}
    values = np.array([astuple(one) for one in fits])
    low, high = (Coefficients(*ends.tolist()) for ends in (values.min(0), values.max(0)))
    memory = fit_memory(xia2024.largest_batches(), xia2024.stages())
    aside = [(point, time) for point in xia2024.throughputs("throughput_h100.csv")]
    spread = _spread(aside, math.log1p(errors["one GPU left out"].nine_of_ten))

    every = [point for project in others.projects() if project.fitted for point in project.throughputs]
    flash = fit_time(every, flash=True)
    errors["FlashAttention, fitted"] = errors_of((point, flash) for point in every)
    unseen: dict[str, list[Prediction]] = {}  # by fits that have not seen the project
    for project in others.projects():
        rest = [point for point in every if point.data_set != project.project]
        fit = fit_time(rest, flash=True) if project.fitted else flash
        unseen[project.project] = [(point, fit) for point in project.throughputs]
    groups["one project"] = {name: errors_of(predictions) for name, predictions in unseen.items() if predictions}
    for name, fitted in (("one project left out", True), ("projects held out", False)):
        names = [project.project for project in others.projects() if project.fitted == fitted]
        errors[f"FlashAttention, {name}"] = errors_of(chain(*(unseen[name] for name in names)))
    flash_spread = _spread(list(chain(*unseen.values())))
    flash_memory = fit_flash_memory()
    ratios = [peak.ratio(fit) for peak, fit in unseen_peaks(flash_memory)]
    calibration = Calibration(
        *(time, low, high, flash, memory, flash_memory, spread, flash_spread),
        *(_memory_spread(_eager_ratios()), _memory_spread(ratios)),
        *(errors, memory_errors(flash_memory) | {"not seen by the fit": errors_of_ratios(ratios)}),
    )
    return calibration, groups


def _spread(unseen: Sequence[Prediction], gpu: float | None = None) -> Spread:
    """Return the spread of points, each with the coefficients that predict it."""
    off = np.abs([math.log(predict(point, fit) / point.sequences_per_second) for point, fit in unseen])
    share = np.array([host_share(point.config, find_gpu(point.gpu), point.batch, fit) for point, fit in unseen])
    waits = share > _WAITS
    if gpu is None:
        gpu = float(np.quantile(off[~waits], 0.9))
    return Spread(gpu, float(np.quantile((off - gpu * (1 - share))[waits] / share[waits], 0.9)))


def on_several_gpus(fitted: bool = False) -> Iterator[tuple[others.PublishedRun, FineTuning, Parallel]]:
    """Yield the published runs on several GPUs, of projects that the model of a GPU is not fitted to, or is."""
    for project in others.projects():
        for run in project.runs:
            if project.fitted == fitted and run.gpus > 1 and run.seconds and not run.left_out:
                yield run, *project.on_its_gpus(run)


def several_gpu_ratios(calibration: Calibration, fitted: bool = False) -> list[tuple[float, float, float]]:
    """Return low, middle and high of the modelled over the published throughput of each run."""
    found = []
    for run, config, parallel in on_several_gpus(fitted):
        tokens = run.batch * run.sequence
        seconds = parallel.step_seconds(config, find_gpu(run.gpu), tokens, calibration.time_of(config))
        found.append(tuple(run.batch / one / (run.sequences / run.seconds) for one in reversed(seconds)))
    return found


def errors_of_several_gpus(calibration: Calibration) -> Errors:
    """Return the errors of throughput on the runs that nothing was fitted to."""
    return errors_of_ratios([middle for _, middle, _ in several_gpu_ratios(calibration)])
