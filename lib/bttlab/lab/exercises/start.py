"""Exercises of notebook 00."""

import math
from typing import Any

import numpy as np

from bttlab.lab.exercises.answers import is_letter, near
from bttlab.lab.exercises.check import exercise
from bttlab.lab.exercises.training import first_losses
from bttlab.model import ModelConfig, Optimizer, initial_parameters

RATE = 4e-2
FEWEST = 300  # samples after which the curve tells


@exercise(
    "00.1",
    f"load fresh parameters, train on samples[order[:{FEWEST}]] at {RATE}, and look where the smoothed losses end.",
)
def long_step(answer: Any, trainer: Any, samples: Any, config: ModelConfig) -> str | bool:
    """(letter, losses): of the seed 0 on these samples, in their order."""
    letter, losses = answer
    own = first_losses(trainer, initial_parameters(config, seed=0), samples, Optimizer("sgd"), RATE)
    if not (is_letter(letter, "b") and len(losses) >= FEWEST and np.array_equal(losses[: len(own)], own)):
        return False
    return "With one sample a step, a step that is too long is not averaged out by its neighbours."


@exercise(
    "00.2",
    "a uniform guess among n labels costs ln n (np.log), and the loss is the sum of two of these; give three decimals.",
)
def uniform_loss(answer: Any, config: ModelConfig) -> str | bool:
    """A number."""
    expected = math.log(config.intents) + math.log(config.slots)
    return near(answer, expected, 1e-4) and "Cross-entropies add up because the loss is their sum."
