"""Base class of the explorers: sliders, figures, a line of results, a message for a bad choice; controls of widgets."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import Any

import ipywidgets as widgets
from matplotlib.figure import Figure

from bttlab.lab.canvas import LiveFigures
from bttlab.lab.frame import RESULT_CLASS, Frame
from bttlab.lab.picture import FULL_WIDTH, STALE_CLASS, alert, describe, hidden
from bttlab.util.errors import BttlabError

KEEP_SECONDS = 2.0  # after the last change


class Explorer:
    """Redraws its figures whenever one of its controls moves.

    `beside` is shown on the right of the figures.
    """

    _is_held = False
    _is_pending = False  # set by `_update`: the figures do not show the choice yet

    def __init__(self, *figures: Figure, controls: Sequence[widgets.Widget], beside: widgets.Widget | None = None):
        self._figures, self._live = figures, LiveFigures(figures)
        self._results, self._message, self._words = (widgets.HTML() for _ in range(3))
        self._results.add_class(RESULT_CLASS)
        self._timer = Timer(KEEP_SECONDS, self._keep)
        shown = self._live.widget if beside is None else row(self._live.widget, beside)
        self.widget = Frame([*controls, self._results, self._message, shown, self._words])
        for control in _values(controls):
            control.observe(lambda _: self.refresh(), "value")
        self.refresh()

    @property
    def results(self) -> str:
        return self._results.value

    @property
    def message(self) -> str:
        return self._message.value

    @contextmanager
    def held(self) -> Iterator[None]:
        """Set several controls without a drawing of each."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    def refresh(self) -> None:
        """Redraw with the controls' values; a bad choice greys the results and the figures and shows a message."""
        if self._is_held:
            return
        is_stale = True
        try:
            with self._live.lock:  # a thread may refresh, too: results and message are those of the same update
                try:
                    self._is_pending = False
                    self._results.value, note = self._update()
                    self._words.value = hidden(*map(describe, self._figures))
                    is_stale = False
                except BttlabError as error:
                    note = f"{error} (grey: the previous choice)"
                self._say(note, is_stale)
            if not is_stale:
                self._live.draw()
        except KeyboardInterrupt:
            self._say("interrupted: move a slider again", True)
        self._keep_soon()

    def _say(self, note: str, is_stale: bool) -> None:
        self._message.value = alert(note)
        for widget, is_grey in ((self._results, is_stale), (self._live.widget, is_stale or self._is_pending)):
            (widget.add_class if is_grey else widget.remove_class)(STALE_CLASS)

    def _keep_soon(self) -> None:
        """Keep the pictures when no control has moved for a while."""
        self._timer.cancel()
        if self._live.is_displayed:
            self._timer = Timer(KEEP_SECONDS, self._keep)
            self._timer.daemon = True
            self._timer.start()

    def _update(self) -> tuple[str, str]:
        """Compute and draw; returns results as HTML, and a note or nothing."""
        raise NotImplementedError

    def _ipython_display_(self) -> None:
        self._live.display(self.widget, self.close)
        self._keep()

    def _keep(self) -> None:
        self._live.keep(below=self._below())

    def _below(self) -> str:
        """Return HTML that is kept below the pictures."""
        return ""

    def close(self) -> None:
        self._timer.cancel()
        self._live.close(self.widget)


def guarded(action: Callable) -> Callable:
    """Show the errors of a widget's action in its message, by `_say`; one action runs at a time, by `_lock`."""

    @functools.wraps(action)
    def shown(self, *arguments, **keywords) -> None:
        with self._lock:
            self._say()
            try:
                action(self, *arguments, **keywords)
                self._enable()
            except BttlabError as error:
                self._say(str(error))
            except KeyboardInterrupt:
                self._say(f"{action.__name__} was interrupted: try again")
            except Exception as error:  # it would vanish in a log
                self._say(f"{action.__name__} did not work ({type(error).__name__}: {error}): try again")

    return shown


def control(kind: type, name: str, width: str = "250px", name_width: int = 85, **keywords: Any) -> widgets.Widget:
    """Return a control with its name on the left, of a width of its own, or of the window's if that is less."""
    style, layout = {"description_width": f"{name_width}px"}, {"width": width, "max_width": FULL_WIDTH}
    return kind(description=name, style=style, layout=layout, **keywords)


def button(name: str, icon: str, action: Callable[[], Any], width: str = "105px", **keywords: Any) -> widgets.Button:
    made = widgets.Button(description=name, icon=icon, layout={"width": width}, **keywords)
    made.on_click(lambda _: action())
    return made


def slider(value: int, least: int, most: int, name: str, width: str = "250px") -> widgets.IntSlider:
    """Return a slider from `least` to `most`, and as far as its first value, which a shorter one would move."""
    return control(widgets.IntSlider, name, width, value=value, min=min(value, least), max=max(value, most))


def row(*controls: widgets.Widget) -> widgets.HBox:
    """Return controls side by side, or in several rows where the window is narrow."""
    return widgets.HBox(controls, layout={"flex_flow": "row wrap"})


def _values(controls: Sequence[widgets.Widget]) -> list[widgets.Widget]:
    flat = []
    for control in controls:
        flat += _values(control.children) if isinstance(control, widgets.Box) else [control]
    return [control for control in flat if control.has_trait("value") and not isinstance(control, widgets.HTML)]
