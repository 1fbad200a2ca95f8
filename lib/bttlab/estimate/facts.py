"""Facts of the card, from data/u50/facts.json."""

import json
from dataclasses import dataclass

from bttlab.util.places import ROOT


@dataclass(frozen=True)
class CardFacts:
    """A card's resources, from its data sheet, which rounds lookup tables and flip-flops to thousands.

    `platform` is the shell that overlays are linked for, `hbm_banks` the pseudo-channels of equal size, `board_watts`
    the limit of the board's power, `clock_mhz` what the shell gives unless the overlay requests another clock.
    """

    name: str
    platform: str
    part: str
    lookup_tables: int
    flip_flops: int
    dsps: int
    bram36: int
    uram: int
    hbm_bytes: int
    hbm_banks: int
    board_watts: float
    clock_mhz: int
    source: str

    @property
    def hbm_bank_bytes(self) -> int:
        return self.hbm_bytes // self.hbm_banks


U50 = CardFacts(**json.loads((ROOT / "data" / "u50" / "facts.json").read_text(encoding="utf-8")))
