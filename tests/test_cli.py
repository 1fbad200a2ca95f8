"""The command line: results on stdout, the rest on stderr, one line and the right exit code for what is wrong."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from seqeval.metrics import f1_score

from bttlab.cli import main
from bttlab.commands import doctor
from bttlab.model import ModelConfig, Transformer
from bttlab.runs import read_checkpoint
from command_line import refused, run_json
from tiny_runs import SIZES, train, write_corpus


def train_arguments(corpus, folder, *more: str) -> list[str]:
    start = ["train", "--encoders", "1", "--data", str(corpus), "--samples", "4", "--device", "reference"]
    return [*start, "--out", str(folder), *more]


def test_size_gives_the_published_sizes(capsys):
    sizes = run_json(capsys, "size", "--encoders", "2", "4", "6")["sizes"]
    found = [(size["dense_parameters"], size["tensor_parameters"]) for size in sizes]
    assert found == [(9_179_280, 300_288), (16_272_528, 374_400), (23_365_776, 448_512)]
    assert [round(size["dense_megabytes"], 1) for size in sizes] == [36.7, 65.1, 93.5]


def test_a_model_has_the_same_name_on_every_command(tmp_path, corpus, capsys):
    """By options or by a file, in training, estimates, programs, comparisons and baselines."""
    options = ["--encoders", "1", "--hidden-size", "256", "--heads", "4", "--rank", "4", "--vocabulary", "27"]
    file = tmp_path / "narrow.toml"
    file.write_text("encoders = 3\nhidden_size = 256\nheads = 4\nlinear_rank = 4\nvocabulary_size = 27\n")
    for model in (options, ["--model", str(file), "--encoders", "1"]):
        (size,) = run_json(capsys, "size", *model)["sizes"]
        (estimate,) = run_json(capsys, "estimate", *model, "--tokens", "13")["estimates"]
        assert estimate["model"]["linear_rank"] == 4 and estimate["model"]["vocabulary_size"] == 27
        assert run_json(capsys, "program", *model)["encoders"] == 1
        found = size["tensor_parameters"]
        data = ["--data", str(corpus)]
        measured = ["baseline", "--device", "cpu", "--steps", "1", "--warmup", "0", "--format", "btt"]
        assert run_json(capsys, *measured, *data, *model)["config"]["encoders"] == 1
        out = str(tmp_path / f"run{len(model)}")
        assert run_json(capsys, "train", "--device", "reference", *data, *model, "--out", out)["parameters"] == found
    assert run_json(capsys, "size", "--model", str(file))["sizes"][0]["encoders"] == 3
    assert "leave --model out" in refused(capsys, "train", "--resume", out, "--model", str(file))
    file.write_text("hiden_size = 256\n")
    assert (
        "--model" in (said := refused(capsys, "size", "--model", str(file))) and "hiden_size is not a setting" in said
    )


def test_an_error_is_json_with_json(tmp_path, capsys):
    message = refused(capsys, "runs", "show", "none")
    assert main(["runs", "show", "none", "--json"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"error": message.removeprefix("bttlab: error: "), "exit_code": 2}
    assert captured.err.strip() == message
    assert main(["nonsense", "--json"]) == 2 and json.loads(capsys.readouterr().out)["exit_code"] == 2


def test_the_command_line_starts_without_heavy_imports():
    code = (
        "import sys; from bttlab.cli import build_parser; build_parser(); "
        "print([m for m in ('torch', 'pynq', 'numpy', 'rich', 'pydantic') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_train_resume_and_eval(tmp_path, corpus, capsys):
    first = run_json(capsys, *train_arguments(corpus, tmp_path / "run", "--seed", "3"))
    assert (first["status"], first["epochs_done"], first["seed"], first["optimizer"]) == ("complete", 1, 3, "sgd")
    assert first["learning_rate"] == 4e-3 and first["test"]["utterances"] == 6
    assert {"intent_accuracy", "slot_f1", "frame_accuracy"} <= set(first["test"])
    assert Path(first["checkpoint"]).is_file() and Path(first["metrics"]).is_file()

    scores = run_json(capsys, "eval", "--run", str(tmp_path / "run"))
    assert {name: scores[name] for name in first["test"]} == first["test"]
    assert scores["parameters_sha256"] == first["parameters_sha256"] and scores["split"] == "test"
    dev = run_json(capsys, "eval", "--run", str(tmp_path / "run"), "--split", "dev")
    assert {name: dev[name] for name in first["test"]} == first["last_epoch"]["dev"]

    sentences = Path(corpus, "test", "seq.in").read_text().splitlines()
    predicted = run_json(capsys, "predict", *sentences, "--run", str(tmp_path / "run"))["predictions"]
    gold = [line.split() for line in Path(corpus, "test", "seq.out").read_text().splitlines()]
    guessed = [one["slots"] for one in predicted]
    assert f1_score(gold, guessed, zero_division=0) == pytest.approx(scores["slot_f1"])
    intents = Path(corpus, "test", "label").read_text().splitlines()
    right = sum(one["intent"] == intent for one, intent in zip(predicted, intents, strict=True)) / 6
    assert right == pytest.approx(scores["intent_accuracy"])
    weights = str(tmp_path / "dense.safetensors")
    assert run_json(capsys, "runs", "export", str(tmp_path / "run"), "--weights", weights)["exported"] == 1
    with safe_open(weights, "pt") as file:
        about = {name: json.loads(value) for name, value in file.metadata().items()}
        dense = Transformer(ModelConfig(**about["config"]))
        dense.load_state_dict({name: file.get_tensor(name) for name in file.keys()})
    words = sentences[0].split()
    intent, slots = dense(torch.tensor([2, *(about["vocabulary"].index(word) for word in words)]))
    assert about["intent_labels"][intent.argmax()] == predicted[0]["intent"] and dense.config.format == "dense"
    named = dict(enumerate(about["slot_labels"]))
    tags = [named.get(tag, "O") for tag in slots.argmax(1).tolist()]
    assert [tag if "-" in tag else "O" for tag in tags] == guessed[0]
    shutil.copytree(tmp_path / "run", tmp_path / "two")
    both = (str(tmp_path / "run"), str(tmp_path / "two"))
    assert "name it" in refused(capsys, "runs", "export", *both, "--weights", weights)
    (tmp_path / "asked.txt").write_text("\ufeff" + "\n\n".join(sentences) + "\n", encoding="utf-8")
    asked = run_json(capsys, "predict", "--file", str(tmp_path / "asked.txt"), "--run", str(tmp_path / "run"))
    assert asked["predictions"] == predicted
    (tmp_path / "asked.txt").write_text("\u2028".join(sentences[0].split()) + "\r\n", encoding="utf-8")
    asked = run_json(capsys, "predict", "--file", str(tmp_path / "asked.txt"), "--run", str(tmp_path / "run"))
    (one,) = asked["predictions"]  # one sentence, as in a corpus
    assert one["words"] == predicted[0]["words"] and one["slots"] == predicted[0]["slots"]
    (tmp_path / "none.txt").write_text("\n")
    assert "has no sentences" in refused(capsys, "predict", "--file", tmp_path / "none.txt", "--run", tmp_path / "run")
    detailed = run_json(capsys, "eval", "--run", str(tmp_path / "run"), "--report")["report"]
    assert sum(map(sum, detailed["confusion"])) == sum(one["support"] for one in detailed["intents"]) > 0
    assert main(["predict", "Some flight to Nowhere", "--run", str(tmp_path / "run")]) == 0
    assert "unknown to the vocabulary: some flight nowhere" in capsys.readouterr().out
    assert "has no words" in refused(capsys, "predict", " ", "--run", str(tmp_path / "run"))

    further = run_json(capsys, "train", "--resume", "--out", str(tmp_path / "run"), "--epochs", "2")
    assert further["epochs_done"] == 2


def test_eval_on_a_corpus_without_slots_scores_intents_alone(tmp_path, capsys):
    """A model predicts slots there, which nobody has labelled: slot F1 and frame accuracy were 0."""
    own = write_corpus(tmp_path / "own")
    train(tmp_path / "run", own, epochs=8)
    other = tmp_path / "other"
    shutil.copytree(own, other)
    (other / "slot_label.txt").write_text("PAD\nUNK\nO\n")
    for split in SIZES:
        tags = (other / split / "seq.out").read_text()
        (other / split / "seq.out").write_text(re.sub(r"[BI]-city", "O", tags))
    command = ["eval", "--run", tmp_path / "run", "--split", "train", "--report"]
    with_slots = run_json(capsys, *command)
    assert main([*map(str, command), "--data", str(other), "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["intent_accuracy"] == with_slots["intent_accuracy"] and found["utterances"] == 24
    assert not {"slot_f1", "frame_accuracy"} & found.keys() and found["report"]["slots"] == []
    assert found["report"]["intents"] == with_slots["report"]["intents"] != []
    assert "has no slots: its tags are not scored" in said.err


def test_eval_on_another_corpus_only_on_purpose(tmp_path, capsys):
    run = tmp_path / "run"
    own = write_corpus(tmp_path / "own")
    assert main(train_arguments(own, run)) == 0
    (own / "test" / "seq.in").write_text((own / "test" / "seq.in").read_text().replace("please", "kindly"))
    assert "is not the corpus own that the run" in refused(capsys, "eval", "--run", str(run))
    assert run_json(capsys, "eval", "--run", str(run), "--data", str(own))["utterances"] == 6
    other = write_corpus(tmp_path / "other", seed=1)
    assert main(["eval", "--run", str(run), "--data", str(other)]) == 0
    captured = capsys.readouterr()
    assert "other test after 1 epoch" in captured.out and "is another corpus than own" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "required: COMMAND"),
        ("train --epochs 0", "epochs is 0: it must be greater than or equal to 1"),
        ("train --lr nan", "learning_rate is nan"),
        ("train --device gpu", "no device 'gpu'; choose auto, emulated, reference, or the number"),
        ("train --data nowhere", "no corpus 'nowhere'"),
        ("train --resume", "--resume needs the folder of a run"),
        ("train --resume nothing", "nothing holds no checkpoint"),
        ("train --resume a --out b", "--resume a and --out b name two folders"),
        ("train --recipe=", "--recipe has an empty value"),
        ("train --task tagging", "--task tagging: it is for a module"),
        ("eval", "required: --run"),
        ("eval --run a --wait -1", "--wait: '-1': give seconds, 0 or more"),
        ("eval --run a --wait nan", "--wait: 'nan': give seconds, 0 or more"),
        ("size --vocabulary 0", "vocabulary is 0: it must be an integer of 1 to"),
        ("bringup --record /proc/none/x.json", "give another file with --record"),
    ],
)
def test_bad_input_is_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BTTLAB_DATA", raising=False)
    assert message in refused(capsys, *arguments.split())
    assert "--resume has an empty value" in refused(capsys, "train", "--resume", "")
    assert os.listdir(tmp_path) == []


def test_labels_that_are_not_listed(tmp_path, capsys):
    bad = write_corpus(tmp_path / "bad")
    (bad / "train" / "label").write_text("hotel\n" * 24)
    assert "pass --unknown-labels=unk" in refused(capsys, *train_arguments(bad, tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    assert main(train_arguments(bad, tmp_path / "new", "--unknown-labels", "unk")) == 0


@pytest.mark.long
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path, corpus):
    arguments = train_arguments(corpus, tmp_path / "run", "--epochs", "100000", "--json")
    command = [sys.executable, "-m", "bttlab", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "epoch 1/100000: mean loss" in line:
            break
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130 and "Traceback" not in err
    assert f"continue with: bttlab train --resume {tmp_path / 'run'}" in err
    stopped = json.loads(out)
    assert stopped["status"] == "interrupted" and stopped["epochs_done"] >= 1 and stopped["test"] is None


def test_a_device_needs_pynq(monkeypatch, capsys, tmp_path, corpus):
    monkeypatch.setitem(sys.modules, "pynq", None)
    arguments = ["auto" if a == "reference" else a for a in train_arguments(corpus, tmp_path / "run")]
    assert "--device auto needs pynq" in refused(capsys, *arguments)
    assert not (tmp_path / "run").exists()


def test_a_missing_package_is_one_line_that_names_its_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich.table", None)
    line = "this command needs rich, which is not installed: pip install 'rich>=13.7' (of bttlab[train]: docs/hosts.md)"
    assert refused(capsys, "size") == f"bttlab: error: {line}"


def checks(capsys, *arguments: str, exit_code: int) -> dict[str, dict]:
    assert main(["doctor", "--json", *arguments]) == exit_code
    result = json.loads(capsys.readouterr().out)
    assert result["usable"] == (exit_code == 0)
    return {check["name"]: check for check in result["checks"]}


def test_doctor_tells_what_is_here(capsys, monkeypatch, tmp_path, corpus):
    monkeypatch.setenv("BTTLAB_DATA", str(tmp_path))
    write_corpus(tmp_path / "atis")
    (tmp_path / "snips").mkdir()
    found = checks(capsys, exit_code=0)
    assert found["corpus atis"]["data"]["folder"] == str(tmp_path / "atis")
    assert found["corpus snips"]["status"] == "note" and "cannot be read" in found["corpus snips"]["detail"]
    assert found["corpus airline"]["status"] == "ok"
    assert found["packages"]["data"]["pynq"] == metadata.version("pynq")
    assert any("emulated" in device for device in found["cards"]["data"]["devices"])
    assert main(["doctor"]) == 0
    assert "all that is needed is here" in capsys.readouterr().out


def test_doctor_finds_what_is_broken(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("BTTLAB_OVERLAYS", str(tmp_path))
    assert "none in" in checks(capsys, exit_code=1)["overlays"]["detail"]
    (tmp_path / "manifest.json").write_text("[]")
    assert "is not a valid manifest" in checks(capsys, exit_code=1)["overlays"]["detail"]
    monkeypatch.delenv("BTTLAB_OVERLAYS")
    monkeypatch.setenv("BTTLAB_DATA", str(tmp_path / "none"))
    assert "none', which is not a folder" in checks(capsys, exit_code=0)["corpora"]["detail"]
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "0.0")
    packages = checks(capsys, exit_code=1)["packages"]
    assert "torch 0.0, but bttlab needs >=2.4" in packages["detail"] and "make lab" in packages["way_out"]


def test_a_corpus_with_more_words_gets_a_model_with_more_rows(tmp_path, capsys):
    corpus = write_corpus(tmp_path / "large")
    for name, text in (("seq.in", " ".join(f"word{i}" for i in range(30))), ("seq.out", "O " * 30), ("label", "fare")):
        for part in range(34):
            with (corpus / "train" / name).open("a") as file:
                file.write(text.replace("word", f"word{part}-") + "\n")
    told = run_json(capsys, *train_arguments(corpus, tmp_path / "run", "--samples", "2"))
    rows = read_checkpoint(tmp_path / "run" / "checkpoint.safetensors").settings.config
    assert rows.vocabulary_size == 1100 and rows.embedding_row_modes == (11, 10, 10)
    assert told["parameters"] == rows.parameters_count
    (tmp_path / "model.toml").write_text("vocabulary_size = 1000\n")
    for number, size in enumerate((["--vocabulary", "1000"], ["--model", str(tmp_path / "model.toml")])):
        few = train_arguments(corpus, tmp_path / f"few{number}", "--samples", "2", *size)
        assert run_json(capsys, *few)["parameters"] == ModelConfig(encoders=1).parameters_count
    assert "--vocabulary: a run continues as it began" in refused(
        capsys, "train", "--resume", str(tmp_path / "run"), "--vocabulary", "900"
    )


def test_completion_in_bash(tmp_path):
    script = tmp_path / "bttlab"
    with script.open("w") as file:
        command = [sys.executable, "-m", "shtab", "--shell=bash", "bttlab.cli.build_parser"]
        subprocess.run(command, stdout=file, check=True)
    for words, expected in (("bttlab do", "doctor"), ("bttlab train --resu", "--resume")):
        number = len(words.split()) - 1
        lines = f"source {script}; COMP_WORDS=({words}); COMP_CWORD={number}; _shtab_bttlab; echo ${{COMPREPLY[@]}}"
        assert subprocess.run(["bash", "-c", lines], capture_output=True, text=True).stdout.split() == [expected]
