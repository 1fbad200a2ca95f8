"""Exercises of notebook 01."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bttlab.lab.compression import truncate
from bttlab.model import ModelConfig
from bttlab.teaching.exercises.answers import MODES, RANK, called, is_whole, require_number
from bttlab.teaching.exercises.check import exercise, require
from bttlab.tensor.shapes import tt_shapes

FEATURES = ModelConfig.hidden_size


def _numbers(modes: Sequence[Sequence[int]], rank: int) -> int:
    return sum(a * n * b for a, n, b in tt_shapes(*modes, rank))


@exercise("01.1", "a core has r_prev * n * r_next numbers, and the outermost ranks are 1. The explorer says it, too.")
def half_the_rank(answer: Any) -> str:
    require_number(answer, _numbers(MODES, RANK // 2), 0)
    return "Half the rank is about a quarter of the parameters: the inner cores go with its square."


@exercise(
    "01.2",
    "both tuples must multiply to 768, and only the modes at the two ends have a core of one rank: "
    "there a large mode is cheap. Try more than three modes on each side.",
)
def smaller_modes(answer: Any) -> str:
    """(output modes, input modes)."""
    for side, modes in zip(("output", "input"), answer, strict=True):
        product = math.prod(modes)
        require(product == FEATURES, f"your {side} modes {tuple(modes)} multiply to {product}, not {FEATURES}")
    count, paper = _numbers(answer, RANK), _numbers(MODES, RANK)
    require(count < paper, f"your modes give {count:,} parameters; fewer than {paper:,} are asked for")
    return f"{count:,} parameters, not {paper:,}; but each further core is one more contraction (notebook 02)."


@exercise(
    "01.3",
    "count with truncate(trained, OUT_MODES, IN_MODES, rank).parameters; try ranks between 300 and 400.",
)
def no_gain(answer: Any, trained: Tensor) -> str:
    require(is_whole(answer), f"you gave {answer!r}, which is not a rank")
    rank = int(answer)  # np.ceil gives a float
    here, before = (truncate(trained, *MODES, count) for count in (rank, rank - 1))
    size = trained.numel()
    found = f"at rank {rank} the cores have {here.parameters:,} parameters, the matrix {size:,}"
    require(here.parameters > size, found)
    require(size >= before.parameters, f"{found}; rank {rank - 1} has more than the matrix, too")
    return f"And at that rank {here.error:.0%} of the matrix is still lost."


def _require_cuts(cut: Callable, shapes: Sequence[tuple[int, int, int]]) -> None:
    """Raise `Wrong` unless it gives the best approximation, its first factor with orthonormal columns."""
    for seed, (rows, columns, rank) in enumerate(shapes):
        matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
        left, rest = called(cut, matrix, rank)
        given, found = f"cut at rank {rank}, a {rows} x {columns} matrix", (tuple(left.shape), tuple(rest.shape))
        wanted = (rows, rank), (rank, columns)
        require(found == wanted, f"{given} gives you the shapes {found}, not {wanted}")
        is_orthonormal = torch.allclose(left.T @ left, torch.eye(rank, dtype=torch.double), atol=1e-9)
        require(is_orthonormal, f"{given} gives you a `left` whose columns are not orthonormal")
        lost, least = (matrix - left @ rest).norm(), torch.linalg.svdvals(matrix)[rank:].norm()
        is_best = torch.isclose(lost, least, rtol=1e-6, atol=1e-9)
        require(is_best, f"{given} loses {lost:.4g} of its norm; the best cut loses {least:.4g}")


@exercise(
    "01.4",
    "which of the three factors of an SVD has orthonormal columns, and how many of them stay? The product of the other "
    "two goes on; both lose what lies behind the rank.",
    hidden=lambda cut: _require_cuts(cut, [(12, 49_152 // 256, 12), (96, 64, 1), (5, 5, 5)]),
)
def one_cut(answer: Any) -> str:
    """cut(matrix, rank) -> (left, rest)."""
    _require_cuts(answer, [(20, 30, 4)])
    return "Fold the rest, cut again: that is all of TT-SVD."
