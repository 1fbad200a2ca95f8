"""Trace a contraction flow: the operands, their indices and the live intermediates of every step.

The steps and their costs are those of `bttlab.tensor.flow_cost`; here they get indices, so that they can be drawn as
tensor networks. Indices are named t (tokens), i1, i2, … (output modes), j1, j2, … (input modes), r1, r2, … (ranks).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bttlab.tensor import Cost, Order, Step, flow_cost, order_cost, order_of

PASSES = ("forward", "backward")


@dataclass(frozen=True)
class TraceStep:
    """One step of a pass: the names of its tensors, and what is in memory."""

    step: Step
    left: str
    right: str
    result: str
    alive: dict[str, int]  # elements of the intermediates during the step, the result among them if it is one
    present: tuple[str, ...]  # forward: all tensors still to be contracted; backward: the two that meet


@dataclass(frozen=True)
class FlowTrace:
    """Both passes of a flow."""

    cost: Cost
    sizes: dict[str, int]  # of each index
    indices: dict[str, tuple[str, ...]]  # of each tensor; a gradient d… has those of its tensor
    forward: tuple[TraceStep, ...]
    backward: tuple[TraceStep, ...]

    def indices_of(self, tensor: str) -> tuple[str, ...]:
        """Return a tensor's indices."""
        return self.indices[tensor if tensor in self.indices else tensor.removeprefix("d")]


def trace_flow(
    flow: str | Order, tokens: int, out_modes: Sequence[int], in_modes: Sequence[int], rank: int
) -> FlowTrace:
    """Return the trace of a flow; parameters and errors as for `bttlab.tensor.flow_cost` and `order_cost`."""
    shape = tokens, out_modes, in_modes, rank
    cost = (order_cost if isinstance(flow, Order) else flow_cost)(flow, *shape)
    order = flow if isinstance(flow, Order) else order_of(flow, *shape)
    indices = order.indices()
    present = [name for name in indices if name == "x" or name[0] == "G"]
    before = []
    for result, left, right in order.steps:
        before.append(tuple(present))
        present = [*(name for name in present if name not in (left, right)), result]
    made = _made(cost, "forward")
    read_later = {name for step in cost.backward.steps for name in _parse(step)[1:]}
    kept = {name: size for name, size in made.items() if name in read_later}
    forward = _trace_pass(cost, "forward", made, {}, before)
    return FlowTrace(
        cost, order.sizes(*shape), indices, forward, _trace_pass(cost, "backward", _made(cost, "backward"), kept)
    )


def _parse(step: Step) -> tuple[str, str, str]:
    result, operands = step.name.split(" = ")
    return result, *operands.split()


def _made(cost: Cost, name: str) -> dict[str, int]:
    """The intermediates of a pass and their elements: all results but y, dx and the cores' gradients."""
    results = {_parse(step)[0]: step.elements for step in getattr(cost, name).steps}
    return {result: size for result, size in results.items() if result not in ("y", "dx") and result[:2] != "dG"}


def _trace_pass(
    cost: Cost, name: str, made: dict[str, int], kept: dict[str, int], before: Sequence[tuple[str, ...]] | None = None
) -> tuple[TraceStep, ...]:
    steps = getattr(cost, name).steps
    last = {operand: k for k, step in enumerate(steps) for operand in _parse(step)[1:]}
    alive, traced = dict(kept), []
    for k, step in enumerate(steps):
        result, left, right = _parse(step)
        if result in made:
            alive[result] = made[result]
        traced.append(TraceStep(step, left, right, result, dict(alive), before[k] if before else (left, right)))
        alive = {operand: size for operand, size in alive.items() if last.get(operand, -1) > k}
    return tuple(traced)
