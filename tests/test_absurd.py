"""Absurd sizes are refused in one line, at once; faults in the middle of a run are reported, and the run is saved."""

import shutil

import pytest

import tiny_runs
from bttlab.cli import main
from bttlab.util.errors import BttlabError

HUGE = str(10**30)
BASELINE = ["baseline", "--format", "btt", "--device", "cpu"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["size", "--encoders", "1000000"], "encoders is 1,000,000: it must be at most 128"),
        (["estimate", "--lengths", f"8:{HUGE}"], "of up to 10,000,000 samples"),
        ([*BASELINE, "--threads", HUGE], "threads is 1000"),
        (["train", "--device", "reference", "--epochs", HUGE], "epochs is 1,000,0"),
        (["train", "--device", "reference", "--rank", "100000"], "the model would have 17,920 GB of parameters"),
        (["train", "--device", "reference", "--recipe", "/dev/urandom"], "no recipe '/dev/urandom'"),
        (["train", "--device", "reference", "--recipe", "/dev/zero.toml"], "no recipe '/dev/zero.toml'"),
        (["methods", "run", "tensor", "--budget", HUGE], "samples is 1,000,0"),
    ],
)
def test_absurd_sizes(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_runs_folder_that_is_a_file(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BTTLAB_RUNS", str(tmp_path / "file"))
    assert main(["runs", "list"]) == 2
    assert "file is no folder; set BTTLAB_RUNS" in capsys.readouterr().err


@pytest.mark.parametrize("vanish", [shutil.rmtree, lambda folder: folder.rename(folder.with_name("moved"))])
@pytest.mark.parametrize("call", [2, 4])
def test_a_folder_that_vanishes_ends_its_run_in_one_line(vanish, call, tmp_path, corpus):
    """In the middle of an epoch (call 2) or of its scoring (call 4)."""
    trainer = tiny_runs.Interrupter(call, lambda: vanish(tmp_path / "run"))
    with pytest.raises(BttlabError, match=r"run/(metrics|checkpoint)\.\w+ cannot be (written|saved) \(No such file"):
        tiny_runs.train(tmp_path / "run", corpus, trainer=trainer)
