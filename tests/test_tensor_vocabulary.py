"""A table of tokens cut to a corpus' ids and grown back; models made dense again."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.program import compile
from bttlab.compiler.trace import trace
from bttlab.tensor import ShapeError, compress, cut_vocabulary, decompress

ROWS = 90
IDS = np.array([[1, 70, 5, 5, 2], [1, 8, 89, 70, 2]])


def classifier(kind=BertForSequenceClassification, **sizes):
    torch.manual_seed(0)
    values = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(**({"vocab_size": ROWS, "num_labels": 3, "max_position_embeddings": 16} | values | sizes))
    return kind(config).eval()


def outputs(model, ids):
    with torch.no_grad():
        return model(torch.as_tensor(ids)).logits


def trained(model, ids):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.as_tensor(ids), labels=torch.tensor([0, 1])).loss.backward()
    optimizer.step()


def test_a_cut_model_computes_the_same_and_grows_back_with_what_it_learned():
    model = classifier()
    whole, before = model.get_input_embeddings().weight.detach().clone(), outputs(model, IDS)
    cut = cut_vocabulary(model, IDS, unknown=3)
    assert cut.kept.tolist() == [0, 1, 2, 3, 5, 8, 70, 89]  # padding and the unknown token, too
    assert model.config.vocab_size == len(cut.kept) and model.get_input_embeddings().padding_idx == 0
    mine = cut.ids(IDS)
    assert torch.equal(outputs(model, mine), before)
    assert cut.ids([4, 70]).tolist() == cut.ids([3, 70]).tolist()
    trained(model, mine)
    after = outputs(model, mine)
    table = cut.grow()
    assert model.get_input_embeddings() is table and model.config.vocab_size == ROWS
    assert torch.equal(outputs(model, IDS), after)
    changed = (table.weight != whole).any(1).nonzero().flatten().tolist()
    assert changed == [1, 2, 5, 8, 70, 89]


def test_a_table_compressed_after_the_cut_grows_back_as_its_rows():
    model = classifier()
    whole = model.get_input_embeddings().weight.detach().clone()
    cut = cut_vocabulary(model, range(64))
    compress(model, rank=4, ignore_padding=True)
    rows = model.get_input_embeddings().to_dense()
    table = cut.grow().weight
    assert torch.equal(table[:64], rows) and torch.equal(table[64:], whole[64:])


REFUSED = {
    r"id 4 is not among the 7 ids that bert\S* was cut to: .* give unknown=": lambda m: cut_vocabulary(m, IDS).ids([4]),
    "id 90 is no row of bert": lambda m: cut_vocabulary(m, IDS, unknown=1).ids([90]),
    "id 90 is no row of .* which has 90": lambda m: cut_vocabulary(m, [90]),
    "id -1 is no row": lambda m: cut_vocabulary(m, [-1]),
    "must be whole numbers, and at least one": lambda m: cut_vocabulary(m, []),
    "must be whole numbers": lambda m: cut_vocabulary(m, [0.5]),
    "table 'words' is no nn.Embedding of the model; it has bert": lambda m: cut_vocabulary(m, [1], table="words"),
    "which table has the tokens": lambda m: cut_vocabulary(nn.Sequential(m.bert.embeddings), [1]),
    "shares its weight with cls.*cannot be cut": lambda m: cut_vocabulary(classifier(BertForMaskedLM), [1]),
    "has the shape .* now, not .*: it was grown": lambda m: cut_twice(m).grow(),
}


def cut_twice(model):
    cut = cut_vocabulary(model, range(4))
    cut_vocabulary(model, range(2))
    return cut


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_cut_or_grown_is_one_line(message):
    with pytest.raises(ShapeError, match=message):
        REFUSED[message](classifier())


def test_a_compressed_model_becomes_dense_again():
    model = classifier()
    compress(model, rank=4, ignore_padding=True)
    net = nn.Sequential(nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 2, 64, batch_first=True), 2)).eval()
    compress(net, rank=4)
    x = torch.randn(2, 5, 32)
    before, of_net = outputs(model, IDS), net(x)
    names = decompress(model)
    assert "bert.embeddings.word_embeddings" in names and "classifier" not in names
    assert {type(layer) for layer in model.modules()} == {type(layer) for layer in classifier().modules()}
    torch.testing.assert_close(outputs(model, IDS), before)
    decompress(net)
    assert type(net[0].layers[1].self_attn) is nn.MultiheadAttention
    torch.testing.assert_close(net(x), of_net)
    plain = copy.deepcopy(net)
    assert decompress(plain) == []
    with pytest.raises(ShapeError, match="single layer"):
        compress(wrapped := nn.Sequential(nn.Linear(64, 64)), rank=2)
        decompress(wrapped[0])


def test_bert_tiny_fits_dense_with_a_cut_vocabulary_and_not_with_the_published_one():
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 512, "max_position_embeddings": 512}
    model = classifier(vocab_size=30522, **sizes)
    with pytest.raises(ProgramError, match=r"the parameters take [0-9]+ vectors, the banks of parameters have 36864"):
        compile(trace(model, 32))
    cut_vocabulary(model, range(1000))
    assert compile(trace(model, 32)).layout.vectors < 36864


def test_a_table_in_two_places_is_cut_and_grown_in_both():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = self.decoder = nn.Embedding(20, 4)

    model = Pair()
    cut = cut_vocabulary(model, torch.tensor([3, 5]))
    assert model.encoder is model.decoder and model.decoder.num_embeddings == 2
    model.requires_grad_(False)
    cut.grow()
    assert model.encoder is model.decoder and model.decoder.num_embeddings == 20
    assert not model.decoder.weight.requires_grad


def test_ids_that_are_not_whole_numbers_are_refused():
    cut = cut_vocabulary(nn.Sequential(nn.Embedding(20, 4)), [3, 5])
    assert cut.ids([]).shape == (0,)
    for call in (lambda: cut.ids([3.7]), lambda: cut_vocabulary(nn.Sequential(nn.Embedding(20, 4)), [1], unknown=2.5)):
        with pytest.raises(ShapeError, match="ids are float64: ids to keep must be whole numbers"):
            call()
    with pytest.raises(ShapeError, match="ids are in rows of different lengths"):
        cut_vocabulary(nn.Sequential(nn.Embedding(20, 4)), [[1, 2], [3]])
