"""The keeper of a shared card: a service that hands out time slices of the card, one process at a time.

    python -m bttlab.keeper /run/bttlab/bttlab-0000-3b-00-1.shared --device /dev/dri/renderD128

It listens at a Unix socket. Every process that can open the socket can use the card; owner, group and mode are those
of the card's device node. The system tells the keeper the process and the user of each client (SO_PEERCRED); what a
client says about itself counts for nothing. A client that ends or is killed is out of the queue at once. A client that
keeps a slice too long loses it.

Messages are JSON objects, one for each packet (SOCK_SEQPACKET). A client sends {"acquire": N, "overlay": KEY} and waits
for {"granted": N, "is_unbroken": …, "has_overlay": …}; then {"loaded": N} when it has loaded the overlay, and
{"release": N}. It gets {"lost": N} before anyone else gets its card. {"queue": 0} is answered with {"queue": […]}.
After {"hung": N}, a kernel that did not end, every client gets {"hung": PROCESS} until the keeper is started again.
"""

import argparse
import contextlib
import grp
import json
import os
import selectors
import signal
import socket
import stat
import struct
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SLICE_SECONDS = 0.3
OVERDUE_SECONDS = 3.0  # after which a client loses a slice, whatever happens
LOADING_SECONDS = 60.0  # the same for a slice in which an overlay is loaded
BATCH_SECONDS = 10.0  # for which clients with the overlay on the card go before the others
LONGEST_PATH = 107  # bytes of a Unix socket's address in Linux, but for the zero that ends it
MOST_BYTES = 1 << 16  # of a packet
MOST_CLIENTS = 128  # of a user
_CREDENTIALS = struct.Struct("3i")  # process, user, group


@dataclass(eq=False)
class _Client:
    connection: socket.socket
    process: int
    user: int
    number: int = 0  # of its request
    overlay: str = ""
    since: float = 0.0  # that it waits or has the card, in seconds of time.monotonic


class Keeper:
    """Hands out time slices of one card.

    The next slice goes to a client that needs the overlay on the card, for BATCH_SECONDS at most; among equals to the
    user whose last slice is longest ago, then to the client that has waited longest.

    Parameters
    ----------
    listener : socket.socket
        A listening Unix socket of packets.
    """

    def __init__(self, listener: socket.socket):
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._wake, self._woken = socket.socketpair()  # another thread ends `serve`
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._clients: dict[socket.socket, _Client] = {}
        self._waiting: list[_Client] = []
        self._holder: _Client | None = None
        self._last: _Client | None = None  # had the card last
        self._overdue: set[_Client] = set()  # lost their slice, and have not asked since
        self._hung = 0  # the process whose kernel did not end
        self._overlay, self._loaded = "", 0.0  # on the card: which, and since when
        self._served: defaultdict[int, float] = defaultdict(float)  # each user's last slice

    def serve(self) -> None:
        """Serve clients until `close`."""
        while True:
            timeout = None
            if self._holder is not None and self._waiting:
                timeout = max(0.0, self._end - time.monotonic())
            for key, _ in self._selector.select(timeout):
                if key.fileobj is self._woken:
                    return self._close()
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._clients:  # not dropped a moment ago
                    self._receive(self._clients[key.fileobj])
            self._schedule()

    def close(self) -> None:
        """End `serve`, in whichever thread it runs."""
        self._wake.send(b"x")

    def _close(self) -> None:
        for client in list(self._clients.values()):
            self._drop(client)
        for end in (self._listener, self._wake, self._woken, self._selector):
            end.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # no descriptor left, for now
            return time.sleep(0.1)
        connection.setblocking(False)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        process, user, _ = _CREDENTIALS.unpack(credentials)
        client = _Client(connection, process, user)
        if sum(other.user == user for other in self._clients.values()) >= MOST_CLIENTS:
            return connection.close()
        self._clients[connection] = client
        self._selector.register(connection, selectors.EVENT_READ)

    def _receive(self, client: _Client) -> None:
        try:
            data = client.connection.recv(MOST_BYTES)
            [(verb, number), *more] = json.loads(data).items() if data else [("end", 0)]
            number, rest = int(number), dict(more)
            if verb == "acquire":
                self._release(client)
                self._overdue.discard(client)
                client.number, client.overlay, client.since = number, str(rest["overlay"])[:64], time.monotonic()
                self._waiting.append(client)
            elif verb == "loaded" and client is self._holder and number == client.number:
                self._overlay, self._loaded = client.overlay, time.monotonic()
                client.since = self._loaded
            elif verb == "release" and number == client.number:
                self._release(client)
            elif verb == "hung" and number == client.number and client in (self._holder, *self._overdue):
                self._hung = client.process
            elif verb == "queue":
                self._send(client, {"hung": self._hung} if self._hung else {"queue": self._queue()})
            elif verb not in ("loaded", "release", "hung"):  # of a slice that was lost meanwhile: nothing
                self._drop(client)
        except BlockingIOError:
            pass
        except (OSError, ArithmeticError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
            self._drop(client)

    @property
    def _end(self) -> float:
        """Time at which the holder loses its slice."""
        is_loaded = self._holder.overlay == self._overlay
        return self._holder.since + (OVERDUE_SECONDS if is_loaded else LOADING_SECONDS)

    def _queue(self) -> list[tuple[int, float, bool]]:
        """Process, since when, and whether it has the card; in the order in which they get it."""
        holder = [] if self._holder is None else [(self._holder.process, self._holder.since, True)]
        return holder + [(client.process, client.since, False) for client in self._order()]

    def _order(self) -> list[_Client]:
        def waits_for_batch(client: _Client) -> bool:
            return is_batch and client.overlay != self._overlay

        first = min((client.since for client in self._waiting), default=0.0)
        is_batch = time.monotonic() - max(first, self._loaded) < BATCH_SECONDS
        return sorted(self._waiting, key=lambda c: (waits_for_batch(c), self._served[c.user], c.since))

    def _schedule(self) -> None:
        """Give the card to the next client, if it is free or overdue."""
        holder = self._holder
        if self._hung:
            for client in [*self._waiting, *([] if holder is None else [holder])]:
                self._release(client)
                self._send(client, {"hung": self._hung})
        elif holder is not None and self._waiting and time.monotonic() >= self._end:
            self._send(holder, {"lost": holder.number})  # before anyone else has the card
            self._release(holder)
            self._overdue.add(holder)
        while self._holder is None and self._waiting:
            client = self._order()[0]
            self._waiting.remove(client)
            is_unbroken, has_overlay = client is self._last, client.overlay == self._overlay
            self._holder = self._last = client
            client.since = self._served[client.user] = time.monotonic()
            self._overlay = self._overlay if has_overlay else ""  # until it is loaded
            self._send(client, {"granted": client.number, "is_unbroken": is_unbroken, "has_overlay": has_overlay})

    def _release(self, client: _Client) -> None:
        if client is self._holder:
            self._holder = None
        elif client in self._waiting:
            self._waiting.remove(client)

    def _send(self, client: _Client, message: dict) -> None:
        try:
            client.connection.send(json.dumps(message).encode())
        except OSError:  # it is gone, or does not read: then it is as good as gone
            self._drop(client)

    def _drop(self, client: _Client) -> None:
        if self._clients.pop(client.connection, None) is not None:
            self._selector.unregister(client.connection)
        client.connection.close()
        self._overdue.discard(client)
        self._release(client)


def listen(path: Path, owner: int = -1, group: int = -1, mode: int = 0o600) -> socket.socket:
    """Listen at a Unix socket with an owner, a group and a mode.

    Raises
    ------
    OSError
        If the path is taken, by a keeper or by another file, has more than 107 bytes, or cannot be made.
    """
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise OSError(
            f"{path} has more than {LONGEST_PATH} bytes, the most in the address of a Unix socket: shorten it"
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        if path.is_socket():
            with (
                socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe,
                contextlib.suppress(ConnectionRefusedError),
            ):
                probe.connect(str(path))
                raise OSError(f"{path} has a keeper already")
            path.unlink()  # of a keeper that was killed
        before = os.umask(0o777)  # nobody connects before owner and mode are right
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        os.chown(path, owner, group, follow_symlinks=False)
        path.chmod(mode)
        listener.listen(socket.SOMAXCONN)
        return listener
    except BaseException:
        listener.close()
        raise


@contextlib.contextmanager
def serving(path: Path, mode: int = 0o600) -> Iterator[Path]:
    """Keep a card in a thread of this process, with a socket as `listen` makes it; yields its path."""
    keeper = Keeper(listen(path, mode=mode))
    thread = threading.Thread(target=keeper.serve, name="bttlab-keeper", daemon=True)
    thread.start()
    try:
        yield path
    finally:
        keeper.close()
        thread.join()
        path.unlink(missing_ok=True)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bttlab.keeper", description="Hand out time slices of a card.")
    parser.add_argument("socket", type=Path, help="where to listen: the card's file, docs/hosts.md")
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--device", type=Path, help="the card's node, as /dev/dri/renderD128: who may open it may connect")
    who.add_argument("--group", help="a group whose members may connect")
    who.add_argument("--everyone", action="store_true", help="all users may connect: for an emulated card")
    options = parser.parse_args()
    owner, group, mode = -1, -1, 0o666 if options.everyone else 0o600
    try:
        if options.device:
            node = options.device.stat()
            owner, group, mode = node.st_uid, node.st_gid, stat.S_IMODE(node.st_mode) & 0o666
        elif options.group:
            group, mode = grp.getgrnam(options.group).gr_gid, 0o660
        keeper = Keeper(listen(options.socket, owner, group, mode))
    except (OSError, KeyError) as error:
        print(f"bttlab.keeper: {error}", file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: keeper.close())
    try:
        keeper.serve()
    finally:
        options.socket.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
