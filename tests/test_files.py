"""Files that anybody may have made: nothing is read that is no file, or larger than it can sensibly be."""

import os
import tracemalloc

import pytest

from bttlab.card import EmulatedU50, OverlayError
from bttlab.card.manifest import read_manifest
from bttlab.data import CorpusError, read_corpus
from bttlab.runs.checkpoint import LATEST, DamagedCheckpoint, read_checkpoint
from bttlab.util.errors import LONGEST, BttlabError
from bttlab.util.files import replace_whole
from tiny_runs import write_corpus


@pytest.mark.parametrize("what", ["huge", "pipe", "folder", "absent"])
def test_what_is_not_a_file_of_sensible_size_is_refused(tmp_path, what):
    corpus = write_corpus(tmp_path / "corpus")
    (corpus / "dev" / "seq.in").unlink()
    readers = {
        corpus / "dev" / "seq.in": (lambda: read_corpus(corpus), CorpusError),
        tmp_path / LATEST: (lambda: read_checkpoint(tmp_path / LATEST), DamagedCheckpoint),
        tmp_path / "a.xclbin": (lambda: EmulatedU50().get_bitfile_metadata(str(tmp_path / "a.xclbin")), OverlayError),
    }
    if what != "absent":  # then there are simply no overlays
        readers[tmp_path / "manifest.json"] = (lambda: read_manifest(tmp_path), OverlayError)
    for path, (read, error) in readers.items():
        if what == "huge":
            path.touch()
            os.truncate(path, 3 << 30)
        elif what == "pipe":
            os.mkfifo(path)
        elif what == "folder":
            path.mkdir()
        tracemalloc.start()
        with pytest.raises(error, match=str(path)):
            read()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 64 << 20


def test_a_message_is_one_line_that_a_terminal_can_show():
    assert str(BttlabError("no corpus 'x':\nlooked at é")) == "no corpus 'x': looked at é"
    assert str(BttlabError("label '\x1b[31m\ud800\0'")) == r"label '\x1b[31m\ud800\x00'"
    text = str(BttlabError(f"first {'x' * 10**6} last"))
    assert len(text) < LONGEST + 10 and text.startswith("first x") and text.endswith("x last")
    assert len(str(BttlabError("\U000e0001" * 10**6))) < LONGEST + 10


def test_a_draft_takes_no_name_that_is_there_and_follows_no_link(tmp_path, monkeypatch):
    """In a folder that others may write to, they can plant a link under each name that they can guess."""
    monkeypatch.setattr("secrets.token_hex", lambda count: "00")
    precious = tmp_path / "precious"
    precious.write_text("as it was")
    draft = tmp_path / ".record.json.00.draft"
    for plant in (lambda: draft.symlink_to(precious), lambda: draft.symlink_to(tmp_path / "new"), draft.touch):
        plant()
        with pytest.raises(FileExistsError):
            replace_whole(tmp_path / "record.json", "content")
        draft.unlink()
    assert precious.read_text() == "as it was" and [path.name for path in tmp_path.iterdir()] == ["precious"]
    replace_whole(tmp_path / "record.json", "content")
    assert (tmp_path / "record.json").read_text() == "content" and not draft.exists()
