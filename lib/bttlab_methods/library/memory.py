"""Methods that keep what waits for a later pass or step in fewer bits, or compute it again.

Of the libraries' 8-bit optimizers torchao 0.18's needs a GPU, or minutes of a compiler for each shape of parameter.
bitsandbytes 0.50.2's runs on a CPU (findings/bitsandbytes_on_cpu.sh) and takes twice as long there as the one below.
"""

import weakref
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from bttlab_methods.library.low_precision import quantise
from bttlab_methods.library.optimizers import KeptAdamW, adam_direction
from bttlab_methods.method import Method
from bttlab_methods.training import LEARNING_RATE, Training


class MixedPrecision(Method):
    """Compute the layers in bfloat16 by torch.amp; parameters, gradients, norms and losses stay FP32.

    The backward pass needs the weights in bfloat16 too: with few tokens in a batch and dense layers these copies
    weigh more than what the activations save.
    """

    name = "bf16"
    family = "memory"
    source = "Micikevicius et al., arXiv 1710.03740, section 3.1; Kalamkar et al., arXiv 1905.12322; torch.amp"
    changes = frozenset({"forward precision"})

    precision: ClassVar[torch.dtype] = torch.bfloat16  # no loss needs scaling: its exponent is FP32's

    def around_forward(self, training: Training) -> AbstractContextManager:
        return torch.autocast(training.device.type, self.precision)


@dataclass(frozen=True)
class FP16(MixedPrecision):
    """Compute the layers in FP16; the loss is multiplied, so that small gradients are not rounded to 0.

    The factor doubles after some good steps. A step whose gradients overflow updates nothing and halves it.
    """

    name = "fp16"
    source = "Micikevicius et al., arXiv 1710.03740, sections 3.1 and 3.2; torch.amp.GradScaler"
    ranges = ("scale in (0, inf)", "every in [1, inf)")

    precision: ClassVar[torch.dtype] = torch.float16
    scale: float = 2.0**16  # factor of the loss at the start
    every: int = 100  # good steps after which the factor doubles

    def change_model(self, training: Training) -> None:
        scaler = torch.amp.GradScaler(training.device.type, init_scale=self.scale, growth_interval=self.every)
        training.extra[self.name] = {"scaler": scaler, "skipped": 0}

    def objective(self, training: Training, loss: Tensor) -> Tensor:
        return training.extra[self.name]["scaler"].scale(loss)

    def before_update(self, training: Training) -> None:
        """Divide the gradients by the factor; drop them if one is not finite."""
        state = training.extra[self.name]
        state["scaler"].unscale_(training.optimizer)
        gradients = [p.grad for p in training.trained if p.grad is not None]
        if not torch.nn.utils.get_total_norm(gradients).isfinite():
            training.optimizer.zero_grad(set_to_none=True)
            state["skipped"] += 1
        state["scaler"].update()

    def finish(self, training: Training) -> dict[str, Any]:
        state = training.extra[self.name]
        return {"loss_scale": state["scaler"].get_scale(), "skipped_steps": state["skipped"]}


class Rematerialisation(Method):
    """Keep only what goes into each encoder; the backward pass computes what is inside once more."""

    name = "rematerialisation"
    family = "memory"
    source = "Chen et al., arXiv 1604.06174, section 4.1; torch.utils.checkpoint"
    changes = frozenset({"saved activations"})

    def change_model(self, training: Training) -> None:
        for encoder in set(training.model.encoders):  # which may be the same one more than once
            encoder.forward = partial(checkpoint, encoder.forward, use_reentrant=False)


class ActivationOffloading(Method):
    """Let activations wait for the backward pass in the host's memory; on a CPU it saves nothing."""

    name = "activation-offloading"
    family = "memory"
    source = "Rajbhandari et al. (ZeRO-Infinity), arXiv 2104.07857, section 5.1.3; torch.autograd.graph.save_on_cpu"
    changes = frozenset({"saved activations"})

    def around_forward(self, training: Training) -> AbstractContextManager:
        return save_on_cpu(pin_memory=training.device.type == "cuda")


LEAST = 1024  # values: smaller tensors, such as the norms' means, are kept as they are


@dataclass(frozen=True)
class CompressedActivations(Method):
    """Keep activations in 8 bits a value, with a scale for each block, rounded at random.

    The rounding is right on average, so that a linear layer's gradient is so too, whatever it does in a single step.
    """

    name = "compressed-activations"
    family = "memory"
    source = "Chen et al. (ActNN), arXiv 2104.14129, sections 3 and 4; Liu et al. (GACT), arXiv 2206.11357"
    changes = frozenset({"saved activations"})

    block: int = 256  # values that share a scale

    def around_forward(self, training: Training) -> AbstractContextManager:
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
    return quantise(in_blocks(x.float(), block), 1, at_random=True)


def decompress(codes: Tensor, scales: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    return (codes * scales).flatten()[: shape.numel()].view(shape).to(dtype)


def in_blocks(x: Tensor, block: int) -> Tensor:
    """Return the values of x, and zeros behind them, as rows of `block`."""
    return torch.nn.functional.pad(x.flatten(), (0, -x.numel() % block)).view(-1, block)


@dataclass(frozen=True)
class EightBitOptimizer(Method):
    """Keep AdamW's moments in 8 bits, in blocks with a scale each and codes denser near zero.

    On a CPU, codes are found and read in more time than all the rest of a step of the dense model takes.
    """

    name = "8bit-optimizer"
    family = "memory"
    source = "Dettmers et al., arXiv 2110.02861, sections 2.1 and 2.2"
    changes = frozenset({"optimizer"})

    block: int = 256  # values that share a scale
    smallest: int = 1024  # values of a parameter from which on its moments are kept so; below, a scale saves little

    def make_optimizer(self, training: Training) -> torch.optim.Optimizer:
        return AdamW8bit(training.trained, LEARNING_RATE, self.block, self.smallest)


class AdamW8bit(KeptAdamW):
    """AdamW as torch.optim's, but for its moments; `block` and `smallest` as for the method."""

    def __init__(self, parameters, lr: float, block: int = 256, smallest: int = 1024):
        super().__init__(parameters, lr)
        self._block, self._smallest = block, smallest

    def update(self, parameter: Tensor, group: dict) -> None:
        state, grad = self.state[parameter], parameter.grad
        first, second = (
            dequantize(state[name], signed, grad.shape) if name in state else torch.zeros_like(grad)
            for name, signed in (("first", True), ("second", False))
        )
        state["step"] = step = state.get("step", 0) + 1
        parameter.sub_(adam_direction(first, second, grad, step, group), alpha=group["lr"])
        if parameter.numel() < self._smallest:
            state["first"], state["second"] = first, second
        else:
            state["first"], state["second"] = quantize(first, True, self._block), quantize(second, False, self._block)


def quantize(x: Tensor, signed: bool, block: int) -> tuple[Tensor, Tensor]:
    """Return the codes of x, uint8 of shape (blocks, block), and the blocks' largest magnitudes, (blocks, 1)."""
    blocks = in_blocks(x, block)
    scales = blocks.abs().amax(1, keepdim=True)
    rounded = (blocks / scales.clamp(min=torch.finfo(x.dtype).tiny)).bfloat16()
    codes = code_table(signed, x.device).index_select(0, rounded.view(torch.int16).flatten().int() & 0xFFFF)
    return codes.view(blocks.shape), scales


def dequantize(kept: Tensor | tuple[Tensor, Tensor], signed: bool, shape: torch.Size) -> Tensor:
    """Return the tensor that `quantize` was given, or what is kept as it is, as a copy or not."""
    if isinstance(kept, Tensor):
        return kept
    codes, scales = kept
    values = dynamic_values(signed, codes.device).index_select(0, codes.flatten().int()).view(codes.shape)
    return values.mul_(scales).flatten()[: shape.numel()].view(shape)


@cache
def dynamic_values(signed: bool, device: torch.device) -> Tensor:
    """Return the values of the 256 codes of the dynamic data type, in order: shape (256,), from -1 or 0 to 1.

    Seven decades, each with twice as many values as the one below it (section 1.3 of the paper).
    """
    values = [0.0, 1.0]
    for decade in range(7):
        edges = torch.linspace(0.1, 1, 2 ** (decade if signed else decade + 1) + 1)
        means = (edges[:-1] + edges[1:]) / 2 * 10.0 ** (decade - 6)
        values += means.tolist() + (-means).tolist() * signed
    return torch.tensor(sorted(values), device=device)


@cache
def code_table(signed: bool, device: torch.device) -> Tensor:
    """Return the nearest code of every bfloat16 number, by its bits: uint8, shape (65536,).

    A number above 0 does not become 0 where there is no sign: a second moment of 0 under a first that is none would
    make an update without bounds.
    """
    numbers = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    values = dynamic_values(signed, torch.device("cpu"))
    codes = torch.bucketize(numbers, (values[1:] + values[:-1]) / 2)
    if not signed:
        codes = torch.where(numbers > 0, codes.clamp(min=1), codes)
    return codes.to(torch.uint8).to(device)
