"""The keeper of a shared card: the order of its time slices, and what no client can do to another."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from bttlab.card import CardBusyError, EmulatedU50, keeper, sharing
from bttlab.card.sharing import CardLostError, SharedCard, shared
from fake_trainer import until
from keepers import keeping
from two_users import environment, run_as_nobody, shared_folder, start_as_nobody

CARD = SimpleNamespace(_info=SimpleNamespace(mPciSlot=0x3B01))  # bus 3b, device 00, function 1
HANGS = (sys.executable, "-c", f"raise SystemExit({keeper.NO_ANSWER})")
# A client without the lab: it asks for slices, keeps each for some seconds, and says which it has got.
CLIENT = """
import json, socket, sys, time
path, seconds, count, event = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
for number in range(count):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(path)
    except PermissionError:
        sys.exit("may not connect")
    connection.send(b'{"client": "a"}')
    print("asked", flush=True)
    answer = json.loads(connection.recv(1 << 16) or "{}")
    print("got" if "is_unbroken" in answer else answer, time.monotonic(), flush=True)
    time.sleep(seconds)
    for name in event:
        connection.send(json.dumps({name: True}).encode())
        connection.recv(1 << 16)
    connection.close()
"""

START = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
os.execv(sys.executable, [sys.executable, "-I", *sys.argv[2:]])
"""


@pytest.fixture
def slow_machine(monkeypatch):
    """Nobody loses a slice because this machine is busy."""
    for seconds in ("OVERDUE_SECONDS", "LOADING_SECONDS"):
        monkeypatch.setattr(keeper, seconds, 600.0)


@pytest.fixture
def path(tmp_path, slow_machine):
    with keeping(tmp_path / "card.shared") as path:
        yield path


def client(path: Path) -> SharedCard:
    return SharedCard(CARD, path)


def has_card(one: SharedCard) -> bool:
    try:
        one.check()
    except CardLostError:
        return False
    return True


@contextmanager
def another(path: Path, seconds: float = 600.0, got: bool = True):
    """Another process that has the card, or waits for it."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(path), str(seconds), "1"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout.readline() == "asked\n"
        if got:
            assert process.stdout.readline().startswith("got ")
        yield process
    finally:
        process.kill()
        process.communicate()


# --- the queue


def test_first_come_first_served(path):
    first, order, threads = client(path), [], []
    assert not first.acquire() and has_card(first)

    def acquire(number: int) -> None:
        one = client(path)
        one.acquire()
        order.append(number)
        one.release()

    for number in range(5):
        threads.append(threading.Thread(target=acquire, args=(number,)))
        threads[-1].start()
        assert until(lambda: len(first.queue()) == len(threads) + 1)
    assert first.queue()[0][1] and not any(has for _, has in first.queue()[1:])
    first.release()
    for thread in threads:
        thread.join(60)
    assert order == list(range(5)) and not has_card(first) and first.queue() == []
    assert not first.acquire()
    first.release()
    assert first.acquire()  # nobody had it in between


def test_a_process_that_is_killed_leaves_the_queue(path):
    mine = client(path)
    with another(path) as holder, another(path, got=False) as waiting:
        assert until(lambda: len(mine.queue()) == 2)
        names = [f"process {one.pid} of user {Path(f'/proc/{one.pid}').owner()}" for one in (holder, waiting)]
        assert mine.queue() == [(names[0], True), (names[1], False)]
        waiting.kill()
        assert until(lambda: mine.queue() == [(names[0], True)])
        holder.kill()
        mine.acquire()
        assert has_card(mine)


def test_a_holder_that_never_answers_is_cut_off_after_its_slice(tmp_path):
    with keeping(tmp_path / "card.shared") as path, another(path) as holder:
        os.kill(holder.pid, signal.SIGSTOP)
        begin, mine = time.monotonic(), client(path)
        mine.acquire()
        assert time.monotonic() - begin < 10 * keeper.OVERDUE_SECONDS  # before: 3 s, and a minute "while it loads"
        assert has_card(mine) and len(mine.queue()) == 1
        other = client(path)
        other.acquire()
        assert has_card(other) and not has_card(mine)
        mine.release()  # takes nothing from the next
        assert has_card(other)


def test_a_slice_in_which_an_overlay_is_loaded_is_longer(tmp_path, monkeypatch):
    monkeypatch.setattr(keeper, "OVERDUE_SECONDS", 0.0)
    with keeping(tmp_path / "card.shared") as path:
        mine = client(path)
        mine.acquire()
        mine.report("loading")
        assert len(mine.queue()) == 1  # the keeper has read it
        thread = threading.Thread(target=client(path).acquire)
        thread.start()
        assert until(lambda: len(mine.queue()) == 2)
        time.sleep(0.2)
        assert has_card(mine)
        mine.release()
        thread.join(60)


# --- a keeper that ends or is stuck


def test_a_keeper_that_ends_costs_the_slice(tmp_path, slow_machine):
    path = tmp_path / "card.shared"
    with keeping(path):
        mine = client(path)
        mine.acquire()
    assert not has_card(mine)
    thread = threading.Thread(target=mine.acquire)
    thread.start()  # before the keeper is there again
    time.sleep(0.3)
    with keeping(path):
        thread.join(60)
        assert has_card(mine)


def test_a_keeper_that_is_not_there_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "ANSWER_SECONDS", 0.3)
    with pytest.raises(CardBusyError, match=r"keeper of the shared card 0000:3b:00.1, .*cannot be reached \(No such"):
        client(tmp_path / "card.shared").acquire()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:  # accepts, and never answers
        listener.bind(str(tmp_path / "card.shared"))
        listener.listen()
        with pytest.raises(CardBusyError, match="does not answer"):
            client(tmp_path / "card.shared").acquire()


# --- a card that hangs


def test_a_report_that_the_card_hangs_is_believed_if_the_card_does_not_answer(tmp_path, slow_machine):
    with keeping(tmp_path / "card.shared", HANGS) as path, another(path) as waiting:
        whose = f"process {waiting.pid} of user {Path(f'/proc/{waiting.pid}').owner()}"
        waiting.kill()
        process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(path), "0", "1", "hung"], stdout=subprocess.DEVNULL, env=environment()
        )
        whose = whose.replace(str(waiting.pid), str(process.pid))
        process.wait(60)
        mine = client(path)
        with pytest.raises(CardBusyError, match=f"since a kernel of {whose} did not end: .*xbutil reset"):
            for _ in range(2):
                mine.acquire()
                mine.release()
                time.sleep(2)
        with pytest.raises(CardBusyError, match=whose):
            mine.queue()


def test_a_report_is_not_believed_if_the_card_answers_the_probe(tmp_path, slow_machine):
    """The probe is a client: it gets the card before all others, and its user's time is not that of others."""
    asks = f"import sys; sys.argv[1:] = [{str(tmp_path / 'card.shared')!r}, '0.5', '1']\n{CLIENT}"
    with keeping(tmp_path / "card.shared", (sys.executable, "-c", asks)) as path:
        liar, mine = client(path), client(path)
        liar.acquire()
        thread = threading.Thread(target=mine.acquire)
        thread.start()
        assert until(lambda: len(liar.queue()) == 2)
        liar.report("hung")
        assert until(lambda: not has_card(liar))
        assert until(lambda: any(str(os.getpid()) not in who and has for who, has in liar.queue()))  # the probe
        thread.join(60)
        assert has_card(mine)
        mine.report("client")  # no event: its connection is closed
        assert until(lambda: not has_card(mine))


# --- clients that cannot be believed


def test_packets_of_any_bytes_disturb_no_other_client(path, monkeypatch):
    monkeypatch.setattr(keeper, "MOST_CONNECTIONS", 10**6)
    mine = client(path)
    mine.acquire()
    packets = [b"", b"{", b"[]", b"{}", b"1", b"null", b"\xff" * 60_000, b"[" * 60_000, b'{"client": {}}']
    packets += [b'{"client": 1e999}', b'{"loading": 1}', b'{"hung": 1}', b'{"queue": 1, "client": 1}']
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
    assert has_card(mine) and until(lambda: len(mine.queue()) == 1)
    for connection in silent:
        connection.close()


@pytest.mark.parametrize(("end", "least"), [(b"\xff{", 0.3), (b'{"asks": 1}', 0.3), (None, 0.05)])
def test_short_slices_and_rubbish_give_nobody_more_turns(tmp_path, end, least, monkeypatch):
    """Two users wait, one of whom ends slices at once: the other is next, and not after hundreds of these."""
    monkeypatch.setattr(keeper.time, "monotonic", lambda: 100.0)  # slices take no time at all
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "card.shared"))
        listener.listen()
        one = keeper.Keeper(listener, HANGS)

        def waits(user: int) -> socket.socket:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.connect(str(tmp_path / "card.shared"))
            connection.send(b'{"client": "a"}')
            one._accept()
            client = list(one._clients.values())[-1]
            client.user = user
            one._receive(client)
            return connection

        hostile = waits(1)
        one._schedule()
        honest = waits(2)
        assert one._holder.user == 1 and [client.user for client in one._order()] == [2]
        for _ in range(3):
            if end is not None:
                hostile.send(end)
            before = one._used[1]
            if end is None:
                hostile.close()
            one._receive(one._holder)
            assert one._used[1] - before == pytest.approx(least) and one._holder is None
            hostile = waits(1)
            assert [client.user for client in one._order()] == [2, 1]
            one._used[2] = one._used[1] + 0.01  # it had its slice
            honest, _ = waits(2), honest.close()
            one._receive(next(client for client in one._waiting if client.user == 2))
            one._schedule()
            assert one._holder.user == 1
        hostile.close()
        honest.close()


@pytest.mark.long
def test_a_user_opens_a_bounded_number_of_connections_a_second(two_users, monkeypatch, slow_machine):
    monkeypatch.setattr(keeper, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(keeper.time, "monotonic", lambda: 7.0)  # one long second
    with shared_folder(0o755) as folder, keeping(folder / "card.shared") as path:
        path.chmod(0o666)
        mine = client(path)
        asked = []
        for _ in range(5):
            with contextlib.suppress(OSError), mine._connect({"queue": True}) as connection:
                asked.append(bool(mine._receive(connection)))
        assert sum(asked) == 3
        count = "import json, sys; sys.argv[2:] = ['0', '1']\n" + CLIENT
        assert run_as_nobody(count, path).splitlines()[1].startswith("got ")  # of another user


def test_who_asks_for_the_queue_too_often_waits_for_the_next_second(path, monkeypatch):
    monkeypatch.setattr(keeper, "MOST_CONNECTIONS", 1)
    assert [client(path).queue() for _ in range(3)] == [[]] * 3


def test_a_user_has_a_bounded_number_of_clients(path, monkeypatch):
    monkeypatch.setattr(keeper, "MOST_CLIENTS", 2)
    monkeypatch.setattr(sharing, "ANSWER_SECONDS", 0.3)
    clients = [client(path) for _ in range(3)]
    clients[0].acquire()
    with clients[1]._connect({"client": "b"}), pytest.raises(CardBusyError, match=r"or has \d+ clients of this user"):
        clients[2].acquire()


@pytest.mark.long
def test_the_user_with_the_least_card_time_is_next(two_users, slow_machine):
    """Before, two users took turns: one with slices of a minute, in which it 'loads', the other with short ones."""
    with shared_folder() as folder, keeping(folder / "card.shared", mode=0o666) as path:
        greedy = start_as_nobody(CLIENT, path, 0.5, 3)
        mine, slices = client(path), []
        for line in ("asked", "got"):
            assert greedy.stdout.readline().startswith(line)
        while len(slices) < 30:
            mine.acquire()
            begin = time.monotonic()
            time.sleep(0.05)
            slices.append((begin, time.monotonic()))
            mine.release()
        times = [float(line.split()[1]) for line in greedy.communicate(timeout=60)[0].splitlines() if "got" in line]
        before = [end - begin for begin, end in slices if begin < times[1]]
        # Turns would give it a second slice after one of mine. It waits until I had what its first one took, at least
        # 0.5 s; half of that is for what a busy machine adds to its slice or mine.
        assert len(times) >= 2 and len(before) > 1 and sum(before) > 0.25


@pytest.mark.long
def test_a_user_who_may_not_open_the_card_may_not_connect(two_users):
    with shared_folder(0o755) as folder, keeping(folder / "card.shared", mode=0o660) as path:
        process = start_as_nobody(CLIENT, path, 0, 1)
        assert "may not connect" in process.communicate(timeout=120)[1]


# --- the service, and what declares a card shared


@pytest.mark.long
def test_the_service_runs_by_its_path_at_a_socket_of_systemd_s_and_not_as_root(two_users):
    """As `systemd-socket-activate` starts it: without pynq, as another user, with the socket as descriptor 3."""
    script = Path(keeper.__file__).read_text()
    with shared_folder() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        (folder / "keeper.py").write_text(script)
        (folder / "pynq.py").write_text("raise SystemExit('the keeper imports pynq')")
        listener.bind(str(folder / "card.shared"))
        (folder / "card.shared").chmod(0o666)
        listener.listen()
        command = ["/usr/bin/python3", "-c", START, str(listener.fileno()), folder / "keeper.py", "CARD"]
        options = {"pass_fds": [listener.fileno()], "env": {"PATH": os.environ["PATH"]}, "text": True}
        as_root = subprocess.run(command, stderr=subprocess.PIPE, **options)
        assert as_root.returncode == 2 and "does not run as root" in as_root.stderr
        process = subprocess.Popen(command, user=65534, group=65534, extra_groups=[], **options)
        try:
            mine = client(folder / "card.shared")
            assert not mine.acquire() and has_card(mine)
        finally:
            process.terminate()
            process.wait(60)
        alone = subprocess.run(["/usr/bin/python3", "-I", *command[4:]], stderr=subprocess.PIPE, **options)
        assert alone.returncode == 2 and "its socket unit starts it" in alone.stderr


def test_the_socket_of_the_keeper_declares_a_card_shared(tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "FOLDER", tmp_path)
    assert shared(CARD) is None and shared(EmulatedU50()) is None
    (tmp_path / "bttlab-0000:3b:00.1.shared").touch()
    assert shared(CARD).path == tmp_path / "bttlab-0000:3b:00.1.shared" and shared(EmulatedU50()) is None
