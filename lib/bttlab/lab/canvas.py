"""Show a live figure on ipympl's canvas if it is enabled, else as an image; keep the last picture in the notebook.

ipympl, and no library of charts in JavaScript: one drawing serves notebook, saved notebook, site and test, offline.
Any thread may draw, one at a time: `draw` holds the figure's lock, and so does ipympl while it answers the mouse.
"""

import base64
import functools
import threading
import time
import uuid
from collections.abc import Callable, Sequence

import ipywidgets
import matplotlib
from matplotlib.backend_bases import FigureCanvasBase, LocationEvent
from matplotlib.figure import Figure

from bttlab.lab.cells import Kept, close_widgets
from bttlab.lab.charts import to_png
from bttlab.lab.hover import Hover
from bttlab.lab.picture import DARK, FIGURE_CLASS, FULL_WIDTH, css_width, describe, image_tag

NARROW = 4.7  # inches: fits a window of 900 pixels beside JupyterLab's file browser; images shrink, a zoom canvas not
# One transparent pixel: without a picture a browser shows the sign of a broken one.
EMPTY_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg=="
)
PATIENCE_SECONDS = 5.0  # that a browser has to take a picture and say so


class ImageCanvas:
    """A figure as a PNG in a plain widget."""

    def __init__(self, figure: Figure, lock: threading.RLock):
        self._figure, self._lock = figure, lock
        layout = {"max_width": FULL_WIDTH, "width": f"{css_width(figure)}px"}
        self.widget = ipywidgets.Image(value=EMPTY_PNG, format="png", layout=layout)
        self.widget.add_class(FIGURE_CLASS)

    def draw(self) -> None:
        with self._lock:
            picture = to_png(self._figure, scale=2, compress_level=1)
        self.widget.value = picture


@functools.cache  # matplotlib keeps every class of canvas, and what it holds, for ever
def _whole_pictures() -> type:
    from ipympl.backend_nbagg import Canvas

    class WholePictures(Canvas):
        owner: "ZoomCanvas"

        def _handle_message(self, widget, content, buffers):
            with self.owner._lock:
                super()._handle_message(widget, content, buffers)
                if content["type"] == "initialized":
                    self.owner._initialized = True
                    self.send_state("resizable")  # a page that is reloaded takes it for true

        def handle_draw(self, event):
            """The browser has taken the last picture."""
            self.owner._show()

        def get_diff_image(self):
            self._force_full = True
            return super().get_diff_image()

    return WholePictures


class ZoomCanvas:
    """A figure on ipympl's canvas, with its tools for zooming; parameters and attributes as for `ImageCanvas`.

    ipympl sends what has changed since the picture before. A slow browser drops pictures, and then shows parts of
    several. So every picture here is whole, and the next one is drawn when the browser has
    asked for it, which it does after it has taken the last; or, where nobody reads its answers (a cell computes, and
    the page has no thread for widgets), after `PATIENCE_SECONDS`.

    The browser's first questions wait until the cell that made the canvas, and those sent with it, have run. Until the
    canvas has its size and its first picture, an `ImageCanvas` is shown: an empty canvas stays blank while another
    cell computes.
    """

    def __init__(self, figure: Figure, lock: threading.RLock):
        from ipympl.backend_nbagg import FigureManager

        self._lock = lock
        self._asked: float | None = None  # since when the browser has been asked
        self._initialized = self._has_picture = False
        self._first = ImageCanvas(figure, lock)
        self._canvas = _whole_pictures()(figure)
        self._canvas.owner = self
        self._canvas.syncing_data_url = False  # true, it would send pixels for a PNG to who asks before "initialized"
        FigureManager(self._canvas, uuid.uuid4().int % 2**31)  # the canvas keeps it
        self._canvas.header_visible = self._canvas.footer_visible = self._canvas.resizable = False
        self._canvas.toolbar_position = "right"  # tick labels are on the left
        self._canvas.layout.display = "none"
        self._canvas.add_class(FIGURE_CLASS)
        self.widget = ipywidgets.Box([self._first.widget, self._canvas])

    def draw(self) -> None:
        with self._lock:
            if not self._has_picture:
                self._first.draw()
                return
            if self._asked is not None:
                if time.monotonic() - self._asked < PATIENCE_SECONDS:
                    return
                self._show()
            self._asked = time.monotonic()
            self._canvas.send_event("draw")

    def _show(self) -> None:
        self._asked = None
        self._canvas.draw()
        if self._initialized and not self._has_picture:
            self._has_picture = True
            self._first.widget.layout.display, self._canvas.layout.display = "none", None


class LiveFigures:
    """Figures side by side, or one below the other in a narrow window; the mouse shows values.

    The canvases are of the kind that `%matplotlib` has chosen; wide figures are images. The last pictures are kept in
    the saved notebook. Hold `lock` while the figures change.
    """

    def __init__(self, figures: Sequence[Figure]):
        self.lock = threading.RLock()
        self._figures, self._hover = figures, Hover(figures)
        can_zoom = matplotlib.get_backend().lower() in ("widget", "ipympl", "module://ipympl.backend_nbagg")
        self._canvases = [
            (ZoomCanvas if can_zoom and figure.get_figwidth() <= NARROW else ImageCanvas)(figure, self.lock)
            for figure in figures
        ]
        for figure in figures:
            for event in ("motion_notify_event", "figure_leave_event"):  # a method alone would be forgotten
                figure.canvas.mpl_connect(event, lambda moved: self._point(moved))
        # A figure that is wider than the window scrolls; one that is beside a higher one is not stretched.
        layout = {"flex_flow": "row wrap", "overflow": "auto", "align_items": "flex-start"}
        self.widget = ipywidgets.HBox([canvas.widget for canvas in self._canvases], layout=layout)
        self._kept = Kept(self.widget)

    def draw(self) -> None:
        with self.lock:
            self._hover.show()
        for canvas in self._canvases:
            canvas.draw()

    def _point(self, event: LocationEvent) -> None:
        """Show the values under the mouse, unless it drags."""
        with self.lock:
            moved = getattr(event, "button", None) is None and self._hover.point(event.inaxes, event.xdata)
        if moved:
            self.draw()

    @property
    def is_displayed(self) -> bool:
        return self._kept.is_displayed

    def display(self, widget: ipywidgets.Widget, close: Callable[[], None] | None = None) -> None:
        """Display a widget with these figures; parameters as for `Kept.display`."""
        self._kept.display(widget, close)

    def keep(self, caption: str = "", below: str = "") -> None:
        """Keep the pictures, if they are displayed, with texts for screen readers and HTML below them.

        Each picture is described; a `caption` takes the place of these texts.
        """
        if not (self.is_displayed and self._canvases):  # not yet, or closed
            return
        with self.lock:
            texts = [describe(figure) for figure in self._figures]
            if caption:  # it describes all
                texts = [caption] + [""] * (len(texts) - 1)
            tags = [
                image_tag(figure, to_png(figure, scale=2), text)
                for figure, text in zip(self._figures, texts, strict=True)
            ]
        self._kept.update("".join(tags) + below, " ".join(filter(None, texts)), DARK)

    def close(self, widget: ipywidgets.Widget) -> None:
        """Close the widget with these figures; who still has this object, as `Out` has, keeps no pictures by it."""
        close_widgets(widget)
        with self.lock:
            self._canvases = []
            for figure in self._figures:
                figure.clear()
                FigureCanvasBase(figure)  # in place of the one with the pictures
