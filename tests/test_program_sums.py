"""Programs that sum gradients over the samples of an update: hazards, the machine's bits, and PyTorch's parameters."""

from collections.abc import Sequence

import numpy as np
import pytest

from bttlab.card.processor import NativeProcessor, sample_records
from bttlab.compiler.hazards import check_program
from bttlab.compiler.machine import M
from bttlab.compiler.program import ModelProgram, compile_program
from bttlab.compiler.timing import time_program
from bttlab.model import ModelConfig, Optimizer, ReferenceTrainer

from training_processor import SMALL, equal_bits, some_parameters, some_samples

LENGTHS = [2, 17, 9, 18, 3, 11, 8]
FLOWS = ["bidirectional", (2, 3), (2, 2)]


@pytest.fixture(scope="module", params=FLOWS, ids=str)
def small(request) -> ModelProgram:
    return compile_program(SMALL, flow=request.param, sums=True)


def train(processor: NativeProcessor, program: ModelProgram, ends: Sequence[int], optimizer: Optimizer, least=1):
    """Train on the samples of LENGTHS in calls that end at `ends`; return the results."""
    processor.load_program(program)
    processor.load(some_parameters(program.model.config))
    samples, results = some_samples(program.model.config, LENGTHS), []
    for first, end in zip([0, *ends], ends, strict=False):
        rates = np.full(end - first, 0.05)
        results.append(
            processor.train(sample_records(program, samples[first:end], rates, optimizer, 0.1, first), optimizer)
        )
    found = np.concatenate(results)
    assert (found["status"] == M.DONE).all()
    return found


def test_hazards(small):
    assert small.sums
    assert check_program(small, (2, 17)) == []


@pytest.mark.parametrize("name", ["sgd", "momentum"])
@pytest.mark.parametrize("ends", [(3, 6, 7), (2, 3, 4, 6, 7)], ids=["updates", "cut"])
def test_parameters_are_those_of_pytorch(fast, small, name, ends):
    optimizer, config = Optimizer(name, batch_size=3), small.model.config
    found = train(fast, small, ends, optimizer)
    reference = ReferenceTrainer(config)
    reference.load_parameters(some_parameters(config))
    losses = reference.train(some_samples(config, LENGTHS), optimizer, 0.05, 0.1)
    np.testing.assert_allclose(found["loss"], losses, rtol=2e-5)
    parameters, moments, _ = fast.store()
    state = reference.store_optimizer_state()
    for key, wanted in reference.store_parameters().items():
        np.testing.assert_allclose(parameters[key], wanted, rtol=0, atol=2e-6, err_msg=key)
        gradient = state[f"first_moment.{key}"]
        np.testing.assert_allclose(moments[key], gradient, rtol=0, atol=2e-5 * np.abs(gradient).max() + 1e-7)


def test_one_sample_a_call_is_the_plain_program(fast):
    """With a call for each sample AdamW's second moment is that of the plain program, which squares each gradient."""
    states = []
    for program, ends in (
        (compile_program(SMALL, sums=True), range(1, 1 + len(LENGTHS))),
        (compile_program(SMALL), (len(LENGTHS),)),
    ):
        train(fast, program, tuple(ends), Optimizer("adamw", batch_size=3, epsilon=1e-3))
        states.append(fast.store())
    for found, wanted in zip(*states, strict=True):
        for key, value in wanted.items():
            np.testing.assert_allclose(found[key], value, rtol=0, atol=1e-5 * np.abs(value).max())


def test_the_machines_loop(loop, fast):
    program, optimizer = compile_program(SMALL, sums=True), Optimizer("momentum", batch_size=3)
    found, wanted = (train(processor, program, (3, 6, 7), optimizer) for processor in (loop, fast))
    assert found["loss"].tobytes() == wanted["loss"].tobytes()
    modelled = [time_program(program.sample, length, n % 3 > 0).cycles for n, length in enumerate(LENGTHS)]
    assert found["cycles"].tolist() == modelled
    assert found["flush_cycles"][2] == time_program(program.flush, 1).cycles
    for state, of in zip(loop.store(), fast.store(), strict=True):
        assert equal_bits(state, of)


@pytest.mark.long
@pytest.mark.parametrize("flow", ["bidirectional", (2, 3)], ids=str)
def test_hazards_of_the_papers_model(flow):
    assert check_program(compile_program(ModelConfig(encoders=2), flow=flow, sums=True), (2, 17)) == []
