"""One process at a time on a card: messages, waiting, and the note that a dead process leaves."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bttlab.card import CardBusyError, card_lock, load_overlay, release_card
from bttlab.card.card_lock import CardLock, card_name, hung_marks
from two_users import NOBODY, run_as_nobody, shared_folder, start_as_nobody

CARD = "0000:3b:00.1"
HOLD = """
import sys, time
from bttlab.card.card_lock import CardLock
CardLock(sys.argv[1], sys.argv[2]).acquire()
print("held", flush=True)
time.sleep(float(sys.argv[3]))
"""


def hold(folder: Path, seconds: float, card: str = CARD) -> subprocess.Popen:
    """Let another process take a card, and give it back by ending."""
    command = [sys.executable, "-c", HOLD, card, folder, str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen) -> None:
    process.kill()
    process.communicate()


def test_the_second_process_is_told_who_has_the_card(tmp_path):
    process = hold(tmp_path, 60)
    told = rf"0000:3b:00.1 is in use by process {process.pid} of user \w+: .*--wait SECONDS"
    with pytest.raises(CardBusyError, match=told):
        CardLock(CARD, tmp_path).acquire()
    with pytest.raises(CardBusyError, match=rf"is in use after 0.3 s by process {process.pid} "):
        CardLock(CARD, tmp_path).acquire(wait=0.3)
    CardLock("0000:5e:00.1", tmp_path).acquire()  # another card is free
    assert hung_marks(tmp_path) == {}
    end(process)


def test_waiting_for_a_card_that_becomes_free(tmp_path):
    process = hold(tmp_path, 0.5)
    lock = CardLock(CARD, tmp_path)
    lock.acquire(wait=60)
    lock.release()
    assert process.wait(60) == 0


def test_a_process_that_died_leaves_no_lock_and_its_mark_until_the_next(tmp_path):
    process = hold(tmp_path, 60)
    end(process)
    lock = CardLock(CARD, tmp_path)
    lock.acquire()
    assert hung_marks(tmp_path) == {}
    lock.mark_hung()
    lock.release()
    [(path, whose)] = hung_marks(tmp_path).items()
    assert path == lock.path and whose.startswith(f"process {os.getpid()} of user ")
    lock.acquire()
    assert hung_marks(tmp_path) == {}
    with pytest.raises(CardBusyError):
        CardLock(CARD, tmp_path).acquire()  # flock holds between two descriptors of a process as well
    lock.release()


def test_a_lock_file_that_cannot_be_opened(tmp_path):
    lock = CardLock(CARD, tmp_path)
    lock.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CardBusyError, match=r"cannot be used: it belongs to user .*: rm "):
        lock.acquire()
    assert not (tmp_path / "elsewhere").exists()


def test_an_overlay_takes_the_lock_of_a_real_card(card, tmp_path):
    process = hold(tmp_path, 60, card_name(card))
    with pytest.raises(CardBusyError, match=f"process {process.pid} of"):
        load_overlay("trainer", card)
    end(process)
    for _ in range(2):  # a process that has the card may load again
        assert load_overlay("trainer", card).device is card
    release_card(card)
    CardLock(card_name(card), tmp_path).acquire()


# --- other users of the machine

PLANT = """
import os, sys
path, what = sys.argv[1:]
{
    "a pipe": lambda: os.mkfifo(path, 0o666),
    "a link to /dev/zero": lambda: os.symlink("/dev/zero", path),
    "a link to a file": lambda: os.symlink(os.path.join(os.path.dirname(path), "precious"), path),
    "another name of a file": lambda: os.link(os.path.join(os.path.dirname(path), "precious"), path),
    "a folder": lambda: os.mkdir(path),
    "a file that is closed": lambda: os.close(os.open(path, os.O_CREAT, 0)),
}[what]()
"""
HOLD_FOR_GOOD = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o666)
os.fchmod(descriptor, 0o666)
fcntl.flock(descriptor, fcntl.LOCK_EX)
os.write(descriptor, b"process 1 of user root")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "what",
    [
        *("a pipe", "a link to /dev/zero", "a link to a file", "another name of a file", "a folder"),
        "a file that is closed",
    ],
)
def test_what_a_stranger_plants_is_no_lock_and_holds_nobody_up(two_users, what, monkeypatch):
    with shared_folder() as folder:
        precious = folder / "precious"
        precious.write_text("as it was")
        precious.chmod(0o666)
        lock = CardLock(CARD, folder)
        run_as_nobody(PLANT, lock.path, what)
        if what == "a file that is closed":  # to all but root, who tests
            monkeypatch.setattr(os, "open", _denied)
        assert hung_marks(folder) == {}
        with pytest.raises(
            CardBusyError, match=rf"belongs to user (nobody|root) \(.*administrator to remove it: rm {lock.path}"
        ):
            lock.acquire()
        assert precious.read_text() == "as it was"


def _denied(path, *arguments):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


@pytest.mark.long
def test_a_lock_that_a_stranger_holds_for_good(two_users):
    with shared_folder() as folder:
        lock = CardLock(CARD, folder)
        stranger = start_as_nobody(HOLD_FOR_GOOD, lock.path)
        assert stranger.stdout.readline() == "held\n", stranger.communicate()
        with pytest.raises(
            CardBusyError, match=f"by process {stranger.pid} of user nobody: .* administrator to end it"
        ):
            lock.acquire()
        assert hung_marks(folder) == {}  # a stranger's file says what it likes
        stranger.communicate()
        lock.acquire()
        lock.release()


@pytest.mark.long
def test_a_folder_of_the_administrator_s_comes_first(two_users, monkeypatch):
    with shared_folder(0o755) as folder:
        monkeypatch.setattr(card_lock, "ADMINISTRATORS", folder)
        lock = CardLock(CARD)
        assert lock.path.parent == folder
        lock.path.touch()
        lock.path.chmod(0o660)  # a group's
        assert "PermissionError" in run_as_nobody(
            "import sys\ntry: open(sys.argv[1])\nexcept OSError as error: print(type(error))", lock.path
        )
        lock.acquire()
        lock.release()
        for mode, owner in ((0o777, 0), (0o755, NOBODY)):
            folder.chmod(mode)
            os.chown(folder, owner, -1)
            assert card_lock.lock_folder() == card_lock.ANYBODYS
    monkeypatch.setattr(card_lock, "ADMINISTRATORS", folder / "none")
    assert card_lock.lock_folder() == card_lock.ANYBODYS
