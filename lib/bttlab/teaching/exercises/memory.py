"""Exercises of notebook 04."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from bttlab.baseline.memory import measure_memory
from bttlab.baseline.step import Task
from bttlab.estimate.card import Estimate
from bttlab.lab.memory_figures import chip_bytes
from bttlab.model import ModelConfig
from bttlab.teaching.exercises.answers import called, near, require_number
from bttlab.teaching.exercises.check import exercise, require

Lifetime = tuple[int, int, int]  # bytes, the step that makes it, the step before which it goes


@exercise("04.1", "chip_bytes(cards['2 encoders']) gives bytes by group; divide by a million, keep three digits.")
def moments_on_the_chip(answer: Any, card: Estimate) -> str:
    """Megabytes."""
    require_number(answer, chip_bytes(card)["optimizer state"] / 1e6, 5e-3)
    return "Plain SGD leaves their banks empty: the blocks are there all the same."


@exercise("04.2", "growth('activations') / growth('parameters') is the ratio for two encoders, and so for one.")
def growth(answer: Any, two: Estimate, four: Estimate) -> str:
    activations, parameters = (chip_bytes(four)[g] - chip_bytes(two)[g] for g in ("activations", "parameters"))
    require_number(answer, activations / parameters, 5e-3)
    return "Depth costs activations first."


@exercise(
    "04.3",
    "measure_memory of a dense Task as above, with shortest for longest; its peak.value / 1e6, to two decimals.",
)
def shortest_peak(answer: Any, samples: Any) -> str:
    """Megabytes, as they are measured again here."""
    shortest = samples[int(samples.lengths.argmin())]
    measured = measure_memory(Task(ModelConfig(format="dense"), "dense", shortest, 4e-3, seed=0, device="cpu"))
    require_number(answer, measured.peak.value / 1e6, 1e-4)
    return "Parameters and gradients are there whatever the utterance: dense training is bound by them."


def _require_peaks(peak: Callable, cases: Sequence[Sequence[Lifetime]]) -> None:
    for lives in cases:
        steps = range(max(freed for _, _, freed in lives))
        alive = {step: sum(size for size, made, freed in lives if made <= step < freed) for step in steps}
        at = max(alive, key=alive.get)
        found = called(peak, lives)
        require(
            near(found, alive[at], 0.0), f"peak({list(lives)}) is {found}; in step {at} {alive[at]} bytes are alive"
        )


def _random_lives(seed: int) -> list[Lifetime]:
    chance = random.Random(seed)
    begins = [chance.randrange(30) for _ in range(20)]
    return [(chance.randrange(1, 1000), begin, begin + chance.randrange(1, 12)) for begin in begins]


@exercise(
    "04.4",
    "for each step add up the bytes of what is made at it or before it and goes after it; what goes before the step "
    "that makes another is not there beside it.",
    hidden=lambda peak: _require_peaks(
        peak, [*map(_random_lives, range(20)), [(7, 3, 4)], [(1, 0, 1), (1, 1, 2)], [(2, 0, 1), (1, 1, 2)]]
    ),
)
def peak(answer: Any) -> str:
    """peak(lives) -> bytes; a life is (bytes, made, freed)."""
    _require_peaks(answer, [[(4, 0, 3), (8, 1, 2), (6, 2, 4), (1, 3, 9)]])
    return "Recompute an activation, and it is two short lives in place of a long one: the sum grows, the peak falls."
