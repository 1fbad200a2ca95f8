"""What counters of operations count: an encoder layer of torch.nn and a linear layer as a tensor train."""

import contextlib
import io

import torch
from probe import main, row
from torch import nn

TOKENS, HIDDEN, HEADS, INNER, RANK = 32, 768, 12, 3072, 12


class TensorTrain(nn.Module):
    """A layer of 768 x 768 in six cores: each half is merged, then applied to the tokens."""

    def __init__(self) -> None:
        super().__init__()
        shapes = ((1, 12, RANK), *((RANK, 8, RANK),) * 4, (RANK, 12, 1))
        self.cores = nn.ParameterList(torch.randn(shape) for shape in shapes)

    def forward(self, x):
        first, second, third, fourth, fifth, sixth = self.cores
        left = torch.einsum("aijc,ckd->aijkd", torch.einsum("aib,bjc->aijc", first, second), third)
        right = torch.einsum("aib,bjkd->aijkd", fourth, torch.einsum("bjc,ckd->bjkd", fifth, sixth))
        return x @ right.reshape(RANK, HIDDEN).T @ left.reshape(HIDDEN, RANK).T


def encoder(mode: str) -> nn.Module:
    layer = nn.TransformerEncoderLayer(HIDDEN, HEADS, INNER, batch_first=True)
    return layer.train(mode == "train")


def macs_by_hand(case: str) -> int:
    """Return the multiply-accumulates of all matrix products."""
    if case == "tt":
        half = 12 * 8 * RANK**2 + 12 * 8 * 8 * RANK**2
        return 2 * half + 2 * TOKENS * HIDDEN * RANK
    return 4 * TOKENS * HIDDEN**2 + 2 * TOKENS**2 * HIDDEN + 2 * TOKENS * HIDDEN * INNER


CASES = {
    "train": ("train()", True),
    "eval": ("eval()", True),
    "no_grad": ("eval(), no_grad", False),
    "tt": ("a TT layer", True),
}


def shares(macs) -> dict:
    """Return what a counter finds for each case, over the count by hand; `macs` takes a module and its input."""
    torch.manual_seed(0)
    found = {}
    for case, (title, grad) in CASES.items():
        module = TensorTrain() if case == "tt" else encoder(case)
        with contextlib.nullcontext() if grad else torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
            found[title] = macs(module, torch.randn(1, TOKENS, HIDDEN)) / macs_by_hand(case)
    return found


@row("torch", "`torch.utils.flop_counter.FlopCounterMode`")
def flop_counter() -> dict:
    from torch.utils.flop_counter import FlopCounterMode

    def macs(module, x):
        with FlopCounterMode(display=False) as counter:
            module(x)
        return counter.get_total_flops() / 2

    return {"counts": "FLOPs", **shares(macs)}


@row("torch", "`torch.profiler.profile(with_flops=True)`")
def profiler() -> dict:
    def macs(module, x):
        with torch.profiler.profile(with_flops=True) as profile:
            module(x)
        return sum(event.flops for event in profile.key_averages()) / 2

    return {"counts": "FLOPs", **shares(macs)}


@row("fvcore", "`nn.FlopCountAnalysis`, says *flops*")
def fvcore() -> dict:
    from fvcore.nn import FlopCountAnalysis

    def macs(module, x):
        return FlopCountAnalysis(module, x).unsupported_ops_warnings(False).total()

    return {"counts": "MACs", **shares(macs)}


def ptflops(backend: str) -> dict:
    from ptflops import get_model_complexity_info

    def macs(module, x):
        options = {"as_strings": False, "print_per_layer_stat": False, "backend": backend}
        return get_model_complexity_info(module, tuple(x.shape[1:]), **options)[0]

    return {"counts": "MACs", **shares(macs)}


@row("ptflops", '`get_model_complexity_info(backend="pytorch")`')
def ptflops_modules() -> dict:
    return ptflops("pytorch")


@row("ptflops", '`get_model_complexity_info(backend="aten")`')
def ptflops_aten() -> dict:
    return ptflops("aten")


@row("thop", "`profile`, says *flops* or *macs*")
def thop() -> dict:
    from thop import profile

    return {"counts": "MACs", **shares(lambda module, x: profile(module, (x,), verbose=False)[0])}


@row("torchinfo", "`summary(…).total_mult_adds`")
def torchinfo() -> dict:
    from torchinfo import summary

    return {"counts": "MACs", **shares(lambda module, x: summary(module, input_data=x, verbose=0).total_mult_adds)}


@row("calflops", "`calculate_flops`, its FLOPs")
def calflops() -> dict:
    from calflops import calculate_flops

    def macs(module, x):
        options = {"output_as_string": False, "print_results": False, "print_detailed": False}
        return calculate_flops(module, input_shape=tuple(x.shape), **options)[0] / 2

    return {"counts": "FLOPs", **shares(macs)}


if __name__ == "__main__":
    main()
