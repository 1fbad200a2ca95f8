"""The run loop: what it trains, writes and reports, and that a run continues to the bits of an unbroken one."""

import errno
import io
import json
import os
import shutil
import signal
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from bttlab.cli import main
from bttlab.data import Vocabulary, encode, epoch_order, load_corpus
from bttlab.model import ModelConfig, NumericalFault, Optimizer, ReferenceTrainer, initial_parameters
from bttlab.runs import (
    CheckpointStore,
    DivergedRun,
    RunError,
    read_checkpoint,
    read_run,
    resume_run,
    start_run,
    stop,
    tensors_digest,
)
from bttlab.runs.folder import run_lock
from bttlab.util.errors import BttlabError
from command_line import run_json
from tiny_runs import CONFIG, DEVICE, SIZES, Interrupter, metrics, resume, settings, train, write_corpus


def interrupt():
    signal.raise_signal(signal.SIGINT)


def interrupt_twice():
    interrupt()
    interrupt()


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours catches it."""


def kill():
    raise Killed


def test_trains_as_a_plain_loop_does(tmp_path, corpus):
    result = train(tmp_path / "run", corpus, epochs=2, seed=5)
    data, trainer = load_corpus(corpus), ReferenceTrainer(CONFIG)
    vocabulary = Vocabulary.from_sentences(data.train.words, CONFIG.vocabulary_size)
    samples = encode(data.train, vocabulary, data, CONFIG)
    trainer.load_parameters(initial_parameters(CONFIG, 5))
    losses = [trainer.train(samples[epoch_order(len(samples), 5, epoch)], Optimizer("sgd"), 4e-2) for epoch in (0, 1)]
    assert result.parameters_sha256 == tensors_digest(trainer.store_parameters())
    means = [line["mean_loss"] for line in metrics(tmp_path / "run") if line["event"] == "epoch"]
    assert means == [np.mean(epoch, dtype=np.float64) for epoch in losses]
    assert means[1] < means[0]
    checkpoint, warning = CheckpointStore(tmp_path / "run").load()
    assert warning is None and tensors_digest(checkpoint.parameters) == result.parameters_sha256


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
def test_interrupted_runs_continue_to_the_same_bits(tmp_path, corpus, optimizer):
    whole = train(tmp_path / "whole", corpus, optimizer)
    # In the first chunk; amid the first epoch; then, of what is left, amid scoring dev; at last amid scoring test.
    first = train(tmp_path / "run", corpus, optimizer, trainer=Interrupter(1, interrupt))
    assert (first.signal, first.epochs_done, first.position, first.test) == (signal.SIGINT, 0, 1, None)
    stopped = read_run(tmp_path / "run")
    second = resume(tmp_path / "run", trainer=Interrupter(2, interrupt_twice))
    assert second.epochs_done == 0 and 1 < second.position < SIZES["train"]
    trainer = Interrupter(0, None)
    trainer.predict = lambda samples: (interrupt(), ReferenceTrainer.predict(trainer, samples))[1]
    third = resume(tmp_path / "run", trainer=trainer)
    assert (third.epochs_done, third.position) == (0, SIZES["train"])
    last = resume(tmp_path / "run")
    assert last.signal is None and last.parameters_sha256 == whole.parameters_sha256
    record = read_run(tmp_path / "run")
    assert (stopped.status, record.status) == ("stopped", "complete")
    assert (record.id, record.begun) == (stopped.id, stopped.begun)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    stored = [CheckpointStore(tmp_path / name).load()[0] for name in ("run", "whole")]
    assert tensors_digest(stored[0].optimizer_state) == tensors_digest(stored[1].optimizer_state)


def test_a_run_killed_between_metrics_and_checkpoint_has_each_epoch_once(tmp_path, corpus, monkeypatch):
    whole = train(tmp_path / "whole", corpus)
    with monkeypatch.context() as patch:
        save = CheckpointStore.save
        patch.setattr(
            CheckpointStore, "save", lambda store, c, *more: kill() if c.epochs_done == 2 else save(store, c, *more)
        )
        with pytest.raises(Killed):
            train(tmp_path / "run", corpus)
    assert [line["epoch"] for line in metrics(tmp_path / "run")] == [1, 2]
    (tmp_path / "run" / ".checkpoint.safetensors.1.draft").write_bytes(b"torn")
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"event": "epoch", "epo')
    assert resume(tmp_path / "run").parameters_sha256 == whole.parameters_sha256
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path / "run")) == sorted(os.listdir(tmp_path / "whole"))


def test_more_epochs_continue_as_if_asked_for_at_once(tmp_path, corpus):
    whole = train(tmp_path / "whole", corpus, "adamw", epochs=3)
    train(tmp_path / "run", corpus, "adamw", epochs=1)
    assert resume(tmp_path / "run", epochs=3).parameters_sha256 == whole.parameters_sha256
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    assert resume(tmp_path / "run").parameters_sha256 == whole.parameters_sha256  # nothing left but the test
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


def test_the_record_of_a_stopped_run_has_all_its_samples_and_both_devices(tmp_path, corpus):
    train(tmp_path / "run", corpus, epochs=1)
    result = resume_run(tmp_path / "run", {"epochs": 3}).train(Interrupter(1, interrupt), "another device")
    figures = read_run(tmp_path / "run").figures
    assert 0 < result.position < SIZES["train"] and result.epochs_done == 1
    assert figures["samples"]["value"] == SIZES["train"] + result.position
    assert figures["seconds"]["how"].endswith(f"around training on {DEVICE} and another device")
    assert figures["dev.slot_f1"]["how"] == f"on the dev split, after {SIZES['train']} samples, on {DEVICE}"
    assert figures["loss"]["how"] == f"mean of the last epoch, on {DEVICE}"
    assert not [name for name in figures if name.startswith("test.")]  # that of epoch 1 is of other parameters
    with pytest.raises(BttlabError, match=r"--epochs 1: \d+ samples? of epoch 2 are trained already; give at least 2"):
        resume(tmp_path / "run", epochs=1)
    resume(tmp_path / "run")
    figures = read_run(tmp_path / "run").figures
    assert figures["samples"]["value"] == 3 * SIZES["train"] and figures["test.slot_f1"]["how"].endswith(DEVICE)


def test_the_best_epoch_is_the_best_of_all_epochs_after_keep_last(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr("bttlab.runs.run.is_better", lambda scores, dev: scores["mean_loss"] < dev["mean_loss"])
    train(tmp_path / "whole", corpus, epochs=3, keep="best")
    train(tmp_path / "run", corpus, epochs=1, keep="best")
    resume(tmp_path / "run", epochs=3, keep="last")
    best = [read_checkpoint(tmp_path / name / "checkpoint.best.safetensors") for name in ("whole", "run")]
    assert best[0].epochs_done == best[1].epochs_done > 1


def test_a_damaged_record_is_not_replaced(tmp_path, corpus):
    train(tmp_path / "run", corpus, epochs=1)
    id, path = read_run(tmp_path / "run").id, tmp_path / "run" / "run.json"
    whole = path.read_text()
    for text in ("{", whole.replace('"format": 1', '"format": 2')):
        path.write_text(text)
        with pytest.raises(BttlabError, match=r"run\.json is no record of a run"):
            resume(tmp_path / "run", epochs=2)
        assert path.read_text() == text
    path.write_text(whole)
    assert resume(tmp_path / "run", epochs=2).epochs_done == 2 and read_run(tmp_path / "run").id == id


def test_a_finished_run_keeps_the_learning_rate_that_it_was_trained_with(tmp_path, corpus, capsys):
    train(tmp_path / "run", corpus, epochs=1)
    rate = read_run(tmp_path / "run").configuration["learning_rate"]
    assert run_json(capsys, "train", "--resume", tmp_path / "run", "--lr", "0.5")["learning_rate"] == rate


def test_a_process_that_resumes_late_does_not_undo_what_another_trained(tmp_path, corpus):
    """Both read the checkpoint of epoch 1; the first trains to epoch 3 before the second gets its device."""
    train(tmp_path / "run", corpus, epochs=1)
    first, second = (resume_run(tmp_path / "run", {"epochs": epochs}) for epochs in (3, 2))
    whole = first.train(ReferenceTrainer(CONFIG), DEVICE)
    lines = metrics(tmp_path / "run")
    for _ in range(2):  # as a cell of a notebook that is run again
        with pytest.raises(BttlabError, match=r"another process trained the run .*bttlab train --resume"):
            second.train(ReferenceTrainer(CONFIG), DEVICE)
    assert tensors_digest(CheckpointStore(tmp_path / "run").load()[0].parameters) == whole.parameters_sha256
    assert metrics(tmp_path / "run") == lines


def test_a_folder_that_is_removed_and_made_again_belongs_to_the_newer_run(tmp_path, corpus):
    """`rm -r R; train --out R` beside an old training, which holds the lock of a file that is gone."""

    def replace_folder():
        shutil.rmtree(tmp_path / "run")
        newer.append(train(tmp_path / "run", corpus, seed=1))

    newer = []
    with pytest.raises(RunError, match="was removed or replaced while this process trained in it"):
        train(tmp_path / "run", corpus, trainer=Interrupter(2, replace_folder))
    checkpoint, _ = CheckpointStore(tmp_path / "run").load()
    assert tensors_digest(checkpoint.parameters) == newer[0].parameters_sha256
    alone = train(tmp_path / "alone", corpus, seed=1)
    assert alone.parameters_sha256 == newer[0].parameters_sha256
    assert metrics(tmp_path / "run") == metrics(tmp_path / "alone")
    assert read_run(tmp_path / "run").status == "complete"


def test_the_best_epoch_is_kept_beside_the_last(tmp_path, corpus):
    interrupted = Interrupter(4, interrupt)
    train(tmp_path / "run", corpus, epochs=6, keep="best", learning_rate=0.3, trainer=interrupted)
    last = resume(tmp_path / "run")
    scores = [line["dev"]["frame_accuracy"] for line in metrics(tmp_path / "run") if line["event"] == "epoch"]
    best = 1 + scores.index(max(scores))
    assert 1 < best < 6, "the case shows nothing"
    found, _ = CheckpointStore(tmp_path / "run").load(best=True)
    assert found.epochs_done == best
    assert (
        tensors_digest(found.parameters)
        == train(tmp_path / "short", corpus, epochs=best, learning_rate=0.3).parameters_sha256
    )
    assert tensors_digest(CheckpointStore(tmp_path / "run").load()[0].parameters) == last.parameters_sha256
    assert main(["eval", "--run", str(tmp_path / "run"), "--split", "dev", "--best", "--json"]) == 0
    weights = ["runs", "export", str(tmp_path / "run"), "--weights", str(tmp_path / "best.safetensors"), "--best"]
    assert main(weights) == 0
    bias = found.parameters["encoders.0.query.bias"]
    assert np.array_equal(load_file(tmp_path / "best.safetensors")["encoders.0.query.bias"], bias)
    with pytest.raises(BttlabError, match="train with --keep best"):
        CheckpointStore(tmp_path / "short").load(best=True)


def test_a_complete_run_has_nothing_left(tmp_path, corpus):
    whole = train(tmp_path / "run", corpus, epochs=1)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    run = resume_run(tmp_path / "run")
    again = run.train(Interrupter(1, kill), DEVICE)  # neither trains nor predicts
    assert again == run.finished() and (again.test, again.epochs_done) == (whole.test, 1)
    assert again.parameters_sha256 == whole.parameters_sha256
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    assert resume_run(tmp_path / "run", {"epochs": 2}).finished() is None


def test_a_run_killed_before_its_record_was_written_is_complete_once_it_is_continued(tmp_path, corpus):
    train(tmp_path / "run", corpus, epochs=1)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(record | {"status": "running", "ended": ""}))
    assert read_run(tmp_path / "run").status == "interrupted"
    assert main(["train", "--resume", str(tmp_path / "run"), "--device", "reference"]) == 0
    assert read_run(tmp_path / "run").status == "complete"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_stop_as_ctrl_c_does_and_handlers_come_back(tmp_path, corpus, number):
    under_nohup = signal.signal(number, signal.SIG_DFL)
    try:
        result = train(tmp_path, corpus, trainer=Interrupter(3, lambda: signal.raise_signal(number)))
        assert result.signal == number and signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, under_nohup)


def test_a_run_under_nohup_goes_on_without_its_terminal(tmp_path, corpus):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        result = train(tmp_path, corpus, trainer=Interrupter(3, lambda: signal.raise_signal(signal.SIGHUP)))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert result.signal is None and result.test


def test_a_second_ctrl_c_ends_a_run_that_hangs(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr(stop, "PATIENCE_SECONDS", 0.05)

    def hang():
        interrupt()
        time.sleep(0.1)
        interrupt()

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, corpus, trainer=Interrupter(3, hang))


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_run_goes_on_without_its_stderr(tmp_path, corpus, monkeypatch, is_terminal):
    """The pipe of `bttlab train ... 2>&1 | head` has no reader any more, or the terminal has gone (EIO)."""

    class Gone(io.StringIO):
        def write(self, text):
            raise OSError(errno.EIO, os.strerror(errno.EIO)) if is_terminal else BrokenPipeError

        def isatty(self):
            return is_terminal

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", Gone())
        result = train(tmp_path / "run", corpus)
    assert result.test and result.parameters_sha256 == train(tmp_path / "shown", corpus).parameters_sha256


def test_a_loss_that_is_not_finite_stops_the_run_before_that_sample(tmp_path, corpus):
    whole = train(tmp_path / "whole", corpus, epochs=1)

    class Diverging(ReferenceTrainer):
        done = 0

        def train(self, samples, optimizer, learning_rate, label_smoothing):
            good = samples[: 10 - self.done]
            losses = super().train(good, optimizer, learning_rate[: len(good)], label_smoothing)
            self.done += len(good)
            if len(good) < len(samples):
                raise NumericalFault("loss", len(good), losses, learning_rate[len(good)])
            return losses

    utterance = epoch_order(SIZES["train"], 0, 0)[10]
    message = rf"epoch 1: the loss of sample 10 \(utterance {utterance} of .* learning rate 0.04; .* --resume .* --lr"
    with pytest.raises(DivergedRun, match=message):
        train(tmp_path / "run", corpus, epochs=1, trainer=Diverging(CONFIG))
    assert len(CheckpointStore(tmp_path / "run").load()[0].losses) == 10
    record = read_run(tmp_path / "run")
    assert record.status == "failed" and "sample 10" in record.error
    assert resume(tmp_path / "run").parameters_sha256 == whole.parameters_sha256


def test_parameters_that_have_grown_too_far(tmp_path, corpus):
    with pytest.raises(DivergedRun, match=r"learning rate 1e\+09"):
        train(tmp_path, corpus, learning_rate=1e9)
    checkpoint, _ = CheckpointStore(tmp_path).load()
    assert len(checkpoint.losses) >= 1 and np.isfinite(checkpoint.losses).all()
    assert all(np.isfinite(array).all() for array in checkpoint.parameters.values())
    for _ in range(2):  # too late for a lower one; but trying does not push out the checkpoint before it
        with pytest.raises(DivergedRun, match="start again"):
            resume(tmp_path, learning_rate=0.0)
    assert len(read_checkpoint(CheckpointStore(tmp_path).previous).losses) == 0


def test_resume_refuses_another_run(tmp_path, corpus):
    train(tmp_path / "run", corpus, epochs=2, samples=3)
    for changes, message in (
        *(
            ({name: 4}, f"--{name}: a run continues as it began")
            for name in ("encoders", "optimizer", "seed", "samples")
        ),
        ({"batch_size": 4}, "--batch-size: a run continues as it began; leave --batch-size out"),
        ({"unknown_labels": "unk"}, "--unknown-labels: a run continues"),
        ({"epochs": 1}, "--epochs 1: 2 are done"),
        ({"data": str(write_corpus(tmp_path / "other", seed=1))}, "is not the corpus tiny"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0: it must be greater than or equal to 0"),
    ):
        with pytest.raises(BttlabError, match=message):
            resume_run(tmp_path / "run", changes)
    run = resume_run(tmp_path / "run", {"data": str(write_corpus(tmp_path / "moved")), "learning_rate": 1e-3})
    assert run.settings.learning_rate == 1e-3


def test_a_folder_in_use_is_refused(tmp_path, corpus):
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    for name, message in (("file", "Not a directory"), ("full", "exists and is not empty")):
        with pytest.raises(RunError, match=message):
            train(tmp_path / name, corpus)
    (tmp_path / "free").mkdir()
    run = start_run(tmp_path / "free", settings(corpus), load_corpus(corpus))
    with run_lock(tmp_path / "free"), pytest.raises(RunError, match="another process trains"):
        run.train(ReferenceTrainer(CONFIG), DEVICE)
    assert [path.name for path in (tmp_path / "free").iterdir()] == [".lock"]


def test_a_trainer_of_another_model_is_refused(tmp_path, corpus):
    class Other:
        config = ModelConfig(encoders=2)

    run = start_run(tmp_path / "run", settings(corpus), load_corpus(corpus))
    with pytest.raises(RunError, match="encoders 2, not 1"):
        run.train(Other(), DEVICE)
    assert not (tmp_path / "run").exists()
