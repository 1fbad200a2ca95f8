"""TT and TTM: decomposition, reassembly, lookup, initial values."""

import itertools
import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from bttlab.tensor import (
    TTLinear,
    TTMEmbedding,
    matrix_to_tt,
    matrix_to_ttm,
    tt_to_matrix,
    ttm_to_matrix,
)
from bttlab.tensor.shapes import balanced_modes
from bttlab.util.errors import BttlabError

mode = st.integers(1, 4)
FULL = 10**6  # more than any bond can use


def test_tt_entries_are_products_of_slices():
    torch.manual_seed(0)
    cores = [torch.randn(shape, dtype=torch.float64) for shape in [(1, 2, 3), (3, 3, 2), (2, 4, 3), (3, 2, 1)]]
    matrix = tt_to_matrix(cores, (2, 3))
    for i1, i2, j1, j2 in itertools.product(range(2), range(3), range(4), range(2)):
        product = cores[0][:, i1] @ cores[1][:, i2] @ cores[2][:, j1] @ cores[3][:, j2]
        torch.testing.assert_close(matrix[3 * i1 + i2, 2 * j1 + j2], product[0, 0])


def test_ttm_entries_are_products_of_slices():
    torch.manual_seed(0)
    cores = [torch.randn(shape, dtype=torch.float64) for shape in [(1, 2, 3, 3), (3, 3, 2, 2), (2, 2, 2, 1)]]
    matrix = ttm_to_matrix(cores)
    assert matrix.shape == (12, 12)
    for i, j in itertools.product(itertools.product(range(2), range(3), range(2)), repeat=2):
        j = (j[1], j[0], j[2])  # column modes (3, 2, 2)
        product = cores[0][:, i[0], j[0]] @ cores[1][:, i[1], j[1]] @ cores[2][:, i[2], j[2]]
        row, column = (i[0] * 3 + i[1]) * 2 + i[2], (j[0] * 2 + j[1]) * 2 + j[2]
        torch.testing.assert_close(matrix[row, column], product[0, 0])


@given(st.lists(mode, min_size=1, max_size=3), st.lists(mode, min_size=1, max_size=3))
def test_tt_svd_at_full_rank_is_exact(out_modes, in_modes):
    torch.manual_seed(0)
    weight = torch.randn(math.prod(out_modes), math.prod(in_modes), dtype=torch.float64)
    bias = torch.randn(weight.shape[0], dtype=torch.float64)
    layer = TTLinear(weight.shape[1], weight.shape[0], out_modes, in_modes, 1)
    layer.set_cores(matrix_to_tt(weight, out_modes, in_modes, FULL))
    layer.bias = torch.nn.Parameter(bias)
    torch.testing.assert_close(layer.to_dense(), weight, rtol=0, atol=1e-12)
    x = torch.randn(4, weight.shape[1], dtype=torch.float64)
    torch.testing.assert_close(layer(x), x @ weight.T + bias)


@given(st.lists(st.tuples(mode, mode), min_size=1, max_size=3))
def test_ttm_svd_at_full_rank_is_exact(pairs):
    torch.manual_seed(0)
    row_modes, column_modes = zip(*pairs, strict=True)
    table = torch.randn(math.prod(row_modes), math.prod(column_modes), dtype=torch.float64)
    layer = TTMEmbedding(*table.shape, row_modes, column_modes, 1)
    layer.set_cores(matrix_to_ttm(table, row_modes, column_modes, FULL))
    torch.testing.assert_close(layer.to_dense(), table, rtol=0, atol=1e-12)


@given(st.data(), st.lists(st.tuples(mode, mode), min_size=1, max_size=4), st.booleans())
def test_lookup_agrees_with_autograd_through_the_table(data, pairs, double):
    torch.manual_seed(0)
    row_modes, column_modes = zip(*pairs, strict=True)
    ranks = data.draw(st.lists(st.integers(1, 4), min_size=len(pairs) - 1, max_size=len(pairs) - 1))
    rows, columns = math.prod(row_modes), math.prod(column_modes)
    ids = torch.tensor(data.draw(st.lists(st.lists(st.integers(0, rows - 1), min_size=2, max_size=2), max_size=3)))
    ids = ids.long().reshape(-1, 2)
    layer = TTMEmbedding(rows, columns, row_modes, column_modes, ranks)
    draw = torch.randn if double else lambda *shape: torch.rand(*shape) + 0.5  # see test_tensor_flows
    with torch.no_grad():
        for core in layer.cores:
            core.copy_(draw(*core.shape))
    layer = layer.double() if double else layer
    wide = [core.detach().double().requires_grad_() for core in layer.cores]
    expected = ttm_to_matrix(wide)[ids]
    dy = draw(*expected.shape)
    y = layer(ids)
    found = [y, *torch.autograd.grad(y, list(layer.cores), dy.to(y.dtype))]
    for a, b in zip(found, [expected, *torch.autograd.grad(expected, wide, dy.double())], strict=True):
        assert (a.double() - b).norm() <= (1e-10 if double else 1e-5) * b.norm()


def test_lookup_never_builds_the_table():
    """A table of 10^12 rows: only a lookup that touches slices alone can answer."""
    layer = TTMEmbedding(10**12, 8, (10**4,) * 3, (2, 2, 2), 2)
    rows = layer(torch.tensor([0, 10**12 - 1]))
    a, b, c = layer.cores
    last = torch.einsum("xiy,yjz,zkw->ijk", a[:, -1], b[:, -1], c[:, -1]).reshape(-1)
    torch.testing.assert_close(rows[1], last)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: matrix_to_tt(torch.zeros(6, 4), (2, 2), (2, 2), 2), r"out_modes \(2, 2\): 2 x 2 = 4, not 6"),
        (lambda: matrix_to_tt(torch.zeros(6), (2, 3), (1,), 2), r"the matrix has shape \(6,\)"),
        (lambda: matrix_to_ttm(torch.zeros(6, 4), (2, 3), (4,), 2), "differ in number: .* pad the shorter with 1"),
        (lambda: tt_to_matrix([torch.zeros(1, 2, 3), torch.zeros(2, 2, 1)], (2,)), "core 1 .* ends with rank 3"),
        (lambda: tt_to_matrix([torch.zeros(2, 2, 3), torch.zeros(3, 2, 1)], (2,)), "outer ranks are 2 and 1"),
        (lambda: tt_to_matrix([torch.zeros(1, 2), torch.zeros(2, 1)], (2,)), "each of 3 dimensions"),
        (lambda: tt_to_matrix([torch.zeros(1, 2, 3), torch.zeros(3, 2, 1)], (3,)), r"cores have modes \(2, 2\)"),
        (lambda: tt_to_matrix([torch.zeros(1, 2, 1)], (2,)), "output modes come first, then input modes"),
        (lambda: ttm_to_matrix([]), "at least one core"),
        (lambda: TTLinear(12, 6, (2, 3), (12, 0), 2), r"in_modes are \(12, 0\): modes are integers of at least 1"),
        (lambda: TTLinear(12, 6, (2, 3), (3, 4), 0), "rank is 0: ranks are integers of at least 1"),
        (lambda: TTLinear(12, 6, (2, 3), (3, 4), (2, 2)), "4 cores have 3 internal ranks; give 3 or one integer"),
        (
            lambda: TTLinear(12, 6, (2, 3), (3, 4), 2, "left"),
            "flow is 'left': choose one of right_to_left",
        ),
        (
            lambda: TTLinear(12, 6, (2, 3), (3, 4), 2)(torch.zeros(5, 13)),
            r"\(5, 13\): its last dimension must be",
        ),
        *(
            (
                lambda ids=ids: TTMEmbedding(12, 6, (3, 4), (2, 3), 2)(torch.tensor(ids)),
                rf"ids are from {min(ids)} to {max(ids)}: the table has rows 0 to 11",
            )
            for ids in ([12], [3, -1], [0, 1000])
        ),
        (lambda: balanced_modes(0), "size is 0"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(BttlabError, match=message):
        call()


@given(st.integers(1, 10**6))
def test_balanced_modes_are_the_least_that_hold_a_size(size):
    modes = balanced_modes(size)
    assert max(modes) - min(modes) <= 1 and math.prod(modes) >= size
    smaller = (*sorted(modes)[:2], max(modes) - 1)  # the next product below
    assert math.prod(smaller) < size
