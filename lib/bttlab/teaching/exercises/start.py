"""Exercises of notebook 00."""

import math
from typing import Any

import numpy as np

from bttlab.model import ModelConfig, Optimizer, initial_parameters
from bttlab.teaching.exercises.answers import is_letter, require_number
from bttlab.teaching.exercises.check import exercise, require
from bttlab.teaching.exercises.training import first_losses

RATE = 4e-2
FEWEST = 300  # samples after which the curve tells


@exercise(
    "00.1",
    f"load fresh parameters, train on samples[order[:{FEWEST}]] at {RATE}, and look where the smoothed losses end.",
)
def long_step(answer: Any, trainer: Any, samples: Any, config: ModelConfig) -> str:
    """(letter, losses): of the seed 0 on these samples, in their order."""
    letter, losses = answer
    expected = first_losses(trainer, initial_parameters(config, seed=0), samples, Optimizer("sgd"), RATE)
    require(len(losses) >= FEWEST, f"fast_losses has {len(losses)} losses, {FEWEST} are needed")
    same = np.array_equal(losses[: len(expected)], expected)
    require(same, f"the first losses are not those of fresh parameters of seed 0 at {RATE} on samples[order]")
    require(
        is_letter(letter, "b"), f"your losses end at {np.mean(losses[-100:]):.1f}, which {letter!r} does not describe"
    )
    return "With one sample a step, a step that is too long is not averaged out by its neighbours."


@exercise(
    "00.2",
    "a uniform guess among n labels costs ln n (np.log), and the loss is the sum of two of these; give three decimals.",
)
def uniform_loss(answer: Any, config: ModelConfig) -> str:
    require_number(answer, math.log(config.intents) + math.log(config.slots), 1e-4)
    return "Cross-entropies add up because the loss is their sum."
