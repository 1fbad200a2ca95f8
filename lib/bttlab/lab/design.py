"""Designs: model, contraction order, optimizer and clock on the same machine."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bttlab.estimate.card import CLOCK_MHZ, Estimate, estimate
from bttlab.model import FLOW_TITLES, PAPER_FLOW, ModelConfig

FEED_FORWARD = ("first", "second")  # of an encoder's layers


@dataclass(frozen=True)
class Design:
    # encoders, rank: of the model; the rank is that of its linear layers, unless they have their own
    encoders: int = 2
    rank: int = 12
    flow: str = PAPER_FLOW  # order of contraction: one of `bttlab.model.FLOW_TITLES`
    optimizer: str = "sgd"  # "sgd", "momentum", "adamw"
    clock_mhz: int = CLOCK_MHZ
    feed_forward: int | None = None  # rank of the two layers between which GELU stands; by default `rank`

    def __post_init__(self) -> None:
        if self.feed_forward is None:
            object.__setattr__(self, "feed_forward", self.rank)

    @property
    def program(self) -> "Design":
        """The same for SGD at the schedule's clock: designs that differ in these alone have the same program."""
        return replace(self, optimizer="sgd", clock_mhz=CLOCK_MHZ)

    def estimate(self, lengths: Mapping[int, int]) -> Estimate:
        """Return what the model of the U50 says; errors as for `bttlab.estimate.card.estimate`."""
        ranks = {}
        if self.feed_forward != self.rank:
            ranks = {f"encoders.{i}.{part}": self.feed_forward for i in range(self.encoders) for part in FEED_FORWARD}
        model = ModelConfig(encoders=self.encoders, linear_rank=self.rank, ranks=ranks)
        return estimate(model, lengths, self.optimizer, self.flow, self.clock_mhz)

    def __str__(self) -> str:
        rank = f"{self.rank}" if self.feed_forward == self.rank else f"{self.rank} and {self.feed_forward}"
        encoders = f"{self.encoders} encoder{'s' * (self.encoders != 1)}"
        return f"{encoders}, rank {rank}, {FLOW_TITLES[self.flow]}, {self.optimizer}, {self.clock_mhz} MHz"
