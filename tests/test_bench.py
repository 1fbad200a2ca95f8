"""The benchmarks measure what they say; no test asserts a time."""

import json

import numpy as np
import pytest
import torch
from benchmarks import __main__ as benchmarks
from benchmarks import layer, memory, order, page, record, step
from benchmarks.__main__ import NAMES, module_of
from benchmarks.figures import DRAWINGS
from benchmarks.peers import IMPLEMENTATIONS, peer_linear
from benchmarks.result import Result
from benchmarks.turns import interleave, repeated, spread
from pages import END, begin_of

from bttlab.tensor import flow_cost, optimal_cost

from conftest import ROOT

PAPER = ((12, 8, 8), (8, 8, 12))


def test_contenders_take_turns_and_the_first_turn_is_not_counted():
    turns = []
    seconds = interleave({name: lambda name=name: turns.append(name) for name in "ab"}, rounds=3, pieces=2)
    assert "".join(turns) == "abababab"
    assert {name: values.shape for name, values in seconds.items()} == {"a": (3,), "b": (3,)}
    assert all((values >= 0).all() for values in seconds.values())


def test_short_work_is_repeated_and_the_time_is_that_of_one_piece():
    done = []
    turn = repeated(lambda: done.append(1))
    assert turn() > 0 and len(done) == 3
    turn()
    assert len(done) > 10


def test_a_spread_is_that_of_the_rounds():
    found = spread(np.array([4.0, 1.0, 3.0, 2.0, 5.0]))
    assert (found.median, found.lower_quartile, found.upper_quartile) == (3, 2, 4)


def check(result: Result, module, rows: int):
    """Check what all results have in common, as they are in a record; return the rows."""
    found = record.build({"it": record.run(lambda: result)})["benchmarks"]["it"]
    assert len(found["rows"]) == rows
    assert all({"unit", "provenance", "how"} == set(figure) for figure in found["figures"].values())
    for ratio in found["ratios"].values():
        assert 0 < ratio["lower_quartile"] <= ratio["median"] <= ratio["upper_quartile"]
    for table in module.tables(found):
        assert table.rows and all(len(line) == len(table.headers) for line in table.rows)
    if module.__name__.rpartition(".")[2] in DRAWINGS:
        DRAWINGS[module.__name__.rpartition(".")[2]](found).canvas.draw()
    return found["rows"]


def test_layer_counts_operations_and_memory_of_every_contender():
    result = layer.measure(tokens=(1, 3), threads=(1,), rounds=1, compiled=())
    rows = check(result, layer, rows=14)
    found = {(row["contender"], row["tokens"]): row for row in rows}
    for name, flow in (("BTT", "bidirectional"), ("right to left", "right_to_left"), ("reconstruct", "reconstruct")):
        assert found[name, 3]["operations"] == 2 * flow_cost(flow, 3, *PAPER, 12).macs
    assert found["auto", 3]["operations"] == found["right to left", 3]["operations"]  # the fastest for 3 tokens
    assert found["dense", 3]["operations"] == 3 * 2 * 3 * 768 * 768
    weight, bias, features = 4 * 768 * 768, 4 * 768, 4 * 3 * 768
    assert weight + bias + 2 * features <= found["dense", 3]["peak"] <= weight + bias + 3 * features  # dW, db, y, dx
    assert found["BTT", 3]["peak"] < found["dense", 3]["peak"] < found["reconstruct", 3]["peak"]
    assert len(result.ratios) == 2 * 6


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_peer_layer_is_a_linear_one_of_the_same_start(implementation):
    torch.manual_seed(0)
    found = peer_linear(*PAPER, 12, implementation)
    weight = found.weight.to_matrix().detach()
    x = torch.randn(5, 768)
    torch.testing.assert_close(found(x).detach(), x @ weight.T, rtol=1e-4, atol=1e-4)
    assert weight.std().item() == pytest.approx((2 / 1536) ** 0.5, rel=0.2)


def test_step_trains_with_every_contender():
    rows = check(step.measure("airline", samples=2, threads=(1,), rounds=1), step, rows=7)
    assert [row["contender"] for row in rows][:2] == ["emulated U50", "PyTorch BTT"]
    assert len({row["time"]["median"] for row in rows}) == 7


def test_order_compares_with_the_exhaustive_optimum():
    rows = check(order.measure(tokens=(1, 13), ranks=(12,)), order, rows=2)
    assert rows[1]["optimum_forward"] == rows[1]["auto_forward"] == 297_216 == optimal_cost(13, *PAPER, 12).macs
    assert rows[1]["btt_forward"] == 488_448 and rows[1]["auto_groups"] == [[2, 1], [1, 2]]
    assert order.tables(json.loads(json.dumps({"rows": rows})))[0].rows[1][5:7] == ["G1G2, G5G6", "39%"]


def test_memory_has_the_chip_and_pytorch_and_says_that_no_gpu_is_recorded(tmp_path):
    result = memory.measure("airline", encoders=(2,), records=ROOT / "data" / "baselines")
    rows = check(result, memory, rows=5)
    peaks = {row["contender"]: row["peak"] for row in rows}
    # SGD at batch 1: no more is kept than parameters, gradients and what one utterance needs
    assert 2 * 36_717_120 < peaks["PyTorch dense"] < 3 * 36_717_120
    assert peaks["PyTorch BTT"] < peaks["PyTorch right to left"] < peaks["PyTorch dense"]
    assert result.notes == [memory.NO_GPU]


def test_a_run_writes_record_page_and_figure_and_keeps_the_others(tmp_path):
    (tmp_path / "images").mkdir()
    names = ("machine", *NAMES)
    text = "".join("\n".join((f"# {name}", begin_of(f"{name} of {page.RECORD}"), END, "")) for name in names)
    (tmp_path / page.PAGE).write_text(text)
    before = record.read(ROOT / "docs" / page.RECORD)
    record.write(tmp_path / page.RECORD, before)
    benchmarks.main(["order"], tmp_path)
    assert (tmp_path / "images" / "bench_order.png").read_bytes()[:4] == b"\x89PNG"
    assert "| 12 | 13 | 488 | 297 | 297 | G1G2, G5G6 | 39% |" in (tmp_path / page.PAGE).read_text()
    now = record.read(tmp_path / page.RECORD)["benchmarks"]
    assert now["order"]["date"] > before["benchmarks"]["order"]["date"]
    assert now["layer"] == before["benchmarks"]["layer"]


def test_the_page_is_that_of_the_record():
    found = record.read(ROOT / "docs" / page.RECORD)
    text = (ROOT / "docs" / page.PAGE).read_text(encoding="utf-8")
    assert set(found["benchmarks"]) == set(NAMES)
    assert page.fill(text, found, {name: module_of(name) for name in NAMES}) == text
    assert all((ROOT / "docs" / "images" / f"bench_{name}.png").is_file() for name in DRAWINGS)
