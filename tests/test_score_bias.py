"""A learned bias of attention scores: its values and its gradient on the emulated card, for tables of many shapes."""

from pathlib import Path

import pytest
import torch
from torch import nn

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.graph import HIDES
from bttlab.compiler.hazards import check_program
from bttlab.compiler.ops.score_bias import ScoreBias, most_rows
from bttlab.compiler.program import compile
from bttlab.compiler.trace import trace
from test_trace_constants import HEADS, WIDTH, Net

from training_processor import check_gradients


class Biased(nn.Module):
    """Layers of attention with biases of their scores, of the distance of two tokens."""

    def __init__(self, rows=9, layers=1, is_transposed=False, is_causal=False, scale=0.25, shift=0.0, tables=1):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3)) for _ in range(layers))
        shape = (HEADS, rows) if is_transposed else (rows, HEADS)
        self.biases = nn.ParameterList(nn.Parameter(torch.randn(shape)) for _ in range(tables))
        self.rows, self.is_transposed, self.is_causal = rows, is_transposed, is_causal
        self.scale, self.shift = scale, shift

    def bias(self, table, n):
        distance = (torch.arange(n)[None, :] - torch.arange(n)[:, None] + self.rows // 2).clamp(0, self.rows - 1)
        if self.is_transposed:
            return table[:, distance.view(-1)].view(HEADS, n, n) + self.shift
        return table[distance.view(-1)].view(n, n, HEADS).permute(2, 0, 1) + self.shift

    def forward(self, x):
        n = x.shape[1]
        for layer in self.layers:
            q, k, v = (f(x).view(1, n, HEADS, -1).transpose(1, 2) for f in layer)
            scores = q @ k.mT * self.scale
            for table in self.biases:
                scores = scores + self.bias(table, n)
            if self.is_causal:
                scores = scores + torch.full((n, n), -torch.inf).triu(1)
            x = (scores.softmax(-1) @ v).transpose(1, 2).reshape(1, n, WIDTH)
        return x


CASES = {
    "one vector of rows": ({}, 6, (3, 6)),
    "rows of three passes": ({"rows": 35}, 6, (2, 6)),
    "two blocks of keys": ({"rows": 35}, 20, (3, 16, 17, 20)),
    "four blocks of keys": ({"rows": 50}, 50, (2, 33, 50)),
    "a table of heads": ({"is_transposed": True, "rows": 12}, 18, (3, 18)),
    "a causal mask": ({"is_causal": True}, 18, (3, 18)),
    "three layers": ({"layers": 3}, 20, (3, 20)),
    "two tables": ({"tables": 2}, 18, (3, 18)),
    "a negative scale": ({"scale": -0.3}, 6, (3, 6)),
    "a number plus the table": ({"shift": 0.5}, 6, (3, 6)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_learned_bias_has_pytorchs_gradient(fast, case):
    options, most, lengths = CASES[case]
    model = trace(Net(Biased(**options)), most, task="tagging")
    made = [op for op in model.graph.operations if isinstance(op, ScoreBias)]
    assert len(made) == options.get("tables", 1)  # layers share it
    program = check_gradients(fast, model, lengths, tolerance=2e-4, least=1 / 10)
    assert check_program(program, lengths) == []


def test_layers_with_other_scales_share_a_table(fast):
    layers = nn.Sequential(Biased(rows=35), Biased(rows=35, scale=0.7))
    layers[1].biases = layers[0].biases
    model = trace(Net(layers), 20, task="tagging")
    assert sum(isinstance(op, ScoreBias) for op in model.graph.operations) == 2  # a factor of the table for each
    program = check_gradients(fast, model, (3, 20), tolerance=2e-4, least=1 / 10)
    assert check_program(program, (3, 20)) == []


def test_a_bias_beside_a_mask_hides_keys():
    model = trace(Net(Biased(is_causal=True)), 6, task="tagging")
    (op,) = (op for op in model.graph.operations if isinstance(op, ScoreBias))
    mask = model.graph.constants[op.mask].reshape(6, HEADS, -1)[..., :6]
    assert ((mask <= 0.9 * HIDES) == torch.ones(6, 6, dtype=torch.bool).triu(1).numpy()[:, None]).all()


def test_a_bias_with_too_many_rows_names_the_most():
    model = trace(Net(Biased(rows=1000)), 20, task="tagging")
    with pytest.raises(ProgramError, match=r"the bias of scores of block\.biases\.0 has 1000 rows for 20 tokens.*400"):
        compile(model)


def test_the_docs_have_the_most_rows():
    text = Path("docs/tensor.md").read_text()
    assert f"up to {most_rows(32)} rows for samples of 32 tokens, and up to {most_rows(48)} for 48" in text


def test_a_bias_of_other_elements_is_refused_by_name():
    class OfQuery(Biased):
        def bias(self, table, n):
            return table[:n].T[:, :, None].expand(HEADS, n, n) + table[:n].T.flip(0)[:, None, :]

    with pytest.raises(ProgramError, match=r"block\.biases\.0"):
        trace(Net(OfQuery()), 6, task="tagging")
