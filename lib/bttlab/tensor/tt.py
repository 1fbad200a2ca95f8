"""TT matrices: cores of shape (r_prev, n, r_next), output modes first.

W[i_1 ... i_d, j_1 ... j_m] = G_1[i_1] ... G_d[i_d] G_(d+1)[j_1] ... G_(d+m)[j_m]. Splitting the train between the
output and the input modes gives W = L R with L (out x r) and R (r x in) (arXiv 2501.06663).
The format is of I. V. Oseledets, "Tensor-Train Decomposition", SIAM J. Sci. Comput. 33(5), 2011.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from bttlab.tensor.shapes import ShapeError, check_cores, check_modes, full_ranks

if TYPE_CHECKING:
    from torch import Tensor


def merge_left(cores: Sequence[Tensor]) -> list[Tensor]:
    """Merge cores, shapes (r_(k-1), n_k, r_k), r_0 = 1, from the left, and return all intermediates.

    Entry k, of shape (n_1 ... n_k, r_k), is the product of the first k cores; the last one is L.
    """
    merged = [cores[0].reshape(-1, cores[0].shape[2])]
    for core in cores[1:]:
        merged.append(merged[-1].mm(core.reshape(core.shape[0], -1)).view(-1, core.shape[2]))
    return merged


def merge_left_backward(grad: Tensor, cores: Sequence[Tensor], merged: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of `cores` from the gradient of `merge_left(cores)[-1]` and `merged`, all its results."""
    grads = []
    for core, before in zip(reversed(cores[1:]), reversed(merged[:-1]), strict=True):
        grad = grad.view(before.shape[0], -1)
        grads.append(before.t().mm(grad).view(core.shape))
        grad = grad.mm(core.reshape(core.shape[0], -1).t())
    grads.append(grad.view(cores[0].shape))
    return grads[::-1]


def merge_right(cores: Sequence[Tensor]) -> list[Tensor]:
    """Merge cores, shapes (r_(k-1), n_k, r_k), last r = 1, from the right, and return all intermediates.

    Entry k, of shape (r_(k-1), n_k ... n_m), is the product of the cores from the k-th on; the first one is R.
    """
    merged = [cores[-1].reshape(cores[-1].shape[0], -1)]
    for core in reversed(cores[:-1]):
        merged.append(core.reshape(-1, core.shape[2]).mm(merged[-1]).view(core.shape[0], -1))
    return merged[::-1]


def merge_right_backward(grad: Tensor, cores: Sequence[Tensor], merged: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of `cores` from the gradient of `merge_right(cores)[0]` and `merged`, all its results."""
    grads = []
    for core, after in zip(cores[:-1], merged[1:], strict=True):
        grad = grad.view(-1, after.shape[1])
        grads.append(grad.mm(after.t()).view(core.shape))
        grad = core.reshape(-1, core.shape[2]).t().mm(grad)
    grads.append(grad.view(cores[-1].shape))
    return grads


def tt_to_matrix(cores: Sequence[Tensor], out_modes: Sequence[int]) -> Tensor:
    """Reassemble the matrix of a TT.

    Parameters
    ----------
    cores : sequence of Tensor
        Of shapes (r_prev, n, r_next), output modes first.
    out_modes : sequence of int
        The output modes, which say how many cores are those of the output.

    Returns
    -------
    Tensor
        The matrix, of shape (out, in).

    Raises
    ------
    ShapeError
        If the cores are not a tensor train, do not begin with `out_modes` or leave no core for the input.
    """
    check_cores([core.shape for core in cores], order=3)
    out_modes = check_modes("out_modes", out_modes)
    modes = tuple(core.shape[1] for core in cores)
    if modes[: len(out_modes)] != out_modes or len(modes) == len(out_modes):
        raise ShapeError(
            f"out_modes are {out_modes} but the cores have modes {modes}: output modes come first, then input modes"
        )
    return merge_left(cores[: len(out_modes)])[-1] @ merge_right(cores[len(out_modes) :])[0]


def matrix_to_tt(
    matrix: Tensor,
    out_modes: Sequence[int],
    in_modes: Sequence[int],
    rank: int | Sequence[int] | None = None,
    error: float | None = None,
) -> list[Tensor]:
    """Decompose a matrix into a TT by TT-SVD (Oseledets 2011).

    Give either `rank` or `error`. The squared Frobenius error is at most the sum over all bonds of the squared singular
    values left out.

    Parameters
    ----------
    matrix : Tensor
        Of shape (out, in).
    out_modes, in_modes : sequence of int
        Factorisations of its two sizes.
    rank : int or sequence of int, optional
        The largest internal ranks. One larger than the unfolding at its bond allows is reduced.
    error : float, optional
        The largest relative error in the Frobenius norm. Ranks are chosen that satisfy it with few numbers.

    Returns
    -------
    list of Tensor
        The cores, of shapes (r_prev, n, r_next), output modes first.

    Raises
    ------
    ShapeError
        If modes, ranks or the error do not fit the matrix.
    """
    if matrix.ndim != 2:
        raise ShapeError(f"the matrix has shape {tuple(matrix.shape)}: it must have two dimensions")
    out_modes = check_modes("out_modes", out_modes, matrix.shape[0])
    in_modes = check_modes("in_modes", in_modes, matrix.shape[1])
    return tt_svd(matrix.detach().reshape(out_modes + in_modes), rank, error)


def tt_svd(tensor: Tensor, rank: int | Sequence[int] | None = None, error: float | None = None) -> list[Tensor]:
    """Decompose a tensor of any number of dimensions into a TT by TT-SVD (Oseledets 2011).

    Parameters
    ----------
    tensor : Tensor
        Of shape (n_1, ..., n_d).
    rank, error : int, sequence of int, or float, optional
        As for `matrix_to_tt`.

    Returns
    -------
    list of Tensor
        The d cores, of shapes (r_prev, n, r_next).

    Raises
    ------
    ShapeError
        If ranks or the error do not fit the tensor.
    """
    if not tensor.ndim or not tensor.numel():
        raise ShapeError(f"the tensor has shape {tuple(tensor.shape)}: it must have a dimension, and none of size 0")
    if (rank is None) == (error is None):
        raise ShapeError(f"rank is {rank} and error is {error}: give one of them")
    if error is not None and not 0 <= error < 1:
        raise ShapeError(f"error is {error}: it must be at least 0 and below 1")
    import torch  # here, because costs are computed without torch

    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise ShapeError(f"the tensor has {tensor.dtype}: cores are no integers; call float() first")
    rest = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
    if rest.is_meta or not bool(torch.isfinite(rest).all()):
        raise ShapeError("the weight has no values, or NaN or infinite ones: load or initialize it first")
    if error is None:
        most, losses, allowed = full_ranks(cast("int | Sequence[int]", rank), tensor.ndim)[1:-1], (), 0.0
    else:
        most, losses, allowed = _planned(rest, error)
    cores, before = [], 1
    for k, (mode, limit) in enumerate(zip(tensor.shape[:-1], most, strict=True)):
        u, values, v = torch.linalg.svd(rest.reshape(before * mode, -1), full_matrices=False)
        after = min(limit, len(values))
        if error is not None:  # spend what earlier bonds left of their share
            lost = values.double().square().flip(0).cumsum(0)  # by leaving out the smallest, the two smallest, ...
            spare = int((lost <= allowed - sum(losses[k + 1 :])).sum())
            after = max(1, min(after, len(values) - spare))
            allowed -= float(lost[len(values) - after - 1]) if after < len(values) else 0.0
        cores.append(u[:, :after].reshape(before, mode, after))
        rest, before = values[:after, None] * v[:after], after
    cores.append(rest.reshape(before, tensor.shape[-1], 1))
    # The last core has the norm of the tensor.
    if float(cores[-1].abs().max()) > torch.finfo(tensor.dtype).max:
        raise ShapeError(
            f"cores of this tensor are too large for {tensor.dtype}: convert it to float32 or bfloat16 first"
        )
    return [core.to(tensor.dtype).contiguous() for core in cores]


def _planned(tensor: Tensor, error: float) -> tuple[list[int], list[float], float]:
    """Return ranks of few numbers within an error, the squared error of each bond, and the squared error allowed.

    Singular values are left out one at a time, of the bond where that saves the most numbers for its error. TT-SVD
    loses at most as much at a bond, since its earlier projections reduce the singular values.
    """
    import torch

    modes, bonds = tensor.shape, range(tensor.ndim - 1)
    unfoldings = [tensor.reshape(math.prod(modes[: k + 1]), -1) for k in bonds]
    values = [torch.linalg.svdvals(matrix).double().square().tolist() for matrix in unfoldings]
    allowed = rest = error**2 * float(tensor.abs().double().square().sum())
    ranks, losses = [1, *map(len, values), 1], [0.0] * len(values)

    def price(k: int) -> float:
        return values[k][ranks[k + 1] - 1] / (modes[k] * ranks[k] + modes[k + 1] * ranks[k + 2])

    while affordable := [k for k in bonds if ranks[k + 1] > 1 and values[k][ranks[k + 1] - 1] <= rest]:
        k = min(affordable, key=price)
        ranks[k + 1] -= 1
        rest -= values[k][ranks[k + 1]]
        losses[k] += values[k][ranks[k + 1]]
    return ranks[1:-1], losses, allowed


def core_std(shapes: Sequence[Sequence[int]], entry_std: float) -> float:
    """Return the standard deviation of core entries for a matrix whose entries have a given one.

    An entry of the matrix is a sum of prod(internal ranks) products of d independent zero-mean core entries, one from
    each of the d cores, so its variance is prod(internal ranks) sigma^(2d). This holds for both TT and TTM.

    Parameters
    ----------
    shapes : sequence of sequence of int
        Of the cores, each (r_prev, ..., r_next).
    entry_std : float
        Standard deviation of the matrix's entries.

    Returns
    -------
    float
        Sigma, of the entries of every core.
    """
    terms = math.prod(shape[-1] for shape in shapes)
    return (entry_std**2 / terms) ** (0.5 / len(shapes))
