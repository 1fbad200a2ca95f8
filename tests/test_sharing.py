"""The keeper of a shared card: the order of its time slices, and what no client can do to another."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from bttlab import keeper
from bttlab.card import CardBusyError, card_lock, sharing
from bttlab.card.sharing import Granted, KeeperClient, shared_file
from bttlab.keeper import serving
from bttlab.util.errors import BttlabError
from fake_trainer import until
from two_users import environment, shared_folder, start_as_nobody

ACQUIRE = """
import sys
from pathlib import Path
from bttlab.card.sharing import KeeperClient
client = KeeperClient("card", Path(sys.argv[1]))
print("ready", flush=True)
client.acquire("a")
print("acquired", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch):
    """Nobody loses a slice because this machine is busy."""
    for seconds in ("OVERDUE_SECONDS", "LOADING_SECONDS"):
        monkeypatch.setattr(keeper, seconds, 600.0)


@pytest.fixture
def path(tmp_path):
    with serving(tmp_path / "card.shared"):
        yield tmp_path / "card.shared"


@contextmanager
def acquiring(path: Path, acquired: bool = True):
    """Another process that has the card, or waits for it."""
    command = [sys.executable, "-c", ACQUIRE, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
    try:
        assert process.stdout.readline() == "ready\n"
        if acquired:
            assert process.stdout.readline() == "acquired\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def order_of(path: Path, overlays: str, first: KeeperClient) -> list[int]:
    """The order in which threads get the card that ask one after the other, while `first` has it."""
    order: list[int] = []

    def acquire(number: int, overlay: str) -> None:
        client = KeeperClient("card", path)
        granted = client.acquire(overlay)
        order.append(number)
        if not granted.has_overlay:
            client.loaded()
        client.release()

    threads = []
    for number, overlay in enumerate(overlays):
        threads.append(threading.Thread(target=acquire, args=(number, overlay)))
        threads[-1].start()
        assert until(lambda: len(first.queue()) == len(threads) + 1)
    first.release()
    for thread in threads:
        thread.join(60)
    return order


# --- the queue


def test_first_come_first_served(path):
    first = KeeperClient("card", path)
    assert first.acquire("a") == Granted(is_unbroken=False, has_overlay=False) and first.is_mine()
    first.loaded()
    assert order_of(path, "aaaaaa", first) == list(range(6))
    assert not first.is_mine() and first.queue() == []
    assert first.acquire("a") == Granted(is_unbroken=False, has_overlay=True)
    first.release()
    assert first.acquire("a").is_unbroken  # nobody had it in between


def test_clients_with_the_overlay_on_the_card_go_first_for_a_while(path, monkeypatch):
    first = KeeperClient("card", path)
    first.acquire("a")
    first.loaded()
    assert order_of(path, "baba", first) == [1, 3, 0, 2]
    first.acquire("b")
    monkeypatch.setattr(keeper, "BATCH_SECONDS", 0.0)
    assert order_of(path, "abab", first) == [0, 1, 2, 3]


def test_a_process_that_is_killed_leaves_the_queue(path):
    mine = KeeperClient("card", path)
    with acquiring(path) as holder, acquiring(path, acquired=False) as waiting:
        assert until(lambda: len(mine.queue()) == 2)
        assert [(w.process, w.has_card) for w in mine.queue()] == [(holder.pid, True), (waiting.pid, False)]
        waiting.kill()
        assert until(lambda: [w.process for w in mine.queue()] == [holder.pid])
        holder.kill()
        mine.acquire("a")
        assert mine.is_mine()


def test_a_stopped_process_loses_its_slice_and_sees_it(path, monkeypatch):
    monkeypatch.setattr(keeper, "OVERDUE_SECONDS", 0.2)
    monkeypatch.setattr(keeper, "LOADING_SECONDS", 0.2)
    mine = KeeperClient("card", path)
    with acquiring(path) as holder:
        os.kill(holder.pid, signal.SIGSTOP)
        mine.acquire("a")
        assert mine.is_mine()
        other = KeeperClient("card", path)
        other.acquire("a")
        assert other.is_mine() and not mine.is_mine()
        mine.release()  # takes nothing from the next
        assert other.is_mine() and [w.process for w in other.queue()] == [os.getpid()]


def test_an_interrupt_leaves_the_queue(path, monkeypatch):
    first, second = KeeperClient("card", path), KeeperClient("card", path)
    first.acquire("a")
    monkeypatch.setattr(second, "_receive", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        second.acquire("a")
    assert until(lambda: len(first.queue()) == 1)


# --- a keeper that cannot be believed


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b'{"granted": 2}', r"contradicts this process: it answers \{'granted': 2\} to request 1"),
        (b'{"lost": 1}', "contradicts this process"),
        (b'{"queue": []}', "contradicts this process"),
        (b"[1]", r"cannot be understood \(\[1\]\)"),
        (b"\xff{", "cannot be understood"),
        (b"", "has ended"),
    ],
)
def test_an_answer_that_contradicts_a_request_ends_the_run(tmp_path, answer, message):
    path = tmp_path / "card.shared"
    with keeper.listen(path) as listener:
        thread = threading.Thread(target=lambda: _answer(listener, answer))
        thread.start()
        with pytest.raises(CardBusyError, match=rf"the keeper of the shared card card, {path}, {message}"):
            KeeperClient("card", path).acquire("a")
        thread.join()


def _answer(listener: socket.socket, answer: bytes) -> None:
    connection, _ = listener.accept()
    connection.recv(1 << 10)
    if answer:
        connection.send(answer)
        connection.recv(1 << 10)
    connection.close()


def test_a_keeper_that_ends_in_a_slice(tmp_path):
    path = tmp_path / "card.shared"
    with serving(path):
        client = KeeperClient("card", path)
        client.acquire("a")
    with pytest.raises(CardBusyError, match=r"has ended, .*\(docs/hosts.md\), then resume"):
        client.is_mine()
    with pytest.raises(CardBusyError, match="cannot be reached"):
        client.acquire("a")
    with serving(path):
        client.acquire("a")
        assert client.is_mine()


# --- clients that cannot be believed


def test_packets_of_any_bytes_disturb_no_other_client(path):
    mine = KeeperClient("card", path)
    mine.acquire("a")
    packets = [b"", b"{", b"[]", b"{}", b"\xff" * 60_000, b"[" * 60_000, b'{"acquire": "x", "overlay": 1}']
    packets += [b'{"acquire": 1e999, "overlay": ""}', b'{"release": 1}', b'{"loaded": 1}', b'{"acquire": 1}']
    for packet in [*packets, *(os.urandom(n) for n in range(1, 200))]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(str(path))
            with contextlib.suppress(OSError):
                connection.send(packet)
    silent = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(20)]
    for connection in silent:  # asks, and never reads the answers
        connection.connect(str(path))
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            for _ in range(500):
                connection.send(b'{"queue": 0}')
    assert mine.is_mine() and [w.process for w in mine.queue()] == [os.getpid()]
    for connection in silent:
        connection.close()


def test_a_user_has_a_bounded_number_of_clients(path, monkeypatch):
    monkeypatch.setattr(keeper, "MOST_CLIENTS", 2)
    clients = [KeeperClient("card", path) for _ in range(3)]
    clients[0].acquire("a")
    with clients[1]._connect(), pytest.raises(CardBusyError, match=r"or has \d+ clients of this user already"):
        clients[2].acquire("a")


@pytest.mark.long
def test_two_users_take_turns_however_many_processes_each_has(two_users):
    with shared_folder() as folder, serving(folder / "card.shared", mode=0o666) as path:
        mine = KeeperClient("card", path)
        mine.acquire("a")
        mine.loaded()
        others = [start_as_nobody(ACQUIRE, path) for _ in range(2)]
        for other in others:
            assert other.stdout.readline() == "ready\n"
        assert until(lambda: len(mine.queue()) == 3)
        again = KeeperClient("card", path)
        thread = threading.Thread(target=again.acquire, args=("a",))
        thread.start()
        assert until(lambda: len(mine.queue()) == 4)
        assert {str(w) for w in mine.queue()[1:3]} == {f"process {other.pid} of user nobody" for other in others}
        mine.release()
        holder = next(other for other in others if mine.queue()[0].process == other.pid)
        assert [w.process for w in mine.queue()[:2]] == [holder.pid, os.getpid()]  # before nobody's second process
        for other in (holder, *others):
            other.kill()
            other.communicate()
        thread.join(60)
        assert again.is_mine()


@pytest.mark.long
def test_a_user_who_may_not_open_the_card_may_not_connect(two_users):
    script = ACQUIRE.replace('client.acquire("a")', "try: client.acquire('a')\nexcept Exception as error: print(error)")
    with shared_folder(0o755) as folder, serving(folder / "card.shared", mode=0o660) as path:
        process = start_as_nobody(script, path)
        said, _ = process.communicate(timeout=120)
        assert "is for user root and group root only: ask an administrator to add you to the group" in said


# --- the command, and what declares a card shared


def test_the_command_gives_the_socket_the_rights_of_the_device(tmp_path):
    node, path = tmp_path / "renderD128", tmp_path / "card.shared"
    node.touch()
    node.chmod(0o640)
    command = [sys.executable, "-m", "bttlab.keeper", str(path), "--device", str(node)]
    process = subprocess.Popen(command, env=environment())
    try:
        assert until(lambda: path.exists() and stat.S_IMODE(path.lstat().st_mode) == 0o640)
        client = KeeperClient("card", path)
        client.acquire("a")
        again = subprocess.run(command, env=environment(), capture_output=True, text=True)
        assert again.returncode == 2 and "has a keeper already" in again.stderr and client.is_mine()
    finally:
        process.terminate()
    assert process.wait(60) == 0 and not path.exists()


def test_a_path_too_long_for_a_socket(tmp_path):
    path = tmp_path / ("a" * 108)
    done = subprocess.run(
        [sys.executable, "-m", "bttlab.keeper", str(path)], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 2 and f"{path} has more than 107 bytes" in done.stderr


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
    with pytest.raises(CardBusyError, match="cannot be reached"):  # a file is no keeper
        KeeperClient("card", path).acquire("a")
    monkeypatch.setenv(sharing.FOLDER_VARIABLE, str(path))
    with pytest.raises(BttlabError, match=r"BTTLAB_SHARED_EMULATED is .*, which is no folder: create it, or unset"):
        shared_file("emulated_u50_0", True)
