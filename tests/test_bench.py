"""The benchmarks measure what they say; no test asserts a time."""

import json
import threading

import numpy as np
import pytest

from bttlab.bench import interleave, ratio, timing
from bttlab.cli import main


def test_contenders_take_turns_and_the_first_turn_is_not_counted():
    turns = []
    seconds = interleave({name: lambda name=name: turns.append(name) for name in "ab"}, rounds=3, pieces=2)
    assert "".join(turns) == "abababab"
    assert {name: values.shape for name, values in seconds.items()} == {"a": (3,), "b": (3,)}
    assert all((values >= 0).all() for values in seconds.values())


def test_a_contender_may_say_itself_what_its_work_took():
    assert interleave({"a": lambda: 6.0}, rounds=2, pieces=3)["a"].tolist() == [2.0, 2.0]


def test_timing_and_ratio_are_those_of_the_rounds():
    spread = timing(np.array([4.0, 1.0, 3.0, 2.0, 5.0]))
    assert (spread.median, spread.lower_quartile, spread.upper_quartile) == (3, 2, 4)
    assert ratio(np.array([2.0, 6.0, 30.0]), np.array([1.0, 2.0, 3.0])) == 3


def test_bench_step_reports_every_contender_with_its_provenance(capsys):
    assert main(["bench", "step", "--data", "airline", "--samples", "2", "--rounds", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report["contenders"]) == ["emulated U50", "PyTorch BTT", "PyTorch right-to-left", "PyTorch dense"]
    for row in report["contenders"].values():
        assert row["median"]["provenance"] == "measured" and row["median"]["value"] > 0
    assert len({row["median"]["value"] for row in report["contenders"].values()}) == 4
    assert report["contenders"]["emulated U50"]["ratio"]["value"] == 1


@pytest.mark.parametrize("arguments", [["--samples", "0"], ["--rounds", "-1"], ["--data", "nowhere/at/all"]])
def test_bench_refuses_bad_input_in_one_line(arguments, capsys):
    assert main(["bench", "step", *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert error.count("\n") == 0 and arguments[1] in error


def test_bench_dashboard_trains_the_same_with_and_without_one(capsys):
    threads = threading.active_count()
    assert main(["bench", "dashboard", "--data", "airline", "--samples", "300", "--rounds", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report["contenders"]) == ["without a dashboard", "with a dashboard"]
    assert all(row["median"]["value"] > 0 for row in report["contenders"].values())
    assert threading.active_count() == threads
