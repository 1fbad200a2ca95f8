"""One process at a time in a folder, and no other user of the machine between it and its work."""

import os
import stat

import filelock
import pytest

import tiny_runs
from bttlab.data import load_corpus
from bttlab.runs import start_run
from bttlab.runs.settings import RunError
from bttlab.util.locks import LOCK_FILE, folder_lock, is_held
from two_users import NOBODY, run_as_nobody, shared_folder

IS_HELD = """
import sys
from bttlab.util.locks import is_held
print(is_held(sys.argv[1]))
"""


def test_two_parts_of_a_process_and_who_only_asks(tmp_path):
    assert not is_held(tmp_path) and not list(tmp_path.iterdir())
    with folder_lock(tmp_path):
        assert is_held(tmp_path)
        with pytest.raises(filelock.Timeout), folder_lock(tmp_path):
            pass
        assert is_held(tmp_path)
    assert not is_held(tmp_path)


def test_a_lock_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        with folder_lock(tmp_path):
            assert stat.S_IMODE((tmp_path / LOCK_FILE).stat().st_mode) == 0o600
    finally:
        os.umask(before)


@pytest.mark.long
def test_another_user_sees_that_a_run_goes_on(two_users):
    with shared_folder(0o755) as folder:
        assert run_as_nobody(IS_HELD, folder) == "False"
        with folder_lock(folder):
            assert run_as_nobody(IS_HELD, folder) == "True"
        assert run_as_nobody(IS_HELD, folder) == "False"


@pytest.mark.long
def test_a_lock_of_another_user(two_users, monkeypatch):
    """Root may open every file, so it is told apart by what another user would be told."""
    with shared_folder(0o777) as folder:
        run_as_nobody(
            "import sys\nfrom bttlab.util.locks import folder_lock\nwith folder_lock(sys.argv[1]): pass", folder
        )
        assert (folder / LOCK_FILE).stat().st_uid == NOBODY
        (folder / LOCK_FILE).unlink()
        with folder_lock(folder):
            pass
        said = run_as_nobody(
            "import sys\nfrom pathlib import Path\nfrom bttlab.runs.folder import run_lock\n"
            "try:\n    with run_lock(Path(sys.argv[1])): print('in')\nexcept Exception as error: print(error)",
            folder,
        )
        assert "cannot be locked (Permission denied)" in said and "copy the run" in said.replace("\n", " ")


def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path, corpus, monkeypatch):
    def no_disk(*arguments):
        raise RunError("no room")

    monkeypatch.setattr("bttlab.runs.checkpoint.CheckpointStore.save", no_disk)
    with pytest.raises(RunError, match="no room"):
        tiny_runs.train(tmp_path / "run", corpus)
    assert not (tmp_path / "run").exists()
    (tmp_path / "made").mkdir()  # by the user
    with pytest.raises(RunError, match="no room"):
        tiny_runs.train(tmp_path / "made", corpus)
    assert (tmp_path / "made").exists()
    assert start_run(tmp_path / "made", tiny_runs.settings(corpus), load_corpus(corpus)) is not None
