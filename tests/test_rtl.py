"""The kernel in Verilog: FP32 cores against the host's arithmetic, whole calls over AXI against the emulation."""

import ctypes
import json
import os
import subprocess
from collections import Counter
from xml.etree import ElementTree

import numpy as np
import pytest

from bttlab.card.kernel import TRAINER_KERNEL
from bttlab.card.processor import NativeProcessor, _aligned, sample_records
from bttlab.compiler.machine import machine as machine_of
from bttlab.compiler.program import compile_program
from bttlab.compiler.timing import time_program
from bttlab.hardware import SOURCE, UNIT, analyse
from bttlab.hardware.kernel import kernel_xml, module_digests, write_kernel
from bttlab.hardware.synthesis import FILE, UNITS, kernel_total
from bttlab.model import ModelConfig, Optimizer

from conftest import ROOT
from training_processor import SMALL, equal_bits, some_parameters, some_samples

pytestmark = pytest.mark.long
RTL, TESTBENCH = ROOT / "hls_src" / "rtl", ROOT / "hls_src" / "testbench"
by_hand = pytest.mark.skipif("BTTLAB_RTL" not in os.environ, reason="takes minutes: make rtl-test")
LINT = ("-Wall", "-Wno-UNUSEDSIGNAL", "-Wno-DECLFILENAME")
M = machine_of()


def test_fp32_cores_compute_what_the_host_does(tmp_path):
    """All pairs of hard operands, then random ones, with subnormals flushed to zero, at three latencies."""
    sources = [TESTBENCH / "fp32_cores.v", TESTBENCH / "fp32_cores.cpp"]
    build = ["verilator", "--cc", "--exe", "--build", "-O3", *LINT, "-CFLAGS", "-O2 -frounding-math", "-y", RTL]
    subprocess.run([*build, *sources, "--top", "fp32_all", "--Mdir", tmp_path], check=True, capture_output=True)
    done = subprocess.run([tmp_path / "Vfp32_all", "200000", "1"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "204900 pairs\n")


@pytest.fixture(scope="module")
def schedule():
    return analyse(SOURCE / UNIT)


@pytest.fixture(scope="module")
def verilog(tmp_path_factory, schedule):
    """The kernel's Verilog: a folder, and the text of each file."""
    folder = tmp_path_factory.mktemp("rtl")
    return folder, write_kernel(schedule, folder)


def test_the_same_source_gives_the_same_verilog(verilog, schedule, tmp_path):
    assert write_kernel(schedule, tmp_path) == verilog[1]


def test_the_resources_on_record_are_of_this_verilog(verilog):
    """Of the modules that have been counted; make synth counts those that changed, or are missing, again."""
    modules, digests = json.loads(FILE.read_text())["modules"], module_digests(verilog[1])
    assert modules
    assert {name: one["sha256"] for name, one in modules.items()}.items() <= digests.items()
    assert set(UNITS) == {name for name in digests if not name.startswith("fp32_")}


def test_the_kernel_takes_its_units_and_their_cores():
    units = {name: Counter(lookup_tables=10) for name in UNITS}
    units["engine_0"] = Counter(lookup_tables=10, fp32_add=3, shift_registers=2)
    total = kernel_total(units | {"fp32_add": Counter(lookup_tables=100, dsps=2)})
    # An AXI port is there four times.
    assert (total["lookup_tables"], total["dsps"], total["in_luts"]) == (
        10 * (len(UNITS) + 3) + 300,
        6,
        10 * (len(UNITS) + 3) + 302,
    )
    assert kernel_total({"engine_0": units["engine_0"]}) is None


def test_lint_finds_nothing(verilog):
    folder, _ = verilog
    sources = [folder / "machine_loop.v", folder / "trainer.v"]
    lint = ["verilator", "--lint-only", *LINT, "-y", folder, *sources, "--top", "trainer"]
    done = subprocess.run(lint, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_description_for_vitis_names_the_ports_of_the_top(verilog):
    kernel = ElementTree.fromstring(kernel_xml(TRAINER_KERNEL)).find("kernel")
    top = verilog[1]["trainer.v"]
    for port in kernel.findall("ports/port"):
        signal = "WDATA" if port.get("mode") == "slave" else "RDATA"
        assert f"input wire [{int(port.get('dataWidth')) - 1}:0] {port.get('name')}_{signal}" in top
    ports = {port.get("name") for port in kernel.findall("ports/port")}
    arguments = [(a.get("name"), int(a.get("offset"), 16), a.get("port")) for a in kernel.findall("args/arg")]
    assert {port for *_, port in arguments} == ports
    assert [(n, o) for n, o, _ in arguments] == [
        (a.name, o) for a, o in zip(TRAINER_KERNEL.arguments, TRAINER_KERNEL.offsets, strict=True)
    ]
    script = (ROOT / "hls_src" / "vitis" / "package.tcl").read_text()
    assert all(port in script for port in ports)


@pytest.fixture(scope="module")
def machine(verilog):
    """The kernel behind its registers and AXI ports, as a shared library."""
    folder, _ = verilog
    subprocess.run(["make", "-C", TESTBENCH, f"BUILD={folder}", "-j2"], check=True)
    processor = NativeProcessor(folder / "trainer_rtl.so")
    processor._library.trainer_longest_run.restype = ctypes.c_longlong
    processor.stages = int(verilog[1]["kernel_host.h"].split("LOOP_STAGES ")[1].split()[0])
    return processor


def vectors(count: int) -> np.ndarray:
    return _aligned(np.zeros((count, M.LANES), np.int32))


def test_a_driver_sees_the_registers_of_a_kernel(machine):
    """AP_CTRL, the interrupt, arguments that stay: what AMD's ap_ctrl_hs has."""

    def register(offset, value=None):
        return machine._library.trainer_register(offset, value is not None, value or 0)

    answer = vectors(8)
    machine._call(M.LOAD_PROGRAM, 0, results=answer, image=vectors(1))
    assert answer[0, 0] == M.NO_PROGRAM
    assert register(0) == 4  # idle; done was read, and cleared by that
    samples, epsilon = (TRAINER_KERNEL.offsets[i] for i in (1, 5))
    register(samples, 77)
    register(epsilon, 0x40490FDB)
    assert (register(samples), register(epsilon)) == (77, 0x40490FDB)
    assert register(0xC) == 0
    register(4, 1)
    register(8, 3)
    machine._call(M.LOAD_PROGRAM, 0, results=answer, image=vectors(1))
    assert register(0xC) == 3  # done and ready are pending
    register(0xC, 3)
    register(4, 0)
    register(8, 0)
    assert register(0xC) == 0


def test_what_is_no_program_or_no_sample_is_refused(machine, trainer_libraries):
    """The statuses are the emulation's: of a damaged image, a length, token, label or rate out of range."""
    emulation = NativeProcessor(trainer_libraries["fast"])
    program, optimizer = compile_program(SMALL), Optimizer("adamw")
    damaged = program.image().copy()
    damaged[len(damaged) // 2, 3] ^= 1
    records = sample_records(program, some_samples(SMALL, [3] * 5), np.full(5, 0.01), optimizer)
    records["tokens"][0] = 99
    records["intent"][1] = -1
    records["token_offsets"][2, 0, 1] = 1 << 20
    records["slots"][3, 1] = SMALL.slots
    records["scalars"][4, 0] = np.nan
    answers = []
    for processor in (machine, emulation):
        result, described = vectors(8), vectors(8)
        processor._call(M.DESCRIBE, results=described)
        processor._call(M.LOAD_PROGRAM, len(damaged), results=result, image=_aligned(damaged))
        processor.load_program(program)
        statuses = [int(processor.train(records[n : n + 1], optimizer)["status"][0]) for n in range(len(records))]
        answers.append((described.tolist(), int(result[0, 0]), statuses))
    assert answers[0] == answers[1]
    assert answers[0][1] == M.NO_PROGRAM
    assert answers[0][2] == [M.BAD_LENGTH, M.BAD_INTENT, M.BAD_TOKEN, M.BAD_SLOT, M.BAD_LEARNING_RATE]


@pytest.mark.parametrize(
    ("config", "name", "lengths"),
    [
        pytest.param(SMALL, "adamw", [2, 17], id="small-adamw"),
        pytest.param(ModelConfig(encoders=2), "sgd", [13], id="paper-sgd", marks=by_hand),
        pytest.param(ModelConfig(encoders=2), "adamw", [32, 2], id="paper-adamw", marks=by_hand),
    ],
)
def test_verilog_trains_to_the_emulations_bits_and_cycles(machine, trainer_libraries, config, name, lengths):
    """Over AXI with stalls at random: results, all parameters and moments to the bit, and cycles."""
    emulation, optimizer = NativeProcessor(trainer_libraries["fast"]), Optimizer(name)
    program = compile_program(config)
    rates = np.full(len(lengths), 0.01)
    records = sample_records(program, some_samples(config, lengths), rates, optimizer)
    results = []
    for processor in (machine, emulation):
        processor.load_program(program)
        processor.load(some_parameters(config))
        if processor is machine:
            machine._library.trainer_longest_run()
        results.append(processor.train(records, optimizer))
    found, wanted = results
    for field in ("status", "intent", "loss", "intent_loss", "slot_loss", "slots"):
        assert found[field].tobytes() == wanted[field].tobytes(), field
    modelled = [time_program(program.sample, length, n > 0).cycles for n, length in enumerate(lengths)]
    assert found["cycles"].tolist() == modelled
    # From `start` to the end of the last iteration, a cycle apart on either side.
    assert machine._library.trainer_longest_run() <= max(modelled) - M.LATENCY + machine.stages + 3
    for one, other in zip(machine.store(), emulation.store(), strict=True):
        assert equal_bits(one, other)
