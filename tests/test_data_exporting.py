"""Predicted labels as files of annotation tools, from answers that are written out here."""

import pytest

from bttlab.data.corpus import CorpusError
from bttlab.data.exporting import conll_text, label_studio_tasks
from bttlab.data.spans import Labelled
from bttlab.data.tokenizer import Piece

TEXT = "fly to  Boston, now"
PIECES = [
    Piece(0, 3, "fly"),
    Piece(4, 6, "to"),
    Piece(8, 11, "bos"),
    Piece(11, 15, "##ton,", False),
    Piece(16, 19, "now"),
]
WORDS = ["fly", "to", "bos", "##ton,", "now"]
TAGS = ["O", "O", "B-city", "PAD", "O"]


def test_a_task_of_label_studio_has_the_spans_characters_and_probabilities():
    chances = [{tag: 0.5, "other": 0.5} for tag in TAGS]
    answer = Labelled(WORDS, "flight#fare", TAGS, {"flight#fare": 0.75}, chances)
    (task,) = label_studio_tasks([TEXT], [PIECES], [answer], "run 1")
    (prediction,) = task["predictions"]
    span, choice = prediction["result"]
    assert task["data"] == {"text": TEXT} and (prediction["model_version"], prediction["score"]) == ("run 1", 0.75)
    assert span["value"] == {"start": 8, "end": 15, "text": "Boston,", "labels": ["city"]} and span["score"] == 0.5
    assert choice["value"] == {"choices": ["flight", "fare"]} and choice["score"] == 0.75
    assert (span["id"], choice["id"]) == ("s0", "s1")


@pytest.mark.parametrize("intent", ["c#", "f#", "#", "c##f", "#fare"])
def test_an_intent_whose_name_ends_in_a_number_sign_is_one_choice(intent):
    (task,) = label_studio_tasks(["fly"], [[Piece(0, 3, "fly")]], [Labelled(["fly"], intent)], "m")
    (choice,) = task["predictions"][0]["result"]
    assert choice["value"] == {"choices": [intent]}


def test_a_task_without_tags_or_without_an_intent():
    texts, pieces = ["fly"] * 2, [[Piece(0, 3, "fly")]] * 2
    classified, tagged = label_studio_tasks(
        texts, pieces, [Labelled(["fly"], "flight"), Labelled(["fly"], None, ["B-verb"])], "m"
    )
    (choice,) = classified["predictions"][0]["result"]
    (span,) = tagged["predictions"][0]["result"]
    assert choice["type"] == "choices" and span["type"] == "labels"
    assert not {"score"} & {*choice, *span, *classified["predictions"][0], *tagged["predictions"][0]}


def test_conll_has_words_as_they_were_written():
    text = conll_text(
        [TEXT, "now"], [PIECES, [Piece(0, 3, "now")]], [Labelled(WORDS, "flight", TAGS), Labelled(["now"], None, ["O"])]
    )
    assert text == "# intent: flight\nfly\tO\nto\tO\nBoston,\tB-city\nnow\tO\n\nnow\tO\n\n"


def test_conll_of_a_model_that_labels_no_words():
    with pytest.raises(
        CorpusError, match="the model labels no words, and CoNLL has a tag for each; take --label-studio"
    ):
        conll_text(["fly"], [[Piece(0, 3, "fly")]], [Labelled(["fly"], "flight")])
