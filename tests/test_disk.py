"""Full disks, folders that may not be written: a clear error, and what was there stays."""

import os
import tempfile
from pathlib import Path

import pytest

from bttlab.data import corpus as corpus_module
from bttlab.util.errors import BttlabError
from tiny_runs import metrics, resume, train

pytestmark = pytest.mark.long

NOBODY = 65534


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    train(folder, corpus)
    return metrics(folder)


def as_nobody(act) -> str:
    """The error that somebody without rights gets from an act; an empty text if there is none."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        message = "another error"
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            act()
            message = ""
        except BttlabError as error:
            message = str(error)
        except BaseException as error:
            message = f"not ours: {error!r}"
        finally:
            os.write(writing, message.encode())
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(child, 0)
    return text


@pytest.fixture
def open_folder(tmp_path, corpus):
    """A folder that everybody can reach."""
    own = [folder for folder in tmp_path.parents if Path(tempfile.gettempdir()) in folder.parents]
    for folder in (tmp_path, *own, corpus.parent):
        folder.chmod(0o755)
    return tmp_path


def test_folders_that_may_not_be_written(open_folder, corpus, unbroken):
    (closed := open_folder / "closed").mkdir(0o555)
    message = as_nobody(lambda: train(closed / "run", corpus))
    assert f"{closed / 'run'} cannot be made (Permission denied)" in message and "--out" in message
    message = as_nobody(lambda: corpus_module.store_corpus({"label": b"a\n"}, closed / "corpus"))
    assert f"cannot write a corpus to {closed / 'corpus'}: Permission denied" in message
    assert list(closed.iterdir()) == []

    folder = open_folder / "run"
    train(folder, corpus, epochs=1)
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    message = as_nobody(lambda: resume(folder, epochs=3))
    assert str(folder) in message and "Permission denied" in message
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    folder.chmod(0o000)
    message = as_nobody(lambda: resume(folder, epochs=3))
    assert str(folder) in message and "Permission denied" in message
    folder.chmod(0o755)
    resume(folder, epochs=3)
    assert metrics(folder) == unbroken
