"""How far PyTorch's CPU kernels differ with the number of elements and threads: what to compare with them.

Each difference is divided by a unit: FP32's epsilon times the size of what is rounded. So it is a count of roundings.
"""

from collections.abc import Callable
from functools import cache

import torch
from probe import main, row
from torch import Tensor
from torch.nn import functional

EPSILON = torch.finfo(torch.float32).eps
POINTS = torch.linspace(-8, 8, 4001)
LARGE = 1 << 17  # elements from which PyTorch splits a tensor between threads


def worst(first: Tensor, second: Tensor, unit: Tensor) -> float:
    """Return the largest difference in units; differences below FP32's normal range count as none."""
    tiny = torch.finfo(torch.float32).tiny
    difference = (first.double() - second.double()).abs()
    units = difference / (EPSILON * unit.double()).clamp(min=tiny)
    return float(units.where(difference > tiny, 0.0).max())


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
}


@cache
def compiled() -> dict[str, Tensor]:
    """Return what the functions make of POINTS in one compiled kernel."""
    return torch.compile(lambda x: {name: function(x) for name, function in FUNCTIONS.items()})(POINTS)


def compared(name: str, unit: Callable[[Tensor], Tensor]) -> dict:
    """Compare an elementwise function with itself, and with float64."""
    function = FUNCTIONS[name]
    torch.set_num_threads(1)
    among = function(POINTS)
    alone = torch.cat([function(point) for point in POINTS.split(1)])
    many = POINTS.repeat(LARGE // len(POINTS) + 1)
    one_thread = function(many)
    torch.set_num_threads(2)
    two_threads = function(many)
    torch.set_num_threads(1)
    size = unit(POINTS)
    return {
        "1 and many elements": worst(alone, among, size),
        "1 and 2 threads": worst(one_thread, two_threads, unit(many)),
        "eager and compiled": worst(among, compiled()[name], size),
        "and float64": max(worst(found, function(POINTS.double()), size) for found in (alone, among)),
    }


def magnitude(x: Tensor) -> Tensor:
    return x.abs()


@row("torch", "`gelu`")
def gelu() -> dict:
    return {"unit": "ε \\|x\\|", **compared("gelu", magnitude)}


@row("torch", '`gelu(approximate="tanh")`')
def gelu_tanh() -> dict:
    return {"unit": "ε \\|x\\|", **compared("gelu_tanh", magnitude)}


@row("torch", "`silu`")
def silu() -> dict:
    return {"unit": "ε \\|y\\|", **compared("silu", lambda x: functional.silu(x.double()).abs())}


@row("torch", "`tanh`")
def tanh() -> dict:
    return {"unit": "ε \\|y\\|", **compared("tanh", lambda x: torch.tanh(x.double()).abs())}


@row("torch", "`softmax` of 32")
def softmax() -> dict:
    def function(x: Tensor) -> Tensor:
        return functional.softmax(functional.pad(x.flatten(), (0, -x.numel() % 32)).view(-1, 32), -1).flatten()

    torch.manual_seed(0)
    x = 4 * torch.randn(LARGE)
    torch.set_num_threads(1)
    among = function(x)
    alone = torch.cat([function(part) for part in x[:4096].split(32)])
    torch.set_num_threads(2)
    two_threads = function(x)
    torch.set_num_threads(1)
    exact = function(x.double())
    few = among[:4096]
    return {
        "unit": "ε \\|y\\|",
        "1 and many elements": worst(alone, few, exact[:4096]),
        "1 and 2 threads": worst(among, two_threads, exact),
        "and float64": worst(among, exact, exact),
    }


@row("torch", "`linear`, 768 x 768")
def linear() -> dict:
    torch.manual_seed(0)
    x, weight = torch.randn(64, 768), torch.randn(768, 768) / 768**0.5
    torch.set_num_threads(1)
    among = functional.linear(x, weight)
    alone = torch.cat([functional.linear(part, weight) for part in x.split(1)])
    torch.set_num_threads(2)
    two_threads = functional.linear(x, weight)
    torch.set_num_threads(1)
    exact = functional.linear(x.double(), weight.double())
    size = functional.linear(x.double().abs(), weight.double().abs())
    return {
        "unit": "ε Σ \\|x w\\|",
        "1 and many elements": worst(alone, among, size),
        "1 and 2 threads": worst(among, two_threads, size),
        "and float64": max(worst(found, exact, size) for found in (alone, among)),
    }


if __name__ == "__main__":
    main()
