"""The functions of the vector unit: tables of quadratics that approximate the exact functions."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.machine import M


@dataclass(frozen=True)
class Function:
    """F(x) of docs/processor.md: quadratics over equal parts of an interval."""

    name: str
    exact: Callable[[np.ndarray], np.ndarray]  # the exact function, in double precision
    # The interval; outside it, F is constant.
    low: float
    high: float
    parts: int  # number of quadratics
    exponential: bool = False  # whether F(x) = 2^(x steps / parts): the table then holds 2^f for 0 <= f < 1

    @property
    def steps(self) -> float:
        """Quadratics for each unit of x, as FP32."""
        scale = self.parts / math.log(2) if self.exponential else self.parts / (self.high - self.low)
        return float(np.float32(scale))

    def table(self) -> np.ndarray:
        """Return the coefficients, float32 of shape (parts, 3): the quadratic through each part's Chebyshev points."""
        points = (1 + np.cos((2 * np.arange(3) + 1) * np.pi / 6)) / 2
        begin = np.arange(self.parts)[:, None]
        if self.exponential:
            values = np.exp2((begin + points) / self.parts)
        else:
            values = self.exact(self.low + (begin + points) / self.steps)
        return np.linalg.solve(np.vander(points, 3, increasing=True), values.T).T.astype(np.float32)


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


def _step(x):
    return (x >= 0).astype(np.float64)


@cache
def constant(value: float) -> Function:
    return Function(f"{value:g}", lambda x: np.full_like(x, value), -1.0, 1.0, 2)


TANH = Function("tanh", np.tanh, -9.0, 9.0, 576)
EXPONENT = Function("exp", np.exp, -87.0, 0.0, 128, exponential=True)


@dataclass(frozen=True)
class Activation:
    function: Function  # the activation; divided by x if `times_x`
    slope: Function  # its derivative
    times_x: bool = True  # whether `function` is multiplied by x


ACTIVATIONS = {
    "gelu": Activation(
        Function("GELU(x) / x", _gelu_share, -6.0, 6.0, 576), Function("GELU'(x)", _gelu_slope, -6.0, 6.0, 768)
    ),
    # Exact; the derivative at 0 is 1.
    "relu": Activation(*[Function("ReLU(x) / x", _step, -1.0, 1.0, 2)] * 2),
    "silu": Activation(
        Function("SiLU(x) / x", _sigmoid, -18.0, 18.0, 576), Function("SiLU'(x)", _silu_slope, -18.0, 18.0, 768)
    ),
    "gelu_tanh": Activation(
        Function("GELU(x) / x by tanh", _tanh_gelu_share, -6.0, 6.0, 576),
        Function("GELU'(x) by tanh", _tanh_gelu_slope, -6.0, 6.0, 768),
    ),
    "quick_gelu": Activation(
        Function("x sigmoid(1.702 x) / x", lambda x: _sigmoid(1.702 * x), -12.0, 12.0, 576),
        Function("quick GELU'(x)", lambda x: _silu_slope(1.702 * x), -12.0, 12.0, 768),
    ),
    "sigmoid": Activation(
        Function("sigmoid", _sigmoid, -18.0, 18.0, 576),
        Function("sigmoid'(x)", lambda x: _sigmoid(x) * _sigmoid(-x), -18.0, 18.0, 768),
        times_x=False,
    ),
    "tanh": Activation(TANH, Function("tanh'(x)", lambda x: 1 - np.tanh(x) ** 2, -9.0, 9.0, 768), times_x=False),
}


class Functions:
    """The functions of a program and where their tables begin."""

    def __init__(self) -> None:
        self.list: list[Function] = []

    def number(self, function: Function) -> int:
        """Return the number of a function in the program; add the function if it is new.

        Raise `ProgramError` if the tables have no space for it.
        """
        if function not in self.list:
            self.list.append(function)
            entries = sum(f.parts for f in self.list)
            if entries > M.FUNCTION_ENTRIES or len(self.list) > M.FUNCTIONS:
                names = ", ".join(f.name for f in self.list if f.parts > 2)
                raise ProgramError(
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
