"""The benchmarks measure what they say; no test asserts a time."""

import os
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from benchmarks import __main__ as benchmarks
from benchmarks import layer, memory, page, peers, record, start, step
from benchmarks.__main__ import NAMES
from benchmarks.figures import DRAWINGS
from benchmarks.result import Result, describe_runs
from pages import END, begin_of

from bttlab.tensor import flow_cost
from bttlab.util.errors import BttlabError

from conftest import ROOT

TORCHTT = find_spec("torchtt") is not None
PAPER = ((12, 8, 8), (8, 8, 12))


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


@pytest.mark.long
def test_layer_counts_operations_and_memory_of_every_contender():
    result = layer.measure(tokens=(1, 3), threads=(1,), rounds=1, compiled=())
    contenders = 7 + TORCHTT
    rows = check(result, layer, rows=2 * contenders)
    assert TORCHTT or any("torchTT is not installed" in note for note in result.notes)
    found = {(row["contender"], row["tokens"]): row for row in rows}
    for name, flow in (("BTT", "bidirectional"), ("right to left", "right_to_left"), ("reconstruct", "reconstruct")):
        assert found[name, 3]["operations"] == 2 * flow_cost(flow, 3, *PAPER, 12).macs
    assert found["auto", 3]["operations"] == found["right to left", 3]["operations"]  # the fastest for 3 tokens
    assert found["dense", 3]["operations"] == 3 * 2 * 3 * 768 * 768
    weight, bias, features = 4 * 768 * 768, 4 * 768, 4 * 3 * 768
    assert weight + bias + 2 * features <= found["dense", 3]["peak"] <= weight + bias + 3 * features  # dW, db, y, dx
    assert found["BTT", 3]["peak"] < found["dense", 3]["peak"] < found["reconstruct", 3]["peak"]
    assert len(result.ratios) == 2 * (contenders - 1)


def test_a_record_names_the_build_of_pytorch(monkeypatch):
    """The package's version of the build with CUDA does not."""
    monkeypatch.setattr(torch, "__version__", "2.13.0+cu130")
    assert record.machine()["versions"]["torch"] == "2.13.0+cu130"


@pytest.mark.skipif(not TORCHTT, reason="torchTT is installed by `make bench` alone")
def test_torchtts_layer_is_the_matrix_of_its_cores():
    peer = peers.TorchTTLinear(*PAPER, 12)
    assert sum(parameter.numel() for parameter in peer.parameters()) == 12_288
    matrix = torch.einsum("aijb,bklc,cmnd->ikmjln", *peer.layer.cores).reshape(768, 768)
    x = torch.randn(5, 768)
    torch.testing.assert_close(peer(x), x @ matrix.T, rtol=1e-4, atol=1e-4)


def test_memory_has_the_chip_pytorch_and_the_recorded_gpu():
    result = memory.measure("airline", encoders=(2,), records=ROOT / "data" / "baselines")
    rows = check(result, memory, rows=6)
    peaks = {row["contender"]: row["peak"] for row in rows}
    # SGD at batch 1: no more is kept than parameters, gradients and what one utterance needs
    assert 2 * 36_717_120 < peaks["PyTorch dense"] < 3 * 36_717_120
    assert peaks["PyTorch BTT"] < peaks["PyTorch right to left"] < peaks["PyTorch dense"]
    # its process holds workspaces of cuBLAS beside the tensors
    assert peaks["PyTorch dense on NVIDIA H100 80GB HBM3"] > 1.5 * peaks["PyTorch dense"] and not result.notes


@pytest.mark.long
def test_start_has_the_events_of_a_training(tiny_airline, tmp_path):
    result = start.measure(str(tiny_airline), encoders=1, rounds=1, others=((1, 8),))
    rows = check(result, start, rows=6)
    assert rows[0]["contender"] == "import torch" and all(row["time"]["median"] > 0 for row in rows)
    paper, auto = (row["time"]["median"] for row in rows[-2:])
    assert result.ratios[f"1-ENC: {start.OVER}"]["median"] == pytest.approx(auto / paper, rel=1e-3)
    (table,) = start.tables(result.to_dict())
    assert [line[0] for line in table.rows[-2:]] == [
        f"{start.OVER}, times",
        f"{start.OVER}, times, 1-ENC, updates of 8",
    ]
    assert table.rows[-1][2] == describe_runs(result.ratios[f"1-ENC, updates of 8: {start.OVER}"])
    with pytest.raises(BttlabError, match="is not a folder"):
        start.measure(str(tmp_path / "none"), encoders=1, rounds=1)
    with pytest.raises(BttlabError, match="did not reach the event 'first step'"):  # its end is not the first step
        start._seconds(("print('nothing')",), start.FIRST_STEP, os.devnull, str(tmp_path))


@pytest.mark.long
def test_step_has_updates_of_several_samples_and_long_calls(tiny_airline):
    result = step.measure(str(tiny_airline), encoders=1, samples=8, repeats=2, long_call=16, threads=(1, 2), rounds=1)
    rows = check(result, step, rows=20)
    found = {row["contender"]: row["time"]["median"] for row in rows}
    assert {"emulated U50, updates of 8", "PyTorch BTT, updates of 8", "emulated U50, 16 samples a call"} < set(found)
    assert all(time > 0 for time in found.values())
    _, gains, host = step.tables(result.to_dict())
    assert [line[0] for line in gains.rows][:3] == [
        f"{name}, one thread" for name in (step.OURS, step.OURS + step.UPDATES, f"{step.OURS}, 16 samples a call")
    ]
    assert gains.rows[3][0].startswith("the fastest other contender: ") and host.rows[0][0] == step.TWO_PROCESSES


def test_step_says_what_a_second_thread_gains_from_turns_side_by_side():
    """A turn of a slow moment is beside the other turns of the same moment."""
    moments, cards = {}, [SimpleNamespace(threads=1)]

    def turn(name, seconds):  # each round the host is half as fast as in the one before
        moments[name] = moments.get(name, 0) + 1
        return seconds * 2.0 ** moments[name]

    works = {step.OURS: lambda: turn(cards[0].threads, 0.6 if cards[0].threads == 1 else 0.4)}
    gains = step._of_two_threads(works, ("dense", 2), lambda: turn("dense", 6.0), cards, rounds=3)
    assert gains[f"{step.OURS}, one thread"] == pytest.approx([1.5] * 3)
    assert gains["the fastest other contender: dense, threads 2"] == pytest.approx([15] * 3)


def test_the_fastest_other_contender_has_updates_of_one_sample():
    times = {(step.OURS, 1): 0.6, ("dense", 1): 8.0, ("dense", 2): 6.0, (f"dense{step.UPDATES}", 1): 5.0}
    rows = [{"contender": name, "threads": n, "time": {"median": time}} for (name, n), time in times.items()]
    assert step._fastest_other(rows) == ("dense", 2)


@pytest.mark.long
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
