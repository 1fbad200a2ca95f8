"""Costs from shapes against what is executed: every product is intercepted, its operands' shapes and lives recorded."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch.utils._python_dispatch import TorchDispatchMode

from bttlab.tensor import (
    FLOWS,
    cheapest_order,
    flow_cost,
    grouped,
    grouped_cost,
    lookup_cost,
    optimal_cost,
    tt_shapes,
    ttm_shapes,
)
from bttlab.tensor.ttm import lookup, lookup_backward, row_digits
from bttlab.util.errors import BttlabError

modes = st.lists(st.integers(1, 4), min_size=1, max_size=4)
FREE = {"view", "detach", "_unsafe_view", "t", "transpose", "permute", "select", "slice", "zeros_like", "index_add_"}


class Trace(TorchDispatchMode):
    """Records the MACs of each product and which memory it writes and reads; copies stand for what they copy."""

    def __init__(self):
        super().__init__()
        self.products = []  # (macs, elements, memory written, memories read)
        self.copies = {}
        self.alive = []  # keeps every result, so that no memory is used twice

    def memory(self, tensor):
        address = tensor.untyped_storage().data_ptr()
        return self.copies.get(address, address)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        self.alive.append(result)
        if name in ("mm", "bmm"):
            left, right = args
            macs = result.numel() * left.shape[-1]
            self.products.append((macs, result.numel(), self.memory(result), {self.memory(left), self.memory(right)}))
        elif name in ("clone", "index_select"):
            self.copies[result.untyped_storage().data_ptr()] = self.memory(args[0])
        else:
            assert name in FREE, name
        return result


def peak(products, external, kept=()):
    """Largest number of elements alive at once: from the product that makes them to the last that reads them."""
    sizes = dict(kept) | {memory: size for _, size, memory, _ in products if memory not in external}
    made = {memory: -1 for memory, _ in kept} | {
        memory: k for k, (_, _, memory, _) in reversed(list(enumerate(products)))
    }
    last = {m: max([made[m], *(k for k, product in enumerate(products) if m in product[3])]) for m in sizes}
    return max((sum(sizes[m] for m in sizes if made[m] <= k <= last[m]) for k in range(-1, len(products))), default=0)


def compare(cost, forward, backward, output, gradients):
    """Check a Cost against the traces of both passes."""
    for found, expected in ((cost.forward, forward), (cost.backward, backward)):
        assert [step.macs for step in found.steps] == [macs for macs, *_ in expected.products]
        assert [step.elements for step in found.steps] == [size for _, size, *_ in expected.products]
    made = {memory: size for _, size, memory, _ in forward.products if memory != forward.memory(output)}
    read = set().union(*(reads for *_, reads in backward.products)) if backward.products else set()
    kept = [(memory, size) for memory, size in made.items() if memory in read]
    assert cost.kept_elements == sum(size for _, size in kept)
    assert cost.forward.peak_elements == peak(forward.products, {forward.memory(output)})
    assert cost.backward.peak_elements == peak(backward.products, {backward.memory(g) for g in gradients}, kept)


def ranks_for(all_modes):
    return st.lists(st.integers(1, 4), min_size=len(all_modes) - 1, max_size=len(all_modes) - 1)


@st.composite
def groups_of(draw, cores):
    """A way to cut a number of cores into groups of neighbours."""
    ends = [k for k in range(1, cores) if draw(st.booleans())] + [cores]
    return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))


def run_flow(flow, cost, tokens, out_modes, in_modes, rank):
    cores = [torch.ones(shape) for shape in tt_shapes(out_modes, in_modes, rank)]
    out_cores, in_cores = cores[: len(out_modes)], cores[len(out_modes) :]
    x, dy = torch.ones(tokens, math.prod(in_modes)), torch.ones(tokens, math.prod(out_modes))
    with Trace() as forward:
        y, saved = flow.forward(x, out_cores, in_cores)
    with Trace() as backward:
        backward.copies |= forward.copies
        dx, grads = flow.backward(dy, x, out_cores, in_cores, saved)
    compare(cost, forward, backward, y, [dx, *grads])


@given(st.data(), st.sampled_from(list(FLOWS)), st.integers(1, 5), modes, modes)
def test_flow_costs_are_those_of_the_run(data, flow, tokens, out_modes, in_modes):
    shape = (tokens, out_modes, in_modes, data.draw(ranks_for(out_modes + in_modes)))
    run_flow(FLOWS[flow], flow_cost(flow, *shape), *shape)


@given(st.data(), st.integers(1, 5), modes, modes)
def test_costs_of_groups_are_those_of_the_run(data, tokens, out_modes, in_modes):
    groups = data.draw(groups_of(len(out_modes))), data.draw(groups_of(len(in_modes)))
    shape = (tokens, out_modes, in_modes, data.draw(ranks_for(out_modes + in_modes)))
    run_flow(grouped(groups), grouped_cost(groups, *shape), *shape)


@given(st.data(), st.integers(1, 50), modes, modes)
def test_the_cheapest_order_is_none_dearer_than_any_other(data, tokens, out_modes, in_modes):
    """Up to three cores an end it is the best of all orders; from four on, merges inside a train have a fixed order."""
    shape = (tokens, out_modes, in_modes, data.draw(ranks_for(out_modes + in_modes)))
    groups, cost = cheapest_order(*shape)
    assert cost.macs <= min(flow_cost(flow, *shape).macs for flow in FLOWS)
    assert cost.backward.macs == 2 * cost.forward.macs
    assert cost.macs == (grouped_cost(groups, *shape) if groups else flow_cost("reconstruct", *shape)).macs
    assert cost.forward.macs >= optimal_cost(*shape).macs


@given(st.data(), st.integers(1, 5), st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=4))
def test_lookup_costs_are_those_of_the_run(data, tokens, pairs):
    row_modes, column_modes = zip(*pairs, strict=True)
    ranks = data.draw(st.lists(st.integers(1, 4), min_size=len(pairs) - 1, max_size=len(pairs) - 1))
    cores = [torch.ones(shape) for shape in ttm_shapes(row_modes, column_modes, ranks)]
    digits = row_digits(torch.zeros(tokens, dtype=torch.int64), row_modes)
    with Trace() as forward:
        y, saved = lookup(digits, cores)
    dy = torch.ones_like(y)
    with Trace() as backward:
        backward.copies |= forward.copies
        lookup_backward(dy, digits, cores, saved)
    compare(lookup_cost(tokens, row_modes, column_modes, ranks), forward, backward, y, [])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: flow_cost("left", 1, (2,), (2,), 1), "flow is 'left': choose one of"),
        (lambda: flow_cost("reconstruct", 0, (2,), (2,), 1), "tokens is 0: it must be an integer of at least 1"),
        (lambda: flow_cost("reconstruct", 1, (2,), (2,), 0), "rank is 0"),
        (
            lambda: grouped_cost(((1,), (2,)), 1, (2,), (2,), 1),
            r"groups are \(\(1,\), \(2,\)\): they must add up to 1 and 1",
        ),
        (lambda: flow_cost("reconstruct", 2.5, (2,), (2,), 1), "tokens is 2.5: it must be an integer"),
        (lambda: optimal_cost(1, (2,), (2,), 1, search="all"), "search is 'all': choose dp or optimal"),
        (lambda: lookup_cost(-1, (2,), (2,), 1), "tokens is -1"),
        (lambda: optimal_cost(1, (2,), (), 1), r"in_modes are \(\)"),
    ],
)
def test_what_has_no_cost_is_refused(call, message):
    with pytest.raises(BttlabError, match=message):
        call()
