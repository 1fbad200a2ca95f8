"""The model of several GPUs on published runs that nothing was fitted to."""

from collections.abc import Iterator
from dataclasses import replace

from bttlab.baseline.gpus import find_gpu
from bttlab_cost import others
from bttlab_cost.calibration import Calibration, Errors, errors_of_ratios
from bttlab_cost.configuration import FineTuning
from bttlab_cost.parallel import Parallel


def held_out(fitted: bool = False) -> Iterator[tuple[others.PublishedRun, FineTuning, Parallel]]:
    """Yield the published runs on several GPUs, of projects that the model of a GPU is not fitted to, or is."""
    for project in others.projects():
        for run in project.runs:
            if project.fitted == fitted and run.gpus > 1 and run.seconds and not run.left_out:
                config = project.configuration(run)
                # The records count the GPUs that share the optimizer as accumulation; here they are counted as GPUs.
                config = replace(config, accumulation=max(1, config.accumulation // run.gpus))
                yield run, config, Parallel.of(run.gpus, run.strategy, find_gpu(run.gpu), run.link)


def ratios(calibration: Calibration, fitted: bool = False) -> list[tuple[float, float, float]]:
    """Return low, middle and high of the modelled over the published throughput of each run."""
    found = []
    for run, config, parallel in held_out(fitted):
        tokens = run.batch * run.sequence
        seconds = parallel.step_seconds(config, find_gpu(run.gpu), tokens, calibration.time_of(config))
        found.append(tuple(run.batch / one / (run.sequences / run.seconds) for one in reversed(seconds)))
    return found


def errors_of_several_gpus(calibration: Calibration) -> Errors:
    """Return the errors of throughput on the runs that nothing was fitted to."""
    return errors_of_ratios([middle for _, middle, _ in ratios(calibration)])
