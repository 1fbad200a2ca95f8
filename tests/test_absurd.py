"""What nobody meant to ask is refused in one line, at once; what goes wrong in the middle is said, and saved."""

import shutil
import subprocess
import sys

import pytest

import tiny_runs
from bttlab.cli import main
from bttlab.train import CheckpointStore, tensors_digest
from bttlab.train.settings import RunError
from own_path import environment

HUGE = str(10**30)
BASELINE = ["baseline", "--format", "btt", "--device", "cpu"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["size", "--encoders", "1000000"], "encoders is 1,000,000: it must be at most 128"),
        (["size", "--encoders", "9" * 5000], "argument --encoders: invalid int value"),
        (["estimate", "--encoders", "1000"], "encoders is 1,000: it must be at most 128"),
        (["estimate", "--vocabulary", HUGE], "vocabulary is 1,000,0"),
        (["estimate", "--rank", HUGE], "linear_rank is 1,000,0"),
        (["estimate", "--lengths", f"8:{HUGE}"], "of up to 10,000,000 samples"),
        ([*BASELINE, "--steps", HUGE], "steps is 1,000,0"),
        ([*BASELINE, "--warmup", HUGE], "warmup is 1,000,0"),
        ([*BASELINE, "--threads", HUGE], "threads is 1000"),
        (["train", "--device", "reference", "--epochs", HUGE], "epochs is 1,000,0"),
        (["train", "--device", "reference", "--vocabulary", HUGE], "vocabulary is 1,000,0"),
        (["methods", "run", "tensor", "--budget", HUGE], "samples is 1,000,0"),
        (["methods", "run", "tensor", "--budget", "1e30epoch"], "it must be at most"),
    ],
)
def test_absurd_sizes(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("vanish", [shutil.rmtree, lambda folder: folder.rename(folder.with_name("moved"))])
@pytest.mark.parametrize("call", [2, 4])
def test_a_folder_that_goes_in_the_middle_of_a_training(vanish, call, tmp_path):
    """In the middle of an epoch or of its scoring: what is trained is saved beside, and goes on to the same bits."""
    corpus = tiny_runs.write_corpus(tmp_path / "corpus")
    unbroken = tiny_runs.train(tmp_path / "unbroken", corpus)
    trainer = tiny_runs.Interrupter(call, lambda: vanish(tmp_path / "run"))
    with pytest.raises(RunError, match=r"run is gone: .* saved beside it; go on with: bttlab train --resume ") as said:
        tiny_runs.train(tmp_path / "run", corpus, trainer=trainer)
    [beside] = tmp_path.glob("run-saved-*")
    assert str(beside) in str(said.value) and not (tmp_path / "run").exists()
    assert tiny_runs.resume(beside).parameters_sha256 == unbroken.parameters_sha256
    assert tensors_digest(CheckpointStore(beside).load()[0].parameters) == unbroken.parameters_sha256


def test_a_folder_that_goes_with_all_around_it(tmp_path):
    corpus = tiny_runs.write_corpus(tmp_path / "corpus")
    trainer = tiny_runs.Interrupter(2, lambda: shutil.rmtree(tmp_path / "runs"))
    with pytest.raises(RunError, match=r"is gone: .*nothing can be saved beside it"):
        tiny_runs.train(tmp_path / "runs" / "run", corpus, trainer=trainer)


def test_workers_for_a_script_from_standard_input(tmp_path):
    script = "from bttlab.sweep import open_cluster\nwith open_cluster(workers=1) as client: print('in')"
    done = subprocess.run(
        [sys.executable], input=script, env=environment(), cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stdout == ""
    assert "begin by importing the program that starts them, and <stdin> is no file" in done.stderr
