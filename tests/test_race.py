"""A race: who trains, on whose clock, how it ends; its receipts and its figure."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from bttlab.baseline import BaselineSetting, Record, run_baseline
from bttlab.baseline.receipt import Receipt
from bttlab.card import load_overlay
from bttlab.commands.race import line
from bttlab.data import Vocabulary, encode, load_corpus
from bttlab.estimate.card import estimate
from bttlab.lab import draw_race
from bttlab.model import ModelConfig, Optimizer, initial_parameters
from bttlab.runs.race import RECORDS, Race, RaceError, RaceSetting
from command_line import refused, run_json
from rounding import rounding

RECORD = "enc2-btt-cuda"
EVERY, MOST = 12, 24


@pytest.fixture(scope="module")
def setting(tiny_airline):
    return RaceSetting(data=str(tiny_airline), every=EVERY, most=MOST)


@pytest.fixture(scope="module")
def raced(setting):
    race = Race(["card", "cpu", RECORD], setting)
    race.run()
    return race


def test_all_train_the_same_model_in_the_same_order(raced, setting):
    card, cpu, recorded = raced.racers
    assert [lap.samples for lap in card.laps] == [EVERY, MOST] == [lap.samples for lap in cpu.laps]
    assert len(card.losses) == MOST and recorded.losses == card.losses
    first = np.array(card.losses[:2]), np.array(cpu.losses[:2])  # later ones are of parameters that AdamW has moved
    assert np.abs(first[0] - first[1]).max() < first[0].max() * rounding(ModelConfig())
    work = Race(["card"], setting)
    trainer = load_overlay("trainer", "emulated").trainer_1
    trainer.load_program(setting.config, optimizer=Optimizer("adamw"))
    trainer.load_parameters(initial_parameters(setting.config, setting.seed))
    losses = trainer.train(work._train[work._order()], Optimizer("adamw"), setting.learning_rate)
    assert card.losses == pytest.approx(losses.tolist(), rel=1e-5)


def test_the_time_on_a_cpu_is_that_of_the_training_thread(setting, monkeypatch):
    """Not of a dashboard that trains or draws in the same kernel."""
    monkeypatch.setattr(time, "process_time", lambda: pytest.fail("the clock of all threads was read"))
    race = Race(["cpu"], setting)
    race.run()
    assert race.racers[0].done and "time.thread_time" in race.racers[0].time.how


def test_each_has_its_own_clock_and_meter(raced, setting):
    card, cpu, recorded = raced.racers
    corpus = load_corpus(setting.data)
    vocabulary = Vocabulary.from_sentences(corpus.train.words, setting.config.vocabulary_size)
    lengths = encode(corpus.train, vocabulary, corpus, setting.config).lengths[raced._order()]
    wanted = estimate(setting.config, lengths.tolist(), "adamw")
    assert (card.time.provenance, card.energy.provenance) == ("modelled", "modelled")
    assert card.time.value == pytest.approx(wanted.seconds_per_epoch)
    assert card.energy.value == pytest.approx(wanted.energy_per_epoch.value)
    assert card.energy.low < card.energy.value < card.energy.high
    assert cpu.time.provenance == "measured" and cpu.time.value > 0
    done = Record.read(RECORDS / f"{RECORD}.json").measurement
    assert recorded.time.value == pytest.approx(MOST * done.mean.value)
    assert recorded.energy.value == pytest.approx(MOST * done.energy.per_step.value)
    assert "adamw would take" in recorded.time.how and recorded.memory.provenance == "modelled"


def test_a_record_of_another_corpus_is_named_and_extrapolated(raced, setting, tiny_airline, tmp_path):
    """The steps are the record's, whatever it was measured on; their sum is not measured."""
    recorded = raced.racers[2]
    assert {recorded.time.provenance, recorded.energy.provenance} == {"extrapolated"}
    assert "mean step, measured on atis, not on this corpus" in recorded.time.how
    assert "mean step on atis, not on this corpus, in graphs" in recorded.device
    assert " s (extrapolated), " in line(raced, recorded) and " J (extrapolated)" in line(raced, recorded)
    own = run_baseline(BaselineSetting("btt", "cpu", config=setting.config, data=str(tiny_airline), steps=2, warmup=1))
    own.write(tmp_path / "own.json")
    race = Race(["card", str(tmp_path / "own.json")], replace(setting, most=EVERY))
    assert race.run()[1].device.count("mean step on airline, in eager") == 1
    assert (race.racers[1].time.provenance, race.racers[1].memory.provenance) == ("extrapolated", "measured")
    corpus = replace(own.corpus, name="other", sha256="0" * 64)
    replace(own, corpus=corpus).write(tmp_path / "other.json")
    other = Race(["card", str(tmp_path / "other.json")], replace(setting, most=EVERY)).run()[1]
    assert "on other, not on this corpus" in other.device and other.memory.provenance == "extrapolated"
    assert "tokens on other, not on this corpus" in other.memory.how


def test_a_racer_stops_at_the_target(tiny_airline):
    race = Race(
        ["card"], RaceSetting(data=str(tiny_airline), every=EVERY, most=10 * EVERY, target=1e-9, learning_rate=1e-9)
    )
    race.run()
    (racer,) = race.racers
    stopped = [lap.slot_f1 >= 1e-9 for lap in racer.laps]
    assert stopped.index(True) == len(stopped) - 1 if any(stopped) else len(stopped) == 10
    assert racer.done and race.reached(racer) == any(stopped)


def test_receipts_run_again(raced, tmp_path, capsys):
    receipts = raced.receipts()
    assert list(receipts) == ["card", "cpu", RECORD]
    assert [bool(receipt.results) for receipt in receipts.values()] == [True, False, False]
    for name, receipt in receipts.items():
        receipt.write(tmp_path / f"{name}.json")
        again = run_json(capsys, "replay", tmp_path / f"{name}.json")
        assert again["equal"], again["differences"]
    assert receipts["cpu"].figures["seconds"].tolerance is None
    assert Receipt.read(tmp_path / f"{RECORD}.json").figures["joules"].tolerance == 0


def test_the_figure_names_each_racer_and_how_it_is_known(raced):
    words = str(draw_race(raced))
    for text in ("the emulated U50: time modelled", "no energy meter", "losses of card", "Memory, MB"):
        assert text in words or (text == "no energy meter" and "energy measured" in words)


def test_the_figure_has_a_colour_for_each_of_many_racers(raced, monkeypatch):
    monkeypatch.setattr(raced, "racers", [racer for racer in raced.racers if racer.laps][:1] * 9)
    drawn = draw_race(raced).figure.axes[0].lines
    assert len(drawn) == 9


def test_the_command_writes_receipts_and_a_picture(tiny_airline, tmp_path, capsys):
    arguments = ("--data", tiny_airline, "--every", EVERY, "--most", EVERY)
    found = run_json(
        capsys,
        "race",
        "card",
        *arguments,
        "--out",
        tmp_path / "race",
        "--picture",
        tmp_path / "race.png",
        "--receipt",
        tmp_path / "r.json",
    )
    assert found["racers"]["card"]["samples"] == EVERY
    assert (tmp_path / "race.png").read_bytes()[1:4] == b"PNG"
    assert Receipt.read(tmp_path / "race" / "card.json").results == Receipt.read(tmp_path / "r.json").results


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([RECORD], "racer enc2-btt-cuda: the first one trains"),
        (["card", "card"], "name each once"),
        (["card", "enc4-btt-cuda"], "the race is of 2 encoders"),
        (["card", "enc2-btt-cuda-batch16"], "one sample a step; name another"),
        (["card", "none-such"], "none-such cannot be read"),
        (["card", "--target", "2"], "target is 2.0"),
        (["card", "--most", "0"], "most is 0"),
    ],
)
def test_bad_races_are_one_line(arguments, message, tiny_airline, capsys):
    assert message in refused(capsys, "race", *arguments, "--data", tiny_airline)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_cuda_is_refused(setting):
    with pytest.raises(Exception, match="cuda") as raised:
        Race(["cuda"], setting).run()
    assert "\n" not in str(raised.value)
    with pytest.raises(RaceError, match="none"):
        Race([], setting)
