"""The contraction overlay: each flow against the reference, the other flow, the cost model and the cycle model."""

import threading

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from bttlab.errors import BttlabError
from bttlab.lab import draw_cycles
from bttlab.lab.cycle_figures import cycles_by_kind
from bttlab.model import ModelConfig
from bttlab.tensor import TTLinear, flow_cost
from bttlab.u50 import EmulatedU50, OverlayError, load_overlay
from bttlab.u50.contraction_cycles import STEPS, predict
from bttlab.u50.hardware import HardwareConfig
from bttlab.u50.layer import LayerShape
from bttlab.u50.records import LANES

FLOWS = tuple(STEPS)
SHAPE = LayerShape.of(ModelConfig())


@pytest.fixture(scope="module")
def overlay():
    return load_overlay("contraction", EmulatedU50())


@pytest.fixture(params=FLOWS)
def kernel(overlay, request):
    return getattr(overlay, f"contract_{request.param}_1")


def operands(tokens: int, seed: int = 0):
    """x, dy, cores, and what PyTorch's autograd makes of W reassembled from them, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    layer = TTLinear(768, 768, SHAPE.out_modes, SHAPE.in_modes, SHAPE.rank, bias=False)
    layer.reset_parameters(generator)
    x, dy = (torch.randn(tokens, 768, generator=generator) for _ in range(2))
    cores = [core.detach().double().requires_grad_() for core in layer.cores]
    double_x = x.double().requires_grad_()
    weight = torch.einsum("xia,ajb,bkc,cld,dme,eny->ijklmn", *cores).reshape(768, 768)
    y = double_x @ weight.T
    gradients = torch.autograd.grad(y, [double_x, *cores], dy.double())
    return x, dy, layer.cores, [y.detach(), *gradients]


def relative(got, want) -> float:
    want = np.asarray(want)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.parametrize("tokens", [1, 2, 13, 32])
def test_results_are_those_of_the_reassembled_matrix(kernel, tokens):
    x, dy, cores, want = operands(tokens)
    forward, backward = kernel.forward(x, cores), kernel.backward(dy)
    got = [forward.y, backward.dx, *backward.gradients]
    assert [a.shape for a in got] == [tuple(b.shape) for b in want]
    assert max(relative(a, b) for a, b in zip(got, want, strict=True)) < 1e-6


def test_both_flows_agree_and_repeat_their_bits(overlay):
    x, dy, cores, _ = operands(19, seed=1)
    results = []
    for _ in range(2):
        for flow in FLOWS:
            kernel = getattr(overlay, f"contract_{flow}_1")
            results.append([kernel.forward(x, cores).y, (backward := kernel.backward(dy)).dx, *backward.gradients])
    assert all(relative(a, b) < 1e-6 for a, b in zip(results[0], results[1], strict=True))
    for first, again in ((0, 2), (1, 3)):
        assert all(np.array_equal(a, b) for a, b in zip(results[first], results[again], strict=True))


def test_both_kernels_run_side_by_side(overlay):
    x, dy, cores, _ = operands(32, seed=2)
    found: dict[str, list[bool]] = {flow: [] for flow in FLOWS}

    def work(flow: str) -> None:
        kernel = getattr(overlay, f"contract_{flow}_1")
        y, dx = kernel.forward(x, cores).y, kernel.backward(dy).dx
        for _ in range(20):
            same = np.array_equal(kernel.forward(x, cores).y, y) and np.array_equal(kernel.backward(dy).dx, dx)
            found[flow].append(same)

    threads = [threading.Thread(target=work, args=(flow,)) for flow in FLOWS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(same) == 20 and all(same) for same in found.values())


@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 11, 12, 13, 16, 24, 31, 32])
def test_the_model_predicts_the_cycles_of_every_step(kernel, tokens):
    x, dy, cores, _ = operands(tokens)
    predicted = predict(kernel.flow, kernel.shape, tokens)
    for name, executed in (("forward", kernel.forward(x, cores)), ("backward", kernel.backward(dy))):
        assert [step.name for step in executed.steps] == list(STEPS[kernel.flow][name])
        for step in executed.steps:
            begin, end = predicted[name][step.name]
            assert step.cycles == pytest.approx(end - begin, rel=0.01), step.name
        assert executed.cycles == pytest.approx(max(end for _, end in predicted[name].values()), rel=0.01)


@pytest.mark.parametrize("tokens", [1, 7, 32])
def test_the_multiply_accumulates_are_those_of_the_cost_model(kernel, tokens):
    x, dy, cores, _ = operands(tokens)
    cost = flow_cost(kernel.flow, tokens, SHAPE.out_modes, SHAPE.in_modes, SHAPE.rank)
    for executed, asked in ((kernel.forward(x, cores), cost.forward), (kernel.backward(dy), cost.backward)):
        counted = {step.name: step.multiply_accumulates for step in executed.steps if step.multiply_accumulates}
        products = {step.name.split(" = ")[0]: step.macs for step in asked.steps}
        assert counted.keys() == products.keys()
        for name, macs in products.items():
            # Right to left has a rank or a far mode of 12 along the 16 lanes; so have the two ends of the trains.
            whole = kernel.flow == "bidirectional" and name not in ("L2", "R5", "dG2", "dG1", "dG5", "dG6")
            assert counted[name] * (LANES if whole else 12) == macs * LANES, name


def test_right_to_left_wins_for_few_tokens_and_loses_for_many():
    def cycles(flow: str, tokens: int) -> int:
        return sum(max(end for _, end in spans.values()) for spans in predict(flow, SHAPE, tokens).values())

    wins = [cycles("right_to_left", tokens) < cycles("bidirectional", tokens) for tokens in range(1, 33)]
    assert wins[0] and not wins[-1] and wins == sorted(wins, reverse=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda x, cores: (x[:, :700], cores), r"x has the shape \(3, 700\): the kernel takes \(tokens, 768\)"),
        (lambda x, cores: (x[0], cores), r"x has the shape \(768,\)"),
        (lambda x, cores: (x[:0], cores), r"x has the shape \(0, 768\).* with 1 to 32 tokens"),
        (lambda x, cores: (torch.zeros(33, 768), cores), r"x has the shape \(33, 768\)"),
        (lambda x, cores: (x, cores[:5]), "the cores have the shapes .*: the kernel is built for"),
        (lambda x, cores: (x, [*cores[:5], cores[0]]), "the cores have the shapes"),
        (lambda x, cores: ("many", cores), "str is no array of numbers"),
    ],
)
def test_what_the_kernel_is_not_built_for(kernel, arguments, message):
    x, _, cores, want = operands(3)
    with pytest.raises(BttlabError, match=message) as caught:
        kernel.forward(*arguments(x, list(cores)))
    assert "\n" not in str(caught.value)
    assert relative(kernel.forward(x, cores).y, want[0]) < 1e-6  # the next call works


def test_a_backward_pass_needs_its_forward_pass():
    kernel = load_overlay("contraction", EmulatedU50()).contract_right_to_left_1
    x, dy, cores, want = operands(4)
    with pytest.raises(OverlayError, match=r"no forward pass is on the card; call forward\(x, cores\) first"):
        kernel.backward(dy)
    kernel.forward(x, cores)
    with pytest.raises(BttlabError, match=r"dy has the shape \(3, 768\), but y has \(4, 768\)"):
        kernel.backward(dy[:3])
    assert relative(kernel.backward(dy).dx, want[1]) < 1e-6


def test_an_overlay_that_was_loaded_anew_has_no_forward_pass():
    card = EmulatedU50()
    kernel = load_overlay("contraction", card).contract_bidirectional_1
    x, dy, cores, _ = operands(4)
    kernel.forward(x, cores)
    load_overlay("contraction", card)
    with pytest.raises(OverlayError, match="ended with NO_FORWARD for 4 tokens: another overlay was loaded"):
        kernel.backward(dy)


def test_what_the_model_cannot_predict():
    for arguments, message in (
        (("reconstruct", SHAPE, 3), "there are kernels for right_to_left, bidirectional"),
        (("bidirectional", SHAPE, 33), "33 tokens: the kernel takes 1 to 32"),
        (("bidirectional", SHAPE, 0), "0 tokens"),
    ):
        with pytest.raises(BttlabError, match=message):
            predict(*arguments)
    slow, fast = (predict("right_to_left", SHAPE, 32, HardwareConfig(engine_rows=rows)) for rows in (6, 12))
    assert slow["forward"]["store"][1] > fast["forward"]["store"][1]


def test_the_figure_shows_every_cycle_once():
    for flow in FLOWS:
        for tokens in (1, 13, 32):
            whole = sum(max(end for _, end in spans.values()) for spans in predict(flow, SHAPE, tokens).values())
            assert sum(cycles_by_kind(flow, SHAPE, tokens).values()) == whole
    draw_cycles(range(1, 33), SHAPE)
    panels = plt.gcf().axes
    assert [axes.get_title() for axes in panels] == ["right to left", "bi-directional"]
    heights = [axes.collections[-1].get_paths()[0].get_extents().y1 for axes in panels]  # the top of the stack
    want = [sum(cycles_by_kind(flow, SHAPE, 32).values()) / 1e3 for flow in FLOWS]
    assert heights == pytest.approx(want)
    plt.close()
