"""Exercises of notebook 06, and `check`, which knows them once this is imported."""

from collections.abc import Sequence
from typing import Any

from bttlab.model import ModelConfig
from bttlab.teaching.exercises.answers import require_number
from bttlab.teaching.exercises.check import check, exercise, require
from bttlab_methods.record import by_methods, mean, peak, seconds_per_epoch

__all__ = ["check"]


@exercise("06.1", "peak('dense') / peak('tensor'), to three digits")
def smaller_peak(answer: Any, recorded: Sequence) -> str:
    dense, tensor = (mean(by_methods(recorded)[name], peak) for name in ("dense", "tensor"))
    require_number(answer, dense / tensor, 5e-3)
    return "And activations are most of what is left."


@exercise("06.2", "compare seconds(r.methods) over the record, leaving out names with a +.")
def quickest(answer: Any, recorded: Sequence) -> str:
    groups = {name: group for name, group in by_methods(recorded).items() if "+" not in name}
    seconds, name = {name: min(map(seconds_per_epoch, group)) for name, group in groups.items()}, answer.strip()
    require(name in seconds, f"{name!r} is no single method of the record")
    best = min(seconds, key=seconds.get)
    require(name == best, f"{name} spends {seconds[name]:,.1f} s an epoch; another spends less")
    return "Fewer multiplications, or fewer updates: the table says which."


@exercise("06.3", "two numbers of four bytes for each of workload.config.parameters_count, in millions.")
def dense_moments(answer: Any, config: ModelConfig) -> str:
    """Megabytes."""
    require_number(answer, 8 * config.parameters_count / 1e6)
    return "The green part of the first bar."
