"""The kernel in Verilog: FP32 cores against the host's arithmetic, whole calls over AXI against the emulation."""

import ctypes
import json
import os
import subprocess
from collections import Counter
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from kernel_signals import RECORD, collect

from bttlab.card.constants import read_data
from bttlab.card.kernel import TRAINER_KERNEL
from bttlab.card.processor import NativeProcessor, _aligned, sample_records
from bttlab.compiler.machine import M
from bttlab.compiler.module import ModuleModel
from bttlab.compiler.program import compile_program
from bttlab.compiler.timing import time_program
from bttlab.compiler.trace import trace
from bttlab.estimate.synthesis import FILE, LOOP_UNITS, UNITS, synthesised, with_amd_cores, with_own_cores
from bttlab.model import ModelConfig, Optimizer
from bttlab_hardware import SOURCE, UNIT, analyse
from bttlab_hardware.kernel import kernel_xml, module_digests, write_kernel
from bttlab_hardware.netlist import Depth, packed_tables, stage_of
from bttlab_hardware.resources import choice_tables
from bttlab_hardware.rtl import module_names
from sample_modules import Net

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
    """All modules of it: make synth counts them."""
    modules, digests = json.loads(FILE.read_text())["modules"], module_digests(verilog[1])
    assert {name: one["sha256"] for name, one in modules.items()} == digests
    assert set(UNITS) == {name for name in digests if not name.startswith("fp32_")}


def test_the_kernel_takes_its_units_and_their_cores():
    units = {name: Counter(packed_tables=10, levels=3) for name in UNITS}
    units["engine_0"] = Counter(packed_tables=10, fp32_add=3, shift_registers=2)
    own = with_own_cores(units | {"fp32_add": Counter(packed_tables=100, dsps=1, levels=9)})
    # An AXI port is there four times.
    luts = 10 * (len(UNITS) + 3) + 300
    assert (own["packed_tables"], own["in_luts"], own["dsps"], own["levels"]) == (luts, luts + 2, 3, 0)
    amd = with_amd_cores(units)  # of the loop alone
    cost = read_data("operators")["operators"]["add"]
    assert amd["in_luts"] == 10 * len(LOOP_UNITS) + 3 * cost["lookup_tables"]["value"] + 2
    assert (amd["dsps"], amd["flip_flops"]) == (3 * cost["dsps"]["low"], 3 * cost["flip_flops"]["value"])


def test_the_model_counts_the_choices_that_yosys_maps(schedule):
    """The switches between units and banks, `ports`, among them; other logic is a tenth of it."""
    modules, choices = synthesised(), Counter()
    names = module_names(schedule.graph, schedule.places)
    for node, tables in choice_tables(schedule).items():
        choices[names[node.instruction.line]] += tables
    for name in ("ports", "engine_0", "engine_1", "vector", "shuffle", "update"):
        assert choices[name] == pytest.approx(modules[name]["packed_tables"], rel=0.2), name


def test_levels_are_functions_one_behind_the_other():
    def cell(kind, place="", **wires):
        outputs = {"O", "Q", "out", "CO"}
        directions = {port: "output" if port in outputs else "input" for port in wires}
        connections = {port: [bit] for port, bit in wires.items()}
        return {"type": kind, "connections": connections, "port_directions": directions, "attributes": {"src": place}}

    def module(ports, *cells):
        ports = {name: {"direction": way, "bits": [bit]} for name, (way, bit) in ports.items()}
        return {"ports": ports, "cells": dict(enumerate(cells))}

    # In `one` two LUTs stand behind a register, in `two` a carry chain of two parts and a LUT behind those.
    one = module(
        {"x": ("output", 4)},
        *(cell("FDRE", D=9, Q=2), cell("LUT2", I0=2, I1=7, O=3), cell("LUT3", I0=3, I1=2, I2=8, O=4)),
        cell("LUT2", I0=6, I1=5, O=9),
    )
    two = module(
        {"x": ("input", 2)},
        *(cell("CARRY4", S=2, CO=3), cell("CARRY4", CI=3, CO=4), cell("INV", I=4, O=5), cell("LUT1", I=5, O=6)),
        cell("delay", "loop.v:3.1-3.9", **{"in": 6, "out": 7}),
    )
    depth = Depth({"one": one, "two": two})
    assert (depth.deepest("one")[0], depth.deepest("two")) == (1, (4, "loop.v:3.1-3.9"))
    assert Depth({"two": two}).deepest("two")[0] == 2
    assert stage_of("loop.v:3.1-3.9", "module m;\n  // stage 7\n  delay;\n  // stage 8\n") == 7
    # Of the first one's three functions two have an input in common.
    assert (packed_tables(one["cells"]), packed_tables(two["cells"])) == (2, 2)


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
    build = ["make", "-C", TESTBENCH, f"BUILD={folder}", "-j2"]
    made = subprocess.run(build, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    processor = NativeProcessor(folder / "trainer_rtl.so")
    processor._library.trainer_longest_run.restype = ctypes.c_longlong
    processor.stages = int(verilog[1]["kernel_host.h"].split("LOOP_STAGES ")[1].split()[0])
    processor.warnings = [line for line in made.stderr.splitlines() if line.startswith("%Warning")]
    return processor


def test_lint_finds_nothing(machine):
    """In all modules, with all warnings that the testbench's Makefile asks for."""
    assert machine.warnings == []


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


def test_what_is_no_program_or_no_sample_is_refused(machine, fast):
    """The statuses are the emulation's: of a damaged image, a length, token, label or rate out of range."""
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
    for processor in (machine, fast):
        result, described = vectors(8), vectors(8)
        processor._call(M.DESCRIBE, results=described)
        processor._call(M.LOAD_PROGRAM, len(damaged), results=result, image=_aligned(damaged))
        processor.load_program(program)
        statuses = [int(processor.train(records[n : n + 1], optimizer)["status"][0]) for n in range(len(records))]
        answers.append((described.tolist(), int(result[0, 0]), statuses))
    assert answers[0] == answers[1]
    assert answers[0][1] == M.NO_PROGRAM
    assert answers[0][2] == [M.BAD_LENGTH, M.BAD_INTENT, M.BAD_TOKEN, M.BAD_SLOT, M.BAD_LEARNING_RATE]


def own_module() -> ModuleModel:
    torch.manual_seed(0)
    return trace(Net(), Net.sequence_length)


@pytest.mark.parametrize(
    ("made", "name", "lengths"),
    [
        pytest.param(lambda: SMALL, "adamw", [2, 17], id="small-adamw"),
        pytest.param(own_module, "momentum", [3, 11], id="module-momentum"),
        pytest.param(lambda: ModelConfig(encoders=2), "sgd", [13], id="paper-sgd", marks=by_hand),
        pytest.param(lambda: ModelConfig(encoders=2), "adamw", [32, 2], id="paper-adamw", marks=by_hand),
    ],
)
def test_verilog_trains_to_the_emulations_bits_and_cycles(machine, fast, made, name, lengths):
    """Over AXI with stalls at random: results, all parameters and moments to the bit, and cycles."""
    optimizer, model = Optimizer(name), made()
    program = compile_program(model)
    parameters = model.parameters() if isinstance(model, ModuleModel) else some_parameters(model)
    rates = np.full(len(lengths), 0.01)
    records = sample_records(program, some_samples(model, lengths), rates, optimizer)
    results = []
    for processor in (machine, fast):
        processor.load_program(program)
        processor.load(parameters)
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
    for one, other in zip(machine.store(), fast.store(), strict=True):
        assert equal_bits(one, other)


def test_signals_on_record_are_those_of_this_verilog(machine, verilog):
    """make signals records them; notebook 02 shows them."""
    recorded = json.loads(RECORD.read_text())
    assert recorded.pop("tool").startswith("Verilator")
    assert json.loads(json.dumps(collect(machine, verilog[1]["kernel_host.h"]))) == recorded
