"""Close the widgets of a cell when it is run again: kernel and page keep what is not closed."""

from collections.abc import Callable

import ipywidgets as widgets
from IPython import get_ipython

_closers: dict[str, tuple[str, list[Callable[[], None]]]] = {}  # cell: its last run, and what closes its widgets


def close_widgets(*closed: widgets.Widget) -> None:
    """Close widgets with all that they hold: children, layouts, styles, toolbars."""
    for widget in closed:
        close_widgets(*getattr(widget, "children", ()))
        for name in ("layout", "style", "toolbar"):
            if widget.has_trait(name) and (part := getattr(widget, name)) is not None:
                close_widgets(part)
        widget.close()


def close_with_cell(close: Callable[[], None]) -> None:
    """Have `close` called when the cell that runs now runs the next time; nothing outside of a notebook."""
    parent = getattr(get_ipython(), "get_parent", dict)() or {}
    cell, run = parent.get("metadata", {}).get("cellId"), parent.get("header", {}).get("msg_id")
    if cell is None:
        return
    before, closers = _closers.get(cell, (run, []))
    if before != run:
        for earlier in closers:
            earlier()
        closers = []
    _closers[cell] = run, [*closers, close]
