"""Flows (orders of contraction) of a TT linear layer: forward and hand-derived backward passes on plain tensors.

y = x W^T with W = L R (see `bttlab.tensor.tt`), x of shape (tokens, in), y of shape (tokens, out). Each flow is a pair

    forward(x, out_cores, in_cores, bias=None) -> (y, saved)
    backward(dy, x, out_cores, in_cores, saved, frozen=False) -> (dx, gradients of out_cores then in_cores)

`saved` are the intermediates that the backward pass needs. Frozen cores get no gradients, and no work for them. The
caller computes the gradient of the bias, dy summed over the tokens. These functions check
nothing; modules check shapes when they are created. The right-to-left and the bi-directional flow are those of
arXiv 2501.06663.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, chain
from typing import TYPE_CHECKING, NamedTuple

from bttlab.tensor.tt import merge_left, merge_left_backward, merge_right, merge_right_backward

if TYPE_CHECKING:  # the costs of these flows are computed without torch
    from torch import Tensor

    Cores = Sequence[Tensor]
    Saved = tuple[Tensor, ...]


def bidirectional(x: Tensor, out_cores: Cores, in_cores: Cores, bias: Tensor | None = None) -> tuple[Tensor, Saved]:
    """Merge the output cores into L and the input cores into R, then compute z = x R^T, y = z L^T + b."""
    left, right = merge_left(out_cores), merge_right(in_cores)  # L is left[-1] (out, r), R is right[0] (r, in)
    z = x.mm(right[0].t())  # (tokens, r)
    return _linear(z, left[-1], bias), (z, *left, *right)


def bidirectional_backward(
    dy: Tensor, x: Tensor, out_cores: Cores, in_cores: Cores, saved: Saved, frozen: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """Compute dx with L and R, then the cores' gradients from dL and dR."""
    z, left, right = saved[0], saved[1 : 1 + len(out_cores)], saved[1 + len(out_cores) :]
    dz = dy.mm(left[-1])  # (tokens, r)
    dx = dz.mm(right[0])
    if frozen:
        return dx, []
    grads = merge_left_backward(dy.t().mm(z), out_cores, left)
    grads += merge_right_backward(dz.t().mm(x), in_cores, right)
    return dx, grads


def reconstruct(x: Tensor, out_cores: Cores, in_cores: Cores, bias: Tensor | None = None) -> tuple[Tensor, Saved]:
    """Build W = L R, then compute y = x W^T + b."""
    left, right = merge_left(out_cores), merge_right(in_cores)
    weight = left[-1].mm(right[0])  # (out, in)
    return _linear(x, weight, bias), (weight, *left, *right)


def reconstruct_backward(
    dy: Tensor, x: Tensor, out_cores: Cores, in_cores: Cores, saved: Saved, frozen: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """Compute dx and dW, then the cores' gradients from dL = dW R^T and dR = L^T dW."""
    weight, left, right = saved[0], saved[1 : 1 + len(out_cores)], saved[1 + len(out_cores) :]
    dx = dy.mm(weight)
    if frozen:
        return dx, []
    dweight = dy.t().mm(x)  # (out, in)
    dleft = dweight.mm(right[0].t())
    dright = left[-1].t().mm(dweight)
    return dx, merge_left_backward(dleft, out_cores, left) + merge_right_backward(dright, in_cores, right)


def right_to_left(x: Tensor, out_cores: Cores, in_cores: Cores, bias: Tensor | None = None) -> tuple[Tensor, Saved]:
    """Contract x with the cores from the last to the first. Every intermediate has all tokens.

    The tokens are the first index while input modes are summed and the last index while output modes are added. So
    every step is one matrix product on views, and y is the transposed view of the last result.
    """
    tokens = x.shape[0]
    steps = []
    a = x
    for core in reversed(in_cores):  # a: (tokens n_1 ... n_(k-1), n_k r_k) -> (tokens n_1 ... n_(k-1), r_(k-1))
        matrix = core.reshape(core.shape[0], -1)
        a = a.reshape(-1, matrix.shape[1]).mm(matrix.t())
        steps.append(a)
    a = a.t()  # (r, tokens)
    for core in reversed(out_cores):  # a: (r_k, n_(k+1) ... n_d tokens) -> (r_(k-1) n_k, n_(k+1) ... n_d tokens)
        matrix = core.reshape(-1, core.shape[2])
        a = matrix.mm(a.reshape(matrix.shape[1], -1))
        steps.append(a)
    y = a.view(math.prod([core.shape[1] for core in out_cores]), tokens).t()
    return (y if bias is None else y + bias.to(y.dtype)), tuple(steps[:-1])


def right_to_left_backward(
    dy: Tensor, x: Tensor, out_cores: Cores, in_cores: Cores, saved: Saved, frozen: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """Reverse the steps of the forward pass. Each gives its core's gradient and the gradient of the step's input."""
    tokens = x.shape[0]
    inputs = [x, *saved]  # of each step, from the last core to the first
    inputs[len(in_cores)] = inputs[len(in_cores)].t()  # (r, tokens)
    grads = []
    grad = dy.t()  # (out, tokens)
    for core, a in zip(out_cores, reversed(inputs[len(in_cores) :]), strict=True):
        matrix = core.reshape(-1, core.shape[2])
        grad = grad.reshape(matrix.shape[0], -1)
        if not frozen:
            grads.append(grad.mm(a.reshape(matrix.shape[1], -1).t()).view(core.shape))
        grad = matrix.t().mm(grad)
    grad = grad.view(out_cores[-1].shape[2], tokens).t()  # (tokens, r)
    for core, a in zip(in_cores, reversed(inputs[: len(in_cores)]), strict=True):
        matrix = core.reshape(core.shape[0], -1)
        grad = grad.reshape(-1, matrix.shape[0])
        if not frozen:
            grads.append(grad.t().mm(a.reshape(-1, matrix.shape[1])).view(core.shape))
        grad = grad.mm(matrix)
    return grad.view(x.shape), grads


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.mm(weight.t()) if bias is None else bias.addmm(x, weight.t())


class Flow(NamedTuple):
    """An order of contraction of a TT linear layer, as two functions on plain tensors.

    Attributes
    ----------
    forward : callable
        (x, out_cores, in_cores, bias=None) to (y, saved), with x of shape (tokens, in) and y of shape (tokens, out).
    backward : callable
        (dy, x, out_cores, in_cores, saved, frozen=False) to (dx, gradients of the cores). With `frozen` there are none.
    """

    forward: Callable[..., tuple[Tensor, Saved]]
    backward: Callable[..., tuple[Tensor, list[Tensor]]]


Grouping = tuple[tuple[int, ...], tuple[int, ...]]


def grouped(groups: Grouping) -> Flow:
    """Return the flow that merges neighbouring cores and contracts x with the merged cores from right to left.

    Parameters
    ----------
    groups : tuple of two tuples of int
        Number of neighbouring cores in each merge, for the output cores and the input cores. Groups of one core give
        `right_to_left`; one group at each end gives the contractions of `bidirectional`.

    Returns
    -------
    Flow
        Its forward and backward pass.
    """
    return Flow(partial(_grouped, groups), partial(_grouped_backward, groups))


def _grouped(
    groups: Grouping, x: Tensor, out_cores: Cores, in_cores: Cores, bias: Tensor | None = None
) -> tuple[Tensor, Saved]:
    out_groups, in_groups = _split(out_cores, groups[0]), _split(in_cores, groups[1])
    lefts = [merge_left(group) if len(group) > 1 else group for group in out_groups]
    rights = [merge_right(group) if len(group) > 1 else group for group in in_groups]
    y, steps = right_to_left(x, _as_cores(lefts, out_groups, -1), _as_cores(rights, in_groups, 0), bias)
    return y, (*chain(*lefts, *rights), *steps)


def _grouped_backward(
    groups: Grouping, dy: Tensor, x: Tensor, out_cores: Cores, in_cores: Cores, saved: Saved, frozen: bool = False
) -> tuple[Tensor, list[Tensor]]:
    outs, cores = len(out_cores), len(out_cores) + len(in_cores)
    out_groups, in_groups = _split(out_cores, groups[0]), _split(in_cores, groups[1])
    lefts, rights = _split(saved[:outs], groups[0]), _split(saved[outs:cores], groups[1])
    merged = _as_cores(lefts, out_groups, -1), _as_cores(rights, in_groups, 0)
    dx, dmerged = right_to_left_backward(dy, x, *merged, saved[cores:], frozen)
    grads: list[Tensor] = []
    if frozen:
        return dx, grads
    for grad, group, left in zip(dmerged[: len(lefts)], out_groups, lefts, strict=True):
        grads += merge_left_backward(grad, group, left)
    for grad, group, right in zip(dmerged[len(lefts) :], in_groups, rights, strict=True):
        grads += merge_right_backward(grad, group, right)
    return dx, grads


def _split(items: Sequence[Tensor], sizes: Sequence[int]) -> list[Sequence[Tensor]]:
    return [items[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]


def _as_cores(merged: Sequence[Sequence[Tensor]], groups: Sequence[Cores], last: int) -> list[Tensor]:
    """Return the result of each merge in the shape of a core, (r_prev, n, r_next)."""
    return [
        merge[last].view(group[0].shape[0], -1, group[-1].shape[2]) if len(group) > 1 else group[0]
        for merge, group in zip(merged, groups, strict=True)
    ]


FLOWS = {
    "right_to_left": Flow(right_to_left, right_to_left_backward),
    "bidirectional": Flow(bidirectional, bidirectional_backward),
    "reconstruct": Flow(reconstruct, reconstruct_backward),
}
