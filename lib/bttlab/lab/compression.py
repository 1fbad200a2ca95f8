"""TT-SVD of a matrix: cores, parameters, error and spectra over modes and rank, as a figure and under sliders."""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ipywidgets as widgets
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import Tensor

from bttlab.lab.charts import PALETTE, new_figure, style
from bttlab.lab.explorer import Explorer, control, row, slider
from bttlab.lab.picture import Picture
from bttlab.model import ModelConfig
from bttlab.tensor import ShapeError, check_modes, choose_modes, matrix_to_tt, tt_to_matrix

MOST_MODE, MOST_RANK = 48, 128
SMALL = 8.5  # points
LINES = ("-", "--", "-.", ":", (0, (5, 1)))  # of the bonds, some of whose spectra coincide


@dataclass(frozen=True)
class Truncation:
    """A matrix as a tensor train of limited rank."""

    shapes: tuple[tuple[int, int, int], ...]  # of the cores, (r_prev, n, r_next), output modes first
    parameters: int  # elements of all cores
    error: float  # Frobenius norm of what is lost over that of the matrix

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks between the cores; lower than asked for where an unfolding has no more."""
        return tuple(shape[2] for shape in self.shapes[:-1])


def truncate(matrix: Tensor, out_modes: Sequence[int], in_modes: Sequence[int], rank: int) -> Truncation:
    """Decompose a matrix by TT-SVD, as `bttlab.tensor.matrix_to_tt` does.

    Parameters
    ----------
    matrix : Tensor
        Shape (out, in).
    out_modes, in_modes : sequence of int
        Factorisations of out and in.
    rank : int
        Largest internal rank.

    Returns
    -------
    Truncation
        Cores, and what is lost.

    Raises
    ------
    ShapeError
        If modes or rank are not allowed.
    """
    matrix = _single(matrix)
    cores = matrix_to_tt(matrix, out_modes, in_modes, rank)
    lost, norm = (tt_to_matrix(cores, out_modes) - matrix).norm(), matrix.norm()
    error = lost / norm if norm else norm  # of zeros nothing is lost
    shapes = tuple(tuple(core.shape) for core in cores)
    return Truncation(shapes, sum(core.numel() for core in cores), float(error))


def spectra(matrix: Tensor, out_modes: Sequence[int], in_modes: Sequence[int]) -> list[Tensor]:
    """Return the singular values at each bond: those of the matrix folded into modes and cut there.

    They are divided by the matrix's norm, so that the squares of each bond's add up to 1. A TT of rank r loses at
    least what lies behind the r-th value at any one bond.

    Parameters
    ----------
    matrix : Tensor
        Shape (out, in).
    out_modes, in_modes : sequence of int
        Factorisations of out and in.

    Returns
    -------
    list of Tensor
        Descending singular values of each bond.

    Raises
    ------
    ShapeError
        If modes are not allowed.
    """
    matrix = _single(matrix)
    rows, columns = matrix.shape
    modes = (*check_modes("out_modes", out_modes, rows), *check_modes("in_modes", in_modes, columns))
    norm = matrix.norm() if matrix.any() else 1.0  # zeros have zeros alone
    rows = [math.prod(modes[:k]) for k in range(1, len(modes))]
    return [torch.linalg.svdvals(matrix.reshape(count, -1)) / norm for count in rows]


def _single(matrix: Tensor) -> Tensor:
    """Return a matrix without gradients, in single precision at least: there is no SVD in half precision."""
    return matrix.detach().to(torch.promote_types(matrix.dtype, torch.float32))


def draw_truncation(
    matrices: Mapping[str, Tensor], out_modes: Sequence[int], in_modes: Sequence[int], ranks: Sequence[int]
) -> Picture:
    """Draw the relative error of each matrix over the rank, and the parameters of cores and matrix.

    Parameters
    ----------
    matrices : mapping of str to Tensor
        Of one shape, (out, in), by the names in the legend.
    out_modes, in_modes : sequence of int
        Factorisations of out and in.
    ranks : sequence of int
        To cut at.

    Returns
    -------
    Picture
        Two panels.

    Raises
    ------
    ShapeError
        If modes or a rank are not allowed, or there is no matrix.
    """
    if not matrices:
        raise ShapeError("there is no matrix to draw: give at least one")
    figure = new_figure(8.3, 3.2)
    left, right = figure.subplots(1, 2)
    style(left, "What is lost (measured)", "rank", "error, part of the norm")
    style(right, "What it costs", "rank", "parameters")
    for (name, matrix), colour in zip(matrices.items(), itertools.cycle(PALETTE), strict=False):
        cuts = [truncate(matrix, out_modes, in_modes, rank) for rank in ranks]
        left.semilogx(ranks, [cut.error for cut in cuts], "o-", label=name, color=colour)
    left.set_ylim(0, 1.05)
    right.loglog(ranks, [cut.parameters for cut in cuts], "o-", color=PALETTE[2], label="cores")
    right.axhline(matrix.numel(), color="0.4", linestyle="--", label="matrix")
    for axes in (left, right):
        axes.legend(loc="best")
    return Picture(figure, "Error and parameters over the rank.")


class CompressionExplorer(Explorer):
    """Fold a matrix, cut its ranks, and see what is left.

    Parameters
    ----------
    matrix : Tensor
        Of two dimensions, (out, in). The explorer begins with the modes of the paper's layers if they fit its sizes.
    """

    def __init__(self, matrix: Tensor):
        self._matrix = matrix
        out_modes, in_modes = ModelConfig.linear_out_modes, ModelConfig.linear_in_modes
        self._spectra = functools.lru_cache(8)(lambda outs, ins: spectra(matrix, outs, ins))
        rows, columns = matrix.shape
        self.out_menu = _menu("output modes", rows, out_modes)
        self.in_menu = _menu("input modes", columns, in_modes)
        self.rank_slider = slider(ModelConfig.linear_rank, 1, MOST_RANK, "rank", "508px")
        self.truncation: Truncation | None = None
        figures = [new_figure(width, height) for width, height in ((8.3, 2.3), (4.6, 2.8), (3.7, 2.8))]
        self._train, self._spectrum, self._sizes = (figure.subplots() for figure in figures)
        super().__init__(*figures, controls=[row(self.out_menu, self.in_menu), row(self.rank_slider)])

    def _update(self) -> tuple[str, str]:
        rows, columns = self._matrix.shape
        outs, ins = self.out_menu.value, self.in_menu.value
        rank = self.rank_slider.value
        self.truncation = cut = truncate(self._matrix, outs, ins, rank)
        _draw_train(self._train, cut.shapes, len(outs))
        self._draw_spectrum(self._spectra(outs, ins), rank)
        self._draw_sizes(cut)
        lowered = sorted({r for r in cut.ranks if r < rank})
        note = (
            f"rank {rank} is more than some bonds can have: they are exact at {', '.join(map(str, lowered))}"
            if lowered
            else ""
        )
        factor = rows * columns / cut.parameters
        results = (
            f"<b>{cut.parameters:,}</b> parameters instead of {rows * columns:,}, {factor:,.1f} times fewer; "
            f"error <b>{cut.error:.2%}</b> of the matrix's norm (measured)"
        )
        return results, note

    def _draw_spectrum(self, values: list[Tensor], rank: int) -> None:
        axes = self._spectrum
        axes.clear()
        style(axes, "Singular values at each bond", "largest, second, …", "part of the norm")
        for k, bond in enumerate(values):
            shown = bond.clamp_min(1e-9).numpy()
            look = {"color": PALETTE[k], "linestyle": LINES[k % len(LINES)], "linewidth": 1.8}
            axes.loglog(np.arange(1, len(shown) + 1), shown, label=f"{k + 1}", **look)
        axes.axvline(rank, color="0.2", linestyle="--", linewidth=1)
        axes.text(rank * 1.06, 0.03, f"rank {rank}", transform=axes.get_xaxis_transform(), fontsize=9)
        axes.set_ylim(bottom=max(1e-6, axes.get_ylim()[0]))
        axes.legend(title="bond", fontsize=8, title_fontsize=8, ncols=2, loc="lower left", framealpha=0.7)

    def _draw_sizes(self, cut: Truncation) -> None:
        axes = self._sizes
        axes.clear()
        style(axes, "Parameters", "parameters (thousand)", "")
        most = max(self._matrix.numel(), cut.parameters)
        for place, (name, count, colour) in enumerate(
            (("matrix", self._matrix.numel(), "0.6"), ("cores", cut.parameters, PALETTE[0]))
        ):
            axes.barh(place, count / 1e3, color=colour, height=0.35)
            axes.text(0, place - 0.22, f"{name} {count:,}", va="bottom", fontweight="bold", fontsize=9)
        axes.set(xlim=(0, 1.02 * most / 1e3), yticks=[], ylim=(1.4, -0.7))


def factorisations(number: int, count: int = 3, most: int = MOST_MODE) -> list[tuple[int, ...]]:
    """Return the ways to write a number as a product of `count` factors of 2 to `most`, in every order."""
    if count == 1:
        return [(number,)] if 2 <= number <= most else []
    firsts = (n for n in range(2, min(most, number) + 1) if number % n == 0)
    return [(first, *rest) for first in firsts for rest in factorisations(number // first, count - 1, most)]


def _menu(name: str, number: int, modes: Sequence[int]) -> widgets.Dropdown:
    first = tuple(modes) if math.prod(modes) == number else choose_modes(number, len(modes))
    offered = dict.fromkeys([first, *factorisations(number, len(modes))])
    options = [(" x ".join(map(str, found)), found) for found in offered]
    return control(widgets.Dropdown, name, "254px", 100, options=options, value=first)


def _draw_train(axes: Axes, shapes: Sequence[tuple[int, int, int]], outputs: int) -> None:
    """Draw a TT: a square for each core, its area in proportion to the elements; bonds with their ranks, modes below.

    `shapes` are (r_prev, n, r_next); the first `outputs` cores carry output modes.
    """
    axes.clear()
    axes.set_axis_off()
    axes.set(xlim=(-0.6, len(shapes) - 0.4), ylim=(-1.05, 0.75), aspect="equal", anchor="C")
    most = max(a * n * b for a, n, b in shapes)
    for k, (before, n, after) in enumerate(shapes):
        if k + 1 < len(shapes):
            axes.plot([k, k + 1], [0, 0], color="0.55", linewidth=1 + after**0.5 / 2, zorder=1, solid_capstyle="butt")
            axes.text(k + 0.5, 0.5, f"rank {after}", ha="center", fontsize=SMALL, color="0.3")
        side = 0.12 + 0.58 * (before * n * after / most) ** 0.5
        colour = PALETTE[0] if k < outputs else PALETTE[1]
        axes.plot([k, k], [0, -0.6], color=colour, linewidth=2, zorder=1)
        axes.add_patch(Rectangle((k - side / 2, -side / 2), side, side, color=colour, zorder=2))
        mode = f"{'output' if k < outputs else 'input'} mode {n}"
        axes.text(k, -0.72, mode, ha="center", fontsize=SMALL, color=colour)
        axes.text(k, -0.95, f"{before} x {n} x {after}", ha="center", fontsize=SMALL, color="0.3")
        axes.text(k, 0.5, f"$G_{k + 1}$", ha="center", fontsize=11)
