"""The dashboard without a browser: what its buttons do, what it says, and what it leaves behind."""

import io
import re
import time

import numpy as np
import pytest
from PIL import Image

from bttlab.data import load_corpus
from bttlab.lab import Dashboard, Workload
from bttlab.lab.comparison import published
from bttlab.lab.dashboard_figure import DashboardFigure, ratios
from bttlab.lab.dashboard_runs import DashboardRun
from bttlab.lab.energy_meters import EnergyMeter
from bttlab.model import ModelConfig, NumericalFault
from bttlab.util.quantities import Quantity
from fake_trainer import PretendTrainer, our_threads, pretend_target, until

SAVED = 10.0  # seconds: what a stopped run may take to be saved, on a machine that is busy elsewhere


@pytest.fixture(scope="module")
def workload():
    return Workload.of(load_corpus("airline"), ModelConfig())


@pytest.mark.parametrize(
    ("samples", "counts"),
    [(300, [300]), (999, [999]), (1_501, [501, 1_001, 1_501]), (40_000, list(range(5_000, 40_001, 5_000)))],
)
def test_the_dev_split_takes_less_time_than_training(workload, samples, counts):
    assert len(workload.dev) == 500
    assert DashboardRun("", samples, 1e-3, EnergyMeter(None, ""), workload).scored_at == counts


@pytest.fixture
def board_of(workload):
    boards = []

    def made(*trainers, samples=300, **keywords):
        targets = [pretend_target(workload, trainer, f"pretend {k}", **keywords) for k, trainer in enumerate(trainers)]
        boards.append(Dashboard(targets, samples=samples))
        return boards[-1]

    yield made
    for board in boards:
        board.close()
    assert not our_threads()


def _message(board):
    return board._message.value


def _press(board, name):
    button = next(b for b in board.widget.children[1].children if b.description == name)
    button.click()


def test_a_run_to_its_end_and_its_losses_in_the_figure(board_of):
    board = board_of(PretendTrainer())
    before = board._live.widget.children[0].value
    _press(board, "Start")
    board.wait()
    (run,) = board.runs
    assert run.state == "finished" and run.count == 300
    np.testing.assert_array_equal(run.losses, (1.0 / np.arange(1, 301)).astype(np.float32))
    assert not our_threads()
    assert "300 of 300 samples" in board._status.value and "samples/s (measured)" in board._status.value
    assert [count for count, _ in run.scores] == [300] and run.scores[0][1]["intent_accuracy"] == 1.0
    line, mean = board._figure.loss.lines
    np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 301))
    np.testing.assert_array_equal(line.get_ydata(), run.losses)
    assert board._live.widget.children[0].value != before
    size = Image.open(io.BytesIO(board._live.widget.children[0].value)).size
    assert size == (830, 840)  # sharp at a device ratio of 2
    assert mean.get_ydata()[-1] == pytest.approx(run.losses[-100:].mean())
    board._view["across"].value = "time"
    assert board._figure.loss.lines[1].get_xdata()[-1] == pytest.approx(run.seconds)
    assert board._figure.dev.lines[0].get_xdata()[-1] == pytest.approx(run.seconds)
    assert board._figure.loss.get_xlabel() == "time on the device (s)" == board._figure.energy.get_xlabel()
    board._view["across"].value = "energy"  # a run without a meter has no place there
    assert np.isnan(board._figure.loss.lines[1].get_xdata()).all()
    assert board._figure.energy.get_xlabel() == "samples trained on"


@pytest.mark.parametrize("paused", [False, True])
def test_stop_acts_within_a_second_at_a_sample_boundary(board_of, paused):
    trainer = PretendTrainer(seconds=1e-3)
    board = board_of(trainer, samples=20_000)
    board.start()
    run = board.runs[0]
    assert until(lambda: run.count > 50)
    if paused:
        board.pause()
    board.stop()
    time.sleep(1.0)
    steps = trainer.steps
    assert until(lambda: run.state == "stopped", SAVED)
    assert run.count == trainer.steps == steps
    board.wait()
    assert not our_threads()


def _names(board):
    return re.findall("</span>(.*?)</div>", board._legend.value)


def _run_with(name: str, joules: tuple, memory: dict, paper=None) -> DashboardRun:
    meter = EnergyMeter("modelled", "a model")
    meter.joules = joules
    run = DashboardRun(name, 1, 4e-3, meter)
    run._add(np.ones(1, np.float32), 1.0)
    run.memory = {kind: Quantity(value, "bytes", "modelled", "a map") for kind, value in memory.items()}
    run.published = paper
    return run


def test_the_ratios_name_numerator_denominator_and_band():
    card = _run_with("U50", (1.0, 2.0, 4.0), {"tensors": 1e6, "footprint": 2e6}, published(ModelConfig()))
    gpu = _run_with("GPU", (4.0, 12.0, 40.0), {"footprint": 50e6})
    first, paper = ratios([card, gpu], "footprint")
    assert first == (
        "2: energy per sample: GPU / U50 = 6 x (1 to 40; modelled / modelled); memory: 50.0 MB / 2.0 MB "
        "= 25 x (modelled / modelled)"
    )
    assert "30 to 51 in memory" in paper and "arXiv 2501.06663" in paper
    assert "memory" not in ratios([card, gpu], "tensors")[0] and ratios([gpu], "footprint") == []
    assert published(ModelConfig(encoders=4, linear_rank=8)) is None


def test_the_memory_panel_has_one_accounting_at_a_time():
    runs = [
        _run_with("U50", (1, 1, 1), {"tensors": 4e6, "footprint": 20e6}),
        _run_with("CPU", (1, 1, 1), {"tensors": 7e6}),
    ]
    figure = DashboardFigure()
    for accounting, expected in (
        ("tensors", {"1: 4.0 MB (modelled)", "2: 7.0 MB (modelled)"}),
        ("footprint", {"1: 20.0 MB (modelled)", "2: not measured"}),
    ):
        figure.update(runs, memory=accounting)
        assert expected <= {text.get_text() for text in figure.memory.texts}
        assert len(figure.memory.containers) == sum("MB" in text for text in expected)


def test_only_buttons_that_do_something_can_be_pressed(board_of):
    board = board_of(PretendTrainer(seconds=1e-3), samples=20_000)

    def enabled():
        return [name for name, button in board._buttons.items() if not button.disabled]

    assert enabled() == ["Start"]
    board.start()
    assert enabled() == ["Pause", "Stop"]
    board.start()
    assert "pretend 0 is running: stop it" in _message(board) and len(board.runs) == 1
    board.resume()
    assert "running already" in _message(board)
    _press(board, "Pause")
    assert enabled() == ["Continue", "Stop"]
    board.pause()
    assert "paused already" in _message(board)
    time.sleep(0.3)
    held = board.runs[0].count
    time.sleep(0.3)
    assert board.runs[0].count == held and board.runs[0].state == "paused"
    _press(board, "Continue")
    assert until(lambda: board.runs[0].count > held)
    assert until(lambda: "no update since" in board._status.value)  # CSS shows it when it is so
    board.stop()
    board.wait()
    assert enabled() == ["Start", "Continue", "Clear"] and "no update since" not in board._status.value


def test_a_stopped_run_continues_to_its_end(board_of):
    trainer = PretendTrainer(seconds=1e-3)
    board = board_of(trainer, samples=20_000)
    board.start()
    (run,) = board.runs
    assert until(lambda: run.count > 50)
    board.stop()
    board.wait()
    stopped = run.count
    assert run.state == "stopped" and stopped < 20_000
    board._rate.value = 1e-3
    trainer.seconds = 1e-5
    board.resume()
    board.wait()
    assert (run.state, run.count, len(board.runs)) == ("finished", 20_000, 1)
    np.testing.assert_array_equal(run.losses, (1.0 / np.arange(1, 20_001)).astype(np.float32))
    assert run.marks == [(stopped, "stop"), (stopped, "rate")] and run.rates[-1] == (stopped, 1e-3)


def test_a_run_that_fails_says_so_and_the_next_works(board_of):
    trainer = PretendTrainer(fail=(120, OSError("no such device")))
    board = board_of(trainer)
    board.start()
    board.wait()
    assert board.runs[0].state == "failed"
    assert "OSError: no such device" in _message(board) and "Traceback" not in _message(board)
    trainer.fail = None
    board.start()
    board.wait()
    assert board.runs[1].state == "finished" and _message(board) == ""
    setting = "pretend 0, sgd, learning rate 0.004, seed 0; time measured, no energy"
    assert [name.partition(": ")[0] for name in _names(board)] == [f"1 {setting}", f"2 {setting}"]
    colours = {line.get_color() for line in board._figure.loss.lines}
    assert len(colours) == 2 and all(f"background:{colour}" in board._legend.value for colour in colours)
    board.clear()
    assert not board.runs and _names(board) == []


@pytest.mark.long
def test_after_a_numerical_fault_continue_goes_on_with_a_lower_learning_rate(board_of):
    trainer = PretendTrainer(fail=(120, NumericalFault("loss", 0, np.zeros(0, np.float32), 1.0)))
    board = board_of(trainer)
    board.start()
    board.wait()
    (run,) = board.runs
    assert "the loss of sample 120 is not finite" in _message(board) and run.count == 120
    assert "slider below 0.004: then Continue goes on from there. Start begins anew" in _message(board)
    said = _message(board)
    board._rate.value = 5e-3
    assert _message(board) == said  # while the user looks for another rate
    trainer.fail = None
    _press(board, "Continue")
    board._draw()
    assert run.state == "failed" and "at 0.004 sample 120 would fail again" in _message(board)
    board._rate.value = 1e-3
    _press(board, "Continue")
    board.wait()
    assert run.state == "finished" and board.runs == [run] and _message(board) == "" and run.error == ""
    assert trainer.rates[-1] == pytest.approx(1e-3)
    np.testing.assert_array_equal(run.losses, (1.0 / np.arange(1, 301)).astype(np.float32))
    assert run.scores[-1][0] == 300 and not our_threads()
    board.resume()
    assert "nothing to continue" in _message(board)


@pytest.mark.long
def test_continue_after_a_fault_begins_with_the_last_good_parameters(board_of):
    trainer = PretendTrainer(fail=(520, NumericalFault("loss", 0, np.zeros(0, np.float32), 1.0)))
    board = board_of(trainer, samples=600)
    board.start()
    board.wait()
    (run,) = board.runs
    good = run.good
    assert 300 <= good < 520 and f"the last good parameters, those after {good:,} samples" in _message(board)
    trainer.fail = None
    board._rate.value = 1e-3
    _press(board, "Continue")
    board.wait()
    assert run.state == "finished" and (520, "back") in run.marks
    np.testing.assert_array_equal(run.losses[520:], (1.0 / np.arange(good + 1, good + 81)).astype(np.float32))


@pytest.mark.long
def test_modelled_time_is_the_devices_and_measured_time_this_computers(board_of):
    """By power the same: joules over seconds of the device."""
    each = np.array([1.0, 2.0, 5.0, 0.01])
    meter = EnergyMeter("modelled", "a model", lambda samples, seconds: len(samples) * each)
    board = board_of(PretendTrainer(), meter=meter)
    board.start()
    board.wait()
    run, figure = board.runs[0], board._figure
    board._view["across"].value = "time"
    assert figure.loss.lines[1].get_xdata()[-1] == pytest.approx(3.0) != run.seconds
    board._view["across"].value = "here"
    assert figure.loss.lines[1].get_xdata()[-1] == pytest.approx(run.seconds)
    assert "100 samples/s on the device (modelled)" in board._status.value
    assert "samples/s here (measured)" in board._status.value and "time and energy modelled" in _names(board)[0]
    board._view["draw"].value = "power"
    assert figure.energy.get_title("left") == "Power (W)"
    np.testing.assert_allclose(figure.energy.lines[0].get_ydata(), 200)


def test_a_card_that_is_taken_away(board_of):
    here = [True]
    board = board_of(PretendTrainer(seconds=1e-3), samples=20_000, is_there=lambda: here[0])
    board.start()
    assert until(lambda: board.runs[0].count > 0)
    here[0] = False
    board.wait()
    assert "no longer on the card" in _message(board)


@pytest.mark.parametrize(
    ("samples", "message"), [(20_000, "<b>interrupted: the run was stopped</b>"), (20, "<b>interrupted</b>")]
)
def test_an_interrupt_while_the_cell_waits_stops_the_run(board_of, monkeypatch, samples, message):
    board = board_of(PretendTrainer(seconds=1e-3), samples=samples)
    board.start()
    drawer = board._drawer
    join = drawer.join
    calls = []

    def interrupted(timeout=None):
        calls.append(timeout)
        if len(calls) == 1:
            join(0.1 if samples == 20_000 else None)
            raise KeyboardInterrupt
        join(timeout)

    monkeypatch.setattr(drawer, "join", interrupted)
    board.wait()
    assert message in _message(board) and (board.runs[0].state == "stopped") == (samples == 20_000)
