"""Exercises of notebook 06, and `check`, which knows them once this is imported."""

import math
from collections.abc import Sequence
from typing import Any

from bttlab.model import ModelConfig
from bttlab.teaching.exercises.answers import require_number
from bttlab.teaching.exercises.check import check, exercise, require

__all__ = ["check"]


@exercise("06.1", "peak('dense') / peak('tensor'), to three digits")
def smaller_peak(answer: Any, recorded: Sequence) -> str:
    def peak(name: str) -> float:
        peaks = [run.memory["peak"]["value"] for run in recorded if run.methods == name]
        return sum(peaks) / len(peaks)

    require_number(answer, peak("dense") / peak("tensor"), 5e-3)
    return "And activations are most of what is left."


@exercise("06.2", "compare seconds(r.methods) over the record, leaving out names with a +.")
def quickest(answer: Any, recorded: Sequence) -> str:
    seconds = {}
    for run in recorded:
        if "+" not in run.methods:
            seconds[run.methods] = min(run.seconds_per_epoch["value"], seconds.get(run.methods, math.inf))
    name = answer.strip()
    require(name in seconds, f"{name!r} is no single method of the record")
    require(
        name == min(seconds, key=seconds.get), f"{name} spends {seconds[name]:,.1f} s an epoch; another spends less"
    )
    return "Fewer multiplications, or fewer updates: the table says which."


@exercise("06.3", "two numbers of four bytes for each of workload.config.parameters_count, in millions.")
def dense_moments(answer: Any, config: ModelConfig) -> str:
    """Megabytes."""
    require_number(answer, 8 * config.parameters_count / 1e6)
    return "The green part of the first bar."
