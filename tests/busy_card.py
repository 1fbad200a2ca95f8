"""A shared card with a queue, for the browser."""

import contextlib
import os
import tempfile
import threading
from pathlib import Path

from bttlab.card import EmulatedU50
from bttlab.card.card_lock import emulated_name, file_name
from bttlab.card.sharing import FOLDER_VARIABLE, KeeperClient, keeper_of
from bttlab.keeper import serving

OPEN = contextlib.ExitStack()  # to the end of the process
CLIENTS: list[KeeperClient] = []


def busy_card(waiting: int = 3) -> EmulatedU50:
    """Return a card that one client has and `waiting` others wait for."""
    folder = Path(tempfile.mkdtemp())
    OPEN.enter_context(serving(folder / file_name(emulated_name(0), "shared")))
    os.environ[FOLDER_VARIABLE] = str(folder)
    card = EmulatedU50()
    card.name = emulated_name(0)
    CLIENTS[:] = [keeper_of(card) for _ in range(1 + waiting)]
    CLIENTS[0].acquire("")
    for client in CLIENTS[1:]:
        threading.Thread(target=client.acquire, args=("",), daemon=True).start()
    return card
