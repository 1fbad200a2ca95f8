"""A short training on a card, real or emulated, and the state after it on the emulated one."""

import functools

from bttlab.card import EmulatedU50, TrainerDriver, open_trainer
from bttlab.model import ModelConfig, Optimizer, initial_parameters

from training_processor import some_samples, state_digest

MODEL = ModelConfig(encoders=1)
SAMPLES = some_samples(MODEL, [5, 9, 3])


def opened(card="auto") -> TrainerDriver:
    trainer = open_trainer(MODEL, card)
    trainer.load_parameters(initial_parameters(MODEL, 0))
    return trainer


def train(trainer: TrainerDriver) -> str:
    """Train; return the digest of the state."""
    trainer.train(SAMPLES, Optimizer("adamw"), 1e-3)
    return state_digest(trainer)


@functools.cache
def state_on_emulated_card() -> str:
    return train(opened(EmulatedU50()))
