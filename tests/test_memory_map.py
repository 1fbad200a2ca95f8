"""The memory map against the source: what the compiler lays out, what the pragmas say, what the blocks hold."""

import re
import subprocess
from collections import Counter
from dataclasses import replace

import pytest

from bttlab.estimate.geometry import Blocks, blocks, capacity_bits
from bttlab.model.config import ModelConfig
from bttlab.u50.build import HLS_SOURCE, model_flags
from bttlab.u50.facts import U50
from bttlab.u50.hardware import HardwareConfig
from bttlab.u50.memory_map import (
    GROUPS,
    Access,
    OnChipArray,
    by_binding,
    by_group,
    memory_map,
    total_blocks,
)
from bttlab.u50.records import ParameterMemory

MODELS = {
    "paper": ModelConfig(encoders=2),
    "six": ModelConfig(encoders=6),
    "other shapes": ModelConfig(
        encoders=1,
        sequence_length=20,
        hidden_size=384,
        heads=6,
        vocabulary_size=90,
        intents=5,
        slots=37,
        linear_out_modes=(8, 6, 8),
        linear_in_modes=(4, 16, 6),
        linear_rank=7,
        embedding_row_modes=(3, 6, 5),
        embedding_column_modes=(4, 8, 12),
        embedding_rank=18,
    ),
}


def static_arrays(model: ModelConfig, folder) -> Counter:
    """Bytes of the static arrays that synthesis sees, by name, those of a template's instances together."""
    target = folder / "kernel.o"
    flags = ("-std=c++17", "-O0", "-mavx2", "-fno-threadsafe-statics", "-w", "-D__SYNTHESIS__", *model_flags(model))
    source = str(HLS_SOURCE / "train_transformer.cpp")
    subprocess.run(["g++", *flags, f"-I{HLS_SOURCE / 'emulation'}", "-c", source, "-o", str(target)], check=True)
    listing = subprocess.run(["nm", "-S", "-C", str(target)], capture_output=True, text=True, check=True).stdout
    sizes: Counter = Counter()
    for size, name in re.findall(r"^[0-9a-f]+ ([0-9a-f]+) [bBdD] (.*)$", listing, re.MULTILINE):
        if name.startswith("guard variable"):
            continue
        function, _, array = name.rpartition("::")
        function = re.sub(r"^void |[<(].*", "", function)
        sizes[f"{function}::{array}" if function else array] += int(size, 16)
    return sizes


@pytest.mark.parametrize("name", MODELS)
def test_the_map_is_complete(name, tmp_path):
    mapped: Counter = Counter()
    for array in memory_map(MODELS[name], HardwareConfig()):
        if array.static:
            mapped[array.name.partition(".")[0]] += array.bytes  # the members of a struct are memories of their own
    assert static_arrays(MODELS[name], tmp_path) == mapped


def pragmas(pattern: str, model: ModelConfig) -> dict[str, tuple[str, ...]]:
    """What storage pragmas say when synthesis compiles the source for a model, by variable."""
    flags = ("-std=c++17", "-E", "-P", "-mavx2", "-w", "-D__SYNTHESIS__", *model_flags(model))
    source = str(HLS_SOURCE / "train_transformer.cpp")
    command = ["g++", *flags, f"-I{HLS_SOURCE / 'emulation'}", source]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: found for name, *found in re.findall(rf"#pragma HLS {pattern}", text)}


@pytest.mark.parametrize("name", MODELS)
def test_bindings_are_those_of_the_pragmas(name):
    said = pragmas(r"BIND_STORAGE variable=([\w.]+) type=(\w+) impl=(\w+)", MODELS[name])
    assert len(said) > 10
    arrays = sorted(memory_map(MODELS[name], HardwareConfig()), key=lambda array: array.static)
    arrays = {array.name.rpartition("::")[2]: array for array in arrays}  # of equal names, the static one
    assert {name: [arrays[name].kind, arrays[name].binding] for name in said} == said


@pytest.mark.parametrize("name", MODELS)
def test_no_array_is_asked_for_more_than_its_ports_give(name):
    arrays = memory_map(MODELS[name], HardwareConfig())
    assert not [array.name for array in arrays if array.overload]
    for array in arrays:
        assert array.accesses or array.width == 32, f"{array.name}: which loop uses it most?"


def test_loops_are_those_of_the_source():
    loops = set()
    for path in HLS_SOURCE.glob("*.h"):
        function = ""
        for line in path.read_text().splitlines():
            if match := re.match(r"static (?:inline )?[\w *]+?\b(\w+)\(", line):
                function = match[1]
            if match := re.match(r"\s*(\w+):", line):
                loops.add(f"{function}: {match[1]}")
    asked = {access.loop for array in memory_map(MODELS["paper"], HardwareConfig()) for access in array.accesses}
    assert asked <= loops


def test_an_overload_is_found():
    array = OnChipArray("a", "scratch", 64, 512, 1, "bram", (Access("f: Loop", 2, 1),))
    assert array.overload == array.accesses[0]
    for reads, writes, interval, fine in [(2, 0, 1, True), (0, 2, 1, False), (1, 1, 1, True), (2, 2, 2, True)]:
        asked = replace(array, accesses=(Access("f: Loop", reads, writes, interval),))
        assert (asked.overload is None) == fine


@pytest.mark.parametrize(
    ("binding", "width", "depth", "expected"),
    [
        ("bram", 36, 1024, Blocks(bram36=1)),
        ("bram", 72, 512, Blocks(bram36=1)),
        ("bram", 18, 2048, Blocks(bram36=1)),
        ("bram", 9, 4096, Blocks(bram36=1)),
        ("bram", 36, 512, Blocks(bram36=0.5)),
        ("bram", 37, 512, Blocks(bram36=1)),
        ("bram", 512, 512, Blocks(bram36=7.5)),
        ("bram", 512, 513, Blocks(bram36=14.5)),
        ("bram", 1, 2, Blocks(bram36=0.5)),
        ("uram", 72, 4096, Blocks(uram=1)),
        ("uram", 512, 4096, Blocks(uram=8)),
        ("uram", 512, 4097, Blocks(uram=16)),
        ("lutram", 14, 32, Blocks(lookup_tables=8)),
        ("lutram", 7, 64, Blocks(lookup_tables=8)),
        ("registers", 32, 2, Blocks(flip_flops=64)),
    ],
)
def test_geometry(binding, width, depth, expected):
    assert blocks(binding, width, depth) == expected


def test_partitions_round_up_one_by_one():
    whole = OnChipArray("a", "scratch", 96, 512, 1, "bram")
    assert whole.blocks.bram36 == 7.5
    assert replace(whole, banks=12).blocks.bram36 == 90
    assert replace(whole, banks=12).filled == pytest.approx(whole.filled / 12)


def test_what_blocks_hold_is_the_cards():
    card = Blocks(bram36=U50.bram36, uram=U50.uram)
    assert capacity_bits(card) == 8 * (U50.bram_bytes + U50.uram_bytes)
    assert blocks("uram", 72, 4096 * U50.uram).uram == U50.uram
    with pytest.raises(ValueError, match="no binding"):
        blocks("flash", 1, 1)


@pytest.mark.parametrize("encoders", [2, 4, 6])
def test_totals(encoders):
    model = ModelConfig(encoders=encoders)
    arrays = memory_map(model, HardwareConfig())
    total = total_blocks(arrays)
    groups, bindings = by_group(arrays), by_binding(arrays)
    assert tuple(groups) == GROUPS and {array.group for array in arrays} <= set(GROUPS)
    assert sum(groups.values(), Blocks()) == total
    assert bindings["uram"]["blocks"] == total.uram and bindings["bram"]["blocks"] == total.bram36
    assert sum(row["bytes"] for row in bindings.values()) == sum(array.bytes for array in arrays)
    # Parameters, gradients and both of AdamW's moments, the cores of all layers grouped in one memory each.
    state = [array for array in arrays if "." in array.name]
    assert sum(array.words for array in state) == 4 * ParameterMemory(model).words and len(state) == 2 * 6 + 2 * 2
    assert sum(array.filled for array in state) / len(state) > 0.5
