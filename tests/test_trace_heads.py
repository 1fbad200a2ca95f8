"""A norm of each head: as in PyTorch, or refused in a line that names the place."""

import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.hazards import check_program
from bttlab.compiler.program import compile
from bttlab.compiler.timing import time_program
from bttlab.compiler.trace import trace

from conftest import ROOT
from training_processor import check_gradients

PAGE = ROOT / "docs" / "tensor.md"
TOLERANCE = {"tolerance": 2e-4, "least": 1 / 10}


def rms(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def layer_norm(x):
    x = x - x.mean(-1, keepdim=True)
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()


NORMS = {  # the layer that has the parameters of a head, and what is computed with them
    "RMSNorm": (nn.RMSNorm, lambda norm, x: norm(x)),
    "LayerNorm": (nn.LayerNorm, lambda norm, x: norm(x)),
    "RMSNorm, written": (nn.RMSNorm, lambda norm, x: norm.weight * rms(x)),
    "LayerNorm, written": (nn.LayerNorm, lambda norm, x: layer_norm(x) * norm.weight + norm.bias),
    "1 + weight": (nn.RMSNorm, lambda norm, x: rms(x) * (1 + norm.weight)),
    "without a scale": (None, lambda norm, x: rms(x)),
    "a factor and a shift": (nn.LayerNorm, lambda norm, x: torch.tanh(x * norm.weight + norm.bias)),
    "a shift alone": (nn.LayerNorm, lambda norm, x: norm(x) + norm.bias),
}


class Heads(nn.Module):
    """Attention whose queries and keys have a norm of each head, before or after the heads are transposed."""

    def __init__(self, norm="RMSNorm", heads=2, size=16, is_after=False, layers=1, width=32):
        super().__init__()
        torch.manual_seed(0)
        layer, self.compute = NORMS.get(norm, (None, norm))
        self.heads, self.is_after = heads, is_after
        self.table, self.head = nn.Embedding(20, width), nn.Linear(width, 5)
        self.layers = nn.ModuleList(
            nn.ModuleList([*(nn.Linear(width, heads * size) for _ in range(3)), nn.Linear(heads * size, width)])
            for _ in range(layers)
        )
        self.norm = None if layer is None else layer(size)
        for parameter in () if layer is None else self.norm.parameters():
            nn.init.normal_(parameter, 1.0, 0.3)

    def forward(self, tokens):
        x = self.table(tokens)
        for *layers, out in self.layers:
            q, k, v = (layer(x).view(*x.shape[:2], self.heads, -1) for layer in layers)
            if self.is_after:
                q, k, v = (y.transpose(1, 2) for y in (q, k, v))
            q, k = (self.compute(self.norm, y) for y in (q, k))
            if not self.is_after:
                q, k, v = (y.transpose(1, 2) for y in (q, k, v))
            x = x + out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return self.head(x)


@pytest.mark.parametrize("is_after", (False, True), ids=("before", "after"))
@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_of_each_head_trains_as_in_pytorch(fast, norm, is_after):
    """Before and after the heads are transposed; its parameters, which q and k share, have the features of a head."""
    model = trace(Heads(norm, is_after=is_after), 12)
    assert all(op.heads == 2 for op in model.graph.operations if op.kind == "norm")
    check_gradients(fast, model, (2, 12), **TOLERANCE)


@pytest.mark.parametrize("heads, size, tokens", [(3, 32, 3), (6, 16, 64), (12, 64, 32)])
def test_heads_are_norms_of_as_many_rows_as_the_vector_unit_has_accumulators(fast, heads, size, tokens):
    model = trace(Heads(heads=heads, size=size), tokens)
    program = check_gradients(fast, model, (2, tokens), **TOLERANCE)
    parts = sum(i.label[:2] == ("FP", "norm") for i in program.forward) / 3  # of three instructions each
    assert parts == -(-heads * tokens // 256)
    assert not check_program(program, (2, min(tokens, 20)))


def test_statistics_of_heads_are_not_kept_for_the_backward_pass(fast):
    """Those of all layers would take more than the 2,048 rows that there are."""
    model = trace(Heads(heads=6, layers=3), 64)
    check_gradients(fast, model, (64,), **TOLERANCE)


def test_twelve_heads_cost_what_the_page_says():
    counts, cycles = [], []
    for norm in ("RMSNorm", lambda norm, x: x):
        program = compile(trace(Heads(norm, heads=12, size=64), 32))
        counts.append(sum(map(len, program.sections)))
        cycles.append(int(time_program(program.sample, np.array([13])).cycles[0]))
    said = re.search(r"heads of 64, .* take (\d+) instructions .* (\d) % of\s+the cycles", PAGE.read_text(), re.S)
    assert int(said[1]) == counts[0] - counts[1]
    assert cycles[0] / cycles[1] - 1 == pytest.approx(int(said[2]) / 100, abs=0.01)


REFUSED = {
    "heads of 8 features": (
        lambda norm, x: F.rms_norm(x.unflatten(-1, (2, 8)), (8,)).flatten(-2),
        r"^Heads: norm over 8 features of a token is not .*; use heads of a multiple of 16 features \(test_trace_heads",
    ),
    "two axes": (
        lambda norm, x: F.layer_norm(x, x.shape[-2:]),
        "^Heads: norm over several axes is not supported on the card; use nn.LayerNorm.features., or that of a head's",
    ),
    "the mean of the heads": (
        lambda norm, x: x - x.mean(-2, keepdim=True),
        "^Heads: mean over other axes is not supported on the card",
    ),
    "a norm without its axis": (
        lambda norm, x: x * x.square().mean(-1).rsqrt()[..., None],
        "^Heads: mean over other axes is not supported on the card",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_norms_are_refused(name):
    norm, message = REFUSED[name]
    with pytest.raises(ProgramError, match=message):
        trace(Heads(norm), 12)


class Interleaved(nn.Module):
    """Queries, keys and values that one layer computes, head by head, with a row of a parameter for the queries."""

    def __init__(self, operation, rows=1, is_moved=False):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.all, self.head = nn.Embedding(20, 32), nn.Linear(32, 96, bias=False), nn.Linear(32, 5)
        self.row, self.operation, self.is_moved = nn.Parameter(torch.randn(rows, 32)), operation, is_moved

    def forward(self, tokens):
        x = self.table(tokens)
        q, k, v = self.all(x).unflatten(-1, (2, 48)).transpose(1, 2).chunk(3, -1)
        row = self.row[-1].view(1, 1, 2, 16).transpose(1, 2)
        q = self.operation(q, row.flip(-1) if self.is_moved else row)
        return self.head(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("operation", [torch.add, torch.mul, lambda x, row: x * (1 + row), lambda x, row: row + x])
def test_rows_of_parameters_are_for_interleaved_heads(fast, operation, rows):
    model = trace(Interleaved(operation, rows), 6, task="tagging")
    check_gradients(fast, model, (3, 6), **TOLERANCE)


def test_a_row_in_another_order_than_the_features_is_of_their_columns(fast):
    check_gradients(fast, trace(Interleaved(torch.add, is_moved=True), 6, task="tagging"), (3, 6), **TOLERANCE)


def test_rows_that_differ_by_token_are_refused_for_interleaved_heads():
    def of_tokens(x, row):
        return x + row[..., :1, :].expand(-1, -1, x.shape[-2], -1).cumsum(-2)

    with pytest.raises(ProgramError, match=r"line \d+\)$"):
        trace(Interleaved(of_tokens), 6, task="tagging")


@pytest.mark.parametrize("limit", [1e-12, 1e-6, 1.0, 1e6, 1e10, 1e15])
@pytest.mark.parametrize("compute", [rms, layer_norm])
def test_a_limit_inside_of_a_norm_is_seen_whatever_its_size(compute, limit):
    def limited(norm, x):
        return compute(x.clamp(-limit, limit)) * norm.weight

    NORMS["limited"] = nn.RMSNorm, limited
    try:
        model = Heads("limited")
    finally:
        del NORMS["limited"]
    with pytest.raises(ProgramError, match=r"function of all features|a norm"):
        trace(model, 6, task="tagging")
