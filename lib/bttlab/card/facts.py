"""Facts of the card, from data/u50/facts.json."""

import json
from dataclasses import dataclass

from bttlab.util.places import ROOT


@dataclass(frozen=True)
class CardFacts:
    """A card's resources, from its data sheet.

    Attributes
    ----------
    name, platform, part : str
        The card's name, the shell that overlays are linked for, and the FPGA.
    lookup_tables, flip_flops, dsps, bram36, uram : int
        Resources of the FPGA; the data sheet rounds the first two to thousands.
    hbm_bytes, hbm_banks : int
        Device memory, and the pseudo-channels (banks of equal size) it is split into.
    board_watts : float
        Limit of the board's power.
    clock_mhz : int
        Clock that the shell gives to kernels unless the overlay requests another.
    source : str
        Where the figures were published.
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
        """Size of one HBM bank in bytes."""
        return self.hbm_bytes // self.hbm_banks


U50 = CardFacts(**json.loads((ROOT / "data" / "u50" / "facts.json").read_text(encoding="utf-8")))
