"""Blocks of memory, and where the constants of the model of the U50 come from."""

import pytest

from bttlab.estimate.constants import constant, read_data
from bttlab.estimate.facts import U50
from bttlab.estimate.geometry import Blocks, blocks, capacity_bits
from bttlab.util.places import ROOT


@pytest.mark.parametrize(
    ("binding", "width", "depth", "expected"),
    [
        ("bram", 36, 1024, Blocks(bram36=1)),
        ("bram", 36, 512, Blocks(bram36=0.5)),
        ("bram", 37, 512, Blocks(bram36=1)),
        ("bram", 512, 513, Blocks(bram36=14.5)),
        ("bram", 1, 2, Blocks(bram36=0.5)),
        ("uram", 72, 4096, Blocks(uram=1)),
        ("uram", 512, 4097, Blocks(uram=16)),
        ("lutram", 14, 32, Blocks(lookup_tables=8)),
    ],
)
def test_geometry(binding, width, depth, expected):
    assert blocks(binding, width, depth) == expected


def test_what_blocks_hold_is_the_cards():
    card = Blocks(bram36=U50.bram36, uram=U50.uram)
    assert capacity_bits(card) == (1_344 * 36 + 640 * 288) * 1024  # the data sheet's, in kilobits
    assert blocks("uram", 72, 4096 * U50.uram).uram == U50.uram


@pytest.mark.parametrize("name", ["operators", "power", "platform", "published"])
def test_every_constant_has_a_source_and_an_ordered_band(name):
    def walk(value, path, sourced):
        if isinstance(value, dict):
            sourced = sourced or "source" in value
            if {"value", "low", "high"} <= set(value):
                band = constant(value)
                assert sourced, path
                assert min(band.low, band.high) <= band.value <= max(band.low, band.high), path
                assert band.low <= band.high or path.endswith("regulator_efficiency"), path
            for key, inner in value.items():
                walk(inner, f"{path}.{key}", sourced)
        elif isinstance(value, float | int):
            assert sourced, path

    assert (ROOT / "data" / "u50" / f"{name}.json").is_file()
    walk(read_data(name), name, False)
