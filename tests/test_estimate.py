"""Estimates: what follows from what, and what is refused."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from bttlab.errors import BttlabError
from bttlab.model.config import ModelConfig
from bttlab.u50.cycles import sample_cycles
from bttlab.u50.estimate import at_clock, check_fits, estimate, nearest_that_fits, with_lanes
from bttlab.u50.hardware import HardwareConfig
from bttlab.u50.resources import RESOURCES, TARGET, budget

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
    narrow = estimate(MODEL, replace(HardwareConfig(), engine_rows=HardwareConfig().engine_rows // 2), LENGTHS)
    assert narrow.bound_seconds == pytest.approx(2 * found.bound_seconds)
    assert narrow.multiply_accumulates == found.multiply_accumulates


def test_adamw_takes_longer(found):
    assert estimate(MODEL, None, LENGTHS, "adamw").seconds_per_epoch > found.seconds_per_epoch


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
        (MODEL, {"add": 40}, [13], "a sum is ready after 41 cycles, but an engine's row keeps 32"),
        (replace(MODEL, heads=96), {}, [13], "8 features of a head do not fill words of 16 lanes"),
    ],
)
def test_what_the_source_cannot_be_built_for(model, hardware, lengths, message):
    with pytest.raises(BttlabError, match=message) as caught:
        estimate(model, replace(HardwareConfig(), **hardware), lengths)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("lanes", "near"), [(0, "take 32"), (-5, "take 32"), (100, "take 96 or 128"), (15, "take 32"), (3200, "512")]
)
def test_lanes_that_make_no_rows(lanes, near):
    with pytest.raises(BttlabError, match=near):
        with_lanes(HardwareConfig(), lanes)


def test_lanes_are_rows_of_words():
    assert with_lanes(HardwareConfig(), 96).multiply_accumulates == 96


@pytest.mark.parametrize("encoders", [2, 4, 6])
def test_no_resource_is_fuller_than_what_routes_without_a_fight(encoders):
    found = estimate(ModelConfig(encoders=encoders), lengths=LENGTHS).resources
    assert {name: found.utilisation(name) for name in RESOURCES if found.utilisation(name) > TARGET} == {}


def test_a_model_that_is_too_large_names_what_is_short_and_gets_a_smaller_one_proposed():
    large = estimate(replace(MODEL, encoders=30), lengths=LENGTHS)
    assert not large.fits
    with pytest.raises(BttlabError, match=r"30 encoders .* do not fit a U50: over in .*UltraRAM blocks by ") as caught:
        check_fits(large)
    message = str(caught.value)
    over = int(message.partition("UltraRAM blocks by ")[2].split()[0].replace(",", ""))
    assert over == round(large.resources.total("uram").mid - budget("uram")) and "\n" not in message
    option, value = nearest_that_fits(large.model, HardwareConfig()).split()
    assert f"{option} {value} would fit" in message
    field = {"--encoders": "encoders", "--rank": "linear_rank"}[option]
    assert estimate(replace(large.model, **{field: int(value)}), lengths=LENGTHS).fits
    assert not estimate(replace(large.model, **{field: int(value) + 1}), lengths=LENGTHS).fits
