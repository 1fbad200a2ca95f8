"""The dashboard's real targets: the emulated card, and PyTorch on the CPU."""

import time
from pathlib import Path

import numpy as np
import pytest

import sample_modules
from bttlab.card import load_overlay
from bttlab.compiler.module_file import load_module
from bttlab.data import load_corpus
from bttlab.estimate.card import estimate
from bttlab.lab import Dashboard, Workload, baseline_targets, card_and_gpu_target, card_target
from bttlab.model import ModelConfig, Optimizer, initial_parameters
from bttlab.runs import CheckpointStore, read_run, runs_folder, runs_table
from bttlab.runs.metrics import read_curves
from bttlab.runs.record import now
from bttlab.runs.table import where
from fake_trainer import our_threads, until

PLACES = "emulated U50", "modelled RTX-3090", "PyTorch CPU"


@pytest.fixture(scope="module")
def workload(short_airline):
    return Workload.of(load_corpus(short_airline), ModelConfig())


@pytest.fixture
def overlay():
    overlay = load_overlay("trainer", "emulated")
    overlay.trainer_1.load_program(ModelConfig())
    return overlay


def test_an_update_of_several_samples_has_a_program_with_sums(overlay, workload):
    """As `bttlab train --batch-size` has it, and the model of the U50 counts what that program takes."""
    trainer, config = overlay.trainer_1, workload.config
    for rule in (Optimizer("sgd", batch_size=4), Optimizer("sgd")):
        run = card_target(overlay, workload, rule).make_run(8, 4e-3)
        assert trainer._model_program.sums == (rule.batch_size > 1)
        wanted = estimate(config, [config.sequence_length], "sgd", batch_size=rule.batch_size)
        assert run.memory["tensors"].value == wanted.memory.bytes
        run.meter.advance(workload.train[:1], 1.0)
        took = estimate(config, workload.train.lengths[:1], "sgd", batch_size=rule.batch_size)
        assert run.meter.seconds == took.seconds_per_sample


def _folders(condition: str = "kind == 'training'") -> list[Path]:
    """The folders of the user's runs that a condition chooses."""
    return [Path(folder) for folder in where(runs_table([runs_folder()]), condition)["folder"]]


@pytest.fixture
def board(overlay, workload):
    made = Dashboard([card_target(overlay, workload), *baseline_targets(workload)], samples=100)
    yield made
    made.close()
    assert not our_threads()


def test_a_run_can_be_found_again_and_has_the_losses_of_one_call(board, overlay, workload, monkeypatch, tmp_path):
    monkeypatch.setenv("BTTLAB_RUNS", str(tmp_path))
    board.start()
    board.wait()
    (folder,) = _folders()
    record = read_run(folder)
    assert (record.kind, record.status, record.error) == ("training", "complete", "")
    assert read_curves(folder).samples[-1] == 100
    checkpoint, warning = CheckpointStore(folder).load()
    assert warning is None and len(checkpoint.losses) == 100
    trainer = overlay.trainer_1
    for name, array in trainer.store_parameters().items():
        np.testing.assert_array_equal(checkpoint.parameters[name], array)
    assert record.figures["dev.frame_accuracy"]["value"] == board.runs[0].scores[-1][1]["frame_accuracy"]
    trainer.load_parameters(initial_parameters(workload.config, 0))
    expected = trainer.train(workload.train[workload.order(100)], Optimizer("sgd"), board._rate.value)
    np.testing.assert_array_equal(board.runs[0].losses, expected)


@pytest.mark.long
def test_what_is_kept_is_what_was_done(board, workload, monkeypatch, tmp_path):
    """The rate as the slider shows it, every rate where there were several, and when the run began."""
    monkeypatch.setenv("BTTLAB_RUNS", str(tmp_path))
    board._rate.value = 0.003981  # what the slider steps to at 4.0e-3
    board.start()
    board.wait()
    board._samples.value = 20_000
    board.start()
    run = board.runs[-1]
    begun = run.begun
    assert until(lambda: run.count > 0)
    board._rate.value = 1e-3
    assert until(lambda: len(run.rates) > 1)
    assert until(lambda: now() > begun)
    board.stop()
    board.wait()
    of_notebook_03 = f"name == 'dashboard-{workload.corpus.name}-enc2'"
    (plain,) = _folders(f"learning_rate == 0.004 and {of_notebook_03}")
    assert read_run(plain).begun == board.runs[0].begun
    (moved,) = (folder for folder in _folders() if folder != plain)
    record = read_run(moved)
    assert record.configuration["learning_rates"] == [[0, 0.004], [run.rates[1][0], 1e-3]]
    assert record.begun == begun < record.ended
    assert CheckpointStore(moved).load()[0].settings.learning_rate == 1e-3


@pytest.mark.long
def test_a_run_that_was_stopped_and_continued_has_the_bits_of_one_call(board, overlay, workload):
    board.start(samples=600)
    (run,) = board.runs
    assert until(lambda: run.count > 20)
    board.stop()
    board.wait()
    assert 20 < run.count < 600
    overlay.trainer_1.load_parameters(initial_parameters(workload.config, 7))  # the card was used for something else
    board.resume()
    board.wait()
    trained = overlay.trainer_1.store_parameters()
    overlay.trainer_1.load_parameters(initial_parameters(workload.config, 0))
    losses = overlay.trainer_1.train(workload.train[workload.order(600)], Optimizer("sgd"), board._rate.value)
    np.testing.assert_array_equal(run.losses, losses)
    for name, array in overlay.trainer_1.store_parameters().items():
        np.testing.assert_array_equal(trained[name], array)


@pytest.mark.long
def test_a_module_on_the_card_in_pytorch_and_on_a_modelled_gpu(short_airline, overlay):
    name = "Language"
    model = load_module(f"{sample_modules.__file__}:{name}")
    workload = Workload.of(load_corpus(short_airline), model)
    targets = [card_and_gpu_target(overlay, workload), *baseline_targets(workload)]
    board = Dashboard(targets, samples=60)
    for target in targets:
        board.start(target.name)
        board.wait()
    card, modelled, pytorch = board.runs
    assert [run.name for run in board.runs] == [f"{place}, {name}" for place in PLACES]
    assert [run.state for run in board.runs] == ["finished"] * 3
    for run in (pytorch, modelled):
        np.testing.assert_allclose(run.losses, card.losses, rtol=1e-4, err_msg=run.error)
    assert pytorch.memory["tensors"].provenance == "measured" and pytorch.scores[-1][0] == 60
    assert 0 < card.meter.joules[1] < modelled.meter.joules[1]
    assert "dev: perplexity" in board._status.value
    assert _folders(f"name == 'dashboard-{workload.corpus.name}-{name}'")
    board.close()


def _rests(driver) -> bool:
    """Whether a driver is at rest: between two calls of a run that goes on its lock is free for a moment, too."""
    looks = []
    for _ in range(30):
        looks.append(driver._busy.locked())
        time.sleep(0.01)
    return not any(looks)


@pytest.mark.long
@pytest.mark.parametrize("other", ["overlay", "program", "parameters"])
def test_another_overlay_or_program_is_noticed(board, overlay, other):
    board._samples.value = 20_000
    board.start()
    assert until(lambda: board.runs[0].count > 0)
    board.pause()
    assert until(lambda: _rests(overlay.trainer_1))
    if other == "overlay":
        load_overlay("trainer", overlay.device)
    elif other == "program":
        overlay.trainer_1.load_program(ModelConfig(linear_rank=8))
    else:
        overlay.trainer_1.load_parameters(overlay.trainer_1.store_parameters())
    board.resume()
    board.wait()
    said = board._message.value
    if other == "parameters":
        assert "no longer the run" in said
    else:
        assert "no longer on the card" in said or "kernel" in said


@pytest.mark.long
def test_two_dashboards_on_one_card_train_in_turn(board, overlay, workload):
    """Of one process: a process has a real card alone, and an emulated card of its own."""
    other = Dashboard([card_target(overlay, workload)], samples=100, name="the other")
    board._samples.value = 400
    board.start()
    assert until(lambda: board.runs[0].count > 0)
    board.pause()
    other.start()
    assert "is paused in another dashboard: stop it there" in other._message.value and not other.runs
    other._optimizer.value = "adamw"  # of another program
    other.start()
    assert not other.runs
    board.resume()
    board.wait()
    other._optimizer.value = "sgd"
    other.start()
    other.wait()
    assert [run.state for run in board.runs + other.runs] == ["finished"] * 2
    np.testing.assert_array_equal(board.runs[0].losses[:100], other.runs[0].losses)
    other.close()
