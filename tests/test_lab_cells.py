"""A cell that is run again closes the widgets of its run before."""

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
