"""Programs that sum gradients over the samples of an update: hazards, the machine's bits, and PyTorch's parameters."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from bttlab.card import EmulatedU50, load_overlay
from bttlab.card.processor import record_dtype, sample_records
from bttlab.compiler import program as program_module
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.hazards import check_program
from bttlab.compiler.machine import M
from bttlab.compiler.program import ModelProgram, Options, compile
from bttlab.compiler.timing import time_program
from bttlab.estimate.card import estimate
from bttlab.model import ModelConfig, Optimizer, ReferenceTrainer, loop
from bttlab.model.loop import chunks, ends_sum, sum_end

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


@pytest.mark.parametrize("name", ["sgd", "momentum"])
def test_a_call_of_many_updates_is_a_call_for_each(fast, small, name):
    optimizer = Optimizer(name, batch_size=3)
    found = train(fast, small, (7,), optimizer), fast.store()
    wanted = train(fast, small, (3, 6, 7), optimizer), fast.store()
    assert found[0].tobytes() == wanted[0].tobytes()
    for state, of in zip(found[1], wanted[1], strict=True):
        assert equal_bits(state, of)


def test_the_machines_loop_runs_flush_between_samples(loop, fast):
    program, optimizer = compile(SMALL, Options(sums=True)), Optimizer("momentum", batch_size=3)
    found, wanted = (train(processor, program, (7,), optimizer) for processor in (loop, fast))
    assert found["loss"].tobytes() == wanted["loss"].tobytes()
    assert found["cycles"].tolist() == [
        time_program(program.sample, length, n % 3 > 0).cycles for n, length in enumerate(LENGTHS)
    ]
    flush = int(time_program(program.flush, 1).cycles)
    assert found["flush_cycles"].tolist() == [0, 0, flush, 0, 0, flush, flush]
    for state, of in zip(loop.store(), fast.store(), strict=True):
        assert equal_bits(state, of)


@pytest.mark.parametrize("bad", [3, 4, 5])
def test_a_failed_sample_drops_its_own_sum_alone(fast, small, bad):
    """The call ends with it; the updates before it are done, and nothing of its own is left in the sums."""
    optimizer, samples = Optimizer("sgd", batch_size=3), some_samples(small.config, LENGTHS)
    records = sample_records(small, samples, np.full(7, 0.05), optimizer)
    states = []
    for of_call in ((range(3),), (range(7),), (range(7), range(3))):
        fast.load_program(small)
        fast.load(some_parameters(small.config))
        for each in of_call:
            chosen = records[list(each)].copy()
            if len(chosen) == 7:
                chosen["scalars"][bad, 7] = np.inf
            found = fast.train(chosen, optimizer)
            assert (found["status"][: min(bad, len(found))] == M.DONE).all()
            if len(chosen) == 7:
                assert found["status"][bad] not in (M.DONE, M.NOT_REACHED)
                assert (found["status"][bad + 1 :] == M.NOT_REACHED).all()
        states.append(fast.store()[0])
    assert equal_bits(states[1], states[0])
    fast.load_program(small)
    fast.load(states[0])
    fast.train(records[:3].copy(), optimizer)
    assert equal_bits(states[2], fast.store()[0])


@pytest.mark.parametrize(("batch_size", "largest"), [(1, 32), (3, 32), (48, 32), (100, 32), (64, 64)])
def test_sums_end_where_calls_for_each_would(batch_size, largest):
    first, ends = 5, set()
    while first < 300:
        first = sum_end(first, batch_size, largest)
        ends.add(first - 1)
    samples = np.arange(5, 300)
    found = ends_sum(samples, Optimizer("sgd", batch_size=batch_size), largest)
    assert set(samples[found]) == {end for end in ends if end < 300}
    assert ends_sum(samples, Optimizer("adamw", batch_size=batch_size), largest).all()


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


@pytest.mark.parametrize(("records", "calls"), [(1, [3, 3, 1]), (4, [3, 4]), (6, [6, 1]), (7, [7])])
def test_the_driver_calls_the_kernel_for_whole_updates(trainer, monkeypatch, records, calls):
    """Requests that end with an update leave the same bits, however many updates they and their calls have."""
    optimizer = Optimizer("momentum", batch_size=3)
    parts = state_after(trainer, optimizer, [3, 3, 1])
    monkeypatch.setattr("bttlab.card.trainer.MOST_OF_RECORDS", records * record_dtype(trainer.program).itemsize)
    made, run = [], trainer._run

    def counted(command: int, samples: int = 0, *rest, **more):
        made.extend([samples] if command == M.TRAIN else [])
        return run(command, samples, *rest, **more)

    monkeypatch.setattr(trainer, "_run", counted)
    whole = state_after(trainer, optimizer, [7])
    assert trainer.program.sums and made == calls
    assert equal_bits(whole, parts)
    assert not np.array_equal(whole["embedding.position.weight"], some_parameters(SMALL)["embedding.position.weight"])


def test_the_profile_counts_each_flush(trainer):
    state_after(trainer, Optimizer("sgd", batch_size=3), [])
    trainer.profile()
    trainer.train(some_samples(SMALL, LENGTHS), Optimizer("sgd", batch_size=3), 0.05)
    program = trainer.program
    runs = [time_program(program.sample, length, n % 3 > 0).cycles for n, length in enumerate(LENGTHS)]
    assert sum(trainer.profile().values()) == sum(runs) + 3 * time_program(program.flush, 1).cycles


def test_a_machine_that_ends_no_sums_refuses_the_program(trainer, monkeypatch):
    image, plain = compile(SMALL, Options(sums=True)).image, compile(SMALL).image
    assert (image[0, 1], plain[0, 1]) == (M.VERSION + M.WITH_SUMS, M.VERSION)
    send = trainer._send
    monkeypatch.setattr(trainer, "_send", lambda image: image[0, 1] == M.VERSION and send(image))
    with pytest.raises(ProgramError, match="end sums of gradients: older overlays take none; rebuild it with: make"):
        trainer.load_program(SMALL, optimizer=Optimizer("sgd", batch_size=3))


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
