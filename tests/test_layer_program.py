"""A linear layer's program on the training processor: gradients against autograd, hazards, the machine's loop."""

import itertools
import re
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import nn

from bttlab.card import EmulatedU50, load_overlay
from bttlab.card.layer import autograd_errors, layer_program, run_layer, shape_of
from bttlab.card.processor import sample_dtype
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.graph import Graph
from bttlab.compiler.layer import CORES, LayerProgram, LayerShape, compile_graph, compile_layer
from bttlab.compiler.machine import M
from bttlab.compiler.operation import Matrix, Operation
from bttlab.compiler.timing import time_program
from bttlab.model import ModelConfig, StateError, initial_parameters
from bttlab.tensor import Order, TTLinear, order_of
from bttlab.util.errors import BttlabError

from processor_native import NativeProcessor

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
    generator = torch.Generator().manual_seed(seed)
    features = layer.in_features, layer.out_features
    return [torch.randn(tokens, count, generator=generator) for count in features]


def check_run(overlay, layer, flow, tokens):
    """Run a flow; y and every gradient are autograd's, and no vector is read before it is there."""
    x, dy = operands(layer, tokens, seed=tokens)
    run = run_layer(overlay, layer, flow, x, dy)
    errors = autograd_errors(run, layer, x, dy)
    assert list(errors) == ["y", "dx", "dG1", "dG2", "dG3", "dG4", "dG5", "dG6", "db"]
    assert max(errors.values()) < TOLERANCE, errors
    assert run.program.hazards() == []
    return run


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("rank", [12, *(pytest.param(rank, marks=pytest.mark.long) for rank in (4, 8, 16, 24))])
def test_gradients_are_those_of_autograd(overlay, flow, rank):
    layer = some_layer(rank)
    for tokens in (1, 2, 13, 17, 32)[: 4 if rank > M.ROWS else 5]:  # right to left, 32 tokens of rank 24 do not fit
        check_run(overlay, layer, flow, tokens)


def test_a_wrong_result_is_named(overlay):
    layer = some_layer(4)
    x, dy = operands(layer, 5)
    run = run_layer(overlay, layer, "auto", x, dy)
    run.gradients[2][0, 1, 2] *= 1.001 if abs(run.gradients[2][0, 1, 2]) > 0.1 else 0.0
    errors = autograd_errors(run, layer, x, dy)
    assert [name for name, error in errors.items() if error > TOLERANCE] == ["dG3"]
    other = autograd_errors(run, some_layer(4, seed=1), x, dy)
    assert min(error for name, error in other.items() if name != "db") > 0.1


class Doubled(TTLinear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_a_layer_that_computes_something_else_is_refused(overlay):
    x, dy = operands(some_layer(4), 5)
    for change in (
        lambda layer: layer.register_forward_hook(lambda layer, inputs, y: y + 1),
        lambda layer: setattr(layer, "__class__", Doubled),
        lambda layer: setattr(layer, "core_map", nn.Identity()),
    ):
        layer = some_layer(4)
        change(layer)
        with pytest.raises(ProgramError, match=r"does not compute x W\^T \+ b from its cores"):
            run_layer(overlay, layer, "bidirectional", x, dy)


def run_graph(overlay, graph, function, **tensors):
    """Run a graph alone: the output and every gradient are those of autograd for `function`."""
    program, tokens = compile_graph(graph), graph.tokens
    assert program.hazards() == []
    tensors = {name: torch.tensor(values, requires_grad=True) for name, values in tensors.items()}
    y = function(**{name.split(".")[-1]: tensor for name, tensor in tensors.items()})
    d_y = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    wanted = {f"d{n}": g for n, g in zip(tensors, torch.autograd.grad(y, list(tensors.values()), d_y), strict=True)}
    trainer = overlay.trainer_1
    trainer.load_program(program)
    inputs = {name: tensor.detach().numpy() for name, tensor in tensors.items()} | {"dy": d_y.numpy()}
    found = program.unpack(trainer.execute(program.pack(inputs), tokens))
    for name, values in (wanted | {"y": y.detach()}).items():
        assert np.abs(found[name] - values.numpy()).max() < TOLERANCE * values.abs().max(), name


def some_values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_a_dense_layer_alone(overlay):
    graph = Graph({"f.weight": (48, 64), "f.bias": (48,)}, 9, 9)
    graph.output(graph.linear(graph.input("x", 64), "f"), "y")
    tensors = {"f.weight": some_values(48, 64), "f.bias": some_values(48)}
    run_graph(overlay, graph, lambda x, weight, bias: x @ weight.T + bias, x=some_values(9, 64, seed=1), **tensors)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_alone(overlay, causal):
    def attention(q, k, v):
        q, k, v = (matrix.unflatten(-1, (2, 32)).transpose(0, 1) for matrix in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(0, 1).flatten(1)

    graph = Graph({}, 17, 17)
    graph.output(graph.attention(*(graph.input(name, 64) for name in "qkv"), 2, "attention", causal), "y")
    run_graph(overlay, graph, attention, **{name: some_values(17, 64, seed=n) for n, name in enumerate("qkv")})


class Half(Operation):
    kind = "half"


def test_a_method_that_an_operation_does_not_define_is_named(monkeypatch):
    graph = Graph({}, 9, 9)
    x = graph.input("x", 64)
    graph.output(graph.append(Half("some.half", (x,), Matrix("half", x.tokens, 64))), "y")
    for missing in ("emit", "backward"):
        with pytest.raises(ProgramError, match=f"some.half: the operation 'half' has no method '{missing}'; Half must"):
            compile_graph(graph)
        monkeypatch.setattr(Half, "emit", lambda *_: None, raising=False)


# ---- custom contraction paths ------------------------------------------------------------------------------------


def some_order(random: Random) -> Order:
    """Cores of each end merged or contracted with tokens in any sequence: a product leaves both operands an index."""
    while True:
        indices = {name: set(of) for name, of in Order.of(order_of("bidirectional", 1, *MODES, 2)).indices().items()}
        there = {name: indices[name] for name in ("x", *CORES)}
        steps = []
        while len(there) > 1:
            pairs = [
                (a, b)
                for a, b in itertools.permutations(there, 2)
                if there[a] & there[b] and there[a] - there[b] and there[b] - there[a]
                if "t" in there[a] ^ there[b] or len({i[0] for i in there[a] ^ there[b]} & {"i", "j"}) == 1
            ]
            if not pairs:
                break  # the last core would be summed over as a whole
            left, right = random.choice(pairs)
            result = "y" if len(there) == 2 else f"T{len(steps) + 1}"
            steps.append(f"{result} = {left} {right}")
            there[result] = there.pop(left) ^ there.pop(right)
        else:
            return Order.of(steps)


@pytest.mark.long
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(seed=28, rank=4, modes=MODES, tokens=13)  # with the bias, its gradients are computed by other products
@example(seed=4571, rank=4, modes=((8, 8, 8), (8, 8, 8)), tokens=5)  # more permutations than there are entries for
@given(
    seed=st.integers(0, 2**32),
    rank=st.sampled_from([1, 4, 8, 12, 16, (3, 7, 5, 16, 2), (4, 18, 40, 33, 20)]),
    modes=st.sampled_from([MODES, MODES, ((8, 8, 12), (12, 8, 8)), ((4, 4, 8), (8, 4, 4)), ((8, 8, 8), (8, 8, 8))]),
    tokens=st.sampled_from([1, 2, 5, 13, 17, 32]),
)
def test_any_order_of_each_end(overlay, seed, rank, modes, tokens):
    order = some_order(Random(seed))
    try:
        check_run(overlay, some_layer(rank, modes), order, tokens)
    except ProgramError as error:  # the largest of them do not fit; only that may be said
        room = r"takes [\d,]+ vectors(, a bank for| of bank \d+| of buffer \d)|permutations take \d+ entries"
        if max(shape_of(some_layer(rank, modes)).ranks) > M.ROWS:
            room += "|needs blocks of more than the shuffle unit's|no engine can compute it: .* ranks of at most 16"
        assert re.search(room, str(error)), (str(order), error)


def test_an_operand_for_which_the_buffer_has_no_space_is_not_loaded():
    order = some_order(Random(28))  # the cheapest products of its backward pass would load one
    assert layer_program(some_layer(4), 13, order).hazards() == []


@pytest.mark.parametrize("tokens", [9, 13, 16])
def test_two_merged_cores_at_each_end_are_faster_than_three_for_sentences(tokens):
    """At 13 tokens a result once shared vectors with one that was read before it, and waited for it."""
    shape = LayerShape((12, 8, 8), (8, 8, 12), (12,) * 5)
    cycles = [time_program(compile_layer(shape, tokens, flow).forward, tokens).cycles for flow in ((2, 2), (3, 3))]
    assert cycles[0] < 0.95 * cycles[1]


@pytest.mark.parametrize("flow", ["bidirectional", "right_to_left", "auto", "optimum"])
@pytest.mark.parametrize("tokens", [13, 32])
def test_known_flows_as_orders(overlay, flow, tokens):
    order = order_of(flow, tokens, *MODES, 16)
    by_name, by_steps = (layer_program(some_layer(16), tokens, one) for one in (order, str(order)))
    assert by_name is by_steps and by_name.order == order
    if flow == "optimum":  # the others run above
        check_run(overlay, some_layer(16), order, tokens)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = G1 G2\nb = G1 G3", "step 2, 'b = G1 G3': an earlier product used G1; there are x, G3"),
        ("a = q x", "step 1, 'a = q x': there is no q yet"),
        ("G2 = x G6", "the name G2 is in use"),
        ("a = x G6", "the order does not use G1, G2, G3, G4, G5, a: every core"),
        ("a = G1 G3\nb = a G2\nc = b G4\nd = c G5\ne = d G6\ny = x e", "G1 and G3 share no index"),
        ("a = x G5\nb = a G6\nc = b G4\nd = c G3\ne = d G2\ny = e G1", "sums over all indices of G6 at once"),
        (str(order_of("reconstruct", 13, *MODES, 12)), "W takes 36,864 vectors, a bank for intermediates has"),
    ],
)
def test_orders_that_are_refused(text, message):
    with pytest.raises(BttlabError, match=message):
        layer_program(some_layer(), 13, text)


def run_natively(processor: NativeProcessor, program: LayerProgram, vectors: np.ndarray) -> tuple[np.ndarray, int]:
    """Run a program in a compiled machine; return its memory and the cycles of the loop."""
    processor.load_program(program)
    memory = np.zeros((program.transfer_vectors, M.LANES), np.float32)
    memory[: len(vectors)] = vectors
    record = np.zeros(1, sample_dtype())
    record["tokens"] = program.tokens
    memory = np.ascontiguousarray(memory)
    processor._call(M.LOAD, memory=memory)
    result = processor.predict(record)
    assert result["status"][0] == M.DONE
    processor._call(M.STORE, memory=memory)
    return memory[: len(vectors)], int(result["cycles"][0])


CUSTOM = "m = G2 G3; L = m G1; b = x G6; R = G4 G5; z = b R; y = z L".split("; ")  # b is no bias here


@pytest.mark.long
@pytest.mark.parametrize("flow", [*FLOWS, CUSTOM])
def test_the_loop_gives_the_same_bits_in_the_modelled_cycles(fast, loop, flow):
    program, random = layer_program(some_layer(), 13, flow), np.random.default_rng(0)
    vectors = program.pack({block.name: random.standard_normal(block.shape) for block in program.inputs})
    found, wanted = (run_natively(processor, program, vectors) for processor in (loop, fast))
    assert found[0].tobytes() == wanted[0].tobytes()
    assert found[1] == time_program(program.forward, program.tokens, False).cycles


def test_a_model_is_loaded_anew_afterwards(overlay):
    trainer, model = overlay.trainer_1, ModelConfig()
    trainer.load_program(model)
    trainer.load_parameters(initial_parameters(model, 0))
    layer = some_layer()
    check_run(trainer, layer, "bidirectional", 3)
    with pytest.raises(StateError, match="call load_parameters first"):
        trainer.predict(None)
    for asked in (lambda: trainer.config, lambda: trainer.load_parameters({})):
        with pytest.raises(StateError, match="is a layer's alone: call load_program with a model first"):
            asked()
    check_run(overlay, layer, CUSTOM, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda layer, x, dy: (layer, "bidirectional", x[:, :700], dy), r"x has the shape \(3, 700\): the layer takes"),
        (lambda layer, x, dy: (layer, "bidirectional", x[0], dy), r"x has the shape \(768,\)"),
        (lambda layer, x, dy: (layer, "bidirectional", x, dy[:2]), r"dy has the shape \(2, 768\)"),
        (lambda layer, x, dy: (layer, "bidirectional", x[:0], dy[:0]), "0 tokens: the card takes 1 to 64"),
    ],
)
def test_what_the_card_does_not_take(overlay, arguments, message):
    layer = some_layer()
    x, dy = operands(layer, 3)
    with pytest.raises(BttlabError, match=message):
        run_layer(overlay, *arguments(layer, x, dy))
    check_run(overlay, layer, "auto", 3)
