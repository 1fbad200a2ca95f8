"""How wide and how deep the hardware is: the constants of hls_src, read where the C++ compiler reads them."""

import ast
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from bttlab.model.config import LINEARS
from bttlab.places import ROOT
from bttlab.u50.kernel import OverlayError

HLS_SOURCE = ROOT / "hls_src"
_DEFINITION = re.compile(r"^constexpr int ([^;]*);", re.MULTILINE)
_OPERATORS = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a // b,
}


def read_constants(*headers: Path) -> dict[str, int]:
    """Return the integer constants that headers define, in order; each may use those before it.

    Raises
    ------
    OverlayError
        If a definition is more than names, integers, + - * / and brackets.
    """
    constants: dict[str, int] = {}
    for header in headers:
        for match in _DEFINITION.finditer(header.read_text(encoding="utf-8")):
            for definition in match[1].split(","):
                name, _, expression = definition.partition("=")
                try:
                    constants[name.strip()] = _value(ast.parse(expression.strip(), mode="eval").body, constants)
                except (KeyError, SyntaxError):
                    raise OverlayError(
                        f"{header}: {definition.strip()!r} is no constant that the model of the hardware can read; "
                        "use integers, constants before it, + - * / and brackets"
                    ) from None
    return constants


def _value(node: ast.expr, constants: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return constants[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, constants), _value(right, constants))
    raise KeyError(node)


@functools.cache
def _constants() -> dict[str, int]:
    return read_constants(HLS_SOURCE / "config.h", HLS_SOURCE / "timing.h")


@dataclass(frozen=True, kw_only=True)
class HardwareConfig:
    """The accelerator's width, and the latencies that its schedule is made with.

    What is not given is as in `hls_src/config.h` and `hls_src/timing.h`, where the constants of the same names (in
    capitals) are explained.

    Parameters
    ----------
    clock_mhz : int
        Clock of the kernel.
    lanes : int
        FP32 values of a word.
    engines, engine_rows : int
        Contraction engines, and rows of each; all together `engines` x `engine_rows` x `lanes` multiply-accumulates a
        cycle. There are two engines, one for each end of a tensor train.
    engine_chunk, engine_slots : int
        Words of a row that are worked on at a time, and sums of words that a row keeps.
    lane_trees : int
        Words whose lanes an engine sums up a cycle.
    merged_layers : int
        Linear layers whose merged halves are kept at once.
    function_lanes : int
        Lanes of GELU, tanh and softmax.
    update_units, update_lanes : int
        Units of the update, and lanes of each in AdamW.
    add, mul, div, root, compare, power, read, write, hbm, start : int
        Latencies in cycles.
    """

    clock_mhz: int = None
    lanes: int = None
    engines: int = None
    engine_rows: int = None
    engine_chunk: int = None
    engine_slots: int = None
    lane_trees: int = None
    merged_layers: int = None
    function_lanes: int = None
    update_units: int = None
    update_lanes: int = None
    add: int = None
    mul: int = None
    div: int = None
    root: int = None
    compare: int = None
    power: int = None
    read: int = None
    write: int = None
    hbm: int = None
    start: int = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                value = _constants()[field.name.upper()]
            if not isinstance(value, int) or value < 1:
                raise OverlayError(f"{field.name} of the hardware is {value!r}: it must be an integer of at least 1")
            object.__setattr__(self, field.name, value)
        for name, rule in (("engines", 2), ("update_units", 2), ("lanes", 16)):
            if getattr(self, name) != rule:
                raise OverlayError(f"{name} of the hardware is {getattr(self, name)}: the source is written for {rule}")
        for name in ("function_lanes", "update_lanes"):
            if self.lanes % getattr(self, name):
                raise OverlayError(
                    f"{name} of the hardware is {getattr(self, name)}: it must divide the {self.lanes} lanes"
                )
        if self.merged_layers < (two := 2 * len(LINEARS)):
            raise OverlayError(
                f"merged_layers of the hardware is {self.merged_layers}: at least {two}, those of two encoders"
            )
        if self.engine_rows > self.lanes:
            raise OverlayError(f"engine_rows of the hardware is {self.engine_rows}: at most {self.lanes}, the lanes")

    @property
    def multiply_accumulates(self) -> int:
        """Multiply-accumulates that the engines can start each cycle."""
        return self.engines * self.lanes * self.engine_rows

    @property
    def accumulate(self) -> int:
        """Cycles between two additions to one sum."""
        return self.add + self.write

    @property
    def engine_depth(self) -> int:
        """A step's way through an engine: fetch, multiply, down the rows, store."""
        return self.read + self.mul + self.engine_rows * self.add + self.write + self.start

    @property
    def lane_tree(self) -> int:
        """Latency of the sum of a word's lanes."""
        return 4 * self.add

    @property
    def exponential(self) -> int:
        """Latency of e^x as functions.h computes it."""
        return self.compare + 9 * (self.mul + self.add) + 2 * self.add + self.mul

    @property
    def logarithm(self) -> int:
        """Latency of ln x."""
        return 2 * self.add + self.div + 2 * self.mul + 4 * (self.mul + self.add)

    @property
    def tangent(self) -> int:
        """Latency of tanh x."""
        return self.mul + self.exponential + self.add + self.div + self.compare

    @property
    def distribution(self) -> int:
        """Latency of the normal distribution, which GELU needs."""
        return 2 * self.compare + 9 * (self.mul + self.add) + self.mul + self.exponential

    @property
    def density(self) -> int:
        """Latency of the normal density, which the slope of GELU needs."""
        return 3 * self.mul + self.exponential
