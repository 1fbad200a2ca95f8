"""The dashboard without a browser: what its buttons do, what it says, and what it leaves behind."""

import re
import time
from html import escape

import numpy as np
import pytest

from bttlab.data import load_corpus
from bttlab.lab import Dashboard, Workload
from bttlab.lab.comparison import published
from bttlab.lab.dashboard_figure import ratios
from bttlab.lab.dashboard_runs import DashboardRun
from bttlab.lab.energy_meters import EnergyMeter
from bttlab.model import ModelConfig, NumericalFault
from bttlab.util.errors import BttlabError
from bttlab.util.quantities import Quantity
from fake_trainer import PretendTrainer, our_threads, pretend_target, until


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


def test_runs_follow_one_another_until_one_is_stopped_or_interrupted(board_of, monkeypatch):
    board = board_of(PretendTrainer(), PretendTrainer(1e-3), PretendTrainer())
    names = list(board._targets)
    board.start_all([names[0], names[2]])
    board.wait()
    assert [(run.name, run.state) for run in board.runs] == [(names[0], "finished"), (names[2], "finished")]
    for end in (board.stop, lambda: _interrupt(board, monkeypatch)):
        board.clear()
        board.start_all(names, samples=10_000)
        assert until(lambda: board.runs[-1].name == names[1] and board.runs[-1].count > 0)
        board.start_all([names[2]])
        assert "stop it, or let it end, before you start another run" in _message(board)
        end()
        board.wait()
        assert [(run.name, run.state) for run in board.runs] == [(names[0], "finished"), (names[1], "stopped")]


def _interrupt(board, monkeypatch) -> None:
    """Wait for the runs, as a cell does, and interrupt the kernel there."""
    join = board._drawer.join

    def interrupted(timeout=None):
        monkeypatch.setattr(board._drawer, "join", join)
        raise KeyboardInterrupt

    monkeypatch.setattr(board._drawer, "join", interrupted)
    board.wait()
    assert "interrupted: the run was stopped" in _message(board)


def test_a_run_to_its_end_and_its_losses_in_the_figure(board_of):
    board = board_of(PretendTrainer())
    before = board._live.widget.children[0].value
    _press(board, "Start")
    board.wait()
    (run,) = board.runs
    assert run.state == "finished" and run.count == 300
    np.testing.assert_array_equal(run.losses, (1.0 / np.arange(1, 301)).astype(np.float32))
    assert not our_threads()
    assert "samples/s (measured)" in board._status.value
    assert [count for count, _ in run.scores] == [300] and run.scores[0][1]["intent_accuracy"] == 1.0
    line, mean = board._figure.loss.lines
    np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 301))
    np.testing.assert_array_equal(line.get_ydata(), run.losses)
    assert board._live.widget.children[0].value != before
    assert mean.get_ydata()[-1] == pytest.approx(run.losses[-100:].mean())
    board._view["across"].value = "time"
    assert board._figure.loss.lines[1].get_xdata()[-1] == pytest.approx(run.seconds)
    assert board._figure.dev.lines[0].get_xdata()[-1] == pytest.approx(run.seconds)
    board._view["across"].value = "energy"  # a run without a meter has no place there
    assert np.isnan(board._figure.loss.lines[1].get_xdata()).all()


@pytest.mark.parametrize("samples", [40, 250, 60_000])
def test_a_run_has_the_samples_that_it_was_asked_for(board_of, samples):
    """Also a number that is not on the slider: 100 to 45,000 in steps of 100."""
    board = board_of(PretendTrainer(), samples=20_000)
    board.start(samples=samples)
    assert board.runs[-1].total == samples == board.samples
    board.stop()
    board.wait()
    assert board_of(PretendTrainer(), samples=samples).samples == samples


def test_an_optimizer_chosen_during_a_run_begins_with_its_own_rate(board_of):
    """The slider is the run's until then, also where it continues; a rate that is set between the runs stays."""
    board = board_of(PretendTrainer(1e-3), samples=20_000)
    for between, begins in ((None, 3e-4), (1e-3, 1e-3)):
        board._optimizer.value, board._rate.value = "sgd", 4e-3
        _press(board, "Start")
        until(lambda: board.runs[-1].count > 0)
        board._optimizer.value = "adamw"
        board.stop()
        board.wait()
        assert board.learning_rate == 4e-3 == board.runs[-1].learning_rate
        if between:
            board._rate.value = between
        _press(board, "Start")
        assert board.runs[-1].learning_rate == board.learning_rate == begins
        board.stop()
        board.wait()


def test_what_is_no_number_of_samples_or_no_rate(board_of, workload):
    board = board_of(PretendTrainer())
    for samples in (0, -5, 40.5, "many"):
        board.start(samples=samples)
        assert f"samples is {escape(repr(samples))}: give a whole number of at least 1" in _message(board)
    assert board.runs == []
    target = pretend_target(workload, PretendTrainer(), "pretend")
    for rate in (2.0, 1e-7):  # the slider begins with 1e-5 to 1
        board = Dashboard([target], learning_rate=rate)
        assert board.learning_rate == rate
        board.close()
    with pytest.raises(BttlabError, match="learning_rate is 0: give a number above 0"):
        Dashboard([target], learning_rate=0)


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
    assert until(lambda: _rests(board.runs[0]))  # after the samples that are being trained on
    held = board.runs[0].count
    assert _rests(board.runs[0]) and board.runs[0].count == held and board.runs[0].state == "paused"
    _press(board, "Continue")
    assert until(lambda: board.runs[0].count > held)
    assert until(lambda: "no update since" in board._status.value)  # CSS shows it when it is so
    board.stop()
    board.wait()
    assert enabled() == ["Start", "Continue", "Clear"] and "no update since" not in board._status.value


def _rests(run) -> bool:
    count = run.count
    time.sleep(0.2)  # of a trainer that takes a millisecond for a sample
    return run.count == count


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
    board.clear()
    assert not board.runs and _names(board) == []


class DivergingTrainer(PretendTrainer):
    """Each step at a rate above 0.01 spoils the parameters; after five of them no step is finite, at any rate."""

    def train(self, samples, optimizer, learning_rates, label_smoothing=0.0):
        spoiled = int(self.parameters.get("spoiled", 0))
        for k, rate in enumerate(learning_rates):
            if spoiled == 5:
                raise NumericalFault("loss", k, self._losses(k), float(rate))
            spoiled += rate > 0.01
            self.parameters = {**self.parameters, "spoiled": np.array(spoiled)}
        return super().train(samples, optimizer, learning_rates)


def test_a_run_that_diverges_at_once_continues_with_the_initial_parameters(board_of):
    board = board_of(DivergingTrainer())
    board._rate.value = 1.0
    board.start()
    board.wait()
    run = board.runs[0]
    assert (run.state, run.count) == ("failed", 5)
    assert "below 1: then Continue trains with the initial parameters. Start begins anew" in _message(board)
    board._rate.value = 0.02  # still too high: the same advice, from the same parameters
    board.resume()
    board.wait()
    assert (run.state, run.count) == ("failed", 10) and "initial parameters" in _message(board)
    board._rate.value = 0.004
    board.resume()
    board.wait()
    assert (run.state, run.count, _message(board)) == ("finished", 300, "")
    assert run._trainer.parameters["spoiled"] == 0
    assert [what for _, what in run.marks if what == "back"] == ["back", "back"]


class LateTrainer(PretendTrainer):
    """The update of sample 341 spoils the parameters: losses after it are 50 times as high, the 30th is not finite."""

    LAST = 341

    def train(self, samples, optimizer, learning_rates, label_smoothing=0.0):
        first, spoiled = self.steps, bool(self.parameters.get("spoiled", False))
        rate = float(learning_rates[0])
        if not spoiled and rate > 0.01 and first + len(samples) >= self.LAST:
            self.parameters, spoiled = {**self.parameters, "spoiled": np.array(True)}, True
        losses = super().train(samples, optimizer, learning_rates)
        losses[max(0, self.LAST - first) :] *= 50 if spoiled else 1
        if spoiled and self.steps > self.LAST + 30:
            raise NumericalFault("loss", self.LAST + 30 - first, losses[: self.LAST + 30 - first], rate)
        return losses


def test_parameters_are_good_if_the_samples_after_them_say_so(board_of):
    """A call ends with the update that spoils them; the losses up to there are as good as ever."""
    board = board_of(LateTrainer(seconds=0), samples=2_000)
    board._rate.value = 1.0
    board.start()
    board.wait()
    run = board.runs[0]
    assert (run.state, run.count, run.good) == ("failed", 371, 0)
    board._rate.value = 0.004
    board.resume()
    board.wait()
    assert (run.state, run.count, _message(board)) == ("finished", 2_000, "")
    assert "spoiled" not in run._trainer.parameters and run.good > 1_000


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
