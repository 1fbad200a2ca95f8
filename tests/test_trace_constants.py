"""Constants that are computed from frozen parameters: biases of attention scores, weights, and what is not trained."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.trace import attention, record, rules, trace

from random_modules import RandomModule
from training_processor import check_gradients

WORDS, WIDTH, HEADS, LENGTH, BUCKETS = 12, 32, 2, 6, 8


class Net(nn.Module):
    """A table, a block and a head."""

    def __init__(self, block, has_bias=True):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.block, self.head = nn.Embedding(WORDS, WIDTH), block, nn.Linear(WIDTH, 5, bias=has_bias)

    def forward(self, tokens):
        return self.head(self.block(self.table(tokens)))


class Relative(nn.Module):
    """Attention with a bias for each head and distance, as T5 (a table) or Swin (rows of a parameter) has it."""

    def __init__(self, how, is_frozen):
        super().__init__()
        torch.manual_seed(1)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.bias, self.how = nn.Embedding(BUCKETS, HEADS), how
        self.bias.requires_grad_(not is_frozen)

    def forward(self, x):
        n = x.shape[1]
        q, k, v = (f(x).view(1, n, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        distance = torch.arange(n)[None, :] - torch.arange(n)[:, None] + BUCKETS // 2 - 1
        places = distance.clamp(0, BUCKETS - 1)
        if self.how == "rows":
            bias = self.bias.weight[places.view(-1)].view(n, n, HEADS).permute(2, 0, 1)
        else:
            bias = self.bias(places).permute(2, 0, 1).unsqueeze(0)
        if self.how == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        elif self.how == "baddbmm":
            y = torch.baddbmm(bias[0], q[0], k[0].mT, alpha=0.25).softmax(-1)[None] @ v
        else:
            y = (q @ k.mT * 0.25 + bias).softmax(-1) @ v
        return y.transpose(1, 2).reshape(1, n, WIDTH)


HOW = ("table", "rows", "sdpa", "baddbmm")


@pytest.mark.parametrize("how", HOW)
def test_a_frozen_bias_of_scores_is_a_constant(fast, how):
    model = trace(Net(Relative(how, is_frozen=True)), LENGTH, task="tagging")
    assert "block.bias.weight" in model.graph.folded
    check_gradients(fast, model, (3, LENGTH), tolerance=2e-4, least=1 / 10)


@pytest.mark.parametrize("how", HOW)
def test_a_learned_bias_of_scores_is_trained(fast, how):
    model = trace(Net(Relative(how, is_frozen=False)), LENGTH, task="tagging")
    assert "block.bias.weight" in model.parameter_shapes()
    check_gradients(fast, model, (3, LENGTH), tolerance=2e-4, least=1 / 10)


class Dora(nn.Module):
    """A weight of which the directions are a matrix with a product of low rank, and the sizes a parameter."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.w, self.size = nn.Parameter(torch.randn(WIDTH, WIDTH) / 6), nn.Parameter(torch.rand(WIDTH, 1) + 0.5)
        self.a, self.b = nn.Parameter(torch.randn(4, WIDTH) / 6), nn.Parameter(torch.randn(WIDTH, 4) / 6)

    def forward(self, x):
        w = self.w + self.b @ self.a
        return F.linear(x, self.size * w / w.norm(dim=1, keepdim=True))


COMPUTED = {
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH, bias=False)),
    "DoRA": Dora,
}


@pytest.mark.parametrize("name", COMPUTED)
def test_a_weight_that_is_computed_from_frozen_parameters_is_a_constant(fast, name):
    block = COMPUTED[name]().requires_grad_(False).eval()
    model = trace(Net(block).eval(), LENGTH, task="tagging")
    assert any(key.startswith("block.") for key in model.graph.folded)
    check_gradients(fast, model, (3, LENGTH), tolerance=2e-4, least=1 / 10)


def test_a_bias_is_trained_beside_a_constant_weight(fast):
    block = parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)).requires_grad_(False)
    block.bias.requires_grad_(True)
    check_gradients(fast, trace(Net(block), LENGTH, task="tagging"), (LENGTH,), tolerance=2e-4, least=1 / 10)


@pytest.mark.parametrize("name", COMPUTED)
def test_a_weight_that_is_computed_from_trained_parameters_is_refused_by_name(name):
    near = "frozen ones" if name == "DoRA" else "remove_parametrizations"
    with pytest.raises(ProgramError, match=rf"a computed parameter, from block\..*{near}.*line \d+\)$"):
        trace(Net(COMPUTED[name]().eval()).eval(), LENGTH, task="tagging")


class Scaled(nn.Module):
    """Cosine attention, whose scale is the exponential of a parameter."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        q = F.normalize(x, dim=-1)
        return (q @ q.mT * self.scale.clamp(max=4.6).exp()).softmax(-1) @ x


def test_the_exponential_of_a_frozen_parameter_is_a_constant(fast):
    model = trace(Net(Scaled().requires_grad_(False)), LENGTH, task="tagging")
    check_gradients(fast, model, (LENGTH,), tolerance=2e-4, least=1 / 10)
    with pytest.raises(ProgramError, match=r"a computed parameter, from block\.scale, .*line \d+\)$"):
        trace(Net(Scaled()), LENGTH, task="tagging")


class Temperature(Net):
    def forward(self, tokens):
        logits = super().forward(tokens) / 0.25
        return logits[:, 1:] if self.is_cut else logits


@pytest.mark.parametrize("is_cut", [False, True])
def test_logits_of_a_temperature(fast, is_cut):
    net = Temperature(nn.Linear(WIDTH, WIDTH), has_bias=False)
    net.is_cut = is_cut
    check_gradients(fast, trace(net, LENGTH, task="tagging"), (3, LENGTH), tolerance=2e-4, least=1 / 10)


def test_logits_with_a_bias_have_no_temperature():
    net = Temperature(nn.Linear(WIDTH, WIDTH))
    net.is_cut = False
    with pytest.raises(ProgramError, match=r"returns the output of div: return logits of an nn\.Linear layer"):
        trace(net, LENGTH, task="tagging")


class Limited(nn.Module):
    """Scores that are at least what hides a key."""

    def __init__(self, limit):
        super().__init__()
        self.limit, self.q = limit, nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        scores = self.q(x) @ x.mT + torch.full((x.shape[1],) * 2, -torch.inf).triu(1)
        return torch.max(scores, torch.tensor(self.limit)).softmax(-1) @ x


def test_a_limit_of_scores_that_hides_keys(fast):
    model = trace(Net(Limited(torch.finfo(torch.float32).min)), LENGTH, task="tagging")
    check_gradients(fast, model, (3, LENGTH), tolerance=2e-4, least=1 / 10)
    with pytest.raises(ProgramError, match=r"maximum of scores .*line \d+\)$"):
        trace(Net(Limited(-3.0)), LENGTH, task="tagging")


class Transposed(nn.Module):
    """Weights of attention, transposed, behind a function that is 0 for all values which the check of a trace meets."""

    def __init__(self):
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return F.relu((self.q(x) @ x.mT).softmax(-1).mT @ x - 1e6)


def test_transposed_weights_of_attention_are_refused_by_name_and_line():
    with pytest.raises(ProgramError, match=r"attention weights that are transposed or .*line \d+\)$"):
        trace(Net(Transposed()), LENGTH, task="tagging")


def test_the_check_compares_values_that_no_output_depends_on(monkeypatch):
    """A dead ReLU is behind the wrong recording."""
    monkeypatch.setattr(attention, "in_order", lambda index: True)
    with pytest.raises(ProgramError, match=r"a value inside \(test_trace_constants.py, line \d+\), .* was traced by"):
        trace(Net(Transposed()), LENGTH, task="tagging")


class Dead(nn.Module):
    """A function behind a ReLU that is 0 for all values which samples have."""

    def __init__(self, function, most=0.0):
        super().__init__()
        torch.manual_seed(1)
        self.before, self.w = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.function, self.most = function, most
        nn.init.constant_(self.before.bias, -1e6)

    def forward(self, x):
        return x + self.function(F.relu(self.before(x) - self.most), self.w)


def hooked(x, w):
    """x w, of which a hook changes the gradient."""
    y = x @ w
    if y.requires_grad:
        y.register_hook(lambda d: 2 * d)
    return y


PLANTED = {  # what is recorded wrongly, by a rule that is not PyTorch's
    "a weight": ("matmul", lambda x, w: x @ w, lambda r, call: rules.dense(r, call.result, *call.args, True)),
    "a sign": ("neg", lambda x, w: -x @ w, lambda r, call: r.value(call.args[0])),
    "a function": ("tanh", lambda x, w: torch.tanh(x) @ w, lambda r, call: r.value(call.args[0])),
}


@pytest.mark.parametrize("most", [0.0, 100.0], ids=["dead by its bias", "dead by a constant"])
@pytest.mark.parametrize("what", PLANTED)
def test_the_check_finds_a_wrong_recording_behind_a_dead_relu(monkeypatch, what, most):
    name, function, wrong = PLANTED[what]
    trace(Net(Dead(function, most)), LENGTH, task="tagging")
    monkeypatch.setitem(record.RULES, name, wrong)
    with pytest.raises(ProgramError, match="differs from what was traced"):
        trace(Net(Dead(function, most)), LENGTH, task="tagging")


def test_the_check_finds_a_hook_behind_a_dead_relu():
    with pytest.raises(ProgramError, match=r"the gradient of .* differs from what was traced"):
        trace(Net(Dead(hooked)), LENGTH, task="tagging")


@pytest.mark.parametrize("function", [F.silu, F.mish])
def test_silu_and_mish_are_0_far_below(fast, function):
    """What their tables leave there would be -1.5e-4, and the head makes 150 of it."""

    class Far(Net):
        def forward(self, tokens):
            return self.head(function(self.block(self.table(tokens))))

    net = Far(nn.Linear(WIDTH, WIDTH))
    with torch.no_grad():
        net.block.weight.zero_()
        net.block.bias.fill_(-1e4)
        net.head.weight.mul_(1e6)
    check_gradients(fast, trace(net, LENGTH, task="tagging"), (LENGTH,), tolerance=2e-4, least=1 / 10)


def test_the_check_replaces_no_values_in_a_checkpoint(fast):
    class Checkpointed(nn.Sequential):
        def forward(self, x):
            return F.relu(checkpoint(super().forward, x, use_reentrant=False))

    block = Checkpointed(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    model = trace(Net(block), LENGTH, task="tagging")
    check_gradients(fast, model, (3, LENGTH), tolerance=2e-4)


def test_random_values_inside_are_as_small_as_attention_needs():
    """The last token is attention, whose scores would be as large as what chooses the token."""
    trace(RandomModule(30658), LENGTH)


class Last(nn.Linear):
    def forward(self, x):
        return F.relu(super().forward(x))[:, -1]


@pytest.mark.parametrize("size", [1.0, 1e3])
def test_the_last_token_is_chosen_whatever_the_size_of_activations(fast, size):
    net = Net(Last(WIDTH, WIDTH))
    with torch.no_grad():
        net.block.weight.mul_(size)
        net.head.weight.mul_(1 / size)
    check_gradients(fast, trace(net, LENGTH), (2, LENGTH), tolerance=2e-4)


@pytest.mark.parametrize("block", [lambda s, m: -(s + m), lambda s, m: m - s, lambda s, m: (s - m) * -0.3])
def test_scores_with_a_finite_mask_times_a_negative_number(fast, block):
    def attention(x):
        distance = (torch.arange(x.shape[1])[None, :] - torch.arange(x.shape[1])[:, None]).abs()
        return block(x @ x.mT * 0.2, -0.7 * distance).softmax(-1) @ x

    check_gradients(fast, trace(Net(attention), LENGTH, task="tagging"), (3, LENGTH), tolerance=2e-4)
    with pytest.raises(ProgramError, match=r"a factor of -2 for scores with a mask that hides keys .*line \d+\)$"):
        trace(Net(lambda x: (torch.full((x.shape[1],) * 2, -1e9).triu(1) + x @ x.mT).mul(-2).softmax(-1) @ x), LENGTH)


@pytest.mark.parametrize("value", [-math.inf, torch.finfo(torch.float32).min])
def test_a_mask_hides_keys_below_any_score(fast, value):
    def block(x):
        q = F.relu(4e5 * x)  # the score of a hidden key may be above that of others by 1e12
        mask = torch.full((x.shape[1],) * 2, value).triu(1)
        return (-(q @ q.mT) + mask).softmax(-1) @ x

    check_gradients(fast, trace(Net(block), LENGTH, task="tagging"), (3, LENGTH), tolerance=2e-3)


class OwnTable(nn.Module):
    """A table of tokens that says neither its size nor that it is an embedding."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WORDS, WIDTH))

    def forward(self, tokens):
        return F.embedding(tokens, weight=self.weight)


class Padded(Net):
    """Positions that count from padding on, as those of RoBERTa."""

    def __init__(self):
        super().__init__(nn.Linear(WIDTH, WIDTH))
        self.table, self.positions = OwnTable(), nn.Embedding(LENGTH + 1, WIDTH, padding_idx=0)
        self.positions.num_embeddings = 0  # as of a class of its own

    def forward(self, tokens):
        is_word = (tokens != 0).long()
        return self.head(self.block(self.table(tokens) + self.positions(is_word.cumsum(1) * is_word)))


def test_tables_of_tokens_without_num_embeddings_are_seen(fast):
    check_gradients(fast, trace(Padded(), LENGTH, task="tagging"), (3, LENGTH), tolerance=2e-4)


def test_arguments_have_the_names_of_numpy_too(fast):
    def norm(x):
        d = x - x.mean(axis=2, keepdims=True)
        return d / torch.sqrt((d * d).mean(axis=-1, keepdim=True) + 1e-5)

    check_gradients(fast, trace(Net(norm), LENGTH, task="tagging"), (3, LENGTH), tolerance=2e-4)
    with pytest.raises(ProgramError, match="softmax is not supported"):
        trace(Net(lambda x: (x @ x.mT).softmax(axis=-2) @ x), LENGTH, task="tagging")
