"""The emulated card's second host thread: what its instructions wait for, and the same bits with and without it."""

import ctypes
import os

import pytest

import tiny_baseline
from bttlab.card import EmulatedU50, open_trainer
from bttlab.card.image import IMAGES
from bttlab.compiler.access import accesses
from bttlab.compiler.dependencies import _add_conflicts
from bttlab.compiler.machine import M
from bttlab.compiler.program import Options, compile
from bttlab.model import ModelConfig, Optimizer, initial_parameters
from bttlab.runs import tensors_digest
from bttlab.util import processes
from bttlab.util.errors import BttlabError

from build_library import library
from conftest import ROOT
from processor_native import FLAGS, NativeProcessor

SECOND = (M.ENGINE_1, M.DRAIN_0 + 1, M.SHUFFLE)  # units of the second thread
MODEL = ModelConfig()


@pytest.mark.parametrize("flow", ["bidirectional", "right_to_left", pytest.param("auto", marks=pytest.mark.long)])
def test_an_instruction_waits_for_all_that_the_compiler_knows_to_conflict(flow):
    """By the vectors that the compiler takes each to access: for the longest sample, where both know the same ones."""
    program = compile(MODEL, Options(flow))
    fast = ("-DBTTLAB_FAST", *IMAGES[-1].flags)
    processor = NativeProcessor(library(ROOT / "tests" / "helpers" / "processor_driver.cpp", *FLAGS, *fast))
    processor.load_program(program)
    last_waited_for = processor._library.waits
    last_waited_for.restype = ctypes.POINTER(ctypes.c_short)
    waits = last_waited_for(MODEL.sequence_length)
    count, checked = len(program.sample), 0
    conflicts = [{} for _ in program.sample]
    _add_conflicts(conflicts, program.sample, range(count), accesses, program.offset_span)
    for i, mine in enumerate(conflicts):
        is_second = program.sample[i].unit in SECOND
        for j in mine:
            if (program.sample[j].unit in SECOND) != is_second:
                assert waits[i] >= j, (program.sample[i], program.sample[j])
                checked += 1
    assert checked > count // 2


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_results_are_those_of_one_thread(optimizer):
    assert trained(2, optimizer) == trained(1, optimizer)


def trained(threads: int, optimizer: str) -> str:
    """Digest of parameters, moments and losses after samples of all lengths."""
    card = EmulatedU50()
    trainer = open_trainer(MODEL, card)
    card.threads = threads
    trainer.load_parameters(initial_parameters(MODEL, 0))
    losses = trainer.train(tiny_baseline.samples(48, MODEL), Optimizer(optimizer), 1e-3)
    return tensors_digest(trainer.store_parameters() | trainer.store_optimizer_state() | {"losses": losses})


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
