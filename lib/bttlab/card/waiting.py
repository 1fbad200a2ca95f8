"""Wait for a kernel of a real card, with a time limit, so that Ctrl-C works while the kernel hangs."""

import errno
import os
import re
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pynq

from bttlab.card.emulation import EmulatedU50
from bttlab.card.kernel import OverlayError
from bttlab.card.kernel_call import POLL_MILLISECONDS, CallHandle
from bttlab.card.shells import Card, pcie_address
from bttlab.util.signals import DeferredSignals

# Time limit of a kernel: MARGIN times its modelled time, and LEAST_SECONDS for PCIe, refresh of HBM and a busy host.
MARGIN = 20
LEAST_SECONDS = 10.0
GRACE_SECONDS = 0.7  # for a kernel to end after Ctrl-C: a chunk of samples takes a quarter second
MOST_BETWEEN_POLLS = 1.0  # seconds that count against the limit: more, and this process was suspended
ERRORS = {  # likely causes of XRT's errors, by error number
    1: "buffers of another program are still on the card",
    2: "XRT does not find it: does the overlay have a kernel of that name?",
    11: "the card is busy",
    12: "the host is out of memory",
    13: "you have no permission to open the card's node /dev/dri/renderD*: join its group (render)",
    16: "another program uses the card's overlay: end it (fuser /dev/dri/renderD* names it)",
    19: "the card is gone: check xbutil examine and dmesg",
    22: "XRT says that it is invalid: is the overlay for the card's shell, and the kernel's name right?",
    95: "the card's shell is not the overlay's: xbutil examine names the shell",
}
_started: "weakref.WeakKeyDictionary[pynq.Device, tuple[CallHandle, Any]]" = (
    weakref.WeakKeyDictionary()
)  # kernel, its buffers


class CardFailedError(OverlayError):
    """A card is lost, needs a reset, or ended a kernel with an error."""


def reset_hint(card: Card) -> str:
    return f"reset the card with: xbutil reset --device {pcie_address(card) or 'ADDRESS'} (xbutil examine lists them)"


class CardHungError(CardFailedError):
    """A card's kernel has not ended within its time limit."""


@contextmanager
def card_errors(card: Card) -> Iterator[None]:
    """Turn the errors of pynq and pyxrt for a real card into a CardFailedError that names the likely cause."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        if isinstance(card, EmulatedU50) or getattr(error, "filename", None):
            raise
        number = getattr(error, "errno", None) or _error_number(str(error))
        cause = ERRORS.get(number, os.strerror(number) if number else "no cause is given")
        raise CardFailedError(f"{card.name}: {error}: {cause}; if that does not help, {reset_hint(card)}") from error


def _error_number(text: str) -> int:
    """Return XRT's error number from a message of pynq, or by the words of one of pyxrt; 0 if there is none."""
    if "No such kernel" in text or "No compute units matching" in text:
        return errno.ENOENT
    if by_words := next((number for number in ERRORS if os.strerror(number) in text), 0):
        return by_words
    for found in re.findall(r"-?\d+", text):
        value = int(found)
        value = value - (1 << 32) if value >= 1 << 31 else value  # pynq prints negative numbers as unsigned, too
        if 0 < abs(value) < 200:
            return abs(value)
    return 0


def run_kernel(card: Card, start: Callable[[], CallHandle], buffers: Any, seconds: float) -> None:
    """Start a kernel of a real card and wait for its end.

    Handlers of SIGINT (Ctrl-C) and SIGTERM are called when the kernel has ended. If it does not end within
    `GRACE_SECONDS` after the signal, it is left running. Until it ends, calls for that card raise CardFailedError. The
    buffers are referenced until the kernel ends. While this process is suspended, its time limit is, too.

    Raises CardHungError if the kernel does not end within the time limit, `seconds`; CardFailedError if it does not end
    after Ctrl-C, ends with an error, or a previous kernel is still running.
    """
    check_idle(card)
    with DeferredSignals() as signals:
        handle = start()
        _started[card] = handle, buffers
        elapsed, last = 0.0, time.monotonic()
        while not handle.ended(POLL_MILLISECONDS):
            now = time.monotonic()
            elapsed, last = elapsed + min(now - last, MOST_BETWEEN_POLLS), now
            interrupted = signals.since is not None and time.monotonic() - signals.since > GRACE_SECONDS
            if elapsed > seconds or interrupted:
                signals.forget()
                cause = "Ctrl-C, and " if interrupted else ""
                raise (CardFailedError if elapsed <= seconds else CardHungError)(
                    f"{cause}the kernel on {card.name} has not ended {elapsed:.1f} s after its start (its limit is "
                    f"{seconds:.0f} s, from the program's modelled cycles); the state on the card is lost; if the "
                    f"kernel does not end, {reset_hint(card)}, and start again"
                )
        del _started[card]
    if failure := handle.failure():
        raise CardFailedError(f"{card.name}: the kernel ended with an error ({failure}); {reset_hint(card)}")


def is_running(card: Card) -> bool:
    """Return True if a card may still run a kernel that did not end in time."""
    return card in _started


def check_idle(card: Card) -> None:
    """Raise CardFailedError if a card still runs a kernel that did not end in time."""
    if card in _started and not _started[card][0].ended(0):
        raise CardFailedError(f"{card.name} still runs a kernel that did not end in time; {reset_hint(card)}")
    _started.pop(card, None)
