"""The lab's small parts: charts, watching, check cells, corpora and the check of the machine."""

import gc
import io
import signal
import threading

import nbclient
import nbformat
import numpy as np
import pytest
from matplotlib.backend_bases import MouseEvent
from PIL import Image

from bttlab.data import CorpusError
from bttlab.lab import corpus_here, watch
from bttlab.lab.canvas import LiveFigures, ZoomCanvas
from bttlab.lab.charts import new_figure, style
from bttlab.lab.picture import FIGURE_CLASS, Picture, describe


class _Run:
    """A run of four samples, one for each wait; `stopped_by` is raised by the first wait, `fault` by the last."""

    def __init__(self, total=4, stopped_by=None, fault=None):
        self.total, self.losses, self.done, self.seconds = total, np.zeros(0, np.float32), False, 0.0
        self._stopped_by, self._fault = stopped_by, fault

    def stop(self):
        self.done = True

    def join(self):
        assert self.done

    def wait(self, timeout=None):
        if self._stopped_by and not self.done:
            raise self._stopped_by
        if not self.done:
            self.losses, self.seconds = np.append(self.losses, np.float32(1)), self.seconds + 0.5
        self.done = self.done or len(self.losses) == self.total
        if self.done and self._fault:
            raise self._fault
        return self.losses


def test_the_mouse_shows_values_after_the_cell_has_ended():
    figure = new_figure(4, 3)
    axes = figure.subplots()
    lines = axes.plot([0, 1, 2], [5, 6, 7], label="loss")
    legend = axes.legend(4 * lines, "abcd", loc="upper left")
    LiveFigures([figure]).draw()
    gc.collect()
    MouseEvent("motion_notify_event", figure.canvas, *axes.transData.transform((1.9, 6)))._process()
    (text,) = axes.texts
    assert text.get_text() == ": 2\nloss: 7"
    assert not text.get_window_extent().overlaps(legend.get_window_extent())


@pytest.mark.parametrize("place", range(1, 4))
def test_a_browser_gets_png_whenever_it_asks(monkeypatch, place):
    figure = new_figure(4, 3)
    canvas = ZoomCanvas(figure, threading.RLock())
    sent = []
    monkeypatch.setattr(type(figure.canvas), "send", lambda self, content, buffers=(): sent.extend(buffers))
    questions = ["refresh", "send_image_mode", "initialized"]
    questions.insert(place, "draw")  # a kernel with subshells may hear it before others
    for question in questions:
        figure.canvas._handle_message(None, {"type": question}, [])
    canvas.draw()
    figure.canvas._handle_message(None, {"type": "draw"}, [])
    assert [Image.open(io.BytesIO(png)).size for png in sent] == 2 * [(400, 300)]


def test_a_canvas_is_not_shown_before_its_picture(monkeypatch):
    figure = new_figure(4, 3)
    canvas = ZoomCanvas(figure, threading.RLock())
    shown, pictures, states = [], [], []
    monkeypatch.setattr(type(figure.canvas), "send", lambda self, content, buffers=(): pictures.extend(buffers))
    monkeypatch.setattr(type(figure.canvas), "send_state", lambda self, key=None: states.append(key))
    for question in ("refresh", "send_image_mode", "initialized", "refresh", "draw"):
        shown.append([part.layout.display for part in canvas.widget.children])
        figure.canvas._handle_message(None, {"type": question}, [])
        assert len(pictures) == (question == "draw")
    assert shown == 5 * [[None, "none"]]
    assert "resizable" in states  # no handle on a reloaded page
    assert [part.layout.display for part in canvas.widget.children] == ["none", None]


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (_Run(), "4 samples in 2.0 s of training: 2 samples/s (measured)"),
        (_Run(stopped_by=KeyboardInterrupt()), "0 samples, stopped of 4 in 0.0 s of training (measured)"),
    ],
)
def test_watching_a_run(run, says, capsys):
    assert len(watch(run, "a run")) == len(run.losses) and run.done
    assert says in capsys.readouterr().out
    watch(run, "again")  # one that is over has the same speed
    assert says in capsys.readouterr().out


def test_an_interrupt_while_a_picture_is_drawn_stops_the_run(monkeypatch):
    """Libraries turn it into errors of their own: it waits until the picture is there."""
    pictures = []

    def draw(figures):
        pictures.append(figures)
        if len(pictures) == 1:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                raise ValueError("no picture") from None

    monkeypatch.setattr(LiveFigures, "draw", draw)
    run = _Run()
    assert len(watch(run, "a run")) == len(run.losses) and run.done and len(pictures) == 2


def test_the_first_corpus_that_is_here(monkeypatch, tmp_path, airline_folder):
    monkeypatch.setenv("BTTLAB_DATA", str(tmp_path))
    assert corpus_here("nowhere", "airline").name == "airline"
    (tmp_path / "mine").symlink_to(airline_folder)
    assert corpus_here("mine", "airline").folder == tmp_path / "mine"
    with pytest.raises(CorpusError, match="none of the corpora nowhere"):
        corpus_here("nowhere")


@pytest.fixture
def airline_folder():
    return corpus_here("airline").folder.resolve()


def test_a_user_error_in_a_notebook_is_a_sentence():
    notebook = nbformat.v4.new_notebook()
    source = "from bttlab.lab import corpus_here\ncorpus_here('nowhere')"
    notebook.cells = [nbformat.v4.new_code_cell(source), nbformat.v4.new_code_cell("1 / 0")]
    client = nbclient.NotebookClient(notebook, kernel_name="python3", allow_errors=True)
    client.execute()
    first, second = notebook.cells
    assert [output.output_type for output in first.outputs] == ["stream"]
    assert first.outputs[0].text.startswith("CorpusError: none of the corpora nowhere")
    assert "Traceback" in "".join(second.outputs[0].traceback)


def test_a_picture_has_what_its_panels_show_as_its_alternative():
    figure = new_figure(4, 3)
    left, right = figure.subplots(1, 2)
    style(left, "Loss (measured)", "samples", "loss")
    left.plot([1, 2, 300], [7.5, 5, 0.25], label="a <run>")
    left.plot([1, 2], [3, 4])  # without a name: a grid's line, say
    style(right, "Size", "MB ($10^6$ bytes)", "")
    right.barh([0, 1], [36.7, 1.2], label="parameters")
    words = describe(figure)
    assert "Loss (measured); loss over samples; a <run>: from 7.5 at 1 to 0.25 at 300." in words
    assert "Size; MB (10^6 bytes); parameters: 36.7, 1.2." in words
    html = Picture(figure, "Two panels.")._repr_html_()
    assert 'alt="Two panels. Loss (measured)' in html and "a &lt;run&gt;: from 7.5" in html
    assert f'class="{FIGURE_CLASS}"' in html and "jp-theme-light='false'" in html
