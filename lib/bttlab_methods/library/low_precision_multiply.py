"""Low-precision multiply: factors of few bits go into the matrix products alone."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bttlab_methods.method import Method
from bttlab_methods.setting import MethodError
from bttlab_methods.training import Training

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
        """Return a mode in which products round their factors."""
        return RoundedProducts(FORMATS[self.format])

    around_backward = around_forward

    def finish(self, training: Training) -> dict[str, Any]:
        """Return what this run could show."""
        return {"low_precision": ROUNDED}


class RoundedProducts(TorchDispatchMode):
    """While entered, matrix products of FP32 tensors round their factors; sums, and an added bias, are FP32.

    Parameters
    ----------
    format : torch.dtype
    """

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
