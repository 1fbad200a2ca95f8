"""Energy meters of a run: sensors of a card or GPU, the CPU's counters, or the model of the U50."""

import functools
from collections.abc import Callable

import numpy as np
import pynq
import torch

from bttlab.baseline.energy import find_meter
from bttlab.card import EmulatedU50
from bttlab.card.telemetry import board_sensors
from bttlab.data import Samples
from bttlab.estimate.card import estimate
from bttlab.estimate.constants import MODEL_VERSION
from bttlab.model import ModelConfig, Optimizer, Trainer


class EnergyMeter:
    """Adds up a run's energy, by `add` or in a subclass's `advance`.

    The provenance is "measured", "modelled", or None without a meter; `how` names the meter or model, or the reason why
    there is none.
    """

    def __init__(self, provenance: str | None, how: str):
        self.provenance, self.how = provenance, how
        self.joules = 0.0, 0.0, 0.0  # so far: low, middle, high; a measured energy has no band
        self.seconds = 0.0  # that a modelled device would have taken, if the meter models it

    def add(self, low: float, middle: float, high: float) -> None:
        before = self.joules
        self.joules = before[0] + low, before[1] + middle, before[2] + high

    def advance(self, samples: Samples, seconds: float) -> None:
        """Add the energy of training on `samples`, which took `seconds`."""


class PowerMeter(EnergyMeter):
    """Energy as power times time; power is read after each piece of training."""

    def __init__(self, watts: Callable[[], float], how: str):
        super().__init__("measured", how)
        self._watts = watts

    def advance(self, samples: Samples, seconds: float) -> None:
        """Add `seconds` times the current power."""
        self.add(*[self._watts() * seconds] * 3)


class ModelledMeter(EnergyMeter):
    """The energy that a card would have needed: modelled power times modelled time of each sample.

    The time that an emulated card takes plays no part in it.
    """

    def __init__(self, config: ModelConfig, optimizer: Optimizer):
        super().__init__("modelled", f"the U50 model {MODEL_VERSION}, the middle of its band; the whole board")
        self._config, self._optimizer = config, optimizer

    def advance(self, samples: Samples, seconds: float) -> None:
        """Count some samples by their lengths."""
        lengths, counts = np.unique(samples.lengths, return_counts=True)
        steps = [
            count * step_of(self._config, self._optimizer, int(length))
            for length, count in zip(lengths, counts, strict=True)
        ]
        *joules, took = (sum(steps) + np.zeros(4)).tolist()
        self.add(*joules)
        self.seconds += took


@functools.cache
def step_of(config: ModelConfig, optimizer: Optimizer, length: int) -> np.ndarray:
    """Return a training step on a sample of `length` real tokens, modelled: joules low, middle, high, and seconds."""
    estimated = estimate(config, [length], optimizer.name, batch_size=optimizer.batch_size)
    energy = estimated.energy_at_clocks
    return np.array([energy.low, energy.value, energy.high, estimated.seconds_per_sample])


def card_meter(device: pynq.Device, config: ModelConfig, optimizer: Optimizer) -> EnergyMeter:
    """Return the energy meter of a card: the sensors of a real card, the model for an emulated one."""
    if isinstance(device, EmulatedU50):
        return ModelledMeter(config, optimizer)
    power = board_sensors(device)["power"]
    try:
        power.get_value()
    except (AttributeError, KeyError, OSError, RuntimeError) as error:
        return EnergyMeter(None, f"the card's sensors cannot be read ({error})")
    return PowerMeter(power.get_value, "the card's sensors, idle power included")


def torch_meter(device: str) -> EnergyMeter:
    """Return the energy meter of PyTorch training on "cpu" or "cuda"."""
    meter, reason = find_meter(torch.device(device))
    return PowerMeter(meter.watts, f"{meter.how}, idle power included") if meter else EnergyMeter(None, reason)


def meter_of(trainer: Trainer, optimizer: Optimizer) -> EnergyMeter:
    """Return the energy meter of a trainer: its card's, or that of PyTorch on the CPU."""
    device = getattr(trainer, "device", None)
    return torch_meter("cpu") if device is None else card_meter(device, trainer.config, optimizer)
