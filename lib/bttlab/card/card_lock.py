"""The lock of a real card, for one process at a time: a lock (flock) of the card's own device node.

Nobody but root can remove the node, only users who may open the card can lock it, and the system names the process that
holds it (/proc/locks). The lock ends with the process. An emulated card belongs to one process and needs no lock.
"""

import logging
import os
import time
from pathlib import Path
from typing import Any

from bttlab.card import shells
from bttlab.util.errors import BttlabError
from bttlab.util.locks import holders, process_in_words, try_lock

logger = logging.getLogger("bttlab.card")
DEVICES = Path("/dev/dri")
POLL_SECONDS = 0.2
_locked: dict[Path, int] = {}  # descriptors of the nodes that this process has locked


class CardBusyError(BttlabError):
    """Another process holds the card."""


def lock_card(card: Any, wait: float = 0.0) -> None:
    """Take the lock of a card (`pynq.Device`) unless this process has it already; wait some seconds for others.

    Raises CardBusyError if another process still holds the lock after that time, or the node cannot be opened.
    """
    name, node = card_name(card), device_node(card)
    if node is None:
        logger.warning("WARNING: %s has no node %s/renderD*: other processes may use it, too", name, DEVICES)
    if node is None or node in _locked:
        return
    try:
        descriptor = os.open(node, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CardBusyError(f"{node} of {name} cannot be opened ({error.strerror}): who may is in its group") from None
    end = time.monotonic() + wait
    try:
        while not try_lock(descriptor):
            if time.monotonic() >= end:
                listed = [process_in_words(pid) for pid in holders(os.fstat(descriptor)) or () if pid > 0]
                waited = f" after {wait:g} s" if wait else ""
                raise CardBusyError(
                    f"{name} is in use{waited} by {' and '.join(listed) or 'another process'}: wait for it with "
                    "--wait SECONDS, ask that user or an administrator to end it, or use --device emulated"
                )
            time.sleep(min(POLL_SECONDS, max(0.0, end - time.monotonic())))
    except BaseException:
        os.close(descriptor)
        raise
    _locked[node] = descriptor


def release_card(card: Any) -> None:
    """Release a real card to other processes; do not use its overlay afterwards.

    Parameters
    ----------
    card : pynq.Device
        Such as `overlay.device`; nothing happens if it is emulated.
    """
    node = device_node(card)
    descriptor = None if node is None else _locked.pop(node, None)
    if descriptor is not None:
        os.close(descriptor)


def card_name(card: Any) -> str:
    """Return a card's PCIe address if XRT's driver reports it, otherwise its name and tag."""
    return shells.pcie_address(card) or f"{card.name}-{card.tag}"


def device_node(card: Any) -> Path | None:
    """Return a card's node, such as /dev/dri/renderD128; None if XRT's driver does not list it."""
    # Not from PYNQ's `sysfs_path`: that is of XRT's driver for management, which has no node.
    address = shells.pcie_address(card)
    nodes = sorted(shells.PCI_DEVICES.glob(f"{address}/drm/renderD*")) if address else []
    return DEVICES / nodes[0].name if nodes else None
