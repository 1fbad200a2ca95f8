"""The lab's small parts: charts, watching, check cells, corpora and the check of the machine."""

import gc

import nbclient
import nbformat
import numpy as np
import pytest
from matplotlib.backend_bases import MouseEvent

from bttlab.data import CorpusError
from bttlab.lab import corpus_here, watch
from bttlab.lab.canvas import LiveFigures
from bttlab.lab.charts import new_figure, style
from bttlab.lab.picture import FIGURE_CLASS, Picture, describe


class _Run:
    """A run of four samples, one for each wait; `stopped_by` is raised by the first wait."""

    def __init__(self, stopped_by=None):
        self.total, self.losses, self.done, self.seconds = 4, np.zeros(0, np.float32), False, 0.0
        self._stopped_by = stopped_by

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
