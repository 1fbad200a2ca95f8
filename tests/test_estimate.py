"""Estimates: what follows from what, beside the machine itself; constants; what is refused; the command."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from bttlab.card.image import IMAGES
from bttlab.card.processor import sample_records
from bttlab.cli import main
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.hazards import check_program
from bttlab.compiler.machine import CLOCKS, machine_of, targeting
from bttlab.compiler.program import Options, compile
from bttlab.compiler.timing import time_program
from bttlab.estimate import counts
from bttlab.estimate.card import CLOCK_MHZ, estimate
from bttlab.estimate.constants import constant, read_data
from bttlab.estimate.counts import (
    OUTSIDE_LOOP,
    SAMPLES_PER_FLUSH,
    cycles_outside_loop,
    epoch_work,
    sample_works,
    works_of,
)
from bttlab.estimate.facts import NAMES, U50, card_of_platform, read_card
from bttlab.estimate.film import Film
from bttlab.estimate.geometry import Blocks, blocks, capacity_bits
from bttlab.estimate.memory import touched_words
from bttlab.estimate.parallel import shared_update
from bttlab.estimate.recorded import RESOURCES, SOURCE, TARGET, machine_record, source_digest
from bttlab.estimate.resources import budget, resources
from bttlab.estimate.synthesis import LEVEL_CLOCKS, cost_at, levels_at, synthesised, with_amd_cores, without_cores
from bttlab.model import ModelConfig, Optimizer
from bttlab.model.loop import LARGEST_CHUNK, LARGEST_SUM
from bttlab.util.errors import BttlabError
from bttlab.util.places import ROOT
from command_line import run_json

from processor_native import Native, NativeProcessor
from training_processor import SMALL, some_parameters, some_samples

MODEL = ModelConfig(encoders=2)
LONG = pytest.mark.long
LENGTHS = [13] * 30 + [7] * 10 + [32]


@pytest.fixture(scope="module")
def found():
    return estimate(MODEL, LENGTHS)


# ---- cycles ----------------------------------------------------------------------------------------------------------


def test_a_sample_is_its_loop_a_share_of_the_last_update_and_what_passes_beside():
    program = compile(SMALL)
    one = sample_works(program)[9]
    (flush,) = works_of(program.flush, [1])
    assert one.loop == time_program(program.sample, 9).cycles + sum(round(n / 32) for n in flush.cycles.values())
    assert one.cycles[OUTSIDE_LOOP] == cycles_outside_loop(9) == one.total - one.loop
    assert SAMPLES_PER_FLUSH == LARGEST_SUM
    paper = compile(ModelConfig(encoders=2))
    counted, largest = (epoch_work(paper, {13: 1}, samples).total for samples in (SAMPLES_PER_FLUSH, LARGEST_CHUNK))
    assert 0.99 < largest / counted < 0.996


def test_what_passes_cycles_outside_loop_is_what_the_source_says():
    text = (SOURCE / "samples.h").read_text() + (SOURCE / "machine.h").read_text()
    assert f"#pragma HLS PIPELINE II={counts.LOSS_INTERVAL}\n        slot_loss" in text
    assert cycles_outside_loop(14) - cycles_outside_loop(13) == 1 + counts.LOSS_INTERVAL  # a token in, a word's loss
    for loop in ("Offset_Lanes:", "Slot_Lanes:", "Check_Tokens:", "Write_Lanes:", "Prepare:"):
        assert "#pragma HLS PIPELINE II=1" in text[text.index(loop) :][:160]


def test_an_epoch_is_its_samples(found):
    assert found.samples == 41
    works = sample_works(compile(MODEL))
    expected = sum(works[length].total for length in LENGTHS)
    assert found.work.total == expected == sum(found.work.by_stage().values())
    assert found.seconds_per_epoch == pytest.approx(expected / (CLOCK_MHZ * 1e6))
    assert found.seconds_per_sample * 41 == pytest.approx(found.seconds_per_epoch)
    assert estimate(MODEL, Counter(LENGTHS)).work == found.work


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_the_words_of_the_map_are_those_that_the_machine_touches():
    """Every word holds a mark before; what a whole call leaves of the marks is what no program's step touched."""
    native = Native("-DBTTLAB_FAST", *IMAGES[-1].flags)
    program, optimizer = compile(SMALL), Optimizer("adamw")
    banks = {name: memory for name, memory in native.memories.items() if name.startswith("bank")}
    random = np.random.default_rng(1)
    marks = {name: random.integers(1, 2**20, memory.shape).astype(np.float32) for name, memory in banks.items()}
    changed = {name: np.zeros(len(memory), bool) for name, memory in banks.items()}
    for seed in range(3):
        for name, memory in banks.items():
            memory[:] = marks[name]
        processor = NativeProcessor.__new__(NativeProcessor)
        processor._library, processor.program = native.library, None
        processor.load_program(program)
        processor.load(some_parameters(SMALL, seed=seed))
        samples = some_samples(SMALL, (18, 2, 11, 18), seed)
        results = processor.train(sample_records(program, samples, [1e-2] * 4, optimizer), optimizer)
        assert (results["status"] == 1).all()  # so nothing of the marks, which are large, came into a sum
        processor.store()
        for name, memory in banks.items():
            changed[name] |= (memory != marks[name]).any(axis=1)
    touched = {str(memory): words for memory, words in touched_words(program).items()}
    for name in banks:
        if name not in ("bank 0", "bank 1"):  # what comes in and goes out may be the mark again
            missing, too_many = changed[name] & ~touched[name], touched[name] & ~changed[name]
            assert not missing.any(), (name, np.flatnonzero(missing)[:5])
            assert too_many.sum() <= 0.02 * touched[name].sum(), (name, np.flatnonzero(too_many)[:5])


# ---- resources -------------------------------------------------------------------------------------------------------


def test_the_record_is_of_the_source_that_is_here():
    for clock in CLOCKS:
        record = machine_record(clock)
        assert record.is_current, "hls_src/processor has changed: make schedule SCHEDULE=--record"
        assert record.sources == source_digest() != source_digest(SOURCE / "emulation")
        assert (record.clock_mhz, record.interval, record.violations) == (clock, 1, 0)


def test_levels_of_logic_have_room_in_a_cycle():
    assert [levels_at(clock) for clock in LEVEL_CLOCKS] == [16, 11]
    for clock in CLOCKS:
        levels = {name: one["levels"] for name, one in synthesised(clock).items()}
        assert max(levels.values()) <= levels_at(300), "docs/accelerator.md says that all have room at 300 MHz"
    assert synthesised(200)["fp32_add"]["levels"] > levels_at(400)


def test_lookup_tables_beside_the_share_up_to_which_routing_is_easy():
    """docs/accelerator.md has both; an addition has fewer at the latency of the schedule for 300 MHz."""
    for clock in CLOCKS:
        found, counted = resources(machine_record(clock)), without_cores(synthesised(clock))
        assert found.parts["lookup_tables"]["registers"].value == counted["lookup_tables"]["registers"]
        shares = {resource: found.utilisation(resource) for resource in RESOURCES}
        assert max(shares.values()) <= TARGET and min(shares.values()) > 0.5, shares
    costs = [cost_at(read_data("operators")["operators"]["add"], clock) for clock in CLOCKS]
    assert [cost["lookup_tables"]["value"] for cost in costs] == [215, 198]


def test_resources_are_operators_memories_ports_and_what_yosys_counts(found):
    record, parts = machine_record(), found.resources.parts
    counts = sum((Counter(counts) for counts in record.units.values()), Counter())
    assert parts["dsps"]["operators"].value == 2 * counts["fadd"] + 2 * counts["fmul"] + counts["multiply"]
    counted = without_cores(synthesised())
    for resource, by_part in counted.items():
        assert all(parts[resource][part].value == pytest.approx(count) for part, count in by_part.items())
    amd = with_amd_cores(synthesised())
    loop = sum(band.value for part, band in parts["flip_flops"].items() if part != "ports")
    assert loop == pytest.approx(amd["flip_flops"])
    for resource, by_part in parts.items():
        assert found.resources.utilisation(resource) == pytest.approx(
            sum(b.value for b in by_part.values()) / budget(resource)
        )
    assert sum(record.share_of(unit, "dsps") for unit in record.units) == pytest.approx(1)


# ---- what is told, what is refused -----------------------------------------------------------------------------------


def test_the_json_is_complete_and_says_that_it_is_modelled(found):
    values = json.loads(json.dumps(found.to_dict()))
    assert values["samples"] == 41 and values["mean_length"] == pytest.approx(sum(LENGTHS) / 41)
    for name in ("seconds_per_sample", "seconds_per_epoch", "energy_per_epoch"):
        assert values[name]["provenance"] == "modelled" and values[name]["unit"] in ("s", "J")
    stages = values["cycles"]["by_stage"]
    assert sum(stages[stage] for stage in ("FP", "BP", "PU", "IO")) == values["cycles"]["per_epoch"]["value"]
    assert sum(values["cycles"]["by_stage_and_layer"]["FP"].values()) == stages["FP"]
    assert values["memory"]["blocks"]["uram"] == values["resources"]["kernel"]["uram"]["value"]
    assert values["schedule"]["of_this_source"]


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (MODEL, {"lengths": []}, "no samples"),
        (MODEL, {"lengths": [33]}, "1 samples of 33 tokens: lengths are 1 to 32"),
        (MODEL, {"lengths": [0]}, "lengths are 1 to 32"),
        (MODEL, {"lengths": {13: 0}}, "of at least one sample"),
        (MODEL, {"clock_mhz": 20}, "a clock of 20 MHz: .* use 50"),
        (MODEL, {"clock_mhz": 301}, "a clock of 301 MHz: .* use 300"),
        (MODEL, {"flow": "left"}, "flow is 'left'"),
        (MODEL, {"card": "U200"}, "no facts of a card 'U200': choose one of U50, U55C, U280, U250"),
        (replace(MODEL, encoders=7), {}, "vectors of bank .* are free: choose fewer encoders"),
        (replace(MODEL, encoders=30), {}, "take .* vectors, the banks of parameters have 36864: choose fewer encoders"),
    ],
)
def test_what_has_no_answer(model, options, message):
    with pytest.raises(BttlabError, match=message):
        estimate(model, **options)


@pytest.mark.parametrize(
    ("encoders", "limit"), [(2, 2.4), pytest.param(4, 4.05, marks=LONG), pytest.param(6, 5.7, marks=LONG)]
)
def test_an_epoch_of_atis_is_as_fast_as_asked(atis_lengths, encoders, limit):
    assert estimate(ModelConfig(encoders=encoders), atis_lengths, clock_mhz=200).seconds_per_epoch <= limit


def test_why_an_update_of_several_samples_gains_nothing(capsys):
    assert main(["estimate", "--encoders", "6", "--batch-size", "8", "--tokens", "13"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "6 encoders: an update runs sample by sample, the sums of gradients do not fit: " in said
    assert estimate(MODEL, [13], batch_size=8).why_no_sums == estimate(MODEL, [13]).why_no_sums == ""


@pytest.mark.long
@pytest.mark.parametrize(
    ("flow", "batch_size", "limit"), [("bidirectional", 1, 1.56), ("auto", 1, 1.46), ("bidirectional", 8, 1.31)]
)
def test_an_epoch_of_atis_at_300_mhz(atis_lengths, flow, batch_size, limit):
    model = ModelConfig(encoders=2)
    found = estimate(model, atis_lengths, flow=flow, clock_mhz=300, batch_size=batch_size)
    slower = estimate(model, atis_lengths, flow=flow, batch_size=batch_size)
    assert found.seconds_per_epoch <= limit
    assert slower.work.total * 0.99 < found.work.total < slower.work.total * 1.03


@pytest.mark.parametrize(
    ("clocks", "message"),
    [
        ("301", "a clock of 301 MHz: the shell gives 50 or more, and the fastest schedule is for 300; use 300"),
        ("200 49", "a clock of 49 MHz: "),
        ("fast", "argument --clock: invalid int value: 'fast'"),
    ],
)
def test_a_clock_that_no_schedule_has_is_one_line(capsys, clocks, message):
    try:
        code = main(f"estimate --encoders 1 --tokens 3 --clock {clocks}".split())
    except SystemExit as error:
        code = error.code
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert message in captured.err.splitlines()[-1]


def test_options_name_a_clock_of_a_schedule():
    with pytest.raises(ProgramError, match=r"no machine is scheduled for 250 MHz: .* of 200 and 300 MHz"):
        compile(MODEL, Options(clock_mhz=250))
    slow, fast = (compile(MODEL, Options(clock_mhz=clock)) for clock in CLOCKS)
    assert slow is compile(MODEL) and [slow.clock_mhz, fast.clock_mhz] == [200, 300]
    assert slow.sha256 != fast.sha256


@pytest.mark.parametrize("flow", ["bidirectional", "auto"])
def test_a_program_for_a_clock_takes_nothing_from_that_for_another(flow):
    """No draft that was scheduled for a shorter latency, which the check of the program would find."""
    slow, fast = (compile(SMALL, Options(flow, clock_mhz=clock)) for clock in CLOCKS)
    summed = Optimizer("adamw", batch_size=8)  # whose program says why it sums no gradients
    more = [compile(SMALL, Options(flow, summed, clock_mhz=clock)) for clock in CLOCKS]
    assert all(program.why_no_sums for program in more)
    for program, clock in zip((slow, fast, *more), CLOCKS * 2, strict=True):
        assert program.image[0, 2] == machine_of(clock).digest
        assert check_program(program, [3, 9]) == []
    with targeting(machine_of(300)):
        expected = replace(fast).most_cycles
    assert fast.most_cycles == expected


def test_films_and_updates_that_cards_share_are_of_the_programs_clock():
    fast, lengths = compile(SMALL, Options(clock_mhz=300)), {9: 1}
    with targeting(machine_of(300)):
        expected = time_program(fast.sample, 9).cycles
    assert Film(fast, 9).cycles == expected > time_program(fast.sample, 9).cycles  # of the overlay's latency
    alone = shared_update(fast, lengths, 8, 1, 0.0)
    assert alone.training.value == pytest.approx(8 * epoch_work(fast, lengths).total / 300e6)
    exchanges = [shared_update(program, lengths, 8, 2, 0.0).exchange.value for program in (fast, compile(SMALL))]
    assert 200 / 300 < exchanges[0] / exchanges[1] < 0.8


def test_the_fast_schedule_has_its_own_cycles_and_registers(found):
    """Above the overlay's clock: a deeper pipeline, so more cycles; the same at each clock of that schedule."""
    fast = found.at_clock(300)
    assert (fast.clock_mhz, fast.flow, fast.lengths) == (300, found.flow, found.lengths)
    assert found.work.total < fast.work.total < 1.05 * found.work.total
    assert fast.at_clock(250).work == fast.work and fast.at_clock(150).work == found.work
    assert fast.at_clock(200).to_dict() == found.to_dict()
    for resource in ("dsps", "bram36", "uram"):
        assert fast.resources.total(resource) == found.resources.total(resource)
    assert fast.resources.total("flip_flops").value > found.resources.total("flip_flops").value
    assert found.power.running.value < fast.power.running.value < 1.5 * found.power.running.value
    data = fast.to_dict()
    assert (data["schedule"]["clock_mhz"], data["machine"]["LATENCY"]) == (300, 152)
    # HBM answers after the same time: 60 cycles more, twice.
    more = fast.work.cycles[OUTSIDE_LOOP] - found.work.cycles[OUTSIDE_LOOP]
    assert more == 2 * 60 * found.samples


@pytest.mark.long
def test_estimate_of_the_papers_models(capsys):
    values = run_json(capsys, "estimate", "--encoders", 2, 4, 6, "--data", "airline")
    assert values["provenance"] == "modelled" and values["published"]["training_paper"]
    seconds = [one["seconds_per_epoch"]["value"] for one in values["estimates"]]
    assert seconds == sorted(seconds)
    for one in values["estimates"]:
        assert one["samples"] == 4478 and 12 < one["mean_length"] < 14
        assert set(one["at_clocks"]) == {"200", "300", "150"}
        times = [one["at_clocks"][mhz]["seconds_per_epoch"]["value"] for mhz in ("200", "150")]
        assert times[1] == pytest.approx(times[0] * 200 / 150)


def test_estimate_for_people(capsys):
    assert main("estimate --encoders 2 --tokens 13 --clock 150 --rank 8".split()) == 0
    out = capsys.readouterr().out
    assert "at 150 MHz" in out and "modelled (u50-4), not measured" in out


@pytest.mark.parametrize(
    ("binding", "width", "depth", "expected"),
    [
        ("bram", 36, 1024, Blocks(bram36=1)),
        ("bram", 36, 512, Blocks(bram36=0.5)),
        ("bram", 37, 512, Blocks(bram36=1)),
        ("bram", 512, 513, Blocks(bram36=14.5)),
        ("bram", 1, 2, Blocks(bram36=0.5)),
        ("uram", 72, 4096, Blocks(uram=1)),
        ("uram", 512, 4097, Blocks(uram=16)),
        ("lutram", 14, 32, Blocks(lookup_tables=8)),
    ],
)
def test_geometry(binding, width, depth, expected):
    assert blocks(binding, width, depth) == expected


def test_what_blocks_hold_is_the_cards():
    card = Blocks(bram36=U50.bram36, uram=U50.uram)
    assert capacity_bits(card) == (1_344 * 36 + 640 * 288) * 1024  # the data sheet's, in kilobits
    assert blocks("uram", 72, 4096 * U50.uram).uram == U50.uram


@pytest.mark.parametrize("name", ["operators", "power", "published", "host"])
def test_every_constant_has_a_source_and_an_ordered_band(name):
    def walk(value, path, sourced):
        if isinstance(value, dict):
            sourced = sourced or "source" in value
            if {"value", "low", "high"} <= set(value):
                band = constant(value)
                assert sourced, path
                assert min(band.low, band.high) <= band.value <= max(band.low, band.high), path
                assert band.low <= band.high or path.endswith("regulator_efficiency"), path
            for key, inner in value.items():
                walk(inner, f"{path}.{key}", sourced)
        elif isinstance(value, float | int):
            assert sourced, path

    assert (ROOT / "data" / "u50" / f"{name}.json").is_file()
    walk(read_data(name), name, False)


# ---- other cards -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_card_has_a_source_for_each_figure_or_says_that_it_is_unknown(name):
    card = read_card(name)
    assert card_of_platform(card.platform) == card.short_name == name
    sources = {"device", "platform", "memory", "budget", "memory_controller", "board_watts"}
    assert set(card.sources) == sources and all(card.sources.values())
    for figure in ("budget", "board_watts"):
        assert card.sources[figure].startswith("unknown") == (getattr(card, figure) is None) == (figure in card.unknown)
    device = {resource: getattr(card, resource) for resource in RESOURCES}
    if name != "U50":  # the data sheet rounds
        assert device["flip_flops"] == 2 * device["lookup_tables"]  # of a slice (UG574)
    assert device["uram"] == 320 * card.slrs  # of a die
    for taken in (card.budget, card.memory_controller):
        assert taken is None or all(0 <= taken[resource] <= device[resource] for resource in RESOURCES)


def test_memory_of_the_cards():
    banks = {name: read_card(name).hbm_bank_bytes >> 20 for name in NAMES if read_card(name).hbm_banks}
    assert banks == {"U50": 256, "U55C": 512, "U280": 256}  # MB of a pseudo-channel (UG1393)
    assert read_card("U250").memory == "64 GiB of DDR4 in 4 banks"


def test_the_same_machine_on_another_card(found):
    for name in NAMES[1:]:
        other, direct = found.on_card(name), estimate(MODEL, LENGTHS, card=name)
        assert other.to_dict() == direct.to_dict()
        assert other.work == found.work and other.seconds_per_epoch == found.seconds_per_epoch
        extra = (other.card.memory_controller or {})["lookup_tables"]
        tables = [each.resources.total("lookup_tables").value for each in (other, found)]
        assert tables[0] == pytest.approx(tables[1] + extra)
        with pytest.raises(BttlabError, match=f"energy on the AMD Alveo {name} are unknown"):
            _ = other.energy_per_epoch
        assert other.to_dict()["power"] is None and other.resources.least_slrs == 2
    assert found.on_card("U50").to_dict() == found.to_dict()


def test_what_an_estimate_cannot_say(found):
    cannot = found.on_card("U55C")
    assert cannot.fits is None and cannot.resources.utilisation("dsps") is None
    assert cannot.unknown[0] == "whether it fits: what the shell of the U55C leaves to kernels is unknown"
    assert found.unknown == [] and found.fits
    small = replace(read_card("U55C"), lookup_tables=400_000)  # too small, whatever the shell takes
    assert replace(cannot.resources, card=small).fits is False
    assert "DDR4" in found.on_card("U250").unknown[-1] and found.on_card("U280").fits


def test_estimate_for_another_card(capsys, tmp_path):
    assert main("estimate --tokens 13 --clock 200 --card U55C".split()) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "U55C; an epoch is 13 tokens" in out and "Unknown: whether it fits" in out and "fits what" not in out
    assert "power of the board, W, at 200 MHz │ unknown" in out
    values = run_json(capsys, "estimate", "--tokens", 13, "--card", "U280", "--receipt", tmp_path / "receipt.json")
    assert values["card"] == "U280" and values["estimates"][0]["energy_per_epoch"] is None
    assert "2-ENC.joules" not in (tmp_path / "receipt.json").read_text()
