"""Files that anybody may have made: nothing is read that is no file, or larger than it can sensibly be."""

import os
import tracemalloc

import pytest

from bttlab.card import EmulatedU50, OverlayError
from bttlab.card.manifest import read_manifest
from bttlab.cli import main
from bttlab.data import CorpusError, read_corpus
from bttlab.data.store import store_corpus
from bttlab.runs import remember, runs_table
from bttlab.runs.checkpoint import LATEST, DamagedCheckpoint, read_checkpoint
from bttlab.runs.export import to_csv
from bttlab.runs.metrics import METRICS, MetricsLog
from bttlab.runs.table import FOLDERS
from bttlab.util.errors import LONGEST, BttlabError
from bttlab.util.files import draft_folder, write_file, write_folder
from tiny_runs import write_corpus
from two_users import run_as_nobody, shared_folder


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


def test_a_draft_takes_no_name_that_is_there(tmp_path, monkeypatch):
    """In a folder that others may write to, they can plant a link under each name that they can guess."""
    monkeypatch.setattr("secrets.token_hex", lambda count: "00")
    precious = tmp_path / "precious"
    precious.write_text("as it was")
    draft = tmp_path / ".record.json.00.draft"
    for plant in (lambda: draft.symlink_to(precious), lambda: draft.symlink_to(tmp_path / "new"), draft.touch):
        plant()
        with pytest.raises(FileExistsError):
            write_file(tmp_path / "record.json", "content")
        draft.unlink()
    assert precious.read_text() == "as it was" and [path.name for path in tmp_path.iterdir()] == ["precious"]


def export_table(path):
    to_csv(runs_table([]), path)


def draw_timeline(path):
    assert main(["program", "--encoders", "1", "--tokens", "4", "--gantt", str(path)]) == 0


@pytest.mark.parametrize("write", [lambda path: write_file(path, "content"), export_table, draw_timeline])
def test_a_link_is_replaced_and_not_followed(tmp_path, write):
    (tmp_path / "profile").write_text("as it was")
    output = tmp_path / "output.png"
    for target in ("profile", "absent"):
        output.unlink(missing_ok=True)
        output.symlink_to(target)
        write(output)
        assert not output.is_symlink() and output.read_bytes()
    assert (tmp_path / "profile").read_text() == "as it was" and not (tmp_path / "absent").exists()


def test_a_device_is_not_replaced(tmp_path):
    (tmp_path / "null").symlink_to("/dev/null")
    with pytest.raises(BttlabError, match=r"not a regular file.*--csv"):
        to_csv(runs_table([]), tmp_path / "null")
    assert (tmp_path / "null").is_symlink()


def test_nothing_is_appended_through_a_link(tmp_path, monkeypatch):
    monkeypatch.setenv("BTTLAB_RUNS", str(tmp_path))
    for target in ("profile", "absent"):
        (tmp_path / METRICS).symlink_to(tmp_path / target)
        with pytest.raises(BttlabError, match="cannot be written"):
            MetricsLog(tmp_path).append({"event": "epoch", "epoch": 1})
        (tmp_path / METRICS).rename(tmp_path / FOLDERS)
        with pytest.raises(OSError, match="symbolic links"):
            remember(tmp_path)
        (tmp_path / FOLDERS).unlink()
        (tmp_path / "profile").touch()
    assert (tmp_path / "profile").read_text() == "" and not (tmp_path / "absent").exists()


PLANT = """
import os, sys
folder, victim, pid = sys.argv[1:]
staging = os.path.join(folder, f".corpus.{pid}")
os.mkdir(staging, 0o777)
os.chmod(staging, 0o777)
os.symlink(victim, os.path.join(staging, "train"))
"""


def test_a_corpus_is_not_written_through_what_another_user_planted(tmp_path):
    (tmp_path / "home").mkdir()
    with shared_folder() as folder:
        run_as_nobody(PLANT, folder, tmp_path / "home", os.getpid())
        store_corpus({"train/label": b"hotel\n"}, folder / "corpus")
        assert (folder / "corpus" / "train" / "label").read_bytes() == b"hotel\n"
    assert list((tmp_path / "home").iterdir()) == []


def test_a_folder_is_written_whole_or_not_at_all(tmp_path):
    with pytest.raises(RuntimeError), draft_folder(tmp_path / "new") as draft:
        (draft / "first").write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    write_folder(tmp_path / "new", {"a/b": b"content"})
    with pytest.raises(FileExistsError):
        write_folder(tmp_path / "new", {"c": b""})
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == ["new", "new/a", "new/a/b"]
