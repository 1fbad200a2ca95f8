"""The FP32 operators that the kernel's units instantiate.

Vitis HLS makes as many instances of an operator as a pipelined loop needs in the cycles between two iterations: lanes
times the operations of one lane, over the loop's II. The counts are those of the source; a test runs `functions.h` with
a number type that counts.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from bttlab.u50.hardware import HardwareConfig


def _operators(*plus: Mapping[str, int], **own: int) -> Counter:
    counts = Counter(own)
    for other in plus:
        counts.update(other)
    return counts


# functions.h, for one value.
EXPONENTIAL = _operators(add=11, multiply=11, compare=2, select=2)
FUNCTIONS = {
    "exponential": EXPONENTIAL,
    "logarithm": _operators(add=7, multiply=7, divide=1, convert=1),
    "hyperbolic_tangent": _operators(EXPONENTIAL, add=2, multiply=1, divide=1, compare=1, select=1),
    "normal_distribution": _operators(EXPONENTIAL, add=9, multiply=10, compare=3, select=3),
    "normal_density": _operators(EXPONENTIAL, multiply=3),
}


@dataclass(frozen=True)
class Unit:
    """A part of the data path with operators of its own.

    Attributes
    ----------
    name : str
    functions : tuple of str
        The functions of the source whose loops it is.
    work : str
        What of `bttlab.u50.work` it does: its activity is that over its lanes and cycles. Empty for units too small to
        matter.
    lanes : int
        Values side by side.
    interval : int
        Cycles between two iterations (II).
    operators : mapping of str to int
        Operations of one lane an iteration.
    loops : int
        Pipelined loops, each with counters, addresses and a state machine.
    single : mapping of str to int
        Operators beside the lanes: of a sum's last steps, or of a scalar.
    """

    name: str
    functions: tuple[str, ...]
    work: str
    lanes: int
    interval: int
    operators: Mapping[str, int]
    loops: int
    single: Mapping[str, int]

    @property
    def instances(self) -> Counter:
        """Operators of each kind."""
        return Counter(
            {name: ceil(self.lanes * count / self.interval) for name, count in self.operators.items()}
        ) + Counter(self.single)


def units(hardware: HardwareConfig) -> list[Unit]:
    """Return the units of the kernel."""
    lanes, macs = hardware.lanes, hardware.multiply_accumulates
    tree = _operators(add=lanes - 1)  # of a sum over the lanes
    pick = _operators(select=lanes - 1)  # an element of a word

    def unit(name, functions, work, operators, loops, single=_operators(), lanes=lanes, interval=1) -> Unit:  # noqa: B008
        return Unit(name, tuple(functions.split()), work, lanes, interval, operators, loops, single)

    mac = _operators(add=1, multiply=1)
    gelu = _operators(FUNCTIONS["normal_distribution"], multiply=1)
    gelu_slope = _operators(FUNCTIONS["normal_distribution"], FUNCTIONS["normal_density"], add=1, multiply=2)
    exponential = _operators(FUNCTIONS["exponential"], add=2, multiply=1)
    norm = _operators(tree, add=1, divide=1, square_root=1)
    words = _operators(add=lanes * lanes)  # each lane's sum of a word, and what is there already
    adamw = _operators(add=4, multiply=8, divide=1, square_root=1)
    powers = _operators(tree, multiply=8)  # of the betas, in double precision: two multiplications
    maximum = _operators(tree, compare=1)
    logarithm = _operators(FUNCTIONS["logarithm"], compare=1)
    return [
        unit("contraction", "contract_outer", "contraction", mac, 4, pick, lanes=macs),
        unit("contraction by words", "contract_inner", "contraction", mac, 5, words, lanes=macs),
        unit("gelu", "gelu_forward", "gelu_forward", gelu, 1),
        unit("gelu backward", "gelu_backward", "gelu_backward", gelu_slope, 1),
        unit("tanh", "tanh_forward", "tanh_forward", FUNCTIONS["hyperbolic_tangent"], 1),
        unit("tanh backward", "tanh_backward", "tanh_backward", _operators(add=1, multiply=2), 1),
        unit("layer norm", "layer_norm_forward", "layer_norm_forward", _operators(add=2, multiply=2), 3, norm),
        unit(
            "layer norm backward", "layer_norm_backward", "layer_norm_backward", _operators(add=4, multiply=3), 2, norm
        ),
        unit("softmax", "row_maximum row_exponential scale_row", "softmax_forward", exponential, 3, maximum),
        unit("softmax backward", "attention_backward", "softmax_backward", _operators(add=1, multiply=2), 2, tree),
        unit("loss", "cross_entropy row_argument_maximum", "", {}, 2, logarithm),
        unit("residual and bias", "add bias_forward bias_backward copy clear", "residual", _operators(add=1), 5),
        unit("re-ordering", "pack unpack reverse_modes", "", {}, 5, _operators(select=6 * (lanes - 1))),
        unit("update", "update gradients_are_finite", "update", adamw, 4, powers),
    ]
