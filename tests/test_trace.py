"""A traced module is the module, or is refused in a line that names the place."""

import importlib.util
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from bttlab.card.opening import open_trainer
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.program import compile
from bttlab.compiler.trace import names, record, trace, tracer
from bttlab.compiler.trace.check import Read
from bttlab.model import Optimizer, ReferenceTrainer
from bttlab.model.module import config_of
from bttlab.model.trainer import StateError
from bttlab.tensor import compress
from bttlab.util.errors import BttlabError

from conftest import ROOT
from training_processor import check_gradients, some_samples

WORDS, WIDTH, TAGS, LENGTH = 20, 32, 5, 12


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(WORDS, WIDTH)
        self.q, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, TAGS)

    def encode(self, x, tokens):
        return F.relu(self.q(x))

    def forward(self, tokens):
        return self.head(self.encode(self.table(tokens), tokens))


def heads(x):
    return x.view(*x.shape[:2], 2, -1).transpose(1, 2)


def attend(q, v, change=lambda scores: scores, after=lambda p: p):
    scores = change(heads(q) @ heads(q).transpose(-1, -2) / math.sqrt(WIDTH // 2))
    return (after(scores.softmax(-1)) @ heads(v)).transpose(1, 2).flatten(2)


def made(encode, prepare=lambda net: None) -> nn.Module:
    """A module whose layers `encode(net, x, tokens)` calls; `prepare` changes it before."""

    class Net(Base):
        def encode(self, x, tokens):
            return encode(self, x, tokens)

    net = Net()
    prepare(net)
    return net


def mixture(x, experts, odds):
    return x + (odds.movedim(-1, 0).unsqueeze(-1) * experts).sum(0)


class LoRA(nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, WIDTH)
        self.a, self.b = nn.Parameter(torch.randn(16, WIDTH)), nn.Parameter(torch.randn(WIDTH, 16))

    def forward(self, x):
        return super().forward(x) + (x @ self.a.T) @ self.b.T


class Double(torch.autograd.Function):
    """Twice x forward, once backward: no function of torch sees it."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, d):
        return d


def lora(net):
    net.q = LoRA()


def hooked(net):
    net.q.register_forward_hook(lambda layer, inputs, y: y * 2)


def test_what_the_layers_compute_is_traced_not_what_they_are_called():
    """Subclasses with a forward of their own and hooks are in the graph."""
    kinds = [op.kind for op in trace(made(lambda n, x, t: torch.tanh(n.q(x)), lora), LENGTH).graph.operations]
    assert kinds == ["embedding", "dense", "dense", "dense", "add", "function", "classifier"]
    kinds = [op.kind for op in trace(made(lambda n, x, t: n.q(x), hooked), LENGTH).graph.operations]
    assert kinds == ["embedding", "dense", "multiply", "classifier"]


WRITTEN = {
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "at_least_0": lambda x: x.clamp(min=0),
    "tanh": lambda x: 2 * torch.sigmoid(2 * x) - 1,
}


@pytest.mark.parametrize("name", WRITTEN)
def test_activations_written_out_are_known_by_their_values(name):
    graph = trace(made(lambda n, x, t: WRITTEN[name](n.q(x))), LENGTH).graph
    assert [op.options for op in graph.operations if op.kind == "function"] == [{"function": name}]


def test_a_norm_takes_the_factors_and_the_shift_that_follow_it():
    def written(n, x, tokens):
        y = (x := n.q(x)) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return y * n.more[0] + n.more[1]

    def prepare(n):
        n.more = nn.ParameterList(torch.rand(WIDTH) for _ in range(2))

    (norm,) = (op for op in trace(made(written, prepare), LENGTH).graph.operations if op.kind == "norm")
    assert (norm.weight, norm.bias, norm.centred) == ("more.0", "more.1", False)
    assert norm.epsilon == pytest.approx(1e-6)


CONVERSIONS = {
    "float": lambda n, x, t: n.q(x.float()),
    "to": lambda n, x, t: n.q(x).to(torch.float32) + n.q(x),
    "softmax": lambda n, x, t: attend(n.q(x), x, lambda s: s.float()),
    "a constant": lambda n, x, t: n.q(x + torch.linspace(0, 1, WIDTH, dtype=torch.float32)),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversions_to_single_precision_change_nothing(name):
    assert trace(made(CONVERSIONS[name]), LENGTH).tasks == ["tagging"]


def test_operands_may_be_given_by_keyword():
    graph = trace(made(lambda n, x, t: torch.mul(input=F.gelu(input=n.q(x)), other=x.transpose(1, 2).mT)), LENGTH).graph
    assert [op.kind for op in graph.operations] == ["embedding", "dense", "function", "multiply", "classifier"]


def assigned(y):
    y = y.clone()
    y[:, 0] = 0.0
    return y


def row_of(net, x):
    return net.table.weight[:1].expand(len(x), 1, -1)


ROW_IN_FRONT = r"torch.cat\(\[row, x\], 1\)"
PREPARED = {  # what is changed in the module before
    "attention dropout": lambda n: setattr(n, "more", nn.MultiheadAttention(WIDTH, 2, 0.5, batch_first=True)),
    "weight norm": lambda n: torch.nn.utils.parametrizations.weight_norm(n.q),
    "a table from its end": lambda n: setattr(n, "more", nn.Parameter(torch.randn(2 * LENGTH, WIDTH))),
    "a table with steps": lambda n: setattr(n, "more", nn.Parameter(torch.randn(2 * LENGTH, WIDTH))),
    "max_norm": lambda n: setattr(n, "table", nn.Embedding(WORDS, WIDTH, max_norm=1.0)),
    "a layer without a use": lambda n: setattr(n, "more", nn.Linear(WIDTH, WIDTH)),
    "a weight also transposed": lambda n: setattr(n, "more", nn.Linear(WIDTH, 16)),
}
REFUSED = {
    "attention dropout": (lambda n, x, t: n.more(x, x, x)[0], r"^more: dropout of probability 0.5 .*eval\(\)"),
    "dropout by position": (lambda n, x, t: F.dropout(n.q(x), 0.3), "^Net: dropout of probability 0.3"),
    "noise": (lambda n, x, t: n.q(x) + torch.randn(1), "add is not supported|draws random numbers in training"),
    "condition on the length": (lambda n, x, t: n.q(x) if t.shape[1] > 8 else x, r"for 7 tokens differs .* the length"),
    "condition on the ids": (lambda n, x, t: n.q(x) if t.max() > 30 else x, r"values of the token ids \(bool\)"),
    "ids as numbers": (lambda n, x, t: n.q(x) * (t != 7).unsqueeze(-1), "ne of the token ids"),
    "a limit that trains": (lambda n, x, t: n.q(x).clamp(max=n.q.bias), "^Net: clamp with a parameter as a limit is"),
    "two softmaxes": (lambda n, x, t: attend(n.q(x), x, lambda s: s.softmax(-1)), "softmax is not .*one softmax"),
    "scale after the softmax": (lambda n, x, t: attend(n.q(x), x, after=lambda p: p * 2), "mul after the softmax is"),
    "scale by the length": (
        lambda n, x, t: attend(n.q(x), x, lambda s: s * (LENGTH / t.shape[1])),
        "output for 7 tokens differs .* a scale",
    ),
    "weight norm": (lambda n, x, t: n.q(x), "^q.*computed parameter, from q.parametrizations.weight.original0"),
    "detached": (lambda n, x, t: n.q(x).detach(), r"detach without a gradient.*requires_grad_\(False\)"),
    "a function of autograd": (lambda n, x, t: Double.apply(n.q(x)), "mul without a gradient .*autograd.Function"),
    "a table from its end": (lambda n, x, t: n.q(x) + n.more[-t.shape[1] :], "7 tokens differs .* the end of a table"),
    "a table with steps": (lambda n, x, t: n.q(x) + n.more[::2][: t.shape[1]], "add of these elements of more"),
    "max_norm": (lambda n, x, t: n.q(x), "^table: embedding with max_norm"),
    "a layer without a use": (lambda n, x, t: (n.more(x), n.q(x))[1], "does not use more.weight: remove"),
    "changed in place": (lambda n, x, t: n.q(x).index_fill_(1, torch.tensor([0]), 0.0), "index_fill is no"),
    "a parameter as the input of a layer": (
        lambda n, x, t: n.q(x) + n.q(n.table.weight[:1]),
        f"^q: linear: a computed parameter, from .* use a row in front of the tokens .*{ROW_IN_FRONT}",
    ),
    "a row behind the tokens": (
        lambda n, x, t: n.q(torch.cat([x, row_of(n, x)], 1)),
        f"^Net: cat of a parameter and an activation is not .* {ROW_IN_FRONT} .test_trace.py, line",
    ),
    "a class token that has logits": (
        lambda n, x, t: n.q(torch.cat([row_of(n, x), x], 1)),
        r"^Net.forward returns 13 logits for 12 tokens: return those of the tokens, as x\[:, 1:\]",
    ),
    "what is almost a norm": (
        lambda n, x, t: x / x.std(-1, keepdim=True),
        r"^Net: this function of all features .* under the root, .* after the division .test_trace.py, line \d+\)$",
    ),
    "tokens of two tensors": (
        lambda n, x, t: torch.cat((x[:, :1], n.q(x)[:, 1:]), 1),
        "^Net: cat of tokens of different tensors is not .*; use cat of features, dim=-1 .test_trace",
    ),
    "tokens in reverse": (lambda n, x, t: n.q(x.flip(1)), "^q: elements of table in this order is not .* the order of"),
    "a sum of tokens in reverse": (lambda n, x, t: x + n.q(x).flip(1), "^Net: add of tensors with tokens in different"),
    "one column for all features": (lambda n, x, t: x * x[..., :1].expand(-1, -1, WIDTH), "^Net: 32 moves of a column"),
    "one factor for all features": (
        lambda n, x, t: n.q(x) * n.q.bias[0],
        "^mul: an element of q.bias is a factor .* and other layers read q.bias by rows: use a parameter for each",
    ),
    "one parameter as scale and shift": (
        lambda n, x, t: F.layer_norm(n.q(x), (WIDTH,), n.q.bias, n.q.bias),
        "norm with q.bias as scale and shift is not supported on the card; use two parameters",
    ),
    "a condition on each value": (
        lambda n, x, t: torch.where(x > 0, x, 0.1 * x),
        "gt is not .* F.relu or F.leaky_relu",
    ),
    "a product of three factors": (
        lambda n, x, t: torch.einsum("btd,btd,btd->btd", x, x, x),
        "einsum btd,btd,btd->btd is not supported on the card; use two factors",
    ),
    "a sum over an axis of one factor": (
        lambda n, x, t: torch.einsum("btd,be->bte", x, x[:, 0]),
        "einsum btd,be->bte is not supported on the card; use a sum over axes of both",
    ),
    "a gate": (
        lambda n, x, t: n.q(x) * n.q(x).softmax(-1),
        "softmax is not supported .* use one softmax, over the keys",
    ),
    "a softmax over experts": (
        lambda n, x, t: mixture(x, torch.stack([n.q(x), x]), (x @ n.q.weight[:2].T).softmax(-1)),
        "softmax is not supported .* a sigmoid as the gate of two experts; as outputs, the logits before it",
    ),
    "experts of each token": (
        lambda n, x, t: mixture(x, torch.stack([n.q(x), x]), F.one_hot((x @ n.q.weight[:2].T).argmax(-1), 2)),
        "argmax is not supported on the card",
    ),
    "a softmax of the outputs": (
        lambda n, x, t: n.q(x).log_softmax(-1),
        "log_softmax is not .* use the logits before it",
    ),
    "a reentrant checkpoint": (
        lambda n, x, t: checkpoint(n.q, x, use_reentrant=True),
        "linear without a gradient .* use_reentrant=False",
    ),
    "a sine": (lambda n, x, t: n.q(x).sin(), r"sin is not supported on the card; use gelu, .*mish \(test_trace"),
    "a threshold": (lambda n, x, t: F.threshold(n.q(x), 1.0, 0.0), "threshold 1 with another value, 0, is not supp"),
    "a power": (lambda n, x, t: n.q(x) ** 2.5, "power of 2.5 is not supported on the card; use a power of 2, 3 or 4"),
    "an operation of a graph": (
        lambda n, x, t: torch.ops.aten.relu.default(n.q(x)),
        "relu.default of torch.export or of a compiled graph is not supported .* the module as it was before",
    ),
    "a weight also transposed": (
        lambda n, x, t: F.linear(n.more(n.q(x)), n.more.weight.T),
        "uses rows of more.weight that another layer uses transposed: use a parameter for each",
    ),
    "assignment": (lambda n, x, t: assigned(n.q(x)), "assignment to elements"),
}


def unused_mean(net, x, tokens):
    y = F.relu(net.q(x))
    y.mean(-1)  # has no operation: it must not take the operations of what it reads with it
    return y


def test_what_is_refused_and_not_used_changes_nothing():
    kinds = [op.kind for op in trace(made(unused_mean), LENGTH).graph.operations]
    assert kinds == ["embedding", "dense", "function", "classifier"]


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit(), RuntimeError("mat1 and mat2")])
def test_a_forward_that_fails_or_ends_the_process_is_refused(error):
    def end(net, x, tokens):
        raise error

    with pytest.raises(ProgramError, match=f"^Net.forward fails in PyTorch on 12 tokens .{type(error).__name__}: "):
        trace(made(end), LENGTH)
    later = made(lambda n, x, t: n.q(x) if t.shape[1] == LENGTH else end(n, x, t))
    with pytest.raises(ProgramError, match=f"^Net.forward fails in PyTorch on 7 tokens .{type(error).__name__}: "):
        trace(later, LENGTH)


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_card_would_train_as_something_else_is_refused(name):
    encode, message = REFUSED[name]
    with pytest.raises(ProgramError, match=message):
        trace(made(encode, PREPARED.get(name, lambda net: None)), LENGTH)


def test_the_check_finds_what_no_rule_sees(monkeypatch):
    """Without the check, the same module compiles into another function."""
    net = made(lambda n, x, t: n.q(x) if t.shape[1] > 8 else F.relu(n.q(x)))
    with pytest.raises(ProgramError, match="for 7 tokens differs from what was traced by"):
        trace(net, LENGTH)
    monkeypatch.setattr(tracer, "check", lambda *_: Read((), ()))
    assert [op.kind for op in trace(net, LENGTH).graph.operations] == ["embedding", "dense", "classifier"]


UNSEEN = {
    "a hook": (lambda n: n.q.weight.register_hook(lambda d: 2 * d), "has a hook, which the card does not call"),
    "meta": (lambda n: n.q.to_empty(device="meta"), "is on device meta, without values"),
    "lazy": (lambda n: setattr(n, "q", nn.LazyLinear(WIDTH)), "has no shape yet: call the module once"),
    "NaN": (lambda n: nn.init.constant_(n.q.weight, float("nan")), "has NaN or infinite values: load or initialize"),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_parameters_hide_is_refused(name):
    prepare, message = UNSEEN[name]
    with pytest.raises(ProgramError, match=rf"^Net: q\.weight {message}"):
        trace(made(lambda n, x, t: n.q(x), prepare), LENGTH)


@pytest.mark.long
def test_a_module_of_torch_compile_is_refused():
    net = made(lambda n, x, t: n.q(x), lambda n: setattr(n, "q", torch.compile(n.q, backend="eager")))
    for one in (net, torch.compile(made(lambda n, x, t: n.q(x)), backend="eager")):
        with pytest.raises(ProgramError, match=r"has layers of torch\.compile, which change its functions"):
            trace(one, LENGTH)


def test_objects_beside_the_logits_are_no_outputs():
    class Cached(Base):
        def forward(self, tokens):
            return {"logits": super().forward(tokens), "past_key_values": SimpleNamespace(length=3)}

    assert trace(Cached(), LENGTH).tasks == ["tagging"]


def test_a_module_compiled_in_place_is_refused():
    net = made(lambda n, x, t: n.q(x), lambda n: n.q.compile(backend="eager"))
    with pytest.raises(ProgramError, match=r"has layers of torch\.compile, which change its functions"):
        trace(net, LENGTH)


def test_tensor_train_layers_may_be_called_by_keyword():
    net = made(lambda n, x, t: n.q(input=x))
    compress(net, rank=4, embeddings=False, skip=["head"])
    assert [op.kind for op in trace(net, LENGTH).graph.operations] == ["embedding", "linear", "classifier"]


PADDING = {
    "a mask of the mean": lambda n, x, t: padded(n.q(x), t),
    "a mask of attention": lambda n, x, t: attend(
        n.q(x), x, lambda s: s.masked_fill((t == 0)[:, None, None], float("-inf"))
    ),
    "a condition": lambda n, x, t: n.q(x) if (t != 0).all() else x,
    "padding_idx": lambda n, x, t: n.q(F.embedding(t, n.table.weight, 0)),
}


@pytest.mark.parametrize("name", PADDING)
def test_a_module_that_takes_0_as_padding_trains_on_no_sample_with_0_inside(name):
    model = trace(made(PADDING[name]), LENGTH)
    samples = some_samples(model, [LENGTH, 5])
    trainer = open_trainer(model, "emulated")
    trainer.load_parameters(model.parameters())
    trainer.predict(samples)  # with 0 after the length of the second one
    samples.tokens[1, 3] = 0
    with pytest.raises(BttlabError, match="sample 1, position 3: token 0: the model takes id 0 as padding"):
        trainer.predict(samples)
    assert config_of(model.config.to_dict()).least_token == 1


def test_a_module_that_does_not_ask_for_0_trains_on_samples_with_it():
    model = trace(made(lambda n, x, t: n.q(x)), LENGTH)
    samples = some_samples(model, [5])
    samples.tokens[0, 3] = 0
    samples.validate(model.config)
    assert "least_token" not in model.config.to_dict()


OTHER_PADDING = {
    "padding_idx": (lambda n, x, t: n.q(F.embedding(t, n.table.weight, 7)), 7),
    "the last row": (lambda n, x, t: n.q(F.embedding(t, n.table.weight, -1)), WORDS - 1),
    "a mask": (lambda n, x, t: n.q(padded(n.table(t), t, 3)), 3),
}


@pytest.mark.parametrize("name", OTHER_PADDING)
def test_another_id_than_0_may_be_that_of_padding(fast, name):
    encode, padding = OTHER_PADDING[name]
    model = trace(made(encode, lambda net: setattr(net.table, "padding_idx", padding)), LENGTH)
    assert (model.padding_token, model.least_token) == (padding, 0)
    check_gradients(fast, model, (5, LENGTH), tolerance=2e-4, least=1 / 10)
    samples = some_samples(config_of(model.config.to_dict()), [LENGTH, 5])
    samples.validate(model.config)
    samples.tokens[1, 3] = padding
    with pytest.raises(
        BttlabError, match=f"sample 1, position 3: token {padding}: the model takes id {padding} as pad"
    ):
        samples.validate(config_of(model.config.to_dict()))


def test_rows_that_a_table_of_positions_does_not_train_are_refused():
    def prepare(net):
        net.more = nn.Embedding(2 * LENGTH, WIDTH, padding_idx=1)

    with pytest.raises(ProgramError, match="row 1 of a table with padding_idx 1 is not supported"):
        trace(made(lambda n, x, t: n.q(x) + n.more(torch.arange(t.shape[1])), prepare), LENGTH)
    trace(made(lambda n, x, t: n.q(x) + n.more(torch.arange(t.shape[1]) + 2), prepare), LENGTH)


def test_two_ids_of_padding_are_refused():
    def prepare(net):
        net.more = nn.Embedding(LENGTH, WIDTH, padding_idx=2)
        net.table.padding_idx = 5

    with pytest.raises(ProgramError, match=r"padding of the ids \[2, 5\] is not supported .*; use one id of padding"):
        trace(made(lambda n, x, t: n.q(F.embedding(t, n.table.weight, 5)) + padded(x, t, 2)[:, None], prepare), LENGTH)


def test_other_losses_than_the_cross_entropy_of_classes_are_refused():
    with pytest.raises(ProgramError, match=r"^Net.forward returns one class \(head\)"):
        trace(made(lambda n, x, t: n.q(x), lambda n: setattr(n, "head", nn.Linear(WIDTH, 1))), LENGTH)
    for kind in ("regression", "multi_label_classification"):
        net = made(
            lambda n, x, t: n.q(x), lambda n, kind=kind: setattr(n, "config", SimpleNamespace(problem_type=kind))
        )
        with pytest.raises(ProgramError, match=f"^Net: problem_type is '{kind}': the card's loss is the cross-entropy"):
            trace(net, LENGTH)


def test_a_mask_of_finite_numbers_is_added_as_it_is():
    mask = torch.full((LENGTH, LENGTH), -1e4).triu(1)
    graph = trace(made(lambda n, x, t: attend(n.q(x), x, lambda s: s + mask[: t.shape[1], : t.shape[1]])), LENGTH).graph
    (op,) = (op for op in graph.operations if op.kind == "attention")
    assert not op.causal and graph.constants[op.mask].min() * op.factor_of(WIDTH // 2) == pytest.approx(-1e4)


def test_what_a_rule_does_not_know_is_no_fault_of_pytorch(monkeypatch):
    def rule(recorder, call):
        return ()[0]

    monkeypatch.setitem(record.RULES, "tanh", rule)
    with pytest.raises(ProgramError, match=r"^Net: tanh of these arguments is not supported on the card; use one of"):
        trace(made(lambda n, x, t: torch.tanh(n.q(x))), LENGTH)


def test_a_module_without_a_gradient_in_pytorch_is_refused():
    net = made(lambda n, x, t: (y := torch.tanh(n.q(x))) * torch.tanh(y).add_(y.mul_(2.0)))
    with pytest.raises(ProgramError, match=r"^Net: its gradient fails in PyTorch \(one of the variables"):
        trace(net, LENGTH)


def test_a_module_of_torch_jit_is_refused():
    net = torch.jit.script(nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, TAGS)))
    with pytest.raises(ProgramError, match=r"is of torch\.jit, whose functions are not seen"):
        trace(net, LENGTH)


def test_the_check_leaves_the_module_as_it_was():
    net = made(lambda n, x, t: n.more(n.q(x)), lambda n: setattr(n, "more", nn.LayerNorm(WIDTH)))
    net.register_buffer("constant", torch.ones(3))
    before = {name: (tensor.data_ptr(), tensor.clone()) for name, tensor in net.state_dict().items()}
    state = torch.random.get_rng_state()
    trace(net, LENGTH)
    for name, tensor in net.state_dict().items():
        assert tensor.data_ptr() == before[name][0] and torch.equal(tensor, before[name][1])
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(p.grad is None for p in net.parameters())


class Causal(Base):
    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(WIDTH, classes)

    def encode(self, x, tokens):
        y = F.scaled_dot_product_attention(heads(self.q(x)), heads(x), heads(x), is_causal=True)
        return y.transpose(1, 2).flatten(2)


def test_the_task_is_said_where_it_cannot_be_known():
    model = trace(Causal(WORDS), LENGTH)
    assert model.tasks == ["language model"]
    assert str(model) == "Causal: language model (the next token); up to 12 of 20 tokens; 2,356 parameters"
    assert trace(Causal(TAGS), LENGTH).tasks == ["tagging"]
    assert trace(Causal(WORDS), LENGTH, task="tagging").tasks == ["tagging"]
    with pytest.raises(ProgramError, match="returns logits for tagging, not for classification"):
        trace(Causal(TAGS), LENGTH, task="classification")
    with pytest.raises(ProgramError, match="task is 'tags': choose classification, tagging, language model"):
        trace(Causal(TAGS), LENGTH, task="tags")
    with pytest.raises(ProgramError, match=r"sequence_length is tensor\(.*: it must be a number of tokens"):
        trace(Causal(TAGS), torch.zeros(1, LENGTH))


def with_row(net):
    net.more = nn.Parameter(torch.rand(WIDTH))


def with_table(net):
    net.more = nn.Parameter(torch.rand(LENGTH, WIDTH // 2), requires_grad=False)


def rotated(x, table):
    """Factors computed from a frozen table, as in RoFormer."""
    return x * torch.cat([table, table.cos()], -1)[: x.shape[1]].type_as(x)


COMPUTED = {
    "1 + w": (lambda n, x, t: n.q(x) * (1 + n.more), with_row),
    "numbers": (lambda n, x, t: n.q(x) * (-n.more * 3 + 2) / 2, with_row),
    "a number and a row": (lambda n, x, t: n.q(x) + (n.more - 0.5), with_row),
    "of a norm": (lambda n, x, t: F.rms_norm(n.q(x), (WIDTH,)) * (1 + n.more), with_row),
    "in a norm": (lambda n, x, t: F.layer_norm(n.q(x), (WIDTH,), 1 + n.more), with_row),
    "in a norm with a shift": (lambda n, x, t: F.layer_norm(n.q(x), (WIDTH,), 1 + n.more, n.table.weight[0]), with_row),
    "a frozen table": (lambda n, x, t: rotated(n.q(x), n.more), with_table),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_numbers_and_rows_and_functions_of_frozen_parameters(fast, name):
    encode, prepare = COMPUTED[name]
    model = trace(made(encode, prepare), LENGTH)
    check_gradients(fast, model, (2, 7, LENGTH), tolerance=2e-4, least=1 / 10)
    card, reference, samples = (
        open_trainer(model, "emulated"),
        ReferenceTrainer(model),
        some_samples(model, [5, 12] * 9),
    )
    card.load_parameters(model.parameters())
    losses = [
        trainer.train(samples, Optimizer("adamw"), 1e-2) for trainer in (card, reference)
    ]  # it decays w, not 1 + w
    assert np.abs(losses[0] - losses[1]).max() < 1e-3
    stored = card.store_parameters()
    assert stored.keys() == model.parameters().keys()
    if name == "a frozen table":
        assert np.array_equal(stored["more"], model.parameters()["more"])
        with pytest.raises(StateError, match="more is frozen, and the program has constants computed from its values"):
            card.load_parameters(stored | {"more": stored["more"] + 1})


@pytest.mark.parametrize(
    "encode",
    [
        lambda n, x, t: n.q(x) * n.more.exp(),
        lambda n, x, t: n.q(x) * (n.more + n.q.bias),
        lambda n, x, t: F.linear(x, 1 + n.q.weight),
        lambda n, x, t: F.linear(x, n.q.weight * n.q.weight),
        lambda n, x, t: F.linear(x, (n.q.weight + n.q.weight.T)[torch.arange(WIDTH).flip(0)]),
        lambda n, x, t: F.linear(x, (n.q.weight @ n.q.weight).exp()),
        lambda n, x, t: n.q(x) * (n.q.weight @ n.q.weight)[0],
        lambda n, x, t: n.q(x) + 2 * n.more,
        lambda n, x, t: F.layer_norm(n.q(x), (WIDTH,), n.more.exp()),
        lambda n, x, t: torch.cat([(1 + n.more).view(1, 1, WIDTH), n.q(x)], 1)[:, 1:],
    ],
)
def test_other_functions_of_trained_parameters_are_refused(encode):
    with pytest.raises(
        ProgramError, match=r"computed parameter, from (more|q\.bias|q\.weight)|that is a computed parameter"
    ):
        trace(made(encode, with_row), LENGTH)


def with_adapter(net):
    net.a, net.b = nn.Parameter(torch.randn(4, WIDTH) / 4), nn.Parameter(torch.randn(WIDTH, 4) / 4)


class Halved(nn.Module):
    def forward(self, w):
        return w * 0.5


def with_adapter_of_zeros(net):
    with_adapter(net)
    nn.init.zeros_(net.b)


def with_frozen_adapter(net):
    with_adapter(net)
    net.q.weight.requires_grad_(False)


MERGED = {
    "a merged LoRA": (lambda n, x, t: F.linear(x, n.q.weight + 0.5 * (n.b @ n.a), n.q.bias), with_frozen_adapter),
    "a LoRA of which all trains": (lambda n, x, t: F.linear(x, (n.b @ n.a) / 2 + n.q.weight, n.q.bias), with_adapter),
    "a difference": (lambda n, x, t: x @ (n.q.weight.T - (n.b @ n.a).T) + n.q.bias, with_adapter),
    "a product": (lambda n, x, t: F.linear(x, n.b @ n.a) + n.q(x), with_adapter),
    "alpha": (lambda n, x, t: F.linear(x, torch.add(n.q.weight, n.b @ n.a, alpha=-0.3), n.q.bias), with_adapter),
    "a LoRA before its first step, transposed": (lambda n, x, t: x @ (n.b @ n.a).T + n.q(x), with_adapter_of_zeros),
    "by einsum": (lambda n, x, t: torch.einsum("btd,ed->bte", x, n.b @ n.a) + n.q(x), with_adapter),
    "a number": (lambda n, x, t: F.linear(x, 2 * n.q.weight, n.q.bias), lambda net: None),
    "a number, transposed": (lambda n, x, t: x @ (-n.q.weight.T / 3) + n.q.bias, lambda net: None),
    "a parametrization": (
        lambda n, x, t: n.q(x),
        lambda net: torch.nn.utils.parametrize.register_parametrization(net.q, "weight", Halved()),
    ),
}


@pytest.mark.parametrize("name", MERGED)
def test_sums_and_products_of_matrices_train_as_in_pytorch(fast, name):
    encode, prepare = MERGED[name]
    check_gradients(fast, trace(made(encode, prepare), LENGTH), (2, LENGTH), tolerance=2e-4, least=1 / 10)


INSTEAD = {  # what is near a function of this kind
    "moves of elements": (
        lambda x: F.pad(x, (0, 0, 1, 0))[:, :-1],
        "pad is not .*; use slices and torch.cat of features",
    ),
    "a scatter": (
        lambda x: x.index_add(1, torch.arange(LENGTH), x),
        "index_add is not .*; use slices and torch.cat of",
    ),
    "a triangle": (lambda x: x.tril(), "tril is not .*; use a constant mask on the scores of attention"),
    "a choice": (lambda x: x.topk(WIDTH).values, "topk is not .*; use attention to choose .* neither sorts nor counts"),
    "a sort": (lambda x: x.sort(-1).values, "sort is not .* neither sorts nor counts"),
    "a largest": (
        lambda x: x - x.logsumexp(-1, keepdim=True),
        "logsumexp is not .*; use x.mean.1., x.:, 0., or attent",
    ),
    "a sum so far": (lambda x: x.cumsum(1), "cumsum is not .*; use attention with a causal mask"),
    "a transform": (
        lambda x: torch.fft.fftn(x).real,
        "fft_fftn is not .*; use nn.Linear over the features, or attention",
    ),
    "a decomposition": (
        lambda x: torch.linalg.svd(x)[2],
        "linalg_svd is not .*; use nn.Linear, matmul with a parameter",
    ),
    "a pool": (lambda x: F.avg_pool1d(x, 1), "avg_pool1d is not .*; use nn.Linear for each token, attention between"),
    "another norm": (
        lambda x: F.group_norm(x.mT, 2).mT,
        "group_norm over the tokens is not .*; use nn.LayerNorm or nn.RMSNorm",
    ),
    "two activations": (lambda x: torch.lerp(x, x.tanh(), 0.5), "lerp is not .*; use sums and products of two activat"),
    "one activation": (lambda x: x.round(), "round is not supported on the card; use gelu, relu, silu, .*mish"),
    "what no kind has": (
        lambda x: torch.special.zeta(x, 1.5),
        "zeta is not .*; use one of these: linear layers .*mish",
    ),
}


@pytest.mark.parametrize("kind", INSTEAD)
def test_a_refusal_says_what_is_near_for_the_kind_of_function(kind):
    function, message = INSTEAD[kind]
    with pytest.raises(ProgramError, match=rf"^Net: (\w*_)?{message}.*\(test_trace.py, line \d+\)$"):
        trace(made(lambda n, x, t: function(n.q(x))), LENGTH)


def test_the_functions_of_each_kind_are_pytorchs():
    known = {name for place in (torch, F, torch.Tensor, torch._C._linalg) for name in dir(place)}
    assert not [name for name in (*names.HINTS, *names.OF_ELEMENTS) if name not in known]


def test_of_expand_as_only_the_shape_counts():
    kinds = [op.kind for op in trace(made(lambda n, x, t: n.q(x).expand_as(x)), LENGTH).graph.operations]
    assert kinds == ["embedding", "dense", "classifier"]


transformers = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not here")


class Body(nn.Module):
    """Last hidden states of a model of transformers, and a head."""

    def __init__(self, body):
        super().__init__()
        self.body, self.head = body, nn.Linear(64, TAGS)

    def forward(self, tokens):
        return self.head(self.body(tokens).last_hidden_state)


def hugging_face(name: str) -> nn.Module:
    import transformers

    sizes = {
        "Bert": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128},
        "DistilBert": {"dim": 64, "n_layers": 2, "n_heads": 2, "hidden_dim": 128},
        "GPT2": {"n_embd": 64, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 1},
    }
    sizes["Albert"] = sizes["Bert"] | {"embedding_size": 64}
    sizes["Roberta"] = sizes["Bert"] | {"pad_token_id": 0}
    ends = {"bos_token_id": 1, "eos_token_id": 1}
    sizes["OPT"] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 128} | ends
    sizes["OPT"] |= {"word_embed_proj_dim": 64, "pad_token_id": 0}
    sizes["GPTNeo"] = {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "window_size": 4} | ends
    sizes["Llama"] = sizes["Bert"] | {"num_attention_heads": 4, "num_key_value_heads": 2} | ends
    sizes |= dict.fromkeys(("Qwen2", "Mistral", "Phi3"), sizes["Llama"] | {"pad_token_id": 0})
    sizes["Falcon"] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4} | ends  # one key head
    sizes["GPTNeoX"] = {**sizes["OPT"], "intermediate_size": 128, "num_attention_heads": 4}
    sizes["GPTNeo"] |= {"attention_types": [[["global", "local"], 1]]}
    sizes["Gemma"] = sizes["Llama"] | {"head_dim": 32, "num_key_value_heads": 1, "pad_token_id": 0}
    sizes["Gemma2"] = sizes["Gemma"] | {"attn_logit_softcapping": None, "query_pre_attn_scalar": 32}
    of_heads = {"head_dim": 16, "pad_token_id": 0}  # with a norm of each head
    sizes |= dict.fromkeys(("Qwen3", "Apertus"), sizes["Llama"] | of_heads)
    sizes["Apertus"] |= {"hidden_act": "silu"}  # its own has a parameter
    sizes["Gemma3Text"] = sizes["Qwen3"] | {"query_pre_attn_scalar": 16}
    sizes["RoFormer"] = sizes["Bert"] | {"max_position_embeddings": 32}
    more = {"add_pooling_layer": False} if "ert" in name and name not in ("DistilBert", "Apertus") else {}
    config = getattr(transformers, f"{name}Config")(vocab_size=40, **sizes[name])
    return Body(getattr(transformers, f"{name}Model")(config, **more)).eval()


ON_CARD = ("Bert", "DistilBert", "GPT2", "Albert", "Roberta", "OPT", "GPTNeo", "GPTNeoX")
ON_CARD += (
    "Llama",
    "Qwen2",
    "Mistral",
    "Phi3",
    "Falcon",
    "Gemma",
    "Gemma2",
    "RoFormer",
    "Qwen3",
    "Gemma3Text",
    "Apertus",
)
IN_SHORT = ("Bert", "GPT2", "Llama")


class Encoder(nn.Module):
    """PyTorch's encoder, with a padding mask and dropout that eval() turns off."""

    def __init__(self, norm_first=False):
        super().__init__()
        self.table, self.head = nn.Embedding(40, 64), nn.Linear(64, TAGS)
        layer = nn.TransformerEncoderLayer(64, 2, 128, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens):
        return self.head(self.encoder(self.table(tokens), src_key_padding_mask=tokens == 0))


PEOPLES = {
    **{
        name: pytest.param(
            lambda n=name: hugging_face(n), marks=[transformers, *([pytest.mark.long] if name not in IN_SHORT else [])]
        )
        for name in ON_CARD
    },
    "nn.TransformerEncoder": pytest.param(lambda: Encoder().eval()),
    "nn.TransformerEncoder, norms first": pytest.param(lambda: Encoder(norm_first=True).eval()),
}


@pytest.mark.parametrize("make", PEOPLES.values(), ids=PEOPLES)
def test_models_of_other_people_train_as_in_pytorch(fast, make):
    torch.manual_seed(0)
    check_gradients(fast, trace(make(), 16), (2, 16), tolerance=2e-4, least=1 / 10)


def of_cosines(x):
    q = F.normalize(heads(x), dim=-1)
    return ((10 * q @ q.mT).softmax(-1) @ heads(x)).transpose(1, 2).flatten(2)


NORMS = {
    "F.normalize": lambda x: F.normalize(x, dim=-1),
    "F.normalize of a function": lambda x: F.normalize(x.tanh(), dim=-1),
    "of heads": lambda x: F.normalize(heads(x), dim=-1).transpose(1, 2).flatten(2),
    "cosine attention": of_cosines,
    "ScaleNorm": lambda x: 3 * x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12),
    "of groups": lambda x: 2 * F.group_norm(x[0], 2)[None],
    "of the sample's deviation": lambda x: (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + 1e-3),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_of_length_1_and_of_heads_train_as_in_pytorch(fast, name):
    model = trace(made(lambda n, x, t: NORMS[name](n.q(x)) + 1), LENGTH)
    check_gradients(fast, model, (2, LENGTH), tolerance=2e-4, least=1 / 10)
    for parameter in (model.network.q.weight, model.network.q.bias):
        nn.init.zeros_(parameter)
    if name != "F.normalize of a function":  # a row of zeros; the table of tanh is off by 1e-9 there
        check_gradients(fast, model, (2,), tolerance=2e-4, least=1 / 10)


@pytest.mark.parametrize(
    ("norm", "message"),
    [
        (lambda x: x / x.norm(dim=-1, keepdim=True).clamp(min=1e-5), "this function of all features"),
        (lambda x: x / (x.norm(dim=-1, keepdim=True) + 1e-5), "this function of all features"),
        (lambda x: x / x.norm(1, -1, True), "this function of all features"),
        (lambda x: F.normalize(x, dim=-1, eps=1e-3), "normalize of dim -1, p 2 and eps 0.001 is .*dim=-1, p=2 and eps"),
        (lambda x: F.normalize(x, dim=1), "normalize of dim 1, p 2"),
    ],
)
def test_other_norms_are_refused(norm, message):
    with pytest.raises(ProgramError, match=rf"^Net: {message}.* .test_trace.py, line"):
        trace(made(lambda n, x, t: norm(n.q(x))), LENGTH)


class Narrow(Base):
    """Adapters whose widths fill no whole vectors: LoRA as layers and as products, and a bottleneck."""

    activation = F.gelu

    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Linear(WIDTH, 20), nn.Linear(20, WIDTH)
        self.a, self.b = nn.Parameter(torch.randn(WIDTH, 4) / 8), nn.Parameter(torch.randn(4, WIDTH) / 8)

    def encode(self, x, tokens):
        x = self.q(x) + (x @ self.a) @ self.b * 2
        return x + self.up(type(self).activation(self.down(x)))


class TwoExperts(Base):
    """A dense mixture of two experts: the softmax of two logits is the sigmoid of their difference."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, WIDTH)) for _ in range(2)
        )

    def encode(self, x, tokens):
        x = self.q(x)
        odds, (a, b) = self.gate(x).softmax(-1), (expert(x) for expert in self.experts)
        return x + odds[..., :1] * a + odds[..., 1:] * b


class TwoExpertsOnTheCard(TwoExperts):
    """The same, with the difference of the gate's rows spread to all features by a frozen matrix."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, 1)
        self.spread = nn.Parameter(torch.ones(WIDTH, 1), requires_grad=False)

    def encode(self, x, tokens):
        x = self.q(x)
        share = torch.sigmoid(F.linear(self.gate(x), self.spread))
        a, b = (expert(x) for expert in self.experts)
        return x + share * a + (1 - share) * b


def test_a_soft_gate_of_two_experts_trains_as_a_sigmoid(fast):
    soft, card = TwoExperts(), TwoExpertsOnTheCard()
    with torch.no_grad():
        card.gate.weight.copy_(soft.gate.weight[:1] - soft.gate.weight[1:])
        card.gate.bias.copy_(soft.gate.bias[:1] - soft.gate.bias[1:])
    card.load_state_dict({name: value for name, value in soft.state_dict().items() if "gate" not in name}, strict=False)
    tokens = torch.arange(1, 12)[None]
    torch.testing.assert_close(card(tokens), soft(tokens))
    check_gradients(fast, trace(card, LENGTH), (2, 7, LENGTH), tolerance=2e-4, least=1 / 10)
    with pytest.raises(ProgramError, match="softmax is not supported"):
        trace(soft, LENGTH)


def test_layers_between_may_have_any_width(fast, monkeypatch):
    model = trace(Narrow(), LENGTH)
    check_gradients(fast, model, (2, 7, LENGTH), tolerance=2e-4, least=1 / 10)
    card, reference = open_trainer(model, "emulated"), ReferenceTrainer(model)
    card.load_parameters(model.parameters())
    samples = some_samples(model, [5, 12, 7] * 20)
    losses = [trainer.train(samples, Optimizer("adamw"), 1e-2) for trainer in (card, reference)]
    assert np.abs(losses[0] - losses[1]).max() < 1e-3 and losses[0][-20:].mean() < losses[0][:20].mean()
    monkeypatch.setattr(Narrow, "activation", torch.sigmoid)
    with pytest.raises(ProgramError, match="sigmoid has 20 features: the card takes multiples of 16, and others betw"):
        compile(trace(Narrow(), LENGTH))


def padded(x, tokens, padding=0):
    shown = (tokens != padding).unsqueeze(-1).expand(x.shape).float()
    return torch.sum(x * shown, 1) / torch.clamp(shown.sum(1), min=1e-9)


MEANS = {
    "mean": lambda x, t: x.mean(1),
    "of what is no padding": padded,
    "sum by length": lambda x, t: x.sum(dim=-2, keepdim=True)[:, 0] / t.shape[1],
}


@pytest.mark.parametrize("name", MEANS)
def test_means_over_the_tokens_are_attention_of_equal_scores(fast, name):
    model = trace(made(lambda n, x, t: MEANS[name](n.q(x), t)), LENGTH)
    assert model.tasks == ["classification"]
    check_gradients(fast, model, (2, 7, LENGTH), tolerance=2e-4, least=1 / 10)


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        (lambda x: x.sum(1), r"output for 7 tokens differs .* a sum over the tokens \(use their mean, x.mean\(1\)\)"),
        (
            lambda x: x.mean(-1, keepdim=True).expand(x.shape),
            "this function of all features is not supported on the card",
        ),
        (lambda x: x.mean(-1)[..., None].expand(x.shape), "mean over other axes is not .*the mean over all tokens"),
        (lambda x: x[:, 1:].mean(1), "mean over other axes"),
        (lambda x: x[:, 3], r"rows 3 to 3 of the tokens is not supported on the card; use x\[:, 0\], x\[:, -1\], x"),
    ],
)
def test_other_means_are_refused(pool, message):
    with pytest.raises(ProgramError, match=message):
        trace(made(lambda n, x, t: pool(n.q(x))), LENGTH)


def test_the_page_has_the_table_of_the_code():
    spec = importlib.util.spec_from_file_location("module_table", ROOT / "tools" / "module_table.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    text = (ROOT / "docs" / "tensor.md").read_text()
    assert (
        tool.page(text) == text and "`scaled_dot_product_attention`" in text and "`TransformerEncoderLayer`" in text
    ), "run python tools/module_table.py"


@pytest.mark.parametrize(
    ("limit", "unseen"),
    [(5, []), (1e9, ["q", "constant of add"])],  # the check has layers of other sizes, and random values inside
    ids=["a limit that the check reaches", "one beyond"],
)
def test_the_model_names_operations_that_reached_no_output_in_the_check(limit, unseen):
    model = trace(made(lambda n, x, t: F.relu(n.q(x) - limit) + x), LENGTH)
    assert model.unseen == unseen


def test_keys_and_queries_of_a_token_that_sees_itself_alone_reach_no_output():
    mask = torch.full((LENGTH, LENGTH), -torch.inf).triu(1)
    net = made(lambda n, x, t: attend(n.q(x), x, lambda s: s + mask[: t.shape[1], : t.shape[1]]))
    net.head.register_forward_pre_hook(lambda head, x: (x[0][:, 0],))
    assert trace(net, LENGTH).unseen == ["q"]
