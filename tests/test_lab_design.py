"""The card's model in the lab: meters, designs, their explorer and the figures of bytes and joules."""

from collections import Counter

import matplotlib
import numpy as np
import pytest

from bttlab.data import load_corpus
from bttlab.estimate import card
from bttlab.lab import Design, DesignExplorer, Workload, chip_bytes, draw_blocks, draw_bytes, draw_energy
from bttlab.lab.card_model import ModelledMeter, memory_of
from bttlab.lab.design import evaluate, pareto
from bttlab.model import ModelConfig
from bttlab.u50.estimate import estimate
from bttlab.u50.hardware import HardwareConfig
from bttlab.u50.resources import budget

LENGTHS = {13: 100, 32: 10}
BUILT = HardwareConfig()
DESIGN = Design(2, 12, BUILT.engine_rows, BUILT.clock_mhz)


@pytest.fixture(autouse=True)
def without_windows():
    matplotlib.use("agg")
    yield
    matplotlib.pyplot.close("all")


def test_a_modelled_meter_adds_up_to_the_estimate():
    workload = Workload.of(load_corpus("airline"), ModelConfig())
    meter = ModelledMeter(workload.config)
    meter.advance(workload.train[:50], 1.0)
    meter.advance(workload.train[50:100], 99.0)  # how long the emulation took plays no part
    each = [card.estimate(workload.config, [n]).energy_per_sample.mid for n in workload.train.lengths[:100]]
    assert meter.provenance == "modelled" and meter.joules == pytest.approx(sum(each), rel=1e-6)
    whole = card.estimate(workload.config, workload.train.lengths[:100].tolist())
    assert meter.bounds[0] < meter.joules < meter.bounds[1]
    assert meter.seconds == pytest.approx(whole.seconds_per_epoch, rel=0.02)
    meter.advance(workload.train[:0], 1.0)  # before a fault at the first sample
    assert meter.joules == pytest.approx(sum(each), rel=1e-6)


def test_memory_is_that_of_the_map():
    memory = memory_of(ModelConfig(encoders=4))
    found = card.estimate(ModelConfig(encoders=4)).memory
    assert memory.provenance == "modelled" and memory.bytes == found.bytes
    assert found.by_group()["parameters"] >= ModelConfig(encoders=4).parameters_bytes


def test_designs_are_those_of_the_estimate():
    found = DESIGN.estimate(LENGTHS)
    assert found.seconds_per_epoch == estimate(ModelConfig(), lengths=LENGTHS).seconds_per_epoch
    assert Design(2, 12, 2, BUILT.clock_mhz).estimate(LENGTHS).seconds_per_epoch > found.seconds_per_epoch


def test_designs_that_cannot_be_built_are_left_out():
    assert list(evaluate([DESIGN, Design(2, 12, 4, 10_000)], LENGTHS)) == [DESIGN]


def test_pareto():
    points = {Design(1, k, 1, 100): point for k, point in enumerate([(1, 5), (2, 4), (2, 6), (3, 4), (4, 1)], 1)}
    assert [points[design] for design in pareto(points)] == [(1, 5), (2, 4), (4, 1)]


def test_the_explorer_says_what_the_model_says():
    explorer = DesignExplorer(LENGTHS, DESIGN)
    explorer.rank.value = 8
    found = Design(2, 8, BUILT.engine_rows, BUILT.clock_mhz).estimate(LENGTHS)
    assert f"{found.seconds_per_epoch:,.1f} s" in explorer.results
    assert f"{found.energy_per_epoch.mid:,.0f} J" in explorer.results and "(modelled" in explorer.results
    assert ("more than the card has" in explorer.message) == (not found.fits)


def test_a_click_chooses_the_nearest_design():
    explorer = DesignExplorer(LENGTHS, DESIGN)
    _, found = next((d, f) for d, f in explorer._shown.items() if d != explorer.design)

    class Event:
        inaxes = explorer._space
        xdata, ydata = found.seconds_per_epoch * 1.0001, found.energy_per_epoch.mid

    explorer._click(Event)
    chosen = explorer._shown[explorer.design]
    assert chosen.seconds_per_epoch == pytest.approx(found.seconds_per_epoch, rel=1e-2)
    assert chosen.energy_per_epoch.mid == pytest.approx(found.energy_per_epoch.mid, rel=1e-2)
    assert explorer.rank.value == explorer.design.rank and explorer.rows.value == explorer.design.rows


def test_a_design_that_cannot_be_built_is_a_sentence():
    explorer = DesignExplorer(LENGTHS, DESIGN)
    before = explorer.design
    explorer.choose(Design(12, 48, 16, 300))
    assert explorer.message or explorer.estimate.fits  # too large, or against a rule of the source: said either way
    explorer.choose(before)
    assert explorer.design == before


def test_figures_of_bytes_blocks_and_joules():
    found = {f"{n} encoders": estimate(ModelConfig(encoders=n), lengths=Counter(LENGTHS)) for n in (2, 4)}
    draw_bytes({name: chip_bytes(each) for name, each in found.items()}, "On the chip (modelled)")
    axes = matplotlib.pyplot.gcf().axes[0]
    widths = np.array([patch.get_width() for patch in axes.patches]).reshape(2, -1).sum(1)
    np.testing.assert_allclose(widths, [sum(chip_bytes(each).values()) / 1e6 for each in found.values()])
    draw_blocks(found, {name: budget(name) for name in ("bram36", "uram")})
    assert [axes.get_title(loc="left") for axes in matplotlib.pyplot.gcf().axes] == [
        "BRAM36 blocks (modelled)",
        "UltraRAM blocks (modelled)",
    ]
    draw_energy(found)
    axes = matplotlib.pyplot.gcf().axes[0]
    total = sum(patch.get_width() for patch in axes.patches[: len(axes.patches) // len(found)])
    assert total == pytest.approx(found["2 encoders"].energy_per_epoch.mid, rel=1e-3)
