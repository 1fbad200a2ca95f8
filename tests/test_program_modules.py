"""Programs of PyTorch modules: gradients against autograd in double precision, bits of the machine's loop."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bttlab.cli import main
from bttlab.compiler.buffers import DEPTHS, MEMORIES, STATISTICS
from bttlab.compiler.builder import Builder
from bttlab.compiler.errors import ProgramError, TablesFull
from bttlab.compiler.graph import graph_of_config
from bttlab.compiler.hazards import check_program
from bttlab.compiler.instruction import Level, Memory, at
from bttlab.compiler.lowering import Lowerings
from bttlab.compiler.machine import M
from bttlab.compiler.memory.banks import WINDOW, Placement
from bttlab.compiler.memory.layout import LayoutBuilder
from bttlab.compiler.module import ModuleModel
from bttlab.compiler.operation import Context
from bttlab.compiler.program import compile
from bttlab.compiler.space import parameter_vectors, prepare
from bttlab.compiler.trace import trace
from bttlab.model import Optimizer, Transformer
from bttlab.model.choices import ACTIVATIONS
from bttlab.tensor import TTLinear, TTMEmbedding, compress
from test_program_steps import check_same
from test_trace_programs import IDIOMS, Idioms, prune

from conftest import ROOT
from training_processor import SMALL, check_gradients

# Of the largest gradient of a tensor; that of a softmax of one or two scores is next to nothing.
TOLERANCE = {"tolerance": 2e-5, "least": 1 / 50}
WORDS, WIDTH, LENGTH = 60, 64, 18
MODES = (4, 4, 4)


def tt(rank=4, outputs=MODES, inputs=MODES) -> TTLinear:
    return TTLinear(int(np.prod(inputs)), int(np.prod(outputs)), outputs, inputs, rank)


class Block(nn.Module):
    """A pre-norm block of RMSNorm and SiLU, its attention by PyTorch's function."""

    def __init__(self, heads=2, norm=nn.RMSNorm, causal=False, layer=tt):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm_1, self.norm_2 = norm(WIDTH), norm(WIDTH)
        self.q, self.k, self.v, self.o, self.up, self.down = (layer() for _ in range(6))

    def forward(self, x):
        h = self.norm_1(x)
        q, k, v = (f(h).unflatten(-1, (self.heads, -1)).transpose(-2, -3) for f in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(-2, -3).flatten(-2))
        return x + self.down(F.silu(self.up(self.norm_2(x))))


class Classifier(nn.Module):
    """One label a sample, from the first token; the table is a TTM."""

    def __init__(self):
        super().__init__()
        self.table, self.block = TTMEmbedding(WORDS, WIDTH, (3, 4, 5), MODES, 6), Block()
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 7)

    def forward(self, tokens):
        return self.head(self.norm(self.block(self.table(tokens))[..., 0, :]))


class LargeVocabulary(nn.Module):
    """BERT's number of words, whose factors are 2, 3 and 5087: the rows of the table are padded."""

    def __init__(self):
        super().__init__()
        self.table, self.head = TTMEmbedding(30_522, WIDTH, (32, 31, 31), MODES, 8), nn.Linear(WIDTH, 19)

    def forward(self, tokens):
        return self.head(torch.tanh(self.table(tokens)))


class Language(nn.Module):
    """The next token, with the weight of the dense table."""

    def __init__(self, heads=2):
        super().__init__()
        self.table, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(heads, nn.LayerNorm, causal=True) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        x = self.table(tokens) + self.places(torch.arange(tokens.shape[-1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Wide(nn.Module):
    """Layers of other widths in and out, ReLU, tanh, and both kinds of labels."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.up, self.down = tt(24, (8, 4, 4)), tt(3, MODES, (8, 4, 4))
        self.dense, self.norm = nn.Linear(WIDTH, 96), nn.LayerNorm(96)
        self.one, self.each = nn.Linear(96, 5), nn.Linear(96, 40)

    def forward(self, tokens):
        x = self.table(tokens)
        x = x + self.down(torch.relu(self.up(x)))
        x = self.norm(torch.tanh(self.dense(x)))
        return self.one(x[..., 0, :]), self.each(x[..., 1:, :])


class Trains(nn.Module):
    """Trains of two and of four cores an end, and wider in than out."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 19)
        self.two, self.four = tt(5, (4, 16), (8, 8)), tt(6, (2, 4, 4, 8), (2, 2, 4, 4))
        self.back = tt([3, 4, 5, 6, 7, 3, 2], (2, 2, 8, 2), (2, 4, 2, 16))

    def forward(self, tokens):
        x = self.table(tokens)
        x = x + self.two(torch.tanh(x))
        return self.head(x + self.back(torch.relu(self.four(x))))


MODULES = {
    "classifier, pre-norm, RMSNorm, SiLU": Classifier,
    "language model, tied": Language,
    "language model, four heads": lambda: Language(4),
    "both, other widths": Wide,
    "two and four cores an end": Trains,
    "a padded vocabulary": LargeVocabulary,
}


# Of the idioms, whose gradients have tests of their own, those with operations that no module here has.
IN_LOOP = ("x + x", "a gate", "fused qkv", "ALiBi", "rotary positions", "rotary positions by pairs", "grouped queries")


class Residual(nn.Module):
    """Layers around a residual, each with a norm before it."""

    def __init__(self, *parts):
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 19)
        self.parts = nn.ModuleList(nn.Sequential(nn.RMSNorm(WIDTH), *part) for part in parts)

    def forward(self, tokens):
        x = self.table(tokens)
        for part in self.parts:
            x = x + part(x)
        return self.head(x[:, 1:])


def test_a_buffer_that_no_bank_suits_is_copied(fast):
    def parts():
        yield from ((tt(17, *2 * [(2, 2, 4, 4)]), nn.GELU(), tt(17, *2 * [(2, 2, 4, 4)])),)
        yield nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, WIDTH)

    module = made(lambda: Residual(*parts()))
    program = check_gradients(fast, module, (2, 17), flow="right_to_left", **TOLERANCE)
    assert any(instruction.label[2].startswith("copy of") for instruction in program.sample)
    assert check_program(program, (2, 17)) == []


def test_operands_that_have_to_be_in_one_bank_get_a_copy():
    b, w = Builder(), [Level("w", 4)]
    x, y = (b.allocate(name, 4).part(w=1) for name in "xy")
    for place in (x, y):  # of the banks that an engine writes, the third operand of the vector unit reads one
        b.expand(0, "", w, None, None, result=place, count=0)
    b.vector(M.AFFINE, "", w, b=x, c=y, r0=b.allocate("first", 4).part(w=1))
    b.vector(M.AFFINE, "", w, b=y, c=x, r0=b.allocate("second", 4).part(w=1))
    (instructions,), assignment = Placement(b.made, [b.instructions], 11).fitted()
    assignment.write()
    assert {i.label[2] for i in instructions} & {"copy of x", "copy of y"}
    for instruction in instructions:
        assert not list(instruction.unreached())
        reads = [instruction.operands[n].memory for n in instruction.reads()]
        assert len(set(reads)) == len(reads)


@pytest.mark.parametrize("home", [Memory.operand_buffer(1), STATISTICS], ids=str)
def test_buffers_that_are_in_use_at_once_do_not_overlap(home):
    b, size = Builder(), DEPTHS[MEMORIES.index(home)] // 2
    x, y = (b.allocate(name, 1) for name in "xy")
    first, second, third = (b.allocate(name, size, home=home) for name in ("first", "second", "third"))
    b.vector(M.COPY, "", [Level("w", 1)], x, r0=y)
    for place in (first, second, third, first):
        if home != STATISTICS:
            b.load_rows("", x, place, 1, 1)
        else:
            b.vector(M.SCALE, "", [Level("w", 1)], x, r0=y, rows=place)
    if home != STATISTICS:
        assert {b.engine_of(place) for place in (first, at(home, 3))} == {home.number}
    _, assignment = Placement(b.made, [b.instructions], 11).fitted()
    assignment.write()
    one, two, three = (b.buffer_at(place).base for place in (first, second, third))
    assert one != two == three


def test_no_buffer_takes_the_vectors_of_a_constant(monkeypatch):
    """The next sample reads them again: a bank of each buffer's size is used again, but not that one."""
    monkeypatch.setattr("bttlab.compiler.memory.banks.DEPTHS", (4,) * len(DEPTHS))
    b = Builder()
    block = LayoutBuilder(b, {}, {"mask": np.ones((4, 16), np.float32)}, {}, {}).place("mask")
    place = block.where(w=1)
    for n in range(40):
        result = b.allocate(f"x{n}", 4).part(w=1)
        b.vector(M.COPY, "", [Level("w", 4)], place, r0=result)
        place = result
    (instructions,), assignment = Placement(b.made, [b.instructions], 11, {"mask"}).fitted()
    assignment.write()
    assert len(instructions) == 40 and all(i.operands[3].number != block.bank for i in instructions)


class Deep(nn.Module):
    """A table and many layers, in tensor format if there is a rank."""

    def __init__(self, layers, rows, rank=0):
        super().__init__()
        self.table, self.head = nn.Embedding(rows, 128), nn.Linear(128, 8)
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(layers))
        if rank:
            compress(self, rank=rank, embeddings=False, skip=["head"])

    def forward(self, tokens):
        x = self.table(tokens)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)


@pytest.mark.long
def test_a_model_without_space_is_told_what_has_space():
    """What is named fits, and one more of it does not."""
    too_large = r"take \d+ vectors, the banks of parameters have 36864: .* there is space for "
    both = r"(\d+) of 30 layers of layers \([\d,]+ vectors each\) or (\d+) of 1,000 rows of table"
    with pytest.raises(ProgramError, match=too_large) as error:
        compile(trace(Deep(30, 1000), 3))
    layers, rows = map(int, re.search(both, str(error.value)).groups())
    vectors = []
    for model in (Deep(layers, 1000), Deep(layers + 1, 1000), Deep(30, rows), Deep(30, rows + 1)):
        context = Context(trace(model, 3).graph, "bidirectional", False)
        prepare(context)
        vectors.append(parameter_vectors(context))
    assert vectors[0] <= 36864 < vectors[1] and vectors[2] <= 36864 < vectors[3]
    with pytest.raises(ProgramError, match=r"space for ranks up to \d+ \(the largest is 20\) or") as error:
        compile(trace(Deep(99, 300, 20), 3))
    rank = int(re.search(r"ranks up to (\d+)", str(error.value))[1])
    for r, fits in ((rank, True), (rank + 1, False)):
        context = Context(trace(Deep(99, 300, r), 3).graph, "bidirectional", False)
        prepare(context)
        assert (parameter_vectors(context) <= 36864) == fits


def test_activations_whose_tables_have_no_room_are_named():
    with pytest.raises(ProgramError, match="take 2816 entries of 2048: choose one kind of activation"):
        compile(made(lambda: Residual(*((nn.Linear(WIDTH, WIDTH), act()) for act in (nn.GELU, nn.SiLU)))))


class Scaled(nn.Module):
    """GELU, tanh and exp fill the tables of functions; two numbers multiply matrices beside them."""

    def __init__(self):
        super().__init__()
        self.table, self.first, self.second = nn.Embedding(30, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, tokens):
        x = F.gelu(self.first(self.table(tokens)))
        x = x + 4.0 * F.gelu(self.second(-0.3 * x))
        return self.head(torch.tanh(x[:, 0]))


def test_a_number_needs_no_room_in_full_tables(fast):
    model = made(Scaled)
    with pytest.raises(TablesFull, match="take 2052 entries of 2048"):
        Lowerings(model.graph, "bidirectional")._lowered_with_table(model.graph, 5, WINDOW)
    assert check_program(check_gradients(fast, model, (2, 5), 1e-4), (2, 5)) == []


def test_modules_on_the_command_line(capsys, monkeypatch):
    monkeypatch.chdir(ROOT / "tests" / "helpers")
    assert main(["program", "--model", "sample_modules.py:Net", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["module"] == "Net"
    assert main(["estimate", "--model", "sample_modules.py:Net", "--tokens", "13"]) == 0
    assert "Net" in capsys.readouterr().out


def made(kind) -> ModuleModel:
    torch.manual_seed(0)
    module = kind()
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.02)
        elif "table" in name:
            nn.init.normal_(parameter, std=0.5)
    return trace(module, LENGTH)


@pytest.mark.parametrize("name", MODULES)
def test_gradients_are_those_of_autograd_and_nothing_is_read_too_early(fast, name):
    program = check_gradients(fast, made(MODULES[name]), (3, 11, 17, 18), **TOLERANCE)
    assert check_program(program, (2, 17)) == []


@pytest.mark.parametrize("flow", [(3, 3), (2, 2), (1, 1), "mixed", (1, 3)])
def test_trains_of_two_and_four_cores_in_every_flow(fast, flow):
    check_gradients(fast, made(Trains), (2, 17), flow=flow, **TOLERANCE)


@pytest.mark.parametrize("norm", [nn.Identity, nn.LayerNorm, nn.RMSNorm])
def test_layers_that_read_one_matrix_on_both_engines(fast, norm):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.norm, self.head = nn.Embedding(WORDS, WIDTH), norm(WIDTH), nn.Linear(WIDTH, 19)
            self.before, self.first, self.second = tt(), tt(), tt()

        def forward(self, tokens):
            x = self.norm(self.before(self.table(tokens)))
            return self.head(self.first(x) + self.second(x))

    program = check_gradients(fast, made(Net), (2, 17), flow=(2, 3), **TOLERANCE)
    copies = [i for i in program.forward if i.label[1:] == ("norm", "recompute y")]
    assert len(copies) == (norm is not nn.Identity)


@pytest.mark.long
@pytest.mark.parametrize("name", MODULES)
def test_the_loop_gives_the_same_bits(loop, fast, name):
    check_same(loop, fast, compile(made(MODULES[name])), (17, 5, 18), Optimizer("adamw"))


@pytest.mark.long
@pytest.mark.parametrize("name", IN_LOOP)
def test_the_loop_gives_the_same_bits_for_an_idiom(loop, fast, name):
    program = compile(trace(prune(Idioms([IDIOMS[name], IDIOMS["a norm"]])), 12))
    check_same(loop, fast, program, (11, 5, 12), Optimizer("adamw"))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_papers_model_is_a_module_among_others(activation):
    """What is traced of the transformer is what its configuration says: the same operations of the same matrices."""
    config = replace(SMALL, activation=activation)
    traced, built = trace(Transformer(config), SMALL.sequence_length).graph, graph_of_config(config)
    assert traced.shapes == built.shapes
    numbers = [{op.output: n for n, op in enumerate(graph.operations)} for graph in (traced, built)]
    for one, other in zip(traced.operations, built.operations, strict=True):
        read = [
            [(of[m.base or m], m.first, m.tokens) for m in op.inputs]
            for op, of in zip((one, other), numbers, strict=True)
        ]
        assert (one.kind, one.options, read[0]) == (other.kind, other.options, read[1])
