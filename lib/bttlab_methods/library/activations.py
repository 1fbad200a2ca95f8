"""Activations that take fewer bits, or are computed again instead of kept."""

import weakref
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from bttlab_methods.library.low_precision import quantise
from bttlab_methods.method import Method
from bttlab_methods.training import Training


@dataclass(frozen=True)
class MixedPrecision(Method):
    """Compute the layers in bfloat16 by torch.amp; parameters, gradients, norms and losses stay FP32.

    The backward pass needs the weights in bfloat16 too: with few tokens in a batch and dense layers these copies
    weigh more than what the activations save.
    """

    name = "bf16"
    family = "memory"
    source = "Micikevicius et al., arXiv 1710.03740, section 3.1; Kalamkar et al., arXiv 1905.12322; torch.amp"
    changes = frozenset({"forward precision"})

    def around_forward(self, training: Training) -> AbstractContextManager:
        """Return PyTorch's autocast. With bfloat16 no loss needs scaling: its exponent is FP32's."""
        return torch.autocast(training.device.type, torch.bfloat16)


@dataclass(frozen=True)
class Rematerialisation(Method):
    """Keep only what goes into each encoder; the backward pass computes what is inside once more."""

    name = "rematerialisation"
    family = "memory"
    source = "Chen et al., arXiv 1604.06174, section 4.1; torch.utils.checkpoint"
    changes = frozenset({"saved activations"})

    def change_model(self, training: Training) -> None:
        """Checkpoint each encoder; modules and parameters keep their names."""
        for encoder in set(training.model.encoders):  # which may be the same one more than once
            encoder.forward = partial(checkpoint, encoder.forward, use_reentrant=False)


LEAST = 1024  # values: smaller tensors, such as the norms' means, are kept as they are


@dataclass(frozen=True)
class CompressedActivations(Method):
    """Keep activations in 8 bits a value, with a scale for each block, rounded at random.

    The rounding is right on average, so that a linear layer's gradient is so too, whatever it does in a single step.

    Parameters
    ----------
    block : int
        Values that share a scale.
    """

    name = "compressed-activations"
    family = "memory"
    source = "Chen et al. (ActNN), arXiv 2104.14129, sections 3 and 4; Liu et al. (GACT), arXiv 2206.11357"
    changes = frozenset({"saved activations"})

    block: int = 256

    def around_forward(self, training: Training) -> AbstractContextManager:
        """Return hooks that compress what autograd saves, but for parameters and integers."""
        parameters = {parameter.untyped_storage()._cdata for parameter in training.model.parameters()}
        known: dict[tuple, tuple] = {}  # a tensor that several layers save is compressed once

        def pack(tensor: Tensor):
            storage = tensor.untyped_storage()
            plain = not tensor.is_floating_point() or tensor.numel() < LEAST or storage._cdata in parameters
            if plain:
                return tensor
            key = (storage._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor._version)
            kept, packed = known.get(key, (None, None))
            if kept is None or kept() is None:  # the address may belong to another storage by now
                packed = (*compress(tensor, self.block), tensor.shape, tensor.dtype)
                known[key] = weakref.ref(storage), packed
            return packed

        def unpack(packed) -> Tensor:
            return packed if isinstance(packed, Tensor) else decompress(*packed)

        return saved_tensors_hooks(pack, unpack)


def compress(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Return the codes of x, int8 of shape (blocks, block), and the blocks' scales, of shape (blocks, 1).

    A value is code times scale, rounded up with a probability that makes it right on average.
    """
    blocks = torch.nn.functional.pad(x.flatten().float(), (0, -x.numel() % block)).view(-1, block)
    return quantise(blocks, 1, at_random=True)


def decompress(codes: Tensor, scales: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Return the tensor of `compress`'s codes and scales."""
    return (codes * scales).flatten()[: shape.numel()].view(shape).to(dtype)
