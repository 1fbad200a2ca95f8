"""Layers of tensorly-torch and torchTT, to compare with. Benchmarks alone need them."""

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bttlab.baseline.step import Task
from bttlab.model import ModelConfig
from bttlab.tensor import TTLinear, core_std, xavier_std

IMPLEMENTATIONS = ("factorized", "reconstructed")


def peer_linear(out_modes: Sequence[int], in_modes: Sequence[int], rank: int, implementation: str) -> nn.Module:
    """Return tensorly-torch's linear layer in its format "blocktt".

    There are as many output as input modes: a core has a mode of each, (r_prev, out mode, in mode, r_next), unlike
    those of `TTLinear`. Its cores start as ours do: W's entries have Xavier's standard deviation, the bias is zero.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tltorch
    layer = tltorch.FactorizedLinear(
        tuple(in_modes), tuple(out_modes), factorization="blocktt", rank=rank, implementation=implementation
    )
    std = core_std([core.shape for core in layer.weight.factors], xavier_std(math.prod(in_modes), math.prod(out_modes)))
    with torch.no_grad():
        for core in layer.weight.factors:
            core.normal_(0.0, std)
        layer.bias.zero_()
    return layer


class TorchTTLinear(nn.Module):
    """torchTT's layer on vectors: `torchtt.nn.LinearLayerTT` takes and returns tensors of the modes' sizes.

    Its cores (r_prev, out mode, in mode, r_next) are contracted with x one after the other. Raises ImportError without
    torchTT.
    """

    def __init__(self, out_modes: Sequence[int], in_modes: Sequence[int], rank: int):
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it tells of a C++ extension that solvers use
            from torchtt.nn import LinearLayerTT
        self.in_features, self.out_features = math.prod(in_modes), math.prod(out_modes)
        ranks = [1, *[rank] * (len(in_modes) - 1), 1]
        self.layer = LinearLayerTT(list(in_modes), list(out_modes), ranks)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, in) to (n, out)."""
        return self.layer(x.view(-1, *self.layer.size_in)).flatten(1)


class PeerTask(Task):
    """The tensor model's training with tensorly-torch's layers in place of ours; parameters are as for `Task`."""

    def __init__(self, config: ModelConfig, implementation: str, samples, learning_rate: float):
        super().__init__(config, "bidirectional", samples, learning_rate, 0, "cpu")
        for module in list(self.model.modules()):
            for name, child in module.named_children():
                if isinstance(child, TTLinear):
                    modes = config.linear_out_modes, config.linear_in_modes
                    setattr(module, name, peer_linear(*modes, config.linear_rank, implementation))
        self.parameters = list(self.model.parameters())
