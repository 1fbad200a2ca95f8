"""Ctrl-C on `bttlab sweep`, as a terminal sends it: to all processes, and twice, for people are impatient; SIGKILL."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import tiny_runs
from bttlab.runs.recipe import flat
from fake_trainer import until

pytestmark = pytest.mark.long


@pytest.fixture
def sweep(tmp_path):
    """A sweep whose trials last for hours, on two workers, in a session of its own."""
    fixed = flat(tiny_runs.settings(tiny_runs.write_corpus(tmp_path / "corpus"), epochs=100_000))
    del fixed["seed"]
    values = {key: list(value) if isinstance(value, tuple) else value for key, value in fixed.items()}
    spec = {"fixed": values, "vary": {"seed": [0, 1, 2]}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(spec))
    process = subprocess.Popen(
        [sys.executable, "-m", "bttlab", "sweep", "tiny.yaml", "--workers", "2"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    yield process
    if _session(process):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_while_workers_start(sweep):
    assert until(lambda: len(_workers(sweep)) == 2)
    said = _interrupted(sweep).splitlines()  # trials may have begun before the signal
    assert [line for line in said if "running" not in line] == [
        "bttlab: 0 of 3 trials are done; the same command goes on",
        "bttlab: stopped by Ctrl-C",
    ]


@pytest.mark.parametrize("hanging", [False, True])
def test_in_mid_trial(sweep, hanging):
    assert sweep.stderr.readline() == "bttlab: 0 of 3 trials done; 2 running on 2 workers\n"
    if hanging:
        for worker in _workers(sweep):
            os.kill(worker, signal.SIGSTOP)
    assert _interrupted(sweep).splitlines() == [
        "bttlab: 0 of 3 trials are done; the same command goes on",
        "bttlab: stopped by Ctrl-C",
    ]


def test_processes_end_with_the_one_that_started_them(sweep):
    assert sweep.stderr.readline() == "bttlab: 0 of 3 trials done; 2 running on 2 workers\n"
    sweep.kill()
    assert until(lambda: not _session(sweep))


def _interrupted(process: subprocess.Popen) -> str:
    """Press Ctrl-C twice; returns what the process still says, once nothing is left of it."""
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.3)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert until(lambda: not _session(process))
    return said


def _session(process: subprocess.Popen) -> dict[int, str]:
    """The processes that live in the session of one, and their commands."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(session) == process.pid and state != "Z":
                found[int(folder.name)] = (folder / "cmdline").read_text()
        except OSError:  # it has just ended
            continue
    return found


def _workers(process: subprocess.Popen) -> list[int]:
    return [pid for pid, command in _session(process).items() if "spawn_main" in command]
