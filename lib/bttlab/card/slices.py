"""A shared card in the hands of one driver: it has the card for a slice, and lets go of it soon after its last call."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynq

from bttlab.card.card_lock import card_name
from bttlab.card.emulation import EmulatedU50
from bttlab.card.manifest import digest, read_file
from bttlab.card.sharing import SLICE_SECONDS, CardLine, CardLostError, shared_file

LINGER_SECONDS = 0.02  # for the next call of a training in small steps
LEAST_SECONDS = SLICE_SECONDS / 10  # left of a slice, for which a call is not worth its beginning


def line_for(card: pynq.Device) -> CardLine | None:
    """Return a place to wait at for a card; None if the card is not shared."""
    emulated = isinstance(card, EmulatedU50)
    name = card.name if emulated else card_name(card)
    path = shared_file(name, emulated)
    return None if path is None else CardLine(name, path)


def overlay_key(path: str | Path) -> int:
    """Return what a line knows an overlay by: the first 64 bits of its SHA-256."""
    return int(digest(read_file(path))[:16], 16)


class Slices:
    """The slices of a shared card that a driver gets.

    Parameters
    ----------
    line : CardLine
    card : pynq.Device
        With the driver's overlay.
    description : dict
        PYNQ's, of the driver's kernel.
    """

    def __init__(self, line: CardLine, card: pynq.Device, description: dict[str, Any]):
        self._line, self._card, self._description = line, card, description
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

    @contextmanager
    def slice(self) -> Iterator[bool]:
        """Have the card, and keep it for the next call if some of the slice is left.

        Yields
        ------
        bool
            Whether what this driver had on chip is there still; if not, there is nothing.

        Raises
        ------
        CardLostError
            If at the end the card is another's: what was done is to be done again.
        """
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            try:
                if self._end is None or not self._line.is_mine:
                    self._take()
                yield self._is_current
                self.check()
                self._is_current = True
            except BaseException:
                self._is_current = False  # a call may have ended halfway
                self._leave()
                raise
            if self._end - time.monotonic() < LEAST_SECONDS:
                self._leave()
            else:
                self._timer = threading.Timer(LINGER_SECONDS, self._linger_no_more)
                self._timer.daemon, self._timer.name = True, "bttlab-slice"
                self._timer.start()

    def check(self) -> None:
        """Raise CardLostError if the slice is over, because this process was stopped in it."""
        if not self._line.is_mine:
            raise CardLostError

    def forget(self) -> None:
        """What is on chip is no longer what this driver wants there."""
        with self._lock:
            self._is_current = False

    def _take(self) -> None:
        self._line.leave()
        taken = self._line.take(self._overlay)
        if isinstance(self._card, EmulatedU50):
            if not taken.is_unbroken:
                self._card.lose_chip()
        else:
            if not taken.has_overlay:
                pynq.Bitstream(self._card.bitfile_name, device=self._card).download(self._card.parser)
            self._card.open_context(self._description)
        if not taken.has_overlay:
            self._line.loaded(self._overlay)
        self._is_current &= taken.is_unbroken
        self._end = time.monotonic() + SLICE_SECONDS

    def _leave(self) -> None:
        if self._end is not None and not isinstance(self._card, EmulatedU50):
            self._card.free_bitstream()  # closes contexts alone: with one open, nobody can load another overlay
        self._end = None
        self._line.leave()

    def _linger_no_more(self) -> None:
        with self._lock:
            if self._timer is threading.current_thread():
                self._leave()
