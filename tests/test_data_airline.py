"""The airline corpus: its bytes and its figures."""

import subprocess
import sys
from itertools import chain

import pytest

from bttlab.data import load_corpus
from subprocess_env import environment

from conftest import ROOT

FOLDER = ROOT / "data" / "airline"


@pytest.fixture(scope="module")
def corpus():
    return load_corpus(FOLDER)


def test_command_writes_the_committed_bytes(tmp_path):
    out = tmp_path / "airline"
    subprocess.run([sys.executable, "-m", "airline", "--out", out], check=True, capture_output=True, env=environment())
    written = {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    committed = {path.relative_to(FOLDER): path.read_bytes() for path in FOLDER.rglob("*") if path.is_file()}
    assert written == committed


def test_sizes_and_labels(corpus, atis):
    assert [len(corpus.train), len(corpus.dev), len(corpus.test)] == [4478, 500, 893]
    assert (len(corpus.intent_labels), len(corpus.slot_labels)) == (22, 122)
    assert corpus.slot_labels[:3] == ["PAD", "UNK", "O"]
    real = load_corpus(atis)
    assert (corpus.intent_labels, corpus.slot_labels) == (real.intent_labels, real.slot_labels)
    used = set(chain.from_iterable(corpus.train.slots))
    for split in (corpus.dev, corpus.test):
        assert set(chain.from_iterable(split.slots)) <= used
        assert set(split.intents) <= set(corpus.train.intents)


def test_no_utterance_is_one_of_atis(corpus, atis):
    real = load_corpus(atis)
    theirs = {" ".join(words) for split in (real.train, real.dev, real.test) for words in split.words}
    ours = {" ".join(words) for split in (corpus.train, corpus.dev, corpus.test) for words in split.words}
    assert not theirs & ours
