"""The keeper of a shared card: a service that lends a card to one process after the other, in time slices.

    python -I lib/bttlab/card/keeper.py 0000:3b:00.1

A socket unit of systemd starts it as a user of its own (docs/hosts.md). It is run by its path and imports nothing of
the lab, so it needs no pynq. The system names the process and user of each connection (SO_PEERCRED). A connection is a
request for one time slice. Messages are JSON objects, one per packet (SOCK_SEQPACKET):

    client  {"client": NAME}               asks for a slice
    keeper  {"is_unbroken": …}             the slice begins; true: no other client had the card since its last one
    client  {"loading": true}              it loads its overlay first, which takes seconds
    client  {"hung": true}                 its kernel did not end within its time limit
    client  closes                         the slice ends
    keeper  closes                         the slice is lost
    keeper  {"hung": WHO}, then closes     the card needs a reset
    client  {"queue": true}, keeper {"queue": [[WHO, HAS_CARD], …]}
"""

import argparse
import json
import os
import pwd
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

SLICE_SECONDS = 0.3
OVERDUE_SECONDS = 1.0  # a slice and the end of its call: then a client is cut off if others wait
LOADING_SECONDS = 20.0  # the same for a slice in which an overlay is loaded
SHORTEST_SECONDS = 0.05  # that a slice counts at least: after it others load program and parameters again
RETURN_SECONDS = 0.01  # for which the card waits for a user who has had it less than those who wait
CREDIT_SECONDS = 5.0  # most card time by which a user who comes back may be behind those present
PROBE_SECONDS = 60.0
NO_ANSWER = 3  # exit code of the probe
MOST_BYTES = 1 << 16  # of a packet
MOST_CLIENTS = 128  # of a user
MOST_CONNECTIONS = 64  # of a user in a second: honest clients open one for each slice
FIRST_DESCRIPTOR = 3  # of systemd's sockets


@dataclass(eq=False)
class _Client:
    connection: socket.socket
    process: int
    user: int
    name: str = ""
    since: float = 0.0  # that it waits or has the card, in seconds of time.monotonic
    end: float = 0.0  # of its slice

    def __str__(self) -> str:
        try:
            return f"process {self.process} of user {pwd.getpwuid(self.user).pw_name}"
        except KeyError:
            return f"process {self.process} of user {self.user}"


class Keeper:
    """Lends one card to the user with the least card time, and of one user's clients to the one that waits longest.

    `probe` is a command that uses the card as a client of this keeper; its exit code is NO_ANSWER if the card hangs.
    """

    def __init__(self, listener: socket.socket, probe: Sequence[str]):
        self._listener, self._command = listener, probe
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._clients: dict[object, _Client] = {}  # by socket
        self._waiting: list[_Client] = []
        self._holder: _Client | None = None
        self._last = (0, "")  # process and name of the client that had the card last
        self._free, self._user = 0.0, -1  # since when, and its user
        self._used: defaultdict[int, float] = defaultdict(float)  # card time of each user, in seconds
        self._second, self._opened = 0, defaultdict(int)  # connections of each user in this second of time.monotonic
        self._probe: subprocess.Popen | None = None
        self._blamed: _Client | None = None  # whose report the probe checks
        self._hung = ""  # the client whose kernel did not end

    def serve(self) -> None:
        while True:
            timeout = 0.1 if self._probe is not None else None
            if self._order():
                end = self._free + RETURN_SECONDS if self._holder is None else self._holder.end
                timeout = max(0.0, end - time.monotonic())
            for key, _ in self._selector.select(timeout):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._clients:  # not dropped a moment ago
                    self._receive(self._clients[key.fileobj])
            self._check_probe()
            self._schedule()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # no descriptor left, for now
            return time.sleep(0.1)
        connection.setblocking(False)
        process, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        second = int(time.monotonic())
        self._opened = self._opened if second == self._second else defaultdict(int)
        self._second = second
        self._opened[user] += 1
        open_now = sum(other.user == user for other in self._clients.values())
        if open_now >= MOST_CLIENTS or self._opened[user] > MOST_CONNECTIONS:
            return connection.close()
        self._clients[connection] = _Client(connection, process, user)
        self._selector.register(connection, selectors.EVENT_READ)

    def _receive(self, client: _Client) -> None:
        try:
            message = json.loads(client.connection.recv(MOST_BYTES) or "{}")
            if "queue" in message:
                clients = [self._holder] * (self._holder is not None) + self._order()
                queue = [(str(other), other is self._holder) for other in clients]
                self._send(client, {"hung": self._hung} if self._hung else {"queue": queue})
            elif "client" in message and not client.since:
                present = [self._used[other.user] for other in (*self._waiting, self._holder) if other is not None]
                self._used[client.user] = max(self._used[client.user], min(present, default=0.0) - CREDIT_SECONDS)
                client.name, client.since = str(message["client"])[:64], time.monotonic()
                self._waiting.append(client)
            elif "loading" in message and client is self._holder:
                client.end = client.since + LOADING_SECONDS
            elif "hung" in message and client is self._holder and self._probe is None:
                self._drop(client)
                self._blamed, self._probe = client, subprocess.Popen(self._command)
            else:  # it has ended, or says what it may not
                self._drop(client, is_rude=bool(message))
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)
        except (ValueError, TypeError, RecursionError):
            self._drop(client, is_rude=True)

    def _check_probe(self) -> None:
        """Believe that the card hangs if the probe has no answer from it, either."""
        if self._probe is None or self._blamed is None:
            return
        code, seconds = self._probe.poll(), time.monotonic() - self._blamed.end
        if code is None and seconds < PROBE_SECONDS:
            return
        self._probe.kill()
        self._used[self._blamed.user] += max(0.0, seconds)
        self._hung = str(self._blamed) if code in (None, NO_ANSWER) else ""
        print(f"keeper: {self._blamed} says that the card hangs; exit code of the probe: {code}", file=sys.stderr)
        self._probe = None

    def _order(self) -> list[_Client]:
        """Return the clients that may have the card next, in order; during a probe that of the probe alone."""
        if self._probe is not None:
            return [client for client in self._waiting if client.process == self._probe.pid]
        return sorted(self._waiting, key=lambda client: (self._used[client.user], client.since))

    def _schedule(self) -> None:
        """Give the card to the next client, if it is free or overdue."""
        if self._hung:
            for client in [*self._waiting, *[self._holder] * (self._holder is not None)]:
                self._send(client, {"hung": self._hung})
                self._drop(client)
        elif self._holder is not None and self._order() and time.monotonic() >= self._holder.end:
            self._drop(self._holder)  # before anyone else has the card
        while self._holder is None and (order := self._order()):
            returns = self._used[order[0].user] - self._used[self._user] > SLICE_SECONDS
            if returns and time.monotonic() < self._free + RETURN_SECONDS and self._probe is None:
                return
            client = self._holder = order[0]
            self._waiting.remove(client)
            client.since = time.monotonic()
            client.end = client.since + OVERDUE_SECONDS
            is_unbroken, self._last = self._last == (client.process, client.name), (client.process, client.name)
            self._send(client, {"is_unbroken": is_unbroken})

    def _send(self, client: _Client, message: dict) -> None:
        try:
            client.connection.send(json.dumps(message).encode())
        except OSError:  # it is gone, or does not read: then it is as good as gone
            self._drop(client)

    def _drop(self, client: _Client, is_rude: bool = False) -> None:
        if self._clients.pop(client.connection, None) is not None:
            self._selector.unregister(client.connection)
        client.connection.close()
        if client is self._holder:
            self._holder, self._user = None, client.user
            client.end = self._free = time.monotonic()
            least = SLICE_SECONDS if is_rude else SHORTEST_SECONDS
            self._used[client.user] += max(client.end - client.since, least)
        elif client in self._waiting:
            self._waiting.remove(client)


def main() -> None:
    """Run the command line; the socket is the first that systemd passes (LISTEN_FDS)."""
    parser = argparse.ArgumentParser(description="Lend a card in time slices, at the socket that systemd passes.")
    parser.add_argument("card", help="the card's PCIe address, as 0000:3b:00.1")
    card = parser.parse_args().card
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        parser.error("there is no socket: its socket unit starts it, docs/hosts.md")
    if os.geteuid() == 0:
        parser.error("it does not run as root: give its service unit a user")
    Keeper(socket.socket(fileno=FIRST_DESCRIPTOR), [sys.executable, "-m", "bttlab.card.probe", card]).serve()


if __name__ == "__main__":
    main()
