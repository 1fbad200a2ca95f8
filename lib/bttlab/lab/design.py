"""The space of designs: what is trained, and how the machine is told to; the machine itself stays as it is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from bttlab.card.compiled import PAPER_FLOW
from bttlab.estimate.card import CLOCK_MHZ, Estimate, estimate
from bttlab.model import ModelConfig

FLOWS = {"bidirectional": "bi-directional", "auto": "auto", "right_to_left": "right to left"}


@dataclass(frozen=True)
class Design:
    """A model, its program and the clock.

    Attributes
    ----------
    encoders, rank : int
        Of the model; the rank is that of its linear layers.
    flow : str
        Order of contraction: one of `FLOWS`.
    optimizer : {"sgd", "momentum", "adamw"}
    clock_mhz : int
    """

    encoders: int = 2
    rank: int = 12
    flow: str = PAPER_FLOW
    optimizer: str = "sgd"
    clock_mhz: int = CLOCK_MHZ

    @property
    def program(self) -> "Design":
        """The same for SGD at the schedule's clock: designs that differ in these alone have the same program."""
        return replace(self, optimizer="sgd", clock_mhz=CLOCK_MHZ)

    def estimate(self, lengths: Mapping[int, int]) -> Estimate:
        """Return what the model of the U50 says; errors as for `bttlab.estimate.card.estimate`."""
        model = ModelConfig(encoders=self.encoders, linear_rank=self.rank)
        return estimate(model, lengths, self.optimizer, self.flow, self.clock_mhz)

    def __str__(self) -> str:
        words = f"{self.encoders} encoders, rank {self.rank}, {FLOWS[self.flow]}, {self.optimizer}"
        return f"{words}, {self.clock_mhz} MHz"


def grid(encoders: int, ranks: Iterable[int]) -> list[Design]:
    """Return the programs that are drawn beside each other."""
    return [Design(encoders, rank, flow) for flow in FLOWS for rank in ranks]
