"""Who is on a shared card, and how long a turn takes to come."""

import os
import threading
import time
from html import escape

import ipywidgets as widgets
import pynq
from IPython.display import display

from bttlab.card.sharing import CardLine, Waiting, turn_in_words
from bttlab.card.slices import line_for
from bttlab.errors import BttlabError
from bttlab.threads import Thread

REFRESH_SECONDS = 0.5


class CardQueue:
    """The line for a shared card, as it is now; make one, and let it be the last line of a cell.

    Parameters
    ----------
    card : pynq.Device, optional
        By default the first that is shared.

    Attributes
    ----------
    widget : ipywidgets.Widget
        Follows the line until `close`.

    Raises
    ------
    BttlabError
        If no card is shared, or its line cannot be used.
    """

    def __init__(self, card: pynq.Device | None = None):
        cards = pynq.Device.devices if card is None else [card]
        lines = (line_for(each) for each in cards)
        line = next((line for line in lines if line is not None), None)
        if line is None:
            names = ", ".join(each.name for each in cards) or "there is none"
            raise BttlabError(f"no card is shared here ({names}); docs/hosts.md tells how one is")
        self._line: CardLine = line
        self.widget = widgets.HTML()
        self._closed = threading.Event()
        self._thread = Thread(target=self._follow, name="bttlab-card-queue", daemon=True)
        self.refresh()
        self._thread.start()

    def refresh(self) -> None:
        """Show the line as it is now."""
        self.widget.value = _table(self._line.card, self._line.look())

    def close(self) -> None:
        """Follow the line no more."""
        self._closed.set()
        self._thread.join()
        self.widget.close()

    def _follow(self) -> None:
        while not self._closed.wait(REFRESH_SECONDS):
            self.refresh()

    def _ipython_display_(self) -> None:
        display(self.widget)


def _table(card: str, line: list[Waiting]) -> str:
    rows = []
    for number, waiting in enumerate(line):
        who = f"<b>you</b> (process {waiting.process})" if waiting.process == os.getpid() else escape(str(waiting))
        place = "on the card" if waiting.is_on_card else f"{number}." if line[0].is_on_card else f"{number + 1}."
        seconds = f"in line for {max(0.0, time.monotonic() - waiting.since):.1f} s (measured)"
        cells = (place, who, "" if waiting.is_on_card else seconds)
        rows.append("<tr>" + "".join(f"<td style='text-align:left;padding:1px 9px'>{cell}</td>" for cell in cells))
    return f"<p><b>{escape(card)}</b>: {escape(turn_in_words(line))}</p><table>{''.join(rows)}</table>"
