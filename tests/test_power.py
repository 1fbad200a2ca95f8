"""The power model: parts, bands, what is known of the card, and what the emulated card's sensors show of it."""

from dataclasses import replace

import pytest

from bttlab.card import open_trainer
from bttlab.estimate.card import CLOCK_MHZ, estimate, power_levels
from bttlab.estimate.constants import read_data
from bttlab.estimate.facts import U50
from bttlab.estimate.power import PowerLevels
from bttlab.model import ModelConfig

from training_processor import SMALL

IDLE = read_data("published")["card"]["facts"]["idle_power"]["value"]


@pytest.fixture(scope="module")
def found():
    return estimate(ModelConfig(encoders=2), [13])


def test_the_board_is_between_idle_as_measured_and_its_limit(found):
    for mhz in (CLOCK_MHZ, 150):
        at = found.at_clock(mhz).power
        assert IDLE < at.loaded.low < at.running.low  # a kernel adds to what an idle card takes
        assert at.loaded.value < at.running.value < at.running.high < U50.board_watts


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
