"""The lab's small parts: charts, threads, watching, cells, corpora and the check of the machine."""

import ast
import gc
import itertools
import json
import re
import signal
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import ipywidgets as widgets
import matplotlib
import nbclient
import nbformat
import numpy as np
import pytest
import torch
from ipywidgets.widgets.widget import _instances
from matplotlib.backend_bases import MouseEvent

from bttlab.data import CorpusError, Vocabulary, encode, load_corpus
from bttlab.lab import CompressionExplorer, cells, corpus_here, watch, watch_trainer
from bttlab.lab.canvas import LiveFigures
from bttlab.lab.charts import new_figure, style
from bttlab.lab.picture import FIGURE_CLASS, Picture, describe
from bttlab.model import ModelConfig, Optimizer, ReferenceTrainer
from bttlab.util.places import ROOT
from bttlab.util.threads import Thread


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


def test_watching_a_trainer_trains_it(capsys):
    corpus, config = load_corpus("airline"), ModelConfig(encoders=1)
    samples = encode(corpus.train, Vocabulary.from_sentences(corpus.train.words, 1000), corpus, config)[:3]
    watched, plain = ReferenceTrainer(config), ReferenceTrainer(config)
    losses = watch_trainer(watched, samples, Optimizer("sgd"), 1e-3, "a trainer")
    assert np.allclose(losses, plain.train(samples, Optimizer("sgd"), 1e-3), rtol=1e-5)
    assert "3 samples in" in capsys.readouterr().out


def test_what_is_kept_says_where_the_widget_is_gone():
    kept = cells.Kept(widgets.HTML())
    shown = kept._content("<b>picture</b>", "words", "")["text/html"]
    assert cells.GONE in shown and shown.index(cells.GONE) < shown.index("<b>picture</b>")


def test_each_kept_figure_has_its_own_text_and_a_caption_is_told_once():
    figures = [new_figure(2, 2), new_figure(2, 2)]
    for number, figure in enumerate(figures):
        figure.subplots().plot([1, 1081], [2, 3], label=f"line {number}")
    live = LiveFigures(figures)
    live._kept = SimpleNamespace(is_displayed=True, update=lambda html, words, style: told.append((html, words)))
    told = []
    live.keep()
    live.keep("both figures")
    (each, _), (both, words) = told
    assert re.findall('alt="([^"]*)"', each) == [f"line {n}: from 2 at 1 to 3 at 1,081." for n in (0, 1)]
    assert re.findall('alt="([^"]*)"', both) == ["both figures", ""] and words == "both figures"


def test_the_record_of_accessibility_has_every_widget_and_nothing_serious():
    findings = json.loads((ROOT / "data" / "accessibility.json").read_text())["findings"]
    assert len(findings) >= 13 and {"teach", "film", "graph", "dashboard", "methods"} <= findings.keys()
    assert not {"serious", "critical"} & {impact for rules in findings.values() for impact in rules.values()}


def test_the_first_corpus_that_is_here(monkeypatch, tmp_path):
    monkeypatch.setenv("BTTLAB_DATA", str(tmp_path))
    airline = corpus_here("nowhere", "airline")
    assert airline.name == "airline"
    (tmp_path / "mine").symlink_to(airline.folder.resolve())
    assert corpus_here("mine", "airline").folder == tmp_path / "mine"
    with pytest.raises(CorpusError, match="none of the corpora nowhere"):
        corpus_here("nowhere")


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


def test_a_cell_that_is_run_again_leaves_no_widgets(monkeypatch):
    monkeypatch.setattr(matplotlib, "get_backend", lambda: "module://ipympl.backend_nbagg")
    matrix = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))

    def run(number: int, cell: str = "a") -> CompressionExplorer:
        parent = {"metadata": {"cellId": cell}, "header": {"msg_id": f"{cell}{number}"}}
        monkeypatch.setattr(cells, "get_ipython", lambda: SimpleNamespace(get_parent=lambda: parent))
        explorer = CompressionExplorer(matrix)
        explorer._ipython_display_()
        return explorer

    run(0)
    count = len(_instances)
    other = run(0, "b")
    twice = len(_instances)
    assert twice > count
    for number in (1, 2):
        run(number)
        assert len(_instances) == twice
    assert other.widget.comm is not None  # another cell's
    run(1, "b")
    assert other.widget.comm is None and len(_instances) == twice


@pytest.mark.parametrize("timeout", [None, 60])
@pytest.mark.parametrize("hears", ["main", "other"])  # the other thread's signal wakes the main one from no wait
def test_an_interrupted_join_leaves_the_thread_as_it_is(hears, timeout):
    goes_on = threading.Event()
    thread = Thread(target=goes_on.wait, args=(10,), daemon=True)
    thread.start()
    heard_by = thread if hears == "other" else threading.main_thread()
    threading.Timer(0.2, signal.pthread_kill, [heard_by.ident, signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        thread.join(timeout)
    assert thread.is_alive()
    thread.join(0.01)
    assert thread.is_alive()
    goes_on.set()
    thread.join()
    assert not thread.is_alive()


def _sources():
    for folder in ("lib", "tools", "site", "classroom"):
        for path in (ROOT / folder).rglob("*.py"):
            yield path.name, path.read_text(encoding="utf-8")
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code":
                yield path.name, re.sub(r"^[%!].*", "", cell.source, flags=re.MULTILINE)


def test_every_legend_says_where_it_goes():
    """Without `loc` matplotlib 3.11.2 warns of large amounts of data if it drew for a second, as on a busy host."""
    calls = [
        (name, node)
        for name, source in _sources()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "legend"
    ]
    assert len(calls) > 20
    assert [f"{name}:{call.lineno}" for name, call in calls if not {"loc", None} & {k.arg for k in call.keywords}] == []


def test_a_legend_that_says_so_does_not_warn_if_drawing_takes_long(monkeypatch):
    monkeypatch.setattr("matplotlib.legend.time", SimpleNamespace(perf_counter=itertools.count(0, 2).__next__))
    for place, warns in ({}, True), ({"loc": "best"}, False):
        figure = new_figure(2, 2)
        axes = figure.add_subplot()
        axes.plot([0, 1], label="two points")
        axes.legend(**place)
        with pytest.warns(UserWarning, match="large amounts of data") if warns else nullcontext():
            figure.canvas.draw()
