"""The airline corpus: its bytes and its figures."""

import hashlib
import subprocess
import sys
from itertools import chain

import numpy as np
import pytest

from bttlab.data import load_corpus
from bttlab.data.download import SOURCES
from subprocess_env import environment

from conftest import ROOT

FOLDER = ROOT / "data" / "airline"
ATIS_UTTERANCES = ROOT / "tests" / "atis_utterances.bin"  # `utterance_hashes` of ATIS, sorted


def utterance_hashes(corpus) -> set[int]:
    """Return the first 8 bytes of every utterance's SHA-256."""
    utterances = {" ".join(words) for split in (corpus.train, corpus.dev, corpus.test) for words in split.words}
    return {int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") for text in utterances}


@pytest.fixture(scope="module")
def corpus():
    return load_corpus(FOLDER)


def test_command_writes_the_committed_bytes(tmp_path):
    out = tmp_path / "airline"
    subprocess.run([sys.executable, "-m", "airline", "--out", out], check=True, capture_output=True, env=environment())
    written = {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    committed = {path.relative_to(FOLDER): path.read_bytes() for path in FOLDER.rglob("*") if path.is_file()}
    assert written == committed


def test_sizes_and_labels(corpus):
    assert [len(corpus.train), len(corpus.dev), len(corpus.test)] == [4478, 500, 893]
    assert (len(corpus.intent_labels), len(corpus.slot_labels)) == (22, 122)
    assert corpus.slot_labels[:3] == ["PAD", "UNK", "O"]
    for name in ("intent_label.txt", "slot_label.txt"):
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == SOURCES["atis"][name]
    used = set(chain.from_iterable(corpus.train.slots))
    for split in (corpus.dev, corpus.test):
        assert set(chain.from_iterable(split.slots)) <= used
        assert set(split.intents) <= set(corpus.train.intents)


def test_no_utterance_is_one_of_atis(corpus):
    theirs = set(np.fromfile(ATIS_UTTERANCES, dtype="<u8").tolist())
    assert len(theirs) == 5473 and not theirs & utterance_hashes(corpus)


def test_the_hashes_of_atis_are_those_of_its_utterances(atis):
    assert set(np.fromfile(ATIS_UTTERANCES, dtype="<u8").tolist()) == utterance_hashes(load_corpus(atis))
