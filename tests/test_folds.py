"""Folds of a training split: every utterance is held out once, and none that is alike is trained on."""

import folds
import pytest

from bttlab.data import load_corpus
from tiny_runs import write_corpus


def test_each_fold_is_a_corpus_whose_templates_are_not_trained_on(tiny_airline, tmp_path):
    corpus = load_corpus(tiny_airline)
    assert folds.main([str(tiny_airline), str(tmp_path), "--parts", "3"]) == 0
    parts = [load_corpus(tmp_path / f"{corpus.name}{number}") for number in range(3)]
    held_out = sorted(" ".join(words) for part in parts for words in part.dev.words)
    assert held_out == sorted(" ".join(words) for words in corpus.train.words)
    for part in parts:
        assert len(part.train) + len(part.dev) == len(corpus.train) and abs(3 * len(part.dev) - len(corpus.train)) < 20
        assert part.test == corpus.dev and part.slot_labels == corpus.slot_labels
        trained, left = (
            {_template(*pair) for pair in zip(s.words, s.slots, strict=True)} for s in (part.train, part.dev)
        )
        assert not trained & left


def _template(words: list[str], tags: list[str]) -> str:
    """Utterances with values replaced by their types; chunks begin at their first tag."""
    shown = [
        word if tag == "O" else tag[2:].split(".")[-1] for word, tag in zip(words, tags, strict=True) if tag[:2] != "I-"
    ]
    return " ".join(shown)


@pytest.mark.parametrize("parts", ["1", "1000"])
def test_numbers_of_folds_that_cannot_be(parts, tmp_path, capsys):
    corpus = write_corpus(tmp_path / "tiny")
    assert folds.main([str(corpus), str(tmp_path / "out"), "--parts", parts]) == 2
    said = capsys.readouterr().err
    assert f"--parts={parts}: use 2 to" in said and said.count("\n") == 1 and not (tmp_path / "out").exists()
