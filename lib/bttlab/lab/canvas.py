"""Show a live figure on ipympl's canvas if it is enabled, else as an image; keep the last picture in the notebook.

Any thread may draw, one at a time: `draw` holds the figure's lock, and so does ipympl while it answers the mouse.
"""

import base64
import io
import threading
import time
import uuid
from collections.abc import Sequence
from html import escape

import ipywidgets
import matplotlib
from IPython.display import DisplayHandle
from matplotlib.figure import Figure
from PIL import Image

from bttlab.lab.charts import DOTS_PER_INCH, to_png
from bttlab.lab.picture import DARK, FIGURE_CLASS

PATIENCE_SECONDS = 5.0  # that a browser has to take a picture and say so


class ImageCanvas:
    """A figure as a PNG in a plain widget.

    Parameters
    ----------
    figure : Figure
    lock : threading.RLock

    Attributes
    ----------
    widget : ipywidgets.Widget
    """

    def __init__(self, figure: Figure, lock: threading.RLock):
        self._figure, self._lock = figure, lock
        layout = {"max_width": "100%", "width": f"{_width(figure)}px"}
        self.widget = ipywidgets.Image(format="png", layout=layout)
        self.widget.add_class(FIGURE_CLASS)

    def draw(self) -> None:
        """Show the figure as it is now."""
        with self._lock:
            picture = to_png(self._figure, scale=2, compress_level=1)
        self.widget.value = picture

    def close(self) -> None:
        """Close the widget."""
        self.widget.close()


class ZoomCanvas:
    """A figure on ipympl's canvas, with its tools for zooming; parameters and attributes as for `ImageCanvas`.

    ipympl sends what has changed since the picture before. A browser that is slower than the pictures come drops some,
    and then shows a mixture of several. So every picture here is whole, and the next one is drawn when the browser has
    asked for it, which it does after it has taken the last; or, where nobody reads its answers (a cell computes, and
    the page has no thread for widgets), after `PATIENCE_SECONDS`.
    """

    def __init__(self, figure: Figure, lock: threading.RLock):
        from ipympl.backend_nbagg import Canvas, FigureManager

        outer = self

        class WholePictures(Canvas):
            def _handle_message(self, widget, content, buffers):
                with lock:
                    super()._handle_message(widget, content, buffers)

            def handle_draw(self, event):
                """The browser has taken the last picture."""
                outer._show()

            def get_diff_image(self):
                self._force_full = True
                return super().get_diff_image()

        self._lock = lock
        self._asked: float | None = None  # since when the browser has been asked
        self.widget = WholePictures(figure)
        FigureManager(self.widget, uuid.uuid4().int % 2**31)  # the canvas keeps it
        self.widget.header_visible = False
        self.widget.resizable = False
        self.widget.add_class(FIGURE_CLASS)

    def draw(self) -> None:
        """Have the figure shown as it is when the browser is ready for it."""
        with self._lock:
            if self.widget.syncing_data_url:  # before, no browser is there; once it is, it asks for everything
                return
            if self._asked is not None:
                if time.monotonic() - self._asked < PATIENCE_SECONDS:
                    return
                self._show()
            self._asked = time.monotonic()
            self.widget.send_event("draw")

    def _show(self) -> None:
        self._asked = None
        self.widget.draw()

    def close(self) -> None:
        """Close the widget."""
        self.widget.close()


def live_canvas(figure: Figure, lock: threading.RLock) -> ImageCanvas | ZoomCanvas:
    """Return a canvas of the kind that `%matplotlib` has chosen in this notebook."""
    backend = str(matplotlib.get_backend()).lower()
    kind = ZoomCanvas if backend in ("widget", "ipympl", "module://ipympl.backend_nbagg") else ImageCanvas
    return kind(figure, lock)


class KeptFigure:
    """The last figure as plain HTML, which stays in the saved notebook when the widgets are gone.

    As long as a live widget of the class `live_class` is on the page, a rule of CSS hides it: nobody sees it twice.
    """

    def __init__(self) -> None:
        name = uuid.uuid4().hex[:8]
        self.live_class = f"bttlab-live-{name}"
        self._class = f"bttlab-kept-{name}"
        self._handle: DisplayHandle | None = None

    def display(self) -> None:
        """Make room for it in the cell's output."""
        self._handle = DisplayHandle()
        self._handle.display({"text/html": "", "text/plain": ""}, raw=True)

    def update(self, figures: Sequence[Figure], lock: threading.RLock, caption: str) -> bytes | None:
        """Keep figures side by side, with a caption for screen readers; return one PNG if they are displayed."""
        if self._handle is None:
            return None
        with lock:
            pictures = [to_png(figure, scale=2) for figure in figures]
        tags = []
        for figure, png in zip(figures, pictures, strict=True):
            source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
            tags.append(f'<img class="{FIGURE_CLASS}" alt="{escape(caption)}" width="{_width(figure)}" src="{source}">')
        html = (
            f"{DARK}<style>body:has(.{self.live_class}) .{self._class} {{ display: none }}</style>"
            f'<div class="{self._class}">{"".join(tags)}</div>'
        )
        self._handle.update({"text/html": html, "text/plain": caption}, raw=True)
        return _beside(pictures)


def _width(figure: Figure) -> int:
    """Return a figure's width in CSS pixels; ipympl multiplies `figure.dpi` by the screen's device ratio."""
    return int(figure.get_figwidth() * DOTS_PER_INCH)


def _beside(pictures: Sequence[bytes]) -> bytes:
    """Return PNGs side by side in one."""
    images = [Image.open(io.BytesIO(png)) for png in pictures]
    both = Image.new("RGB", (sum(image.width for image in images), max(image.height for image in images)), "white")
    left = 0
    for image in images:
        both.paste(image, (left, 0))
        left += image.width
    buffer = io.BytesIO()
    both.save(buffer, "png")
    return buffer.getvalue()
