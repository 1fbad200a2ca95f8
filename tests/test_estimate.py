"""Estimates: what follows from what, and what is refused."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from bttlab.errors import BttlabError
from bttlab.model.config import ModelConfig
from bttlab.u50.cycles import sample_cycles
from bttlab.u50.estimate import at_clock, estimate, with_lanes
from bttlab.u50.hardware import HardwareConfig

MODEL = ModelConfig(encoders=2)
LENGTHS = [13] * 30 + [7] * 10 + [32]


@pytest.fixture(scope="module")
def found():
    return estimate(MODEL, lengths=LENGTHS)


def test_an_epoch_is_its_samples(found):
    assert found.samples == 41
    expected = sum(sum(sample_cycles(MODEL, HardwareConfig(), length).values()) for length in LENGTHS)
    assert sum(found.cycles.values()) == expected
    assert found.seconds_per_epoch == pytest.approx(expected / (found.hardware.clock_mhz * 1e6))
    assert found.seconds_per_sample * 41 == pytest.approx(found.seconds_per_epoch)
    assert estimate(MODEL, lengths=Counter(LENGTHS)) == found


def test_no_schedule_beats_the_bound(found):
    assert 0 < found.bound_seconds < found.seconds_per_epoch
    assert found.lane_utilisation == pytest.approx(found.bound_seconds / found.seconds_per_epoch)
    wide = estimate(MODEL, replace(HardwareConfig(), engine_rows=2 * HardwareConfig().engine_rows), LENGTHS)
    assert wide.bound_seconds == pytest.approx(found.bound_seconds / 2)
    assert wide.multiply_accumulates == found.multiply_accumulates


def test_more_of_anything_takes_longer(found):
    for model in (replace(MODEL, encoders=4), replace(MODEL, linear_rank=24)):
        other = estimate(model, lengths=LENGTHS)
        assert other.seconds_per_epoch > found.seconds_per_epoch
        assert other.energy_per_epoch.mid > found.energy_per_epoch.mid
    slower = estimate(MODEL, at_clock(HardwareConfig(), 100), LENGTHS)
    assert slower.seconds_per_epoch == pytest.approx(found.seconds_per_epoch * HardwareConfig().clock_mhz / 100)
    assert slower.power.running.mid < found.power.running.mid


def test_a_faster_clock_takes_deeper_pipelines():
    hardware = HardwareConfig()
    faster = at_clock(hardware, hardware.clock_mhz * 5 // 4)
    assert faster.add > hardware.add and faster.mul > hardware.mul and faster.read == hardware.read
    assert at_clock(hardware, hardware.clock_mhz) == hardware
    assert estimate(MODEL, faster, LENGTHS).seconds_per_epoch < estimate(MODEL, hardware, LENGTHS).seconds_per_epoch


def test_the_json_is_complete_and_says_that_it_is_modelled(found):
    values = json.loads(json.dumps(found.to_dict()))
    assert values["samples"] == 41 and values["mean_length"] == pytest.approx(sum(LENGTHS) / 41)
    for name in ("seconds_per_sample", "seconds_per_epoch", "bound_seconds_per_epoch", "energy_per_epoch"):
        assert values[name]["provenance"] == "modelled" and values[name]["unit"] in ("s", "J")
    stages = values["cycles"]["by_stage"]
    assert sum(stages[stage] for stage in ("FP", "BP", "PU", "IO")) == values["cycles"]["per_epoch"]["value"]
    assert sum(values["cycles"]["by_stage_and_unit"]["FP"].values()) == stages["FP"]
    assert values["memory"]["by_binding"]["uram"]["blocks"] == values["resources"]["kernel"]["uram"]["value"]


@pytest.mark.parametrize(
    ("model", "hardware", "lengths", "message"),
    [
        (MODEL, {}, [], "no samples"),
        (MODEL, {}, [33], "1 samples of 33 tokens: lengths are 1 to 32"),
        (MODEL, {}, [0], "lengths are 1 to 32"),
        (MODEL, {}, {13: 0}, "of at least one sample"),
        (MODEL, {"clock_mhz": 20}, [13], "a clock of 20 MHz: .* take 50"),
        (MODEL, {"clock_mhz": 301}, [13], "a clock of 301 MHz: .* take 300"),
        (MODEL, {"engine_slots": 5}, [13], "5 slots do not divide a word of 16 lanes.*take 4"),
        (MODEL, {"add": 9}, [13], "an addition takes 9 cycles"),
        (replace(MODEL, heads=96), {}, [13], "8 features of a head do not fill words of 16 lanes"),
    ],
)
def test_what_the_source_cannot_be_built_for(model, hardware, lengths, message):
    with pytest.raises(BttlabError, match=message) as caught:
        estimate(model, replace(HardwareConfig(), **hardware), lengths)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("lanes", "near"), [(0, "take 16"), (-5, "take 16"), (100, "take 96 or 112"), (15, "take 16")])
def test_lanes_that_make_no_rows(lanes, near):
    with pytest.raises(BttlabError, match=near):
        with_lanes(HardwareConfig(), lanes)


def test_lanes_are_rows_of_words():
    assert with_lanes(HardwareConfig(), 96).multiply_accumulates == 96
