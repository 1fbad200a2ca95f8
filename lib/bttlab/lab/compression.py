"""TT-SVD of a matrix: cores, parameters, error and spectra over modes and rank."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bttlab.lab.charts import PALETTE, new_figure, style
from bttlab.lab.picture import Picture
from bttlab.tensor import matrix_to_tt, tt_to_matrix


@dataclass(frozen=True)
class Truncation:
    """A matrix as a tensor train of limited rank.

    Attributes
    ----------
    shapes : tuple of (int, int, int)
        Of the cores, (r_prev, n, r_next), output modes first.
    parameters : int
        Elements of all cores.
    error : float
        Frobenius norm of what is lost over that of the matrix.
    """

    shapes: tuple[tuple[int, int, int], ...]
    parameters: int
    error: float

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks between the cores; lower than asked for where an unfolding has no more."""
        return tuple(shape[2] for shape in self.shapes[:-1])


def truncate(matrix: Tensor, out_modes: Sequence[int], in_modes: Sequence[int], rank: int) -> Truncation:
    """Decompose a matrix by TT-SVD; parameters and errors as `bttlab.tensor.matrix_to_tt`."""
    cores = matrix_to_tt(matrix, out_modes, in_modes, rank)
    error = (tt_to_matrix(cores, out_modes) - matrix).norm() / matrix.norm()
    shapes = tuple(tuple(core.shape) for core in cores)
    return Truncation(shapes, sum(core.numel() for core in cores), float(error))


def spectra(matrix: Tensor, out_modes: Sequence[int], in_modes: Sequence[int]) -> list[Tensor]:
    """Return the singular values at each bond: those of the matrix folded into modes and cut there.

    They are divided by the matrix's norm, so that the squares of each bond's add up to 1. A TT of rank r loses at
    least what lies behind the r-th value at any one bond.

    Parameters
    ----------
    matrix : Tensor, shape (out, in)
    out_modes, in_modes : sequence of int

    Returns
    -------
    list of Tensor
        One for each of the len(out_modes) + len(in_modes) - 1 bonds, from the first core to the last.
    """
    modes = (*out_modes, *in_modes)
    norm = matrix.norm()
    rows = [math.prod(modes[:k]) for k in range(1, len(modes))]
    return [torch.linalg.svdvals(matrix.reshape(count, -1)) / norm for count in rows]


def draw_truncation(
    matrices: Mapping[str, Tensor], out_modes: Sequence[int], in_modes: Sequence[int], ranks: Sequence[int]
) -> Picture:
    """Draw error and parameters over the rank.

    Parameters
    ----------
    matrices : mapping of str to Tensor
        Of one shape, under the names that the legend gives them.
    out_modes, in_modes, ranks : sequence of int
    """
    figure = new_figure(8.3, 3.2)
    left, right = figure.subplots(1, 2)
    style(left, "What is lost (measured)", "rank", "error, part of the norm")
    style(right, "What it costs", "rank", "parameters")
    for (name, matrix), colour in zip(matrices.items(), PALETTE, strict=False):
        cuts = [truncate(matrix, out_modes, in_modes, rank) for rank in ranks]
        left.semilogx(ranks, [cut.error for cut in cuts], "o-", label=name, color=colour)
    left.set_ylim(0, 1.05)
    right.loglog(ranks, [cut.parameters for cut in cuts], "o-", color=PALETTE[2], label="cores")
    right.axhline(matrix.numel(), color="0.4", linestyle="--", label="matrix")
    for axes in (left, right):
        axes.legend()
    return Picture(figure, "Error and parameters over the rank.")
