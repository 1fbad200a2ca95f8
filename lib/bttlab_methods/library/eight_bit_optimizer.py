"""AdamW whose two moments are kept in 8 bits.

The optimizers of torchao and bitsandbytes that do the same want a GPU, or minutes of a compiler for each shape of
parameter: without it, torchao 0.18 takes half a second on a CPU for a single matrix of the model.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from bttlab_methods.method import Method
from bttlab_methods.training import LEARNING_RATE, Training


@dataclass(frozen=True)
class EightBitOptimizer(Method):
    """Keep AdamW's moments in 8 bits, in blocks with a scale each and codes denser near zero.

    On a CPU, codes are found and read in more time than all the rest of a step of the dense model takes.

    Parameters
    ----------
    block : int
        Values that share a scale.
    smallest : int
        Values of a parameter from which on its moments are kept so; below, a scale saves little.
    """

    name = "8bit-optimizer"
    family = "memory"
    source = "Dettmers et al., arXiv 2110.02861, sections 2.1 and 2.2"
    changes = frozenset({"optimizer"})

    block: int = 256
    smallest: int = 1024

    def make_optimizer(self, training: Training) -> torch.optim.Optimizer:
        """Return the optimizer, with the dense model's learning rate."""
        return AdamW8bit(training.trained, LEARNING_RATE, self.block, self.smallest)


class AdamW8bit(torch.optim.Optimizer):
    """AdamW as torch.optim's, but for its moments.

    Parameters
    ----------
    parameters : iterable of nn.Parameter
    lr : float
    block, smallest : int
        As for the method.
    betas : (float, float)
    eps, weight_decay : float
    """

    def __init__(self, parameters, lr, block=256, smallest=1024, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._block, self._smallest = block, smallest

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters that have a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: Tensor, group: dict) -> None:
        state, grad = self.state[parameter], parameter.grad
        (beta1, beta2), lr = group["betas"], group["lr"]
        first, second = (
            dequantize(state[name], signed, grad.shape) if name in state else torch.zeros_like(grad)
            for name, signed in (("first", True), ("second", False))
        )
        state["step"] = step = state.get("step", 0) + 1
        first.lerp_(grad, 1 - beta1)
        second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        if parameter.numel() < self._smallest:
            state["first"], state["second"] = first, second
        else:
            state["first"], state["second"] = quantize(first, True, self._block), quantize(second, False, self._block)
        parameter.mul_(1 - lr * group["weight_decay"])
        divisor = second.div_(1 - beta2**step).sqrt_().add_(group["eps"])
        parameter.addcdiv_(first, divisor, value=-lr / (1 - beta1**step))


def quantize(x: Tensor, signed: bool, block: int) -> tuple[Tensor, Tensor]:
    """Return the codes of x, uint8 of shape (blocks, block), and the blocks' largest magnitudes, (blocks, 1)."""
    blocks = torch.nn.functional.pad(x.flatten(), (0, -x.numel() % block)).view(-1, block)
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
