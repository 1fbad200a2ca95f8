"""The trials of `make reliability`, a few attempts of each, and the page they write."""

import json

import pytest
from pages import END, begin_of

from reliability import __main__ as command
from reliability import report, training_process
from reliability.outcome import Outcome
from reliability.trials import TRIALS, Trial

from conftest import ROOT

pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", [name for name, trial in TRIALS.items() if trial.small])
def test_trial(name):
    trial = TRIALS[name]
    outcome = trial.run(trial.small)
    assert outcome.attempts >= trial.small and not outcome.failures


def test_a_trial_on_a_card(xrt, monkeypatch, tmp_path):
    for name, value in xrt.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(training_process, "device", "emulated")
    training_process.unbroken.cache_clear()
    assert command.main(["crash_resume", "--count", "1", "--device", "0"], tmp_path) == 0
    assert list(tmp_path.iterdir()) == []
    training_process.unbroken.cache_clear()


def test_the_page_has_the_table_of_the_figures():
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    records = report.load(ROOT / "docs")
    assert records.keys() <= TRIALS.keys()
    assert report.table(records) in page


def test_a_run_keeps_the_other_results_and_fails_if_an_attempt_failed(tmp_path, monkeypatch, capsys):
    outcomes = {"good": Outcome("good", "it", 1, (), {"size": 3}), "bad": Outcome("bad", "that", 2, ["two went wrong"])}
    for name, outcome in outcomes.items():
        monkeypatch.setitem(TRIALS, name, Trial(lambda count, outcome=outcome: outcome, 100, 1))
    (tmp_path / "reliability.md").write_text(f"before\n{begin_of(report.TABLE)}\n{END}\nafter\n")
    assert command.main(["good"], tmp_path) == 0
    assert command.main(["bad", "--count", "2"], tmp_path) == 1
    assert "two went wrong" in capsys.readouterr().out
    records = json.loads((tmp_path / "reliability.json").read_text())
    assert records["good"]["figures"] == {"size": 3} and records["bad"]["failed"] == 1
    page = (tmp_path / "reliability.md").read_text()
    assert page.startswith("before\n") and page.endswith("after\n") and report.table(records) in page
