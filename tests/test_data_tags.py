"""Predicted BIO tags made well-formed, and what the scores say of them."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bttlab.data import load_corpus
from bttlab.data.metrics import score
from bttlab.data.tags import repaired

LABELS = ["O", *(f"{place}-{kind}" for kind in ("city", "date", "name") for place in "BI"), "B-code"]
TAGS = st.lists(st.sampled_from(LABELS), max_size=12)


@pytest.mark.parametrize(
    ("tags", "wanted"),
    [
        ("B-city I-date I-date", "B-city I-city I-city"),
        ("B-city I-city I-date O I-date", "B-city I-city I-city O B-date"),
        ("I-city I-city B-date", "B-city I-city B-date"),
        ("B-code I-city I-city", "B-code B-city I-city"),
        ("B-city B-date I-date", "B-city B-date I-date"),
    ],
)
def test_a_chunk_keeps_the_type_with_which_it_begins(tags, wanted):
    assert repaired(tags.split(), LABELS) == wanted.split()


def test_a_tag_stays_where_there_is_no_label_to_take_its_place():
    assert repaired(["O", "I-city"], ["O", "I-city"]) == ["O", "I-city"]
    assert repaired(["B-code", "I-city"], ["O", "B-code", "I-city"]) == ["B-code", "I-city"]


@given(TAGS)
def test_repaired_tags_are_well_formed_and_keep_every_place(tags):
    result = repaired(tags, LABELS)
    assert repaired(result, LABELS) == result
    assert [tag == "O" for tag in result] == [tag == "O" for tag in tags]
    for before, tag in zip(["O", *result], result, strict=False):
        assert tag in LABELS and (not tag.startswith("I-") or before[1:] == tag[1:])


@given(st.lists(st.tuples(st.sampled_from(["O", "city", "date", "code"]), st.integers(1, 4))))
def test_well_formed_tags_stay_as_they_are(chunks):
    tags = [
        tag
        for kind, length in chunks
        for tag in (["O"] * length if kind == "O" else [f"B-{kind}"] + [f"I-{kind}"] * (length - 1))
    ]
    assert repaired(tags, [*LABELS, "I-code"]) == tags


def test_scores_are_of_the_repaired_tags_where_asked_for():
    corpus = load_corpus("airline")
    split, names = corpus.dev, corpus.slot_labels
    gold = [[names.index(tag) for tag in tags] for tags in split.slots]
    place = next((i, j) for i, tags in enumerate(split.slots) for j, tag in enumerate(tags) if tag.startswith("I-"))
    other = next(name for name in names if name.startswith("I-") and name != split.slots[place[0]][place[1]])
    gold[place[0]][place[1]] = names.index(other)
    slots = np.zeros((len(split), 32), np.int32)
    for row, ids in zip(slots, gold, strict=True):
        row[1 : 1 + len(ids)] = ids
    guess = SimpleNamespace(intents=[corpus.intent_labels.index(name) for name in split.intents], slots=slots)
    raw, mended = score(corpus, split, guess), score(corpus, split, guess, repair_tags=True)
    assert raw.slot_f1 < 1 and raw.frame_accuracy < 1
    assert (mended.slot_f1, mended.frame_accuracy, mended.intent_accuracy) == (1, 1, raw.intent_accuracy)
