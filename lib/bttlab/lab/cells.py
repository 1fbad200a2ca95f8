"""The widgets of a cell: closed when it is run again, since kernel and page keep what is not closed; kept as HTML."""

import gc
import uuid
from collections.abc import Callable

import ipywidgets as widgets
from IPython import get_ipython
from IPython.display import DisplayHandle, display

_closers: dict[str, tuple[str, list[Callable[[], None]]]] = {}  # cell: its last run, and what closes its widgets


def close_widgets(*closed: widgets.Widget) -> None:
    """Close widgets with all that they hold: children, layouts, styles, toolbars."""
    for widget in closed:
        close_widgets(*getattr(widget, "children", ()))
        for name in ("layout", "style", "toolbar"):
            if widget.has_trait(name) and (part := getattr(widget, name)) is not None:
                close_widgets(part)
        widget.close()
        if widget.has_trait("children"):
            widget.children = ()


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
        gc.collect()  # figures, canvases and widgets refer to each other
        closers = []
    _closers[cell] = run, [*closers, close]


GONE_SECONDS = 15  # that a page has to load the widget
GONE = (
    "The live widget is not on this page: the connection to the kernel is lost, or the kernel was restarted. "
    "Run this cell again; if nothing happens, reload the page."
)


class Kept:
    """What a widget shows, as plain HTML below it, which stays in the saved notebook when the widget is gone.

    As long as the widget is on the page, a rule of CSS hides the HTML; where it is gone, another hides JupyterLab's
    "Error displaying widget", an output without an element in it. A note, too, is then
    shown in JupyterLab and Jupyter Notebook.
    """

    def __init__(self, widget: widgets.Widget):
        self._name = uuid.uuid4().hex[:8]
        widget.add_class(f"bttlab-live-{self._name}")
        self._handle: DisplayHandle | None = None

    @property
    def is_displayed(self) -> bool:
        return self._handle is not None

    def display(self, widget: widgets.Widget, close: Callable[[], None] | None = None) -> None:
        """Display a widget, and make room for what is kept; `close` is called when the cell is run again."""
        if close is not None:
            close_with_cell(close)
        display(widget)
        self._handle = DisplayHandle()
        self._handle.display(self._content("", "", ""), raw=True)

    def update(self, html: str, words: str, style: str = "") -> None:
        """Keep HTML with its style, and words for where there is no HTML; nothing before `display`."""
        if self._handle is not None:
            self._handle.update(self._content(html, words, style), raw=True)

    def _content(self, html: str, words: str, style: str) -> dict[str, str]:
        kept, gone = f"bttlab-kept-{self._name}", f"bttlab-gone-{self._name}"
        there = f"body:has(.bttlab-live-{self._name})"
        lost = f".jp-OutputArea:has(.{kept} *) .jupyter-widgets.jp-OutputArea-output:not(:has(*))"
        rules = (
            f"{there} .{kept}, {lost}, .{gone}, {there} .jp-NotebookPanel .{gone} {{ display: none }} "
            f".jp-NotebookPanel .{gone} {{ display: block; visibility: hidden; max-height: 0; font-weight: bold; "
            f"animation: bttlab-gone 0s {GONE_SECONDS}s forwards }} "
            "@keyframes bttlab-gone { to { visibility: visible; max-height: none } }"
        )
        html = f'{style}<style>{rules}</style><div class="{gone}">{GONE}</div><div class="{kept}">{html}</div>'
        return {"text/html": html, "text/plain": words}
