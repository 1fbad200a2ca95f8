"""Programs that sum gradients over the samples of an update: hazards, the machine's bits, and PyTorch's parameters."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from bttlab.card import EmulatedU50, load_overlay
from bttlab.card.processor import record_dtype, sample_records
from bttlab.compiler import program as program_module
from bttlab.compiler.hazards import check_program
from bttlab.compiler.machine import M
from bttlab.compiler.program import ModelProgram, Options, compile
from bttlab.compiler.timing import time_program
from bttlab.estimate.card import estimate
from bttlab.model import ModelConfig, Optimizer, ReferenceTrainer, loop
from bttlab.model.loop import chunks

from processor_native import NativeProcessor
from training_processor import SMALL, equal_bits, some_parameters, some_samples

LENGTHS = [2, 17, 9, 18, 3, 11, 8]
FLOWS = ["bidirectional", (2, 3), pytest.param((2, 2), marks=pytest.mark.long)]


@pytest.fixture(scope="module", params=FLOWS, ids=str)
def small(request) -> ModelProgram:
    return compile(SMALL, Options(request.param, sums=True))


def train(processor: NativeProcessor, program: ModelProgram, ends: Sequence[int], optimizer: Optimizer, least=1):
    """Train on the samples of LENGTHS in calls that end at `ends`; return the results."""
    processor.load_program(program)
    processor.load(some_parameters(program.config))
    samples, results = some_samples(program.config, LENGTHS), []
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
    optimizer, config = Optimizer(name, batch_size=3), small.config
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


def test_the_machines_loop(loop, fast):
    program, optimizer = compile(SMALL, Options(sums=True)), Optimizer("momentum", batch_size=3)
    found, wanted = (train(processor, program, (3, 6, 7), optimizer) for processor in (loop, fast))
    assert found["loss"].tobytes() == wanted["loss"].tobytes()
    modelled = [time_program(program.sample, length, n % 3 > 0).cycles for n, length in enumerate(LENGTHS)]
    assert found["cycles"].tolist() == modelled
    assert found["flush_cycles"][2] == time_program(program.flush, 1).cycles
    for state, of in zip(loop.store(), fast.store(), strict=True):
        assert equal_bits(state, of)


@pytest.mark.long
def test_hazards_of_the_papers_model():
    assert check_program(compile(ModelConfig(encoders=2), Options((2, 3), sums=True)), (2, 17)) == []


# ---- the driver ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trainer():
    return load_overlay("trainer", EmulatedU50()).trainer_1


def state_after(trainer, optimizer: Optimizer, sizes: Sequence[int]) -> dict[str, np.ndarray]:
    """Train on the samples of LENGTHS, a number of them in each request; return parameters and moments."""
    trainer.load_program(SMALL, optimizer=optimizer)
    trainer.load_parameters(some_parameters(SMALL))
    samples, first = some_samples(SMALL, LENGTHS), 0
    for size in sizes:
        trainer.train(samples[first : first + size], optimizer, 0.05)
        first += size
    return trainer.store_parameters() | trainer.store_optimizer_state()


@pytest.mark.parametrize("records", [1, 4, 7])
def test_the_driver_calls_the_kernel_once_per_update(trainer, monkeypatch, records):
    """Requests that end with an update leave the same bits, however many updates they have.

    So they do if the samples' records are made for an update at a time, for one and a part of the next, or at once.
    """
    optimizer = Optimizer("momentum", batch_size=3)
    parts = state_after(trainer, optimizer, [3, 3, 1])
    monkeypatch.setattr("bttlab.card.trainer.MOST_OF_RECORDS", records * record_dtype(trainer.program).itemsize)
    whole = state_after(trainer, optimizer, [7])
    assert trainer.program.sums
    assert equal_bits(whole, parts)
    assert not np.array_equal(whole["embedding.position.weight"], some_parameters(SMALL)["embedding.position.weight"])


def test_adamw_and_single_samples_take_the_plain_program(trainer):
    for optimizer in (Optimizer("adamw", batch_size=3), Optimizer("sgd")):
        trainer.load_program(SMALL, optimizer=optimizer)
        assert not trainer.program.sums
        assert trainer.program.sha256 == compile(SMALL).sha256


def test_a_program_with_sums_trains_by_any_optimizer(trainer):
    samples, sums = some_samples(SMALL, LENGTHS), Optimizer("sgd", batch_size=3)
    for optimizer in (Optimizer("adamw", epsilon=1e-3, batch_size=2), Optimizer("sgd")):
        states = []
        for chosen in (sums, optimizer):
            trainer.load_program(SMALL, optimizer=chosen)
            trainer.load_parameters(some_parameters(SMALL))
            trainer.train(samples, optimizer, 0.02)
            states.append(trainer.store_parameters())
        for name, wanted in states[1].items():
            np.testing.assert_allclose(states[0][name], wanted, rtol=0, atol=1e-5, err_msg=name)


def test_why_there_are_no_sums(monkeypatch):
    monkeypatch.setattr(program_module, "WINDOWS", ())  # only flows
    optimizer = Optimizer("sgd", batch_size=8)
    assert "AdamW" in compile(SMALL, Options("auto", Optimizer("adamw", batch_size=8))).why_no_sums
    for program in (compile(SMALL, Options("auto", one)) for one in (optimizer, Optimizer("adamw"), None)):
        assert program.why_no_sums == "" and program.sums == (program.flush is not compile(SMALL).flush)
    token_by_token = compile(SMALL, Options("right_to_left", optimizer))
    assert "order of contraction" in token_by_token.why_no_sums and not token_by_token.sums
    large = replace(ModelConfig(encoders=6), linear_rank=14)
    assert "the sums of gradients do not fit: " in compile(large, Options(optimizer=optimizer)).why_no_sums


@pytest.mark.parametrize(("batch_size", "before"), [(1, 0), (8, 0), (8, 6), (48, 5), (3, 7)])
def test_chunks_end_with_calls(batch_size, before):
    parts = list(chunks(2, 503, batch_size, before))
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(2, 503))
    for part in parts[:-1]:
        place = (before + part.stop) % batch_size
        assert place == 0 or place == 32
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) <= 128 and (batch_size > 1 or (sizes[0], max(sizes)) == (1, 128)) and list(chunks(3, 3)) == []


def test_few_chunks_are_predicted(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(loop.time, "perf_counter", lambda: now[0])

    def sizes(seconds: float) -> list[int]:
        found, now[0] = [], 0.0
        for part in chunks(0, 1393, most=loop.LARGEST_PREDICTED):
            found.append(part.stop - part.start)
            now[0] += seconds * found[-1]
        return found

    assert sizes(1e-5) == [1, 4, 16, 64, 256, 512, 512, 28]
    assert sizes(2**-9)[:6] == [1, 4, 16, 64, 128, 128] and max(sizes(2**-9)) == 128  # for a quarter second each


def test_the_estimate_counts_the_programs_cycles():
    model = ModelConfig(encoders=1)
    one, eight = (estimate(model, {9: 80}, "momentum", batch_size=n) for n in (1, 8))
    program = compile(model, Options(sums=True))
    sample, flush = (int(time_program(section, 9).cycles) for section in (program.sample, program.flush))
    assert eight.work.loop == pytest.approx(80 * sample + 10 * flush, rel=1e-3)
    assert eight.work.total < one.work.total
    assert eight.memory.by_group()["gradients"] > one.memory.by_group()["gradients"]
