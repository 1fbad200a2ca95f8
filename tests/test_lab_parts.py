"""The lab's small parts: charts, watching, check cells, corpora and the check of the machine."""

import gc
import io

import nbclient
import nbformat
import numpy as np
import pytest
from matplotlib.backend_bases import MouseEvent
from PIL import Image

from bttlab.data import CorpusError
from bttlab.lab import budget, check_machine, corpus_here, watch
from bttlab.lab.canvas import LiveFigures
from bttlab.lab.charts import new_figure, smooth, thinned, to_png
from bttlab.lab.live_loss import draw_loss
from bttlab.model import NumericalFault


def test_smooth_is_a_trailing_mean():
    values = np.random.default_rng(0).random(50)
    expected = [values[max(0, k - 6) : k + 1].mean() for k in range(50)]
    np.testing.assert_allclose(smooth(values, 7), expected)
    assert smooth(np.zeros(0)).shape == (0,)


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 1000])
def test_thinned_keeps_the_last(count):
    shown = thinned(np.zeros(count), 10)
    assert len(shown) <= 10 and (np.diff(shown) > 0).all()
    assert count == 0 or (shown[-1] == count - 1 and shown[0] >= 0)


def test_a_loss_figure_has_axes_with_names():
    figure = new_figure(7.5, 3.2)
    axes = figure.subplots()
    draw_loss(axes, np.linspace(5, 1, 200), 400)
    assert axes.get_xlim() == (0, 400) and "Loss" in axes.get_title("left") and "samples" in axes.get_xlabel()
    assert Image.open(io.BytesIO(to_png(figure, 2))).size == (1500, 640)


class _Run:
    total = 4

    def __init__(self, fail=None):
        self.losses, self.done, self.stopped, self._fail = np.zeros(0, np.float32), False, False, fail

    def stop(self):
        self.stopped = self.done = True

    def wait(self, timeout=None):
        if self._fail is not None and (isinstance(self._fail, KeyboardInterrupt) and not self.done):
            raise self._fail
        if len(self.losses) < self.total and not self.stopped:
            self.losses = np.append(self.losses, np.float32(1))
        self.done = self.done or len(self.losses) == self.total
        if self.done and isinstance(self._fail, NumericalFault):
            raise self._fail
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


def test_watching_a_run(capsys):
    assert len(watch(_Run(), "a run")) == 4
    assert "4 samples in" in capsys.readouterr().out


def test_a_watched_run_ends_when_its_time_is_over(capsys):
    run = _Run()
    run.total = 10**9
    assert 0 < len(watch(run, "a run", seconds=0.3)) < run.total and run.stopped
    assert "stopped of 1,000,000,000" in capsys.readouterr().out


def test_interrupting_a_watched_run_stops_it(capsys):
    run = _Run(KeyboardInterrupt())
    assert len(watch(run, "a run")) == 0 and run.stopped
    assert "stopped of 4" in capsys.readouterr().out


def test_a_watched_run_that_diverges():
    with pytest.raises(NumericalFault):
        watch(_Run(NumericalFault("loss", 4, np.zeros(4, np.float32), 1.0)), "a run")


def test_budget(monkeypatch):
    monkeypatch.setenv("BTTLAB_QUICK", "1")
    assert budget(100, 5) == 5
    monkeypatch.setenv("BTTLAB_QUICK", "0")
    assert budget(100, 5) == 100


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


def test_the_machine_as_a_table():
    html = check_machine().data
    assert "overlays" in html and "cards" in html and "<table>" in html


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


def test_a_user_error_fails_its_cell():
    notebook = nbformat.v4.new_notebook()
    source = "from bttlab.lab import corpus_here\ncorpus_here('nowhere')"
    notebook.cells = [nbformat.v4.new_code_cell(source)]
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="none of the corpora"):
        nbclient.NotebookClient(notebook, kernel_name="python3").execute()
