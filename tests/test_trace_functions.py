"""A function is recorded as what the module calls, at every size of its values, or it is refused."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.functions import ACTIVATIONS
from bttlab.compiler.trace import record, trace
from bttlab.compiler.trace.check import execute
from bttlab.compiler.trace.forms import FORMS, X, form_of

from training_processor import check_gradients

WORDS, WIDTH, LENGTH = 5, 16, 2
POWERS = range(-7, 8)  # of ten: the sizes of values at which graph and module are compared


class Net(nn.Module):
    """A function between two layers; the first one's outputs have both signs."""

    def __init__(self, function, size=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.inner, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.function = function
        with torch.no_grad():
            self.inner.weight.mul_(size)

    def forward(self, tokens):
        return self.head(self.function(self.inner(self.table(tokens))))


def largest_difference(function, steps=()) -> float:
    """The largest relative difference of graph and module over all sizes of the function's argument.

    A limit is off by the rounding of what it limits, which is the result of one of the steps.
    """
    net = Net(function).eval()
    graph = trace(net, LENGTH).graph
    net, tokens = net.double(), torch.tensor([3, 4])
    state, largest = dict(net.named_parameters()), 0.0
    (head,) = (op for op in graph.operations if op.kind == "classifier")
    with torch.no_grad():
        x = net.inner(net.table(tokens))
        for power in POWERS:
            for value in (10.0**power, -(10.0**power)):
                net.inner.weight.zero_()
                net.inner.bias.copy_(value * (0.5 + torch.rand(WIDTH, generator=torch.Generator().manual_seed(1))))
                values = execute(graph, state, tokens)
                ours, theirs = values[head.inputs[0].base or head.inputs[0]][:1], net.function(net.inner(x))[:1]
                where = torch.isfinite(ours) & torch.isfinite(theirs)
                u = net.inner(x)[:1]
                rounded = u.abs()
                for step in steps:
                    u = step(u)
                    rounded = torch.maximum(rounded, torch.nan_to_num(u.abs(), posinf=0.0))
                size = theirs[where].abs() + 1e-7 + 1e-11 * torch.clamp_min(rounded[where], abs(value))
                difference = (ours - theirs)[where].abs() / size
                largest = max(largest, float(difference.max()) if where.any() else 0.0)
    return largest


# 1e-6 to 1e6, both signs. FP32 has these numbers: constants of the card are not rounded.
sizes = st.tuples(st.floats(1, 2, width=16), st.integers(-20, 19), st.sampled_from((1, -1)))
sizes = sizes.map(lambda n: n[0] * 2.0 ** n[1] * n[2])
steps = st.one_of(
    sizes.map(lambda a: ("offset", lambda x: x + a)),
    sizes.map(lambda a: ("scale", lambda x: x * a)),
    sizes.map(lambda a: ("at most", lambda x: x.clamp(max=a))),
    sizes.map(lambda a: ("at least", lambda x: torch.clamp_min(x, a))),
    sizes.map(lambda a: ("between", lambda x: F.hardtanh(x, -abs(a), abs(a)))),
    sizes.map(lambda a: ("clipped ReLU", lambda x: torch.relu(x).clamp(max=abs(a)))),
    sizes.map(lambda a: ("ReLU from", lambda x: F.relu(x - a))),
    sizes.map(lambda a: ("threshold", lambda x: F.threshold(x, a, a))),
    st.tuples(sizes, sizes).map(lambda n: ("plateau", lambda x: x - F.relu(x - n[0]) + F.relu(x - n[0] - abs(n[1])))),
    st.tuples(sizes, sizes).map(lambda n: ("bump", lambda x: x + F.relu(1 - ((x - n[0]) / n[1]).abs()))),
    st.sampled_from([(name, activation.torch) for name, activation in ACTIVATIONS.items()]),
)


@example([("scale", lambda x: x * 256.0), ("at most", lambda x: x.clamp(max=6.842613220214844e-05))])
@given(st.lists(steps, min_size=1, max_size=3))
@settings(max_examples=60, deadline=None, derandomize=True)  # the same in each run: a new draw is for a developer
def test_limits_offsets_and_plateaus_are_recorded_or_refused(chosen):
    def function(x):
        for _, step in chosen:
            x = step(x)
        return x

    try:
        difference = largest_difference(function, [step for _, step in chosen])
    except ProgramError:
        return
    assert difference < 1e-4, [name for name, _ in chosen]


WRITTEN = {
    "gelu": (
        lambda x: 0.5 * x * (1 + torch.erf(x * 0.7071067811865475)),
        lambda x: x * 0.5 * torch.erfc(-x / math.sqrt(2)),
    ),
    "gelu_tanh": (
        lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3)))),
        lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))),
        lambda x: x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)),
    ),
    "silu": (lambda x: x / (1 + torch.exp(-x)), lambda x: x * torch.exp(x) / (torch.exp(x) + 1)),
    "sigmoid": (lambda x: 1 / (1 + torch.exp(-x)), lambda x: 0.5 * (torch.tanh(x / 2) + 1)),
    "tanh": (
        lambda x: 2 * torch.sigmoid(2 * x) - 1,
        lambda x: (torch.exp(x) - torch.exp(-x)) / (torch.exp(x) + torch.exp(-x)),
    ),
    "relu": (
        lambda x: F.threshold(x, 0.0, 0.0),
        lambda x: 0.5 * F.relu(2 * x),
    ),
    "quick_gelu": (lambda x: torch.sigmoid(1.702 * x) * x,),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_activations_are_known_from_their_calls(name):
    for written in WRITTEN[name]:
        graph = trace(Net(written), LENGTH).graph
        assert [op.options for op in graph.operations if op.kind == "function"] == [{"function": name}]
    same = [key for key, known in ACTIVATIONS.items() if form_of(WRITTEN[name][0]).is_same(form_of(known.torch))]
    assert same == ([name, "at_least_0"] if name == "relu" else [name])


AT_0 = {
    "ReLU": torch.relu,
    "|x|": torch.abs,
    "a limit of 0": lambda x: x.clamp(min=0),
    "limits": lambda x: x.clamp(0, 1),
    "hardtanh": lambda x: F.hardtanh(x, 0, 1),
    "ReLU6": F.relu6,
    "leaky ReLU": F.leaky_relu,
    "threshold": lambda x: F.threshold(x, 0.0, 0.0),
    "softplus": F.softplus,
    "softplus of 2 x": lambda x: F.softplus(x, 2.0),
    "log-sigmoid": F.logsigmoid,
    "ELU": F.elu,
    "hard swish": F.hardswish,
    "SELU": F.selu,
    "ELU of another alpha": lambda x: F.elu(x, 0.5),
    "CELU": lambda x: F.celu(x, 2.0),
    "the larger of x and 0": lambda x: torch.maximum(x, torch.zeros(())),
    "the smaller of x and 0": lambda x: torch.min(torch.zeros_like(x), x),
    "the larger of x and 2 x": lambda x: torch.max(x, 2 * x),
    "x and its absolute value": lambda x: (x + x.abs()) / 2,
}


@pytest.mark.parametrize("name", AT_0)
def test_the_derivative_at_0_is_pytorchs(fast, name):
    """A layer that starts with zeros has outputs that are exactly 0."""
    net = Net(lambda x: AT_0[name](x) + 1, size=0.0)
    nn.init.zeros_(net.inner.bias)
    check_gradients(fast, trace(net, LENGTH), (LENGTH,), tolerance=1e-5, least=1e-3)


LIMITS = {
    "two constants at one place": lambda x: x - F.relu(x - 100.0) + F.relu(x - 100.0 - 1000.0),
    "clip_qkv": lambda x: x.clamp(-8, 8),
    "a limit at the end of an interval": lambda x: F.silu(x.clamp(max=7)),
    "a limit beyond FP16": lambda x: x.clamp(-65504, 65504),
    "a clipped ReLU": lambda x: F.hardtanh(x, 0.0, 20.0),
    "a tiny plateau far out": lambda x: x - F.relu(x - 1000) + F.relu(x - 1000.0001),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_recorded_or_refused_by_name_and_line(name):
    try:
        assert largest_difference(LIMITS[name]) < 1e-6
    except ProgramError as error:
        assert "test_trace_functions.py, line" in str(error)


def test_celu_is_close_to_pytorchs_or_refused(fast):
    """Its tail is multiplied by alpha, and so is the tail's rounding: of 10,000, gradients were off by 1 %."""
    check_gradients(fast, trace(Net(lambda x: F.celu(x, 10.0)), LENGTH), (LENGTH,), tolerance=1e-4, least=1 / 10)
    for alpha in (11.0, 1e4, -2.0):
        with pytest.raises(ProgramError, match=r"celu of alpha .* use an alpha above 0, of 10 or less"):
            trace(Net(lambda x, alpha=alpha: F.celu(x, alpha)), LENGTH)


def test_limits_in_the_wrong_order_are_named():
    """PyTorch's output is the max; the message said that forward depends on token ids."""
    with pytest.raises(ProgramError, match=r"clamp from 0\.5 to -0\.5 .* a min that is at most the max"):
        trace(Net(lambda x: x.clamp(0.5, -0.5)), LENGTH)
    assert largest_difference(lambda x: x.clamp(0.5, 0.5) + x) < 1e-6


COMPOSED = {
    "abs": (torch.abs, ["abs"]),
    "squared ReLU": (lambda x: F.relu(x) ** 2, ["relu"]),
    "softplus": (F.softplus, ["at_least_0", "softplus_tail"]),
    "logsigmoid": (F.logsigmoid, ["at_least_0", "softplus_tail"]),
    "Mish": (F.mish, ["mish"]),
    "Mish, written out": (lambda x: x * torch.tanh(F.softplus(x)), ["mish"]),
    "ELU": (F.elu, ["at_least_0", "elu_tail"]),
    "SELU": (F.selu, ["at_least_0", "relu", "elu_tail"]),
    "CELU": (lambda x: F.celu(x, 2.0), ["at_least_0", "elu_tail"]),
    "the larger of x and a limit": (lambda x: torch.maximum(x, torch.tensor(0.5)), ["relu", "at_least_0"]),
    "the larger of two": (lambda x: torch.maximum(x, x.flip(-1)), ["relu", "at_least_0"]),
    "the smaller of two": (lambda x: torch.minimum(x, x.flip(-1)), ["relu", "at_least_0"]),
    "hard swish": (F.hardswish, ["at_least_0", "relu"]),
    "a clipped ReLU": (lambda x: F.hardtanh(x, 0.0, 1.0), ["relu", "at_least_0"]),
    "clip_qkv": (lambda x: x.clamp(-0.5, 0.5), ["relu", "relu"]),
    "a clipped SwiGLU": (lambda x: x.clamp(max=0.7) * torch.sigmoid(1.702 * x.clamp(max=0.7)), None),
    "a cube": (lambda x: x**3, []),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_other_functions_train_as_in_pytorch(fast, name):
    function, recorded = COMPOSED[name]
    model = trace(Net(function, size=3.0), LENGTH)
    found = [op.options["function"] for op in model.graph.operations if op.kind == "function"]
    assert recorded is None or found == recorded
    check_gradients(fast, model, (LENGTH,), tolerance=2e-4, least=1 / 10)
    assert largest_difference(function) < 1e-4


def test_x_is_known_through_sums_and_products():
    assert form_of(lambda x: (x * 3 + 5) - 5 - x).factor == 2
    assert form_of(lambda x: x + 1e-6 - 1e-7).factor is None
    assert X.factor == 1 and form_of(lambda x: x * x / x).factor == 1


@pytest.mark.parametrize("name", sorted(FORMS.keys() & vars(F).keys() - {"threshold", "elu", "celu", "gelu"}))
def test_a_form_is_what_pytorch_computes(name):
    """The value of each function's form, from those of its atoms."""
    function = getattr(F, name)
    x = torch.linspace(-8, 8, 101, dtype=torch.float64)
    assert torch.allclose(value_of(form_of(function), x), function(x), 1e-9, 1e-9)


def value_of(form, x):
    """Evaluate a form, with the meaning of its atoms."""

    def of_sum(total):
        products = (number * math.prod(of_atom(atom) ** power for atom, power in m) for m, number in total.items())
        return sum(products, torch.zeros_like(x))

    def of_atom(atom):
        if atom == ("x",):
            return x
        if atom[0] == "exp":
            return torch.exp(of_sum({atom[1]: 1.0}))
        inner = of_sum(dict(atom[1][0])) / of_sum(dict(atom[1][1]))
        return getattr(torch, atom[0])(inner)

    return of_sum(form.top) / of_sum(form.bottom)


def test_the_check_finds_a_limit_that_the_algebra_drops(monkeypatch):
    monkeypatch.setitem(FORMS, "clamp", lambda x, *_: x)
    monkeypatch.setattr(record, "_agree", lambda *_: True)
    for limit in (8.0, 1e4):
        with pytest.raises(
            ProgramError, match=r"differs from what was traced where (inner|table)\.(bias|weight) is \de[+-]\d\d"
        ):
            trace(Net(lambda x, limit=limit: F.silu(x.clamp(-limit, limit))), LENGTH)


def test_the_values_are_compared_over_the_whole_range(monkeypatch):
    monkeypatch.setitem(FORMS, "clamp", lambda x, *_: x)
    assert largest_difference(lambda x: x.clamp(-1e6, 1e6)) < 1e-6
    monkeypatch.setattr(record, "_agree", lambda *_: True)
    with pytest.raises(AssertionError):
        assert largest_difference(lambda x: x.clamp(-1e6, 1e6)) < 1e-6


def clipped(x, limit):
    """x, whose gradients are clipped by a hook."""
    y = x * 1.0
    if y.requires_grad:
        y.register_hook(lambda d: d.clamp(-limit, limit))
    return F.silu(y)


@pytest.mark.parametrize("limit", [1e3, 1e5])
def test_the_check_compares_gradients_of_large_values(limit):
    """Outputs are equal at all sizes, gradients of a loss near 1 are, too."""
    with pytest.raises(
        ProgramError, match=r"the gradient of \S+ differs from what was traced where .*; a hook on .* \(test_trace_f"
    ):
        trace(Net(lambda x: clipped(x, limit)), LENGTH)


def test_the_check_scales_tables(monkeypatch):
    monkeypatch.setitem(FORMS, "clamp", lambda x, *_: x)
    monkeypatch.setattr(record, "_agree", lambda *_: True)
    net = Net(lambda x: x)
    del net.inner
    net.inner = lambda x: F.silu(x.clamp(-50.0, 50.0))  # no layer between the table and the limit
    with pytest.raises(ProgramError, match=r"differs from what was traced where table\.weight is \de[+-]\d\d times"):
        trace(net, LENGTH)


def test_a_gradient_that_is_not_finite_is_refused():
    def encode(x):
        y = x * 1.0
        if y.requires_grad:
            y.register_hook(lambda d: d * math.nan)
        return y

    with pytest.raises(
        ProgramError, match=r"the gradient of (inner|table)\S+ for 2 tokens differs from what was traced"
    ):
        trace(Net(encode), LENGTH)
