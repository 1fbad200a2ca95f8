"""Matrix products in few bits: INT8 in the linear layers, BF16 or FP8 factors everywhere."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import TorchDispatchMode

from bttlab_methods.layers import linear_layers
from bttlab_methods.method import Method
from bttlab_methods.setting import MethodError
from bttlab_methods.training import Training


class Int8(Method):
    """Multiply INT8 factors in the linear layers, forward and for the gradient of their inputs; weights stay FP32.

    Tokens have a scale each, weights one; on a CPU the products are integers (`torch._int_mm`). The backward pass keeps
    inputs in INT8, and rounds the gradient at random, which is right on average. The gradient of the weights is an FP32
    product of the kept inputs and the gradient as it came: rounding that, too, costs accuracy (the paper's
    bifurcation). Heads, attention and norms stay FP32.
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
    """Return the product of two int8 matrices: exact, as long as the inner size is below 2^24 / 127^2 = 1040."""
    # A GPU's kernel wants sizes that batches of few words have not; FP32 holds these sums, too.
    return torch._int_mm(a, b) if a.device.type == "cpu" else a.float() @ b.float()


def quantise(x: Tensor, axes: int | tuple[int, ...], at_random: bool = False) -> tuple[Tensor, Tensor]:
    """Return x as integers from -127 to 127, int8, and the scales of which they are multiples.

    Values along `axes` share a scale. `at_random` rounds up with the probability that makes it right on average.
    """
    scales = x.abs().amax(axes, keepdim=True).div_(127).clamp_(min=torch.finfo(x.dtype).tiny)
    steps = x / scales
    steps = steps.add_(torch.rand_like(steps)).floor_() if at_random else steps.round_()
    return steps.clamp_(-127, 127).to(torch.int8), scales


aten = torch.ops.aten
PRODUCTS = {aten.mm.default: aten.mm, aten.addmm.default: aten.mm, aten.bmm.default: aten.bmm}
FORMATS = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
ROUNDED = (
    "factors are rounded, what is kept stays FP32: this run shows what the rounding does to the scores, and nothing of "
    "the time, energy and memory that multipliers of this format save"
)


@dataclass(frozen=True)
class LowPrecisionMultiply(Method):
    """Round the factors of every matrix product, forward and backward, to bfloat16 or FP8; all that is kept is FP32.

    Other than mixed precision it changes the multiplier and nothing else, as an accelerator with smaller multipliers
    would: dense layers and tensor cores alike. FP8 is E4M3, each factor scaled so that its largest entry is the
    format's. The fused attention is no such product and stays as it is.

    Parameters
    ----------
    format : str
        bf16 or fp8.
    """

    name = "low-precision-multiply"
    family = "hardware view"
    source = (
        "Kalamkar et al., arXiv 1905.12322, section 3; Henry et al., arXiv 1904.06376; FP8: Micikevicius et al., "
        "arXiv 2209.05433"
    )
    changes = frozenset({"forward precision"})

    format: str = "bf16"

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise MethodError(f"method {self.name}: format is {self.format!r}: it must be {' or '.join(FORMATS)}")

    def around_forward(self, training: Training) -> AbstractContextManager:
        return RoundedProducts(FORMATS[self.format])

    around_backward = around_forward

    def finish(self, training: Training) -> dict[str, Any]:
        return {"low_precision": ROUNDED}


class RoundedProducts(TorchDispatchMode):
    """While entered, matrix products of FP32 tensors round their factors; sums, and an added bias, are FP32."""

    def __init__(self, format: torch.dtype):
        super().__init__()
        self._format = format

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # PyTorch asks: if so, it imports its compiler, which takes seconds
        return False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function not in PRODUCTS or args[0].dtype != torch.float32:
            return function(*args, **(kwargs or {}))
        *bias, first, second = args
        if self._format == torch.bfloat16:
            product = PRODUCTS[function](first.bfloat16(), second.bfloat16()).float()
        else:  # no CPU multiplies in it: the rounded factors' products are exact in FP32
            product = PRODUCTS[function](
                scaled_and_rounded(first, self._format), scaled_and_rounded(second, self._format)
            )
        return bias[0] + product if bias else product


def scaled_and_rounded(x: Tensor, format: torch.dtype) -> Tensor:
    """Return x rounded to a format in which its largest magnitude is the format's, as FP32."""
    unit = (x.abs().amax() / torch.finfo(format).max).clamp(min=torch.finfo(x.dtype).tiny)
    return (x / unit).to(format).float() * unit
