"""Folders: one process at a time, no other user between it and its work, a clear error where nobody may write."""

import errno
import fcntl
import os
import socket
import stat
import subprocess
import sys

import filelock
import pytest

from bttlab.data import load_corpus
from bttlab.runs import start_run
from bttlab.runs.folder import run_lock
from bttlab.runs.settings import RunError
from bttlab.util import locks
from bttlab.util.errors import BttlabError
from bttlab.util.locks import HELD, LOCK_FILE, changing, folder_lock, is_held
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


@pytest.fixture(params=["ENOLCK", "EOPNOTSUPP", "ENOSYS"])
def no_locks(request, monkeypatch) -> None:
    """A file system such as NFS without its lock service."""
    number = getattr(errno, request.param)

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


def test_a_folder_without_locks_has_one_process_at_a_time(tmp_path, no_locks, monkeypatch):
    """Of two nodes neither can tell whether a process of the other lives."""
    held = tmp_path / f"{LOCK_FILE}{HELD}"
    monkeypatch.setattr(socket, "gethostname", lambda: "node-a")
    for _ in range(2):
        with run_lock(tmp_path):
            assert is_held(tmp_path) and stat.S_IMODE(held.stat().st_mode) == 0o600
            monkeypatch.setattr(socket, "gethostname", lambda: "node-b")
            assert is_held(tmp_path)
            said = rf"process {os.getpid()} on node-a \(if it has ended, delete {held}\) trains in {tmp_path}"
            with pytest.raises(RunError, match=said), run_lock(tmp_path):
                pass
            monkeypatch.setattr(socket, "gethostname", lambda: "node-a")
        assert not is_held(tmp_path) and not held.exists()
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    held.write_text(f"{int(ended.stdout)}\n{filelock_s_name_of_this_host(tmp_path)}\n")
    assert not is_held(tmp_path)  # as of a killed process of this node
    held.write_text("1\nnode-c\n")
    assert is_held(tmp_path)
    with pytest.raises(RunError, match="process 1 on node-c"), run_lock(tmp_path):
        pass


def filelock_s_name_of_this_host(folder) -> str:
    with filelock.SoftFileLock(folder / "any"):
        return (folder / "any").read_text().split()[1]


def test_a_run_whose_stand_in_for_a_lock_was_deleted_writes_nothing_more(tmp_path, no_locks):
    with pytest.raises(RunError, match="was removed or replaced"), run_lock(tmp_path) as lock:
        lock.check()
        (tmp_path / f"{LOCK_FILE}{HELD}").unlink()
        lock.check()


def test_files_of_a_folder_without_locks_are_changed_by_one_process_at_a_time(tmp_path, no_locks, monkeypatch):
    monkeypatch.setattr(locks, "CHANGE_SECONDS", 0.1)
    with changing(tmp_path):
        with (
            pytest.raises(BttlabError, match=rf"process {os.getpid()} on .* has been changing files"),
            changing(tmp_path),
        ):
            pass
    with changing(tmp_path):
        pass


def test_a_run_in_a_folder_without_locks(tmp_path, no_locks, corpus):
    def no_disk(*arguments):
        raise RunError("no room")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(RunError, match="no room"):
        patch.setattr("bttlab.runs.checkpoint.CheckpointStore.save", no_disk)
        train(tmp_path / "run", corpus)
    assert not (tmp_path / "run").exists()
    train(tmp_path / "run", corpus)
    resume(tmp_path / "run", epochs=4)
    assert not (tmp_path / "run" / f"{LOCK_FILE}{HELD}").exists()


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
