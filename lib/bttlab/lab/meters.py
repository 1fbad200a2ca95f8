"""What tells a run's energy: power over time from sensors, or nobody."""

from collections.abc import Callable
from typing import Protocol

from bttlab.data import Samples

SLOT_RAILS = ("12v_pex", "12v_aux")  # all that a card draws from the host, but the few watts of 3.3 V


class EnergyMeter(Protocol):
    """Adds up a run's energy.

    Attributes
    ----------
    provenance : {"measured", "modelled"} or None
        None where nothing tells the energy.
    how : str
        The meter or the model; or why there is none.
    joules : float
        So far.
    bounds : (float, float) or None
        Of a modelled figure: the joules with all that is uncertain at its least and at its most.
    """

    provenance: str | None
    how: str
    joules: float
    bounds: tuple[float, float] | None

    def advance(self, samples: Samples, seconds: float) -> None:
        """Count the training on some samples that has just ended and took so long."""


class NoMeter:
    """Where nothing tells the energy."""

    provenance = None
    joules = 0.0
    bounds = None

    def __init__(self, reason: str):
        self.how = reason

    def advance(self, samples: Samples, seconds: float) -> None:
        """Count nothing."""


class Recorded:
    """Energy that was told before; parameters as the attributes of `EnergyMeter`."""

    def __init__(self, provenance: str, how: str):
        self.provenance, self.how = provenance, how
        self.joules, self.bounds = 0.0, (0.0, 0.0)

    def add(self, low: float, middle: float, high: float) -> None:
        """Count joules."""
        self.joules += middle
        self.bounds = self.bounds[0] + low, self.bounds[1] + high

    def advance(self, samples: Samples, seconds: float) -> None:
        """Count nothing more."""


class PowerMeter:
    """Energy as power times time, power read once after each piece of training.

    Parameters
    ----------
    watts : callable
        The power of now.
    how : str
        What is read.
    """

    provenance = "measured"
    bounds = None

    def __init__(self, watts: Callable[[], float], how: str):
        self._watts = watts
        self.how = how
        self.joules = 0.0

    def advance(self, samples: Samples, seconds: float) -> None:
        """Count `seconds` at the power of now."""
        self.joules += self._watts() * seconds


def card_watts(device) -> float:
    """Return the power of a real card by its sensors (`pynq.pmbus`), in watts, idle power included."""
    rails = device.sensors
    return sum(rails[name].power.value for name in SLOT_RAILS if name in rails and rails[name].power is not None)
