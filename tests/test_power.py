"""The power model: parts, bands, what is known of the card, and what the emulated card's sensors show of it."""

import copy
from collections import Counter
from dataclasses import replace

import pytest

from bttlab.card import open_trainer
from bttlab.compiler.instruction import UNIT_NAMES
from bttlab.compiler.machine import M
from bttlab.estimate.card import CLOCK_MHZ, estimate, power_levels
from bttlab.estimate.constants import read_data
from bttlab.estimate.counts import Work
from bttlab.estimate.facts import U50
from bttlab.estimate.power import PowerLevels, power
from bttlab.estimate.recorded import machine_record
from bttlab.model import ModelConfig
from bttlab.util.quantities import Quantity, QuantityError

from training_processor import SMALL

CYCLES = 10**6
IDLE = read_data("published")["card"]["facts"]["idle_power"]["value"]


@pytest.fixture(scope="module")
def found():
    return estimate(ModelConfig(encoders=2), [13])


def busy(found, part: float, clock: int = CLOCK_MHZ, memories: float = 0.0):
    """Power with every unit acting, and every bank read and written, in a part of all cycles."""
    acting = Counter(dict.fromkeys(UNIT_NAMES, round(part * CYCLES)))
    words = Counter({f"bank {b}": round(memories * CYCLES) for b in range(M.BANKS)})
    work = Work(Counter({("FP", ""): CYCLES}), acting, acting, 0, words, words)
    return power(machine_record(), found.resources, work, 1, clock).components


def test_bands_are_ordered_and_parts_add_up(found):
    for band in (*found.power.components.values(), found.power.running, found.power.loaded):
        assert 0 <= band.low <= band.value <= band.high and band.unit == "W"
    assert found.power.running.value == pytest.approx(sum(band.value for band in found.power.components.values()))


def test_the_board_is_between_idle_as_measured_and_its_limit(found):
    for mhz in (CLOCK_MHZ, 150):
        at = found.at_clock(mhz).power
        assert IDLE < at.loaded.low < at.running.low  # a kernel adds to what an idle card takes
        assert at.loaded.value < at.running.value < at.running.high < U50.board_watts


def test_power_grows_with_clock_and_activity(found):
    quiet, loud = busy(found, 0.1), busy(found, 0.9)
    for name in ("engines", "other operators", "switches and registers"):
        assert quiet[name].value < loud[name].value
    assert quiet["clocks"] == loud["clocks"] and quiet["board, idle"] == loud["board, idle"]
    half = busy(found, 0.9, clock=CLOCK_MHZ // 2)
    for name in ("engines", "clocks", "memories"):
        assert half[name].value == pytest.approx(loud[name].value / 2)


def test_energy_is_power_times_time(found):
    energy, watts = found.energy_per_sample, found.power.running
    for bound in ("low", "value", "high"):
        assert getattr(energy, bound) == pytest.approx(getattr(watts, bound) * found.seconds_per_sample)
    assert energy.unit == "J"


def test_the_emulated_cards_sensors_show_the_loaded_programs_power():
    trainer = open_trainer(SMALL, "emulated")
    card, alone = trainer.device, PowerLevels.without_overlay()
    levels = power_levels(trainer.program.program)
    assert alone.idle < levels.idle < levels.running
    assert 0 < levels.running_vccint - levels.idle_vccint < levels.running - levels.idle
    assert card._levels() == levels
    trainer.load_program(replace(SMALL, encoders=1))
    assert card._levels() != levels


def test_figures_say_that_they_are_modelled(found):
    values = found.power.to_dict()
    for figure in (values["running"], values["between_calls"], *values["components"].values()):
        assert figure["provenance"] == "modelled" and figure["how"] == "u50-4" and figure["unit"] == "W"


def test_leakage_and_losses_of_the_regulator_come_on_top(found, monkeypatch):
    """Engines take their switching power times (1 + static_per_dynamic) / regulator_efficiency."""
    data = copy.deepcopy(read_data("power"))
    before = busy(found, 1.0)["engines"].value
    c = {name: data["constants"][name]["value"] for name in ("static_per_dynamic", "regulator_efficiency")}
    data["constants"]["static_per_dynamic"]["value"] = 0.0
    data["constants"]["regulator_efficiency"]["value"] = 1.0
    monkeypatch.setattr("bttlab.estimate.power.read_data", lambda name: data)
    factor = (1 + c["static_per_dynamic"]) / c["regulator_efficiency"]
    assert before == pytest.approx(busy(found, 1.0)["engines"].value * factor) and factor > 1


def test_sums_of_quantities_with_and_without_a_band():
    bare, banded = Quantity(2.0, "W", "published", "a"), Quantity(3.0, "W", "modelled", "b", 2.5, 4.0)
    assert bare + bare == Quantity(4.0, "W", "published", "a")
    assert banded + bare == Quantity(5.0, "W", "modelled", "b", 4.5, 6.0)
    assert (bare + banded).low == 4.5
    for other in (Quantity.missing("W", "no meter"), Quantity(1.0, "J", "measured", "c")):
        with pytest.raises(QuantityError, match="cannot be added"):
            _ = bare + other
