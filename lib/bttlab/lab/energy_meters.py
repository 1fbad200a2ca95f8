"""Energy meters of a run: sensors of a card or GPU, the CPU's counters, or the model of the U50."""

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pynq
import torch

from bttlab.baseline.energy import find_meter
from bttlab.card import EmulatedU50
from bttlab.card.telemetry import board_power
from bttlab.data import Samples
from bttlab.estimate.card import estimate
from bttlab.estimate.constants import MODEL_VERSION
from bttlab.model import ModelConfig, Optimizer, Trainer

Step = Callable[[Samples, float], tuple[float, ...]]


class EnergyMeter:
    """Adds up a run's energy.

    The provenance is "measured", "modelled", or None without a meter; `how` names the meter or model, or the reason why
    there is none. `step` gets samples and the seconds that training on them took; it returns their joules (low, middle,
    high; equal if measured), and the seconds that a modelled device would have taken, 0 of a measured one.
    """

    def __init__(self, provenance: str | None, how: str, step: Step = lambda samples, seconds: (0.0,) * 4):
        self.provenance, self.how, self._step = provenance, how, step
        self.joules, self.seconds = (0.0, 0.0, 0.0), 0.0  # so far

    def advance(self, samples: Samples, seconds: float) -> None:
        *joules, took = self._step(samples, seconds)
        self.joules = tuple(map(sum, zip(self.joules, joules, strict=True)))
        self.seconds += took


def power_meter(watts: Callable[[], float], how: str) -> EnergyMeter:
    """Return a meter that reads the power after each segment of training, and takes it for the whole segment."""
    return EnergyMeter("measured", how, lambda samples, seconds: (*[watts() * seconds] * 3, 0.0))


def modelled_meter(config: ModelConfig, optimizer: Optimizer) -> EnergyMeter:
    """Return what a card would need: modelled power times modelled time; how long its emulation takes plays no part."""

    def step(samples: Samples, seconds: float) -> tuple[float, ...]:
        lengths, counts = np.unique(samples.lengths, return_counts=True)
        pairs = zip(lengths.tolist(), counts, strict=True)
        return tuple(sum((n * step_of(config, optimizer, length) for length, n in pairs), np.zeros(4)).tolist())

    return EnergyMeter("modelled", f"the U50 model {MODEL_VERSION}, its likely value; the whole board", step)


@cache
def step_of(config: ModelConfig, optimizer: Optimizer, length: int) -> np.ndarray:
    """Return a training step on a sample of `length` real tokens, modelled: joules low, middle, high, and seconds."""
    estimated = estimate(config, [length], optimizer.name, batch_size=optimizer.batch_size)
    energy = estimated.energy_at_clocks
    return np.array([energy.low, energy.value, energy.high, estimated.seconds_per_sample])


def card_meter(device: pynq.Device, config: ModelConfig, optimizer: Optimizer) -> EnergyMeter:
    """Return the energy meter of a card: the sensors of a real card, the model for an emulated one."""
    if isinstance(device, EmulatedU50):
        return modelled_meter(config, optimizer)
    try:
        board_power(device)
    except (AttributeError, KeyError, OSError, RuntimeError) as error:
        return EnergyMeter(None, f"the card's sensors cannot be read ({error})")
    return power_meter(partial(board_power, device), "the card's sensors, idle power included")


def torch_meter(device: str) -> EnergyMeter:
    """Return the energy meter of PyTorch training on "cpu" or "cuda"."""
    meter, reason = find_meter(torch.device(device))
    return power_meter(meter.watts, f"{meter.how}, idle power included") if meter else EnergyMeter(None, reason)


def meter_of(trainer: Trainer, optimizer: Optimizer) -> EnergyMeter:
    """Return the energy meter of a trainer: its card's, or that of PyTorch on the CPU."""
    device = getattr(trainer, "device", None)
    return torch_meter("cpu") if device is None else card_meter(device, trainer.config, optimizer)
