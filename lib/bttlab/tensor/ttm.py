"""TTM matrices: cores of shape (r_prev, row mode, column mode, r_next).

E[i_1 ... i_d, j_1 ... j_d] = G_1[i_1, j_1] ... G_d[i_d, j_d]: a row is a product of slices, one from each core, so a
lookup of rows does not build the table (arXiv 2501.06663).
The format is of I. V. Oseledets, "Tensor-Train Decomposition", SIAM J. Sci. Comput. 33(5), 2011.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bttlab.tensor.shapes import ShapeError, check_cores, check_modes, check_row_modes, ttm_shapes
from bttlab.tensor.tt import tt_svd


def ttm_to_matrix(cores: Sequence[Tensor]) -> Tensor:
    """Reassemble the matrix of a TTM.

    Parameters
    ----------
    cores : sequence of Tensor
        Of shapes (r_prev, row mode, column mode, r_next).

    Returns
    -------
    Tensor
        The matrix, of shape (rows, columns).

    Raises
    ------
    ShapeError
        If the cores are not a tensor train.
    """
    check_cores([core.shape for core in cores], order=4)
    matrix = cores[0][0]  # (rows, columns, r)
    for core in cores[1:]:
        rows, columns, _ = matrix.shape
        _, m, n, rank = core.shape
        product = matrix.flatten(0, 1) @ core.flatten(1)  # not tensordot, which torch.autocast does not know
        matrix = product.view(rows, columns, m, n, rank).transpose(1, 2).reshape(rows * m, columns * n, rank)
    return matrix[:, :, 0]


def matrix_to_ttm(
    matrix: Tensor,
    row_modes: Sequence[int],
    column_modes: Sequence[int],
    rank: int | Sequence[int] | None = None,
    error: float | None = None,
) -> list[Tensor]:
    """Decompose a matrix into a TTM by the TT-SVD of its tensor of paired modes (Oseledets 2011).

    Parameters
    ----------
    matrix : Tensor
        Of shape (rows, columns).
    row_modes, column_modes : sequence of int
        Factorisations of its two sizes, with the same number of factors. Where the product of the row modes is larger
        than the number of rows, rows of zeros fill it up.
    rank, error : int, sequence of int, or float, optional
        As for `bttlab.tensor.matrix_to_tt`.

    Returns
    -------
    list of Tensor
        The cores, of shapes (r_prev, row mode, column mode, r_next).

    Raises
    ------
    ShapeError
        If modes, ranks or the error do not fit the matrix.
    """
    if matrix.ndim != 2:
        raise ShapeError(f"the matrix has shape {tuple(matrix.shape)}: it must have two dimensions")
    rows, columns = matrix.shape
    row_modes, column_modes = check_row_modes(row_modes, rows), check_modes("column_modes", column_modes, columns)
    matrix = torch.nn.functional.pad(matrix, (0, 0, 0, math.prod(row_modes) - rows))
    ttm_shapes(row_modes, column_modes, 1)  # checks that their numbers are equal
    count = len(row_modes)
    pairs = [axis for k in range(count) for axis in (k, count + k)]
    paired = [m * n for m, n in zip(row_modes, column_modes, strict=True)]
    cores = tt_svd(matrix.detach().reshape(row_modes + column_modes).permute(pairs).reshape(paired), rank, error)
    return [
        core.reshape(core.shape[0], m, n, core.shape[2])
        for core, m, n in zip(cores, row_modes, column_modes, strict=True)
    ]


def row_digits(ids: Tensor, row_modes: Sequence[int]) -> list[Tensor]:
    """Split row numbers, shape (tokens,), into their digits i_1 ... i_d, the most significant first.

    An id after the last row gives a first digit outside its mode; a negative id gives a negative first digit.
    """
    digits = []
    for mode in reversed(row_modes[1:]):
        digits.append(ids % mode)
        ids = ids.div(mode, rounding_mode="floor")
    return [ids, *reversed(digits)]


def lookup(digits: Sequence[Tensor], cores: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Look up each token's row, (tokens, columns): multiply its slices from the first core to the last.

    `digits` are those of `row_digits`, int64 of shape (tokens,); cores have the shapes (r_(k-1), m_k, n_k, r_k). Also
    returned, for `lookup_backward`: the slices of the second to the last core, shapes (r_(k-1), tokens, n_k r_k), then
    the partial products before each of them, shapes (tokens, n_1 ... n_(k-1), r_(k-1)). Raises IndexError or
    RuntimeError if a digit is outside its mode (on a CPU; a GPU asserts).
    """
    tokens = digits[0].shape[0]
    product = cores[0].index_select(1, digits[0])[0]  # (tokens, n_1, r_1)
    slices, partials = [], []
    for core, digit in zip(cores[1:], digits[1:], strict=True):
        before, _, n, after = core.shape
        part = core.index_select(1, digit).view(before, tokens, n * after)
        slices.append(part)
        partials.append(product)
        product = product.bmm(part.transpose(0, 1)).view(tokens, product.shape[1] * n, after)
    return product[:, :, 0], (*slices, *partials)


def lookup_backward(
    drows: Tensor, digits: Sequence[Tensor], cores: Sequence[Tensor], saved: tuple[Tensor, ...]
) -> list[Tensor]:
    """Return the gradients of the cores: zero except for the slices looked up, summed over the tokens that use one."""
    slices, partials = saved[: len(cores) - 1], saved[len(cores) - 1 :]
    tokens = drows.shape[0]
    grad = drows
    grads = []
    for core, digit, part, product in zip(cores[:0:-1], digits[:0:-1], slices[::-1], partials[::-1], strict=True):
        grad = grad.reshape(tokens, product.shape[1], part.shape[2])  # gradient of the product with this core's slice
        dpart = product.transpose(1, 2).bmm(grad).transpose(0, 1)  # (r_(k-1), tokens, n_k r_k)
        grads.append(_scatter(core, digit, dpart))
        grad = grad.bmm(part.permute(1, 2, 0))  # (tokens, n_1 ... n_(k-1), r_(k-1))
    grads.append(_scatter(cores[0], digits[0], grad))
    return grads[::-1]


def _scatter(core: Tensor, digit: Tensor, dpart: Tensor) -> Tensor:
    """Add the tokens' gradients of slices, (r_prev, tokens, n r_next), to the gradient of their core."""
    before, _, n, after = core.shape
    parts = dpart.reshape(before, digit.shape[0], n, after).to(core.dtype)  # torch.autocast gives lower precision
    try:
        return torch.zeros_like(core).index_add_(1, digit, parts)
    except RuntimeError:  # of vmap: parts are a batch of gradients, and one core cannot hold their sums
        return torch.zeros_like(core).index_add(1, digit, parts)
