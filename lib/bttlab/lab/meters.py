"""Energy meters of a run."""

from collections.abc import Callable
from typing import Protocol

from bttlab.data import Samples

SLOT_RAILS = ("12v_pex", "12v_aux")  # all power of a card but the few watts of 3.3 V


class EnergyMeter(Protocol):
    """Adds up a run's energy.

    Attributes
    ----------
    provenance : {"measured", "modelled"} or None
        None without a meter.
    how : str
        The meter or model, or the reason why there is none.
    joules : float
        So far.
    bounds : (float, float) or None
        Lower and upper bound of a modelled figure.
    """

    provenance: str | None
    how: str
    joules: float
    bounds: tuple[float, float] | None

    def advance(self, samples: Samples, seconds: float) -> None:
        """Add the energy of training on `samples`, which took `seconds`."""


class NoMeter:
    """No meter; `how` is the reason."""

    provenance = None
    joules = 0.0
    bounds = None

    def __init__(self, reason: str):
        self.how = reason

    def advance(self, samples: Samples, seconds: float) -> None:
        """Do nothing."""


class Recorded:
    """Energy from a model or a record, added by `add`; parameters as the attributes of `EnergyMeter`."""

    def __init__(self, provenance: str, how: str):
        self.provenance, self.how = provenance, how
        self.joules, self.bounds = 0.0, (0.0, 0.0)

    def add(self, low: float, middle: float, high: float) -> None:
        """Add joules."""
        self.joules += middle
        self.bounds = self.bounds[0] + low, self.bounds[1] + high

    def advance(self, samples: Samples, seconds: float) -> None:
        """Do nothing: `add` counts."""


class PowerMeter:
    """Energy as power times time; power is read after each piece of training.

    Parameters
    ----------
    watts : callable
        Returns the current power.
    how : str
        The sensor.
    """

    provenance = "measured"
    bounds = None

    def __init__(self, watts: Callable[[], float], how: str):
        self._watts = watts
        self.how = how
        self.joules = 0.0

    def advance(self, samples: Samples, seconds: float) -> None:
        """Add `seconds` times the current power."""
        self.joules += self._watts() * seconds


def card_watts(device) -> float:
    """Return the power of a real card by its sensors (`pynq.pmbus`), in watts, idle power included."""
    rails = device.sensors
    return sum(rails[name].power.value for name in SLOT_RAILS if name in rails and rails[name].power is not None)
