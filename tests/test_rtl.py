"""The machine in Verilog: its FP32 cores against the host's arithmetic, its loop against the emulation."""

import json
import os
import subprocess

import numpy as np
import pytest

from bttlab.card.processor import NativeProcessor, sample_records
from bttlab.compiler.program import compile_program
from bttlab.compiler.timing import time_program
from bttlab.hardware import SOURCE, UNIT, analyse, rtl
from bttlab.model import ModelConfig, Optimizer

from conftest import ROOT
from training_processor import SMALL, equal_bits, some_parameters, some_samples

pytestmark = pytest.mark.long
RTL, TESTBENCH = ROOT / "hls_src" / "rtl", ROOT / "hls_src" / "testbench"
by_hand = pytest.mark.skipif("BTTLAB_RTL" not in os.environ, reason="takes minutes: make rtl-test")
LINT = ("-Wall", "-Wno-UNUSEDSIGNAL", "-Wno-DECLFILENAME")


def test_fp32_cores_compute_what_the_host_does(tmp_path):
    """All pairs of hard operands, then random ones, with subnormals flushed to zero, at three latencies."""
    sources = [TESTBENCH / "fp32_cores.v", TESTBENCH / "fp32_cores.cpp"]
    build = ["verilator", "--cc", "--exe", "--build", "-O3", *LINT, "-CFLAGS", "-O2 -frounding-math", "-y", RTL]
    subprocess.run([*build, *sources, "--top", "fp32_all", "--Mdir", tmp_path], check=True, capture_output=True)
    done = subprocess.run([tmp_path / "Vfp32_all", "200000", "1"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "204900 pairs\n")


@pytest.fixture(scope="module")
def loop():
    return rtl.emit(analyse(SOURCE / UNIT))


@pytest.fixture(scope="module")
def verilog(tmp_path_factory, loop):
    """The loop's Verilog in a folder."""
    folder = tmp_path_factory.mktemp("rtl")
    loop.write(folder)
    return folder


def test_the_resources_on_record_are_of_this_verilog(loop):
    """Of the modules that have been counted; make synth counts those that changed, or are missing, again."""
    modules, digests = json.loads((ROOT / "data" / "u50" / "synthesis.json").read_text())["modules"], loop.digests()
    assert modules and {name: one["sha256"] for name, one in modules.items()}.items() <= digests.items()


@pytest.fixture(scope="module")
def machine(verilog):
    """The kernel with its loop in Verilog, as a shared library: `make rtl` builds the same."""
    subprocess.run(["make", "-C", ROOT / "hls_src" / "testbench", f"BUILD={verilog}", "-j2"], check=True)
    return NativeProcessor(verilog / "trainer_rtl.so")


def test_lint_finds_nothing(verilog):
    lint = ["verilator", "--lint-only", *LINT, "-y", verilog, verilog / f"{rtl.TOP}.v", "--top", rtl.TOP]
    done = subprocess.run(lint, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("config", "name", "lengths"),
    [
        pytest.param(SMALL, "adamw", [2, 17], id="small-adamw"),
        pytest.param(ModelConfig(encoders=2), "sgd", [13], id="paper-sgd", marks=by_hand),
        pytest.param(ModelConfig(encoders=2), "adamw", [32, 2], id="paper-adamw", marks=by_hand),
    ],
)
def test_verilog_trains_to_the_emulations_bits_and_cycles(machine, trainer_libraries, config, name, lengths):
    """Whole samples: results, all parameters and moments to the bit, and cycles."""
    emulation, optimizer = NativeProcessor(trainer_libraries["fast"]), Optimizer(name)
    program = compile_program(config)
    rates = np.full(len(lengths), 0.01)
    records = sample_records(program, some_samples(config, lengths), rates, optimizer)
    results = []
    for processor in (machine, emulation):
        processor.load_program(program)
        processor.load(some_parameters(config))
        results.append(processor.train(records, optimizer))
    found, wanted = results
    for field in ("status", "intent", "loss", "intent_loss", "slot_loss", "slots"):
        assert found[field].tobytes() == wanted[field].tobytes(), field
    modelled = [time_program(program.sample, length, n > 0).cycles for n, length in enumerate(lengths)]
    assert found["cycles"].tolist() == modelled
    for one, other in zip(machine.store(), emulation.store(), strict=True):
        assert equal_bits(one, other)
