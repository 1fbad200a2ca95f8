"""Labels of sentences with their probabilities, and slots as spans."""

import numpy as np
import pytest

from bttlab.card import open_trainer
from bttlab.data import Vocabulary, encode, load_corpus
from bttlab.data.spans import slots_of
from bttlab.model import ModelConfig, initial_parameters
from bttlab.runs.labelling import label, placeholder_split, split_words

TAGS = ["O", "B-from.city", "I-from.city", "O", "B-to.city"]


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        (TAGS, [(0, 1, "O"), (1, 3, "from.city"), (3, 4, "O"), (4, 5, "to.city")]),
        (["I-a", "I-a", "I-b", "B-b"], [(0, 2, "a"), (2, 3, "b"), (3, 4, "b")]),
        (["B-a", "O", "I-a"], [(0, 1, "a"), (1, 2, "O"), (2, 3, "a")]),
        ([], []),
    ],
)
def test_spans_are_chunks_by_conllevals_rules(tags, spans):
    assert slots_of(tags) == spans
    from seqeval.metrics.sequence_labeling import get_entities

    assert [(slot, first, end - 1) for first, end, slot in spans if slot != "O"] == get_entities(tags)


@pytest.fixture(scope="module")
def corpus():
    return load_corpus("airline")


def test_probabilities_are_those_of_the_cards_losses(corpus):
    """The loss of a label gives its probability: -log p(intent) - mean log p(slot), asked with every label in turn."""
    config = ModelConfig(encoders=2)
    vocabulary = Vocabulary.from_sentences(corpus.train.words, config.vocabulary_size)
    trainer = open_trainer(config, "emulated")
    trainer.load_parameters(initial_parameters(config, seed=1))
    words = split_words("Show me FLIGHTS, to boston!", vocabulary)
    assert words == ["show", "me", "flights", "to", "boston"]
    (found,) = label(trainer, corpus, vocabulary, [words])
    sample = encode(placeholder_split([words], corpus), vocabulary, corpus, config)
    many = sample[np.zeros(config.intents, int)]
    many.intents[:] = np.arange(config.intents)
    likely = np.exp(-trainer.predict(many).losses.astype(float))
    likely /= likely.sum()
    assert found.intent == corpus.intent_labels[likely.argmax()]
    assert found.intent_probability == pytest.approx(likely.max(), rel=1e-3)
    many = sample[np.zeros(config.slots, int)]
    many.slots[:, 5] = np.arange(config.slots)
    likely = np.exp(-len(words) * trainer.predict(many).losses.astype(float))
    likely /= likely.sum()
    names = [label if "-" in label else "O" for label in corpus.slot_labels]
    names += ["O"] * (config.slots - len(names))
    of_name = {name: sum(likely[[one == name for one in names]]) for name in names}
    assert found.tag_probabilities[4] == pytest.approx(of_name[found.tags[4]], rel=1e-3)
