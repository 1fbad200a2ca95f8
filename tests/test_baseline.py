"""Baselines: they train what the reference trains, in every mode, and say what is wrong with bad input."""

import contextlib
import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bttlab.baseline import BaselineSetting, Energy, Listener, Quantity, Record, run_baseline
from bttlab.baseline import run as run_module
from bttlab.baseline.modes import prepare
from bttlab.baseline.run import FORMATS
from bttlab.baseline.step import Task
from bttlab.baseline.timing import HostClock, timed_steps
from bttlab.cli import main
from bttlab.commands.baseline import _text as baseline_text
from bttlab.compiler.module_file import module_of_source
from bttlab.data import Vocabulary, encode, epoch_order, load_corpus
from bttlab.model import LEARNING_RATES, ModelConfig, NumericalFault, Optimizer, ReferenceTrainer, predict
from bttlab.util.errors import BttlabError
from command_line import run_json
from tiny_baseline import LEARNING_RATE, TINY, samples, tiny_baseline, tiny_task

from conftest import ROOT

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NEVER = threading.Event()


@pytest.mark.parametrize("format", FORMATS)
def test_losses_are_those_of_the_reference_trainer(format):
    record = tiny_baseline(format, DEVICE, steps=30, seed=3)
    kind, flow = FORMATS[format]
    config = ModelConfig(**TINY.to_dict() | {"format": kind})
    reference = ReferenceTrainer(config, flow or "bidirectional", seed=3)
    losses = reference.train(samples(30, config, seed=3), Optimizer("sgd"), LEARNING_RATE)
    np.testing.assert_allclose(record.measurement.losses, losses, rtol=1e-4)


def test_steps_beyond_an_epoch_take_the_next_epochs_order(corpus):
    record = tiny_baseline("btt", "cpu", data=corpus, steps=30)
    assert len(record.measurement.losses) == 30 and record.corpus.samples == 24 and record.corpus.name == "tiny"


def test_batches_have_one_length_and_train_on_their_mean_loss(corpus):
    """The first step's loss is the mean of its samples' losses at the initial parameters."""
    record = tiny_baseline("btt", "cpu", data="airline", steps=3, batch=4, seed=3)
    order = samples(64, seed=3)
    first = next(n for n in range(64) if (order.lengths[: n + 1] == order.lengths[n]).sum() == 4)
    alike = order[np.flatnonzero(order.lengths[: first + 1] == order.lengths[first])]
    model = ReferenceTrainer(TINY, seed=3)
    losses = [model.train(alike[n], Optimizer("sgd"), 1e-30)[0] for n in range(4)]
    assert record.measurement.losses[0] == pytest.approx(np.mean(losses), rel=1e-5)
    assert record.batch == 4
    few = tiny_baseline("btt", "cpu", data=corpus, steps=5, batch=16)  # more than the corpus has of a length
    assert len(few.measurement.losses) == 5 and "batch 16" in few.label_of()


@pytest.mark.parametrize("format", FORMATS)
def test_graph_mode_replays_the_graph_of_each_length(format, monkeypatch):
    """With CUDA's part faked: which graph is replayed when, and where the cursor stands."""
    run_step, capturing = Task.step_at_cursor, []

    def step_or_capture(task, length, function):
        if capturing:
            capturing[0].replay = lambda: run_step(task, length, function)
        else:
            run_step(task, length, function)

    @contextlib.contextmanager
    def capture(graph, pool, stream):
        capturing.append(graph)
        yield
        capturing.clear()

    monkeypatch.setattr(Task, "step_at_cursor", step_or_capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "Stream", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", SimpleNamespace)  # what is captured runs at a replay only
    monkeypatch.setattr(torch.cuda, "graph", capture)
    eager, graphs = tiny_task(format, 40), tiny_task(format, 40)
    step = prepare(graphs, "graphs", NEVER)
    graphs.restart()
    assert len(set(graphs.lengths)) > 1
    _, expected = timed_steps(eager, lambda index: eager.step(index, eager.loss), HostClock(), None, NEVER)
    _, losses = timed_steps(graphs, step, HostClock(), None, NEVER)
    assert losses == expected


@pytest.fixture
def two_modes(monkeypatch):
    """Let the CPU have the mode "graphs", whose step is what `two_modes.step` says."""
    ways = SimpleNamespace(step=lambda task, index: task.step(index, task.loss))

    def prepared(task, mode, stop):
        return (lambda index: ways.step(task, index)) if mode == "graphs" else prepare(task, mode, stop)

    monkeypatch.setattr(run_module, "modes_of", lambda device: ("eager", "graphs"))
    monkeypatch.setattr(run_module, "prepare", prepared)
    return ways


def test_a_mode_that_fails_is_skipped_with_the_reason(two_modes):
    def broken(task, index):
        raise RuntimeError("no capture of /home/somebody/kernel\nmore")

    two_modes.step = broken
    record = tiny_baseline("dense", "cpu", steps=2, modes=None)
    assert record.best == "eager" and record.skipped == {"graphs": "RuntimeError: no capture of kernel"}
    with pytest.raises(BttlabError, match=r"no mode gave a measurement \(graphs: RuntimeError"):
        tiny_baseline("dense", "cpu", steps=2, modes=["graphs"])


def test_a_mode_that_trains_another_model_is_skipped(two_modes):
    two_modes.step = lambda task, index: task.step(index, lambda *sample: 1.1 * task.loss(*sample))
    record = tiny_baseline("dense", "cpu", steps=5, modes=None)
    assert record.best == "eager" and "differ from eager's by" in record.skipped["graphs"]


def test_callbacks_and_stop(two_modes):
    seen, started, stop = [], [], threading.Event()

    def on_step(step, loss, seconds):
        seen.append((step, loss, seconds))
        if step == 4:
            stop.set()

    record = tiny_baseline("btt", "cpu", Listener(on_step, started.append, stop), steps=50, modes=None)
    assert [step for step, _, _ in seen] == [0, 1, 2, 3, 4] and started == ["eager"]
    assert record.measurement.losses == pytest.approx([loss for _, loss, _ in seen])
    assert record.measurement.step_seconds == pytest.approx([seconds for _, _, seconds in seen], rel=1e-4)
    assert record.skipped == {"graphs": "stopped before it began"} and record.steps == 50
    with pytest.raises(BttlabError, match="stopped before it began"):
        tiny_baseline("btt", "cpu", Listener(stop=stop))


def test_the_model_is_evaluated_at_the_steps_asked_for():
    seen = []

    def evaluate(taken, model):
        seen.append((taken, predict(model, samples(12)).losses.mean()))

    record = tiny_baseline("btt", "cpu", Listener(evaluate=evaluate, evaluate_at=[1, 20, 40, 60]), steps=40)
    assert [taken for taken, _ in seen] == [1, 20, 40]
    trainer = ReferenceTrainer(TINY, seed=0)
    every = samples(40)
    losses = trainer.train(every, Optimizer("sgd"), LEARNING_RATE)
    np.testing.assert_allclose(record.measurement.losses, losses, rtol=1e-4)
    assert seen[-1][1] == pytest.approx(trainer.predict(samples(12)).losses.mean(), rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "sparse"}, "format 'sparse': choose one of dense, tt, btt"),
        ({"device": "tpu"}, "device 'tpu': choose cpu or cuda"),
        ({"steps": 0}, "steps is 0: "),
        ({"learning_rate": -1.0}, "learning_rate is -1"),
        ({"modes": ["graphs"]}, "mode 'graphs': cpu has eager"),
        ({"data": "no/such/folder"}, "no/such/folder is not a folder"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(BttlabError, match=message):
        run_baseline(BaselineSetting(**{"format": "btt", "device": "cpu", "config": TINY} | arguments))


@pytest.mark.parametrize(("cuda", "message"), [(None, "built without CUDA"), ("12.8", "no usable NVIDIA GPU")])
def test_cuda_that_is_not_there(cuda, message, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BttlabError, match=message):
        tiny_baseline("btt", "cuda")


def test_a_learning_rate_that_diverges():
    with pytest.raises(NumericalFault, match="go on with a lower learning rate"):
        tiny_baseline("dense", "cpu", learning_rate=1e30)


def test_gpu_out_of_memory(monkeypatch):
    def full(task, index, function):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.25 GiB. GPU 0 has a total of …")

    monkeypatch.setattr(Task, "step", full)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (3 * 2**20, 2**34))
    with pytest.raises(BttlabError, match=r"another 2\.25 GiB with 3 MiB of 16,384 MiB free; end what else uses it"):
        tiny_baseline("dense", "cpu")


def test_command_line(tmp_path, capsys):
    model = tmp_path / "tiny.toml"
    model.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in TINY.to_dict().items()))
    path = tmp_path / "new folder" / "btt.json"
    common = ["baseline", "--format", "btt", "--device", "cpu", "--data", "airline", "--steps", "4", "--modes", "eager"]
    common += ["--model", str(model)]
    assert main([*common, "--record", str(path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == Record.read(path).to_dict() and record["config"]["hidden_size"] == TINY.hidden_size
    assert list(path.parent.iterdir()) == [path]
    assert main(common) == 0
    output = capsys.readouterr().out
    assert "btt, 1 encoders, 4 steps" in output and "eager" in output and "<- best" in output
    kept = Record.read(path)
    energy = Energy(4, Quantity.measured(2.0, "J", "by hand"), Quantity.measured(0.5, "J", "by hand"))
    kept.modes["eager"] = replace(kept.measurement, energy=energy)
    seconds = 4478 * np.mean(kept.measurement.step_seconds)
    wanted = f"epoch {seconds:.1f} s (extrapolated), 8956 J, 2239 J over idle (extrapolated) <- best"
    assert wanted in baseline_text(kept) and "all measured" not in baseline_text(kept)


@pytest.mark.parametrize("batch", [1, 2])
def test_an_epoch_has_the_samples_of_the_corpus_as_an_estimate_counts_them(corpus, capsys, batch):
    record = tiny_baseline("btt", "cpu", data=corpus, steps=4, batch=batch)
    counted = run_json(capsys, "estimate", "--encoders", "1", "--data", str(corpus))["estimates"][0]["samples"]
    assert counted == len(load_corpus(corpus).train) == record.corpus.samples
    text = baseline_text(record)
    assert f"an epoch is the {counted} training samples of tiny; its time and energy are extrapolated" in text
    seconds = counted / batch * np.mean(record.measurement.step_seconds)
    assert f"epoch {seconds:.1f} s (extrapolated)" in text


@pytest.mark.parametrize("name", ["Both", "Language"])
def test_a_module_of_the_users_own_is_trained_as_it_is(corpus, tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    source = (ROOT / "tests" / "helpers" / "sample_modules.py").read_bytes()
    (tmp_path / "net.py").write_bytes(source)
    command = ["baseline", "--model", f"net.py:{name}", "--data", str(corpus)]
    measured = [*command, "--device", "cpu", "--steps", "8", "--seed", "3", "--modes", "eager", "--record", "net.json"]
    assert main(measured) == 0 and f"module, {name}, 8 steps" in capsys.readouterr().out
    record = Record.read("net.json")
    model, corpus = module_of_source(source, Path("net.py"), name, seed=3), load_corpus(corpus)
    vocabulary = Vocabulary.from_sentences(corpus.train.words, model.vocabulary_size)
    order = epoch_order(len(corpus.train), 3, 0)[:8]
    samples = encode(corpus.train, vocabulary, corpus, model)[order]
    losses = ReferenceTrainer(model).train(samples, Optimizer("sgd"), LEARNING_RATES["sgd"])
    np.testing.assert_allclose(record.measurement.losses, losses, rtol=1e-5)
    assert record.label_of().startswith(f"module, {name}, ")
    assert main([*command, "--device", "cpu", "--format", "btt"]) == 2
    assert "a module is trained as it is; leave --format out" in capsys.readouterr().err


BLOCKED = """
import sys
BLOCKED = {"pynq", "ipywidgets", "matplotlib", "zeus", "seqeval", "tensorly", "opt_einsum", "platformdirs",
           "safetensors", "scipy"}
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
import bttlab.tensor
for name in bttlab.tensor.__all__:
    getattr(bttlab.tensor, name)
from bttlab.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.long
def test_torch_and_numpy_are_enough():
    arguments = ["baseline", "--format", "btt", "--device", "cpu", "--steps", "5", "--modes", "eager", "--json"]
    corpus = str(run_module.load_corpus("airline").folder)
    command = [sys.executable, "-c", BLOCKED, *arguments, "--data", corpus]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert len(json.loads(result.stdout)["modes"]["eager"]["losses"]) == 5
