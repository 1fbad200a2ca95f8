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
    lanes, functions = hardware.lanes, hardware.lanes // hardware.function_lanes
    tree = _operators(add=lanes - 1)  # of a sum over the lanes
    select_word = _operators(select=lanes * (lanes - 1))  # any lane of a word to any lane of another

    def unit(name, functions, work, operators, loops, single=_operators(), lanes=lanes, interval=1) -> Unit:  # noqa: B008
        return Unit(name, tuple(functions.split()), work, lanes, interval, operators, loops, single)

    # A row's sum comes from its own slots, from the row above, or from the addend; lanes are summed by trees.
    mac = _operators(add=1, multiply=1, select=2)
    trees = _times(hardware.engines * hardware.lane_trees, tree, {"add": 1})
    gelu = _operators(FUNCTIONS["normal_distribution"], FUNCTIONS["normal_density"], add=1, multiply=2)
    exponential = _operators(FUNCTIONS["exponential"], add=1, multiply=1)
    norm = _operators(tree, add=1, divide=2, square_root=1)
    largest = _operators(tree, compare=lanes, select=2 * lanes, divide=1)
    slope = _operators(add=2, multiply=3)
    sgd = _operators(add=2, multiply=2)
    adamw = _operators(add=4, multiply=8, divide=1, square_root=1)
    update = hardware.update_units
    # AdamW's loop takes the multipliers and adders of the other; the powers of the betas are in double precision.
    shared = {name: count * update * lanes for name, count in sgd.items()}
    beside = _times(update * hardware.update_lanes, adamw) - Counter(shared) + _operators(multiply=8)
    return [
        unit(
            "contraction",
            "engine",
            "contraction",
            mac,
            3 * hardware.engines,
            trees,
            lanes=hardware.multiply_accumulates,
        ),
        unit("gelu", "gelu_forward", "gelu_forward", gelu, 1, interval=functions),
        unit("gelu backward", "gelu_backward", "gelu_backward", _operators(multiply=1), 1),
        unit("tanh", "tanh_forward", "tanh_forward", FUNCTIONS["hyperbolic_tangent"], 1, interval=functions),
        unit("tanh backward", "tanh_backward", "tanh_backward", _operators(add=1, multiply=2), 1),
        unit("layer norm", "layer_norm_forward", "layer_norm_forward", _operators(add=2, multiply=2), 5, norm),
        unit(
            "layer norm backward", "layer_norm_backward", "layer_norm_backward", _operators(add=2, multiply=2), 4, norm
        ),
        unit("softmax", "softmax", "softmax_forward", exponential, 3, largest, interval=functions),
        # Both words of a row of 32 tokens an iteration, at half speed.
        unit("softmax backward", "scores_backward", "softmax_backward", slope, 1, tree, lanes=2 * lanes, interval=4),
        unit("loss", "cross_entropy loss_forward", "", _operators(add=1, select=1), 4, FUNCTIONS["logarithm"]),
        unit("sums and copies", "column_sums copy clear", "residual", _operators(add=1), 3),
        unit("re-ordering", "pack unpack turn_banked", "", {}, 7, _times(5, select_word)),
        unit("update", "update_words", "update", sgd, 2 * update, beside, lanes=update * lanes),
        # Six memories of parameters and gradients, two of each moment, and the constants of the update.
        unit("finite", "is_beyond", "", {}, 16, _operators(limit=2 * 16 * lanes, compare=9, multiply=1)),
    ]


def _times(count: int, *operators: Mapping[str, int]) -> Counter:
    return Counter({name: count * each for name, each in _operators(*operators).items()})
