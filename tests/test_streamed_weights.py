"""The count of a machine that streams frozen weights from HBM: its schedule, and the page's figures."""

import importlib.util
import json

import pytest

from bttlab.compiler.machine import M

from conftest import ROOT

spec = importlib.util.spec_from_file_location("streamed_weights", ROOT / "tools" / "streamed_weights.py")
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)
Tile = tool.Tile


def test_one_tile_is_loaded_multiplied_and_followed_by_the_rest():
    assert tool.simulate([([Tile(100, 30)], 50)]) == 100 + M.LATENCY + 30 + M.LATENCY + 50 + M.LATENCY


def test_a_half_of_the_buffer_is_loaded_when_the_engine_has_read_it():
    quick, slow = Tile(10, 1000), Tile(1000, 10)
    rest = 2 * M.LATENCY
    # Products of 1,000 steps follow one another, since loads wait for a half, not the engine for a load.
    assert tool.simulate([([quick] * 4, 0)]) == 10 + M.LATENCY + 4 * 1000 + rest
    # Loads of 1,000 steps follow one another: each half has been read long before.
    assert tool.simulate([([slow] * 4, 0)]) == 4 * 1000 + M.LATENCY + 10 + rest
    # The third load waits until the first product has ended.
    assert tool.simulate([([Tile(10, 500), Tile(10, 500), Tile(2000, 10)], 0)]) == (
        10 + M.LATENCY + 500 + 2 + 2000 + M.LATENCY + 10 + rest
    )


def test_two_halves_are_loaded_while_the_rest_of_the_program_runs():
    rest = [([Tile(10, 200)], 5000), ([Tile(10, 200)] * 2, 0)]
    assert tool.simulate(rest) == 10 + M.LATENCY + 200 + M.LATENCY + 5000 + M.LATENCY + 2 * 200 + 2 * M.LATENCY


@pytest.mark.parametrize("ports", tool.PORTS)
def test_each_pass_reads_each_weight_once(ports):
    groups = tool.passes(ports, 0, 0)
    tiles = [tile for group, _ in groups for tile in group]
    vectors = 2 * 6 * (4 * 384**2 + 2 * 384 * 1536) // M.LANES
    assert sum(tile.load for tile in tiles) == vectors // ports
    assert sum(tile.steps for tile in tiles) == vectors * tool.TOKENS // (M.ROWS * M.ENGINES)
    cycles = tool.simulate(groups)
    assert max(vectors // ports, vectors * tool.TOKENS // 32) < cycles < vectors // ports + vectors * tool.TOKENS // 32


def test_the_page_has_the_figures_of_the_record():
    page, record = tool.PAGE.read_text(encoding="utf-8"), json.loads(tool.RECORD.read_text())
    assert page.split(tool.MARKS[0])[1].split(tool.MARKS[1])[0].strip() == tool.table(record).strip()
    four, card = record["adapters"]["TT adapters"]["ports"]["4"], record["card"]
    # What the page's decision says in words.
    assert four["gb_s"] < tool.HBM_GB_S / 14 and four["cycles"] > 6 * record["adapters"]["TT adapters"]["alone"]
    assert four["ms"] > 20 * record["gpu"]["ms"] and record["gpu"]["millijoules"] < four["millijoules"] / 2
    two = record["hardware"]["2"]
    assert card["bram36"]["machine"] + two["buffers"] > 0.7 * card["bram36"]["budget"]
    assert card["lookup_tables"]["machine"] + two["buffers in LUTs"] > 0.7 * card["lookup_tables"]["budget"]
    assert "refused" in record["adapters"]["LoRA"]


@pytest.mark.long
def test_the_record_is_of_this_compiler():
    found, recorded = (json.loads(json.dumps(each)) for each in (tool.figures(), json.loads(tool.RECORD.read_text())))
    for name in ("weights", "bytes a sample", "hardware", "gpu"):
        assert found[name] == recorded[name], "run python tools/streamed_weights.py"
    entries = [each["adapters"]["TT adapters"] for each in (found, recorded)]
    for entry in entries:
        entry["ports"] = [each["cycles"] for each in entry["ports"].values()]
    assert entries[0]["ports"] == pytest.approx(entries[1]["ports"], rel=0.02)  # changes of the compiler move cycles
    assert entries[0]["alone"] == pytest.approx(entries[1]["alone"], rel=0.05)
    assert "refused" in found["adapters"]["LoRA"]
