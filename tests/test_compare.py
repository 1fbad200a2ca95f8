"""The same training on two devices, here two emulated cards."""

import json

import numpy as np
import pynq
import pytest

from bttlab.card import EmulatedU50
from bttlab.card.compare import Comparison, DeviceRun, Difference, compare, open_device
from bttlab.card.compiled import compiled_program
from bttlab.compiler.timing import time_program
from bttlab.data import Samples
from bttlab.errors import BttlabError
from bttlab.model import ModelConfig, Optimizer

MODEL = ModelConfig(encoders=2)


@pytest.fixture(scope="module")
def samples():
    lengths = np.array([5, 13, 9], np.int32)
    generator = np.random.default_rng(0)
    real = np.arange(32) < lengths[:, None]
    tokens = np.where(real, generator.integers(3, 1000, (3, 32)), 0).astype(np.int32)
    tokens[:, 0] = 2
    slots = np.where(real & (np.arange(32) > 0), generator.integers(2, 122, (3, 32)), 0).astype(np.int32)
    return Samples(tokens, lengths, generator.integers(2, 22, 3).astype(np.int32), slots)


@pytest.fixture(scope="module")
def comparison(samples):
    return compare(MODEL, ["emulated", "emulated"], samples, Optimizer("adamw"), 1e-3)


def test_two_emulated_cards_give_the_same_bits(comparison):
    assert comparison.identical and comparison.first_different is None
    first, reference = comparison.runs
    assert first.emulated and reference.emulated and first.name != reference.name
    assert comparison.losses.size == 3 and comparison.losses.largest == comparison.losses.relative == 0
    assert {p.name for p in comparison.parameters} == set(MODEL.parameter_shapes())


def test_a_model_of_snips_is_compared(samples):
    snips = ModelConfig().with_vocabulary(11_428)
    both = compare(snips, ["emulated", "emulated"], samples, Optimizer(), 4e-3)
    assert both.identical and {p.name for p in both.parameters} == set(snips.parameter_shapes())


def test_cycles_are_those_of_the_programs_steps(comparison, samples):
    program = compiled_program(MODEL).program
    runs = [time_program(program.sample, n, number > 0).cycles for number, n in enumerate(samples.lengths.tolist())]
    assert comparison.modelled_cycles == sum(runs) + time_program(program.flush, 1).cycles
    for run in comparison.runs:
        assert (run.cycles["value"], run.cycles["provenance"]) == (comparison.modelled_cycles, "modelled")


def test_every_figure_of_the_json_says_where_it_is_from(comparison):
    values = json.loads(json.dumps(comparison.to_dict()))
    assert values["identical"] and values["samples"] == 3
    assert values["cycles"]["provenance"] == "modelled"
    for device in values["devices"]:
        assert device["seconds"]["provenance"] == "measured" and device["cycles"]["provenance"]


def test_a_difference_is_found_and_measured():
    a = np.array([3, 4, 0], np.float32)
    b = np.array([3, 4.5, -0.0], np.float32)
    found = Difference.between("x", a, b)
    assert (found.size, found.different, found.largest, found.relative) == (3, 2, 0.5, 0.1)
    runs = tuple(
        DeviceRun(n, n == "e", 200, x, {"x": x}, 1e-3, 10**5, c) for n, x, c in (("card", b, 200_000), ("e", a, 0))
    )
    whole = Comparison(runs, found, 1, (found,))
    assert not whole.identical and whole.to_dict()["first_different_sample"] == 1
    assert runs[0].cycles["value"] == 200e3 and runs[0].cycles["provenance"] == "measured"
    assert runs[1].cycles["value"] == 1e5 and runs[1].cycles["provenance"] == "modelled"


def test_devices_that_are_not_here(samples):
    taken = [pynq.Device.devices[0]]
    assert open_device("0") is taken[0] and isinstance(open_device("emulated", taken), EmulatedU50)
    assert open_device("emulated", taken) not in taken
    for names, message in [
        (["emulated"], "1 devices: a comparison is of two"),
        (["0", "0"], "device 0 is compared with itself"),
        (["u50", "emulated"], "no U50 is here"),
        (["u51", "emulated"], "no device 'u51'; choose u50, emulated"),
    ]:
        with pytest.raises(BttlabError, match=message):
            compare(MODEL, names, samples, Optimizer(), 1e-3)
