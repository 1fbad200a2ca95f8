"""A cell that is run again closes the widgets of its run before."""

import gc
from types import SimpleNamespace

import matplotlib
import torch
from ipywidgets.widgets.widget import _instances

from bttlab.lab import CompressionExplorer, cells


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
    # `Out` still has the explorers of before, with neither pictures nor canvases.
    assert not other._figures[0].axes and not other._live._canvases
    canvases = [one for one in gc.get_objects() if type(one).__name__ == "WholePictures"]
    assert len(canvases) == 4  # two of each cell


def test_what_a_widget_shows_stays_in_the_notebook(monkeypatch):
    shown = []
    monkeypatch.setattr(cells.DisplayHandle, "display", lambda self, content, raw: shown.append(content))
    monkeypatch.setattr(cells.DisplayHandle, "update", lambda self, content, raw: shown.append(content))
    monkeypatch.setattr("bttlab.lab.explorer.KEEP_SECONDS", 0.05)
    explorer = CompressionExplorer(torch.randn(768, 768))
    assert shown == []  # nothing before it is displayed
    explorer._ipython_display_()
    before = shown[-1]["text/html"]
    explorer.rank_slider.value = 4
    explorer._timer.join(10)
    name = explorer._live._kept._name
    assert "data:image/png" in before and shown[-1]["text/html"] != before
    assert f"body:has(.bttlab-live-{name}) .bttlab-kept-{name} {{ display: none }}" in shown[-1]["text/html"]
    assert "Parameters" in shown[-1]["text/plain"]
