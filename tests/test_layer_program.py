"""A linear layer's program on the training processor: gradients against autograd, hazards, the loop of synthesis."""

import numpy as np
import pytest
import torch

from bttlab.card.layer import layer_program, run_layer, shape_of
from bttlab.card.machine import machine
from bttlab.card.native import NativeProcessor, sample_dtype
from bttlab.card.program.errors import ProgramError
from bttlab.card.program.layer import CORES, LayerProgram, LayerShape
from bttlab.card.program.timing import time_program
from bttlab.errors import BttlabError
from bttlab.model import ModelConfig, StateError, initial_parameters
from bttlab.tensor import TTLinear
from bttlab.u50 import EmulatedU50, load_overlay

M = machine()
FLOWS = ("bidirectional", "right_to_left", "auto")
MODES = ((12, 8, 8), (8, 8, 12))
TOLERANCE = 1e-5  # of the largest of a tensor


@pytest.fixture(scope="module")
def overlay():
    return load_overlay("trainer", EmulatedU50())


def some_layer(rank=12, modes=MODES, seed=0) -> TTLinear:
    layer = TTLinear(int(np.prod(modes[1])), int(np.prod(modes[0])), *modes, rank)
    generator = torch.Generator().manual_seed(seed)
    layer.reset_parameters(generator)
    torch.nn.init.normal_(layer.bias, generator=generator)
    return layer


def operands(layer, tokens, seed=0):
    """x and dy, and what PyTorch's autograd makes of W reassembled from its cores, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, layer.in_features, generator=generator)
    dy = torch.randn(tokens, layer.out_features, generator=generator)
    cores = [core.detach().double().requires_grad_() for core in layer.used_cores()]
    bias, double_x = layer.bias.detach().double().requires_grad_(), x.double().requires_grad_()
    weight = torch.einsum("xia,ajb,bkc,cld,dme,eny->ijklmn", *cores).reshape(layer.out_features, layer.in_features)
    y = double_x @ weight.T + bias
    gradients = torch.autograd.grad(y, [double_x, *cores, bias], dy.double())
    return x, dy, [tensor.detach().numpy() for tensor in (y, *gradients)]


def results_of(run) -> list[np.ndarray]:
    return [run.y, run.dx, *run.gradients, run.bias_gradient]


def worst_error(found, wanted) -> float:
    assert [a.shape for a in found] == [b.shape for b in wanted]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("rank", [4, 8, 12, 16])
def test_gradients_are_those_of_autograd(overlay, flow, rank):
    layer = some_layer(rank)
    for tokens in (1, 2, 13, 17, 32):
        x, dy, wanted = operands(layer, tokens, seed=tokens)
        run = run_layer(overlay, layer, flow, x, dy)
        assert worst_error(results_of(run), wanted) < TOLERANCE
        assert run.program.hazards() == []


@pytest.mark.parametrize("ranks", [[3, 16, 5, 9, 2], [1, 1, 1, 1, 1]])
@pytest.mark.parametrize("modes", [((4, 4, 8), (8, 4, 4)), ((8, 8, 8), (8, 8, 8)), ((4, 8, 4), (8, 8, 12))])
def test_other_layers(overlay, modes, ranks):
    layer = some_layer(ranks, modes)
    for flow in FLOWS:
        x, dy, wanted = operands(layer, 9)
        assert worst_error(results_of(run_layer(overlay, layer, flow, x, dy)), wanted) < TOLERANCE


def run_natively(library, program: LayerProgram, words: np.ndarray) -> tuple[np.ndarray, int]:
    """What a program leaves in a shared library of the machine, and the cycles of the loop."""
    processor = NativeProcessor(library)
    processor.load_program(program)
    memory = np.zeros((3 * program.model.layout.words, M.LANES), np.float32)
    memory[: len(words)] = words
    record = np.zeros(1, sample_dtype())
    record["tokens"] = program.tokens
    memory = np.ascontiguousarray(memory)
    processor._call(M.LOAD, memory=memory)
    result = processor.predict(record)
    assert result["status"][0] == M.DONE
    processor._call(M.STORE, memory=memory)
    return memory[: len(words)], int(result["cycles"][0])


def check_loop(libraries, program: LayerProgram, seed=0) -> None:
    random = np.random.default_rng(seed)
    words = program.pack({t.name: random.standard_normal(t.block.shape) for t in program.inputs})
    (fast, _), (loop, cycles) = (run_natively(libraries[name], program, words) for name in ("fast", "loop"))
    assert fast.tobytes() == loop.tobytes()
    assert cycles == time_program(program.forward, program.tokens, False).cycles


@pytest.mark.parametrize("flow", FLOWS)
def test_the_loop_of_synthesis_gives_the_same_bits_in_the_modelled_cycles(trainer_libraries, flow):
    check_loop(trainer_libraries, layer_program(some_layer(), 13, flow))


def test_a_model_is_loaded_anew_afterwards(overlay):
    trainer, model = overlay.trainer_1, ModelConfig()
    trainer.load_program(model)
    trainer.load_parameters(initial_parameters(model, 0))
    layer = some_layer()
    x, dy, wanted = operands(layer, 3)
    run_layer(trainer, layer, "bidirectional", x, dy)
    with pytest.raises(StateError, match="call load_parameters first"):
        trainer.predict(None)
    again = run_layer(overlay, layer, "bidirectional", x, dy)
    assert worst_error(results_of(again), wanted) < TOLERANCE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda layer, x, dy: (layer, "bidirectional", x[:, :700], dy), r"x has the shape \(3, 700\): the layer takes"),
        (lambda layer, x, dy: (layer, "bidirectional", x[0], dy), r"x has the shape \(768,\)"),
        (lambda layer, x, dy: (layer, "bidirectional", x, dy[:2]), r"dy has the shape \(2, 768\)"),
        (lambda layer, x, dy: (layer, "bidirectional", x[:0], dy[:0]), "0 tokens: the card takes 1 to 64"),
        (lambda layer, x, dy: (layer, "sideways", x, dy), "flow is 'sideways': choose"),
        (lambda layer, x, dy: (some_layer(17), "auto", x, dy), "rank 17; an engine has 16 rows"),
    ],
)
def test_what_the_card_does_not_take(overlay, arguments, message):
    layer = some_layer()
    x, dy, wanted = operands(layer, 3)
    with pytest.raises(BttlabError, match=message) as caught:
        run_layer(overlay, *arguments(layer, x, dy))
    assert "\n" not in str(caught.value)
    assert worst_error(results_of(run_layer(overlay, layer, "auto", x, dy)), wanted) < TOLERANCE


def test_layers_that_are_no_trains_of_three():
    for modes, message in ((((768,), (8, 8, 12)), "three modes"), (((3, 5, 7), (8, 8, 12)), "multiples of 16")):
        with pytest.raises(ProgramError, match=message):
            LayerShape(*modes, (4,) * 5)
    assert shape_of(some_layer([1, 2, 3, 4, 5])).ranks == (1, 2, 3, 4, 5) and len(CORES) == 6
