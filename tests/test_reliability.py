"""The trials of `make reliability`, an attempt of each."""

import json
import subprocess
import sys

import pytest
from pages import filled

from reliability import __main__ as command
from reliability import dashboards, environments, flips, interrupts, memory, odd_hours, sweeps, training_process
from reliability.outcome import Outcome
from subprocess_env import environment

pytestmark = pytest.mark.long


def test_an_interrupt_of_each_way_is_saved_and_resumed():
    outcome = interrupts.trial(len(interrupts.WAYS))
    assert outcome.attempts == len(interrupts.WAYS) and not outcome.failures


def test_a_kill_on_a_card(xrt):
    command = [sys.executable, "-m", "reliability", "crash_resume", "--count", "1", "--device", "0"]
    subprocess.run(command, env=environment(**xrt.environment), check=True)


@pytest.fixture(autouse=True)
def short_sleep(monkeypatch):
    monkeypatch.setattr(training_process, "asleep", 2.0)


def test_what_happens_at_odd_hours(monkeypatch):
    """Without the limit of memory: a library that gets none may wait for ever, at a place that is the machine's."""
    ways = {name: way for name, way in odd_hours.WAYS.items() if name != "no more memory"}
    monkeypatch.setattr(odd_hours, "WAYS", ways)
    outcome = odd_hours.trial(len(ways))
    assert outcome.attempts == len(ways) and not outcome.failures


def test_an_environment_that_is_killed_is_completed():
    assert not environments.trial(1).failures


def test_two_dashboards_want_one_card(monkeypatch):
    way = "two kernels on one card, the first suspended"
    monkeypatch.setattr(dashboards, "WAYS", {way: dashboards.WAYS[way]})
    outcome = dashboards.trial(1)
    assert outcome.figures[way] == 1 and not outcome.failures


def test_a_bit_of_each_kind_of_file():
    outcome = flips.trial(10 * len(flips.KINDS))
    assert not outcome.failures and outcome.figures.keys() == flips.KINDS.keys()
    assert outcome.figures["checkpoint.safetensors"] == outcome.figures[flips.OVERLAY] == "10 refused or named"


def test_memory_stays_flat():
    outcome = memory.trial(4)
    assert not outcome.failures and outcome.figures["live cells in one process"] == memory.CELLS


def test_a_sweep_that_loses_a_worker(monkeypatch):
    monkeypatch.setattr(sweeps, "WAYS", sweeps.WAYS[1:2])
    assert not sweeps.trial(1).failures


def test_the_page_has_the_record(tmp_path, monkeypatch):
    text = command.PAGE.read_text(encoding="utf-8")
    assert filled(text, {"results": command.table()}, "reliability.md") == text
    for name, entry in json.loads(command.RECORD.read_text(encoding="utf-8")).items():
        assert f"| `{name}` | {entry['date']} | {entry['attempts']} | {len(entry['failures'])} |" in text
    monkeypatch.setattr(command, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(command, "PAGE", tmp_path / "page.md")
    (tmp_path / "page.md").write_text("<!-- results -->\n\nold\n<!-- end -->\n")
    command.record("interrupts", Outcome(3, ["2: lost"], {"longest, s (measured)": (0.5, 1.25)}), 7.2)
    row = "| 3 | 1 | longest, s (measured): 0.50, 1.25 |"
    assert row in (tmp_path / "page.md").read_text() and "old" not in (tmp_path / "page.md").read_text()


def test_a_failed_attempt_fails_the_command(monkeypatch, capsys):
    outcome = interrupts.Outcome(2, ["the second went wrong"], {"longest": 3})
    monkeypatch.setattr(command, "trial_of", lambda name: lambda count: outcome)
    assert command.main(["interrupts"]) == 1
    assert "2 attempts, 1 failed" in (said := capsys.readouterr().out) and "the second went wrong" in said
