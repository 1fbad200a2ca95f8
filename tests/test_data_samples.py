"""Vocabulary, encoding and scores."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bttlab.data import (
    Corpus,
    CorpusError,
    Samples,
    Split,
    Vocabulary,
    encode,
    encoding_report,
    epoch_order,
    load_corpus,
)
from bttlab.data.metrics import score
from bttlab.data.report import report
from bttlab.model import ModelConfig, Optimizer, ReferenceTrainer
from bttlab.runs.evaluation import scores_of
from bttlab.util.errors import BttlabError

CONFIG = ModelConfig()
words = st.text("abcd", min_size=1, max_size=2)


def small_corpus(*utterances: tuple[str, str, str]) -> Corpus:
    """A corpus whose splits all hold the (words, tags, intent) utterances."""
    split = Split([u[0].split() for u in utterances], [u[1].split() for u in utterances], [u[2] for u in utterances])
    labels = ["PAD", "UNK", "O", "B-city", "I-city", "B-day"]
    return Corpus("small", None, ["UNK", "flight", "fare"], labels, split, split, split)


@given(st.lists(st.lists(words, max_size=6), max_size=8), st.integers(4, 12))
def test_vocabulary_is_ordered_by_frequency_then_alphabet(sentences, size):
    vocabulary = Vocabulary.from_sentences(sentences, size)
    tokens = vocabulary.to_list()
    flat = [word for sentence in sentences for word in sentence]
    assert tokens[:3] == ["[PAD]", "[UNK]", "[CLS]"] and len(tokens) == min(size, 3 + len(set(flat)))
    keys = [(-flat.count(word), word) for word in tokens[3:]]
    assert keys == sorted(keys)
    left_out = set(flat) - set(tokens)
    assert all((-flat.count(word), word) > keys[-1] for word in left_out)
    assert [vocabulary.token(word) for word in tokens[3:]] == list(range(3, len(tokens)))
    assert all(vocabulary.token(word) == 1 for word in left_out)
    assert Vocabulary.from_list(tokens).to_list() == tokens


def test_vocabulary_never_takes_a_word_for_a_special_token():
    vocabulary = Vocabulary.from_sentences([["[CLS]", "a", "[PAD]"]], 10)
    assert vocabulary.to_list() == ["[PAD]", "[UNK]", "[CLS]", "a"]
    assert [vocabulary.token(word) for word in ("[CLS]", "[PAD]", "a")] == [1, 1, 3]


def test_vocabulary_refuses():
    with pytest.raises(CorpusError, match="size 3 has no space"):
        Vocabulary.from_sentences([["a"]], 3)
    with pytest.raises(CorpusError, match=r"must begin with \['\[PAD\]'"):
        Vocabulary.from_list(["a", "b"])
    with pytest.raises(CorpusError, match="'a' occurs twice"):
        Vocabulary(["a", "b", "a"])


def test_encode():
    corpus = small_corpus(
        ("to new york", "O B-city I-city", "flight"),
        (" ".join(["far"] * 33), " ".join(["O"] * 31 + ["B-day", "B-odd"]), "fare"),
        ("to atlantis", "O B-odd", "odd"),
    )
    vocabulary = Vocabulary(["to", "new", "york", "far"])
    samples = encode(corpus.train, vocabulary, corpus, CONFIG)
    samples.validate(CONFIG)
    assert samples.lengths.tolist() == [4, 32, 3]
    assert samples.tokens[0, :5].tolist() == [2, 3, 4, 5, 0]
    assert samples.slots[0, :5].tolist() == [0, 2, 3, 4, 0]
    assert samples.tokens[1].tolist() == [2] + [6] * 31
    assert samples.tokens[2, :4].tolist() == [2, 3, 1, 0]
    assert samples.slots[2, :4].tolist() == [0, 2, 1, 0]
    assert samples.intents.tolist() == [1, 2, 0]
    assert encoding_report(corpus.train, vocabulary, corpus, CONFIG) == (
        "3 utterances, 38 words; 1 too long (cut by 2 words); 1 words unknown to the vocabulary; "
        "1 slot tags not in the label list (B-odd 1); 1 intents not in the label list (odd 1)"
    )


def test_a_corpus_that_is_too_large_for_the_model():
    corpus = load_corpus("airline")
    vocabulary = Vocabulary.from_sentences(corpus.train.words, CONFIG.vocabulary_size)
    encode(corpus.dev, vocabulary, corpus, CONFIG).validate(CONFIG)
    for limit, message in (
        ({"intents": 21}, r"intent_label\.txt has 22 intent labels, the model 21"),
        ({"slots": 70}, r"slot_label\.txt has 122 slot labels, the model 70"),
    ):
        with pytest.raises(CorpusError, match=message):
            encode(corpus.dev, vocabulary, corpus, ModelConfig(**limit))
    large = Vocabulary.from_sentences([[f"word{number}" for number in range(2000)]], 2000)
    with pytest.raises(CorpusError, match="the vocabulary has 2000 tokens, the model 1000"):
        encode(corpus.dev, large, corpus, CONFIG)


@pytest.fixture
def samples() -> Samples:
    corpus = small_corpus(*[("to new york", "O B-city I-city", "flight")] * 5)
    return encode(corpus.train, Vocabulary(["to", "new", "york"]), corpus, CONFIG)


@pytest.mark.parametrize(
    "field, index, value, message",
    [
        ("tokens", (2, 1), 1000, "sample 2, position 1: token 1000: it must be at least 0 and below 1000"),
        ("tokens", (1, 20), 5, "sample 1, position 20: token 5: it must be 0 after the sample's length"),
        ("slots", (0, 2), 122, "sample 0, position 2: slot label 122: it must be at least 0 and below 122"),
        ("slots", (0, 31), 3, "sample 0, position 31: slot label 3: it must be 0"),
        ("intents", 4, 22, "sample 4: intent label 22: it must be at least 0 and below 22"),
        ("lengths", 3, 33, "sample 3: length 33: it must be at least 2 and below 33"),
    ],
)
def test_validate_names_the_sample_the_value_and_the_rule(samples, field, index, value, message):
    getattr(samples, field)[index] = value
    with pytest.raises(BttlabError) as caught:
        samples.validate(CONFIG)
    assert str(caught.value).startswith(message)
    trainer = ReferenceTrainer(CONFIG)
    for refuses in (trainer.predict, lambda samples: trainer.train(samples, Optimizer("sgd"), 0.1)):
        with pytest.raises(BttlabError):
            refuses(samples)


def test_samples_refuse_other_shapes_and_types(samples):
    arrays = (samples.tokens, samples.lengths, samples.intents, samples.slots)
    with pytest.raises(BttlabError, match="tokens is int64; it must be an array of int32"):
        Samples(arrays[0].astype(np.int64), *arrays[1:])
    with pytest.raises(BttlabError, match="lengths is list"):
        Samples(arrays[0], arrays[1].tolist(), *arrays[2:])
    with pytest.raises(BttlabError, match=r"tokens \(5, 32\) and slots \(5, 31\)"):
        Samples(*arrays[:3], arrays[3][:, 1:])
    with pytest.raises(BttlabError, match=r"lengths \(4,\) and intents \(5,\)"):
        Samples(arrays[0], arrays[1][1:], *arrays[2:])
    with pytest.raises(BttlabError, match="samples have 32 tokens, the model has 16"):
        samples.validate(ModelConfig(sequence_length=16))


def test_epoch_order():
    first = epoch_order(50, 0, 0)
    assert sorted(first) == list(range(50))
    assert np.array_equal(first, epoch_order(50, 0, 0))
    assert not np.array_equal(first, epoch_order(50, 0, 1)) and not np.array_equal(first, epoch_order(50, 1, 0))
    assert epoch_order(6, 3, 7).tolist() == [4, 0, 1, 2, 3, 5]
    with pytest.raises(BttlabError, match="seed -1 is negative"):
        epoch_order(5, -1, 0)


def predictions(intents: list[int], slots: list[list[int]]) -> SimpleNamespace:
    rows = np.zeros((len(slots), 32), np.int32)
    for row, ids in zip(rows, slots, strict=True):
        row[1 : 1 + len(ids)] = ids
    return SimpleNamespace(intents=np.array(intents, np.int32), slots=rows)


def test_scores_by_hand():
    corpus = small_corpus(
        ("to new york", "O B-city I-city", "flight"),
        ("new york monday", "B-city I-city B-day", "fare"),
        ("monday", "B-day", "flight"),
    )
    perfect = score(corpus, corpus.test, predictions([1, 2, 1], [[2, 3, 4], [3, 4, 5], [5]]))
    assert (perfect.utterances, perfect.intent_accuracy, perfect.slot_f1, perfect.frame_accuracy) == (3, 1, 1, 1)
    # One chunk too short, one missing, two right: of 3 predicted and 4 gold chunks 2 agree.
    scores = score(corpus, corpus.test, predictions([1, 1, 1], [[2, 3, 2], [3, 4, 5], [2]]))
    assert scores.intent_accuracy == pytest.approx(2 / 3)
    assert scores.slot_f1 == pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
    assert scores.frame_accuracy == 0
    # conlleval: an I- tag after O begins a chunk.
    assert score(corpus, corpus.test, predictions([1, 2, 1], [[2, 4, 4], [3, 4, 5], [5]])).slot_f1 == 1


LONG = (" ".join("w" * 33), " ".join(["O"] * 32 + ["B-day"]), "flight")
MONDAY = ("monday", "B-day", "flight")


@pytest.mark.parametrize(
    ("first", "intents", "slots", "wanted"),
    [
        # UNK where the gold label is not in the lists; a gold label of UNK
        (("to ur", "O B-odd", "odd"), [0, 1], [[2, 1], [5]], (0.5, 2 / 3, 0.5)),
        (("monday", "B-day", "UNK"), [0, 1], [[5], [5]], (0.5, 1, 0.5)),
        # PAD, UNK and ids beyond the lists count as outside, and so do words that were cut
        (("a b c d", "O O O O", "flight"), [1, 21], [[0, 1, 2, 121], [5]], (0.5, 1, 0.5)),
        (LONG, [1, 1], [[2] * 31, [5]], (1, 2 / 3, 0.5)),
    ],
)
def test_scores_of_what_is_in_no_list_or_cut(first, intents, slots, wanted):
    corpus = small_corpus(first, MONDAY)
    scores = score(corpus, corpus.test, predictions(intents, slots))
    assert (scores.intent_accuracy, scores.slot_f1, scores.frame_accuracy) == pytest.approx(wanted)


def test_scores_need_one_prediction_an_utterance():
    corpus = small_corpus(("monday", "B-day", "flight"))
    with pytest.raises(CorpusError, match=r"1 utterances, but predicted intents of shape \(2,\)"):
        score(corpus, corpus.test, predictions([1, 1], [[5], [5]]))


def test_scores_by_label_and_of_several_intents():
    corpus = small_corpus(
        ("to new york", "O B-city I-city", "flight"),
        ("new york monday", "B-city I-city B-day", "flight#fare"),
        ("monday", "B-day", "flight"),
    )
    corpus = replace(corpus, intent_labels=["UNK", "flight", "flight#fare"])
    flight, fare = 1, 2
    # The second utterance has one of its two intents; a city is cut short, and every day is right.
    guesses = predictions([flight, flight, fare], [[2, 3, 2], [3, 4, 5], [5]])
    found = report(corpus, corpus.test, guesses)
    assert score(corpus, corpus.test, guesses).intent_accuracy == pytest.approx(1 / 3)  # as JointBERT counts
    assert found.intent_accuracy_any == 1  # as Liu and Lane count
    assert found.labels == ["flight", "flight#fare"] and found.confusion == [[1, 1], [1, 0]]
    assert found.mistakes() == [("flight", "flight#fare", 1), ("flight#fare", "flight", 1)]
    scores = {one.label: (one.precision, one.recall, one.f1, one.support) for one in (*found.intents, *found.slots)}
    assert scores["flight"] == (0.5, 0.5, 0.5, 2)
    assert scores["city"] == (0.5, 0.5, 0.5, 2) and scores["day"] == (1, 1, 1, 2)
    words = str(found)
    assert "33.3 % with labels such as a#b" in words and "100.0 % if one of several" in words


def test_names_that_end_in_a_number_sign_are_one_intent():
    corpus = small_corpus(("to york", "O B-city", "c#"), ("monday", "B-day", "f#"))
    corpus = replace(corpus, intent_labels=["UNK", "c#", "f#"])
    found = report(corpus, corpus.test, predictions([2, 1], [[2, 3], [5]]))
    assert found.intent_accuracy == 0 and found.intent_accuracy_any is None
    both = small_corpus(("to york", "O B-city", "c#"), ("monday", "B-day", "flight#fare"))
    both = replace(both, intent_labels=["UNK", "f#", "fare"])
    assert report(both, both.test, predictions([1, 2], [[2, 3], [5]])).intent_accuracy_any == 0.5


def test_a_corpus_without_slots_has_no_slot_f1():
    corpus = small_corpus(("to york", "O O", "flight"), ("monday", "O", "fare"))
    corpus = replace(corpus, slot_labels=["PAD", "UNK", "O"])
    guesses = predictions([1, 1], [[2, 2], [2]])
    assert math.isnan(score(corpus, corpus.test, guesses).slot_f1)
    assert report(corpus, corpus.test, guesses).slots == []
    guesses.losses = np.zeros(2, np.float32)
    scored = scores_of(guesses, corpus, "test", ModelConfig())
    assert set(scored) == {"mean_loss", "utterances", "intent_accuracy"}
