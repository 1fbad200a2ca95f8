"""Wait for a kernel of a real card: with a time limit, and so that Ctrl-C works while the kernel hangs."""

import os
import re
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pynq

from bttlab.card.card_lock import card_name, process_lock
from bttlab.card.emulation import EmulatedU50
from bttlab.card.kernel import OverlayError
from bttlab.card.shells import pcie_address

MARGIN = 20  # a kernel may take so many times its modelled time,
LEAST_SECONDS = 10.0  # and this more: PCIe, refresh of HBM, a busy host
GRACE_SECONDS = 0.7  # that a kernel has after Ctrl-C: a chunk of samples takes a quarter second
POLL_MILLISECONDS = 100
IDLE = 0x4  # in AP_CTRL
ERRORS = {  # of XRT, by its negative error number
    1: "buffers of another program are still on the card",
    2: "XRT does not find it: has the overlay a kernel of that name?",
    11: "the card is busy",
    12: "the host has no memory for it",
    16: "another program uses the card's overlay: end it (fuser /dev/dri/renderD* names it)",
    19: "the card is gone: look at it with xbutil examine, and at dmesg",
    22: "XRT takes it for invalid: is the overlay of the card's shell, and the kernel's name right?",
    13: "you may not open the card's node /dev/dri/renderD*: join its group (render)",
    95: "the card's shell is not the overlay's: xbutil examine names the shell",
}
_started: "weakref.WeakKeyDictionary[pynq.Device, tuple[Any, Any]]" = weakref.WeakKeyDictionary()  # kernel, its buffers


class CardFailedError(OverlayError):
    """A card that is lost, needs a reset, or ended a kernel with an error."""


def reset_hint(card: pynq.Device) -> str:
    """Return how to reset a card, in words."""
    return f"reset the card with: xbutil reset --device {pcie_address(card) or 'ADDRESS'} (xbutil examine lists them)"


class CardHungError(CardFailedError):
    """A card whose kernel has not ended within its time limit."""


@contextmanager
def card_errors(card: pynq.Device) -> Iterator[None]:
    """Turn the errors that pynq raises for a real card into one line each, with the likely cause.

    Raises
    ------
    CardFailedError
    """
    try:
        yield
    except (RuntimeError, OSError) as error:
        if isinstance(card, EmulatedU50) or getattr(error, "filename", None):
            raise
        number = getattr(error, "errno", None) or _error_number(str(error))
        cause = ERRORS.get(number, os.strerror(number) if number else "no cause is given")
        raise CardFailedError(f"{card.name}: {error}: {cause}; if that does not help, {reset_hint(card)}") from error


def _error_number(text: str) -> int:
    """Return XRT's error number of a message of pynq's; unsigned values are negative ones."""
    for found in re.findall(r"-?\d+", text):
        value = int(found)
        value = value - (1 << 32) if value >= 1 << 31 else value
        if 0 < abs(value) < 200:
            return abs(value)
    return 0


def run_kernel(card: pynq.Device, start: Callable[[], Any], buffers: Any, seconds: float) -> None:
    """Start a kernel of a real card and wait for its end.

    Ctrl-C, and any other handler of SIGINT and SIGTERM, takes effect at the end of the kernel; if the kernel does not
    end within `GRACE_SECONDS`, it is left running. A card whose kernel was left running is refused until it ends.

    Parameters
    ----------
    card : pynq.Device
    start : callable
        Returns pynq's handle.
    buffers : object
        What the kernel reads and writes; kept until it ends.
    seconds : float
        That it may take at most.

    Raises
    ------
    CardHungError
        If the kernel does not end within its time limit.
    CardFailedError
        If it does not end after Ctrl-C, ends with an error, or one before is still running.
    """
    check_idle(card)
    with _DeferredSignals() as signals:
        handle = start()
        _started[card] = handle, buffers
        begin = time.monotonic()
        while not _ended(card, handle, POLL_MILLISECONDS):
            elapsed = time.monotonic() - begin
            interrupted = signals.since is not None and time.monotonic() - signals.since > GRACE_SECONDS
            if elapsed > seconds or interrupted:
                signals.forget()
                process_lock(card_name(card)).mark_hung()
                asked = "Ctrl-C, and " if interrupted else ""
                raise (CardFailedError if elapsed <= seconds else CardHungError)(
                    f"{asked}the kernel on {card.name} has not ended {elapsed:.1f} s after its start (its limit is "
                    f"{seconds:.0f} s, from the program's modelled cycles); what is on the card is lost; if it "
                    f"stays so, {reset_hint(card)}, and start again"
                )
        del _started[card]
    failure = handle._future.exception() if hasattr(handle, "_future") else None
    if failure is not None:
        raise CardFailedError(f"{card.name}: the kernel ended with an error ({failure}); {reset_hint(card)}")


def is_running(card: pynq.Device) -> bool:
    """Return whether a card still runs a kernel that was given up."""
    return card in _started


def check_idle(card: pynq.Device) -> None:
    """Raise CardFailedError if a card still runs a kernel that was given up."""
    if card in _started and not _ended(card, _started[card][0], 0):
        raise CardFailedError(f"{card.name} still runs a kernel that did not end in time; {reset_hint(card)}")
    _started.pop(card, None)


def _ended(card: pynq.Device, handle: Any, milliseconds: int) -> bool:
    """Wait for a kernel, and return True if it has ended."""
    if hasattr(handle, "target"):  # started by registers: an XRT without its scheduler
        time.sleep(milliseconds / 1e5)
        return bool(handle.target.mmio.read(0) & IDLE)
    if not handle.done:
        card._handle_events(milliseconds)
    return handle.done


class _DeferredSignals:
    """A context in which handlers of SIGINT and SIGTERM are called at its end, not within: for the main thread."""

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._received: tuple[int, FrameType | None] | None = None
        self.since: float | None = None

    def __enter__(self) -> "_DeferredSignals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._received is not None:
            self._handlers[self._received[0]](*self._received)

    def forget(self) -> None:
        """Call no handler at the end."""
        self._received = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.since, self._received = self.since or time.monotonic(), (number, frame)
