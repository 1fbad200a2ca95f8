"""Show a figure in a cell: an image in the colours of the theme, and a text for screen readers."""

import base64
import time
from collections.abc import Iterator
from html import escape

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from bttlab.lab.charts import DOTS_PER_INCH, to_png
from bttlab.util.quantities import in_digits

FIGURE_CLASS = "bttlab-figure"
FULL_WIDTH = "calc(100% - 4px)"  # of a widget with its margins: at 100% its box gets a scrollbar
WRAPPED_CLASS = "bttlab-wraps"  # a list whose long lines go on in the next
SWATCH_CLASS = "bttlab-swatch"  # a colour of a figure, outside of it
STALE_CLASS = "bttlab-of-before"  # what is no longer true
# Figures are drawn on white. In JupyterLab's dark theme light and dark change places, and hues stay what they are.
DARK = f"""<style>
body[data-jp-theme-light='false']
:is(img.{FIGURE_CLASS}, .{FIGURE_CLASS} canvas, .jp-RenderedImage img, .{SWATCH_CLASS})
{{ filter: invert(0.88) hue-rotate(180deg) }}</style>"""

# ipympl shows its tools under the mouse alone, and its canvas keeps every key that it gets: the keyboard is to reach
# the tools, and what comes after them. What is not visible gets no keys.
TOOLS = f"""<style>.{FIGURE_CLASS} .jupyter-matplotlib-toolbar {{ visibility: visible !important }}
.{FIGURE_CLASS} .jupyter-matplotlib-toolbar:focus-within {{ opacity: 1 !important }}
.{FIGURE_CLASS} .jupyter-matplotlib-canvas-div {{ visibility: hidden }}
.{FIGURE_CLASS} .jupyter-matplotlib-canvas-div canvas {{ visibility: visible }}
.{STALE_CLASS} {{ opacity: 0.35 }}
.{WRAPPED_CLASS} option {{ white-space: normal; overflow-wrap: anywhere }}</style>"""

# Without an update, as after a restart of the kernel, CSS greys a state and shows the note.
STALE_SECONDS = 15
_UNTIL_STALE = f"""<style>
@keyframes bttlab-grey {{ to {{ opacity: 0.35 }} }}
@keyframes bttlab-show {{ to {{ max-height: 3em; visibility: visible }} }}
.bttlab-stale {{ animation: bttlab-grey 0s {STALE_SECONDS}s forwards }}
.bttlab-stale-note {{ max-height: 0; overflow: hidden; visibility: hidden; font-weight: bold }}
.bttlab-stale-note {{ animation: bttlab-show 0s {STALE_SECONDS}s forwards }}
</style>"""


class Picture:
    """A figure in a cell's output; a cell shows it, and a saved notebook keeps it.

    `caption` is one sentence; a description of the panels is appended.
    """

    def __init__(self, figure: Figure, caption: str):
        self.figure, self.words = figure, f"{caption} {describe(figure)}"

    def _repr_html_(self) -> str:
        return DARK + image_tag(self.figure, to_png(self.figure, scale=2), self.words)

    def __repr__(self) -> str:
        return self.words


def css_width(figure: Figure) -> int:
    """Return a figure's width in CSS pixels; ipympl multiplies `figure.dpi` by the screen's device ratio."""
    return int(figure.get_figwidth() * DOTS_PER_INCH)


def image_tag(figure: Figure, png: bytes, words: str) -> str:
    """Return a drawn figure as an HTML image, with a text for screen readers."""
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return f'<img class="{FIGURE_CLASS}" alt="{escape(words)}" width="{css_width(figure)}" src="{source}">'


def tile(number: str, name: str, what: str) -> str:
    """Return a large number with a name and a small line below as HTML, one beside the other."""
    return (
        "<div style='display:inline-block;vertical-align:top;width:230px;margin:2px 14px 6px 0;line-height:1.3'>"
        f"<span style='font-size:200%;font-weight:600'>{escape(number)}</span><br><b>{escape(name)}</b>"
        f"<br><span style='font-size:85%'>{escape(what)}</span></div>"
    )


def alert(message: str) -> str:
    """Return a message as HTML that screen readers read out at once; nothing for an empty one."""
    return f"<div role='alert' style='line-height:1.35'><b>{escape(message)}</b></div>" if message else ""


def describe(*figures: Figure) -> str:
    """Return a text of the figures' panels: titles, ends of lines, lengths of bars."""
    return " ".join(filter(None, (_describe(axes) for figure in figures for axes in figure.axes)))


def hidden(*texts: str) -> str:
    """Return invisible HTML for screen readers: the texts of figures, which `bttlab.lab.frame.Frame` gives to them."""
    place = "position:absolute;width:1px;height:1px;margin:-1px;overflow:hidden;clip-path:inset(50%)"
    words = "".join(f"<p class='bttlab-words' style='{place}'>{escape(text)}</p>" for text in texts)
    return f"{DARK}{TOOLS}{words}"


def until_stale(html: str) -> str:
    """Return the HTML of a state that ends with the kernel: not replaced in `STALE_SECONDS`, it says since when."""
    now = time.strftime("%H:%M:%S")
    note = f"<div class='bttlab-stale-note'>no update since {now}: the kernel may have stopped</div>"
    return f"{_UNTIL_STALE}<div class='bttlab-stale'>{html}</div>{note}"


def _describe(axes: Axes) -> str:
    title = axes.get_title("left") or axes.get_title()
    scales = " over ".join(filter(None, (axes.get_ylabel(), axes.get_xlabel())))
    parts = (title, scales, *_rows(axes), *_lines(axes), *_bars(axes))
    if not any(parts):  # a drawing: the words in it
        parts = tuple(dict.fromkeys(text.get_text() for text in axes.texts))
    said = [part.replace("$", "").replace("\n", " ") for part in parts if part]
    return "; ".join(said) + "." if said else ""


def _rows(axes: Axes) -> Iterator[str]:
    """The names of rows, where a panel has names instead of numbers."""
    names = [label.get_text() for label in axes.get_yticklabels()]
    if isinstance(axes.yaxis.get_major_locator(), FixedLocator) and any(names):
        yield f"rows: {', '.join(names)}"


def _lines(axes: Axes) -> Iterator[str]:
    for line in axes.lines:
        x, y = (np.asarray(values, float) for values in line.get_data())
        if not line.get_label().startswith("_") and len(x):
            begin, end = (f"{in_digits(float(y[k]))} at {in_digits(float(x[k]))}" for k in (0, -1))
            yield f"{line.get_label()}: from {begin} to {end}"


def _bars(axes: Axes) -> Iterator[str]:
    values: dict[str, list[float]] = {}
    for bars in axes.containers:
        if hasattr(bars, "datavalues"):
            name = bars.get_label()
            values.setdefault("bars" if name.startswith("_") else name, []).extend(bars.datavalues)
    for name, lengths in values.items():
        yield f"{name}: {', '.join(in_digits(float(length)) for length in lengths)}"
