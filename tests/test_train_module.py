"""Training a module of the user's own: `--model FILE.py:CLASS` on train, eval, predict and size."""

import hashlib
import json
import math
import shutil

import numpy as np
import pynq
import pytest
import torch
from safetensors.torch import load_file

import sample_modules
from bttlab.card import EmulatedU50
from bttlab.cli import main
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.module_file import load_module, module_of_source
from bttlab.data import Corpus, Split
from bttlab.lab import RunBrowser
from bttlab.model import ModuleConfig, Predictions, ReferenceTrainer
from bttlab.runs import read_checkpoint, tensors_digest
from bttlab.runs.evaluation import scores_of
from bttlab.runs.record import read_run
from sample_modules import Net
from tiny_runs import metrics

from conftest import ROOT

SOURCE = ROOT / "tests" / "helpers" / "sample_modules.py"
TAGS = {"slots", "slot_probabilities", "spans"}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A current folder with the user's file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BTTLAB_RUNS", str(tmp_path / "index"))
    shutil.copy(SOURCE, tmp_path / "net.py")
    return tmp_path


@pytest.fixture
def call(capsys):
    """Run a command line; returns its JSON, or its error of one line."""

    def call(*arguments: object):
        code = main([*map(str, arguments), "--json"])
        data = json.loads(capsys.readouterr().out)
        assert code == data.get("exit_code", 0)
        return data.get("error", data)

    return call


@pytest.fixture
def train(call, corpus):
    def train(name="Net", *options: object, out="run"):
        return call("train", "--model", f"net.py:{name}", "--data", corpus, "--out", out, *options)

    return train


@pytest.mark.long
def test_a_run_needs_its_folder_alone(place, call, train):
    trained = train("Net", "--samples", 20, "--seed", 3)
    assert trained["status"] == "complete" and trained["module"] == "Net"
    assert trained["test"].keys() == {"mean_loss", "utterances", "intent_accuracy"}
    record = read_run(place / "run")
    assert record.configuration["module"] == "net.py:Net"
    assert record.configuration["module_sha256"] == hashlib.sha256(SOURCE.read_bytes()).hexdigest()
    assert record.value("dev.intent_accuracy") is not None and record.value("dev.slot_f1") is None
    assert record.value("u50.joules") > 0
    (place / "net.py").unlink()
    assert (place / "run" / "model.py").read_bytes() == SOURCE.read_bytes()
    scores = call("eval", "--run", "run")
    assert {key: scores[key] for key in trained["test"]} == trained["test"]
    (found,) = call("predict", "fli please to a x", "--run", "run")["predictions"]
    assert found["intent"] in ("flight", "fare") and found.keys() == {
        "words",
        "intent",
        "intent_probability",
        "unknown",
    }


def test_the_browser_opens_a_run_of_a_module(place, call, train):
    trained = train("Net", "--samples", 20, "--seed", 3)
    (place / "net.py").unlink()
    browser = RunBrowser()
    opened = ReferenceTrainer(browser.model())
    opened.load_parameters(browser.checkpoint().parameters)
    assert tensors_digest(opened.store_parameters()) == trained["parameters_sha256"]


def test_a_resumed_run_has_the_bits_of_an_unbroken_one(place, call, train):
    options = ("--samples", 12, "--optimizer", "momentum")
    whole = train("Both", *options, "--epochs", 2, out="whole")
    train("Both", *options)
    assert "--model: a run continues as it began" in call("train", "--resume", "run", "--model", "net.py:Net")
    assert "--rank: a run continues as it began" in call("train", "--resume", "run", "--rank", 6)
    resumed = call("train", "--resume", "run", "--epochs", 2)
    assert resumed["parameters_sha256"] == whole["parameters_sha256"]
    assert metrics(place / "run") == metrics(place / "whole")


@pytest.mark.parametrize(
    ("name", "scores", "labels"),
    [
        ("Tagger", {"slot_f1"}, TAGS),
        ("Both", {"intent_accuracy", "slot_f1", "frame_accuracy"}, {"intent", "intent_probability"} | TAGS),
        ("Language", {"perplexity"}, {"next"}),
    ],
)
def test_labels_decide_losses_and_scores_on_the_card_as_in_pytorch(call, train, name, scores, labels):
    options = ("--samples", 12, "--lr", 0.02)
    card, reference = train(name, *options), train(name, *options, "--device", "reference", out="reference")
    assert card["test"].keys() == {"mean_loss", "utterances"} | scores
    assert card["last_epoch"]["losses"] == pytest.approx(reference["last_epoch"]["losses"], abs=1e-5)
    assert card["test"] == pytest.approx(reference["test"], abs=1e-4)
    (found,) = call("predict", "fli please to a x", "--run", "run")["predictions"]
    assert found.keys() == {"words", "unknown"} | labels
    assert scores <= call("eval", "--run", "run", "--decode-tags", "--report").keys()
    if name == "Tagger":
        assert call("runs", "export", "run", "--weights", "weights.safetensors")["exported"] == 1
        assert load_file("weights.safetensors").keys() == sample_modules.Tagger().state_dict().keys()


@pytest.mark.long
@pytest.mark.parametrize("cards", [1, 2])
def test_a_frozen_table_in_the_hosts_memory(place, call, train, cards, monkeypatch):
    """The table fits no bank: its rows come in the samples' records, on one card and on two, and after a resume."""
    monkeypatch.setattr(pynq.Device, "_devices", [EmulatedU50() for _ in range(cards)], raising=False)
    options = ("--samples", 12, "--optimizer", "momentum", "--batch-size", 2, "--cards", cards)
    whole = train("Frozen", *options, "--epochs", 2, out="whole")
    train("Frozen", *options)
    resumed = call("train", "--resume", "run", "--epochs", 2)
    assert resumed["parameters_sha256"] == whole["parameters_sha256"]
    assert metrics(place / "run") == metrics(place / "whole")
    reference = train("Frozen", *options[:-2], "--epochs", 2, "--device", "reference", out="reference")
    assert whole["last_epoch"]["losses"] == pytest.approx(reference["last_epoch"]["losses"], abs=1e-5)
    trained, drawn = read_checkpoint(place / "run" / "checkpoint.safetensors"), load_module("net.py:Frozen")
    assert np.array_equal(trained.parameters["table.weight"], drawn.parameters()["table.weight"])
    assert not np.array_equal(trained.parameters["head.weight"], drawn.parameters()["head.weight"])
    for device in ("emulated", "reference"):
        (found,) = call("predict", "fli please to a x", "--run", "run", "--device", device)["predictions"]
        assert found.keys() == {"words", "unknown"} | TAGS


def test_initial_parameters_depend_on_the_seed_alone(place):
    def drawn(threads, seed=0):
        torch.set_num_threads(threads)
        parameters = module_of_source(SOURCE.read_bytes(), SOURCE, "Net", seed=seed).parameters()
        assert torch.get_num_threads() == threads
        return parameters

    assert tensors_digest(drawn(1)) == tensors_digest(drawn(2)) != tensors_digest(drawn(1, seed=1))


def test_a_language_model_predicts_the_word_that_follows(call, train):
    train("Language", "--epochs", 6, "--lr", 0.1)
    rows = call("predict", "fli please", "far", "--run", "run")["predictions"]
    assert [row["next"] for row in rows] == ["to", "please"]


def test_perplexity_is_over_words_not_over_sentences():
    splits = [Split([["a"], ["b", "c", "d"]], [["O"], ["O"] * 3], ["x", "x"])] * 3
    corpus = Corpus("two", None, ["x"], ["PAD", "O"], *splits)
    config = ModuleConfig("Net", "", ["language model"], 8, 9, 1, 9, {})
    predictions = Predictions(np.array([1, 3], np.float32), np.zeros(2, np.int32), np.zeros((2, 8), np.int32))
    scores = scores_of(predictions, corpus, "test", config)
    assert scores == {"mean_loss": 2.0, "utterances": 2, "perplexity": pytest.approx(math.exp((1 + 3 * 3) / 4))}


COMMANDS = (("eval", "--run", "run"), ("predict", "to", "--run", "run"), ("train", "--resume", "run", "--epochs", 2))


def test_code_of_others_does_not_run(place, call, train):
    train("Tagger", "--samples", 2, "--device", "reference")
    copy = place / "run" / "model.py"
    trap = "open('ran', 'w').close()\n"
    copy.write_text(copy.read_text() + trap)
    for command in COMMANDS:
        assert "model.py is not the file that the run was started with" in call(*command)
    assert not (place / "ran").exists()
    assert "slot_f1" in call("eval", "--run", "run", "--trust") and (place / "ran").exists()
    assert "slot_f1" not in call("eval", "--run", "run")  # trust is for one command
    copy.write_bytes(SOURCE.read_bytes())
    assert "slot_f1" in call("eval", "--run", "run")
    copy.write_text(copy.read_text().replace("nn.Embedding(40", "nn.Embedding(41"))
    assert "model.py makes another model than that of the run's checkpoint" in call("eval", "--run", "run", "--trust")


def test_a_run_of_another_user_runs_no_code(place, call, train, monkeypatch):
    """The digests of a run from elsewhere agree: who made the module made the checkpoint, too."""
    (place / "net.py").write_text(SOURCE.read_text() + "open('ran', 'a').close()\n")
    (place / "theirs").mkdir()
    with monkeypatch.context() as another:
        another.setenv("XDG_DATA_HOME", str(place / "theirs"))
        train("Tagger", "--samples", 2, "--device", "reference")
    secret = place / "theirs" / "bttlab" / "secret"
    assert secret.stat().st_size == 32 and secret.stat().st_mode & 0o777 == 0o600
    (place / "ran").unlink()
    for command in COMMANDS:
        said = call(*command)
        assert "run/model.py was not put there by a training of yours on this machine; read it, and" in said
        assert "--trust" in said
    assert not (place / "ran").exists()
    (place / "run" / "model.seal").unlink()
    assert "was not put there by a training of yours" in call(*COMMANDS[0])
    assert "slot_f1" in call("eval", "--run", "run", "--trust") and (place / "ran").exists()


def test_a_secret_that_others_can_read_seals_nothing(place, call, train, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(place / "data"))
    train("Tagger", "--samples", 2, "--device", "reference")
    assert "slot_f1" in call(*COMMANDS[0])
    secret = place / "data" / "bttlab" / "secret"
    secret.chmod(0o644)
    assert "was not put there by a training of yours" in call(*COMMANDS[0])
    trained = train("Tagger", "--samples", 2, "--device", "reference", out="second")
    assert trained["status"] == "complete" and not (place / "second" / "model.seal").exists()
    secret.unlink()
    assert train("Tagger", "--samples", 2, "--device", "reference", out="third")["status"] == "complete"
    assert "slot_f1" in call("eval", "--run", "third") and "not put there" in call(*COMMANDS[0])


def test_a_run_keeps_the_files_that_its_module_imports(place, call, train, monkeypatch):
    """Another folder has files of the same names, with other blocks in them, and is where the later commands run."""
    (place / "blocks").mkdir()
    (place / "blocks" / "__init__.py").write_text("from blocks.sizes import WIDTH\n")
    (place / "blocks" / "sizes.py").write_text("WIDTH = 40\n")
    source = SOURCE.read_text().replace("import torch\n", "import torch\nfrom blocks import WIDTH\n", 1)
    (place / "net.py").write_text(source.replace("nn.Embedding(40", "nn.Embedding(WIDTH"))
    trained = train("Tagger", "--samples", 4, "--device", "reference")
    assert {path.name for path in (place / "run" / "model_files").rglob("*.py")} == {"__init__.py", "sizes.py"}
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")
    monkeypatch.syspath_prepend(str(place / "elsewhere"))
    (place / "elsewhere" / "blocks.py").write_text("WIDTH = 41\nopen('ran', 'w').close()\n")
    shutil.rmtree(place / "blocks")
    scores = call("eval", "--run", place / "run")
    assert scores["slot_f1"] == trained["test"]["slot_f1"] and not (place / "elsewhere" / "ran").exists()
    (place / "run" / "model_files" / "blocks" / "sizes.py").write_text("WIDTH = 2\n")
    assert "is not the file that the run was started with" in call("eval", "--run", place / "run")


def test_files_that_forward_imports_are_kept_and_found_at_every_call(place, call, train, monkeypatch):
    (place / "scales.py").write_text("ONE = 1.0\n")
    (place / "helper.py").write_text("def scale():\n    from scales import ONE\n    return ONE\n")
    source = SOURCE.read_text()
    head = "    def forward(self, tokens):\n"
    assert source.count(head) > 1
    body = f"{head}        from helper import scale\n        assert scale() == 1.0\n"
    (place / "net.py").write_text(source.replace(head, body))
    trained = train("Tagger", "--samples", 4, "--device", "reference")
    assert {path.name for path in (place / "run" / "model_files").iterdir()} == {"helper.py", "scales.py"}
    (place / "helper.py").write_text("raise RuntimeError('of another folder')\n")
    monkeypatch.syspath_prepend(str(place))
    assert call("eval", "--run", "run")["slot_f1"] == trained["test"]["slot_f1"]


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(place, train):
    (place / "run").mkdir()
    shutil.copy(SOURCE, place / "run" / "model.py")
    assert train("Tagger", "--samples", 2, "--device", "reference")["status"] == "complete"
    (place / "other").mkdir()
    (place / "other" / "model.py").write_text("something else\n")
    assert "other exists and is not empty" in train("Tagger", out="other")
    assert (place / "other" / "model.py").read_text() == "something else\n"


def test_what_goes_wrong_is_one_line(place, call, train, corpus):
    assert "there is no absent.py; give FILE.py:CLASS" in call("train", "--model", "absent.py:Net")
    assert "net.py has no class Absent; there are: Net, Pooled, Small" in train("Absent")
    assert "net.py:Sized is called without arguments (missing a required argument: 'width')" in train("Sized")
    assert "sequence_length is 0, it must be from 2 to" in train("Net", "--sequence-length", 0)
    lines = SOURCE.read_text().splitlines()
    number = next(n for n, line in enumerate(lines, 1) if "return undefined" in line)
    assert f"net.py:broken, line {number}: NameError: name 'undefined' is not defined" in train("broken")
    assert "net.py:Pooled: Pooled: amax is not supported on the card; use x.mean(1), x[:, 0], or attention" in train(
        "Pooled"
    )
    assert "slot_label.txt has 5 slot labels, the model 4" in train("Few")
    assert "--encoders: a module has sizes of its own" in train("Net", "--encoders", 2)
    (place / "wrong.py").write_text("class Net(\n")
    assert "wrong.py:Net: SyntaxError" in call("train", "--model", "wrong.py:Net")
    (place / "exits.py").write_text("import sys\n\nsys.exit(0)\n")
    assert "exits.py:Net, line 3: SystemExit: 0" in call("size", "--model", "exits.py:Net")
    assert not (place / "run").exists()
    plain = shutil.copytree(corpus, place / "plain")
    for split in ("train", "dev", "test"):
        (plain / split / "seq.out").write_text((plain / split / "seq.out").read_text().replace("B-city I-city", "O O"))
    wanted = f"Tagger gives a label for each token, and all of {plain} have the tag O"
    assert wanted in call("train", "--model", "net.py:Tagger", "--data", plain)


OTHER = """
import sys
from torch import nn
from sample_modules import Tagger

class Other(Tagger):
    def encode(self, tokens):  # no rule of the recorder sees the condition
        return super().encode(tokens) if tokens.shape[1] > 4 else self.table(tokens)

class Exits(Tagger):
    def forward(self, tokens):
        sys.exit(0)
"""
DOORS = (
    "train --data {corpus} --out run",
    "size",
    "program",
    "estimate --data {corpus}",
    "baseline --device cpu --steps 1 --data {corpus}",
)


@pytest.mark.parametrize("door", DOORS)
def test_every_command_refuses_what_would_train_as_something_else(place, call, corpus, door):
    (place / "other.py").write_text(OTHER)
    command, *options = door.format(corpus=corpus).split()
    wanted = {
        "Other": "other.py:Other: Other: the output for 2 tokens differs from what was traced by ",
        "Exits": "other.py:Exits, line 12: Exits.forward fails in PyTorch on 8 tokens (SystemExit: 0)",
    }
    for name, message in wanted.items():
        assert message in call(command, "--model", f"other.py:{name}", *options)
    assert not (place / "run").exists()


def test_so_do_a_sweep_and_a_dashboards_module(place, call, corpus):
    (place / "other.py").write_text(OTHER)
    message = "other.py:Other: Other: the output for 2 tokens differs from what was traced by "
    (place / "nets.yaml").write_text(
        f"fixed: {{data: {corpus}, device: reference}}\nvary: {{model: [other.py:Other]}}\n"
    )
    assert message in call("sweep", "nets.yaml", "--out", "sweep")
    with pytest.raises(ProgramError, match=message):
        load_module("other.py:Other")


def test_sizes_of_a_module_and_its_task(capsys):
    assert main(["size", "--model", "net.py:Net", "--json"]) == 0
    printed = capsys.readouterr()
    (size,) = json.loads(printed.out)["sizes"]
    assert printed.err.startswith("Net: classification (a label for each sample); up to ")
    dense = torch.nn.TransformerEncoderLayer(64, 2, 256)
    count = 2 * sum(p.numel() for p in dense.parameters()) + 100 * 64 + 65 * 22
    assert (size["module"], size["dense_parameters"]) == ("Net", count)
    assert size["tensor_parameters"] == sum(p.numel() for p in Net().parameters())


def test_a_module_without_its_class_is_named_with_the_form(call):
    form = "FILE.py:CLASS for a module"
    assert form in call("size", "--model", "net.py") and form in call("size", "--model", "net:Net")
