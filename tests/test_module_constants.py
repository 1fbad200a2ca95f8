"""A run's module is the one that was trained, in each later command: buffers, frozen parameters, numbers of files."""

import importlib.util
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from bttlab.card import load_overlay
from bttlab.cli import main
from bttlab.compiler.module_file import load_module
from bttlab.compiler.module_state import graph_digest, names_in_state, put_values, values_of
from bttlab.compiler.trace import trace
from bttlab.data import load_corpus
from bttlab.lab import Workload, baseline_targets, card_target
from bttlab.model import Optimizer
from bttlab.runs import CheckpointStore, read_checkpoint, read_run, resume_run, start_run
from bttlab.runs.checkpoint import pack
from bttlab.runs.settings import RunSettings
from bttlab.runs.sweep import Sweep
from bttlab.runs.sweep.spec import spec_of
from test_sweep import _Pool
from tiny_runs import metrics

# Each class takes values from another place; those of `np.random` and `random` are the process's own generators.
SOURCE = '''
import random
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn


class Base(nn.Module):
    """An intent for each sample, by features with a gate."""

    sequence_length = 8

    def __init__(self):
        super().__init__()
        self.table, self.layer, self.head = nn.Embedding(40, 32), nn.Linear(32, 32), nn.Linear(32, 5)
        self.made()

    def forward(self, tokens):
        return self.head(torch.tanh(self.layer(self.table(tokens) * self.factor())).mean(1))

    def made(self):
        self.register_buffer("gate", torch.randn(32))

    def factor(self):
        return self.gate


class Drawn(Base):
    pass


class Numpy(Base):
    def made(self):
        self.register_buffer("gate", torch.tensor(np.random.randn(32), dtype=torch.float32), persistent=False)
        self.table.weight.data.copy_(torch.tensor(np.random.randn(40, 32)))


class Plain(Base):
    """A number of Python's generator, and a permutation that is no buffer."""

    def made(self):
        self.number, self.places = random.uniform(1, 2), torch.randperm(32)
        self.register_buffer("gate", torch.randn(32))

    def factor(self):
        return self.number * self.gate[self.places]


class Frozen(Base):
    def made(self):
        self.w = nn.Parameter(torch.randn(32), requires_grad=False)

    def factor(self):
        return torch.exp(self.w)


class Read(Base):
    """Its buffer is from a file."""

    def made(self):
        self.register_buffer("gate", torch.tensor(np.load("gate.npy")))


class ReadNumber(Base):
    """Its number is from a file: nothing of it is in the checkpoint."""

    def made(self):
        self.number = float(np.load("gate.npy")[0])

    def factor(self):
        return self.number


class Clock(Base):
    """No seed decides its buffer."""

    def made(self):
        self.register_buffer("gate", torch.tensor(np.random.default_rng().normal(size=32), dtype=torch.float32))


class Tied(Base):
    """Layers that share a parameter, a buffer of whole numbers, and one that is left out of the state."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(32, 40)
        self.head.weight = self.table.weight

    def made(self):
        self.register_buffer("gate", torch.randn(32))
        self.register_buffer("places", torch.randperm(32))
        self.register_buffer("left_out", torch.randn(32), persistent=False)

    def factor(self):
        return (self.gate + self.left_out)[self.places]
'''
OPTIONS = ("--samples", 12, "--optimizer", "adamw", "--lr", 3e-3, "--seed", 5)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BTTLAB_RUNS", str(tmp_path / "index"))
    (tmp_path / "net.py").write_text(SOURCE)
    _write_gate(tmp_path, 1.0)
    return tmp_path


def _write_gate(place: Path, scale: float) -> None:
    np.save(place / "gate.npy", scale * np.random.default_rng(0).normal(size=32).astype(np.float32))


@pytest.fixture
def call(capsys):
    """Run a command line; returns its JSON, or its exit code and error."""

    def call(*arguments: object):
        code = main([*map(str, arguments), "--json"])
        data = json.loads(capsys.readouterr().out)
        assert code == data.get("exit_code", 0)
        return (code, data["error"]) if "error" in data else data

    return call


@pytest.fixture
def train(call, corpus):
    def train(name, *options: object, out="run"):
        return call("train", "--model", f"net.py:{name}", "--data", corpus, "--out", out, *OPTIONS, *options)

    return train


def _class(name: str) -> type[nn.Module]:
    """The class of the file, imported as a user does."""
    found = importlib.util.spec_from_file_location("their_net", "net.py")
    code = importlib.util.module_from_spec(found)
    found.loader.exec_module(code)
    return getattr(code, name)


@pytest.mark.parametrize("name", ["Drawn", "Numpy", "Plain", "Frozen", "Clock", "Tied"])
@pytest.mark.parametrize("device", ["emulated", "reference"])
def test_later_commands_have_the_trained_module(place, call, train, name, device):
    whole = train(name, "--epochs", 2, "--device", device, out="whole")
    trained = train(name, "--device", device)
    scores = call("eval", "--run", "run", "--device", device)
    assert {key: scores[key] for key in trained["test"]} == trained["test"]
    assert "predictions" in call("predict", "fli please", "--run", "run", "--device", device)
    resumed = call("train", "--resume", "run", "--epochs", 2)
    if name != "Clock":  # each run has a gate of its own
        assert resumed["parameters_sha256"] == whole["parameters_sha256"]
        assert metrics(place / "run") == metrics(place / "whole")
    scores = call("eval", "--run", "run", "--device", device)
    assert {key: scores[key] for key in resumed["test"]} == resumed["test"]


def test_a_resumed_run_goes_on_with_its_own_buffers(place, call, train):
    """No seed gives them again: the checkpoint has them."""
    train("Clock", "--epochs", 1)
    before = read_checkpoint(place / "run" / "checkpoint.safetensors").module
    call("train", "--resume", "run", "--epochs", 3)
    after = read_checkpoint(place / "run" / "checkpoint.safetensors").module
    assert np.array_equal(before.values["gate"], after.values["gate"])
    assert read_run(place / "run").configuration["graph.sha256"] == before.graph_sha256 == after.graph_sha256


def test_the_seed_is_of_all_generators_and_leaves_them_as_they_were(call, train):
    np.random.seed(7)  # noqa: NPY002
    random.seed(7)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    first = load_module("net.py:Plain", seed=5)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1] and random.getstate() == states[2]  # noqa: NPY002
    assert graph_digest(load_module("net.py:Plain", seed=5).graph) == graph_digest(first.graph)
    assert graph_digest(load_module("net.py:Plain", seed=6).graph) != graph_digest(first.graph)
    one, other = train("Numpy", out="one"), train("Numpy", out="other")
    assert one["parameters_sha256"] == other["parameters_sha256"] and one["test"] == other["test"]


def test_a_buffer_of_a_file_that_has_changed_is_the_trained_one(place, call, train):
    trained = train("Read")
    _write_gate(place, 3.0)
    scores = call("eval", "--run", "run")
    assert {key: scores[key] for key in trained["test"]} == trained["test"]


def test_another_number_of_a_file_is_refused(place, call, train):
    trained = train("ReadNumber")
    _write_gate(place, 3.0)
    for command in (
        ("eval", "--run", "run"),
        ("predict", "fli", "--run", "run"),
        ("train", "--resume", "run", "--epochs", 2),
    ):
        code, error = call(*command)
        assert code == 2 and "\n" not in error
        assert "model.py computes with other constants than the run was trained with (graph SHA-256 " in error
        assert "put back what it was trained with, or train again" in error
    _write_gate(place, 1.0)
    scores = call("eval", "--run", "run")
    assert {key: scores[key] for key in trained["test"]} == trained["test"]


def _again(place: Path, **changes) -> None:
    """Write the run's checkpoint with another `module`."""
    path = place / "run" / "checkpoint.safetensors"
    checkpoint = read_checkpoint(path)
    module = replace(checkpoint.module, **changes) if changes else None
    path.write_bytes(pack(replace(checkpoint, module=module)))


def test_a_checkpoint_without_buffers_loads_with_a_note(place, call, train, capsys):
    """As an earlier version wrote it."""
    trained = train("Frozen")
    _again(place)
    assert read_checkpoint(place / "run" / "checkpoint.safetensors").module is None
    assert main(["eval", "--run", "run"]) == 0
    assert "it is not checked that run/model.py computes with the constants" in capsys.readouterr().err
    assert call("eval", "--run", "run")["mean_loss"] == trained["test"]["mean_loss"]
    code, error = call("runs", "export", "run", "--weights", "weights.safetensors")
    assert code == 2 and "strict=False" in error
    assert call("train", "--resume", "run", "--epochs", 2)["status"] == "complete"
    assert read_checkpoint(place / "run" / "checkpoint.safetensors").module is not None


def test_a_graph_that_differs_by_rounding_is_a_note(place, call, train, capsys):
    """As of another version or processor, whose constants differ in the last bits."""
    trained = train("Drawn")
    outputs = read_checkpoint(place / "run" / "checkpoint.safetensors").module.outputs
    _again(place, graph_sha256="0" * 64, outputs=outputs * np.float32(1 + 1e-6))
    assert main(["eval", "--run", "run"]) == 0
    assert "traced to another graph than in training, whose outputs are equal within 0.0001" in capsys.readouterr().err
    assert call("eval", "--run", "run")["mean_loss"] == trained["test"]["mean_loss"]
    _again(place, outputs=outputs * np.float32(1 + 1e-3))
    assert "computes with other constants" in call("eval", "--run", "run")[1]


def test_a_trial_over_the_seed_is_evaluated_with_its_own_module(place, call, corpus):
    fixed = {"data": str(corpus), "samples": 12, "device": "reference", "model": f"{place}/net.py:Drawn"}
    values = {"fixed": fixed, "vary": {"seed": [0, 1]}, "objective": "dev.intent_accuracy", "maximize": True}
    spec = spec_of(values, "tiny")
    Sweep(spec, place / "sweep").run(_Pool({}.get))
    folders = [path.parent for path in (place / "sweep").glob("*/run.json")]
    assert len(folders) == 2
    for folder in folders:
        scores = call("eval", "--run", folder)
        assert scores["mean_loss"] == read_run(folder).value("test.mean_loss")
    gates = [CheckpointStore(folder).load()[0].module.values["gate"] for folder in folders]
    assert not np.array_equal(*gates)


@pytest.mark.parametrize("name", ["Drawn", "Tied", "Frozen", "Clock"])
def test_exported_weights_load_strictly_into_the_class(place, call, train, name):
    train(name, "--device", "reference")
    call("runs", "export", "run", "--weights", "weights.safetensors")
    network = _class(name)()
    network.load_state_dict(safetensors.torch.load_file("weights.safetensors"), strict=True)
    checkpoint = read_checkpoint(place / "run" / "checkpoint.safetensors")
    for parameter, tensor in network.named_parameters():
        assert np.array_equal(tensor.detach().numpy(), checkpoint.parameters[parameter])
    for buffer, tensor in network.named_buffers():
        if buffer != "left_out":
            assert np.array_equal(tensor.numpy(), checkpoint.module.values[buffer])
    with safetensors.safe_open("weights.safetensors", "np") as file:
        assert json.loads(file.metadata()["intent_labels"]) == checkpoint.corpus.intent_labels


def _workload(short_airline, name: str, **seed: int) -> Workload:
    text = SOURCE.replace("Embedding(40", "Embedding(800").replace("Linear(32, 5)", "Linear(32, 22)")
    Path("net.py").write_text(text)
    return Workload.of(load_corpus(short_airline), load_module(f"net.py:{name}", seed=2), **seed)


def test_a_workload_loads_a_module_with_its_seed(short_airline):
    as_loaded, other = _workload(short_airline, "Drawn"), _workload(short_airline, "Drawn", seed=3)
    assert (as_loaded.seed, as_loaded.config.seed, other.seed, other.config.seed) == (2, 2, 3, 3)
    back = other.with_seed(2)
    for name, array in as_loaded.config.parameters().items():
        assert np.array_equal(array, back.config.parameters()[name])
        assert not np.array_equal(array, other.config.parameters()[name])
    traced = Workload.of(as_loaded.corpus, trace(as_loaded.config.network, 8), seed=3)  # of no file: it stays
    assert (traced.seed, traced.config.seed) == (3, 0)
    assert np.array_equal(traced.config.parameters()["layer.weight"], as_loaded.config.parameters()["layer.weight"])


def test_a_card_has_no_program_of_other_constants(place):
    """The program's digest is the same: constants are loaded with the parameters."""
    one, other = (load_module("net.py:Drawn", seed=seed) for seed in (0, 1))
    trainer = load_overlay("trainer", "emulated").trainer_1
    digest = trainer.load_program(one).sha256
    assert trainer.has_program_for(one) and not trainer.has_program_for(other)
    assert trainer.load_program(other).sha256 == digest
    assert trainer.has_program_for(other) and not trainer.has_program_for(one)
    assert trainer.has_program_for(load_module("net.py:Drawn", seed=1))


def test_a_dashboards_seed_is_of_initial_parameters(short_airline):
    """On the card and in PyTorch: runs of a seed agree, and its record has the module that was trained."""
    workload, overlay = _workload(short_airline, "Drawn"), load_overlay("trainer", "emulated")
    targets = [card_target(overlay, workload, Optimizer("sgd")), *baseline_targets(workload)[-1:]]
    losses = {}
    for seed in (0, 1):
        for target in targets:
            run = target.make_run(20, 4e-3, "sgd", seed)
            run.start()
            run._thread.join()
            assert run.state == "finished", run.error
            losses[seed, target.name] = run.losses
            if hasattr(run, "_kept"):
                folder = run._kept.folder
                assert read_run(folder).configuration["seed"] == seed
                drawn = load_module("net.py:Drawn", seed=seed)
                kept = CheckpointStore(folder).load()[0].module
                assert np.array_equal(kept.values["gate"], drawn.values["gate"])
                assert kept.graph_sha256 == graph_digest(drawn.graph)
    card, pytorch = (target.name for target in targets)
    for seed in (0, 1):
        np.testing.assert_allclose(losses[seed, card], losses[seed, pytorch], rtol=1e-4)
    assert abs(losses[0, card][0] - losses[1, card][0]) > 1e-3


def test_start_run_loads_a_module_with_the_seed_of_the_settings(place, corpus):
    model = load_module("net.py:Drawn")
    how = {"device": "reference", "optimizer": Optimizer("sgd"), "learning_rate": 0.01}
    settings = RunSettings(config=model.config, data=str(corpus), seed=5, **how)
    run = start_run(place / "run", settings, load_corpus(corpus), model=model)
    assert np.array_equal(run.model.values["gate"], load_module("net.py:Drawn", seed=5).values["gate"])
    opened = run.open_trainer()
    result = run.train(opened.trainer, opened.device)
    again = resume_run(place / "run")
    assert again.finished().parameters_sha256 == result.parameters_sha256
    assert np.array_equal(again.model.values["gate"], run.model.values["gate"])


class _Kinds(nn.Module):
    """Buffers of types that a file of NumPy arrays has not, one whose elements share memory, and a shared parameter."""

    def __init__(self, seed: int):
        super().__init__()
        chance = torch.Generator().manual_seed(seed)
        draw = torch.randn(4, 2, generator=chance)
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
        self.b.weight = self.a.weight
        self.wide_one = nn.Parameter(draw[0].double(), requires_grad=False)
        self.register_buffer("bfloat", draw[1].bfloat16())
        self.register_buffer("complex", torch.complex(draw[2].double(), draw[3].double()))
        self.register_buffer("pairs", torch.complex(draw[2], draw[3]))
        self.register_buffer("wide", draw[:1, :1].expand(3, 4))
        self.register_buffer("flags", draw > 0)
        self.register_buffer("hidden", torch.tensor([float("-inf"), 0.0]))
        self.register_buffer("none", None)

    def get_extra_state(self):
        return 1


def test_values_of_all_types_come_back():
    one, other = _Kinds(0), _Kinds(1)
    assert put_values(other, values_of(one)) is None
    for name, tensor in [*one.named_buffers(), ("wide_one", one.wide_one)]:
        assert torch.equal(tensor, other.get_parameter(name) if name == "wide_one" else other.get_buffer(name)), name
    assert put_values(other, {"gone": np.zeros(1)}) == "gone"
    assert put_values(other, {"flags": np.zeros(3, bool)}) == "flags"
    names = names_in_state(one)
    assert names["b.weight"] == "a.weight" and names["_extra_state"] == "" and names["wide"] == "wide"
    assert list(names) == list(one.state_dict())
    assert "none" not in names
