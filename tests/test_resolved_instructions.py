"""Instructions that the functional model keeps resolved: which they are, and the bits of instructions resolved anew."""

import ctypes
from collections import Counter

import numpy as np
import pytest

from bttlab.card.image import IMAGES
from bttlab.card.processor import sample_records
from bttlab.compiler.machine import M
from bttlab.compiler.program import Options, compile
from bttlab.model import ModelConfig, Optimizer, initial_parameters

from build_library import library
from conftest import ROOT
from processor_native import FLAGS, NativeProcessor
from training_processor import SMALL, fresh_processor, some_samples

SGD = Optimizer("sgd")


@pytest.fixture(scope="module")
def driver():
    """The library of the most general image."""
    fast = ("-DBTTLAB_FAST", *IMAGES[-1].flags)
    return library(ROOT / "tests" / "helpers" / "processor_driver.cpp", *FLAGS, *fast)


def train(processor: NativeProcessor, program, lengths) -> tuple[bytes, bytes]:
    """Load a program, train samples of these lengths, and return results and parameters."""
    samples = some_samples(program.config, lengths)
    processor.load_program(program)
    processor.load(initial_parameters(program.config, 0))
    results = processor.train(sample_records(program, samples, np.full(len(lengths), 1e-2), SGD), SGD)
    return results.tobytes(), b"".join(value.tobytes() for value in processor.store()[0].values())


def kept(processor: NativeProcessor, program, tokens: int) -> np.ndarray:
    """Return for each instruction whether it is kept resolved, and how it is executed: see `resolved` of the driver."""
    found = np.zeros((len(program.sample), 4), np.int32)
    processor._library.resolved(tokens, ctypes.c_void_p(found.ctypes.data))
    return found


def test_bits_are_those_of_instructions_resolved_anew(driver, tmp_path):
    """After other lengths and other programs, whose instructions differ at the same place."""
    programs = [compile(SMALL, Options(flow)) for flow in ("bidirectional", "right_to_left")]
    lengths = [9, 5, 9, 18, 5]
    wanted = []
    for program in programs:
        with fresh_processor(driver, tmp_path) as processor:
            wanted.append(train(processor, program, lengths))
    with fresh_processor(driver, tmp_path) as processor:
        for number in (0, 1, 0, 0):
            assert train(processor, programs[number], lengths) == wanted[number]


def test_instructions_are_kept_but_for_those_with_token_offsets(driver, tmp_path):
    """For lengths that ran. Engines execute nearly all in tiles."""
    model = ModelConfig()
    program = compile(model)
    with fresh_processor(driver, tmp_path) as processor:
        train(processor, program, [12, 12])
        found = kept(processor, program, 12)
        assert not kept(processor, program, 13).any()
    has_offsets = [any(operand.token_offset for operand in each.operands.values()) for each in program.sample]
    assert (found[:, 0] != has_offsets).all()
    units = np.array([each.unit for each in program.sample])
    how = Counter(found[units <= M.ENGINE_1, 1].tolist())
    print(
        f"engines, samples of 12 tokens: {how[2]} instructions in tiles, {how[1]} step by step, {how[0]} without a step"
    )
    assert how[2] > 10 * how[1]


def test_most_drains_are_executed_with_their_accumulate(driver, tmp_path):
    """And the sums that they move are not stored, but for the last ones of a section."""
    program = compile(ModelConfig())
    with fresh_processor(driver, tmp_path) as processor:
        train(processor, program, [12])
        joined, stores = kept(processor, program, 12)[:, 2:].T
    drains = np.isin([each.unit for each in program.sample], (M.DRAIN_0, M.DRAIN_1))
    assert joined[joined > 0].sum() == (joined < 0).sum() and not (joined[~drains] < 0).any()
    assert (joined < 0).sum() > 0.9 * drains.sum()
    assert 0 < stores.sum() < 0.1 * (joined > 0).sum()
