"""Quantised cores: symmetric fake quantisation with a straight-through gradient."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def fake_quantised(core: Tensor, bits: int) -> Tensor:
    """Round a core to multiples -q to q of a step: q = 2^(bits - 1) - 1, and q steps are the largest magnitude.

    The gradient ignores the rounding: the straight-through estimator (Bengio et al., arXiv 1308.3432). `bits` is at
    least 2.
    """
    most = 2 ** (bits - 1) - 1
    step = (core.detach().abs().amax() / most).clamp_min(torch.finfo(core.dtype).tiny).reshape(1)
    zero = torch.zeros(1, dtype=torch.int32, device=core.device)
    return torch.fake_quantize_per_tensor_affine(core, step[0], zero[0], -most, most)


class QuantisedCores(nn.Module):
    """Rounds each core of a layer with its own step; a `core_map` for the layers of this package."""

    def __init__(self, bits: int):
        super().__init__()
        self.bits = bits

    def forward(self, cores: Sequence[Tensor]) -> list[Tensor]:
        return [fake_quantised(core, self.bits) for core in cores]
