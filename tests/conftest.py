"""Fixtures shared by all tests: where the real corpora lie."""

import os
import signal
from pathlib import Path

import pytest
import torch

from two_users import interpreter_of_nobody

ROOT = Path(__file__).resolve().parents[1]
torch.set_num_threads(1)
# A shell starts a job in the background with SIGINT ignored, and so would be all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def _real_corpus(name: str) -> Path:
    """The real corpus: in $BTTLAB_DATA, or in a folder shared/data beside the checkout."""
    for parent in (os.environ.get("BTTLAB_DATA"), ROOT.parent / "shared" / "data"):
        if parent and (Path(parent) / name / "train" / "seq.in").is_file():
            return Path(parent) / name
    pytest.fail(f"the {name} corpus is not here: put it in a folder and set BTTLAB_DATA to that folder's parent")


@pytest.fixture(scope="session", autouse=True)
def _runs_of_tests(tmp_path_factory) -> None:
    """Keep the runs of tests out of the user's own."""
    os.environ["BTTLAB_RUNS"] = str(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def atis() -> Path:
    return _real_corpus("atis")


@pytest.fixture(scope="session")
def snips() -> Path:
    return _real_corpus("snips")


@pytest.fixture
def two_users() -> None:
    """Skip the test where no process can be started as another user."""
    if os.geteuid() != 0 or interpreter_of_nobody() is None:
        pytest.skip("it takes root, and a Python that every user may run, to act as another user")
