"""What the run loop drives: the PyTorch reference and the overlay driver both offer this."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bttlab.errors import BttlabError
from bttlab.model.config import ConfigError, ModelConfig, Optimizer


class NonFiniteLoss(BttlabError):
    """A sample's loss or gradient was not finite, so training stopped before its update.

    Parameters
    ----------
    sample : int
        Index of that sample within the samples given.
    losses : ndarray of float32, shape (sample,)
        Losses of the samples before it, all of which were trained on.
    learning_rate : float
        The learning rate at that sample.
    """

    def __init__(self, sample: int, losses: np.ndarray, learning_rate: float):
        super().__init__(
            f"the loss of sample {sample} or its gradient is not finite (learning rate {learning_rate:g}): training "
            "stopped with the parameters as before that sample; choose a lower learning rate"
        )
        self.sample = sample
        self.losses = losses
        self.learning_rate = learning_rate


class StateError(BttlabError, ValueError):
    """Parameters or optimizer state of another model or optimizer."""


@dataclass(frozen=True)
class Predictions:
    """What the model says about n samples.

    Parameters
    ----------
    losses : ndarray of float32, shape (n,)
    intents : ndarray of int32, shape (n,)
        Intent label ids.
    slots : ndarray of int32, shape (n, sequence_length)
        Slot label ids; 0 at position 0 and at padding.
    """

    losses: np.ndarray
    intents: np.ndarray
    slots: np.ndarray


class Trainer(Protocol):
    """Trains one model, one sample a step.

    Parameters are float32 arrays under the names of `ModelConfig.parameter_shapes`. Optimizer state is "step" (int64
    scalar array) and, for each parameter, "first_moment.<name>" (momentum, AdamW) and "second_moment.<name>" (AdamW).
    """

    @property
    def config(self) -> ModelConfig:
        """The model that is trained."""

    def load_parameters(
        self, parameters: Mapping[str, np.ndarray], optimizer_state: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """Set the parameters and the optimizer state; without a state, start from none."""

    def store_parameters(self) -> dict[str, np.ndarray]:
        """Return a copy of the parameters."""

    def store_optimizer_state(self) -> dict[str, np.ndarray]:
        """Return a copy of the optimizer state."""

    def train(self, samples, optimizer: Optimizer, learning_rate: float | np.ndarray) -> np.ndarray:
        """Take one step a sample, in order, and return the losses before each step, float32 of shape (n,).

        Parameters
        ----------
        samples : bttlab.data.Samples
        optimizer : Optimizer
        learning_rate : float or ndarray of shape (n,)

        Raises
        ------
        NonFiniteLoss
            At the first sample whose loss or gradient is not finite; parameters and state are as before that sample.
        """

    def predict(self, samples) -> Predictions:
        """Return losses and labels of the samples; changes nothing."""


def check_learning_rates(learning_rate: float | np.ndarray, count: int) -> list[float]:
    """Return one learning rate for each of `count` samples.

    Raises
    ------
    ConfigError
        If one is negative or not finite, or their number is not `count`.
    """
    rates = np.asarray(learning_rate, np.float64)
    if rates.ndim and rates.shape != (count,):
        raise ConfigError(f"learning_rate has shape {rates.shape}: give one number, or one for each of {count} samples")
    rates = np.broadcast_to(rates, (count,))
    bad = ~(np.isfinite(rates) & (rates >= 0))
    if bad.any():
        raise ConfigError(f"learning rate is {rates[bad][0]:g}: it must be finite and at least 0")
    return rates.tolist()
