"""Folders that may not be written: a clear error, and what was there stays."""

import pytest

from tiny_runs import metrics, resume, train, write_corpus
from two_users import run_as_nobody, shared_folder

pytestmark = pytest.mark.long

ASK = """
import contextlib, io, sys
from bttlab.cli import main
with contextlib.redirect_stderr(io.StringIO()) as said:
    code = main(sys.argv[1:])
print(code, said.getvalue())
"""


def test_folders_that_may_not_be_written(two_users, tmp_path):
    with shared_folder(0o755) as place:
        corpus, closed, folder = write_corpus(place / "corpus"), place / "closed", place / "run"
        closed.mkdir(0o555)
        (place / "a.csv").write_text("text,label\n" + "hello,x\n" * 3)
        new = "train", "--data", corpus, "--encoders", 1, "--device", "reference", "--out", closed / "run"
        again = "train", "--resume", folder, "--epochs", 3
        train(folder, corpus, epochs=1)
        for path in folder.iterdir():
            path.chmod(0o444)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        for mode, arguments, message in (
            (0o555, new, f"{closed / 'run'} cannot be made (Permission denied); choose another --out"),
            (
                0o555,
                ("data", "import", place / "a.csv", closed / "a"),
                f"cannot write a corpus to {closed / 'a'}: Perm",
            ),
            (0o555, again, f"{folder / '.lock'} cannot be locked (Permission denied)"),
            (0o000, again, f"{folder} cannot be read (Permission denied)"),
        ):
            folder.chmod(mode)
            said = run_as_nobody(ASK, *arguments)
            assert said.startswith("2 ") and message in said
        folder.chmod(0o755)
        assert list(closed.iterdir()) == []
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
        resume(folder, epochs=3)
        train(tmp_path / "unbroken", corpus)
        assert metrics(folder) == metrics(tmp_path / "unbroken")
