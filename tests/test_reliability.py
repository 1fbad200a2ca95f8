"""The trials of `make reliability`, an attempt of each."""

import subprocess
import sys

import pytest

from reliability import __main__ as command
from reliability import interrupts
from subprocess_env import environment

pytestmark = pytest.mark.long


def test_an_interrupt_of_each_way_is_saved_and_resumed():
    outcome = interrupts.trial(len(interrupts.WAYS))
    assert outcome.attempts == len(interrupts.WAYS) and not outcome.failures


def test_a_kill_on_a_card(xrt):
    command = [sys.executable, "-m", "reliability", "crash_resume", "--count", "1", "--device", "0"]
    subprocess.run(command, env=environment(**xrt.environment), check=True)


def test_a_failed_attempt_fails_the_command(monkeypatch, capsys):
    outcome = interrupts.Outcome(2, ["the second went wrong"], {"longest": 3})
    monkeypatch.setitem(command.TRIALS, "interrupts", (lambda count: outcome, 100))
    assert command.main(["interrupts"]) == 1
    assert "2 attempts, 1 failed" in (said := capsys.readouterr().out) and "the second went wrong" in said
