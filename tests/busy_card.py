"""A shared card with a line in front of it, for the browser."""

import os
import tempfile
from pathlib import Path

from bttlab.card import EmulatedU50
from bttlab.card.card_lock import emulated_name, file_name
from bttlab.card.sharing import FOLDER_VARIABLE, CardLine
from bttlab.card.slices import line_for

LINE: list[CardLine] = []  # who is in it


def busy_card(waiting: int = 3) -> EmulatedU50:
    """Return a card that one place in the line holds and `waiting` others wait for."""
    folder = Path(tempfile.mkdtemp())
    (folder / file_name(emulated_name(0), "shared")).touch()
    os.environ[FOLDER_VARIABLE] = str(folder)
    card = EmulatedU50()
    card.name = emulated_name(0)
    LINE[:] = [line_for(card) for _ in range(1 + waiting)]
    LINE[0].take(0)
    for place in LINE[1:]:
        place._get_in_line(0)
    return card
