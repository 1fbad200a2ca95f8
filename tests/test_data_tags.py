"""Tags of an utterance decoded together, labels of sentences with their probabilities, and slots as spans."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from seqeval.metrics.sequence_labeling import get_entities

from bttlab.card import open_trainer
from bttlab.data import Split, Vocabulary, encode, load_corpus
from bttlab.data.spans import slots_of
from bttlab.data.tags import ABSENT, PRIOR, WEIGHT, TagDecoder
from bttlab.model import ModelConfig, initial_parameters
from bttlab.runs.labelling import label, placeholder_split, split_words, typed_pieces

SLOTS = ["PAD", "UNK", "O", "B-city", "I-city", "B-date", "I-date", "B-code"]
INTENTS = ["UNK", "flight", "fare"]
TRAIN = Split(
    [["to", "new", "york"], ["on", "may", "first"], ["to", "boston", "x1"]],
    [["O", "B-city", "I-city"], ["O", "B-date", "I-date"], ["O", "B-city", "B-code"]],
    ["flight", "fare", "flight"],
)
LOGITS = arrays(np.float32, (3, 4, len(SLOTS)), elements=st.floats(-8, 8, width=32))


def repeated(times):
    return Split(TRAIN.words * times, TRAIN.slots * times, TRAIN.intents * times)


def well_formed(tags):
    pairs = itertools.pairwise(["O", *tags])
    return all(not tag.startswith("I-") or before[1:] == tag[1:] for before, tag in pairs)


def named(ids):
    return [SLOTS[i] for i in ids]


@given(LOGITS, st.lists(st.integers(0, 5), min_size=3, max_size=3))
def test_decoded_tags_are_well_formed_and_of_the_intent(logits, intents):
    for decoder in (TagDecoder(SLOTS, INTENTS), TagDecoder(SLOTS, INTENTS, repeated(1000))):
        for tags, intent in zip(decoder.decode(logits, np.array(intents)), intents, strict=True):
            assert well_formed(named(tags)) and not {"PAD", "UNK"} & set(named(tags))
            if decoder.allowed.min(0)[3] < 0 and intent == 2:  # a thousand fares have no city
                assert not {"B-city", "I-city", "B-code"} & set(named(tags))


def test_they_are_the_best_of_all_sequences():
    logits = np.random.default_rng(0).normal(0, 2, (20, 3, len(SLOTS))).astype(np.float32)
    counts = np.full((8, 8), PRIOR)
    first = np.full(8, PRIOR)
    train = repeated(20)
    for tags in train.slots:
        ids = [SLOTS.index(tag) for tag in tags]
        first[ids[0]] += 1
        for one, other in itertools.pairwise(ids):
            counts[one, other] += 1
    share = (first + counts.sum(0)) / (first.sum() + counts.sum())
    # Flights have 6 of 9 tags and no date: 2/3 of the 20 dates would be theirs.
    absent = ABSENT * 20 * np.array([0, 0, 0, 0, 0, 2 / 3, 2 / 3, 0])

    def score(row, ids):
        if not well_formed(named(ids)) or {0, 1} & set(ids):
            return -np.inf
        chances = [first[ids[0]] / first.sum(), *(counts[i, j] / counts[i].sum() for i, j in itertools.pairwise(ids))]
        return sum(
            row[k][i] - absent[i] + WEIGHT * np.log(p / share[i])
            for k, (i, p) in enumerate(zip(ids, chances, strict=True))
        )

    found = TagDecoder(SLOTS, INTENTS, train).decode(logits, np.ones(20, int))
    for row, tags in zip(logits, found, strict=True):
        best = max(itertools.product(range(8), repeat=3), key=lambda ids: score(row, ids))
        assert score(row, tuple(tags)) == pytest.approx(score(row, best))


def test_without_counts_confident_tags_stay_as_they_are():
    tags = ["O", "B-city", "I-city", "B-date"]
    logits = np.full((1, 4, 10), -3.0, np.float32)  # a model may have more slots than the corpus
    logits[0, np.arange(4), [SLOTS.index(tag) for tag in tags]] = 3.0
    logits[..., 8:] = 9.0
    assert named(TagDecoder(SLOTS, INTENTS).decode(logits, np.zeros(1, int))[0]) == tags


TAGS = ["O", "B-from.city", "I-from.city", "O", "B-to.city"]


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        (TAGS, [(0, 1, "O"), (1, 3, "from.city"), (3, 4, "O"), (4, 5, "to.city")]),
        (["I-a", "I-a", "I-b", "B-b"], [(0, 2, "a"), (2, 3, "b"), (3, 4, "b")]),
        (["O", "I-O", "I-O", "O"], [(0, 1, "O"), (1, 3, "O"), (3, 4, "O")]),  # a slot of this name
        (["B-a", "O", "I-a"], [(0, 1, "a"), (1, 2, "O"), (2, 3, "a")]),
        ([], []),
    ],
)
def test_spans_are_chunks_by_conllevals_rules(tags, spans):
    assert slots_of(tags) == spans
    assert [(slot, first, end - 1) for first, end, slot in spans if tags[first] != "O"] == get_entities(tags)


@pytest.fixture(scope="module")
def corpus():
    return load_corpus("airline")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flights to boston ?", ["flights", "to", "boston"]),  # no word of the corpus has a question mark
        ("Flight 1299? to Xyz, (please)", ["flight", "1299", "to", "xyz", "please"]),
        ("St. Louis and xyz.", ["st.", "louis", "and", "xyz."]),  # words end with a full stop
        ("? !", []),
    ],
)
def test_unknown_words_have_no_punctuation_that_the_corpus_has_not(corpus, text, words):
    vocabulary = Vocabulary.from_sentences(corpus.train.words, None)
    assert split_words(text, vocabulary) == words
    pieces = typed_pieces(text, corpus, vocabulary)
    assert [text[piece.start : piece.end].lower() for piece in pieces] == words


def test_words_of_a_corpus_with_punctuation_stay_as_they_are():
    """So `predict --file` has the words of `eval`."""
    vocabulary = Vocabulary(["call", "of", "halo:", "?"])
    assert split_words("call of duty: ?", vocabulary) == ["call", "of", "duty:", "?"]


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
