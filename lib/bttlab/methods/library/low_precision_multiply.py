"""Low-precision multiply: bfloat16 goes into the matrix products alone."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bttlab.methods.method import Method
from bttlab.methods.training import Training

aten = torch.ops.aten
PRODUCTS = {aten.mm.default: aten.mm, aten.addmm.default: aten.mm, aten.bmm.default: aten.bmm}


@dataclass(frozen=True)
class LowPrecisionMultiply(Method):
    """Round the factors of every matrix product to bfloat16, forward and backward; all that is kept is FP32.

    Other than mixed precision it changes the multiplier and nothing else, as an accelerator with smaller multipliers
    would: dense layers and tensor cores alike. The fused attention is no such product and stays as it is.
    """

    name = "low-precision-multiply"
    family = "hardware view"
    source = "Kalamkar et al., arXiv 1905.12322, section 3; Henry et al., arXiv 1904.06376"
    changes = frozenset({"forward precision"})

    def around_forward(self, training: Training) -> AbstractContextManager:
        """Return a mode in which products round their factors."""
        return BFloat16Products()

    around_backward = around_forward


class BFloat16Products(TorchDispatchMode):
    """While entered, matrix products of FP32 tensors are bfloat16's, and returned as FP32; a bias is added in FP32."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # PyTorch asks: if so, it imports its compiler, which takes seconds
        return False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function not in PRODUCTS or args[0].dtype != torch.float32:
            return function(*args, **(kwargs or {}))
        *bias, first, second = args
        product = PRODUCTS[function](first.bfloat16(), second.bfloat16()).float()
        return bias[0] + product if bias else product
