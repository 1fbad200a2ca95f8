"""Energy meters of a run."""

from collections.abc import Callable

from bttlab.data import Samples


class EnergyMeter:
    """Adds up a run's energy, by `add` or in a subclass's `advance`.

    Parameters
    ----------
    provenance : {"measured", "modelled"} or None
        None if there is no meter.
    how : str
        The meter or model, or the reason why there is none.

    Attributes
    ----------
    joules : (float, float, float)
        So far: low, middle, high; a measured energy has no band.
    seconds : float
        That a modelled device would have taken, if the meter models it; else 0.
    """

    def __init__(self, provenance: str | None, how: str):
        self.provenance, self.how = provenance, how
        self.joules, self.seconds = (0.0, 0.0, 0.0), 0.0

    def add(self, low: float, middle: float, high: float) -> None:
        """Add joules."""
        before = self.joules
        self.joules = before[0] + low, before[1] + middle, before[2] + high

    def advance(self, samples: Samples, seconds: float) -> None:
        """Add the energy of training on `samples`, which took `seconds`."""


class PowerMeter(EnergyMeter):
    """Energy as power times time; power is read after each piece of training.

    Parameters
    ----------
    watts : callable
        Returns the current power.
    how : str
        The sensor.
    """

    def __init__(self, watts: Callable[[], float], how: str):
        super().__init__("measured", how)
        self._watts = watts

    def advance(self, samples: Samples, seconds: float) -> None:
        """Add `seconds` times the current power."""
        self.add(*[self._watts() * seconds] * 3)
