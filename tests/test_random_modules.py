"""Modules at random train as in PyTorch, or are refused in one line: none is accepted and wrong."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.functions import ACTIVATIONS, constant
from bttlab.compiler.graph import Graph
from bttlab.compiler.layer import compile_graph
from bttlab.compiler.trace import trace

from random_modules import judge
from training_processor import check_gradients

FIRST = 60  # seeds of the short test; `python tests/helpers/random_modules.py 0 10000` judges ten thousand


@pytest.mark.parametrize("part", range(6))
def test_none_is_accepted_and_wrong(fast, part):
    verdicts = [judge(fast, seed) for seed in range(part * FIRST // 6, (part + 1) * FIRST // 6)]
    assert not [str(v) for v in verdicts if v.kind not in ("right", "refused", "reported")]


def test_some_are_accepted_and_some_refused(fast):
    kinds = {judge(fast, seed).kind for seed in range(8)}
    assert {"right", "refused"} <= kinds


def test_the_judge_finds_a_wrong_gradient(fast, monkeypatch):
    for name, activation in ACTIVATIONS.items():
        monkeypatch.setitem(ACTIVATIONS, name, replace(activation, slope=constant(0.9)))
    verdicts = [judge(fast, seed) for seed in range(20)]
    assert any(v.kind == "silent" and "gradient of" in v.message for v in verdicts)


class Scaled(nn.Module):
    """Attention of one head, with a scale below 0."""

    def __init__(self, mask):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.q, self.head, self.mask = nn.Embedding(12, 48), nn.Linear(48, 48), nn.Linear(48, 5), mask

    def forward(self, tokens):
        x = self.table(tokens)
        scores = -0.5 * (self.q(x) @ x.mT)
        if self.mask:
            scores = scores + torch.ones(scores.shape[-2:]).triu(1) * self.mask
        return self.head(scores.softmax(-1) @ x)


@pytest.mark.parametrize("mask", [0.0, -1e9, -3.0])
def test_attention_of_a_scale_below_0(fast, mask):
    check_gradients(fast, trace(Scaled(mask), 6, task="tagging"), (2, 6), tolerance=2e-4, least=1 / 10)


def test_the_operation_takes_no_scale_below_0():
    graph = Graph({}, 6, 6)
    x = graph.input("x", 16)
    graph.output(graph.attention(x, x, x, 1, "scores", scale=-0.5), "y")
    with pytest.raises(ProgramError, match=r"scores has the scale -0\.5: it must not be below 0"):
        compile_graph(graph)
