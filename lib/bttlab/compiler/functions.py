"""The functions of the vector unit: tables of quadratics that approximate the exact functions."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from operator import attrgetter
from typing import Any, Literal

import numpy as np

from bttlab.compiler.errors import ProgramError, TablesFull
from bttlab.compiler.machine import M

# Of the C library: NumPy 1 and 2 differ in the last bit of exp2 and expm1, and so would constants of the tables.
_exp, _expm1 = np.vectorize(math.exp, otypes=[float]), np.vectorize(math.expm1, otypes=[float])
TINY = float(np.finfo(np.float32).tiny)  # the least positive number of the card
ASYMPTOTE = 1e-6  # largest difference of a function from its value at the end of a table


@dataclass(frozen=True)
class FunctionTable:
    """F(x) of docs/processor.md: quadratics over equal parts of an interval."""

    name: str
    exact: Callable[[np.ndarray], np.ndarray]  # the exact function, in double precision
    # The interval; outside it, F is constant.
    low: float
    high: float
    parts: int  # number of quadratics
    exponential: bool = False  # whether F(x) = 2^(x steps / parts): the table then holds 2^f for 0 <= f < 1
    outside: Literal["exact", "asymptote", "not used"] = "asymptote"  # what the constants outside the interval are
    is_0_below: bool = (
        False  # whether it is 0 below the interval, from its asymptote of 0 on; its first part leads there
    )

    @property
    def steps(self) -> float:
        """Quadratics for each unit of x, as FP32."""
        scale = self.parts / math.log(2) if self.exponential else self.parts / (self.high - self.low)
        return float(np.float32(scale))

    @property
    def has_interval(self) -> bool:
        """Whether it is more than a number for each sign."""
        return self.parts > 3

    def check(self) -> None:
        """Raise `ProgramError` unless the function outside the interval is what `outside` says."""
        far, inside = np.logspace(0, 6, 61), 1e-9 * min(1.0, self.high - self.low)
        for end, sign in ((self.low, -1), (self.high, 1)) if self.outside != "not used" else ():
            with np.errstate(over="ignore"):
                there, beyond = self.exact(np.array([end - inside * sign])), self.exact(end + sign * far)
            if not np.abs(beyond - there).max() <= (1e-12 if self.outside == "exact" else ASYMPTOTE):
                raise ProgramError(
                    f"the table of {self.name} is constant outside [{self.low:g}, {self.high:g}], the function is not: "
                    f"it is {there[0]:.3g} at {end:g} and {beyond[-1]:.3g} at {end + sign * far[-1]:g}"
                )

    def table(self) -> np.ndarray:
        """Return the coefficients, float32 of shape (parts, 3): the quadratic through each part's Chebyshev points."""
        points = (1 + np.cos((2 * np.arange(3) + 1) * np.pi / 6)) / 2
        begin = np.arange(self.parts)[:, None]
        if self.exponential:
            values = _exp((begin + points) / self.parts * math.log(2))
        else:
            values = self.exact(self.low + (begin + points) / self.steps)
        table = np.linalg.solve(np.vander(points, 3, increasing=True), values.T).T
        if self.is_0_below:
            middle, end = self.exact(self.low + np.array([0.5, 1.0]) / self.steps)
            table[0] = 0.0, 4 * middle - end, 2 * end - 4 * middle
        return table.astype(np.float32)


def _gelu_share(x):
    from scipy.special import erf  # slow to import, and only compiling needs it

    return (1 + erf(x / math.sqrt(2))) / 2


def _gelu_slope(x):
    return _gelu_share(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _tanh_gelu_share(x):
    return (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def _tanh_gelu_slope(x):
    share = _tanh_gelu_share(x)
    return share + 2 * x * share * (1 - share) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _silu_slope(x):
    return _sigmoid(x) * (1 + x * _sigmoid(-x))


def _mish_share(x):
    e = np.exp(np.minimum(x, 40.0))
    return (e * e + 2 * e) / (e * e + 2 * e + 2)


def _mish_slope(x):
    e = np.exp(np.minimum(x, 40.0))
    share = _mish_share(x)
    return share + x * (1 - share * share) * e / (1 + e)


def _elu_tail(x):
    return _expm1(np.minimum(x, 0.0))


def _step(x):
    return (x >= TINY).astype(np.float64)


def _step_from_0(x):
    return (x >= 0).astype(np.float64)


def _sign(x):
    return _step(x) + _step_from_0(x) - 1


def _softplus_tail_slope(x):
    return (1 - 2 * _step_from_0(x)) * _sigmoid(-np.abs(x))


@cache
def constant(value: float) -> FunctionTable:
    return FunctionTable(f"{value:g}", lambda x: np.full_like(x, value), -1.0, 1.0, 2, outside="exact")


TANH = FunctionTable("tanh", np.tanh, -9.0, 9.0, 576)
EXPONENT = FunctionTable("exp", np.exp, -87.0, 0.0, 128, exponential=True, outside="not used")


def _torch(name: str) -> Callable:
    """Return a function of PyTorch, which is imported when the function is called."""

    def function(*args: Any, **options: Any) -> Any:
        import torch

        return attrgetter(name)(torch)(*args, **options)

    return function


@dataclass(frozen=True)
class Activation:
    torch: Callable[[Any], Any]  # what it is: a function of PyTorch, or a composition of them
    function: FunctionTable  # the activation; divided by x if `times_x`
    slope: FunctionTable  # its derivative
    times_x: bool = True  # whether `function` is multiplied by x
    is_part: bool = False  # of functions that are sums: messages do not name it


ACTIVATIONS = {
    "gelu": Activation(
        _torch("nn.functional.gelu"),
        FunctionTable("GELU(x) / x", _gelu_share, -6.0, 6.0, 576),
        FunctionTable("GELU'(x)", _gelu_slope, -6.0, 6.0, 768),
    ),
    # Exact, with PyTorch's derivative at 0, which is 0.
    "relu": Activation(_torch("relu"), *[FunctionTable("ReLU(x) / x", _step, 0.0, 2 * TINY, 2, outside="exact")] * 2),
    "silu": Activation(
        _torch("nn.functional.silu"),
        FunctionTable("SiLU(x) / x", _sigmoid, -18.0, 18.0, 576, is_0_below=True),
        FunctionTable("SiLU'(x)", _silu_slope, -18.0, 18.0, 768, is_0_below=True),
    ),
    "gelu_tanh": Activation(
        partial(_torch("nn.functional.gelu"), approximate="tanh"),
        FunctionTable("GELU(x) / x by tanh", _tanh_gelu_share, -6.0, 6.0, 576),
        FunctionTable("GELU'(x) by tanh", _tanh_gelu_slope, -6.0, 6.0, 768),
    ),
    "quick_gelu": Activation(
        lambda x: x * _torch("sigmoid")(1.702 * x),
        FunctionTable("x sigmoid(1.702 x) / x", lambda x: _sigmoid(1.702 * x), -12.0, 12.0, 576),
        FunctionTable("quick GELU'(x)", lambda x: _silu_slope(1.702 * x), -12.0, 12.0, 768),
    ),
    "sigmoid": Activation(
        _torch("sigmoid"),
        FunctionTable("sigmoid", _sigmoid, -18.0, 18.0, 576),
        FunctionTable("sigmoid'(x)", lambda x: _sigmoid(x) * _sigmoid(-x), -18.0, 18.0, 768),
        times_x=False,
    ),
    "tanh": Activation(
        _torch("tanh"), TANH, FunctionTable("tanh'(x)", lambda x: 1 - np.tanh(x) ** 2, -9.0, 9.0, 768), times_x=False
    ),
    "abs": Activation(_torch("abs"), *[FunctionTable("|x| / x", _sign, -TINY, 2 * TINY, 3, outside="exact")] * 2),
    "mish": Activation(
        _torch("nn.functional.mish"),
        FunctionTable("Mish(x) / x", _mish_share, -18.0, 18.0, 576, is_0_below=True),
        FunctionTable("Mish'(x)", _mish_slope, -18.0, 18.0, 768, is_0_below=True),
    ),
    # ReLU with the derivative 1 at 0, as PyTorch's clamp has it.
    "at_least_0": Activation(
        lambda x: _torch("clamp")(x, min=0.0),
        *[FunctionTable("max(x, 0) / x", _step_from_0, -1.0, 1.0, 2, outside="exact")] * 2,
        is_part=True,
    ),
    # What softplus and ELU are beside it: both are sums.
    "softplus_tail": Activation(
        lambda x: _torch("nn.functional.softplus")(-_torch("abs")(x)),
        FunctionTable("softplus(-|x|)", lambda x: np.log1p(np.exp(-np.abs(x))), -18.0, 18.0, 576),
        FunctionTable("softplus(-|x|)'", _softplus_tail_slope, -18.0, 18.0, 768),
        times_x=False,
        is_part=True,
    ),
    "elu_tail": Activation(
        lambda x: _torch("expm1")(-_torch("relu")(-x)),
        FunctionTable("exp(min(x, 0)) - 1", _elu_tail, -18.0, 18.0, 576),
        FunctionTable("exp(x) below 0", lambda x: np.where(x < 0, np.exp(np.minimum(x, 0.0)), 0.0), -18.0, 18.0, 768),
        times_x=False,
        is_part=True,
    ),
}


def names() -> str:
    """Return the names of the activations, for messages."""
    return ", ".join(name for name, activation in ACTIVATIONS.items() if not activation.is_part)


class Functions:
    """The functions of a program and where their tables begin."""

    def __init__(self) -> None:
        self.list: list[FunctionTable] = []

    def number(self, function: FunctionTable) -> int:
        """Return the number of a function in the program; add the function if it is new.

        Raise `TablesFull` if the tables have no space for it, `ProgramError` if it is not what its table declares.
        """
        if function not in self.list:
            function.check()
            self.list.append(function)
            entries = sum(f.parts for f in self.list)
            if entries > M.FUNCTION_ENTRIES or len(self.list) > M.FUNCTIONS:
                names = ", ".join(f.name for f in self.list if f.has_interval)
                raise TablesFull(
                    f"the tables of {names} take {entries} entries of {M.FUNCTION_ENTRIES}: choose one kind of "
                    "activation, or one and ReLU"
                )
        return self.list.index(function)

    def packed(self) -> tuple[np.ndarray, np.ndarray]:
        """Return descriptions, int32 of shape (FUNCTIONS, 8), and tables, float32 of shape (3, FUNCTION_ENTRIES)."""
        vectors = np.zeros((M.FUNCTIONS, 8), np.int32)
        tables = np.zeros((3, M.FUNCTION_ENTRIES), np.float32)
        base = 0
        for vector, function in zip(vectors, self.list, strict=False):
            first = math.floor(np.float32(function.low) * np.float32(function.steps))
            bits = function.parts.bit_length() - 1 if function.exponential else 0
            vector[:3] = base, int(function.exponential), bits
            high = np.float32(function.high)
            while not function.exponential and math.floor(high * np.float32(function.steps)) - first >= function.parts:
                high = np.nextafter(high, np.float32(-np.inf))  # else `high` itself would select a part after the last
            vector[3:6] = np.array([function.low, high, function.steps], np.float32).view(np.int32)
            vector[6] = first
            tables[:, base : base + function.parts] = function.table().T
            base += function.parts
        return vectors, tables
