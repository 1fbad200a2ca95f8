"""Instructions belong to operations of the graph, operations to lines of the module's file, and a widget shows both."""

import re
from html import unescape

import pytest
import torch
from matplotlib.backend_bases import MouseEvent

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.graph import graph_of_config
from bttlab.compiler.listing import instruction_line
from bttlab.compiler.module_file import load_module
from bttlab.compiler.program import Options, compile
from bttlab.compiler.timing import time_program
from bttlab.compiler.trace import trace
from bttlab.estimate.profile import cycles_by_instruction, cycles_by_layer
from bttlab.lab import GraphExplorer
from bttlab.model import ModelConfig, Optimizer
from sample_modules import Net

MARKED = """
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    sequence_length = 12

    def __init__(self):
        super().__init__()
        self.table, self.both, self.norm = nn.Embedding(40, 64), nn.Linear(64, 128), nn.LayerNorm(64)
        self.head = nn.Linear(64, 5)

    def mixed(self, x):
        return torch.tanh(x)  # function

    def forward(self, tokens):
        x = self.table(tokens)  # table
        left, right = self.both(x).chunk(2, -1)  # linear linear
        left = self.mixed(left)
        right = F.relu(right)  # function
        half = 0.5 * left  # multiply

        x = half * right + x  # multiply add
        x = self.norm(x)  # norm
        return self.head(x[:, 0])  # classifier
"""


class Twice(Net):
    """Its layers have two uses, whose gradients are added."""

    def forward(self, tokens):
        return self.head(self.layers(self.layers(self.table(tokens)))[:, 0])


def modules():
    torch.manual_seed(0)
    return {
        "module": (trace(Net(), 12), Options()),
        "twice": (trace(Twice(), 12), Options()),
        "paper": (ModelConfig(encoders=1), Options()),
        "sums": (ModelConfig(encoders=1), Options(optimizer=Optimizer("sgd", batch_size=8))),
    }


@pytest.mark.long
@pytest.mark.parametrize("name", ["module", "twice", "paper", "sums"])
def test_instructions_belong_to_the_operation_whose_parameters_they_read(name):
    """By the addresses of the operands, and the layout of the parameters in the banks."""
    model, options = modules()[name]
    graph = graph_of_config(model) if isinstance(model, ModelConfig) else model.graph
    program = compile(model, options)
    assert program.sums == (name == "sums")
    shapes = graph.shapes | {copy: graph.shapes[original] for copy, original in graph.copies.items()}
    checked = set()
    for instruction in program.sample + program.flush:
        if instruction.node is None:
            assert instruction.label[2] in ("no label", "no loss"), instruction.label
            continue
        op = graph.operations[instruction.node]
        sums = [o for o in graph.operations if o.kind == "add" and o.output in op.inputs]  # a norm computes them, too
        own = {parameter for each in (op, *sums) for parameter in each.parameters(shapes)}
        if instruction.label[2] == "sum of uses":  # reads the gradients of all uses
            own = {graph.copies.get(parameter, parameter) for parameter in own}
            own |= {copy for copy, original in graph.copies.items() if original in own}
        for number in instruction.reads():
            place = instruction.operands[number]
            for block in program.layout.blocks:
                if place.is_in_bank and place.number == block.bank and 0 <= place.base - block.base < block.vectors:
                    assert block.name in own or block.name not in shapes, (instruction.label, block.name)
                    checked.add(block.name)
    assert len(checked) > len(graph.shapes) / 2
    nodes = {instruction.node for instruction in program.sample} - {None}
    without = {op.kind for number, op in enumerate(graph.operations) if number not in nodes}
    assert without <= {"add"}, "a sum is computed by the norm that reads it; everything else has instructions"


def test_cycles_of_instructions_add_up_to_the_samples():
    program = compile(ModelConfig(encoders=1))
    lengths = [2, 13, 32]
    cycles = cycles_by_instruction(program.sample, lengths)
    assert cycles.shape == (len(program.sample), 3) and (cycles >= 0).all()
    assert cycles.sum(0).tolist() == [time_program(program.sample, n).cycles for n in lengths]
    assert [sum(table.values()) for table in cycles_by_layer(program.sample, lengths)] == cycles.sum(0).tolist()


def test_operations_have_the_line_of_the_file_that_computes_them(tmp_path):
    (tmp_path / "marked.py").write_text(MARKED)
    model = load_module(f"{tmp_path / 'marked.py'}:Net")
    lines = MARKED.split("\n")
    wanted = sorted(
        (number, kind)
        for number, line in enumerate(lines, 1)
        if "  # " in line
        for kind in line.partition("  # ")[2].split()
    )
    found = sorted((op.output.line.number, op.kind) for op in model.graph.operations)
    assert [kind for _, kind in found if kind in ("dense", "linear")] == ["dense", "dense"]
    assert [(number, kind.replace("dense", "linear").replace("embedding", "table")) for number, kind in found] == wanted
    for op in model.graph.operations:
        assert str(op.output.line) == f"marked.py, line {op.output.line.number}"
        assert op.output.line.text == lines[op.output.line.number - 1].strip()


def shown_lines(explorer: GraphExplorer) -> list[str]:
    """The instructions that a widget lists, as `instruction_line` has them."""
    found = re.findall(r"text-indent:-2em[^>]*>(.*?) \| <b>cycles", explorer._listing.value)
    return [unescape(line) for line in found]


@pytest.mark.long
def test_the_instructions_of_all_operations_are_the_programs_and_their_cycles_its_cycles():
    torch.manual_seed(0)
    model = trace(Net(), 12)
    explorer = GraphExplorer(model, tokens=9)
    for flow in ("bidirectional", "right_to_left"):
        explorer.flow.value = flow
        sample = compile(model, Options(flow)).sample
        every = {instruction_line(n, i) for n, i in enumerate(sample) if i.node is not None}
        shown, total = [], 0
        for _, number in explorer.operation.options:
            explorer.operation.value = number
            shown += shown_lines(explorer)
            own = re.search(r"<b>([\d,]+)</b> of ([\d,]+) cycles", explorer.results)
            total += int(own[1].replace(",", ""))
            assert int(own[2].replace(",", "")) == time_program(sample, 9).cycles
        rest = int(re.search(r"(\d+) cycles are of no operation", explorer.results)[1])
        assert len(shown) == len(set(shown)) and set(shown) == every
        assert total + rest == time_program(sample, 9).cycles
        assert len(every) + 2 == len(sample)  # the slots' loss, which the model does not have


@pytest.mark.long
def test_a_click_on_a_row_chooses_the_operation_and_its_line_is_shown():
    torch.manual_seed(0)
    model = trace(Net(), 12)
    explorer = GraphExplorer(model)
    figure = explorer._figures[0]
    figure.canvas.draw()
    names = [op.name for op in model.graph.operations]
    for name in ("head", "layers.layers.0.add"):
        number = names.index(name)
        x, y = explorer._bars.transData.transform((1, number))
        figure.canvas.callbacks.process("button_press_event", MouseEvent("button_press_event", figure.canvas, x, y))
        assert explorer.operation.value == number and f"<b>{name}</b>" in explorer.results
        assert "sample_modules.py, line" in explorer._listing.value
        assert "return self.head(self.layers(self.table(tokens))[:, 0])" in unescape(explorer._listing.value)
    assert "the instructions of layers.layers.0.norm1 compute it" in explorer._listing.value
    kept = []
    explorer._live.keep = lambda caption="", below="": kept.append(below)
    explorer._keep()  # what stays in the notebook when the kernel is gone has the instructions, too
    assert kept == [explorer._listing.value]
    assert f"Operations: {len(names)}" in explorer._words.value and "forward: " in explorer._words.value
    explorer.close()


@pytest.mark.long
def test_a_long_graph_is_shown_in_parts_and_of_a_configuration_there_is_no_line():
    explorer = GraphExplorer(ModelConfig(encoders=3))
    count = len(explorer.graph.operations)
    assert count > 32
    explorer.operation.value = count - 1
    assert explorer._axes.get_title("left") == f"Operations: {count - 31} to {count} of {count}"
    assert "line" not in explorer._listing.value.partition("forward")[0].partition("line-height")[2][10:]
    explorer.close()


def test_a_module_that_does_not_fit_is_refused_when_it_is_made():
    with pytest.raises(ProgramError, match=r"fewer encoders|smaller"):
        GraphExplorer(ModelConfig(encoders=12))
