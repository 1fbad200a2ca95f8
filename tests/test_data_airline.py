"""The airline corpus: its bytes, which recorded runs are of, and its figures."""

import hashlib
from itertools import chain

from bttlab.data import load_corpus
from bttlab.data.find import SOURCES

from conftest import ROOT

FOLDER = ROOT / "data" / "airline"


def test_sizes_and_labels():
    corpus = load_corpus(FOLDER)
    assert [len(corpus.train), len(corpus.dev), len(corpus.test)] == [4478, 500, 893]
    assert (len(corpus.intent_labels), len(corpus.slot_labels)) == (22, 122)
    assert corpus.slot_labels[:3] == ["PAD", "UNK", "O"]
    for name in ("intent_label.txt", "slot_label.txt"):
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == SOURCES["atis"][name]
    used = set(chain.from_iterable(corpus.train.slots))
    for split in (corpus.dev, corpus.test):
        assert set(chain.from_iterable(split.slots)) <= used
        assert set(split.intents) <= set(corpus.train.intents)


def test_its_bytes_stay():
    files = sorted(path for path in FOLDER.rglob("*") if path.is_file())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    assert digest == "3a70616feb64d78ce6f4df95c562a7203dca78eee04b731addf1fe11b50326f1"
