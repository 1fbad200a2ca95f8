"""Modules at random train as in PyTorch, or are refused in one line: none is accepted and wrong."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.functions import ACTIVATIONS, ASYMPTOTE, constant
from bttlab.compiler.graph import Graph
from bttlab.compiler.layer import compile_graph
from bttlab.compiler.trace import trace

from random_modules import error_of, judge
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


# Tanh saturated, where its table is off by 3e-8 and the factor before it is large (9566, 21281); attention of equal or
# certain keys, whose gradients cancel but for rounding (6922, 9529); attention weights that are transposed (6541).
SETTLED = {9566: "right", 21281: "right", 6922: "right", 9529: "right", 6541: "refused"}


@pytest.mark.parametrize("seed", SETTLED)
def test_the_judge_knows_what_tables_and_rounding_do(fast, seed):
    verdict = judge(fast, seed)
    assert verdict.kind == SETTLED[seed], str(verdict)


def test_a_wrong_table_is_not_excused():
    x = torch.linspace(-20, 20, 4001, dtype=torch.float64)
    for activation in ACTIVATIONS.values():
        for table in (activation.function, activation.slope):
            assert error_of(table, x).abs().max() <= ASYMPTOTE
    sigmoid = ACTIVATIONS["sigmoid"].function
    wrong = replace(sigmoid, exact=lambda x: sigmoid.exact(x) + 0.1 * (x > 18), outside="not used")
    assert error_of(wrong, x).abs().max() == ASYMPTOTE


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
