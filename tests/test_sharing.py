"""A shared card: whose turn it is, what the dead and the stopped leave, and that no bit depends on it."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from bttlab.card import CardBusyError, card_lock, sharing
from bttlab.card.sharing import CardLine, shared_file
from bttlab.errors import BttlabError
from two_users import environment, run_as_nobody, shared_folder, start_as_nobody

CARD = "0000:3b:00.1"
TAKE = """
import sys, time
from pathlib import Path
from bttlab.card.sharing import CardLine
line = CardLine("card", Path(sys.argv[1]))
print("in line", flush=True)
line.take(7)
print("taken", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def line_file(tmp_path):
    path = tmp_path / "bttlab-card.shared"
    path.touch()
    return path


@contextmanager
def taking(path: Path, taken: bool = True):
    """Another process that takes the card, or waits for it."""
    command = [sys.executable, "-c", TAKE, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
    try:
        assert process.stdout.readline() == "in line\n"
        if taken:
            assert process.stdout.readline() == "taken\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def takers(path: Path, overlays: list[int], first: CardLine) -> list[int]:
    """The order in which threads get the card that got in line one after the other, while `first` has it."""
    order: list[int] = []

    def take(number: int, overlay: int) -> None:
        line = CardLine("card", path)
        taken = line.take(overlay)
        order.append(number)
        if not taken.has_overlay:
            line.loaded(overlay)
        line.leave()

    threads = []
    for number, overlay in enumerate(overlays):
        threads.append(threading.Thread(target=take, args=(number, overlay)))
        threads[-1].start()
        wait_until(lambda: len(first.look()) == len(threads) + 1)
    first.leave()
    for thread in threads:
        thread.join(60)
    return order


# --- the line


def test_first_come_first_served(line_file):
    first = CardLine("card", line_file)
    taken = first.take(7)
    assert (taken.is_unbroken, taken.has_overlay, first.is_mine) == (False, False, True)
    first.loaded(7)
    assert takers(line_file, [7] * 6, first) == list(range(6))
    assert not first.is_mine and first.look() == []
    taken = first.take(7)
    assert (taken.is_unbroken, taken.has_overlay) == (False, True)
    first.leave()
    assert first.take(7).is_unbroken  # nobody came in between
    first.leave()


def test_who_needs_the_overlay_on_the_card_goes_first(line_file, monkeypatch):
    first = CardLine("card", line_file)
    first.take(7)
    first.loaded(7)
    assert takers(line_file, [8, 7, 8, 7], first) == [1, 3, 0, 2]
    first.take(8)
    monkeypatch.setattr(sharing, "BATCH_SECONDS", 0.0)  # but not for ever
    assert takers(line_file, [7, 8, 7, 8], first) == [0, 1, 2, 3]


def test_who_dies_is_out_of_the_line(line_file):
    mine = CardLine("card", line_file)
    with taking(line_file) as holder, taking(line_file, taken=False) as waiting:
        wait_until(lambda: len(mine.look()) == 2)
        assert [(w.process, w.is_on_card) for w in mine.look()] == [(holder.pid, True), (waiting.pid, False)]
        waiting.kill()
        wait_until(lambda: [w.process for w in mine.look()] == [holder.pid])
        holder.kill()
        wait_until(lambda: mine.look() == [])
        mine.take(7)  # long before a slice is overdue
        assert mine.is_mine


def test_who_is_stopped_loses_the_slice_and_sees_it(line_file, monkeypatch):
    monkeypatch.setattr(sharing, "OVERDUE_SECONDS", 0.3)
    monkeypatch.setattr(sharing, "LOADING_SECONDS", 0.3)
    first, second = CardLine("card", line_file), CardLine("card", line_file)
    first.take(7)
    first.loaded(7)
    with taking(line_file, taken=False) as waiting:
        wait_until(lambda: len(first.look()) == 2)
        os.kill(waiting.pid, signal.SIGSTOP)  # the next in line is as good as absent, too
        begin = time.monotonic()
        second.take(7)
        assert time.monotonic() - begin > 0.5
        assert second.is_mine and not first.is_mine
        first.leave()
        assert second.is_mine and [w.process for w in second.look()] == [os.getpid()]
        os.kill(waiting.pid, signal.SIGCONT)  # it gets in line anew
        wait_until(lambda: [w.process for w in second.look()] == [os.getpid(), waiting.pid])
        second.leave()
        assert waiting.stdout.readline() == "taken\n"


def test_an_interrupt_leaves_the_line(line_file, monkeypatch):
    first, second = CardLine("card", line_file), CardLine("card", line_file)
    first.take(7)
    monkeypatch.setattr(sharing.time, "sleep", lambda seconds: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        second.take(7)
    assert len(first.look()) == 1


def test_a_line_whose_file_was_removed(line_file):
    line = CardLine("card", line_file)
    line.take(7)
    line.leave()
    line_file.unlink()
    line_file.touch()
    with pytest.raises(CardBusyError, match="the line for card, was removed meanwhile: start anew"):
        line.take(7)


def test_no_place_left(line_file, monkeypatch):
    monkeypatch.setattr(sharing, "PLACES", 1)
    first = CardLine("card", line_file)
    first.take(7)
    with pytest.raises(CardBusyError, match="all 1 places in line for card are taken: try again later"):
        CardLine("card", line_file).take(7)


@pytest.mark.parametrize(
    "content", [b"\xff" * 20_000, b"\x00\x01\x02", os.urandom(8192), np.full(1024, np.nan).tobytes()]
)
def test_what_a_file_says_holds_nobody_up(line_file, content):
    """Places that nobody has locked are empty; the rest is numbers, whichever they are."""
    line_file.write_bytes(content)
    line = CardLine("card", line_file)
    assert line.look() == []
    for _ in range(2):
        line.take(7)
        assert line.is_mine
        line.leave()


# --- who shares


def test_what_declares_a_card_shared(tmp_path, monkeypatch):
    monkeypatch.setattr(card_lock, "ADMINISTRATORS", tmp_path / "none")
    monkeypatch.delenv(sharing.FOLDER_VARIABLE, raising=False)
    assert shared_file("emulated_u50_0", True) is None
    monkeypatch.setenv(sharing.FOLDER_VARIABLE, str(tmp_path))
    path = tmp_path / "bttlab-emulated-u50-0.shared"
    assert shared_file("emulated_u50_0", True) is None
    path.touch()
    assert shared_file("emulated_u50_0", True) == path and shared_file("emulated_u50_1", True) is None
    assert shared_file("emulated_u50_0", False) is None  # a real card is an administrator's matter
    monkeypatch.setenv(sharing.FOLDER_VARIABLE, str(path))
    with pytest.raises(BttlabError, match=r"BTTLAB_SHARED_EMULATED is .*, which is no folder: make it, or unset"):
        shared_file("emulated_u50_0", True)


@pytest.mark.parametrize("what", ["pipe", "link", "second name", "folder"])
def test_what_is_no_line_is_refused(tmp_path, what):
    path, precious = tmp_path / "bttlab-card.shared", tmp_path / "precious"
    precious.write_text("as it was")
    {
        "pipe": lambda: os.mkfifo(path),
        "link": lambda: path.symlink_to(precious),
        "second name": lambda: path.hardlink_to(precious),
        "folder": path.mkdir,
    }[what]()
    with pytest.raises(CardBusyError, match=rf"{path}, the line for the shared card card, cannot be used: it is of"):
        CardLine("card", path)
    assert precious.read_text() == "as it was"


def test_a_card_that_a_user_may_not_open(two_users):
    with shared_folder() as folder:
        path = folder / "bttlab-card.shared"
        path.touch()
        path.chmod(0o660)
        said = run_as_nobody(
            "import sys\nfrom pathlib import Path\nfrom bttlab.card.sharing import CardLine\n"
            "try: CardLine('card', Path(sys.argv[1]))\nexcept Exception as error: print(error)",
            path,
        )
        assert said.endswith("it is for user root and group root alone; ask an administrator to put you into it")


def test_two_users_take_turns(two_users):
    with shared_folder() as folder:
        path = folder / "bttlab-card.shared"
        path.touch()
        path.chmod(0o666)
        mine = CardLine("card", path)
        mine.take(7)
        other = start_as_nobody(TAKE, path)
        assert other.stdout.readline() == "in line\n"
        wait_until(lambda: len(mine.look()) == 2)
        assert str(mine.look()[1]) == f"process {other.pid} of user nobody"
        mine.leave()
        assert other.stdout.readline() == "taken\n"
        other.kill()
        assert not mine.take(7).is_unbroken
        other.communicate()
