"""Modules at random, from public functions of torch and of `bttlab.tensor`, and a judge of what the card makes of them.

A module is right if its loss and its gradients on the machine are those of PyTorch in double precision, or refused if
the tracer or the compiler raises `ProgramError`. `python tests/helpers/random_modules.py 0 1000` judges these seeds.
"""

import json
import math
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[n]) for n in (0, 1, 2)]

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.functions import ACTIVATIONS, ASYMPTOTE, TANH, Activation, FunctionTable
from bttlab.compiler.graph import Graph
from bttlab.compiler.module import ModuleModel
from bttlab.compiler.operation import INTENT
from bttlab.compiler.ops.dense import Classifier
from bttlab.compiler.program import compile
from bttlab.compiler.trace import trace
from bttlab.compiler.trace.check import execute
from bttlab.data import Samples
from bttlab.tensor import TTLinear, TTMEmbedding

from training_processor import autograd, first_moments, some_samples

WORDS, LENGTH = 12, 6
LEAST, MOST = 1e-3, 1e4  # of the activations' largest: single precision leaves too little to compare beyond
FACTORS = {8: (2, 4), 16: (4, 4), 24: (4, 6), 32: (4, 8), 48: (6, 8), 64: (8, 8)}
Step = Callable[["RandomModule", Tensor, Tensor], Tensor]  # of the module, the activation and the token ids
STEPS: dict[str, tuple[float, Callable]] = {}  # weight, and what makes a step from a random generator, module, width


def usual(r: random.Random, options: Iterable, others: Iterable = ()) -> Any:
    """Return one of some options; one in ten times, one of the others, which the card refuses as a rule."""
    others = list(others)
    is_other = others and r.random() < 0.1
    return r.choice(others if is_other else [x for x in options if x not in others])


def step(weight: float = 1.0) -> Callable:
    """Register a function that adds layers to a module and returns the step and the width after it."""

    def register(make: Callable) -> Callable:
        STEPS[make.__name__] = weight, make
        return make

    return register


class RandomModule(nn.Module):
    """Token ids, a table, some steps at random, and one or two heads."""

    sizes: ClassVar[list[float] | None] = None  # of the activations, where they are wanted

    def __init__(self, seed: int, most: int = 5):
        super().__init__()
        torch.manual_seed(seed)
        r = random.Random(seed)
        self.seed, self.steps, self.saved, self.widths, self.names = seed, [], [], [], []
        self.table, width = self._table(r)
        names, weights = list(STEPS), [weight for weight, _ in STEPS.values()]
        for _ in range(r.randint(1, most)):
            (name,) = r.choices(names, weights)
            self.widths.append(width)
            self.names.append(name)
            self.last = name
            function, width = STEPS[name][1](r, self, width)
            self.steps.append(function)
        self.output = self._output(r, width)
        self._frozen(r)

    def _table(self, r: random.Random) -> tuple[nn.Module, int]:
        width = r.choice((16, 16, 16, 32, 32, 48))
        if r.random() < 0.15:
            return TTMEmbedding(
                WORDS, width, (2, 2, 3), (2, *FACTORS[width // 2]) if width < 48 else (4, 3, 4), rank=r.choice((1, 3))
            ), width
        return nn.Embedding(WORDS, width, padding_idx=usual(r, (None, 0), (5, WORDS - 1))), width

    def _output(self, r: random.Random, width: int) -> Callable[..., Any]:
        self.names.append(kind := r.choice(OUTPUTS))
        classes = r.choice((2, 3, 5, 16, 17))
        self.head = nn.Linear(width, classes, bias=r.random() < 0.8)
        if kind == "tied":
            self.head = nn.Linear(width, WORDS, bias=r.random() < 0.5)
            if isinstance(self.table, nn.Embedding) and self.table.embedding_dim == width:
                self.head.weight = self.table.weight
        if kind in ("both", "both, one layer"):
            self.second = self.head if kind == "both, one layer" else nn.Linear(width, 4)
        return {
            "tags": lambda n, x: n.head(x[:, 1:]),
            "tags cut": lambda n, x: n.head(x)[:, 1:],
            "all": lambda n, x: n.head(x),
            "tied": lambda n, x: n.head(x),
            "first": lambda n, x: n.head(x[:, 0]),
            "last": lambda n, x: n.head(x[:, -1]),
            "mean": lambda n, x: n.head(x.mean(1)),
            "sum": lambda n, x: n.head(x.sum(1) / x.shape[1]),
            "both": lambda n, x: (n.second(x[:, 0]), n.head(x[:, 1:])),
            "both, one layer": lambda n, x: (n.head(x[:, 0]), n.head(x)[:, 1:]),
            "scaled": lambda n, x: n.head(x[:, 1:]) * 2,
        }[kind]

    def _frozen(self, r: random.Random) -> None:
        if r.random() < 0.15:
            for parameter in self.parameters():
                parameter.requires_grad_(r.random() < 0.6)

    def add(self, layer: nn.Module | nn.Parameter) -> str:
        """Register a layer or parameter; return its name."""
        name = f"l{len(self.names)}_{sum(1 for n in vars(self)['_modules'] | vars(self)['_parameters'])}"
        setattr(self, name, layer)
        return name

    def parameter(self, *shape: int, scale: float = 0.3, offset: float = 0.0) -> str:
        return self.add(nn.Parameter(offset + scale * torch.randn(shape)))

    def layer(self, kind: str) -> Any:
        return getattr(self, kind)

    def forward(self, tokens: Tensor) -> Any:
        x = self.table(tokens)
        saved = [x]
        for function in self.steps:
            self.__dict__["saved"] = saved
            x = function(self, x, tokens)
            if self.sizes is not None:
                self.sizes.append(float(x.detach().abs().max()))
            saved.append(x)
        return self.output(self, x)


OUTPUTS = ("tags", "tags", "tags cut", "all", "first", "last", "mean", "both", "both", "tied", "sum")
OUTPUTS += ("both, one layer",)


# ---- layers ---------------------------------------------------------------------------------------------------------


def _linear_of(r: random.Random, width: int, out: int) -> nn.Module:
    if r.random() < 0.3:
        return TTLinear(width, out, FACTORS[out], FACTORS[width], rank=r.choice((1, 2, 4)), bias=r.random() < 0.8)
    return nn.Linear(width, out, bias=r.random() < 0.8)


@step(4)
def linear(r, net, width):
    out = r.choice((width, width, 16, 32, 48))
    name = net.add(_linear_of(r, width, out))
    return lambda n, x, t: n.layer(name)(x), out


@step(2)
def residual(r, net, width):
    name, act = net.add(_linear_of(r, width, width)), _activation(r)
    return lambda n, x, t: x + n.layer(name)(act(x)), width


@step(2)
def linear_of_parameter(r, net, width):
    out = r.choice((width, 16, 32))
    w, b = net.parameter(out, width), net.parameter(out)
    wt, big, big_b = "", "", ""
    kind = usual(r, range(22), (5, 6, 9, 11, 14, 15, 16, 17, 18, 19, 20, 21))
    if kind in (1, 7, 13):
        wt = net.parameter(width, out)
    if kind in (8, 9, 10):
        big, big_b = net.parameter(2 * out, width), net.parameter(2 * out)
    a, c = (net.parameter(out, 2), net.parameter(2, width)) if kind in (11, 12) else ("", "")
    mask = (torch.rand(out, width) < 0.5).float()
    net.register_buffer(f"mask{len(net.names)}", mask)
    m = f"mask{len(net.names)}"
    p = getattr
    forms = [
        lambda n, x: F.linear(x, p(n, w), p(n, b)),
        lambda n, x: x @ p(n, wt) + p(n, b),
        lambda n, x: torch.matmul(x, p(n, w).T) + p(n, b),
        lambda n, x: torch.einsum("btd,ed->bte", x, p(n, w)) + p(n, b),
        lambda n, x: torch.addmm(p(n, b), x.flatten(0, 1), p(n, w).t()).unflatten(0, x.shape[:2]),
        lambda n, x: F.linear(x, 2 * p(n, w), p(n, b)),
        lambda n, x: F.linear(x, p(n, w), p(n, b) * 0.5),
        lambda n, x: torch.einsum("btd,de->bte", x, p(n, wt)) - p(n, b),
        lambda n, x: F.linear(x, p(n, big)[:out], p(n, big_b)[:out]) + F.linear(x, p(n, big)[out:], p(n, big_b)[out:]),
        lambda n, x: F.linear(x, p(n, big)[::2], p(n, big_b)[::2]) + F.linear(x, p(n, big)[1::2], p(n, big_b)[1::2]),
        lambda n, x: (
            F.linear(x, p(n, big), p(n, big_b)).chunk(2, -1)[1] + F.linear(x, p(n, big), p(n, big_b))[..., :out]
        ),
        lambda n, x: F.linear(x, p(n, w) + p(n, a) @ p(n, c), p(n, b)),
        lambda n, x: F.linear(x, p(n, w), p(n, b)) + (x @ p(n, c).T) @ p(n, a).T,
        lambda n, x: x.matmul(p(n, wt)).add_(p(n, b)),
        lambda n, x: F.linear(x, p(n, w) * getattr(n, m), p(n, b)),
        lambda n, x: F.linear(x, p(n, w) / p(n, w).norm(dim=1, keepdim=True), p(n, b)),
        lambda n, x: F.linear(x, p(n, w), p(n, b).abs()),
        lambda n, x: F.linear(x, p(n, w).clone(), p(n, b)),
        lambda n, x: F.linear(x, p(n, w).flip(0), p(n, b).flip(0)),
        lambda n, x: F.linear(x, p(n, w), p(n, b) + 1),
        lambda n, x: F.linear(x, p(n, w).detach(), p(n, b)),
        lambda n, x: F.linear(x, (1 + p(n, w)), p(n, b)),
    ]
    form = forms[kind]
    if kind in (1, 7, 8, 9, 10, 13):
        delattr(net, w)
    if kind in (8, 9, 10):
        delattr(net, b)
    return lambda n, x, t: form(n, x), out


@step(1)
def shared_layer(r, net, width):
    name, act, kind = net.add(_linear_of(r, width, width)), _activation(r), r.randrange(3)
    if kind == 0:
        return lambda n, x, t: n.layer(name)(act(n.layer(name)(x))), width
    if kind == 1:
        return lambda n, x, t: n.layer(name)(x) * n.layer(name)(act(x)), width
    other = net.add(nn.Linear(width, width, bias=False))
    if isinstance(net.layer(name), nn.Linear):
        net.layer(other).weight = net.layer(name).weight
    return lambda n, x, t: n.layer(other)(act(n.layer(name)(x))), width


@step(0.3)
def parametrized(r, net, width):
    kind = r.randrange(5)
    layer = nn.Linear(width, width)

    class Half(nn.Module):
        def forward(self, w):
            return w * 0.5 if kind == 3 else w.triu() + w.triu(1).T

    if kind == 0:
        layer = parametrizations.weight_norm(layer)
    elif kind == 1:
        layer = parametrizations.spectral_norm(layer).eval()
    elif kind == 2:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            layer = torch.nn.utils.weight_norm(layer)
    else:
        parametrize.register_parametrization(layer, "weight", Half())
    name = net.add(layer)
    return lambda n, x, t: n.layer(name)(x), width


# ---- functions of each element --------------------------------------------------------------------------------------

ONE = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "abs": torch.abs,
    "mish": F.mish,
    "softplus": F.softplus,
    "elu": F.elu,
    "selu": F.selu,
    "celu": F.celu,
    "leaky": F.leaky_relu,
    "relu6": F.relu6,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "logsigmoid": F.logsigmoid,
    "square": torch.square,
    "squared relu": lambda x: torch.relu(x).square(),
    "cube": lambda x: x**3,
    "sin": torch.sin,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "exp": lambda x: torch.exp(-x.abs()),
    "erf": torch.erf,
    "sqrt": lambda x: torch.sqrt(1 + x * x),
    "reciprocal": lambda x: 1 / (1 + x * x),
    "quick gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "swish 2": lambda x: x * torch.sigmoid(2 * x),
    "softplus 2": lambda x: F.softplus(x, 2.0),
    "softplus 5": lambda x: F.softplus(x, 1.0, 5.0),
    "elu 0.5": lambda x: F.elu(x, 0.5),
    "nan_to_num": torch.nan_to_num,
    "sign": torch.sign,
    "round": torch.round,
    "where": lambda x: torch.where(x > 0, x, 0.1 * x),
    "mask": lambda x: x * (x > 0),
    "relu in place": lambda x: F.relu(x.clone(), inplace=True),
    "neg": torch.neg,
    "positive": torch.positive,
    "frac": torch.frac,
    "logit": lambda x: torch.sigmoid(x).logit(),
    "log1p": lambda x: torch.log1p(x * x),
    "rsub": lambda x: 1 - x,
    "div": lambda x: x / 3,
    "rdiv": lambda x: 1 / (2 + x.abs()),
    "pow 2.0": lambda x: x.pow(2.0),
    "pow 4": lambda x: x**4,
    "alpha": lambda x: torch.add(x, x, alpha=0.5),
    "sub alpha": lambda x: torch.sub(x, x.tanh(), alpha=2),
    "clamp tensor": lambda x: torch.clamp(x, torch.tensor(-0.2), torch.tensor(0.4)),
    "clip": lambda x: x.clip(-0.3),
    "maximum 0": lambda x: torch.maximum(x, torch.tensor(0.1)),
    "fmax": lambda x: torch.fmax(x, torch.zeros(())),
    "xlogy": lambda x: torch.xlogy(x, torch.tensor(2.0)),
    "lerp": lambda x: torch.lerp(x, x.tanh(), 0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x.tanh(), value=0.5),
    "hypot": lambda x: torch.hypot(x, torch.ones(())),
    "expm1": lambda x: torch.expm1(x.clamp(max=0)),
    "logaddexp": lambda x: torch.logaddexp(x, torch.zeros(())),
    "copysign": lambda x: torch.copysign(x, torch.tensor(1.0)),
    "threshold": lambda x: F.threshold(x, 0.1, 0.1),
    "threshold 2": lambda x: F.threshold(x, 0.1, 0.0),
    "rrelu": lambda x: F.rrelu(x, 0.1, 0.1),
    "glu": lambda x: F.glu(torch.cat([x, x], -1)),
    "prelu": lambda x: F.prelu(x, torch.tensor(0.25)),
    "dropout 0": lambda x: F.dropout(x, 0.0, True),
    "dropout eval": lambda x: F.dropout(x, 0.5, False),
}


# What the card refuses as a rule.
RARE = [
    *(
        "sin softsign tanhshrink softshrink hardshrink exp erf sqrt reciprocal nan_to_num sign round where mask frac "
        "logit log1p rdiv fmax xlogy lerp addcmul hypot expm1 logaddexp copysign prelu rrelu"
    ).split(),
    "swish 2",
    "softplus 5",
    "threshold 2",
    "clamp tensor",
    "sub alpha",
]


def _number(r: random.Random) -> float:
    return float(np.float32(r.choice((-1, 1)) * 10 ** r.uniform(-1.5, 2)))


def _activation(r: random.Random) -> Callable[[Tensor], Tensor]:
    return ONE[r.choice(("relu", "gelu", "silu", "tanh", "sigmoid", "mish", "abs", "softplus", "elu"))]


@step(3)
def function(r, net, width):
    name = usual(r, ONE, RARE)
    net.names[-1] += f" {name}"
    return lambda n, x, t: ONE[name](x), width


@step(2)
def composed(r, net, width):
    """Limits, offsets and scales around functions."""
    found, names = [], []
    for _ in range(r.randint(1, 4)):
        a, b = _number(r), _number(r)
        one = ONE[usual(r, ONE, RARE)]
        choice = r.randrange(10)
        names.append(f"{choice} {a:g} {b:g}")
        found.append(
            (
                lambda x, a=a: x + a,
                lambda x, a=a: x * a,
                lambda x, a=a: x.clamp(max=a),
                lambda x, a=a: x.clamp(min=a),
                lambda x, a=a, b=b: x.clamp(min(a, b), max(a, b)),
                lambda x, one=one: one(x),
                lambda x, one=one, a=a: x + a * one(x),
                lambda x, one=one: x * one(x),
                lambda x, a=a: F.relu(x - a),
                lambda x, a=a, b=b: x - F.relu(x - a) + F.relu(x - a - abs(b)),
            )[choice]
        )
    net.names[-1] += f" {names}"

    def function(n, x, t):
        for f in found:
            x = f(x)
            if n.sizes is not None:
                n.sizes.append(float(x.detach().abs().max()))
        return x

    return function, width


def _other(r: random.Random, net: RandomModule, width: int) -> Callable[[RandomModule, Tensor], Tensor]:
    """An earlier activation of the same width, or a function of this one."""
    places = [k for k, w in enumerate(net.widths) if w == width]
    k, act = r.choice(places), _activation(r)
    return r.choice((lambda n, x: n.saved[k], lambda n, x: act(n.saved[k]), lambda n, x: act(x)))


TWO = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "rsub": lambda x, y: torch.rsub(x, y),
    "add alpha": lambda x, y: torch.add(x, y, alpha=0.3),
    "add method alpha": lambda x, y: x.add(y, alpha=2),
    "add_": lambda x, y: x.clone().add_(y),
    "iadd": lambda x, y: _in_place(x, y),
    "mul_": lambda x, y: x.clone().mul_(y),
    "sub_": lambda x, y: x.clone().sub_(y),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "div": lambda x, y: x / (y * y + 1),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "lerp": lambda x, y: torch.lerp(x, y, 0.25),
    "where": lambda x, y: torch.where(x > y, x, y),
    "gate": lambda x, y: torch.sigmoid(x) * y + (1 - torch.sigmoid(x)) * x,
    "mean of both": lambda x, y: torch.stack([x, y]).mean(0),
    "sum of list": lambda x, y: sum([x, y]),
    "stack sum": lambda x, y: torch.stack([x, y], -1).sum(-1),
    "out": lambda x, y: torch.add(x, y, out=torch.empty_like(x).detach()) if not torch.is_grad_enabled() else x + y,
    "copy_": lambda x, y: x.clone().copy_(y) + x,
    "part": lambda x, y: torch.cat([x[..., :8], y[..., 8:]], -1),
    "part in place": lambda x, y: _assigned(x, y),
    "interleave": lambda x, y: torch.stack([x, y], -1).flatten(-2)[..., : x.shape[-1]],
    "dot": lambda x, y: (x * y).sum(-1, keepdim=True) * x,
    "first": lambda x, y: x + y[:, :1],
    "shift": lambda x, y: x + torch.cat([y[:, :1] * 0, y[:, :-1]], 1),
    "mean": lambda x, y: x + y.mean(1, keepdim=True),
    "gate of mean": lambda x, y: x * torch.sigmoid(y.mean(1, keepdim=True)),
    "detach": lambda x, y: x + y.detach(),
    "stop": lambda x, y: x + (y - y.detach()),
    "dist": lambda x, y: torch.dist(x, y) + x,
    "atan2": torch.atan2,
    "bmm": lambda x, y: torch.bmm(x, y.mT) @ x,
    "outer": lambda x, y: torch.einsum("btd,bsd->bts", x, y).softmax(-1) @ y,
    "einsum mul": lambda x, y: torch.einsum("btd,btd->btd", x, y),
    "hadamard sum": lambda x, y: torch.einsum("btd,btd->bt", x, y)[..., None] + x,
}


RARE_TWO = [
    *("addcmul div maximum minimum lerp where out copy_ dot first shift mean detach stop dist atan2 bmm outer").split(),
    "sub alpha",
    "part in place",
    "gate of mean",
    "hadamard sum",
    "stack sum",
    "add alpha",
    "add method alpha",
    "mean of both",
]


def _in_place(x: Tensor, y: Tensor) -> Tensor:
    x = x.clone()
    x += y
    return x


def _assigned(x: Tensor, y: Tensor) -> Tensor:
    x = x.clone()
    x[..., :8] = y[..., :8]
    return x


@step(3)
def two(r, net, width):
    name, other = usual(r, TWO, RARE_TWO), _other(r, net, width)
    net.names[-1] += f" {name}"
    if r.random() < 0.3:
        return lambda n, x, t: TWO[name](other(n, x), x), width
    return lambda n, x, t: TWO[name](x, other(n, x)), width


# ---- views and moves, in place and not ------------------------------------------------------------------------------


def _changed(x: Tensor, change: Callable[[Tensor], Any]) -> Tensor:
    y = x.clone()
    change(y)
    return y


MOVES = {
    "flip features": lambda x: x.flip(-1),
    "roll": lambda x: x.roll(1, -1),
    "roll 8": lambda x: x.roll(8, -1),
    "roll tokens": lambda x: x.roll(1, 1),
    "halves": lambda x: torch.cat(x.chunk(2, -1)[::-1], -1),
    "transpose heads": lambda x: x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2),
    "tokens reversed": lambda x: x.flip(1),
    "shift": lambda x: torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1),
    "difference": lambda x: torch.cat([x[:, :1], x[:, 1:] - x[:, :-1]], 1),
    "even": lambda x: torch.cat([x[..., ::2], x[..., 1::2]], -1),
    "double": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "repeat_interleave": lambda x: x[..., : x.shape[-1] // 2].repeat_interleave(2, -1),
    "repeat": lambda x: x[..., : x.shape[-1] // 2].repeat(1, 1, 2),
    "expand": lambda x: x[..., :1].expand_as(x) + x,
    "one token": lambda x: x[:, :1].expand(-1, x.shape[1], -1) + x,
    "index": lambda x: x[..., torch.arange(x.shape[-1] - 1, -1, -1)],
    "index_select": lambda x: x.index_select(-1, torch.arange(x.shape[-1]).roll(3)),
    "gather": lambda x: x.gather(-1, torch.arange(x.shape[-1]).flip(0).expand(x.shape)),
    "take_along": lambda x: torch.take_along_dim(x, torch.arange(x.shape[-1]).flip(0).expand(x.shape), -1),
    "zero part": lambda x: torch.cat([x[..., :-4], torch.zeros_like(x[..., -4:])], -1),
    "ones part": lambda x: torch.cat([x[..., :-16], torch.ones_like(x[..., -16:])], -1),
    "pad": lambda x: F.pad(x, (1, -1)),
    "narrow": lambda x: torch.cat([x.narrow(-1, 8, x.shape[-1] - 8), x.narrow(-1, 0, 8)], -1),
    "rotate": lambda x: torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1),
    "rotate pairs": lambda x: torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2),
    "rotary": lambda x: _rotary(x),
    "mul_ view": lambda x: _changed(x, lambda y: y[..., :8].mul_(2)),
    "zero_ view": lambda x: _changed(x, lambda y: y[:, 0].zero_()),
    "fill_ view": lambda x: _changed(x, lambda y: y[..., 3].fill_(1.0)),
    "view alias": lambda x: _changed(x, lambda y: y.view(-1).mul_(0.5)),
    "chunk alias": lambda x: _changed(x, lambda y: y.chunk(2, -1)[0].add_(1.0)),
    "transpose alias": lambda x: _changed(x, lambda y: y.transpose(1, 2).mul_(0.5)),
    "unsqueeze alias": lambda x: _changed(x, lambda y: y[None].add_(0.5)),
    "alias before": lambda x: (y := x.clone(), z := y.view(y.shape), y.mul_(2), z)[-1],
    "alias of part": lambda x: (y := x.clone(), z := y[..., :8], y.mul_(2), torch.cat([z, y[..., 8:]], -1))[-1],
    "expand alias": lambda x: (y := x.clone(), z := y.expand(1, *y.shape), y.tanh_(), z[0])[-1],
    "detach alias": lambda x: (y := x.clone(), y.detach().mul_(2), y)[-1],
    "data alias": lambda x: (y := x.clone(), y.data.mul_(2), y)[-1],
    "data set": lambda x: (y := x.clone(), setattr(y, "data", y.data * 2), y)[-1],
    "numpy alias": lambda x: (y := x.clone(), y.detach().numpy().__imul__(2), y)[-1],
    "relu_ alias": lambda x: (y := x.clone(), z := y.unflatten(-1, (2, -1)), z.relu_(), y)[-1],
    "split alias": lambda x: _changed(x, lambda y: [z.mul_(k + 1) for k, z in enumerate(y.split(8, -1))]),
    "unbind alias": lambda x: _changed(x, lambda y: [z.mul_(k + 1) for k, z in enumerate(y.unbind(1)[:2])]),
    "setitem mask": lambda x: _changed(x, lambda y: y.__setitem__((..., slice(0, 4)), 0.0)),
    "index_put_": lambda x: _changed(x, lambda y: y.index_put_((torch.tensor(0), torch.tensor(1)), torch.tensor(1.0))),
    "masked_fill_": lambda x: _changed(x, lambda y: y.masked_fill_(torch.arange(y.shape[-1]) < 3, 0.0)),
    "masked_fill": lambda x: x.masked_fill(torch.arange(x.shape[-1]) < 3, 0.0),
    "swapaxes": lambda x: x.swapaxes(0, 1).swapaxes(0, 1),
    "contiguous": lambda x: x.mT.contiguous().mT,
    "as_strided": lambda x: x.as_strided(x.shape, x.stride()),
    "set_": lambda x: (y := x.clone().detach().requires_grad_(), y)[-1],
    "swap_tensors": lambda x: _swapped(x),
    "movedim": lambda x: x.movedim(-1, 0).movedim(0, -1),
    "unfold": lambda x: x.unfold(-1, 2, 2).flatten(-2),
    "batch of two": lambda x: torch.cat([x, x * 2], 0)[1:],
    "batch": lambda x: torch.stack([x[0], x[0].tanh()])[:1],
    "split sizes": lambda x: torch.cat(x.split([4, x.shape[-1] - 4], -1)[::-1], -1),
    "tensor_split": lambda x: torch.cat(torch.tensor_split(x, 3, -1)[::-1], -1),
    "hsplit": lambda x: torch.cat(torch.dsplit(x, 2)[::-1], -1),
    "tile": lambda x: torch.tile(x, (1, 1, 2))[..., : x.shape[-1]],
    "view_as": lambda x: x.view(x.shape[0], -1).view_as(x),
    "float": lambda x: x.to(x.dtype),
    "diag": lambda x: x + torch.diagonal(x @ x.mT, dim1=1, dim2=2)[..., None],
}


RARE_MOVES = [
    *"expand gather pad set_ unfold diag".split(),
    "tokens reversed", "one token", "take_along", "view alias", "roll tokens", "repeat", "detach alias", "data alias",
    "zero_ view", "fill_ view", "numpy alias", "masked_fill_", "masked_fill", "index_put_", "setitem mask",
    "batch of two", "shift", "difference", "as_strided", "swap_tensors", "batch",
]  # fmt: skip


def _swapped(x: Tensor) -> Tensor:
    y, z = x.clone(), x.tanh()
    torch.utils.swap_tensors(y, z)
    return y


def _rotary(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[1])[:, None] / 10 ** (torch.arange(half) / half)
    cos, sin = (torch.cat([f(angle)] * 2, -1).to(x.dtype) for f in (torch.cos, torch.sin))
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


@step(3)
def move(r, net, width):
    name = usual(r, MOVES, RARE_MOVES)
    net.names[-1] += f" {name}"
    return lambda n, x, t: MOVES[name](x), width


@step(1)
def slice_of_features(r, net, width):
    if width == 16:
        return lambda n, x, t: torch.cat([x, x.tanh()], -1), 32
    first = r.choice((0, 16, 8, 3)) if width > 32 else r.choice((0, 16, 8, 5))
    return lambda n, x, t: x[..., first : first + 16], 16


# ---- rows, constants, positions -------------------------------------------------------------------------------------


@step(3)
def row(r, net, width):
    kind = usual(r, range(24), (4, 5, 6, 7, 11, 12, 13, 14, 17, 18, 19, 22))
    shape = {15: (LENGTH, width), 16: (LENGTH + 2, width), 17: (1,), 18: (), 19: (LENGTH, 1), 23: (2, width)}
    g = net.parameter(*shape.get(kind, (width,)))
    p = getattr
    forms = [
        lambda n, x: x * p(n, g),
        lambda n, x: x + p(n, g),
        lambda n, x: x * (1 + p(n, g)),
        lambda n, x: x * (2 * p(n, g) - 0.5),
        lambda n, x: p(n, g) - x,
        lambda n, x: x * p(n, g).exp(),
        lambda n, x: x / p(n, g),
        lambda n, x: x * p(n, g).flip(0),
        lambda n, x: x.unflatten(-1, (2, -1)).mul(p(n, g)[: x.shape[-1] // 2]).flatten(-2) + p(n, g),
        lambda n, x: x * p(n, g) + p(n, g),
        lambda n, x: x * p(n, g) * p(n, g),
        lambda n, x: x + p(n, g).tanh(),
        lambda n, x: torch.addcmul(p(n, g), x, p(n, g)),
        lambda n, x: x + 2 * p(n, g),
        lambda n, x: x + p(n, g)[torch.arange(x.shape[-1])],
        lambda n, x: x + p(n, g)[: x.shape[1]],
        lambda n, x: x + p(n, g)[2 : x.shape[1] + 2],
        lambda n, x: x * p(n, g),
        lambda n, x: x + p(n, g),
        lambda n, x: x * p(n, g)[: x.shape[1]],
        lambda n, x: torch.cat([p(n, g).expand(1, 1, -1), x], 1)[:, : x.shape[1]],
        lambda n, x: torch.cat([p(n, g).expand(1, 1, -1), x], 1)[:, 1:],
        lambda n, x: F.prelu(x, p(n, g)[:1]),
        lambda n, x: torch.cat([p(n, g)[None], x], 1).tanh()[:, 2:],
    ]
    net.names[-1] += f" {kind}"
    return lambda n, x, t: forms[kind](n, x), width


@step(2)
def constant(r, net, width):
    kind, name = usual(r, range(14), (3, 4, 5, 9, 10, 11, 12)), f"c{len(net.names)}"
    net.register_buffer(name, torch.randn(LENGTH, width))
    p = getattr
    forms = [
        lambda n, x: x + p(n, name)[: x.shape[1]],
        lambda n, x: x * p(n, name)[: x.shape[1]],
        lambda n, x: x + p(n, name)[0],
        lambda n, x: x * p(n, name)[0],
        lambda n, x: x / (p(n, name)[0].abs() + 1),
        lambda n, x: x + p(n, name)[-x.shape[1] :],
        lambda n, x: x * torch.arange(x.shape[1])[:, None],
        lambda n, x: x * (torch.arange(x.shape[-1]) % 2),
        lambda n, x: x + torch.arange(x.shape[1]).view(1, -1, 1),
        lambda n, x: x * x.shape[1],
        lambda n, x: x * (LENGTH / x.shape[1]),
        lambda n, x: x @ p(n, name)[:, : x.shape[-1]].T @ p(n, name),
        lambda n, x: torch.where(p(n, name)[0] > 0, x, 0.0),
        lambda n, x: x - p(n, name).mean(),
    ]
    net.names[-1] += f" {kind}"
    return lambda n, x, t: forms[kind](n, x), width


@step(1.5)
def positions(r, net, width):
    kind = usual(r, range(8), (2, 3, 4, 5, 6, 7))
    table = net.add(nn.Embedding(LENGTH + 2, width, padding_idx=usual(r, (None,), (0, 1))))
    index = [
        lambda n, x, t: torch.arange(x.shape[1])[None],
        lambda n, x, t: torch.arange(x.shape[1]) + 2,
        lambda n, x, t: torch.arange(x.shape[1]).flip(0),
        lambda n, x, t: torch.zeros_like(t),
        lambda n, x, t: torch.cumsum((t != 0).long(), 1) * (t != 0),
        lambda n, x, t: t.ne(0).long(),
        lambda n, x, t: t % 8,
        lambda n, x, t: t.clamp(max=LENGTH + 1),
    ][kind]
    net.names[-1] += f" {kind}"
    return lambda n, x, t: x + n.layer(table)(index(n, x, t)), width


# ---- norms, reductions ----------------------------------------------------------------------------------------------


@step(3)
def norm(r, net, width):
    kind, eps = (
        usual(r, range(26), (3, 7, 8, 10, 12, 13, 14, 15, 16, 18, 19, 20, 21, 22, 23, 24, 25)),
        r.choice((1e-5, 1e-6, 1e-3, 0.1, 0.0)),
    )
    layer = g = b = ""
    if kind in (0, 1, 2, 3):
        layer = net.add(
            (
                lambda: nn.LayerNorm(width, eps or 1e-5, r.random() < 0.8),
                lambda: nn.RMSNorm(width, r.choice((None, eps))),
                lambda: nn.LayerNorm(width, eps or 1e-5, bias=False),
                lambda: nn.BatchNorm1d(width),
            )[kind]()
        )
        for parameter in net.layer(layer).parameters():
            nn.init.normal_(parameter, 1.0, 0.3)
    if 4 <= kind < 9:
        g = net.parameter(width, offset=1.0)
    if kind in (5, 8):
        b = net.parameter(width)
    net.names[-1] += f" {kind} {eps:g}"
    p = getattr
    forms = {
        4: lambda n, x: F.rms_norm(x, (width,), p(n, g), eps),
        5: lambda n, x: F.layer_norm(x, (width,), p(n, g), p(n, b), eps),
        6: lambda n, x: F.rms_norm(x, (width,), eps=eps) * (1 + p(n, g)),
        7: lambda n, x: F.layer_norm(x, (width,), 1 + p(n, g)),
        8: lambda n, x: p(n, g) * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps) + p(n, b),
        9: lambda n, x: (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + eps),
        10: lambda n, x: (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + eps),
        11: lambda n, x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps),
        12: lambda n, x: x / (x.norm(dim=-1, keepdim=True) + eps),
        13: lambda n, x: F.normalize(x, dim=-1),
        14: lambda n, x: F.normalize(x, dim=-1) * math.sqrt(width),
        15: lambda n, x: F.normalize(x, dim=1),
        16: lambda n, x: F.normalize(x.unflatten(-1, (2, -1)), dim=-1).flatten(-2),
        17: lambda n, x: F.layer_norm(x.unflatten(-1, (-1, 16)), (16,)).flatten(-2),
        18: lambda n, x: x - x.mean(-1, keepdim=True),
        19: lambda n, x: x / (x.abs().mean(-1, keepdim=True) + 1),
        20: lambda n, x: x / x.square().sum(-1, keepdim=True).add(1e-6).sqrt(),
        21: lambda n, x: F.layer_norm(x, x.shape[1:]),
        22: lambda n, x: F.group_norm(x.flatten(0, 1), 2).view(x.shape),
        23: lambda n, x: x * x.mean(-1, keepdim=True),
        24: lambda n, x: (
            (x - x.mean(-1, keepdim=True)) / x.var(-1, keepdim=True, unbiased=False).clamp(min=0.01).sqrt()
        ),
        25: lambda n, x: x / x.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-3),
    }
    if layer:
        return lambda n, x, t: n.layer(layer)(x), width
    return lambda n, x, t: forms[kind](n, x), width


REDUCED = {
    "mean": lambda x: x.mean(1, keepdim=True),
    "sum": lambda x: x.sum(1, keepdim=True),
    "weighted mean": lambda x: (x * torch.arange(1, x.shape[1] + 1)[:, None]).mean(1, keepdim=True),
    "max": lambda x: x.amax(1, keepdim=True),
    "first": lambda x: x[:, :1],
    "last": lambda x: x[:, -1:],
    "second": lambda x: x[:, 1:2],
    "mean of features": lambda x: x.mean(-1, keepdim=True),
    "mean of all": lambda x: x.mean(),
    "mean but first": lambda x: x[:, 1:].mean(1, keepdim=True),
    "cumulative mean": lambda x: x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None],
    "logsumexp": lambda x: x.logsumexp(1, keepdim=True),
    "sum of squares": lambda x: x.square().mean(1, keepdim=True),
    "sum of halves": lambda x: x.unflatten(-1, (2, -1)).sum(-2).repeat(1, 1, 2),
    "pool by softmax": lambda x: (x.mean(-1, keepdim=True).softmax(1) * x).sum(1, keepdim=True),
    "mean, twice": lambda x: x.mean(1, keepdim=True).mean(1, keepdim=True),
    "constant average": lambda x: torch.ones(x.shape[1], x.shape[1], dtype=x.dtype) @ x / x.shape[1],
    "causal average": lambda x: (
        (torch.ones(x.shape[1], x.shape[1], dtype=x.dtype).tril() / torch.arange(1, x.shape[1] + 1)[:, None]) @ x
    ),
}


RARE_REDUCED = [name for name in REDUCED if name not in ("mean", "sum of halves", "mean, twice", "first")]


@step(0.6)
def reduced(r, net, width):
    name = usual(r, REDUCED, RARE_REDUCED)
    net.names[-1] += f" {name}"
    return lambda n, x, t: x + REDUCED[name](x), width


# ---- attention ------------------------------------------------------------------------------------------------------


@step(4)
def attention(r, net, width):
    heads = r.choice([h for h in (1, 1, 2, 3, 4) if width % (16 * h) == 0])
    kind = usual(r, range(16), (1, 8, 9, 10, 11, 12, 14, 15))
    masked = usual(r, range(12), (4, 9, 11))
    q, k, v = (net.add(_linear_of(r, width, width)) for _ in range(3))
    bias = net.parameter(heads, LENGTH, LENGTH) if masked == 9 else ""
    if masked == 10:
        bias = net.add(nn.Embedding(2 * LENGTH, heads))
    if masked == 11:
        bias = net.parameter(heads, 1, 1, offset=1.0)
    net.names[-1] += f" {heads} heads {kind} {masked}"
    scale = r.choice((None, 1.0, 0.3, -0.5, 3.0))

    def split(x: Tensor) -> Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    def mask(n: RandomModule, s: Tensor, t: Tensor) -> Tensor:
        size = s.shape[-1]
        i = torch.arange(size)
        above = i[None] > i[:, None]
        if masked == 1:
            return s.masked_fill(above, float("-inf"))
        if masked == 2:
            return s + torch.where(above, -1e9, 0.0)
        if masked == 3:
            return s - 0.3 * (i[:, None] - i[None]).abs()
        if masked == 4:
            return s.masked_fill(t.eq(0)[:, None, None], float("-inf"))
        if masked == 5:
            return torch.where(above, torch.finfo(torch.float32).min, s)
        if masked == 6:
            return s + torch.where((i[:, None] - i[None]).abs() > 1, -1e4, 0.0)
        if masked == 7:
            return s.masked_fill((i[:, None] + i[None]) % 3 == 1, -50.0)
        if masked == 9:
            return s + getattr(n, bias)[:, :size, :size]
        if masked == 10:
            return s + n.layer(bias)((i[:, None] - i[None]) + LENGTH).permute(2, 0, 1)
        if masked == 11:
            return s * getattr(n, bias)
        return s

    def function(n: RandomModule, x: Tensor, t: Tensor) -> Tensor:
        a, b, c = (split(n.layer(name)(x)) for name in (q, k, v))
        if kind == 1:
            a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
        if kind == 2:
            a, b = F.rms_norm(a, a.shape[-1:]), F.rms_norm(b, b.shape[-1:])
        if kind == 3:
            a, b = _rotary(a.flatten(0, 1)).view_as(a), _rotary(b.flatten(0, 1)).view_as(b)
        if kind == 4:
            a = a * 0.25
        if kind == 5 and masked in (0, 8):
            return F.scaled_dot_product_attention(a, b, c, scale=scale).transpose(1, 2).flatten(2)
        if kind == 6 and masked in (0, 1, 8):
            return F.scaled_dot_product_attention(a, b, c, is_causal=True, scale=scale).transpose(1, 2).flatten(2)
        if kind == 7:
            c = a
        s = a @ b.transpose(-1, -2)
        s = s * (1 / math.sqrt(a.shape[-1]) if scale is None else scale)
        s = mask(n, s, t)
        if kind == 8:
            s = 5 * torch.tanh(s / 5)
        if kind == 9:
            p = s.softmax(-2)
        elif kind == 10:
            p = s.sigmoid()
        elif kind == 11:
            p = torch.exp(s - s.amax(-1, keepdim=True).detach())
            p = p / p.sum(-1, keepdim=True)
        elif kind == 12:
            p = F.dropout(s.softmax(-1), 0.1, n.training) * 2
        elif kind == 13:
            p = F.softmax(s.double(), -1).to(s.dtype)
        elif kind == 14:
            p = (s - s.max()).softmax(-1)
        elif kind == 15:
            p = s.softmax(-1).mT
        else:
            p = s.softmax(-1)
        y = (p @ c).transpose(1, 2)
        return y.flatten(2)

    return function, width


@step(0.7)
def torch_attention(r, net, width):
    heads, kind = r.choice([h for h in (1, 2) if width % (16 * h) == 0]), r.randrange(4)
    if kind == 3:
        name = net.add(
            nn.TransformerEncoderLayer(
                width, heads, 32, 0.0, r.choice(("relu", "gelu")), batch_first=True, norm_first=r.random() < 0.5
            )
        )
        return lambda n, x, t: n.layer(name)(x), width
    name = net.add(nn.MultiheadAttention(width, heads, batch_first=True, bias=r.random() < 0.7))
    if kind == 0:
        return lambda n, x, t: x + n.layer(name)(x, x, x, need_weights=False)[0], width
    if kind == 1:
        return lambda n, x, t: n.layer(name)(x, x, x, key_padding_mask=t == 0)[0], width
    return lambda n, x, t: n.layer(name)(
        x, x.tanh(), x, attn_mask=torch.triu(torch.ones(x.shape[1], x.shape[1]), 1).bool()
    )[0], width


# ---- what tracers miss ----------------------------------------------------------------------------------------------


class Doubled(torch.autograd.Function):
    """2 x, with the gradient of x."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, d):
        return d


ODD = {
    "checkpoint": lambda n, x, t: checkpoint(torch.tanh, x, use_reentrant=False),
    "no_grad": lambda n, x, t: x + _without_gradient(x),
    "function of autograd": lambda n, x, t: Doubled.apply(x),
    "hook": lambda n, x, t: (y := x * 1.0, y.register_hook(lambda d: 2 * d) if y.requires_grad else None, y)[-1],
    "ids": lambda n, x, t: x * (t == 5).unsqueeze(-1),
    "ids as numbers": lambda n, x, t: x + t.unsqueeze(-1).to(x.dtype) * 0.1,
    "not padding": lambda n, x, t: x * (t != 0).unsqueeze(-1),
    "not padding, mean": lambda n, x, t: x + (x * (t != 0)[..., None]).sum(1, keepdim=True) / (t != 0).sum(),
    "condition": lambda n, x, t: x.tanh() if t.shape[1] > 3 else x,
    "condition on values": lambda n, x, t: x.tanh() if x.sum() > 0 else x,
    "item": lambda n, x, t: x * x.mean().item(),
    "list": lambda n, x, t: x + torch.tensor(x.detach().mean().tolist()),
    "noise": lambda n, x, t: x + 1e-3 * torch.randn_like(x),
    "training": lambda n, x, t: x.tanh() if n.training else x,
    "again": lambda n, x, t: n.table(t) + x if x.shape == n.table(t).shape else x,
    "table reversed": lambda n, x, t: x + n.table(t.flip(1)) if x.shape == n.table(t).shape else x,
    "table of first": lambda n, x, t: x + n.table(t[:, :1]) if x.shape[-1] == n.table(t).shape[-1] else x,
    "row of table": lambda n, x, t: x + n.table.weight[0] if x.shape[-1] == n.table.weight.shape[-1] else x,
    "table plus one": lambda n, x, t: x + n.table((t + 1) % WORDS) if x.shape == n.table(t).shape else x,
    "grad in forward": lambda n, x, t: torch.autograd.grad(x.square().sum(), x, create_graph=True)[0],
    "vmap": lambda n, x, t: torch.vmap(torch.tanh)(x),
    "vmap product": lambda n, x, t: torch.vmap(lambda y: y * y.tanh())(x),
    "requires_grad": lambda n, x, t: x if not x.requires_grad else x + 0,
    "try": lambda n, x, t: _tried(x),
    "numpy": lambda n, x, t: x + torch.from_numpy(np.tanh(x.detach().numpy())),
    "length": lambda n, x, t: x * (1 + len(t[0]) / LENGTH),
    "shape": lambda n, x, t: x / math.sqrt(x.shape[-1]),
    "double and back": lambda n, x, t: x.double().tanh().to(x.dtype),
    "half": lambda n, x, t: x.half().to(x.dtype),
    "complex": lambda n, x, t: torch.complex(x, x.tanh()).real + x,
    "fft": lambda n, x, t: torch.fft.ifft(torch.fft.fft(x)).real,
    "sort": lambda n, x, t: x.sort(-1).values,
    "cache": lambda n, x, t: _cached(n, x),
    "counter": lambda n, x, t: _counted(n, x),
    "where ids": lambda n, x, t: torch.where((t > 3)[..., None], x, x.tanh()),
    "parameter in place": lambda n, x, t: x,
}


def _without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.tanh()


def _tried(x: Tensor) -> Tensor:
    try:
        return x.tanh().view(-1, 7 * x.shape[-1] * x.shape[1], 3)
    except RuntimeError:
        return x.tanh()


def _cached(n: RandomModule, x: Tensor) -> Tensor:
    before = n.__dict__.get("before")
    n.__dict__["before"] = x.detach()
    return x if before is None or before.shape != x.shape else x + 0.1 * before


def _counted(n: RandomModule, x: Tensor) -> Tensor:
    n.__dict__["counts"] = [*n.__dict__.get("counts", []), 0]
    return x * (1 + 0.01 * len(n.__dict__["counts"]))


@step(0.5)
def odd(r, net, width):
    name = r.choice(list(ODD))
    net.names[-1] += f" {name}"
    return ODD[name], width


# ---- the judge ------------------------------------------------------------------------------------------------------


# Relative error of a probability: the exponential, the sum, the reciprocal and the product are rounded, 2^-24 each.
OF_SOFTMAX = 2.0**-22


def error_of(table: FunctionTable, x: Tensor) -> Tensor:
    """Return by how much a table of the card is off, at most ASYMPTOTE: a table that is wrong is not excused."""
    if not table.has_interval:
        return torch.zeros_like(x)
    inside = x.detach().clamp(table.low, math.nextafter(table.high, table.low))
    place = (inside - table.low) * table.steps
    part = place.floor().clamp(0, table.parts - 1)
    powers = (place - part)[..., None] ** torch.arange(3)
    values = (torch.from_numpy(table.table()).double()[part.long()] * powers).sum(-1)
    return (values - torch.from_numpy(table.exact(x.detach().numpy()))).clamp(-ASYMPTOTE, ASYMPTOTE)


class OfTables(torch.autograd.Function):
    """What the tables of an activation add to it and, in the backward pass, to its derivative."""

    @staticmethod
    def forward(context: Any, x: Tensor, activation: Activation) -> Tensor:
        error = error_of(activation.function, x)
        # The card has the derivative of tanh from its output y, 1 - y y.
        of_slope = -2 * torch.tanh(x) * error if activation.function is TANH else error_of(activation.slope, x)
        context.save_for_backward(of_slope)
        return error * x if activation.times_x else error

    @staticmethod
    def backward(context: Any, d: Tensor) -> tuple[Tensor, None]:
        return d * context.saved_tensors[0], None


class OffSoftmax(torch.autograd.Function):
    """A softmax whose probabilities are off by rounding, so that they are no sum of 1 in the backward pass either."""

    @staticmethod
    def forward(context: Any, scores: Tensor) -> Tensor:
        p = scores.softmax(-1)
        p = p * (1 + OF_SOFTMAX * torch.linspace(1, 2, p.numel()).mul(1e5).sin().sign().view(p.shape))
        context.save_for_backward(p)
        return p

    @staticmethod
    def backward(context: Any, d: Tensor) -> Tensor:
        (p,) = context.saved_tensors
        return p * (d - (p * d).sum(-1, keepdim=True))


class OffSoftmaxes(TorchFunctionMode):
    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return OffSoftmax.apply(args[0]) if func is Tensor.softmax else func(*args, **(kwargs or {}))


class OfGraph(nn.Module):
    """The graph of a model as a module in double precision; `is_off`: with what the card's tables are off by."""

    def __init__(self, model: ModuleModel, parameters: Mapping[str, np.ndarray], is_off: bool):
        super().__init__()
        self.keys, graph = list(parameters), model.graph
        self.list = nn.ParameterList(torch.from_numpy(value).double() for value in parameters.values())
        self.call = lambda named, tokens: self._outputs(graph, named, tokens, is_off)

    def forward(self, tokens: Tensor) -> tuple[Tensor, ...]:
        return self.call(dict(zip(self.keys, self.list, strict=True)), tokens[0])

    @staticmethod
    def _outputs(graph: Graph, named: dict[str, Tensor], tokens: Tensor, is_off: bool) -> tuple[Tensor, ...]:
        named |= {copy: named[name] for copy, name in graph.copies.items()}
        off = {
            name: replace(one, torch=lambda x, one=one: one.torch(x) + OfTables.apply(x, one))
            for name, one in ACTIVATIONS.items()
        }
        with mock.patch.dict(ACTIVATIONS, off if is_off else {}), OffSoftmaxes() if is_off else nullcontext():
            values = execute(graph, named, tokens)
        heads = [op for op in graph.operations if isinstance(op, Classifier)]
        return tuple(values[op.output] if op.loss == INTENT else values[op.output][None] for op in heads)


def of_card(model: ModuleModel, parameters: Mapping[str, np.ndarray], sample: Samples) -> list[tuple[float, dict]]:
    """Return what the card's tables and its softmax add to a loss and to the gradients, and what rounding adds.

    Both are differences from the graph in double precision: a wrong graph does not show in them.
    """
    found = []
    for is_off, precision in ((False, torch.float64), (True, torch.float64), (False, torch.float32)):
        network = SimpleNamespace(network=OfGraph(model, parameters, is_off), task=model.task)
        loss, gradients = autograd(network, {}, sample, precision)
        found.append((loss, dict(zip(parameters, gradients.values(), strict=True))))
    (exact, of_exact), *others = found
    return [(loss - exact, {name: of_one[name] - of_exact[name] for name in of_exact}) for loss, of_one in others]


@dataclass
class Verdict:
    """What became of a module: "right", "refused", "reported" (the machine says that values overflow) or a fault."""

    seed: int
    kind: str
    message: str
    names: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.seed} {self.kind}: {self.message} {self.names}"


def judge(processor: Any, seed: int, most: int = 5) -> Verdict:
    """Trace, compile and train a module; compare with PyTorch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _judge(processor, seed, most)


def _judge(processor: Any, seed: int, most: int) -> Verdict:
    try:
        net = RandomModule(seed, most)
    except Exception as error:
        return Verdict(seed, "not made", f"{type(error).__name__}: {error}")
    r = random.Random(seed)
    if r.random() < 0.9:
        net.eval()
    of = lambda kind, message: Verdict(seed, kind, message, net.names)  # noqa: E731
    try:
        model = trace(net, LENGTH)
        program = compile(model)
    except ProgramError as error:
        message = str(error)
        is_clear = "\n" not in message and len(message) > 20
        return of("refused" if is_clear else "unclear", message)
    except Exception as error:
        return of("traceback", f"{type(error).__name__}: {error}")
    for part in (1.0, r.choice((0.1, 4.0, 16.0))):
        parameters = {name: value.copy() for name, value in model.parameters().items()}
        for name, value in parameters.items():
            if name not in model.frozen and r.random() < 0.5:
                value *= np.float32(part)
        for length in sorted({LENGTH, r.randint(2, LENGTH)}):
            fault = _fault(
                processor,
                model,
                program,
                lambda: RandomModule(seed, most).train(net.training),
                parameters,
                length,
                seed,
            )
            if fault:
                return of(fault[0], f"parameters x {part:g}, {length} tokens: {fault[1]}")
    return of("right", "")


def _fault(
    processor: Any,
    model: ModuleModel,
    program: Any,
    make: Callable[[], nn.Module],
    parameters: Mapping[str, np.ndarray],
    length,
    seed,
) -> tuple[str, str] | None:
    """Return what differs on a sample from PyTorch in double precision, beyond what single precision takes."""
    sample = some_samples(model, [length], seed=seed)
    noise = torch.Generator().manual_seed(seed)

    def of_pytorch(precision: torch.dtype, change: float = 0.0) -> tuple[float, dict[str, np.ndarray]]:
        network = make().to(precision)
        with torch.no_grad():
            for name, value in network.named_parameters():
                given = torch.from_numpy(parameters[name]).view(value.shape).to(precision)
                value.copy_(given * (1 + change * torch.randn(given.shape, generator=noise).to(precision)))
        return autograd(SimpleNamespace(network=network, task=model.task), {}, sample, precision)

    RandomModule.sizes = sizes = []
    wanted_loss, wanted = of_pytorch(torch.float64)
    RandomModule.sizes, of_values = None, 2e-7 * max(sizes)  # a limit is off by the rounding of what it limits
    if not math.isfinite(wanted_loss) or not all(np.isfinite(g).all() for g in wanted.values()):
        return None
    if max(sizes) > MOST or min(sizes) < LEAST:
        return None
    # What rounding does: in single precision, and of parameters that are off by several roundings.
    others = [
        (100, of_pytorch(torch.float32)),
        (5, of_pytorch(torch.float64, 1e-6)),
        (5, of_pytorch(torch.float64, 1e-6)),
    ]
    for of_loss, of_gradients in of_card(model, parameters, sample):
        others.append((5, (wanted_loss + of_loss, {name: wanted[name] + of_gradients[name] for name in wanted})))
    try:
        loss, found = first_moments(processor, program, parameters, sample)
    except AssertionError:
        return "reported", "the machine reports an overflow"
    sizes = {name: float(np.abs(g).max()) for name, g in wanted.items() if g.size}
    largest = max(sizes.values(), default=0.0)
    rounding = of_values + max(times * abs(its_loss - wanted_loss) for times, (its_loss, _) in others)
    if not abs(loss - wanted_loss) <= 1e-4 * (1 + abs(wanted_loss)) + rounding:
        return "silent", f"loss {loss:.7g}, PyTorch {wanted_loss:.7g}"

    def share(one: np.ndarray, name: str) -> float:
        return float(np.abs(one.reshape(wanted[name].shape) - wanted[name]).max()) / (
            sizes[name] + 0.1 * largest + 1e-12
        )

    own = max((times * share(its[name], name) for times, (_, its) in others for name in sizes), default=0.0)
    for name in sizes:
        if name in model.frozen:
            continue
        error = share(found[name], name)
        if largest > 1e-9 and not error <= 5e-3 + of_values + own:
            return "silent", f"gradient of {name} differs by {error:.1e} of its largest; rounding {own:.0e}"
    return None


def judged(processor: Any, seeds: range, most: int = 5) -> Iterator[Verdict]:
    """Yield the verdict of each seed."""
    for seed in seeds:
        yield judge(processor, seed, most)


def main() -> None:
    """Judge seeds; print each that is neither right nor refused, and the counts."""
    import tempfile

    from processor_native import NativeProcessor
    from training_processor import build_libraries

    torch.set_num_threads(1)
    first, last = map(int, sys.argv[1:3])
    counts, reasons = Counter(), Counter()
    with tempfile.TemporaryDirectory() as folder:
        processor = NativeProcessor(build_libraries(Path(folder))["fast"])
        for verdict in judged(processor, range(first, last)):
            counts[verdict.kind] += 1
            if verdict.kind == "refused":
                reasons[verdict.message.split(" is not supported")[0].split(": ", 1)[-1][:60]] += 1
            elif verdict.kind != "right":
                print(verdict, flush=True)
    print(json.dumps(counts))
    for reason, count in reasons.most_common(int(sys.argv[3]) if len(sys.argv) > 3 else 0):
        print(count, reason)


if __name__ == "__main__":
    main()
