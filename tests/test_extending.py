"""The blocks of docs/extending.md run as printed: operations train as in PyTorch, and the figure passes its test.

docs/processor.md has the way of an operation from a call to its instruction's bits, through each file of the compiler.
"""

import math
import re
import sys
import textwrap
from types import ModuleType

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import erf
from torch import nn

import bttlab.lab
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.functions import ACTIVATIONS, Activation, FunctionTable
from bttlab.compiler.operation import Operation
from bttlab.compiler.program import compile
from bttlab.compiler.trace import trace
from bttlab.compiler.trace.forms import FORMS

from conftest import ROOT
from training_processor import check_gradients

WORDS, WIDTH, LENGTH = 20, 32, 9
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
ROW, CLASS, BINARY, FIGURE, TEST = (
    textwrap.dedent(block).strip("\n") for block in re.findall(r"((?:^ {7}.*\n|^\n(?=\n? {7}))+)", PAGE, re.MULTILINE)
)


class Net(nn.Module):
    """Two layers, a function of both, and a head."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.first, self.second = (
            nn.Embedding(WORDS, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )
        self.head, self.function = nn.Linear(WIDTH, 5), function

    def forward(self, tokens):
        x = self.table(tokens)
        return self.head(self.function(self.first(x), self.second(x)))


@pytest.fixture
def added(monkeypatch):
    """Execute a block of the page as a module of its own; operations and rows are gone after the test."""
    monkeypatch.setattr(Operation, "of_function", dict(Operation.of_function))
    rows = dict(ACTIVATIONS)
    del ACTIVATIONS["abs"]  # the page adds it

    def execute(code: str) -> ModuleType:
        module = ModuleType("added_operation")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(code, vars(module))
        return module

    yield execute
    ACTIVATIONS.clear()
    ACTIVATIONS.update(rows)


ABSOLUTE = {
    "torch.abs": lambda a, b: torch.abs(a) + b,
    "a method": lambda a, b: (a + b).abs(),
    "of a function": lambda a, b: torch.abs(torch.tanh(a)) * b.abs(),
}


@pytest.mark.parametrize("name", ABSOLUTE)
@pytest.mark.parametrize(("code", "kind"), [(ROW, "function"), (CLASS, "absolute")], ids=["a row", "a class"])
def test_a_function_of_one_activation(fast, added, code, kind, name):
    with pytest.raises(ProgramError, match=r"abs is not supported on the card; use one of these: linear .*gelu, relu"):
        trace(Net(ABSOLUTE[name]), LENGTH)
    added(code)
    model = trace(Net(ABSOLUTE[name]), LENGTH)
    assert kind in [op.kind for op in model.graph.operations]
    check_gradients(fast, model, (2, LENGTH), tolerance=2e-4, least=1 / 10)


def test_a_function_of_which_the_algebra_knows_the_name_alone(fast, added):
    assert "special_ndtr" not in FORMS
    ACTIVATIONS["ndtr"] = Activation(
        torch.special.ndtr,
        FunctionTable("ndtr", lambda x: (1 + erf(x / math.sqrt(2))) / 2, -6.0, 6.0, 576),
        FunctionTable("ndtr'", lambda x: np.exp(-x * x / 2) / math.sqrt(2 * math.pi), -6.0, 6.0, 576),
        times_x=False,
    )
    model = trace(Net(lambda a, b: torch.special.ndtr(a) + b), LENGTH)
    assert "ndtr" in [op.options.get("function") for op in model.graph.operations]
    check_gradients(fast, model, (2, LENGTH), tolerance=2e-4, least=1 / 10)


@pytest.mark.parametrize("is_named", [False, True])
def test_an_operation_of_two_activations(fast, added, is_named):
    module = added(BINARY.replace("(torch.mul,)", '("mul",)') if is_named else BINARY)
    model = trace(Net(lambda a, b: F.relu(a) * b), LENGTH)
    (product,) = (op for op in model.graph.operations if op.kind == "product")
    assert type(product) is module.Product
    check_gradients(fast, model, (2, LENGTH), tolerance=2e-4, least=1 / 10)


def test_a_wrong_gradient_is_found(fast, added):
    added(BINARY.replace("(b, a)", "(a, b)"))
    with pytest.raises(AssertionError):
        check_gradients(fast, trace(Net(lambda a, b: a * b), LENGTH), (2,), tolerance=2e-4, least=1 / 10)


def test_a_wrong_meaning_is_found(added):
    added(BINARY.replace("torch.mul,", "torch.mul, torch.atan2").replace("(torch.mul", "(torch.add"))
    with pytest.raises(ProgramError, match="differs from what was traced"):
        trace(Net(torch.atan2), LENGTH)


def test_a_table_that_is_not_constant_outside_is_refused(added):
    added(ROW.replace("torch.abs", "torch.sin").replace("np.sign", "np.sin").replace("-1.0, 1.0, 2", "-9.0, 9.0, 400"))
    with pytest.raises(
        ProgramError, match=r"the table of sign is constant outside \[-9, 9\], the function is not: it is"
    ):
        compile(trace(Net(lambda a, b: torch.sin(a) + b), LENGTH))


def test_an_operation_without_a_method_is_named(added):
    code = BINARY[: BINARY.index("    def backward")]
    added(code)
    with pytest.raises(ProgramError, match="the operation 'product' has no method 'backward'; Product must define it"):
        compile(trace(Net(torch.mul), LENGTH))


def test_the_way_of_an_operation_goes_through_each_file_once():
    page = (ROOT / "docs" / "processor.md").read_text(encoding="utf-8")
    way = page[page.index("## The compiler") : page.index("### A module of your own")]
    named, folder = re.findall(r"`([\w/]+\.py)`", way), ROOT / "lib" / "bttlab" / "compiler"
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if path.name != "__init__.py"}
    assert sorted(named) == sorted(files - {"errors.py", "compiled.py"})  # no step: exceptions, and names of before


def test_the_figure(monkeypatch):
    def run(code):
        module, names = {}, {}
        exec(code, module)
        monkeypatch.setattr(bttlab.lab, "draw_energy_by_length", module["draw_energy_by_length"], raising=False)
        exec(TEST, names)
        names["test_energy_grows_with_the_utterance_and_lies_in_its_band"]()

    run(FIGURE)
    with pytest.raises(AssertionError):
        run(FIGURE.replace("plot(lengths, mid,", "plot(lengths, mid[::-1],"))
