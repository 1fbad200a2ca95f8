"""Folders: one process at a time, no other user between it and its work, a clear error where nobody may write."""

import os
import stat

import filelock
import pytest

from bttlab.data import load_corpus
from bttlab.runs import start_run
from bttlab.runs.settings import RunError
from bttlab.util.locks import LOCK_FILE, folder_lock, is_held
from tiny_runs import metrics, resume, settings, train, write_corpus
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
        train(tmp_path / "run", corpus)
    assert not (tmp_path / "run").exists()
    (tmp_path / "made").mkdir()  # by the user
    with pytest.raises(RunError, match="no room"):
        train(tmp_path / "made", corpus)
    assert (tmp_path / "made").exists()
    assert start_run(tmp_path / "made", settings(corpus), load_corpus(corpus)) is not None


ASK = """
import contextlib, io, sys
from bttlab.cli import main
with contextlib.redirect_stderr(io.StringIO()) as said:
    code = main(sys.argv[1:])
print(code, said.getvalue())
"""


@pytest.mark.long
def test_folders_that_may_not_be_written(two_users, tmp_path):
    with shared_folder(0o755) as place:
        corpus, closed, folder = write_corpus(place / "corpus"), place / "closed", place / "run"
        closed.mkdir(0o555)
        (place / "a.csv").write_text("text,label\n" + "hello,x\n" * 3)
        new = "train", "--data", corpus, "--encoders", 1, "--device", "reference", "--out", closed / "run"
        again = "train", "--resume", folder, "--epochs", 3
        train(folder, corpus, epochs=1)
        for path in folder.iterdir():
            path.chmod(0o444)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        for mode, arguments, message in (
            (0o555, new, f"{closed / 'run'} cannot be made (Permission denied); choose another --out"),
            (
                0o555,
                ("data", "import", place / "a.csv", closed / "a"),
                f"cannot write a corpus to {closed / 'a'}: Perm",
            ),
            (0o555, again, f"{folder / '.lock'} cannot be locked (Permission denied)"),
            (0o000, again, f"{folder} cannot be read (Permission denied)"),
        ):
            folder.chmod(mode)
            said = run_as_nobody(ASK, *arguments)
            assert said.startswith("2 ") and message in said
        folder.chmod(0o755)
        assert list(closed.iterdir()) == []
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
        resume(folder, epochs=3)
        train(tmp_path / "unbroken", corpus)
        assert metrics(folder) == metrics(tmp_path / "unbroken")
