"""A run that is given away tells neither where it ran nor, without its parameters, what its corpus says."""

import json
import shutil

import pytest

import tiny_runs
from bttlab.cli import main
from bttlab.runs import read_run
from bttlab.runs.record import RUN_FILE
from command_line import refused, run_json

from conftest import ROOT

WORDS = ("please",)  # of the corpus of tiny_runs, and of no key


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of a user whose name is in every path, one of which has a blank, with a recipe and a failure."""
    home = tmp_path / "lovelace" / "my home"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("BTTLAB_RUNS", str(home / "runs"))
    corpus = tiny_runs.write_corpus(home / "corpora" / "flights")
    (home / "mine.toml").write_text("epochs = 1\n")
    tiny_runs.train(home / "runs" / "run", corpus, epochs=1, keep="best", recipe=str(home / "mine.toml"))
    record = read_run(home / "runs" / "run")
    record.error = (
        f"{home}/runs/run/metrics.jsonl cannot be written, nor /home/lovelace/other/file; see ~lovelace/notes/todo"
    )
    record.device, record.sweep = "a card at /dev/dri/renderD128, 3 samples/s, 1/s", str(home / "sweep")
    record.write(home / "runs" / "run")
    return home / "runs" / "run"


def everything(folder) -> bytes:
    return b"\n".join(str(path).encode() + path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_a_shared_record_has_no_paths_and_no_words(run, tmp_path, capsys):
    assert b"lovelace" in everything(run) and all(word.encode() in everything(run) for word in WORDS)
    id = read_run(run).id
    written = run_json(capsys, "runs", "export", "--share", tmp_path / "given", str(run))
    assert written == {"exported": 1, "to": str(tmp_path / "given")}
    given = tmp_path / "given" / id
    assert {path.name for path in given.iterdir()} == {"run.json", "metrics.jsonl"}
    content = everything(given).replace(str(tmp_path).encode(), b"")
    assert not [word for word in ("lovelace", "my home", *WORDS) if word.encode() in content]
    record = read_run(given)
    assert record.configuration["data"] == "flights" and record.configuration["recipe"] == "mine.toml"
    assert record.error == "run/metrics.jsonl cannot be written, nor file; see todo" and record.checkpoint == ""
    assert record.device == "a card at renderD128, 3 samples/s, 1/s" and record.sweep == "sweep"
    assert record.figures.keys() == read_run(run).figures.keys() and tiny_runs.metrics(given) == tiny_runs.metrics(run)
    assert main(["runs", "show", str(given)]) == 0


def test_a_copy_of_a_run_is_given_away_beside_it(run, tmp_path, capsys):
    id, copy = read_run(run).id, shutil.copytree(run, run.with_name("copy"))
    tiny_runs.resume(copy, epochs=2)
    assert run_json(capsys, "runs", "export", "--share", tmp_path / "given", run, copy)["exported"] == 2
    epochs = {path.name: read_run(path).configuration["epochs"] for path in (tmp_path / "given").iterdir()}
    assert sorted(epochs) == [id, f"{id}-2"] and sorted(epochs.values()) == [1, 2]


def test_shared_parameters_predict_elsewhere(run, tmp_path, capsys):
    id = read_run(run).id
    run_json(capsys, "runs", "export", "--share", tmp_path / "given", "--parameters", str(run))
    given = shutil.move(tmp_path / "given" / id, tmp_path / "received")
    content = everything(given)
    assert not [
        word for word in ("lovelace", "my home") if word.encode() in content.replace(str(tmp_path).encode(), b"")
    ]
    assert b"please" in content  # the embedding's words
    predict = ("predict", "fli please to a x", "--device", "reference", "--run")
    mine, theirs = (run_json(capsys, *predict, folder)["predictions"] for folder in (run, given))
    assert mine == theirs
    best = run_json(capsys, *predict, given, "--best")["predictions"]
    assert best == run_json(capsys, *predict, run, "--best")["predictions"]


@pytest.mark.long
def test_a_shared_module_needs_trust(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "tests" / "helpers" / "sample_modules.py", "net.py")
    corpus = run.parents[1] / "corpora" / "flights"
    train = ("train", "--model", "net.py:Tagger", "--samples", 2, "--device", "reference", "--data", corpus)
    run_json(capsys, *train, "--out", "mine")
    run_json(capsys, "runs", "export", "--share", "given", "--parameters", "mine")
    (given,) = (tmp_path / "given").iterdir()
    assert (given / "model.py").exists() and not (given / "model.seal").exists()
    predict = ("predict", "to a x", "--run", str(given), "--device", "reference")
    assert "was not put there by a training of yours" in refused(capsys, *predict)
    assert main([*predict, "--trust"]) == 0


def test_what_cannot_be_shared_is_one_line(run, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    share = ("runs", "export", str(run), "--share")
    assert "full cannot be made (" in refused(capsys, *share, str(tmp_path / "full"))
    assert "--parameters adds checkpoints to --share" in refused(
        capsys, "runs", "export", str(run), "--csv", str(tmp_path / "x.csv"), "--parameters"
    )
    assert "--best chooses the epoch of --weights" in refused(capsys, *share, str(tmp_path / "new"), "--best")
    for path in run.glob("*.safetensors"):
        path.write_bytes(b"torn")
    assert "checkpoint" in refused(capsys, *share, str(tmp_path / "new"), "--parameters")
    assert not (tmp_path / "new").exists()
    record = json.loads((run / RUN_FILE).read_text())
    (run / RUN_FILE).write_text(json.dumps(record | {"figures": 1}))
    assert "no run is chosen" in refused(capsys, *share, str(tmp_path / "new"))
