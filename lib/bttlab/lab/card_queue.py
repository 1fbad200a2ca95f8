"""The queue of a shared card."""

import os
import threading
import time
from html import escape

import ipywidgets as widgets
import pynq
from IPython.display import display

from bttlab.card.sharing import Waiting, keeper_of, queue_in_words
from bttlab.errors import BttlabError
from bttlab.threads import Thread

REFRESH_SECONDS = 0.5


class CardQueue:
    """A widget with the queue of a shared card: let one be the last line of a cell.

    Parameters
    ----------
    card : pynq.Device, optional
        By default the first that is shared.

    Attributes
    ----------
    widget : ipywidgets.Widget
        Follows the queue until `close`.

    Raises
    ------
    BttlabError
        If no card is shared, or its keeper cannot be reached.
    """

    def __init__(self, card: pynq.Device | None = None):
        cards = pynq.Device.devices if card is None else [card]
        self._keeper = next(filter(None, map(keeper_of, cards)), None)
        if self._keeper is None:
            names = ", ".join(each.name for each in cards) or "there is none"
            raise BttlabError(f"no card is shared here ({names}); docs/hosts.md tells how to share one")
        self.widget = widgets.HTML()
        self._closed = threading.Event()
        self._thread = Thread(target=self._follow, name="bttlab-card-queue", daemon=True)
        self.refresh()
        self._thread.start()

    def refresh(self) -> None:
        """Show the queue as it is now."""
        self.widget.value = _table(self._keeper.card, self._keeper.queue())

    def close(self) -> None:
        """Stop following the queue."""
        self._closed.set()
        self._thread.join()
        self.widget.close()

    def _follow(self) -> None:
        while not self._closed.wait(REFRESH_SECONDS):
            try:
                self.refresh()
            except BttlabError as error:
                self.widget.value = f"<p>{escape(str(error))}</p>"
                break

    def _ipython_display_(self) -> None:
        display(self.widget)


def _table(card: str, queue: list[Waiting]) -> str:
    rows = []
    for number, waiting in enumerate(queue):
        who = f"<b>you</b> (process {waiting.process})" if waiting.process == os.getpid() else escape(str(waiting))
        place = "has the card" if waiting.has_card else f"{number}." if queue[0].has_card else f"{number + 1}."
        seconds = f"waiting for {max(0.0, time.monotonic() - waiting.since):.1f} s (measured)"
        cells = (place, who, "" if waiting.has_card else seconds)
        rows.append("<tr>" + "".join(f"<td style='text-align:left;padding:1px 9px'>{cell}</td>" for cell in cells))
    return f"<p><b>{escape(card)}</b>: {escape(queue_in_words(queue))}</p><table>{''.join(rows)}</table>"
