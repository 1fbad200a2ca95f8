"""The card's model in the lab: meters, designs, their explorer and the figures of bytes and joules."""

from collections import Counter

import matplotlib
import numpy as np
import pytest

from bttlab.data import load_corpus
from bttlab.estimate.card import CLOCK_MHZ, estimate
from bttlab.lab import (
    Design,
    DesignExplorer,
    Workload,
    chip_bytes,
    design_explorer,
    draw_banks,
    draw_bytes,
    draw_energy,
)
from bttlab.lab.design_explorer import grid
from bttlab.lab.energy_meters import modelled_meter
from bttlab.lab.picture import STALE_CLASS
from bttlab.model import FLOW_TITLES, ModelConfig, Optimizer

LENGTHS = {13: 100}
SMALL = Design(1)
RANKS = (8, 12)
WAIT = 300  # seconds, on a busy machine


@pytest.fixture(scope="module", autouse=True)
def few_ranks():
    """Two ranks in the figure: each is three programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(design_explorer, "RANKS", RANKS)
        yield


@pytest.fixture(scope="module")
def explorer():
    matplotlib.use("agg")
    found = DesignExplorer(LENGTHS, SMALL)
    assert found.programs.wait(WAIT)
    return found


def test_a_modelled_meter_adds_up_to_the_estimate():
    workload = Workload.of(load_corpus("airline"), ModelConfig())
    meter = modelled_meter(workload.config, Optimizer("sgd"))
    meter.advance(workload.train[:50], 1.0)
    meter.advance(workload.train[50:100], 99.0)  # how long the emulation took plays no part
    each = [estimate(workload.config, [n]).energy_per_sample.value for n in workload.train.lengths[:100]]
    assert meter.provenance == "modelled" and meter.joules[1] == pytest.approx(sum(each), rel=1e-6)
    whole = estimate(workload.config, workload.train.lengths[:100].tolist())
    assert meter.joules[0] < meter.joules[1] < meter.joules[2]
    assert meter.seconds == pytest.approx(whole.seconds_per_epoch, rel=0.02)
    meter.advance(workload.train[:0], 1.0)  # before a fault at the first sample
    assert meter.joules[1] == pytest.approx(sum(each), rel=1e-6)


def test_the_figures_are_grey_until_the_chosen_program_is_there(explorer, monkeypatch):
    monkeypatch.setattr(explorer.programs, "want", lambda designs: 1)  # none is compiled
    explorer.rank.value = 5
    assert "compiled, or refused" in explorer.results and STALE_CLASS in explorer._live.widget._dom_classes
    monkeypatch.undo()
    explorer.choose(SMALL)
    assert explorer.programs.wait(WAIT) and STALE_CLASS not in explorer._live.widget._dom_classes


@pytest.mark.long
def test_the_explorer_says_what_the_model_says(explorer):
    explorer.choose(Design(1, 8))
    found = Design(1, 8).estimate(LENGTHS)
    assert f"{found.seconds_per_epoch:,.2f} s" in explorer.results and explorer.message == ""
    assert f"{found.energy_per_epoch.value:,.0f} J" in explorer.results and "(modelled" in explorer.results
    explorer.clock.value = CLOCK_MHZ // 2
    assert f"{2 * found.seconds_per_epoch:,.2f} s" in explorer.results
    assert set(explorer._shown) == {Design(d.encoders, d.rank, d.flow, "sgd", CLOCK_MHZ // 2) for d in grid(1)}
    assert len(explorer._space.get_lines()) == len(FLOW_TITLES)
    assert "to come" not in explorer.results
    with pytest.MonkeyPatch.context() as patch:  # what was there stays there, however many programs came since
        patch.setattr("bttlab.estimate.card.compile", None)
        explorer.encoders.value = 1
        explorer.rank.value = 12
    assert set(explorer._shown) == {Design(d.encoders, d.rank, d.flow, "sgd", CLOCK_MHZ // 2) for d in grid(1)}


def test_another_card_has_the_same_cycles_and_no_energy(explorer):
    explorer.choose(SMALL)
    assert explorer.programs.wait(WAIT)
    on_u50, points = explorer.results, dict(explorer._shown)
    with pytest.MonkeyPatch.context() as patch:  # a card needs no compilation
        patch.setattr("bttlab.estimate.card.compile", None)
        explorer.card.value = "U55C"
    assert (
        "an unknown energy" in explorer.results and "Whether the machine fits the U55C is unknown" in explorer.results
    )
    assert explorer._space.get_ylabel() == "time of an epoch (s, modelled)"
    assert [one.work for one in explorer._shown.values()] == [one.work for one in points.values()]
    explorer.card.value = "U50"
    assert explorer.results == on_u50 and "The machine fits the U50: 70% of the UltraRAM blocks" in on_u50


def test_figures_of_bytes_banks_and_joules():
    found = {f"{n} encoders": estimate(ModelConfig(encoders=n), Counter(LENGTHS)) for n in (2, 4)}
    picture = draw_bytes({name: chip_bytes(each) for name, each in found.items()}, "On the chip (modelled)")
    axes = picture.figure.axes[0]
    widths = np.array([patch.get_width() for patch in axes.patches]).reshape(2, -1).sum(1)
    np.testing.assert_allclose(widths, [each.memory.bytes / 1e6 for each in found.values()])
    assert "On the chip (modelled)" in picture.words and "rows: 2 encoders, 4 encoders" in picture.words
    picture = draw_banks(found["2 encoders"])
    axes = picture.figure.axes[0]
    drawn = sum(patch.get_width() for patch in axes.patches if patch.get_facecolor()[3])
    assert drawn == pytest.approx(sum(bank.bytes for bank in found["2 encoders"].memory.banks) / 1e6)
    axes = draw_energy(found).figure.axes[0]
    total = sum(patch.get_width() for patch in axes.patches[: len(axes.patches) // len(found)])
    assert total == pytest.approx(found["2 encoders"].energy_per_epoch.value, rel=1e-3)
