"""Augmentation: what it draws, how often, and that it depends on seed, epoch and utterance alone."""

import numpy as np
import pytest

from bttlab.data import Augmentation, Augmenter, Corpus, Split, Vocabulary, encode
from bttlab.data.vocabulary import UNK_ID, WORD_CLASSES, word_class
from bttlab.model import ModelConfig

CONFIG = ModelConfig(sequence_length=12, intents=2, slots=7, vocabulary_size=1000)
LABELS = ["PAD", "UNK", "O", "B-fromloc.city_name", "I-fromloc.city_name", "B-toloc.city_name", "B-flight_number"]


@pytest.fixture(scope="module")
def corpus():
    first = "from new york to boston", "O B-fromloc.city_name I-fromloc.city_name O B-toloc.city_name"
    second = "to denver on flight 271", "O B-toloc.city_name O O B-flight_number"
    words, tags = ([text.split() for text in texts] for texts in zip(first, second, strict=True))
    split = Split(words, tags, ["flight", "flight"])
    return Corpus("hand", None, ["UNK", "flight"], LABELS, split, split, split)


@pytest.fixture(scope="module")
def vocabulary(corpus):
    return Vocabulary.from_sentences(corpus.train.words, 1000, word_classes=True)


def read(samples, vocabulary, corpus) -> list[tuple[str, str]]:
    """Utterances and tags as text."""
    tokens = vocabulary.to_list()
    rows = zip(samples.tokens, samples.slots, samples.lengths, strict=True)
    return [
        (" ".join(tokens[t] for t in row[1:n]), " ".join(corpus.slot_labels[s] for s in slots[1:n]))
        for row, slots, n in rows
    ]


def test_without_augmentation_samples_are_those_of_encode(corpus, vocabulary):
    augmenter = Augmenter(Augmentation(), corpus, vocabulary, CONFIG)
    got, wanted = augmenter.samples(np.array([1, 0]), 0, 0), encode(corpus.train, vocabulary, corpus, CONFIG)[[1, 0]]
    for name in ("tokens", "lengths", "intents", "slots"):
        assert np.array_equal(getattr(got, name), getattr(wanted, name)) and getattr(got, name).dtype == np.int32


def test_substitution_keeps_tags_with_values_of_the_same_type(corpus, vocabulary):
    augmenter = Augmenter(Augmentation(slot_substitution=1.0), corpus, vocabulary, CONFIG)
    seen = set()
    for epoch in range(60):
        first, second = read(augmenter.samples(np.arange(2), 3, epoch), vocabulary, corpus)
        seen.add(first)
        assert second[0] in ("to denver on flight 271", "to boston on flight 271")  # no I-toloc.city_name: no new york
        assert second[1] == "O B-toloc.city_name O O B-flight_number"
    starts = {"new york": "B-fromloc.city_name I-fromloc.city_name"} | dict.fromkeys(("boston", "denver"), LABELS[3])
    ends = ("boston", "denver")
    every = {(f"from {a} to {b}", f"O {starts[a]} O B-toloc.city_name") for a in starts for b in ends}
    # where three words are drawn for a place that takes one, what stood there stays
    assert seen == every


def test_words_are_dropped_to_their_class_as_often_as_promised(corpus, vocabulary):
    augmenter = Augmenter(Augmentation(word_dropout=0.5), corpus, vocabulary, CONFIG)
    epochs = 600
    drawn = [augmenter.samples(np.array([1]), 0, epoch).tokens[0] for epoch in range(epochs)]
    for position, (word, count) in enumerate([("to", 2), ("denver", 1), ("on", 1), ("flight", 1), ("271", 1)], 1):
        unknown = np.mean([tokens[position] == vocabulary.unknown_token(word) for tokens in drawn])
        chance = 1 - count / (0.5 + count)
        assert abs(unknown - chance) < 4 * np.sqrt(chance * (1 - chance) / epochs)
    assert vocabulary.to_list()[vocabulary.unknown_token("271")] == "[999]"
    assert all(tokens[0] == 2 and not tokens[6:].any() for tokens in drawn), "[CLS] and padding are never dropped"


def test_an_epoch_may_be_cut_anywhere(corpus, vocabulary):
    augmenter = Augmenter(Augmentation(1.0, 0.5), corpus, vocabulary, CONFIG)
    order = np.array([0, 1, 1, 0, 1])
    whole = augmenter.samples(order, 7, 3)
    parts = np.concatenate([augmenter.samples(order[i : i + 2], 7, 3).tokens for i in (0, 2, 4)])
    assert np.array_equal(parts, whole.tokens) and np.array_equal(whole.tokens[1], whole.tokens[2])
    others = [augmenter.samples(order, seed, epoch).tokens for seed, epoch in ((8, 3), (7, 4))]
    assert not any(np.array_equal(whole.tokens, other) for other in others)


@pytest.mark.parametrize(
    ("word", "token"),
    [("7", "[9]"), ("1994", "[9999]"), ("27100", "[9999]"), ("dh8", "[a9]"), ("bh", "[aa]"), ("lga", "[aaa]")],
)
def test_unknown_words_are_told_apart_by_their_looks(vocabulary, word, token):
    assert word_class(word) == token and vocabulary.to_list()[vocabulary.token(word)] == token
    assert vocabulary.token("overnight") == UNK_ID


def test_vocabulary_with_word_classes_comes_back_from_its_list(vocabulary):
    again = Vocabulary.from_list(vocabulary.to_list())
    assert again.to_list()[3 : 3 + len(WORD_CLASSES)] == list(WORD_CLASSES)
    assert again.token("123") == vocabulary.token("123") and "[9]" not in again and "boston" in again
    plain = Vocabulary(["[9]", "boston"])
    assert plain.token("5") == UNK_ID and plain.token("[9]") == 3
