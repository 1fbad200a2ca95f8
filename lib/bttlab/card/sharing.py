"""One card for many processes: a keeper (`bttlab.keeper`) hands out time slices, and each driver trains in its own.

A card is shared if its file is there, the socket of its keeper: `bttlab-CARD.shared` in /run/bttlab, which is an
administrator's, or, for an emulated card, in the folder that $BTTLAB_SHARED_EMULATED names.
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
from bttlab.errors import BttlabError
from bttlab.keeper import MOST_BYTES, MOST_CLIENTS, SLICE_SECONDS

FOLDER_VARIABLE = "BTTLAB_SHARED_EMULATED"
ANSWER_SECONDS = 20.0  # in which a keeper answers
ENDED = f"has ended, or has {MOST_CLIENTS} clients of this user already"
LINGER_SECONDS = 0.02  # for the next call of a training in small steps
LEAST_SECONDS = SLICE_SECONDS / 10  # left of a slice, for which a call is not worth its beginning


class CardLostError(Exception):
    """The time slice is over, and another process may have the card: what was on the chip is gone."""


@dataclass(frozen=True)
class Waiting:
    """A process in the queue; the first may have the card."""

    process: int
    since: float  # that it waits, or has the card, in seconds of time.monotonic
    has_card: bool

    def __str__(self) -> str:
        return process_in_words(self.process)


@dataclass(frozen=True)
class Granted:
    """A time slice that has begun."""

    is_unbroken: bool  # nobody had the card since this client's last slice
    has_overlay: bool  # the overlay on the card is the one that was asked for


def shared_file(card: str, emulated: bool) -> Path | None:
    """Return the socket of a card's keeper; None where the card, with the name of `card_lock.card_name`, is not shared.

    Raises
    ------
    BttlabError
        If $BTTLAB_SHARED_EMULATED, which counts for emulated cards, names no folder.
    """
    folders = [ADMINISTRATORS] if lock_folder() == ADMINISTRATORS else []
    named = os.environ.get(FOLDER_VARIABLE, "") if emulated else ""
    if named:
        if not os.path.isdir(named):
            raise BttlabError(f"{FOLDER_VARIABLE} is {named!r}, which is no folder: make it, or unset the variable")
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
    """Return what a keeper knows an overlay by: the beginning of its SHA-256."""
    return digest(read_file(path))[:16]


def queue_in_words(queue: list[Waiting]) -> str:
    """Return the holder of a card, the number that wait and the next time slice, from `KeeperClient.queue()`."""
    if not queue:
        return "the card is free"
    first = f"{queue[0]} {'has the card' if queue[0].has_card else 'is next'}"
    seconds = len(queue) * SLICE_SECONDS
    return f"{first}, {len(queue) - 1} more waiting; a time slice is free in about {seconds:.1f} s (modelled)"


class KeeperClient:
    """A process's connection to the keeper of a card, for one thread at a time.

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
        """Return the processes that have the card or wait for it, in the order in which they get it.

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
            The overlay that is needed: `overlay_key`.

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
                    raise self._contradiction(answer)  # it is not about an earlier request, which was given back
        except BaseException:
            self.release()
            raise

    def loaded(self) -> None:
        """Report that the overlay is on the card; the time slice begins here."""
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
        """Give the card, or the place in the queue, to the next."""
        if self._is_waiting:
            try:
                self._connection.send(json.dumps({"release": self._number}).encode())
            except OSError:  # the keeper has ended
                self._connection.close()
                self._connection = None
            self._is_waiting = False

    def report_hung(self) -> None:
        """Report that a kernel in this client's slice did not end: nobody gets the card until it was reset."""
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
                who = f"user {_name(self.path.owner)} and group {_name(self.path.group)}"
                raise self._error(f"is for {who} alone: ask an administrator to put you into the group") from None
            raise self._error(f"cannot be reached ({error.strerror or error})") from None

    def _send(self, connection: socket.socket, message: dict[str, Any]) -> None:
        try:
            connection.send(json.dumps(message).encode())
        except OSError:
            raise self._error(ENDED) from None

    def _receive(self, connection: socket.socket, seconds: float) -> dict[str, Any] | None:
        """Return the keeper's next message; None if there is none for so long."""
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
            f"the keeper of the shared card {self.card}, {self.path}, {fault}; an administrator starts the keeper "
            "again (docs/hosts.md), then resume"
        )

    def _contradiction(self, answer: dict[str, Any]) -> CardBusyError:
        return self._error(f"contradicts this process: it says {answer} to request {self._number}")


def _name(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except (KeyError, OSError):
        return "?"


class TimeSlices:
    """The time slices of a shared card that a driver gets.

    Parameters
    ----------
    keeper : KeeperClient
    card : pynq.Device
        With the driver's overlay.
    description : dict
        PYNQ's, of the driver's kernel.
    """

    def __init__(self, keeper: KeeperClient, card: pynq.Device, description: dict[str, Any]):
        self._keeper, self._card, self._description = keeper, card, description
        self._overlay = overlay_key(card.bitfile_name)
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._end: float | None = None  # of the slice, in seconds of time.monotonic
        self._is_current = False

    @property
    def left(self) -> float:
        """Seconds of the slice that are left, or of a whole one where the next call begins one."""
        left = SLICE_SECONDS if self._end is None else self._end - time.monotonic()
        return left if left > LEAST_SECONDS else SLICE_SECONDS

    def run(self, work: Callable[[bool], object], publish: Callable[[], None]) -> None:
        """Do work in a time slice, and keep the card for the next call if some of the slice is left.

        Parameters
        ----------
        work : callable
            Gets whether what this driver had on chip is still there. It runs again if the card was lost meanwhile,
            so it changes scratch alone.
        publish : callable
            Makes scratch valid. It runs once, after the last check that the card is ours; nothing is repeated after it.
        """
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            try:
                while True:
                    # Until the end of all this nobody may take the chip's content for the published state.
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
                self._is_current = False  # a call may have ended halfway
                self._release()
                raise

    def check(self) -> None:
        """Raise CardLostError if the slice is over, because this process was stopped in it."""
        if not self._keeper.is_mine():
            raise CardLostError

    def forget(self) -> None:
        """Load program and state again in the next time slice."""
        with self._lock:
            self._is_current = False

    def _acquire(self) -> bool:
        """Wait for the card; returns whether nobody had it since this driver's last slice."""
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
            self._card.free_bitstream()  # closes contexts alone: with one open, nobody can load another overlay
        self._end = None
        self._keeper.release()

    def _end_linger(self) -> None:
        with self._lock:
            if self._timer is threading.current_thread():
                self._release()
