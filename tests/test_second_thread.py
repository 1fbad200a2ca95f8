"""The emulated card's second host thread: what its instructions wait for, and the same bits with and without it."""

import contextlib
import ctypes
import itertools
import multiprocessing
import os
import threading
import time

import numpy as np
import pytest

import tiny_baseline
from bttlab.card import EmulatedU50, compute_unit, open_trainer
from bttlab.card.compute_unit import CLOSE, FORGET, LEAST_SECONDS_ALONE, MOST_SECONDS_ALONE, OPEN, SERVE, ComputeUnit
from bttlab.card.image import IMAGES
from bttlab.compiler.machine import M
from bttlab.compiler.program import Options, compile
from bttlab.compiler.schedule.dependencies import _with_sums, add_conflicts, located
from bttlab.model import ModelConfig, Optimizer, initial_parameters
from bttlab.runs import tensors_digest
from bttlab.util import processes
from bttlab.util.errors import BttlabError

from build_library import library
from conftest import ROOT
from processor_native import FLAGS, NativeProcessor

NEWS = 1200  # of threads.h
MODEL = ModelConfig()


@pytest.fixture(scope="module")
def processor():
    """The functional model of the most general image."""
    fast = ("-DBTTLAB_FAST", *IMAGES[-1].flags)
    return NativeProcessor(library(ROOT / "tests" / "helpers" / "processor_driver.cpp", *FLAGS, *fast))


def plan_of(processor: NativeProcessor, program, tokens: int, ticks: np.ndarray | None = None) -> np.ndarray:
    """Return each instruction's thread, its place in the thread's order, and how many of the other one it waits for.

    Of a sample, or of FLUSH with 0 tokens.
    """
    processor.load_program(program)
    found = np.zeros((len(program.sample if tokens else program.flush), 3), np.int16)
    costs = None if ticks is None else np.ascontiguousarray(ticks, np.uint32)
    address = None if costs is None else ctypes.c_void_p(costs.ctypes.data)
    processor._library.plan(tokens, address, ctypes.c_void_p(found.ctypes.data))
    return found


def duration(plan: np.ndarray, ticks: np.ndarray) -> int:
    """Play a plan: each thread executes its order, and an instruction waits for those of the other that it is to."""
    orders = [sorted(np.flatnonzero(plan[:, 0] == thread), key=lambda i: plan[i, 1]) for thread in (0, 1)]
    assert all([plan[i, 1] for i in order] == list(range(len(order))) for order in orders)
    ends: list[list[int]] = [[], []]
    while sum(map(len, ends)) < len(plan):
        before = sum(map(len, ends))
        for thread, order in enumerate(orders):
            while len(ends[thread]) < len(order):
                i = order[len(ends[thread])]
                if plan[i, 2] > len(ends[1 - thread]):
                    break
                begin = max(ends[thread][-1:] or [0])
                if plan[i, 2]:
                    begin = max(begin, ends[1 - thread][plan[i, 2] - 1] + NEWS)
                ends[thread].append(begin + int(ticks[i]))
        assert sum(map(len, ends)) > before, "the threads wait for each other"
    return max(max(of, default=0) for of in ends)


@pytest.mark.parametrize("flow", ["bidirectional", "right_to_left", pytest.param("auto", marks=pytest.mark.long)])
def test_an_instruction_waits_for_all_that_the_compiler_knows_to_conflict(processor, flow):
    """By the vectors that the compiler takes each to access: for the longest sample, where both know the same ones."""
    program = compile(MODEL, Options(flow))
    plan = plan_of(processor, program, MODEL.sequence_length)
    count, checked = len(program.sample), 0
    conflicts = [{} for _ in program.sample]
    add_conflicts(conflicts, (located(each, program.offset_span) for each in program.sample))
    conflicts = _with_sums(program.sample, conflicts, range(count))
    for (thread, place, awaited), mine in zip(plan.tolist(), conflicts, strict=True):
        for j in mine:
            other_thread, other_place, _ = plan[j].tolist()
            assert other_place < (place if other_thread == thread else awaited), (program.sample[j], place, awaited)
            checked += other_thread != thread
    assert checked > count // 2
    # What no operand names: statistics, sums of the vector unit, blocks of the shuffle unit, sums of the engines.
    units = [{M.VECTOR}, {M.SHUFFLE}]
    kept_in_order = [[i for i, each in enumerate(program.sample) if each.unit in of] for of in units]
    for engine, pong in itertools.product(range(M.ENGINES), (0, M.PONG)):
        users = (M.ENGINE_0 + engine, M.DRAIN_0 + engine)
        own = [i for i, each in enumerate(program.sample) if each.unit in users and each.flags & M.PONG == pong]
        kept_in_order.append([i for i in own if program.sample[i].is_drain or program.sample[i].operation != M.EXPAND])
    for own in kept_in_order:
        for j, i in itertools.pairwise(own):
            if not (program.sample[i].is_drain and program.sample[j].is_drain):
                assert plan[j, 1] < (plan[i, 1] if plan[j, 0] == plan[i, 0] else plan[i, 2]), (j, i)


def test_two_threads_have_equal_shares(processor):
    """By steps as by costs of any other kind, which the vectors that move between the caches outweigh more often."""
    program = compile(MODEL)
    steps = np.array([instruction.steps(12) for instruction in program.sample])
    random = 1000 * np.random.default_rng(0).lognormal(size=len(steps))
    assert (plan_of(processor, program, 12) == plan_of(processor, program, 12, steps)).all()  # without a measurement
    for ticks, most in ((30 * steps, 0.51), (random.astype(int), 0.54)):
        plan = plan_of(processor, program, 12, ticks)
        assert ticks.sum() / 2 <= duration(plan, ticks) < most * ticks.sum()


def test_a_thread_prefers_instructions_whose_vectors_its_cache_has(processor):
    """Of the pairs that access the same vectors, those on different threads would be half without a preference."""
    program = compile(MODEL)
    plan = plan_of(processor, program, 12, 30 * np.array([instruction.steps(12) for instruction in program.sample]))
    conflicts = [{} for _ in program.sample]
    add_conflicts(conflicts, (located(each, program.offset_span) for each in program.sample))
    assert np.mean([plan[i, 0] != plan[j, 0] for i, mine in enumerate(conflicts) for j in mine]) < 0.4


@pytest.mark.parametrize("size", [1, 8])
def test_the_threads_share_the_update_at_the_end_of_a_call(processor, size):
    """Each of its instructions waits for those that it conflicts with: sums of several samples are added up first."""
    program = compile(MODEL, Options(optimizer=Optimizer("sgd", batch_size=size)))
    ticks = 4 * np.array([instruction.steps(1) for instruction in program.flush])
    plan = plan_of(processor, program, 0, ticks)
    assert ticks.sum() / 2 <= duration(plan, ticks) < 0.53 * ticks.sum()
    conflicts = [{} for _ in program.flush]
    add_conflicts(conflicts, (located(each, program.offset_span) for each in program.flush))
    for (thread, place, awaited), mine in zip(plan.tolist(), conflicts, strict=True):
        for j in mine:
            other_thread, other_place, _ = plan[j].tolist()
            assert other_place < (place if other_thread == thread else awaited), (program.flush[j], place, awaited)
    assert any(conflicts) == (size > 1)


def test_calls_that_end_before_the_second_thread_notices(unit):
    """It lingers, serves and leaves at any moment, and no call waits for it in vain."""
    unit._function = int
    for i in range(3000):
        call(unit)
        if i % 300 == 0:
            time.sleep(0.01)  # it has left


@pytest.mark.parametrize(("optimizer", "size"), [("sgd", 1), ("sgd", 8), ("adamw", 1)])
def test_results_are_those_of_one_thread(optimizer, size):
    assert trained(2, optimizer, size) == trained(1, optimizer, size)


def test_results_are_those_of_one_thread_for_lengths_without_room():
    """Their instructions are resolved in each run; FLUSH has the plan of the lengths before."""
    model, optimizer = ModelConfig(encoders=4), Optimizer("sgd", batch_size=8)
    program, every = compile(model, Options(optimizer=optimizer)), tiny_baseline.samples(4_000, model)
    lengths = np.unique(every.lengths)
    assert sum(map(len, program.sections)) * (len(lengths) - 2) > 1 << 16  # MOST_RESOLVED of instructions.h
    assert any(each.unit in (M.DRAIN_0, M.DRAIN_1) for each in program.flush)
    samples = every[np.concatenate([np.resize(np.flatnonzero(every.lengths == length), 8) for length in lengths])]
    found = []
    for threads in (1, 2):
        trainer = open_trainer(model, card := EmulatedU50(), optimizer=optimizer)
        card.threads = threads
        trainer.load_parameters(initial_parameters(model, 0))
        for part in (samples, *[samples[-16:]] * 40):
            trainer.train(part, optimizer, 1e-3)
        found.append(tensors_digest(trainer.store_parameters()))
    assert found[0] == found[1]


def test_results_are_those_of_one_thread_in_a_forked_process():
    """The parent's second thread waits for its next call; the child has none of the parent's threads."""
    card, trainer = on_threads(2)
    expected = digest_of(trainer, "sgd")
    fork = multiprocessing.get_context("fork")
    found = fork.SimpleQueue()
    child = fork.Process(target=lambda: found.put(digest_of(trainer, "sgd")))
    child.start()
    assert found.get() == expected
    child.join(60)
    assert child.exitcode == 0
    assert digest_of(trainer, "sgd") == expected
    card.free_bitstream()


def trained(threads: int, optimizer: str, size: int) -> str:
    """Digest of parameters, moments and losses after samples of all lengths."""
    return digest_of(on_threads(threads, size)[1], optimizer, size)


def on_threads(threads: int, size: int = 1):
    card = EmulatedU50()
    trainer = open_trainer(MODEL, card, optimizer=Optimizer("sgd", batch_size=size))
    card.threads = threads
    return card, trainer


def digest_of(trainer, optimizer: str, size: int = 1) -> str:
    trainer.load_parameters(initial_parameters(MODEL, 0))
    samples = tiny_baseline.samples(48, MODEL)
    for _ in range(4):  # in the first three runs of a length its instructions are measured on one thread
        losses = trainer.train(samples, Optimizer(optimizer, batch_size=size), 1e-3)
    return tensors_digest(trainer.store_parameters() | trainer.store_optimizer_state() | {"losses": losses})


class Kernel:
    """Stands for a kernel's function and its function for a second thread, and records their calls."""

    def __init__(self, unit: ComputeUnit, has_processor: bool = True) -> None:
        self.calls: list[tuple[object, int]] = []
        self.servers: list[threading.Thread] = []
        self.has_processor, self.lingers, self._closed = has_processor, False, threading.Event()
        unit._second, unit._function = self.second, lambda *arguments: self.calls.append(("call", 0))
        unit._alone_until, unit._seconds_alone = 0.0, LEAST_SECONDS_ALONE

    def second(self, action: int) -> int:
        self.calls.append((action, threading.get_ident()))
        if action == OPEN:
            self._closed.clear()
            return self.lingers
        if action == SERVE:
            self.servers.append(threading.current_thread())
            assert self._closed.wait(60)
        else:
            self._closed.set()
        return self.has_processor

    @property
    def served(self) -> int:
        return sum(action == OPEN for action, _ in self.calls)


@pytest.fixture
def unit():
    card, _ = on_threads(2)
    (unit,) = card._units.values()
    yield unit
    card.free_bitstream()


def call(unit: ComputeUnit) -> None:
    with contextlib.suppress(ZeroDivisionError), unit._second_thread():
        unit._function()


def test_one_thread_waits_from_call_to_call(unit):
    kernel = Kernel(unit)
    while len(kernel.servers) < 2:  # a call that is over before the thread comes is served by none
        call(unit)
    assert len(set(kernel.servers)) == 1 and kernel.servers[0] is not threading.current_thread()


def test_the_second_thread_ends_with_the_overlay():
    card, trainer = on_threads(2)
    (unit,) = card._units.values()
    kernel = Kernel(unit)
    while not kernel.servers:
        call(unit)
    thread = kernel.servers[0]
    assert thread.is_alive()
    del unit, trainer
    card.free_bitstream()
    thread.join(60)
    assert not thread.is_alive()


def test_an_error_in_a_call_lets_the_second_thread_go(unit):
    kernel = Kernel(unit)
    unit._function = lambda: 1 // 0
    for _ in range(3):
        call(unit)
    assert [action for action, _ in kernel.calls if action != SERVE] == 3 * [OPEN, CLOSE]
    assert unit._pool.submit(int).result(60) == 0  # the thread is free


def test_the_time_alone_doubles_while_there_is_no_processor(unit, monkeypatch):
    """However long its calls are; one call that has a processor starts over."""
    now = 0.0
    monkeypatch.setattr(compute_unit.time, "monotonic", lambda: now)
    kernel = Kernel(unit, has_processor=False)
    gaps, least, most = [], LEAST_SECONDS_ALONE, MOST_SECONDS_ALONE
    while len(gaps) < 7:
        call(unit)
        tried, served = now, kernel.served
        while kernel.served == served:
            now += least / 10
            call(unit)
        gaps.append(now - tried)
    assert gaps == pytest.approx([least, 2 * least, 4 * least, 8 * least, 16 * least, most, most], abs=0.11 * least)
    kernel.has_processor, now = True, now + 2 * most
    call(unit)
    kernel.has_processor = False
    for seconds, tries in ((0, 1), (0.9 * least, 0), (0.2 * least, 1), (1.9 * least, 0), (0.2 * least, 1)):
        served, now = kernel.served, now + seconds
        call(unit)
        assert kernel.served == served + tries


def test_a_thread_that_lingers_is_not_called_again(unit, monkeypatch):
    """It is kept from the first thread's processor, wherever that one has moved."""
    kernel = Kernel(unit)
    while not kernel.servers:
        call(unit)
    kernel.lingers, moved, places = True, [], iter((11, 11, 12))
    monkeypatch.setattr(compute_unit._libc, "sched_getcpu", lambda: next(places))
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: {10, 11, 12})
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, processors: moved.append((thread, processors)))
    thread = kernel.servers[0].native_id
    for _ in range(3):
        call(unit)
    assert len(kernel.servers) == 1 and moved[-2:] == [(thread, {10, 12}), (thread, {10, 11})] and len(moved) == 2


def test_a_forked_process_forgets_the_second_thread(unit, monkeypatch):
    kernel = Kernel(unit)
    call(unit)
    pool, process = unit._pool, os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    call(unit)
    call(unit)
    actions = [action for action, _ in kernel.calls if action in (OPEN, FORGET)]
    assert actions == [OPEN, FORGET, OPEN, OPEN] and unit._pool is not pool


def test_a_host_without_a_thread_for_it_executes_calls_alone(unit, monkeypatch):
    kernel = Kernel(unit)
    unit._pool = None

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for _ in range(2):
            unit._alone_until = 0.0
            call(unit)
            unit._alone_until = np.inf
            call(unit)
        assert [action for action, _ in kernel.calls] == [OPEN, CLOSE, "call", "call", OPEN, CLOSE, "call", "call"]
    unit._alone_until = 0.0
    while not kernel.servers:  # no call of before is served late
        call(unit)
    assert len(kernel.servers) == 1


@pytest.mark.parametrize(
    ("quota", "threads"), [("100000 100000", 1), ("150000 100000", 1), ("max 100000", 2), ("300000 100000", 2)]
)
def test_a_quota_of_one_processor_leaves_one_thread(quota, threads, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2})
    monkeypatch.setattr(processes, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(processes, "CONTROL_GROUP", tmp_path / "cgroup")
    (tmp_path / "cgroup").write_text("0::/lab/student\n")
    (tmp_path / "lab" / "student").mkdir(parents=True)
    (tmp_path / "lab" / "student" / "cpu.max").write_text(f"{quota}\n")
    assert EmulatedU50().threads == threads


def test_a_kernel_has_one_or_two_threads():
    with pytest.raises(BttlabError, match="threads=3: a kernel is executed by 1 or 2"):
        EmulatedU50().threads = 3
