"""The box around each of our widgets: it keeps their keys and their focus, names what screen readers read, and reports
a kernel that does not answer. Its JavaScript is in `frame.js`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as widgets

FRAME_CLASS = "bttlab-widget"
RESULT_CLASS = "bttlab-result"  # what an action changes, beside the figures
# Greyed are figures and results, not the controls, which are still the user's.
_STYLE = """
.bttlab-widget > :has(> .bttlab-note) { order: -1 }
.bttlab-widget.jupyter-widgets-disconnected::before { display: none }
.bttlab-widget .jupyter-widgets-disconnected::before { display: none } /* a sign at each part says less than the note */
.bttlab-note { font-weight: bold; line-height: 1.35; padding: 2px 4px }
body[data-jp-theme-light='false'] .bttlab-widget { --jp-widgets-dropdown-arrow: url("data:image/svg+xml,\
%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 18 18'%3E%3Cpath fill='white' d='M4 7l5 5 5-5z'/%3E%3C/svg%3E") }
.bttlab-result .widget-html-content { line-height: 1.4 }
.bttlab-waiting :is(.bttlab-figure, .bttlab-result) { opacity: 0.35 }
"""


class _Guard(anywidget.AnyWidget):
    """The frame's part on the page; answers its questions, in order after the actions before them."""

    _esm = Path(__file__).with_name("frame.js").read_text()
    _css = _STYLE

    def __init__(self, **keywords: Any):
        super().__init__(**keywords)
        self.on_msg(lambda _, content, buffers: self.send({"answer": content["question"]}))


class Frame(widgets.VBox):
    """A column of widgets, as the outermost box of a widget of ours.

    On the page the texts of `bttlab.lab.picture.hidden` become those of the figures, the first of the first, and a
    slider's handle has its name and its value as shown. Letters typed into a control are its own, and no commands of
    JupyterLab. An action without an answer greys figures and results; after some seconds a note says so.
    """

    def __init__(self, children: Sequence[widgets.Widget], **keywords: Any):
        super().__init__([*children, _Guard()], **keywords)
        self.add_class(FRAME_CLASS)
