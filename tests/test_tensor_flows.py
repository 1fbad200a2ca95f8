"""The flows against float64 autograd through the matrix that the cores make up."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch.utils.flop_counter import FlopCounterMode

from bttlab.tensor import FLOWS, TTLinear, cheapest_order, flow_cost, grouped

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
EVERY_FLOW = (*FLOWS, "auto")
modes = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def dense(cores, out_modes):
    """W by the definition, one einsum over all cores."""
    n = len(cores)
    operands = [entry for k, core in enumerate(cores) for entry in (core, [k, 20 + k, k + 1])]
    full = torch.einsum(*operands, [0, *range(20, 20 + n), n])
    return full.reshape(math.prod(out_modes), -1)


def distance(a, b):
    return ((a.double() - b).norm() / b.norm().clamp_min(1e-300)).item()


def check(layer, x, dy):
    """Compare output and every gradient with autograd through W in float64."""
    leaves = [x, *layer.parameters()]
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    names = dict(zip([name for name, _ in layer.named_parameters()], wide[1:], strict=True))
    weight = dense([names[f"cores.{k}"] for k in range(len(layer.cores))], layer.out_modes)
    expected = wide[0] @ weight.T + (names["bias"] if layer.bias is not None else 0)
    gradients = torch.autograd.grad(expected, wide, dy.double())
    for flow in EVERY_FLOW:
        layer.flow = flow
        y = layer(x)
        assert y.dtype == x.dtype and y.shape == expected.shape
        found = [y, *torch.autograd.grad(y, leaves, dy)]
        for a, b in zip(found, [expected, *gradients], strict=True):
            assert a.shape == b.shape
            assert distance(a, b) < TOLERANCE[x.dtype], flow


@given(st.data(), modes, modes, st.sampled_from([(1,), (3,), (5,), (2, 3)]), st.booleans(), st.booleans())
def test_flows_agree_with_autograd_over_modes_and_ranks(data, out_modes, in_modes, leading, bias, double):
    cores = len(out_modes) + len(in_modes)
    ranks = data.draw(st.lists(st.integers(1, 4), min_size=cores - 1, max_size=cores - 1))
    torch.manual_seed(0)
    dtype = torch.float64 if double else torch.float32
    layer = TTLinear(math.prod(in_modes), math.prod(out_modes), out_modes, in_modes, ranks, bias=bias).to(dtype)
    # In float32 all entries are positive: where a gradient cancels to nearly nothing, a relative error says nothing.
    draw = torch.randn if double else lambda *shape, **kw: torch.rand(*shape, **kw) + 0.5
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(draw(*parameter.shape, dtype=dtype))
    x = draw(*leading, math.prod(in_modes), dtype=dtype).requires_grad_()
    check(layer, x, draw(*leading, math.prod(out_modes), dtype=dtype))


@pytest.mark.parametrize("outs", [(1, 1, 1), (1, 2), (2, 1), (3,)])
@pytest.mark.parametrize("ins", [(1, 1, 1), (1, 2), (2, 1), (3,)])
def test_every_grouping_agrees_with_autograd(outs, ins):
    torch.manual_seed(4)
    layer = TTLinear(24, 30, (2, 3, 5), (2, 4, 3), (2, 3, 4, 3, 2), bias=True).double()
    cores = [core.detach() for core in layer.cores]
    x, dy = torch.randn(7, 24, dtype=torch.float64, requires_grad=True), torch.randn(7, 30, dtype=torch.float64)
    wide = [core.clone().requires_grad_() for core in cores]
    expected = x @ dense(wide, layer.out_modes).T + 1
    flow = grouped((outs, ins))
    y, saved = flow.forward(x.detach(), cores[:3], cores[3:], torch.ones(30, dtype=torch.float64))
    dx, grads = flow.backward(dy, x.detach(), cores[:3], cores[3:], saved)
    for a, b in zip([y, dx, *grads], [expected, *torch.autograd.grad(expected, [x, *wide], dy)], strict=True):
        assert a.shape == b.shape and distance(a, b) < TOLERANCE[torch.float64]


def test_auto_counts_products_and_what_their_number_costs():
    """Of the measured times, auto takes the least: fewer multiplications in more products may take longer."""
    shape = ((12, 8, 8), (8, 8, 12))
    wanted = {(12, 1): "right_to_left", (12, 32): "bidirectional", (30, 13): None, (30, 64): "bidirectional"}
    for (rank, tokens), flow in wanted.items():
        layer = TTLinear(768, 768, *shape, rank, flow="auto")
        with FlopCounterMode(display=False) as counter:
            layer(torch.randn(tokens, 768, requires_grad=True)).sum().backward()
        cost = cheapest_order(tokens, *shape, rank)[1] if flow is None else flow_cost(flow, tokens, *shape, rank)
        assert counter.get_total_flops() == 2 * cost.macs, (rank, tokens)
