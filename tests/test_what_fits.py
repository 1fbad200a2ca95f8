"""What a refusal of a model that is too large says has space: ranks, layers, tokens, frozen parts."""

import importlib.util
import re

import pytest
import torch
from torch import nn

from bttlab.compiler import lowering
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.machine import M
from bttlab.compiler.memory.banks import Assignment
from bttlab.compiler.program import compile
from bttlab.compiler.trace import trace
from bttlab.tensor import TTLinear

from conftest import ROOT


class Net(nn.Module):
    """Blocks of two layers with a residual, dense or of a rank."""

    def __init__(self, width=64, inner=128, rank=0, layers=2, words=40, length=16):
        super().__init__()
        torch.manual_seed(0)

        def linear(inputs, outputs):
            layer = nn.Linear(inputs, outputs)
            return TTLinear.from_linear(layer, rank) if rank else layer

        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(nn.ModuleList([linear(width, inner), linear(inner, width)]) for _ in range(layers))
        self.head = nn.Linear(width, 5)

    def forward(self, tokens):
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for first, second in self.blocks:
            x = x + second(nn.functional.gelu(first(x)))
        return self.head(x[:, 0])


def refusal(net, length, monkeypatch):
    """Return why there is no program, found without a search of banks."""
    with monkeypatch.context() as patched:
        patched.setattr(Assignment, "fit", lambda *args: pytest.fail("banks are searched"))
        with pytest.raises(ProgramError) as refused:
            compile(trace(net.eval(), length))
    return str(refused.value)


def test_a_table_frozen_and_ranks_that_have_space_together(monkeypatch):
    sizes = {"width": 256, "inner": 1024, "layers": 12}
    said = refusal(Net(**sizes, words=9000), 16, monkeypatch)
    found = re.search(r"space for words frozen, with up to (\d+) tokens, and ranks up to (\d+) \(compress\(model", said)
    tokens, rank = map(int, found.groups())
    assert tokens == 512 // (256 // 16) and 16 <= rank < 64

    def vectors(rank):
        net = Net(**sizes, words=9000, rank=rank)
        net.words.weight.requires_grad_(False)
        graph = trace(net.eval(), 16).graph.with_rows_in_records()
        return lowering.Lowering(graph).layout.finished.vectors

    assert vectors(rank) <= lowering.PARAMETER_VECTORS
    with pytest.raises(ProgramError, match="the parameters take"):
        vectors(rank + 1)


def test_first_layers_that_are_frozen_save_their_backward_passes(monkeypatch):
    sizes = {"layers": 40, "rank": 12, "width": 64, "inner": 64}
    said = refusal(Net(**sizes), 16, monkeypatch)
    frozen = int(re.search(r"the first (\d+) of 40 layers of blocks frozen, and all before them", said)[1])

    def count(frozen):
        net = Net(**sizes)
        for layer in (net.words, net.places, *net.blocks[:frozen]):
            layer.requires_grad_(False)
        return lowering.Lowering(trace(net.eval(), 16).graph)

    count(frozen).check_count()
    with pytest.raises(ProgramError, match="instructions"):
        count(frozen - 4).check_count()  # the bound counts the embedding's passes as not saved


def test_tokens_that_have_space_are_told_without_a_search(monkeypatch):
    graph = trace(Net(layers=1).eval(), 16).graph
    whole = lowering.Lowering(graph)
    always, besides = whole._live_vectors
    whole.check_live()
    monkeypatch.setattr(lowering, "INNER_VECTORS", always + besides - 1)
    with pytest.raises(ProgramError, match=f"uses {always + besides:,} vectors of the banks at one time") as refused:
        whole.check_live()
    tokens = int(re.search(r"there is space for samples of about (\d+) tokens", str(refused.value))[1])
    assert 2 <= tokens < 16
    said = refusal(Net(layers=1), 16, monkeypatch)
    assert "vectors of the banks at one time" in said


def test_vectors_that_are_used_at_one_time_are_at_most_those_that_the_search_places():
    fitting = lowering.Lowering(trace(Net(layers=2).eval(), 16).graph)
    fitting.fit(11)
    always, besides = fitting._live_vectors
    placed = fitting._assignment.placed
    taken = [
        sum(high - low for space in spaces for first, last, low, high in space.taken if first <= i <= last)
        for spaces in [fitting._assignment.spaces[: M.BANKS]]
        for i in range(len(fitting._assignment.instructions))
    ]
    assert placed and always + besides <= max(taken) < lowering.INNER_VECTORS


@pytest.mark.long
@pytest.mark.parametrize(("name", "tokens"), [("BERT-small", 16), ("DistilBERT", 10)])
def test_published_models_that_do_not_fit_are_refused_with_what_does(name, tokens, monkeypatch):
    spec = importlib.util.spec_from_file_location("published_models", ROOT / "tools" / "published_models.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    said = refusal(tool.model_of(name), 32, monkeypatch)
    rank = re.search(rf"word_embeddings frozen, with up to {tokens} tokens, and ranks up to (1[2-9]|2\d) ", said)[1]
    page = " ".join((ROOT / "docs" / "tensor.md").read_text(encoding="utf-8").split())
    first = f"ranks up to {rank} with {tokens} tokens; " if name == "BERT-small" else f"{rank} with {tokens} "
    assert f"{name}, dense and whole, is told {first}" in page or f"{name} {first}" in page
