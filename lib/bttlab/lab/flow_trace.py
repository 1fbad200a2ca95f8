"""Trace a contraction flow: the operands, their indices and the live intermediates of every step.

The steps and their costs are those of `bttlab.tensor.flow_cost`; here they get indices, so that they can be drawn as
tensor networks. Indices are named t (tokens), i1, i2, … (output modes), j1, j2, … (input modes), r1, r2, … (ranks).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bttlab.tensor import Cost, Order, PassCost, Step, flow_cost, order_cost, order_of

PASSES = ("forward", "backward")


@dataclass(frozen=True)
class TraceStep:
    """One step of a pass: the names of its tensors, and what is in memory."""

    step: Step
    result: str
    left: str
    right: str
    alive: dict[str, int]  # elements of the intermediates during the step, the result among them if it is one
    present: tuple[str, ...]  # forward: all tensors still to be contracted; backward: the two that meet


@dataclass(frozen=True)
class FlowTrace:
    cost: Cost
    sizes: dict[str, int]  # of each index
    indices: dict[str, tuple[str, ...]]  # of each tensor; a gradient d… has those of its tensor
    forward: tuple[TraceStep, ...]
    backward: tuple[TraceStep, ...]

    def indices_of(self, tensor: str) -> tuple[str, ...]:
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
    meeting = [step.name.split(" = ")[1].split() for step in cost.backward.steps]
    passes = _traced(cost.forward, before), _traced(cost.backward, map(tuple, meeting))
    return FlowTrace(cost, order.sizes(*shape), indices, *passes)


def _traced(cost: PassCost, present: Iterable[tuple[str, ...]]) -> tuple[TraceStep, ...]:
    rows = zip(cost.steps, cost.alive, present, strict=True)
    return tuple(TraceStep(step, *step.name.replace(" = ", " ").split(), alive, there) for step, alive, there in rows)
