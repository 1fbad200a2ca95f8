"""The shortest and the longest samples of each kind of model; one of one token is refused."""

import numpy as np
import pytest
import torch
from torch import nn

from bttlab.card import open_trainer
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.trace import trace
from bttlab.data import Samples
from bttlab.model import Optimizer
from bttlab.util.errors import BttlabError

from training_processor import check_gradients

WORDS, WIDTH, LABELS = 20, 32, 5


class Net(nn.Module):
    """A table, what `make` adds, and a head; a label for each token, or for the sample if `pool` gives one row."""

    def __init__(self, make, body, pool=lambda x, tokens: x):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, LABELS)
        make(self)
        self.body, self.pool = body, pool

    def forward(self, tokens):
        return self.head(self.pool(self.body(self, self.table(tokens)), tokens))


def with_layers(*names):
    def make(net):
        for name in names:
            net.add_module(name, nn.Linear(WIDTH, WIDTH))

    return make


def with_attention(net):
    net.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)


def heads(x):
    return x.unflatten(-1, (2, WIDTH // 2)).transpose(1, 2)


def attended(net, x, bias=0.0):
    q, k = heads(net.q(x)), heads(net.k(x))
    return ((q @ k.mT / 4 + bias).softmax(-1) @ heads(x)).transpose(1, 2).flatten(2)


def with_distances(net):
    with_layers("q", "k")(net)
    net.distances = nn.Embedding(64, 2)


def by_distance(net, x):
    places = torch.arange(x.shape[1])
    return attended(net, x, net.distances(places - places[:, None] + 32).permute(2, 0, 1))


def causal(net, x):
    return attended(net, x, torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1))


def with_norms(net):
    net.norm, net.rms, net.layer = nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
    net.of_head = nn.LayerNorm(WIDTH // 2)


def normed(net, x):
    return net.rms(net.of_head(net.layer(net.norm(x)).unflatten(-1, (2, -1))).flatten(2) + x)


def with_positions(net):
    net.positions, net.first = nn.Embedding(40, WIDTH), nn.Parameter(torch.randn(1, 1, WIDTH))
    net.norm = nn.LayerNorm(WIDTH)


def in_front(net, x):
    return net.norm(torch.cat([net.first, x], 1))[:, 1:] + net.positions.weight[0]


def mean_of_words(x, tokens):
    is_word = (tokens != 0).float().unsqueeze(-1)
    return (x * is_word).sum(1) / is_word.sum(1)


KINDS = {
    "attention": (with_layers("q", "k"), attended),
    "causal attention": (with_layers("q", "k"), causal),
    "attention of torch": (with_attention, lambda net, x: x + net.attention(x, x, x)[0]),
    "a bias of scores by distance": (with_distances, by_distance),
    "norms": (with_norms, normed),
    "positions": (with_positions, lambda net, x: net.norm(x + net.positions(torch.arange(x.shape[1])) + net.first)),
    "a row in front": (with_positions, in_front),
    "the token before": (with_layers("q"), lambda net, x: net.q(torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1))),
    "the first token": (with_layers("q"), lambda net, x: torch.tanh(net.q(x)), lambda x, tokens: x[:, 0]),
    "the last token": (with_layers("q"), lambda net, x: torch.tanh(net.q(x)), lambda x, tokens: x[:, -1]),
    "the mean": (with_layers("q", "k"), attended, lambda x, tokens: x.mean(1)),
    "the mean of words": (with_layers("q"), lambda net, x: net.q(x), mean_of_words),
}  # fmt: skip


# Of two tokens, those before the last are one row, as the first token alone is.
SIZES = [(kind, longest) for kind in KINDS for longest in (2, 3, 20) if (kind, longest) != ("the token before", 2)]


@pytest.mark.parametrize(("kind", "longest"), SIZES)
def test_the_shortest_and_the_longest_samples_train_as_in_pytorch(fast, kind, longest):
    check_gradients(fast, trace(Net(*KINDS[kind]), longest), sorted({2, longest}), 2e-4, least=1 / 10)


def test_a_sample_of_one_token_is_refused_before_anything_is_sent():
    net = Net(*KINDS["the first token"])
    with pytest.raises(ProgramError, match=r"sequence_length is 1: .* at least 2: a first token and a word"):
        trace(net, 1)
    model = trace(net, 4)
    card, before = open_trainer(model, "emulated"), model.parameters()
    card.load_parameters(before)
    tokens = np.array([[3, 4, 0, 0], [3, 0, 0, 0]], np.int32)
    samples = Samples(tokens, np.array([2, 1], np.int32), np.zeros(2, np.int32), np.zeros_like(tokens))
    for call in (lambda: card.train(samples, Optimizer("sgd"), 0.1), lambda: card.predict(samples)):
        with pytest.raises(BttlabError, match="sample 1: length 1: it must be at least 2"):
            call()
    assert all(value.tobytes() == before[name].tobytes() for name, value in card.store_parameters().items())
