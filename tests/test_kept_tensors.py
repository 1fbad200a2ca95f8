"""Tensors that a module keeps from call to call have its own precision after a trace."""

import functools

import numpy as np
import pytest
import torch
from torch import nn

from bttlab.card import open_trainer
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.trace import trace
from bttlab.model import Optimizer, ReferenceTrainer

from training_processor import some_samples

WORDS, WIDTH, LABELS, LENGTH = 40, 32, 7, 8
KEPT = {}


@functools.lru_cache
def positions(length):
    return torch.arange(length)[:, None] * torch.linspace(0, 0.1, WIDTH)


class Memoized(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.f, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, LABELS)
        self.kept, self.row = {}, None
        positions.cache_clear()

    def constant(self, n):
        return positions(n)

    def forward(self, tokens):
        return self.head(self.f(self.table(tokens) + self.constant(tokens.shape[1])).mean(1))


class ByLength(Memoized):
    def constant(self, n):
        if n not in self.kept:
            self.kept[n] = torch.arange(n).mul(0.1).unsqueeze(1) * torch.ones(WIDTH), torch.eye(n).sum(0)
        return self.kept[n][0]


class OfGlobal(Memoized):
    def constant(self, n):
        if n not in KEPT:
            KEPT[n] = torch.arange(n)[:, None] * 0.1
        return KEPT[n]


class Attribute(Memoized):
    def constant(self, n):
        if self.row is None or len(self.row) < n:
            self.row = torch.arange(LENGTH).mul(0.1).float()[:, None].expand(LENGTH, WIDTH)
        return self.row[:n]


class Split(Memoized):
    def constant(self, n):
        if n not in self.kept:
            self.kept[n] = torch.cat([torch.ones(n), torch.arange(n) * 0.1]).unsqueeze(1).chunk(2)
        return self.kept[n][1]


class Refused(ByLength):
    def forward(self, tokens):
        n = tokens.shape[1]
        return self.head((self.f(self.table(tokens) + self.constant(n)) * n).mean(1))


@pytest.mark.parametrize("kind", [Memoized, ByLength, OfGlobal, Attribute, Split])
def test_a_module_that_keeps_tensors_works_after_its_trace(kind):
    net = kind()
    model = trace(net, LENGTH)
    samples = some_samples(model, [8, 3, 5, 2])
    trainer, card = ReferenceTrainer(model), open_trainer(model)
    card.load_parameters(model.parameters())
    losses = [x.train(samples, Optimizer("sgd"), 0.1) for x in (trainer, card)]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    for length in range(1, LENGTH + 1):
        tokens = torch.ones((1, length), dtype=torch.long)
        outputs = net(tokens)
        assert outputs.dtype is torch.float32
        positions.cache_clear()
        torch.testing.assert_close(outputs, kind()(tokens))


def test_a_module_that_is_refused_works_too():
    net = Refused()
    with pytest.raises(ProgramError, match="depends on the length"):
        trace(net, LENGTH)
    for length in range(1, LENGTH + 1):
        assert net(torch.ones((1, length), dtype=torch.long)).dtype is torch.float32


def test_a_tensor_that_is_asked_for_in_double_precision_keeps_it():
    class Exact(Memoized):
        def constant(self, n):
            if n not in self.kept:
                self.kept[n] = torch.arange(n, dtype=torch.float64)[:, None]
            return self.kept[n].float()

    net = Exact()
    trace(net, LENGTH)
    assert all(x.dtype is torch.float64 for x in net.kept.values() if x.ndim == 1) and net.kept


def test_a_module_in_double_precision_keeps_what_it_computes():
    net = ByLength().double()
    trace(net, LENGTH)
    assert net(torch.ones((1, 5), dtype=torch.long)).dtype is torch.float64
