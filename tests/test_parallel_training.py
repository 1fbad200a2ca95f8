"""Training on several emulated cards: bits, faults, what is refused, runs, and processes of torch.distributed."""

import hashlib
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pynq
import pytest
import torch
import two_cards
from torch import nn

from bttlab.card import EmulatedU50, OverlayError, ParallelTrainer, open_parallel_trainer, open_trainer
from bttlab.card.parallel import subnormals_flushed, updated
from bttlab.card.unit_programs import RATE, unit_programs
from bttlab.compiler.program import Options, compile
from bttlab.compiler.trace import trace
from bttlab.data import epoch_lengths, load_corpus
from bttlab.estimate.parallel import shared_update
from bttlab.model import ConfigError, NumericalFault, Optimizer
from bttlab.model.loop import chunks
from bttlab.model.trainer import UpdateFactors
from bttlab.runs import RunError, RunSettings, resume_run, start_run
from bttlab.runs.record import RunRecord
from bttlab.runs.u50 import U50Figures
from bttlab.util.places import ROOT
from subprocess_env import environment

from training_processor import SMALL, some_parameters, some_samples

LENGTHS = (5, 9, 13, 7, 2)
LONG = pytest.mark.long


@pytest.fixture(scope="module")
def cards():
    return [EmulatedU50(), EmulatedU50(), EmulatedU50()]


def opened(cards, optimizer, count, model=SMALL, sums=None):
    """Trainers on the first cards, with the program for an optimizer; by default the one that `open_trainer` takes."""
    drivers = [open_trainer(model, card, optimizer=optimizer) for card in cards[:count]]
    for driver in drivers if sums is not None else ():
        driver.load_program(compile(model, Options(optimizer=optimizer, sums=sums)))
    return drivers


def trained(trainer, samples, optimizer, parameters=None, rate=0.01):
    """Losses, parameters and state after training."""
    trainer.load_parameters(parameters or some_parameters(SMALL))
    losses = trainer.train(samples, optimizer, rate)
    return {"losses": losses} | trainer.store_parameters() | trainer.store_optimizer_state()


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.tobytes() == other[name].tobytes(), name


def samples_of(count, model=SMALL):
    return some_samples(model, [LENGTHS[i % len(LENGTHS)] for i in range(count)])


@pytest.mark.parametrize("name", ["adamw", "sgd", "momentum"])
def test_two_cards_give_the_bits_of_one_after_200_updates_of_two_samples(cards, name):
    """An update of two samples has one order of sums, unless the program sums gradients itself."""
    optimizer, samples = Optimizer(name, batch_size=2), samples_of(400)
    two = trained(ParallelTrainer(opened(cards, optimizer, 2, sums=False)), samples, optimizer)
    one = trained(opened(cards[2:], optimizer, 1, sums=False)[0], samples, optimizer)
    assert two["step"] == 400
    assert_same_bits(two, one)


@pytest.mark.parametrize("name", ["adamw", "sgd", "momentum"])
def test_bits_follow_from_the_parts_and_not_from_the_cards(cards, name):
    """Of 19 samples the last update has three; the program for SGD and momentum sums gradients itself."""
    optimizer, samples = Optimizer(name, batch_size=8), samples_of(19)
    drivers = opened(cards, optimizer, 3)
    assert drivers[0].program.sums == (name != "adamw")
    for parts in (2, 3, 4):
        counts = [count for count in (1, 2, 3) if parts % count == 0]
        runs = [trained(ParallelTrainer(drivers[:count], parts), samples, optimizer) for count in counts]
        assert len(runs) > 1
        for other in runs[1:]:
            assert_same_bits(runs[0], other)
    alone = trained(ParallelTrainer(drivers[:1], 1), samples, optimizer)
    assert_same_bits(alone, trained(drivers[0], samples, optimizer))  # one part has the card's own order of sums
    two = trained(ParallelTrainer(drivers[:2]), samples, optimizer)
    assert any(two[key].tobytes() != alone[key].tobytes() for key in two)  # another order, other bits
    if name != "adamw":  # which divides by the root of gradients that may be rounding alone
        for key in some_parameters(SMALL):
            np.testing.assert_allclose(two[key], alone[key], atol=1e-6, err_msg=key)


def test_sums_of_parts_are_added_in_their_order(cards):
    """Six samples of an update of eight, in three parts: each part's sum is that of a card of its own."""
    optimizer, samples = Optimizer("momentum", batch_size=8), samples_of(6)
    drivers, sums = opened(cards, optimizer, 3), []
    trainer = ParallelTrainer(drivers)
    found = trained(trainer, samples, optimizer)
    for part in (slice(0, 2), slice(2, 4), slice(4, 6)):
        trained(drivers[0], samples[part], optimizer, rate=0.0)
        sums.append(drivers[0].store_optimizer_state())
    for name in some_parameters(SMALL):
        first, second, third = (each[f"first_moment.{name}"] for each in sums)
        assert found[f"first_moment.{name}"].tobytes() == ((first + second) + third).tobytes(), name
        assert found[name].tobytes() == some_parameters(SMALL)[name].tobytes()  # the update is not complete


class Tied(nn.Module):
    """A table of tokens that the last layer has, too, and a layer that is not trained."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.fixed = nn.Embedding(32, 16), nn.Linear(16, 16).requires_grad_(False)
        self.layer, self.head = nn.Linear(16, 16), nn.Linear(16, 32, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        x = self.table(tokens)
        return self.head(torch.tanh(self.fixed(x + self.layer(x))))


def test_frozen_parameters_do_not_decay_and_shared_ones_stay_shared(cards):
    model, optimizer = (
        trace(Tied(), sequence_length=14, task="tagging"),
        Optimizer("adamw", batch_size=2, weight_decay=0.5),
    )
    samples, parameters = samples_of(12, model), model.parameters()
    two = trained(ParallelTrainer(opened(cards, optimizer, 2, model)), samples, optimizer, parameters)
    one = trained(opened(cards, optimizer, 1, model)[0], samples, optimizer, parameters)
    assert_same_bits(two, one)
    assert two["fixed.weight"].tobytes() == parameters["fixed.weight"].tobytes()
    assert two["layer.weight"].tobytes() != parameters["layer.weight"].tobytes()


@pytest.mark.parametrize("exponent", [0, -62, -125])
@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_the_host_changes_parameters_as_the_update_unit_does(cards, name, exponent):
    """Also where products are subnormal, which the card takes as zeros."""
    unit = next(u for u in unit_programs() if u.unit == "update" and u.optimizer.name == name)
    driver = open_trainer(SMALL, cards[0])
    driver.load_program(unit.program)
    random = np.random.default_rng(-exponent)
    given = {x.name: random.standard_normal(x.shape).astype(np.float32) for x in unit.program.inputs}
    given = {key: (value * 2.0 ** (exponent - 50 * (key == "x2"))).astype(np.float32) for key, value in given.items()}
    given["x3"] = np.abs(given["x3"])
    found = unit.program.unpack(driver.execute(unit.program.pack(given), unit.program.tokens, unit.optimizer, RATE))
    factors = UpdateFactors.of(unit.optimizer, np.array([RATE]), 0)[0]
    state = np.stack([given["x0"], found["m"], found["v"]])
    after = updated(state, factors, unit.optimizer, np.ones(given["x0"].shape, bool))
    assert after.tobytes() == found["p"].tobytes()


def test_subnormals_are_flushed_in_the_context_alone():
    small = np.full(4, 2.0**-126, np.float32)
    with subnormals_flushed():
        assert not (small * np.float32(0.5)).any()
        with subnormals_flushed():
            pass
        assert not (small * np.float32(0.5)).any()
    assert (small * np.float32(0.5)).all()


def test_a_fault_leaves_the_cards_as_before_its_update(cards):
    optimizer, samples = Optimizer("momentum", batch_size=4), samples_of(12)
    trainer = ParallelTrainer(opened(cards, optimizer, 2))
    good = trained(trainer, samples[:4], optimizer)
    rates = np.full(12, 0.01)
    rates[7] = 2.0**40  # of the second update's last sample
    trainer.load_parameters(some_parameters(SMALL))
    with pytest.raises(NumericalFault, match="the update by sample 7 would not be finite") as caught:
        trainer.train(samples, optimizer, rates)
    assert len(caught.value.losses) == 4 and caught.value.learning_rate == rates[7]
    after = {"losses": caught.value.losses} | trainer.store_parameters() | trainer.store_optimizer_state()
    assert_same_bits(after, good)
    wrong = some_parameters(SMALL)
    wrong["slot_head.bias"][0] = 2.0**126  # so the logits of slots are too large, in each part
    trainer.load_parameters(wrong)
    with pytest.raises(NumericalFault) as caught:
        trainer.train(samples, optimizer, 0.01)
    assert caught.value.sample == 0 and trainer.store_optimizer_state()["step"] == 0


def test_predictions_are_those_of_one_card(cards):
    optimizer, samples = Optimizer("sgd", batch_size=4), samples_of(9)
    trainer = ParallelTrainer(opened(cards, optimizer, 2))
    trained(trainer, samples[:8], optimizer)  # the second card has older parameters then
    found, wanted = trainer.predict(samples), trainer.drivers[0].predict(samples)
    for name in ("losses", "intents", "slots"):
        assert getattr(found, name).tobytes() == getattr(wanted, name).tobytes()


def test_what_is_refused(cards, monkeypatch):
    optimizer = Optimizer("sgd", batch_size=4)
    drivers = opened(cards, optimizer, 2)
    with pytest.raises(ConfigError, match="parts is 3: it must be a multiple of the 2 cards"):
        ParallelTrainer(drivers, 3)
    with pytest.raises(ConfigError, match="no cards"):
        ParallelTrainer([])
    trainer = ParallelTrainer(drivers)
    trainer.load_parameters(some_parameters(SMALL))
    with pytest.raises(ConfigError, match="an update of one sample cannot be divided among 2"):
        trainer.train(samples_of(2), Optimizer("sgd"), 0.1)
    drivers[1].load_program(replace(SMALL, linear_rank=2))
    with pytest.raises(ConfigError, match="different programs"):
        ParallelTrainer(drivers)
    monkeypatch.setattr(pynq.Device, "_devices", cards[:2], raising=False)
    assert open_parallel_trainer(SMALL, 2, optimizer=optimizer).parts == 2
    with pytest.raises(OverlayError, match=r"3 cards are asked for, .* 2 emulated; .*BTTLAB_EMULATED_CARDS=3"):
        open_parallel_trainer(SMALL, 3, "emulated")
    with pytest.raises(OverlayError, match=r"3 cards are asked for, .* is for 0 real and 2 emulated"):
        open_parallel_trainer(SMALL, 3)
    with pytest.raises(OverlayError, match="is for 0 real"):
        open_parallel_trainer(SMALL, 2, require_card=True)
    with pytest.raises(OverlayError, match="device '1' is one card"):
        open_parallel_trainer(SMALL, 2, "1")


# --- the record of docs/accelerator.md


def test_the_tables_are_of_the_record_and_the_record_of_the_programs(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / two_cards.PAGE).write_bytes((ROOT / two_cards.PAGE).read_bytes())
    two_cards.write(tmp_path)
    assert (ROOT / two_cards.PAGE).read_text() == (tmp_path / two_cards.PAGE).read_text(), "python tools/two_cards.py"
    record = json.loads(two_cards.RECORD.read_text(encoding="utf-8"))
    lengths = epoch_lengths(load_corpus("airline"), 32)
    for row in record["times"]:
        size = row["batch_size"]
        program = compile(two_cards.MODEL, Options(optimizer=Optimizer(row["optimizer"], batch_size=size)))
        assert row["program"] == program.sha256, "python tools/two_cards.py --again"
        one, two = (shared_update(program, lengths, size, cards, row["parts"]["host"]) for cards in (1, 2))
        assert row["two"] == pytest.approx(two.seconds.value, rel=1e-4)  # cycles of layers are rounded
        assert row["ratio"]["value"] == pytest.approx(one.seconds.value / two.seconds.value, rel=1e-4)
    hosts = {row["optimizer"]: row["parts"]["host"] for row in record["times"]}
    assert record["least_batch"].keys() == hosts.keys()
    for name, least in record["least_batch"].items():
        program = compile(two_cards.MODEL, Options(optimizer=Optimizer(name, batch_size=least)))
        for size, is_reached in ((least - 2, False), (least, True)):
            one, two = (shared_update(program, lengths, size, cards, hosts[name]).seconds.value for cards in (1, 2))
            assert (one / two >= 1.8) == is_reached
    assert [row["equal_bits"] for row in record["parameters"]] == [True, False, False, False]


def test_a_shared_update_is_half_the_samples_and_what_passes_between():
    program, lengths = compile(SMALL, Options(optimizer=Optimizer("adamw", batch_size=64))), {9: 3, 5: 1}
    one, two, four = (shared_update(program, lengths, 64, cards, 1e-3) for cards in (1, 2, 4))
    assert one.seconds.value == one.training.value == pytest.approx(2 * two.training.value)
    assert four.training.value == pytest.approx(two.training.value / 2) and four.exchange == two.exchange
    assert two.transfers.low < two.transfers.value < two.transfers.high
    moved = 2 * program.transfer_vectors
    assert two.exchange.value > 2 * moved / 200e6  # each vector passes the port and the loop, both ways
    assert two.seconds.value == pytest.approx(
        two.training.value + two.exchange.value + two.transfers.value + 1e-3, rel=1e-9
    )


def test_slices_of_whole_updates():
    cuts = [(part.start, part.stop) for part in chunks(0, 200, 64, before=10, largest=64)]
    assert cuts == [(0, 54), (54, 118), (118, 182), (182, 200)]


def settings(**changes):
    values = {"epochs": 2, "samples": 22, "optimizer": Optimizer("sgd", batch_size=4), "learning_rate": 0.01}
    return RunSettings(**{"config": SMALL, "data": "airline", "device": "emulated", "cards": 2} | values | changes)


def test_a_run_on_two_cards_continues_to_the_same_bits(tmp_path, cards, monkeypatch):
    """Epochs of 22 samples end amid an update of four."""
    monkeypatch.setattr(pynq.Device, "_devices", cards[:2], raising=False)
    corpus = load_corpus("airline")
    vocabulary = replace(SMALL.with_vocabulary(1000), intents=len(corpus.intent_labels), slots=len(corpus.slot_labels))

    def run(folder, epochs, **changes):
        chosen = settings(config=vocabulary, epochs=epochs, **changes)
        training = start_run(tmp_path / folder, chosen, corpus)
        found = training.open_trainer()
        assert isinstance(found.trainer, ParallelTrainer) == (chosen.cards > 1)
        return training.train(found.trainer, found.device)

    whole = run("whole", 2)
    run("part", 1)
    training = resume_run(tmp_path / "part", {"epochs": 2})
    assert training.settings.cards == 2
    found = training.open_trainer()
    assert found.device.startswith("2 cards (")
    assert training.train(found.trainer, found.device).parameters_sha256 == whole.parameters_sha256
    assert run("one", 2, cards=1).parameters_sha256 != whole.parameters_sha256


@pytest.mark.parametrize(("cards", "figures"), [(1, True), (2, False)])
def test_the_modelled_figures_of_one_card_are_not_those_of_two(cards, figures):
    record = RunRecord("training", "run", configuration={}, device="")
    U50Figures(SMALL, {9: 3}, Optimizer("sgd", batch_size=4), cards=cards).on_record(record)
    assert ("u50.seconds_per_epoch" in record.figures) == figures


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": Optimizer("sgd")}, "share the samples of an update, which has one; choose a batch_size of 2"),
        ({"device": "reference"}, "cards is 2, and device 'reference' is one"),
        ({"cards": 0}, "cards"),
    ],
)
def test_settings_that_do_not_go_together(changes, message):
    with pytest.raises(RunError, match=message):
        settings(**changes)


PROCESS = """
import sys, hashlib, torch
import torch.distributed as dist
sys.path[:0] = [sys.argv[4], sys.argv[4] + "/tests/helpers"]
from bttlab.card import ParallelTrainer, open_trainer
from bttlab.model import NumericalFault, Optimizer
from training_processor import SMALL, some_parameters, some_samples

rank, ranks, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=ranks)
optimizer, samples = Optimizer("adamw", batch_size=4), some_samples(SMALL, [5, 9, 13, 7, 2] * 4)
trainer = ParallelTrainer([open_trainer(SMALL, "emulated", optimizer=optimizer)], group=dist.group.WORLD)
trainer.load_parameters(some_parameters(SMALL))
trainer.train(samples, optimizer, 0.01)
found = trainer.store_parameters()
print(hashlib.sha256(b"".join(found[name].tobytes() for name in sorted(found))).hexdigest())
wrong = some_parameters(SMALL)
wrong["slot_head.bias"][0] = 2.0**126
trainer.load_parameters(wrong)
try:
    trainer.train(samples, optimizer, 0.01)
except NumericalFault as fault:
    print(fault.fault, fault.sample)
dist.destroy_process_group()  # else gloo's threads may end the process with SIGABRT
"""


@LONG
def test_cards_of_two_processes_give_the_bits_of_two_cards(tmp_path, cards):
    command = [sys.executable, "-c", PROCESS]
    both = [
        subprocess.Popen(
            [*command, str(rank), "2", str(tmp_path / "meeting"), str(ROOT)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=ROOT,
        )
        for rank in range(2)
    ]
    printed = [process.communicate(timeout=300)[0].split("\n") for process in both]
    assert [process.returncode for process in both] == [0, 0]
    optimizer, samples = Optimizer("adamw", batch_size=4), samples_of(20)
    trainer = ParallelTrainer(opened(cards, optimizer, 2))
    trainer.load_parameters(some_parameters(SMALL))
    trainer.train(samples, optimizer, 0.01)
    found = trainer.store_parameters()
    digest = hashlib.sha256(b"".join(found[name].tobytes() for name in sorted(found))).hexdigest()
    assert printed[0] == printed[1]  # the fault of one is the fault of both
    assert printed[0][0] == digest and printed[0][1].endswith(" 0")
