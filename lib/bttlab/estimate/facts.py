"""Facts of the cards, from data/cards/*.json, each with its source."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from bttlab.util.errors import BttlabError
from bttlab.util.places import ROOT

NAMES = ("U50", "U55C", "U280", "U250")
FOLDER = ROOT / "data" / "cards"
_PLATFORM = re.compile(r"xilinx_(u[0-9]+[a-z]*)_")


@dataclass(frozen=True)
class CardFacts:
    """A card's device and memory, and what its shell leaves to kernels. None is a figure that no source was found for.

    `platform` is the shell that overlays are linked for, `slrs` the dies (super logic regions) of the device. Banks are
    of equal size: pseudo-channels of HBM, channels of DDR4. `board_watts` is the limit of the board's power.
    """

    name: str
    platform: str
    part: str
    slrs: int
    lookup_tables: int
    flip_flops: int
    dsps: int
    bram36: int
    uram: int
    hbm_bytes: int
    hbm_banks: int
    ddr_bytes: int
    ddr_banks: int
    board_watts: float | None
    budget: Mapping[str, int] | None  # by resource, what the shell leaves to kernels
    memory_controller: Mapping[str, float] | None  # resources of the budget that the card's memory takes
    sources: Mapping[str, str]

    @property
    def short_name(self) -> str:
        return self.name.split()[-1]

    @property
    def hbm_bank_bytes(self) -> int:
        return self.hbm_bytes // self.hbm_banks

    @property
    def memory(self) -> str:
        """Description of the memory on the card."""
        kinds = {"HBM": (self.hbm_bytes, self.hbm_banks), "DDR4": (self.ddr_bytes, self.ddr_banks)}
        found = [f"{size >> 30} GiB of {kind} in {banks} banks" for kind, (size, banks) in kinds.items() if banks]
        return ", ".join(found)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of the figures that no source was found for."""
        return tuple(name for name in ("budget", "board_watts") if getattr(self, name) is None)


def read_card(name: str) -> CardFacts:
    """Return the facts of a card; BttlabError if it is not one of `NAMES`."""
    if name not in NAMES:
        raise BttlabError(f"no facts of a card {name!r}: choose one of {', '.join(NAMES)}")
    return CardFacts(**json.loads((FOLDER / f"{name.lower()}.json").read_text(encoding="utf-8")))


def card_of_platform(platform: str) -> str | None:
    """Return the name of the Alveo card that a platform or shell is for, such as U280; None if it names no Alveo."""
    found = _PLATFORM.match(platform)
    return found[1].upper() if found else None


U50 = read_card("U50")
