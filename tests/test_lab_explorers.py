"""The explorers draw what the library says."""

import math
from threading import Thread

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bttlab.lab import CompressionExplorer, FlowExplorer, draw_truncation, spectra, truncate
from bttlab.lab.charts import new_figure
from bttlab.lab.explorer import Explorer
from bttlab.lab.flow_trace import PASSES, trace_flow
from bttlab.lab.picture import FIGURE_CLASS
from bttlab.tensor import FLOWS, ShapeError, flow_cost, order_cost

MODES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


@pytest.fixture(scope="module")
def matrix():
    return torch.randn(768, 768, generator=torch.Generator().manual_seed(1))


def test_spectra_bound_the_error(matrix):
    bonds = spectra(matrix, (12, 8, 8), (8, 8, 12))
    assert [len(bond) for bond in bonds] == [12, 96, 768, 96, 12]
    for bond in bonds:
        assert float(bond.square().sum()) == pytest.approx(1, rel=1e-4)
    lost = [float(bond[12:].square().sum()) for bond in bonds]
    error = truncate(matrix, (12, 8, 8), (8, 8, 12), 12).error
    assert math.sqrt(max(lost)) <= error * 1.001 and error <= math.sqrt(sum(lost)) * 1.001


def test_sliders_redraw(matrix):
    explorer = CompressionExplorer(matrix)
    image, words = explorer._live.widget.children[0].value, explorer._words.value
    assert "Singular values at each bond" in words and "bttlab-words" in words
    explorer.rank_slider.value = 24
    found = truncate(matrix, (12, 8, 8), (8, 8, 12), 24)
    assert explorer.truncation == found
    assert f"{found.parameters:,}" in explorer.results and f"{found.error:.2%}" in explorer.results
    assert explorer._live.widget.children[0].value != image and explorer._words.value != words
    assert FIGURE_CLASS in explorer._live.widget.children[0]._dom_classes


def test_a_refresh_of_a_thread_is_not_followed_by_the_message_of_the_one_before(monkeypatch):
    class Waiting(Explorer):
        notes = ()

        def _update(self):
            return "results", self.notes.pop(0) if self.notes else ""

    explorer = Waiting(new_figure(2, 2), controls=[])
    explorer.notes = ["", "it does not fit"]

    def draw():
        monkeypatch.undo()
        thread = Thread(target=explorer.refresh)
        thread.start()
        thread.join()

    monkeypatch.setattr(explorer._live, "draw", draw)
    explorer.refresh()
    assert "it does not fit" in explorer.message


def test_the_menus_have_all_factorisations(matrix):
    explorer = CompressionExplorer(matrix)
    found = [modes for _, modes in explorer.in_menu.options]
    every = {(a, b, 768 // (a * b)) for a in range(2, 49) for b in range(2, 49) if 768 % (a * b) == 0}
    assert set(found) == {modes for modes in every if 2 <= modes[2] <= 48} and len(found) == len(set(found))
    explorer.in_menu.value = (16, 4, 12)
    assert explorer.message == "" and explorer.truncation.shapes[3][1] == 16


@given(st.sampled_from(sorted(FLOWS)), st.integers(1, 40), MODES, MODES, st.integers(1, 5))
def test_a_trace_has_the_costs_of_its_flow(flow, tokens, out_modes, in_modes, rank):
    found = trace_flow(flow, tokens, out_modes, in_modes, rank)
    cost = flow_cost(flow, tokens, out_modes, in_modes, rank)
    assert found.cost == cost
    for name in PASSES:
        traced = getattr(found, name)
        assert [one.step for one in traced] == list(getattr(cost, name).steps)
        assert max(sum(one.alive.values()) for one in traced) == getattr(cost, name).peak_elements
        for one in traced:
            together = {*found.indices_of(one.left), *found.indices_of(one.right)}
            assert math.prod(found.sizes[index] for index in together) == one.step.macs
            assert math.prod(found.sizes[index] for index in found.indices_of(one.result)) == one.step.elements


def test_stepping_through_a_flow():
    order = "R5 = G5 G6\nu = x R5\nz = u G4\nL2 = G1 G2\nL3 = L2 G3\ny = z L3"
    explorer = FlowExplorer(own=order)
    assert explorer.trace.cost == order_cost(order, 32, (12, 8, 8), (8, 8, 12), 12) and explorer.flow.label == "my own"
    explorer.flow.value = "bidirectional"
    cost = flow_cost("bidirectional", 32, (12, 8, 8), (8, 8, 12), 12).forward
    assert f"{cost.macs:,}" in explorer.results and f"{cost.peak_elements:,}" in explorer.results
    explorer.step.value = 1
    for number, step in enumerate(cost.steps, 1):
        assert explorer.step_shown.step == step and explorer.step.value == number
        assert f"step {number} of {len(cost.steps)}: <b>{step.macs:,}</b>" in explorer.results
        explorer._move(1)
    assert explorer.step_shown.step == cost.steps[-1]  # the last step stays the last


def test_another_flow_beside_the_one_that_is_stepped_through():
    explorer = FlowExplorer(tokens=13)
    assert "beside it" not in explorer.results and explorer.beside.label == "no other"  # it is shown as chosen
    explorer.flow.value, explorer.beside.value = "bidirectional", "right_to_left"
    modes = (12, 8, 8), (8, 8, 12)
    cost = flow_cost("right_to_left", 13, *modes, 12)
    beside = explorer.results.partition("beside it, right to left: ")[2]
    assert f"<b>{cost.forward.macs:,}</b>" in beside and f"<b>{cost.macs:,}</b>" in beside
    explorer.part.value = "backward"
    beside = explorer.results.partition("beside it, right to left: ")[2]
    assert f"<b>{cost.backward.macs:,}</b>" in beside and f"{cost.backward.peak_elements:,}" in beside
    for axes, values in (
        (explorer._macs, [step.macs for step in cost.backward.steps]),
        (explorer._memory, [sum(f.alive.values()) for f in trace_flow("right_to_left", 13, *modes, 12).backward]),
    ):
        drawn = next(line for line in axes.lines if line.get_label() == "right to left")
        assert [float(y) for y in drawn.get_ydata() if y == y] == [value for value in values if value]
    explorer.beside.label = "no other"
    assert "beside it" not in explorer.results and len(explorer._macs.lines) == 2


def test_a_slider_reaches_the_value_that_it_begins_with():
    """Not on the slider as it is for others: a slider alone would move it, and the widget show another case."""
    explorer = FlowExplorer(tokens=200, rank=70)
    assert (explorer.tokens.value, explorer.rank.value, explorer.message) == (200, 70, "")
    explorer.close()


@pytest.mark.parametrize(("rows", "columns"), [(64, 48), (53, 6)])
def test_a_matrix_of_other_sizes_is_explored(rows, columns):
    explorer = CompressionExplorer(torch.nn.Linear(columns, rows).half().weight)
    assert explorer.message == "" or "is more than some bonds can have" in explorer.message
    assert math.prod(explorer.out_menu.value) == rows and math.prod(explorer.in_menu.value) == columns
    assert explorer.truncation.parameters == sum(map(math.prod, explorer.truncation.shapes))


def test_a_matrix_of_zeros_loses_nothing_and_modes_of_spectra_are_checked():
    assert truncate(torch.zeros(8, 8), (2, 4), (4, 2), 3).error == 0
    with pytest.raises(ShapeError, match="choose modes whose product is 8"):
        spectra(torch.randn(8, 8), (2, 2), (4, 2))
    assert all((bond == 0).all() for bond in spectra(torch.zeros(8, 8), (4, 2), (4, 2)))


def test_every_matrix_is_drawn():
    matrices = {str(k): torch.randn(8, 8) for k in range(9)}
    assert len(draw_truncation(matrices, (2, 4), (4, 2), [1, 2]).figure.axes[0].lines) == 9
    with pytest.raises(ShapeError, match="there is no matrix to draw"):
        draw_truncation({}, (2, 4), (4, 2), [1, 2])
