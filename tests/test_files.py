"""Files and folders are written atomically; a message is one line."""

import errno
import os
import re
import resource
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from bttlab.cli import main
from bttlab.data.corpus import store_corpus
from bttlab.runs import add_to_index, runs_table
from bttlab.runs.metrics import METRICS_FILE, MetricsLog
from bttlab.runs.table import FOLDERS, to_csv
from bttlab.util.errors import LONGEST, BttlabError
from bttlab.util.files import check_output, write_file, write_folder, write_new_file
from command_line import refused
from two_users import run_as_nobody, shared_folder

from conftest import ROOT


def test_a_message_is_one_line_of_a_readable_length():
    assert str(BttlabError("no corpus 'x':\nlooked at é")) == "no corpus 'x': looked at é"
    text = str(BttlabError(f"first {'x' * 10**6} last"))
    assert len(text) < LONGEST + 10 and text.startswith("first x") and text.endswith("x last")


def export_table(path):
    to_csv(runs_table([]), path)


@pytest.mark.parametrize("write", [lambda path: write_file(path, "content"), export_table])
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


def test_a_dash_is_not_the_name_of_a_file(tmp_path, monkeypatch, capsys):
    """Many programs write to standard output then; here a file of that name was left."""
    monkeypatch.chdir(tmp_path)
    assert "--csv -: it is written to a file" in refused(
        capsys, "runs", "export", "--csv", "-", ROOT / "tests/data/runs_0_1"
    )
    for write in (lambda: write_file(Path("-"), "content", "--conll"), lambda: check_output(Path("-"), "--receipt")):
        with pytest.raises(BttlabError, match="not to standard output; give the name of one"):
            write()
    assert not list(tmp_path.iterdir())
    write_file(tmp_path / "-", "content", "--csv")


@pytest.fixture
def full_disk(monkeypatch):
    """A disk that takes no more than 4 KB of a file."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # else Python writes compiled files cut short, and reads them
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    @contextmanager
    def full_disk():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return full_disk


@pytest.mark.parametrize(("command", "has_pages"), [("notebooks", False), ("notebooks", True), ("course", False)])
def test_a_full_disk_leaves_no_half_of_a_notebook(command, has_pages, tmp_path, full_disk, capsys):
    """Nor of a page that notebooks link to, which are copied first outside of a checkout."""
    if has_pages:
        (tmp_path / "docs").symlink_to(ROOT / "docs")
    with full_disk():
        assert main([command, str(tmp_path / "mine")]) == 2
    said = capsys.readouterr().err
    assert re.search(r"mine/\S+ cannot be written \(File too large\): nothing of it is there; make room", said)
    left = [path for path in (tmp_path / "mine").rglob("*") if path.is_file()]
    assert all(path.stat().st_size < 4096 for path in left) and not list(tmp_path.rglob("*.draft"))
    assert main([command, str(tmp_path / "mine")]) == 0
    assert "kept" not in capsys.readouterr().out


def test_a_new_file_is_whole_and_replaces_nothing(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_new_file(path, b"first", 0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    for what in (path, tmp_path / "link"):
        if what != path:
            what.symlink_to("absent")
        with pytest.raises(FileExistsError):
            write_new_file(what, b"second")
    assert path.read_bytes() == b"first" and not (tmp_path / "absent").exists()

    def without_links(*paths):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", without_links)
    write_new_file(tmp_path / "other", b"third")
    with pytest.raises(FileExistsError):
        write_new_file(path, b"second")
    assert (tmp_path / "other").read_bytes() == b"third" and path.read_bytes() == b"first"
    assert sorted(found.name for found in tmp_path.iterdir()) == ["file", "link", "other"]


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
    with pytest.raises(OSError, match="exists"):
        write_folder(tmp_path / "new", {"first": b"half", "first/second": b""})
    assert list(tmp_path.iterdir()) == []
    write_folder(tmp_path / "new", {"a/b": b"content"})
    with pytest.raises(FileExistsError):
        write_folder(tmp_path / "new", {"c": b""})
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == ["new", "new/a", "new/a/b"]


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


def test_nothing_is_appended_through_a_link(tmp_path, monkeypatch):
    monkeypatch.setenv("BTTLAB_RUNS", str(tmp_path))
    for target in ("profile", "absent"):
        (tmp_path / METRICS_FILE).symlink_to(tmp_path / target)
        with pytest.raises(BttlabError, match=r"cannot be (read or )?written"):
            MetricsLog(tmp_path).append({"event": "epoch", "epoch": 1})
        (tmp_path / METRICS_FILE).rename(tmp_path / FOLDERS)
        with pytest.raises(OSError, match="symbolic links"):
            add_to_index(tmp_path)
        (tmp_path / FOLDERS).unlink()
        (tmp_path / "profile").touch()
    assert (tmp_path / "profile").read_text() == "" and not (tmp_path / "absent").exists()
