"""Compare, list and check custom contraction paths."""

from collections.abc import Mapping, Sequence
from typing import Any

from bttlab.card.layer import LayerRun, autograd_errors, layer_program, run_layer
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.layer import LayerProgram
from bttlab.compiler.listing import instruction_line
from bttlab.compiler.machine import M
from bttlab.compiler.timing import time_program
from bttlab.model import FLOW_TITLES
from bttlab.tensor import Order, ShapeError, order_cost, order_of

TOLERANCE = 1e-5  # of the largest element of a tensor: FP32 has seven digits


def compare_flows(layer: Any, tokens: int, own: Mapping[str, Any]) -> None:
    """Print the arithmetic, memory and cycles of custom paths and of the known flows, compiled the same way.

    Parameters
    ----------
    layer : TTLinear
        The layer.
    tokens : int
        Number of rows of x.
    own : mapping of str to Order or str
        Custom paths, by their names, which are not those of the known flows.

    Raises
    ------
    ShapeError
        If a path is not valid, or its name is that of a known flow.
    """
    shape = layer.out_modes, layer.in_modes, [core.shape[2] for core in layer.used_cores()][:-1]
    if taken := [name for name in own if name in FLOW_TITLES.values()]:
        raise ShapeError(f"{taken[0]!r} is the name of a known flow: give your path another name")
    orders = {name: Order.of(order) for name, order in own.items()}
    orders |= {title: order_of(name, tokens, *shape) for name, title in reversed(FLOW_TITLES.items())}
    print(f"{tokens} tokens{'multiply-accumulates':>32}{'peak elements':>15}{'cycles (modelled)':>19}")
    for name, order in orders.items():
        cost = order_cost(order, tokens, *shape)
        peak = max(cost.forward.peak_elements, cost.backward.peak_elements)
        print(f"{name:16}{cost.macs:23,}{peak:15,}{_cycles(layer, tokens, order):>19}")


def _cycles(layer: Any, tokens: int, order: Order) -> str:
    try:
        return f"{flow_cycles(layer, order, tokens):,}"
    except ProgramError:
        return "does not fit"


def compare_lengths(layer: Any, lengths: Sequence[int], flows: Mapping[str, Any]) -> None:
    """Print arithmetic, memory and cycles of both passes at each number of tokens; a star marks the least.

    Parameters
    ----------
    layer : TTLinear
        The layer.
    lengths : sequence of int
        Numbers of tokens.
    flows : mapping of str to flow
        As for `bttlab.card.layer.layer_program`, by their names.
    """
    shape = layer.out_modes, layer.in_modes, [core.shape[2] for core in layer.used_cores()][:-1]
    print(f"{'tokens':>6}  {'':16}{'multiply-accumulates':>21}{'peak elements':>15}{'cycles (modelled)':>19}")
    for tokens in lengths:
        rows = {}
        for name, flow in flows.items():
            program = layer_program(layer, tokens, flow)
            cost = order_cost(program.order, tokens, *shape)
            peak = max(cost.forward.peak_elements, cost.backward.peak_elements)
            rows[name] = cost.macs, peak, time_program(program.forward, tokens, False).cycles
        least = [min(column) for column in zip(*rows.values(), strict=True)]
        for name, row in rows.items():
            cells = [f"{value:,}{'*' if value == best else ' '}" for value, best in zip(row, least, strict=True)]
            print(f"{tokens:6}  {name:16}{cells[0]:>22}{cells[1]:>15}{cells[2]:>19}")


def show_program(program: LayerProgram, most: int = 8) -> None:
    """Print the engines' first instructions and the number of all.

    Parameters
    ----------
    program : LayerProgram
        Of `bttlab.card.layer.layer_program`.
    most : int
        Most instructions of an engine.
    """
    shown = [(n, i) for n, i in enumerate(program.forward) if i.unit <= M.ENGINE_1][:most]
    for number, instruction in shown:
        print(instruction_line(number, instruction))
    print(f"{len(shown)} of {len(program.forward)} instructions; most=100 shows all of the engines")


def check_flow(overlay: Any, layer: Any, flow: Any, x: Any, dy: Any) -> LayerRun:
    """Run a flow on the card; print the error of each result against autograd in double precision.

    Parameters
    ----------
    overlay : pynq.Overlay
        Of the trainer.
    layer : TTLinear
        The layer.
    flow : str, tuple of int, Order or sequence of str
        As for `bttlab.card.layer.layer_program`.
    x, dy : array or Tensor
        Shape (tokens, features): the input, and the gradient of a loss with respect to y.

    Returns
    -------
    LayerRun
        Results and cycles.
    """
    run = run_layer(overlay, layer, flow, x, dy)
    errors = autograd_errors(run, layer, x, dy)
    wrong = wrong_results(errors)
    print("  ".join(f"{name} {error:.0e}" for name, error in errors.items()))
    print(f"wrong: {', '.join(wrong)}" if wrong else f"all within {TOLERANCE:.0e} of autograd in float64")
    return run


def wrong_results(errors: Mapping[str, float]) -> list[str]:
    """Return the names of the results whose error is above `TOLERANCE`, or not finite."""
    return [name for name, error in errors.items() if not error <= TOLERANCE]


def flow_cycles(layer: Any, flow: Any, tokens: int) -> int:
    """Return the cycles of both passes of a flow's program (modelled).

    Parameters
    ----------
    layer : TTLinear
        The layer.
    flow : str, tuple of int, Order or sequence of str
        As for `bttlab.card.layer.layer_program`.
    tokens : int
        Number of rows of x.

    Returns
    -------
    int
        Cycles.
    """
    return time_program(layer_program(layer, tokens, flow).forward, tokens, False).cycles
