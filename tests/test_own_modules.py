"""A user's own module on the emulated card: it trains as with torch.optim, or is refused in one clear line."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bttlab.card import open_trainer
from bttlab.compiler.trace import trace
from bttlab.model import Optimizer
from bttlab.tensor import TTLinear

from training_processor import some_samples

WORDS, WIDTH, LABELS, LENGTH = 40, 32, 7, 12


class Own(nn.Module):
    """A table, a layer and a head; `forward` tags each token unless a subclass returns something else."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.layer = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, LABELS)
        self.make()

    def make(self):
        pass

    def body(self, x):
        return x + self.layer(x)

    def forward(self, tokens):
        return self.head(self.body(self.table(tokens)))


def trained_in_pytorch(net, samples, learning_rate):
    """Return the parameters after a step of SGD for each sample."""
    net = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), learning_rate)
    for i, length in enumerate(samples.lengths):
        optimizer.zero_grad()
        outputs = net(torch.from_numpy(samples.tokens[i : i + 1, :length]).long())
        outputs = [outputs] if isinstance(outputs, torch.Tensor) else outputs
        loss = 0.0
        for logits in outputs:
            labels = samples.intents[i : i + 1] if logits.ndim == 2 else samples.slots[i, 1:length]
            rows = logits if logits.ndim == 2 else logits[0, 1 - length :]
            loss = loss + F.cross_entropy(rows, torch.from_numpy(labels).long())
        loss.backward()
        optimizer.step()
    return {name: p.detach().numpy() for name, p in net.named_parameters()}


class LayerTwice(Own):
    def body(self, x):
        return x + self.layer(torch.tanh(self.layer(x)))


class TrainTwice(Own):
    def make(self):
        self.layer = TTLinear(WIDTH, WIDTH, (4, 8), (8, 4), 4)

    def body(self, x):
        return self.layer(x + self.layer(x))


class HeadTwice(Own):
    def forward(self, tokens):
        x = self.body(self.table(tokens))
        return self.head(x[:, 0]), self.head(x[:, 1:])


@pytest.mark.parametrize("module", [LayerTwice, TrainTwice, HeadTwice])
def test_parameters_with_two_uses_train_on_the_card_as_in_pytorch(module):
    model = trace(module(), LENGTH)
    samples = some_samples(model, [7, 2, 12, 3])
    card = open_trainer(model, "emulated")
    card.load_parameters(model.parameters())
    card.train(samples, Optimizer("sgd"), 0.1)
    wanted, found = trained_in_pytorch(model.network, samples, 0.1), card.store_parameters()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)
