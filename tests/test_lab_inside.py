"""What the explorer of a sentence shows, against formulas written out in NumPy and against finite differences."""

import numpy as np
import pytest
import torch

from bttlab.data import Vocabulary, load_corpus
from bttlab.lab import InsideExplorer
from bttlab.lab.inside import look_inside
from bttlab.model import ModelConfig, ReferenceTrainer, Transformer, initial_parameters
from bttlab.model.transformer import Encoder
from bttlab.util.errors import BttlabError

from training_processor import SMALL

TOKENS = [2, 7, 11, 11, 30, 5]
NAMES = ["[CLS]", *"abcde"]


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    network = Transformer(SMALL, seed=3).double()
    for name, parameter in network.named_parameters():  # so that attention is far from even
        if name.endswith(("query.cores.0", "key.cores.0")):
            parameter.data *= 1.7
    return network


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def test_attention_is_that_of_the_formula(network):
    inside = look_inside(network, TOKENS, NAMES)
    size = SMALL.hidden_size // SMALL.heads
    assert inside.attention.shape == (SMALL.encoders, SMALL.heads, 6, 6)
    np.testing.assert_allclose(inside.attention.sum(-1), 1, rtol=1e-6)
    with torch.no_grad():
        x = network.embedding(torch.tensor(TOKENS))
        for encoder, found in zip(network.encoders, inside.attention, strict=True):
            rows = x.numpy()
            query, key = (
                rows @ layer.to_dense().numpy().T + layer.bias.numpy() for layer in (encoder.query, encoder.key)
            )
            for head in range(SMALL.heads):
                part = slice(head * size, (head + 1) * size)
                wanted = softmax(query[:, part] @ key[:, part].T / np.sqrt(size))
                np.testing.assert_allclose(found[head], wanted, rtol=1e-5)
                assert wanted.std() > 0.01
            x = encoder(x)
        assert {encoder.attend for encoder in network.encoders} == {Encoder.attend}


def test_influence_is_the_gradient_of_the_intent(network):
    inside = look_inside(network, TOKENS, NAMES)
    step, norms = 1e-5, []
    with torch.no_grad():
        rows = network.embedding(torch.tensor(TOKENS))

        def chance(rows: torch.Tensor) -> float:
            for encoder in network.encoders:
                rows = encoder(rows)
            return float(network.label(rows)[0].log_softmax(-1)[inside.intent])

        assert inside.probability == pytest.approx(np.exp(chance(rows)))
        assert inside.intent == int(network(torch.tensor(TOKENS))[0].argmax())
        for token in range(len(TOKENS)):
            slopes = []
            for feature in range(SMALL.hidden_size):
                moved = [rows.clone(), rows.clone()]
                moved[0][token, feature] += step
                moved[1][token, feature] -= step
                slopes.append((chance(moved[0]) - chance(moved[1])) / (2 * step))
            norms.append(np.linalg.norm(slopes))
    np.testing.assert_allclose(inside.influence, np.array(norms) / sum(norms), rtol=1e-4)


def test_the_explorer_shows_the_trainers_parameters():
    corpus, config = load_corpus("airline"), ModelConfig(encoders=2)
    vocabulary = Vocabulary.from_sentences(corpus.train.words, config.vocabulary_size)
    trainer = ReferenceTrainer(config)
    trainer.load_parameters(initial_parameters(config, seed=0))
    explorer = InsideExplorer(trainer, corpus, vocabulary, "flights to denver xyzzy")
    first = explorer.inside
    assert first.tokens == ("[CLS]", "flights", "to", "denver", "xyzzy") and first.attention.shape == (2, 12, 5, 5)
    assert "unknown to the vocabulary: xyzzy" in explorer.message
    explorer.encoder.value, explorer.head.value = 2, 7
    assert explorer.inside is first and "Encoder 2, head 7" in explorer._attention.get_title(loc="left")
    shown = np.asarray(explorer._attention.images[0].get_array())
    np.testing.assert_array_equal(shown, first.attention[1, 6])
    trainer.load_parameters(initial_parameters(config, seed=1))
    explorer.look_again()
    assert not np.array_equal(explorer.inside.attention, first.attention)
    explorer.sentence.value = "word " * 40
    assert "has 40 words: the model takes 1 to 31" in explorer.message
    explorer.sentence.value = ""
    assert "has 0 words" in explorer.message
    explorer.close()


def test_a_module_of_ones_own_is_refused_in_a_line():
    class Other:
        config = object()

    with pytest.raises(BttlabError, match="shows the encoders of a ModelConfig"):
        InsideExplorer(Other(), None, None, "flights")
