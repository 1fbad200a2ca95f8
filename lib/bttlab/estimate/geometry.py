"""Blocks of the FPGA that a memory takes, from its depth and width (UG573, UG574)."""

from dataclasses import astuple, dataclass
from math import ceil
from operator import add

BRAM18_SHAPES = ((36, 512), (18, 1024), (9, 2048), (4, 4096), (2, 8192), (1, 16384))  # bits x words; two make a BRAM36
BRAM36_SHAPES = ((72, 512), (36, 1024), (18, 2048), (9, 4096), (4, 8192), (2, 16384), (1, 32768))
URAM_BITS, URAM_WORDS = 72, 4096
# Eight LUTs of a SLICEM: 64 words of 7 bits or 32 words of 14 bits, one write and one read port.
LUTRAM_SHAPES = ((7, 64), (14, 32))
LUTRAM_LUTS = 8


@dataclass(frozen=True)
class Blocks:
    """Blocks that memories take."""

    bram36: float = 0  # a multiple of 0.5: a BRAM36 is two BRAM18
    uram: int = 0
    lookup_tables: int = 0

    def __add__(self, other: "Blocks") -> "Blocks":
        return Blocks(*map(add, astuple(self), astuple(other)))

    def times(self, count: int) -> "Blocks":
        return Blocks(*(number * count for number in astuple(self)))


def blocks(binding: str, width: int, depth: int) -> Blocks:
    """Return the blocks of `depth` words of `width` bits, bound to "uram", "bram" or "lutram"."""
    if binding == "uram":
        return Blocks(uram=ceil(width / URAM_BITS) * ceil(depth / URAM_WORDS))
    if binding == "bram":
        halves = (ceil(width / bits) * ceil(depth / words) for bits, words in BRAM18_SHAPES)
        whole = (2 * ceil(width / bits) * ceil(depth / words) for bits, words in BRAM36_SHAPES)
        return Blocks(bram36=min(*halves, *whole) / 2)
    return Blocks(lookup_tables=min(LUTRAM_LUTS * ceil(width / b) * ceil(depth / w) for b, w in LUTRAM_SHAPES))


def capacity_bits(used: Blocks) -> float:
    """Return the capacity of BRAM and URAM blocks in bits, parity included."""
    return used.bram36 * 36 * 1024 + used.uram * URAM_BITS * URAM_WORDS
