"""One real card for many processes: each driver trains in the time slices that a keeper (`card/keeper.py`) grants it.

A card is shared if the socket of its keeper exists: `bttlab-CARD.shared` in /run/bttlab, where only root can make it.
"""

import contextlib
import json
import os
import secrets
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynq

from bttlab.card.card_lock import CardBusyError, card_name
from bttlab.card.emulation import EmulatedU50
from bttlab.card.keeper import MOST_BYTES, MOST_CLIENTS
from bttlab.card.shells import Card
from bttlab.card.waiting import CardHungError, is_running

FOLDER = Path("/run/bttlab")
ANSWER_SECONDS = 20.0  # time limit of a keeper's answer, and of its restart
RETRY_SECONDS = 0.2


class CardLostError(Exception):
    """The time slice is over. Another process may have the card, so the state on chip is lost."""


def shared(card: Card) -> "SharedCard | None":
    """Return this process's share of a card; None if the card is not shared."""
    if isinstance(card, EmulatedU50):
        return None
    path = FOLDER / f"bttlab-{card_name(card)}.shared"
    return SharedCard(card, path) if os.path.lexists(path) else None


class SharedCard:
    """A driver's requests for time slices of a card, to the keeper's socket. Only one thread may use it at a time."""

    def __init__(self, card: Card, path: Path):
        self.path = path
        self._card, self._name = card, secrets.token_hex(8)
        self._connection: socket.socket | None = None  # while it waits for the card or has it
        self.is_current = False  # the chip has the driver's state, unless others had the card since

    def queue(self) -> list[tuple[str, bool]]:
        """Return who has the card or waits for it, in order, and whether it has the card.

        Raises OSError if the keeper does not answer, CardBusyError if the card hangs. A request that the keeper closes
        at once (the user's connections of this second are used up) is repeated for ANSWER_SECONDS.
        """
        end = time.monotonic() + ANSWER_SECONDS
        while True:
            answer: dict[str, Any] | None = {}  # closed
            with contextlib.suppress(BrokenPipeError), self._connect({"queue": True}) as connection:
                answer = self._receive(connection)
                if answer:
                    return [(who, has_card) for who, has_card in answer["queue"]]
            if answer is None or time.monotonic() >= end:
                raise TimeoutError(f"the keeper at {self.path} does not answer")
            time.sleep(RETRY_SECONDS)

    def acquire(self) -> bool:
        """Wait for a time slice; return True if no other client had the card since this client's last one.

        If the keeper ends meanwhile, wait for its restart. Raises CardBusyError if the keeper cannot be reached for
        ANSWER_SECONDS, or the card hangs.
        """
        end = None
        while True:
            self.release()
            fault = f"has ended, or has {MOST_CLIENTS} clients of this user already"
            try:
                self._connection = self._connect({"client": self._name})
                while (answer := self._receive(self._connection)) is None:
                    self.queue()  # raises if the keeper is stuck
                if answer:
                    return answer["is_unbroken"]
            except BrokenPipeError:  # closed at once
                pass
            except PermissionError:
                fault, end = "is for users who may open the card: ask to be added to its group (render)", 0.0
            except OSError as error:
                fault = f"cannot be reached ({error.strerror or error})"
            except BaseException:
                self.release()
                raise
            end = time.monotonic() + ANSWER_SECONDS if end is None else end
            if time.monotonic() >= end:
                raise CardBusyError(
                    f"the keeper of the shared card {card_name(self._card)}, {self.path}, {fault}; ask an "
                    "administrator to restart the keeper (docs/hosts.md), then resume"
                )
            time.sleep(RETRY_SECONDS)

    def run(self, description: dict[str, Any], work: Callable[[bool], object], publish: Callable[[], None]) -> None:
        """Do work in a time slice; again if the slice was lost meanwhile. `description` is PYNQ's of the kernel.

        The argument of `work` is True if this driver's state is still on chip. It may change only scratch buffers.
        `publish` makes these the driver's state. It runs once, after the last check that this process has the card.
        """
        is_done = False
        while not is_done:
            is_current, self.is_current = self.is_current, False
            try:
                with contextlib.suppress(CardLostError):
                    is_current &= self._begin(description)
                    work(is_current)
                    self.check()
                    is_done = True
                    publish()
                    self.is_current = True
            except CardHungError:
                self.report("hung")
                raise
            finally:
                try:
                    if not is_running(self._card):
                        self._card.free_bitstream()  # closes contexts: an open one prevents loading another overlay
                finally:
                    self.release()

    def check(self) -> None:
        """Raise CardLostError if the slice is over: it took too long, or the keeper has ended."""
        if self._connection is None or self._receive(self._connection, 0.0) is not None:
            raise CardLostError

    def release(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _begin(self, description: dict[str, Any]) -> bool:
        """Wait for a slice, load the overlay if another is on the card, and return whether the chip is as before.

        Raises CardLostError if the slice was lost, and the overlay of another client loaded, before this one's is used.
        """
        is_unbroken = self.acquire()
        try:
            self._card.open_context(description)
        except RuntimeError:  # XRT opens contexts of the overlay on the card alone
            self.report("loading")
            pynq.Bitstream(self._card.bitfile_name, device=self._card).download(self._card.parser)
            try:
                self._card.open_context(description)
            except RuntimeError:
                self.check()
                raise
            return False
        return is_unbroken

    def report(self, event: str) -> None:
        """Report "loading", before an overlay is loaded, or "hung": a kernel of the slice did not end."""
        assert self._connection is not None  # in a slice
        with contextlib.suppress(OSError):  # the slice is lost: `check` says so
            self._connection.send(json.dumps({event: True}).encode())

    def _connect(self, message: dict[str, Any]) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(str(self.path))
            connection.send(json.dumps(message).encode())
            return connection
        except BaseException:
            connection.close()
            raise

    def _receive(self, connection: socket.socket, seconds: float | None = None) -> dict[str, Any] | None:
        """Return the keeper's next message, {} if it has closed the connection; None if none comes in time."""
        if not select.select([connection], [], [], ANSWER_SECONDS if seconds is None else seconds)[0]:
            return None
        try:
            answer = json.loads(connection.recv(MOST_BYTES) or "{}")
        except ConnectionError:
            return {}
        if "hung" in answer:
            raise CardBusyError(
                f"the shared card {card_name(self._card)} does not answer since a kernel of {answer['hung']} did not "
                "end: ask an administrator to reset it (xbutil reset) and to restart its keeper, then resume"
            )
        return answer
