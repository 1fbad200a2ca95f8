"""Custom contraction paths: the same costs as the known flows, and a backward pass by the product rule."""

import pytest
import torch

from bttlab.tensor import FLOWS, Order, ShapeError, flow_cost, optimal_cost, order_cost, order_of

MODES = (12, 8, 8), (8, 8, 12)


@pytest.mark.parametrize("modes", [MODES, ((8, 8, 12), (12, 8, 8)), ((2, 3), (4, 5, 6, 2))])
@pytest.mark.parametrize("tokens", [1, 13, 32])
@pytest.mark.parametrize("flow", FLOWS)
def test_a_known_flow_costs_what_it_costs(flow, tokens, modes):
    found, wanted = (
        order_cost(order_of(flow, tokens, *modes, 3), tokens, *modes, 3),
        flow_cost(flow, tokens, *modes, 3),
    )
    assert found.forward == wanted.forward and found.kept_elements == wanted.kept_elements
    assert found.backward.macs == wanted.backward.macs
    assert found.backward.peak_elements <= wanted.backward.peak_elements
    assert {step.name.split()[0] for step in found.backward.steps} == {s.name.split()[0] for s in wanted.backward.steps}


def test_the_optimum_is_an_order():
    for tokens in (1, 13):
        assert order_cost(order_of("optimum", tokens, *MODES, 12), tokens, *MODES, 12).forward.macs == (
            optimal_cost(tokens, *MODES, 12).macs
        )


@pytest.mark.parametrize("chain_first", [True, False])
def test_the_backward_pass_gives_autograds_gradients(chain_first):
    """Every product, in its order, by einsum over the indices: what is read has been made before."""
    order = Order.of("m = G2 G3\nL = m G1\np = x G6\nR = G4 G5\nz = R p\ny = z L")
    sizes, indices = order.sizes(3, *MODES, 2), order.indices()
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.randn([sizes[i] for i in indices[name]], generator=generator, dtype=torch.double).requires_grad_()
        for name in ("x", *(f"G{k}" for k in range(1, 7)))
    }
    inputs = dict(tensors)
    letters = {name: chr(97 + n) for n, name in enumerate(sizes)}

    def products(steps) -> None:
        for result, left, right in steps:
            of = [indices[n if n in indices else n[1:]] for n in (left, right, result)]
            terms = ["".join(letters[i] for i in one) for one in of]
            tensors[result] = torch.einsum(f"{terms[0]},{terms[1]}->{terms[2]}", tensors[left], tensors[right])

    products(order.steps)
    dy = torch.randn(tensors["y"].shape, generator=generator, dtype=torch.double)
    wanted = torch.autograd.grad(tensors["y"], list(inputs.values()), dy)
    tensors["dy"] = dy
    products(order.backward(chain_first))
    for name, gradient in zip(inputs, wanted, strict=True):
        torch.testing.assert_close(tensors[f"d{name}"], gradient)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("z = x", "'z = x' is not a step: write 'result = left right'"),
        ("", "the order does not use x, G1, G2"),
        ("dx = x G6", "the name dx is in use"),
        ("a = x G6\nb = a a", "not multiplied by itself"),
    ],
)
def test_what_is_no_order(text, message):
    with pytest.raises(ShapeError, match=message):
        Order.of(text)
    with pytest.raises(ShapeError, match="flow is 'sideways'"):
        order_of("sideways", 1, *MODES, 2)
    lines = str(order_of("auto", 13, *MODES, 12))
    assert str(Order.of(lines.replace("\n", "  # a comment\n\n"))) == lines
