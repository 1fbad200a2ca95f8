"""The space of designs: rank, encoders, engine and clock, and which of them nobody should build."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from bttlab.errors import BttlabError
from bttlab.model import ModelConfig
from bttlab.u50.estimate import Estimate, at_clock, estimate
from bttlab.u50.hardware import HardwareConfig


@dataclass(frozen=True)
class Design:
    """A configuration of model and accelerator.

    Attributes
    ----------
    encoders, rank : int
        Of the model; the rank is that of its linear layers.
    rows : int
        Rows of the contraction engine, each as many lanes as a word has.
    clock_mhz : int
    """

    encoders: int
    rank: int
    rows: int
    clock_mhz: int

    def estimate(self, lengths: Mapping[int, int]) -> Estimate:
        """Return what the model of the U50 says; errors as for `bttlab.u50.estimate.estimate`."""
        model = ModelConfig(encoders=self.encoders, linear_rank=self.rank)
        hardware = replace(at_clock(HardwareConfig(), self.clock_mhz), engine_rows=self.rows)
        return estimate(model, hardware, lengths)

    def __str__(self) -> str:
        return f"{self.encoders} encoders, rank {self.rank}, {self.rows} engine rows, {self.clock_mhz} MHz"


def evaluate(designs: Iterable[Design], lengths: Mapping[int, int]) -> dict[Design, Estimate]:
    """Return the estimates of those designs that the source can be built for."""
    found = {}
    for design in designs:
        try:
            found[design] = design.estimate(lengths)
        except BttlabError:
            continue
    return found


def pareto(points: Mapping[Design, tuple[float, float]]) -> list[Design]:
    """Return the designs that no other beats in both figures, by rising first figure.

    Parameters
    ----------
    points : mapping of Design to (float, float)
        Of both, less is better.
    """
    best: list[Design] = []
    least = float("inf")
    for design, (_, second) in sorted(points.items(), key=lambda item: item[1]):
        if second < least:
            best.append(design)
            least = second
    return best
