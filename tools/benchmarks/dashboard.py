"""Measure how much a dashboard that redraws slows the training."""

from collections.abc import Callable
from typing import Any

from benchmarks.result import Result, Table, describe_runs, time_ratios, time_rows
from benchmarks.turns import HOW, interleave, threads_of_torch
from bttlab.util.quantities import column_metadata

OURS = "with a dashboard"


def measure(corpus: str = "atis", encoders: int = 2, samples: int = 4_478, rounds: int = 9) -> Result:
    """Measure the same training on the emulated U50 without a dashboard and under one that redraws all the while.

    Parameters
    ----------
    corpus : str
        Name or path.
    encoders, samples, rounds : int
    """
    with threads_of_torch(1):
        seconds = interleave(_contenders(corpus, encoders, samples), rounds, samples)
    return Result(
        settings={"data": corpus, "encoders": encoders, "samples": samples, "rounds": rounds},
        figures={"time": column_metadata("ms a step", "measured", HOW)},
        rows=time_rows({}, seconds),
        ratios=time_ratios("", seconds, OURS),
    )


def _contenders(corpus: str, encoders: int, samples: int) -> dict[str, Callable[[], float]]:
    from bttlab.card import EmulatedU50, load_overlay
    from bttlab.data import load_corpus
    from bttlab.lab import Dashboard, Workload, card_target
    from bttlab.lab.dashboard_runs import DashboardRun
    from bttlab.model import ModelConfig

    overlay = load_overlay("trainer", EmulatedU50())
    target = card_target(overlay, Workload.of(load_corpus(corpus), ModelConfig(encoders=encoders)))

    def train(start: Callable[[], DashboardRun], finish: Callable[[], None]) -> float:
        run = start()
        run.join()
        finish()
        return run.count / run.rate  # seconds in training steps; the dev split is scored in between

    def plain() -> DashboardRun:
        run = target.make_run(samples, 1e-3)
        run.start()
        return run

    board = Dashboard([target], name="bench")

    def watched() -> DashboardRun:
        board.clear()
        board.start(target.name, samples)
        return board.runs[-1]

    return {
        "without a dashboard": lambda: train(plain, lambda: None),
        OURS: lambda: train(watched, board.wait),
    }


def tables(result: dict[str, Any]) -> list[Table]:
    """Return the time of both."""
    rows = [[row["contender"], describe_runs(row["time"])] for row in result["rows"]]
    return [Table("Training with and without a dashboard", ["contender", "ms a step (measured)"], rows)]
