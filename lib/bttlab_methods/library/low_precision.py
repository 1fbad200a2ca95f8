"""Matrix products in INT8, in the linear layers."""

from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bttlab_methods.layers import linear_layers
from bttlab_methods.method import Method
from bttlab_methods.training import Training

IN_FP32 = 2**24 // 127**2  # products of two int8 whose sum FP32 holds


class Int8(Method):
    """Multiply INT8 factors in the linear layers, forward and for the gradient of their inputs; weights stay FP32.

    Tokens have a scale each, weights one. A CPU with VNNI multiplies integers (`torch._int_mm`); other devices multiply
    the same integers as floats. The backward pass keeps inputs in INT8, and rounds the gradient at random, which is
    right on average. The gradient of the weights is an FP32 product of the kept inputs and the gradient as it came:
    rounding that, too, costs accuracy (the paper's bifurcation). Heads, attention and norms stay FP32.
    """

    name = "int8"
    family = "low precision"
    source = "Banner et al., arXiv 1805.11046, section 4; scales: Wortsman et al., arXiv 2304.13013, section 2.2"
    changes = frozenset({"linear layers", "forward precision"})

    def change_model(self, training: Training) -> None:
        for layer in linear_layers(training.model):
            if isinstance(layer, nn.Linear):
                layer.forward = partial(multiply, layer)


def multiply(layer: nn.Linear, x: Tensor) -> Tensor:
    """Return the layer of x, shape (..., out), by a product of integers."""
    return _Int8Linear.apply(x.reshape(-1, x.shape[-1]), layer.weight).view(*x.shape[:-1], -1) + layer.bias


class _Int8Linear(torch.autograd.Function):
    """x weight^T of x, shape (n, in), and weight, shape (out, in)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        inputs, in_scales = quantise(x, 1)
        weights, scale = quantise(weight, (0, 1))
        ctx.save_for_backward(inputs, in_scales, weights, scale)
        return product(inputs, weights.t()) * (in_scales * scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        inputs, in_scales, weights, scale = ctx.saved_tensors
        rounded, dy_scales = quantise(dy, 1, at_random=True)
        dx = product(rounded, weights) * (dy_scales * scale)
        return dx, (dy * in_scales).t() @ inputs.float()


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two int8 matrices with entries from -127 to 127; on every processor it is exact."""
    if a.device.type == "cpu" and multiplies_integers():
        return torch._int_mm(a, b)
    # A GPU's kernel wants sizes that batches of few words have not.
    kind = torch.float32 if a.shape[1] <= IN_FP32 else torch.float64
    return (a.to(kind) @ b.to(kind)).float()


@cache
def multiplies_integers() -> bool:
    """Return whether `torch._int_mm` is right on this processor.

    Without VNNI, oneDNN adds pairs of products in 16 bits, which saturate (PyTorch 2.13.0).
    """
    largest = torch.full((32, 64), 127, dtype=torch.int8)
    return bool((torch._int_mm(largest, largest.t()) == 64 * 127**2).all())


def quantise(x: Tensor, axes: int | tuple[int, ...], at_random: bool = False) -> tuple[Tensor, Tensor]:
    """Return x as integers from -127 to 127, int8, and the scales of which they are multiples.

    Values along `axes` share a scale. `at_random` rounds up with the probability that makes it right on average.
    """
    scales = x.abs().amax(axes, keepdim=True).div_(127).clamp_(min=torch.finfo(x.dtype).tiny)
    steps = x / scales
    steps = steps.add_(torch.rand_like(steps)).floor_() if at_random else steps.round_()
    return steps.clamp_(-127, 127).to(torch.int8), scales
