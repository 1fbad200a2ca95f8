"""Reading, finding and downloading corpora; the bytes of the airline corpus."""

import contextlib
import hashlib
import http.server
import re
import shutil
import threading
from pathlib import Path

import pytest

from bttlab.data import CorpusError, find_corpus, load_corpus, read_corpus
from bttlab.data import find as find_module

from conftest import ROOT

SMALL = {
    "intent_label.txt": "UNK\nflight\nfare\n",
    "slot_label.txt": "PAD\nUNK\nO\nB-city\nI-city\n",
    **{
        f"{split}/{file}": content
        for split in ("train", "dev", "test")
        for file, content in {
            "seq.in": "to new york\nfares please\n",
            "seq.out": "O B-city I-city\nO O\n",
            "label": "flight\nfare\n",
        }.items()
    },
}


def write(folder: Path, **changes: str | bytes | None) -> Path:
    """The small corpus with some files changed ("train__seq_in" names train/seq.in), or left out (None)."""
    files = dict(SMALL)
    for name, content in changes.items():
        files[name.replace("__", "/").replace("seq_", "seq.").replace("label_txt", "label.txt")] = content
    for name, content in files.items():
        if content is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A machine without corpora, cache or network: an empty repository, cache and $BTTLAB_DATA."""
    monkeypatch.setattr(find_module, "ROOT", tmp_path / "repository")
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / "cache" / name)
    monkeypatch.setattr(find_module, "BASE_URL", "http://127.0.0.1:9/nowhere")
    monkeypatch.setenv("BTTLAB_DATA", str(tmp_path / "mine"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_small_corpus(tmp_path):
    corpus = read_corpus(write(tmp_path / "small"))
    assert corpus.name == "small"
    assert corpus.intent_labels == ["UNK", "flight", "fare"]
    assert corpus.train.words == [["to", "new", "york"], ["fares", "please"]]
    assert corpus.split("dev").slots == [["O", "B-city", "I-city"], ["O", "O"]]
    assert corpus.test[1:].intents == ["fare"]


def test_line_ends_blanks_and_byte_order_mark(tmp_path):
    corpus = read_corpus(
        write(
            tmp_path,
            train__seq_in="\ufeffto  new\tyork \r\n\r\nfares\u2028please\r\n\r\n",  # a separator is no end of a line
            train__seq_out="O B-city I-city\n  \nO O",
            train__label="flight \n\nfare\n\n\n",
        )
    )
    assert corpus.train.words == corpus.dev.words
    assert corpus.train.slots == corpus.dev.slots
    assert corpus.train.intents == corpus.dev.intents


@pytest.mark.parametrize(
    "changes, pattern",
    [
        ({"train__label": None}, r"train/label cannot be read \(No such file"),
        ({"slot_label_txt": None}, r"slot_label\.txt cannot be read"),
        ({"train__label": "flight\n"}, r"unequal numbers of lines \(seq\.in 2, seq\.out 2, label 1\)"),
        ({"dev__seq_out": "O B-city I-city\nO\n"}, r"dev/seq\.in, line 2: 2 words, but 1 tags"),
        ({"train__seq_in": "\nfares please\n"}, r"train/seq\.in, line 1: 0 words, but 3 tags"),
        ({"train__label": "\nfare\n"}, r"train/label, line 1: '' is not an intent"),
        ({"train__seq_in": "", "train__seq_out": "", "train__label": ""}, r"train/seq\.in has no utterances"),
        ({"train__seq_in": b"to new york\nf\xe4res please\n"}, r"train/seq\.in, line 2: not UTF-8"),
        ({"train__seq_out": "O B-city I-city\nO city\n"}, r"train/seq\.out, line 2: slot tag 'city' is none of"),
        ({"train__seq_out": "O B-foo O\nO O\n"}, r"line 1: slot label 'B-foo' is not among the 5 of .*slot_label\.txt"),
        ({"train__label": "food\nfare\n"}, r"intent label 'food' is not among the 3 of .*--unknown-labels=unk"),
        ({"slot_label_txt": "O\nUNK\nPAD\n"}, r"line 1: the first slot label is 'O', it must be PAD"),
        ({"slot_label_txt": "PAD\nUNK\nB-city\n"}, r"the label O is missing"),
        ({"slot_label_txt": "PAD\nUNK\nO\ncity\n"}, r"slot label 'city' is none of"),
        ({"slot_label_txt": "PAD\nUNK\nO\nB-city\nI-city\nO\n"}, r"line 6: label 'O' is listed twice"),
        ({"intent_label_txt": "\n"}, r"lists no labels"),
    ],
)
def test_bad_corpus_is_one_clear_line(tmp_path, changes, pattern):
    with pytest.raises(CorpusError, match=pattern):
        read_corpus(write(tmp_path, **changes))


def test_unknown_labels(tmp_path):
    odd = {"seq_out": "O B-foo O\nO O\n", "label": "food\nfare\n"}
    train = write(tmp_path / "train", **{f"train__{name}": content for name, content in odd.items()})
    assert read_corpus(train, unknown_labels="unk").train.slots[0] == ["O", "B-foo", "O"]
    test = write(tmp_path / "test", **{f"test__{name}": content for name, content in odd.items()})
    assert read_corpus(test).test.intents == ["food", "fare"]
    without = write(tmp_path / "without", test__seq_out=odd["seq_out"], slot_label_txt="PAD\nO\nB-city\nI-city\n")
    with pytest.raises(CorpusError, match=r"'B-foo' is not among the 4 .* has no UNK"):
        read_corpus(without)
    with pytest.raises(CorpusError, match="--unknown-labels=skip is neither error nor unk"):
        read_corpus(test, unknown_labels="skip")
    with pytest.raises(CorpusError, match="split 'validation' is none of train, dev, test"):
        read_corpus(test).split("validation")


def test_search_order(elsewhere):
    name = "corpus"
    cached = write(elsewhere / "cache" / "bttlab" / "data" / name)
    assert find_corpus(name) == cached
    kept = write(elsewhere / "repository" / "data" / name)
    assert find_corpus(name) == kept
    mine = write(elsewhere / "mine" / name)
    assert find_corpus(name) == mine
    write(elsewhere / name)
    assert find_corpus(name) == Path(name)
    assert load_corpus(f"./mine/{name}").folder == mine.relative_to(elsewhere)


@pytest.mark.parametrize("name", ["nothing", "atis", ""])
def test_a_corpus_that_is_nowhere(elsewhere, name):
    with pytest.raises(CorpusError) as caught:
        load_corpus(name)
    message = str(caught.value)
    assert message.startswith(f"no corpus {name!r}: searched {elsewhere}/mine/{name}".rstrip("/"))
    assert "repository/data" in message and "cache/bttlab/data" in message and "--data airline" in message
    assert ("tried to download" in message) == (name == "atis")


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The small corpus as "small" behind HTTP, with its hashes pinned; gives the served folder."""
    folder = write(tmp_path / "served" / "small")
    hashes = {name: hashlib.sha256(content.encode()).hexdigest() for name, content in SMALL.items()}
    monkeypatch.setitem(find_module.SOURCES, "small", hashes)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(folder.parent))

        def log_message(self, *arguments):
            pass

    with serving(Handler) as url:
        monkeypatch.setattr(find_module, "BASE_URL", url)
        yield folder


@contextlib.contextmanager
def serving(handler):
    """An HTTP server on loopback; gives its URL."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


def test_download(elsewhere, server):
    corpus = load_corpus("small")
    assert corpus.folder == elsewhere / "cache" / "bttlab" / "data" / "small"
    assert corpus.train.intents == ["flight", "fare"]
    shutil.rmtree(server)
    assert load_corpus("small").train == corpus.train


def test_download_with_another_hash_or_a_missing_file_keeps_nothing(tmp_path, server):
    (server / "test" / "label").write_text("fare\nfare\n")
    with pytest.raises(
        CorpusError, match=r"small/test/label cannot be downloaded: SHA256 hash .*does not match.*nothing was stored"
    ):
        find_module.download("small", tmp_path / "kept")
    (server / "test" / "label").unlink()
    with pytest.raises(CorpusError, match=r"404 .*/small/test/label"):
        find_module.download("small", tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_pinned_hashes_are_those_of_the_real_corpora(atis, snips):
    for folder in (atis, snips):
        pinned = find_module.SOURCES[folder.name]
        found = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in pinned}
        assert found == pinned and len(pinned) == 11
    assert re.search(r"/[0-9a-f]{40}/data$", find_module.BASE_URL)


def test_the_bytes_of_airline_stay():
    files = sorted(path for path in (ROOT / "data" / "airline").rglob("*") if path.is_file())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    assert digest == "3a70616feb64d78ce6f4df95c562a7203dca78eee04b731addf1fe11b50326f1"
