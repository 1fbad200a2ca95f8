"""Records of baselines: their content, what must not be in it, and the message for a damaged one."""

import getpass
import json
import re
import socket
from pathlib import Path

import pytest

from bttlab.baseline import Record, RecordError, load_records
from bttlab.baseline.machine import plain
from bttlab.util.errors import BttlabError
from bttlab.util.files import check_output
from tiny_baseline import tiny_baseline

from conftest import ROOT

BASELINES = ROOT / "data" / "baselines"


@pytest.fixture(scope="module")
def record() -> Record:
    return tiny_baseline("btt", "cpu", steps=6)


def test_read_gives_what_was_written(record, tmp_path):
    path = tmp_path / "record.json"
    record.write(path)
    assert Record.read(path) == record
    assert len(path.read_text().splitlines()) < 400, "a trace is one line"
    record.write(path)
    assert load_records(tmp_path) == [record] and load_records(tmp_path / "none") == []


def figures(values):
    """Every figure of a record's JSON, and every number that is none."""
    if isinstance(values, dict):
        if "provenance" in values:
            yield values
        else:
            for value in values.values():
                yield from figures(value)


def test_every_figure_tells_where_it_comes_from(record):
    found = list(figures(record.to_dict()))
    assert len(found) > 20
    for figure in found:
        assert set(figure) == {"value", "unit", "provenance", "how"}
        assert figure["how"] and figure["unit"]
        assert figure["provenance"] == (None if figure["value"] is None else "measured")


def private_words() -> list[str]:
    return [word for word in {socket.gethostname(), getpass.getuser(), Path.home().name} if len(word) > 2]


def assert_private(text: str) -> None:
    for word in private_words():
        assert not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text), word
    assert not re.search(r"(?<![\w.])/\w+/", text), "a path"
    assert not re.search(r"[A-Za-z]:\\", text), "a path"


def test_a_record_names_no_host_user_or_folder(tmp_path):
    folder = tmp_path / "somebody's corpora" / "airline"
    folder.parent.mkdir()
    folder.symlink_to(ROOT / "data" / "airline")
    record = tiny_baseline("btt", "cpu", data=folder, steps=2)
    text = json.dumps(record.to_dict())
    assert_private(text)
    assert "somebody" not in text and tmp_path.name not in text


@pytest.mark.parametrize("path", sorted(BASELINES.glob("*.json")), ids=lambda path: path.name)
def test_committed_records(path):
    record = Record.read(path)
    assert_private(path.read_text())
    assert record.corpus.name == "atis" and record.config["hidden_size"] == 768
    assert path.name.startswith(f"enc{record.config['encoders']}-{record.format}-{record.machine.kind}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot open /home/somebody/.cache/x.so: denied", "cannot open x.so: denied"),
        ("C:\\Users\\somebody\\cl.exe failed", "cl.exe failed"),
        ("see ~/notes/a.txt\nand more", "see a.txt"),
        ("\n\n  a/b of 3 steps/s", "a/b of 3 steps/s"),
    ],
)
def test_reasons_lose_their_folders(text, expected):
    assert plain(text) == expected
    assert plain(RuntimeError(text)) == f"RuntimeError: {expected}"


def change(values, place, value):
    *parents, last = place.split(".")
    for name in parents:
        values = values[name]
    values[last] = value


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("machine.colour", "red", r"machine\.colour is not a setting of Machine; do you mean cores"),
        ("modes.eager.losses", [1.0], "mode 'eager' has 1 losses and 6 step times"),
        ("modes.eager.median.provenance", None, "with provenance None: one needs the other"),
        ("best", "graphs", "best is 'graphs': it must be one of the modes eager"),
        ("config.heads", 5, "hidden_size 12 is not divisible by heads 5"),
        ("version", 99, "version is 99: it must be less than or equal to 1"),
    ],
)
def test_damaged_records(record, tmp_path, place, value, message):
    values = json.loads(json.dumps(record.to_dict()))
    change(values, place, value)
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(values))
    with pytest.raises(RecordError, match=message) as caught:
        load_records(tmp_path)
    assert "damaged.json" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_files_that_are_no_records(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(RecordError, match="record"):
        load_records(tmp_path)


def test_an_unwritable_place_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "file" / "x.json"):
        with pytest.raises(BttlabError, match="--record"):
            check_output(place, "--record")
    check_output(tmp_path / "new" / "x.json", "--record")
    assert list((tmp_path / "new").iterdir()) == []
