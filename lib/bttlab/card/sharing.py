"""One card for many processes: each driver trains in the time slices that a keeper (`bttlab.keeper`) grants it.

A card is shared if the socket of its keeper exists: `bttlab-CARD.shared` in /run/bttlab, where only an administrator
can create it, or, for an emulated card, in the folder that $BTTLAB_SHARED_EMULATED names.
"""

import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynq

from bttlab.card.card_lock import (
    ADMINISTRATORS,
    CardBusyError,
    card_name,
    file_name,
    lock_folder,
    process_in_words,
)
from bttlab.card.emulation import EmulatedU50
from bttlab.card.manifest import digest, read_file
from bttlab.card.waiting import CardHungError
from bttlab.keeper import MOST_BYTES, MOST_CLIENTS, SLICE_SECONDS
from bttlab.util.errors import BttlabError

FOLDER_VARIABLE = "BTTLAB_SHARED_EMULATED"
ANSWER_SECONDS = 20.0  # time limit of a keeper's answer
ENDED = f"has ended, or has {MOST_CLIENTS} clients of this user already"
LINGER_SECONDS = 0.02  # a call keeps the card so long for the next call of a training in small steps
LEAST_SECONDS = SLICE_SECONDS / 10  # with less of a slice left, the next call waits for a new slice


class CardLostError(Exception):
    """The time slice is over. Another process may have the card, so the state on chip is lost."""


@dataclass(frozen=True)
class Waiting:
    """A process in the queue; the first may have the card."""

    process: int
    since: float  # when it began to wait, or got the card, in seconds of time.monotonic
    has_card: bool

    def __str__(self) -> str:
        return process_in_words(self.process)


@dataclass(frozen=True)
class Granted:
    """A time slice that has begun."""

    is_unbroken: bool  # no other client had the card since this client's last slice
    has_overlay: bool  # the overlay on the card is the required one


def shared_file(card: str, emulated: bool) -> Path | None:
    """Return the socket of a card's keeper; None if the card is not shared.

    Parameters
    ----------
    card : str
        Name of an emulated card, or `card_lock.card_name` of a real one.
    emulated : bool

    Raises
    ------
    BttlabError
        If the card is emulated and $BTTLAB_SHARED_EMULATED is not a folder.
    """
    folders = [ADMINISTRATORS] if lock_folder() == ADMINISTRATORS else []
    named = os.environ.get(FOLDER_VARIABLE, "") if emulated else ""
    if named:
        if not os.path.isdir(named):
            raise BttlabError(f"{FOLDER_VARIABLE} is {named!r}, which is no folder: create it, or unset the variable")
        folders.insert(0, Path(named))
    paths = [folder / file_name(card, "shared") for folder in folders]
    return next((path for path in paths if os.path.lexists(path)), None)


def keeper_of(card: pynq.Device) -> "KeeperClient | None":
    """Return a client of a card's keeper; None if the card is not shared."""
    emulated = isinstance(card, EmulatedU50)
    name = card.name if emulated else card_name(card)
    path = shared_file(name, emulated)
    return None if path is None else KeeperClient(name, path)


def overlay_key(path: str | Path) -> str:
    """Return a keeper's key for an overlay: the first 16 digits of its SHA-256."""
    return digest(read_file(path))[:16]


def queue_in_words(queue: list[Waiting]) -> str:
    """Describe who has a card, how many processes wait and when the next slice is free, from `KeeperClient.queue()`."""
    if not queue:
        return "the card is free"
    first = f"{queue[0]} {'has the card' if queue[0].has_card else 'is next'}"
    seconds = len(queue) * SLICE_SECONDS
    return f"{first}, {len(queue) - 1} more waiting; a time slice is free in about {seconds:.1f} s (modelled)"


class KeeperClient:
    """A process's connection to the keeper of a card. Only one thread may use it at a time.

    Parameters
    ----------
    card : str
    path : path
        The keeper's socket.
    """

    def __init__(self, card: str, path: Path):
        self.card, self.path = card, path
        self._connection: socket.socket | None = None
        self._number = 0  # of the last request
        self._is_waiting = False  # or has the card

    def queue(self) -> list[Waiting]:
        """Return the processes that have the card or wait for it, in the order in which they will get it.

        Raises
        ------
        CardBusyError
            If the keeper cannot be reached, or the card hangs.
        """
        with self._connect() as connection:
            self._send(connection, {"queue": 0})
            answer = self._receive(connection, ANSWER_SECONDS)
        if answer is None or "queue" not in answer:
            raise self._error(f"does not answer ({answer})")
        return [Waiting(int(process), float(since), bool(has)) for process, since, has in answer["queue"]]

    def acquire(self, overlay: str) -> Granted:
        """Wait for a time slice.

        Parameters
        ----------
        overlay : str
            `overlay_key` of the required overlay.

        Raises
        ------
        CardBusyError
            If the keeper cannot be reached, refuses, or contradicts this client's requests, or the card hangs.
        """
        self.release()
        if self._connection is None:
            self._connection = self._connect()
        self._number += 1
        self._is_waiting = True
        try:
            self._send(self._connection, {"acquire": self._number, "overlay": overlay})
            while True:
                answer = self._receive(self._connection, ANSWER_SECONDS)
                if answer is None:
                    self.queue()  # raises if the keeper is stuck
                elif answer.get("granted") == self._number:
                    return Granted(answer["is_unbroken"], answer["has_overlay"])
                elif answer.get("granted", answer.get("lost", self._number)) not in range(1, self._number):
                    raise self._contradiction(answer)  # it does not concern an earlier request, which was released
        except BaseException:
            self.release()
            raise

    def loaded(self) -> None:
        """Report that the overlay is loaded: the time slice begins now."""
        self._send(self._connection, {"loaded": self._number})

    def is_mine(self) -> bool:
        """Return True if this client still has the card.

        Raises
        ------
        CardBusyError
            If the keeper has ended or contradicts this client's requests, or the card hangs.
        """
        if not self._is_waiting:
            return False
        answer = self._receive(self._connection, 0.0)
        if answer is None:
            return True
        if answer.get("lost") != self._number:
            raise self._contradiction(answer)
        self._is_waiting = False
        return False

    def release(self) -> None:
        """Release the card or the place in the queue."""
        if self._is_waiting:
            try:
                self._connection.send(json.dumps({"release": self._number}).encode())
            except OSError:  # the keeper has ended
                self._connection.close()
                self._connection = None
            self._is_waiting = False

    def report_hung(self) -> None:
        """Report that a kernel in this client's slice did not end: no client gets the card until it is reset."""
        self._send(self._connection, {"hung": self._number})
        self._is_waiting = False

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(str(self.path))
            connection.setblocking(False)
            return connection
        except OSError as error:
            connection.close()
            if isinstance(error, PermissionError):
                allowed = f"user {_name(self.path.owner)} and group {_name(self.path.group)}"
                raise self._error(f"is for {allowed} only: ask an administrator to add you to the group") from None
            raise self._error(f"cannot be reached ({error.strerror or error})") from None

    def _send(self, connection: socket.socket, message: dict[str, Any]) -> None:
        try:
            connection.send(json.dumps(message).encode())
        except OSError:
            raise self._error(ENDED) from None

    def _receive(self, connection: socket.socket, seconds: float) -> dict[str, Any] | None:
        """Return the keeper's next message; None if none comes within `seconds`."""
        try:
            if not select.select([connection], [], [], seconds)[0]:
                return None
            data = connection.recv(MOST_BYTES)
        except OSError:
            data = b""
        if not data:
            raise self._error(ENDED)
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise self._error(f"cannot be understood ({error})") from None
        if not isinstance(answer, dict):
            raise self._error(f"cannot be understood ({answer})")
        if "hung" in answer:
            whose = process_in_words(int(answer["hung"]))
            raise self._error(f"says that a kernel of {whose} does not end: the card needs a reset (xbutil reset)")
        return answer

    def _error(self, fault: str) -> CardBusyError:
        self._is_waiting = False
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        return CardBusyError(
            f"the keeper of the shared card {self.card}, {self.path}, {fault}; ask an administrator to restart the "
            "keeper (docs/hosts.md), then resume"
        )

    def _contradiction(self, answer: dict[str, Any]) -> CardBusyError:
        return self._error(f"contradicts this process: it answers {answer} to request {self._number}")


def _name(owner: Callable[[], str]) -> str:
    """Return the name of a file's owner or group; "?" if it has none."""
    try:
        return owner()
    except (KeyError, OSError):
        return "?"


class TimeSlices:
    """A driver's time slices of a shared card.

    Parameters
    ----------
    keeper : KeeperClient
    card : pynq.Device
        With the driver's overlay.
    description : dict
        PYNQ's description of the driver's kernel.
    """

    def __init__(self, keeper: KeeperClient, card: pynq.Device, description: dict[str, Any]):
        self._keeper, self._card, self._description = keeper, card, description
        self._overlay = overlay_key(card.bitfile_name)
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._end: float | None = None  # of the current slice, in seconds of time.monotonic
        self._is_current = False

    @property
    def left(self) -> float:
        """Seconds left of the current slice, or of a whole slice if the next call begins one."""
        left = SLICE_SECONDS if self._end is None else self._end - time.monotonic()
        return left if left > LEAST_SECONDS else SLICE_SECONDS

    def run(self, work: Callable[[bool], object], publish: Callable[[], None]) -> None:
        """Do work in a time slice, and keep the card for the next call if some of the slice is left.

        Parameters
        ----------
        work : callable
            Its argument is True if this driver's state is still on chip. It runs again if the card was lost meanwhile,
            so it may change only scratch buffers.
        publish : callable
            Makes the scratch buffers the driver's state. It runs once, after the last check that this process has the
            card; nothing is repeated after it.
        """
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            try:
                while True:
                    # Until this call has ended, the chip's content is not the published state.
                    is_current, self._is_current = self._is_current, False
                    try:
                        if self._end is None or not self._keeper.is_mine():
                            is_current &= self._acquire()
                        work(is_current)
                        self.check()
                        break
                    except CardLostError:
                        continue
                publish()
                self._is_current = True
                if self._end - time.monotonic() < LEAST_SECONDS:
                    self._release()
                else:
                    self._timer = threading.Timer(LINGER_SECONDS, self._end_linger)
                    self._timer.daemon, self._timer.name = True, "bttlab-slice"
                    self._timer.start()
            except CardHungError:
                self._is_current, self._end = False, None
                self._keeper.report_hung()
                raise
            except BaseException:
                self._is_current = False  # the work may have stopped halfway
                self._release()
                raise

    def check(self) -> None:
        """Raise CardLostError if the keeper has ended the slice, because it took too long."""
        if not self._keeper.is_mine():
            raise CardLostError

    def forget(self) -> None:
        """Make the next call load program and state again."""
        with self._lock:
            self._is_current = False

    def _acquire(self) -> bool:
        """Wait for the card and return True if no other client had it since this driver's last slice."""
        self._keeper.release()
        granted = self._keeper.acquire(self._overlay)
        if isinstance(self._card, EmulatedU50):
            if not granted.is_unbroken:
                self._card.lose_chip()
        else:
            if not granted.has_overlay:
                pynq.Bitstream(self._card.bitfile_name, device=self._card).download(self._card.parser)
            self._card.open_context(self._description)
        if not granted.has_overlay:
            self._keeper.loaded()
        self._end = time.monotonic() + SLICE_SECONDS
        return granted.is_unbroken

    def _release(self) -> None:
        if self._end is not None and not isinstance(self._card, EmulatedU50):
            self._card.free_bitstream()  # only closes contexts: an open one prevents loading another overlay
        self._end = None
        self._keeper.release()

    def _end_linger(self) -> None:
        with self._lock:
            if self._timer is threading.current_thread():
                self._release()
