"""The power model: parts, bands, and what is known of the card."""

from dataclasses import replace

import pytest

from bttlab.model.config import ModelConfig
from bttlab.u50.constants import read_data
from bttlab.u50.estimate import estimate, power_levels
from bttlab.u50.facts import U50
from bttlab.u50.hardware import HardwareConfig
from bttlab.u50.power import Activity, activity, power
from bttlab.u50.telemetry import PowerLevels


@pytest.fixture(scope="module")
def found():
    return estimate(ModelConfig(encoders=2), lengths=[13])


def busy(found, part: float, clock: int = 200, **rates: float):
    """Power with every unit filled to `part`."""
    names = {unit.name: part for unit in found.resources.parts}
    rates = {"uram_accesses": 0.0, "bram_accesses": 0.0, "hbm_bits": 0.0} | rates
    return power(found.resources, replace(found.hardware, clock_mhz=clock), Activity(names, **rates))


def test_bands_are_ordered_and_parts_add_up(found):
    for band in (*found.power.components.values(), found.power.running, found.power.loaded):
        assert 0 <= band.low <= band.mid <= band.high and band.unit == "W"
    assert found.power.running.mid == pytest.approx(sum(band.mid for band in found.power.components.values()))
    assert found.power.loaded.mid < found.power.running.mid


def test_the_board_is_between_idle_as_measured_and_its_limit(found):
    idle = read_data("published")["card"]["facts"]["idle_power"]["value"]
    assert idle < found.power.loaded.mid < found.power.running.mid < found.power.running.high < U50.board_watts
    assert idle < found.power.loaded.low < found.power.running.low  # a kernel adds to what an idle card takes


def test_blocks_that_wait_are_clocked(found):
    idle = busy(found, 0.0).components["memories"]
    blocks = found.resources.total("uram").mid + found.resources.total("bram36").mid
    assert 0.2e-3 < idle.mid / blocks < 2e-3  # W a block at 200 MHz: tenths of a milliwatt
    assert found.power.components["memories"].mid > idle.mid


def test_power_grows_with_clock_activity_and_traffic(found):
    quiet, loud = busy(found, 0.1), busy(found, 0.9)
    assert quiet.components["operators"].mid < loud.components["operators"].mid
    assert quiet.components["clocking"] == loud.components["clocking"]
    twice = busy(found, 0.9, clock=400)
    for name in ("operators", "clocking"):
        assert twice.components[name].mid == pytest.approx(2 * loud.components[name].mid)
    traffic = busy(found, 0.1, hbm_bits=8 * 14.375e9)  # one pseudo-channel at its limit
    assert 0.4 < traffic.components["HBM transfers"].mid < 1.6


def test_a_multiply_accumulate_takes_tens_of_picojoules(found):
    engine = next(part for part in found.resources.parts if part.name == "contraction")
    alone = replace(found.resources, parts=(engine,))
    watts = busy(replace(found, resources=alone), 1.0).components["operators"]
    lanes = found.hardware.multiply_accumulates
    per_operation = [bound / (lanes * 200e6) * 1e12 for bound in (watts.low, watts.mid, watts.high)]
    assert 20 < per_operation[0] < per_operation[1] < 100 and per_operation[2] < 200


def test_activity_is_useful_work_over_slots(found):
    model, hardware = found.model, found.hardware
    once = activity(model, hardware, 13, found.seconds_per_sample, 1000)
    assert all(0 <= part <= 1 for part in once.units.values())
    slower = activity(model, hardware, 13, 2 * found.seconds_per_sample, 1000)
    assert slower.units["gelu"] == pytest.approx(once.units["gelu"] / 2)
    assert slower.hbm_bits == pytest.approx(once.hbm_bits / 2) and once.uram_accesses > 0 < once.bram_accesses


def test_energy_is_power_times_time(found):
    energy, watts = found.energy_per_sample, found.power.running
    for bound in ("low", "mid", "high"):
        assert getattr(energy, bound) == pytest.approx(getattr(watts, bound) * found.seconds_per_sample)
    assert energy.unit == "J"


def test_the_sensors_levels_are_the_models(found):
    levels, alone = power_levels(found.model), PowerLevels.without_overlay()
    assert alone.idle < levels.idle < levels.running
    assert levels.running - levels.idle == pytest.approx(found.power.running.mid - found.power.loaded.mid)
    assert 0 < levels.running_vccint - levels.idle_vccint < levels.running - levels.idle


def test_figures_say_that_they_are_modelled(found):
    values = found.power.to_dict()
    for figure in (values["running"], values["between_calls"], *values["components"].values()):
        assert figure["provenance"] == "modelled" and figure["model"] == "u50-2" and figure["unit"] == "W"
    assert HardwareConfig().clock_mhz == found.hardware.clock_mhz
