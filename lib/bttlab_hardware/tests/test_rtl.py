"""The machine's loop: its record; in Verilog, FP32 cores against the host and whole samples against the emulation."""

import ctypes
import json
import re
import shutil
import subprocess
from collections import Counter

import numpy as np
import pytest
import torch

from bttlab.card.processor import sample_records
from bttlab.compiler.machine import CLOCKS, machine_of, targeting
from bttlab.compiler.module import ModuleModel
from bttlab.compiler.program import Options, compile
from bttlab.compiler.timing import time_program
from bttlab.compiler.trace import trace
from bttlab.estimate.constants import read_data
from bttlab.estimate.recorded import record_of
from bttlab.estimate.synthesis import AMD, FILE, MULTIPLIER, SERIES_7, UNITS, file_of, with_amd_cores, with_own_cores
from bttlab.model import ModelConfig, Optimizer
from bttlab_hardware import SOURCE, UNIT, schedule_of
from bttlab_hardware.files import module_digests, write_loop
from bttlab_hardware.netlist import Depth, packed_tables, stage_of
from bttlab_hardware.record import make_record
from bttlab_hardware.synth import latencies_in
from bttlab_hardware.verilog import SHIFT_FROM, TOP, shortest_shift
from sample_modules import Net

from build_library import kept
from conftest import ROOT
from processor_native import NativeProcessor
from training_processor import SMALL, equal_bits, some_parameters, some_samples

pytestmark = pytest.mark.long
RTL, TESTBENCH = ROOT / "hls_src" / "rtl", ROOT / "hls_src" / "testbench"
LINT = ("-Wall", "-Wno-UNUSEDSIGNAL", "-Wno-DECLFILENAME")


def test_fp32_cores_compute_what_the_host_does(tmp_path):
    """All pairs of hard operands, then random ones, with subnormals flushed to zero, at three latencies."""
    sources = [TESTBENCH / "fp32_cores.v", TESTBENCH / "fp32_cores.cpp"]
    build = ["verilator", "--cc", "--exe", "--build", *LINT, "-CFLAGS", "-frounding-math", "-y", RTL]
    build += ["-MAKEFLAGS", "OPT_FAST=-O0 OPT_SLOW=-O0 OPT_GLOBAL=-O0"]  # to optimise takes longer than to run
    subprocess.run([*build, *sources, "--top", "fp32_all", "--Mdir", tmp_path], check=True, capture_output=True)
    done = subprocess.run([tmp_path / "Vfp32_all", "50000", "1"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "55476 pairs\n")


def test_delays_of_the_hardware_are_shift_registers(tmp_path):
    """Rings of one and more parts, and what is too short or too narrow for them."""
    build = ["verilator", "--binary", "-DHARDWARE_DELAYS", *LINT, "-Wno-fatal", "-y", RTL, TESTBENCH / "delays.v"]
    subprocess.run([*build, "--top", "delays", "--Mdir", tmp_path], check=True, capture_output=True)
    done = subprocess.run([tmp_path / "Vdelays"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("0 faults\n")


def test_delays_that_are_flip_flops_are_the_same_in_the_source_and_in_the_settings_for_vivado():
    ring_from = re.search(r"`else\n.*RING_FROM = (\d+);", (RTL / "delay.v").read_text(encoding="utf-8"), re.DOTALL)
    assert int(ring_from[1]) == shortest_shift() > SHIFT_FROM


@pytest.fixture(scope="module", params=CLOCKS, ids="{} MHz".format)
def clock(request):
    return request.param


@pytest.fixture(scope="module")
def analysed(clock):
    """The loop's schedule for a clock, and its operators: the analysis takes 20 seconds."""
    return schedule_of(SOURCE / UNIT, clock)


def test_the_record_is_what_the_analysis_finds_again(analysed, clock):
    made = json.loads(json.dumps(make_record(*analysed)))
    kept = json.loads(record_of(clock).read_text(encoding="utf-8"))
    assert kept == made, "make it again with: make schedule SCHEDULE=--record"
    assert (made["clock_mhz"], made["interval"], made["violations"]) == (clock, 1, 0)
    assert made["depth"] <= machine_of(clock).LATENCY


@pytest.fixture(scope="module")
def verilog(analysed, tmp_path_factory):
    """The loop's Verilog: a folder, and the text of each file."""
    folder = tmp_path_factory.mktemp("rtl")
    return folder, write_loop(analysed[0], folder)


def test_the_resources_on_record_are_of_this_verilog(verilog, clock):
    """All modules of it: make synth counts them, and the same source gives the same Verilog."""
    modules, digests = json.loads(file_of(clock).read_text())["modules"], module_digests(verilog[1])
    assert {name: one["sha256"] for name, one in modules.items()} == digests
    cycles = {name: one["latency"] for name, one in modules.items() if name in AMD}
    assert cycles == latencies_in(verilog[1][f"{TOP}.v"]) and cycles["fp32_add"] == {200: 5, 300: 6}[clock]
    assert set(UNITS) == {name for name in digests if not name.startswith("fp32_")}


def test_yosys_packs_the_multiplier_for_the_7_series_alone(tmp_path):
    """The registers and sums that Yosys leaves outside a DSP48E2: the range on record, counted by Yosys' stat."""
    on_record = json.loads(FILE.read_text())["modules"][MULTIPLIER]
    sources = " ".join(str(RTL / f"{name}.v") for name in (MULTIPLIER, "fp32_round", "delay"))
    found = {}
    for family in ("xcup", SERIES_7):
        script = f"read_verilog {sources}; synth_xilinx -top {MULTIPLIER} -family {family} -noiopad -noclkbuf -flatten"
        subprocess.run(["yosys", "-q", "-p", f"{script}; tee -o {family} stat"], cwd=tmp_path, check=True)
        found[family] = Counter()
        for line in (tmp_path / family).read_text().splitlines():
            kind, _, count = line.strip().rpartition(" ")
            if kind.strip().startswith(("FD", "DSP", "LUT")):
                found[family][re.match("FD|DSP|LUT", kind.strip())[0]] += int(count)
    families = {"xcup": on_record, SERIES_7: on_record[SERIES_7]}
    for family, counts in families.items():
        assert (found[family]["FD"], found[family]["DSP"]) == (counts["flip_flops"], counts["dsps"]), family
        assert found[family]["LUT"] == pytest.approx(counts["lookup_tables"], abs=5), family
    assert found["xcup"]["FD"] - found[SERIES_7]["FD"] == 31


def test_the_loop_takes_its_units_and_their_cores():
    units = {name: Counter(packed_tables=10, levels=3) for name in UNITS}
    units["engine_0"] = Counter(packed_tables=10, fp32_add=3, shift_registers=2)
    own = with_own_cores(units | {"fp32_add": Counter(packed_tables=100, dsps=1, levels=9)})
    luts = 10 * len(UNITS) + 300
    assert (own["packed_tables"], own["in_luts"], own["dsps"], own["levels"]) == (luts, luts + 2, 3, 0)
    amd = with_amd_cores(units)
    cost = read_data("operators")["operators"]["add"]
    assert amd["in_luts"] == 10 * len(UNITS) + 3 * cost["lookup_tables"]["value"] + 2
    assert (amd["dsps"], amd["flip_flops"]) == (3 * cost["dsps"]["low"], 3 * cost["flip_flops"]["value"])


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


@pytest.fixture(scope="module")
def machine(verilog, clock):
    """The kernel with its loop in Verilog, as a shared library."""
    folder, _ = verilog

    def make(part):
        build = ["make", "-C", TESTBENCH, f"BUILD={folder}", f"CLOCK_MHZ={clock}", "-j2"]
        made = subprocess.run(build, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
        warnings = [line for line in made.stderr.splitlines() if line.startswith("%Warning")]
        assert warnings == []  # in all modules, of all that the testbench's Makefile asks for
        shutil.copyfile(folder / "trainer_rtl.so", part)

    version = subprocess.run(["verilator", "--version"], capture_output=True, text=True, check=True).stdout
    processor = NativeProcessor(
        kept("trainer_rtl", f"{version} {clock}", make, *folder.iterdir(), *TESTBENCH.iterdir())
    )
    processor._library.trainer_longest_run.restype = ctypes.c_longlong
    processor.stages = int(verilog[1]["machine_loop.h"].split("LOOP_STAGES ")[1].split()[0])
    return processor


def own_module() -> ModuleModel:
    torch.manual_seed(0)
    return trace(Net(), Net.sequence_length)


@pytest.mark.parametrize(
    ("made", "name", "lengths"),
    [
        pytest.param(lambda: SMALL, "adamw", [2, 17], id="small-adamw"),
        pytest.param(own_module, "momentum", [3, 11], id="module-momentum"),
        pytest.param(lambda: ModelConfig(encoders=2), "sgd", [3], id="paper-sgd"),
    ],
)
def test_verilog_trains_to_the_emulations_bits_and_cycles(machine, clock, fast, made, name, lengths):
    """Results, all parameters and moments to the bit, and cycles: of the schedule for each clock."""
    optimizer, model = Optimizer(name), made()
    programs = {machine: compile(model, Options(clock_mhz=clock)), fast: compile(model)}
    program = programs[machine]
    parameters = model.parameters() if isinstance(model, ModuleModel) else some_parameters(model)
    rates = np.full(len(lengths), 0.01)
    records = sample_records(program, some_samples(model, lengths), rates, optimizer)
    results = []
    for processor in (machine, fast):
        processor.load_program(programs[processor])
        processor.load(parameters)
        if processor is machine:
            machine._library.trainer_longest_run()
        results.append(processor.train(records, optimizer))
    found, wanted = results
    for field in ("status", "intent", "loss", "intent_loss", "slot_loss", "slots"):
        assert found[field].tobytes() == wanted[field].tobytes(), field
    with targeting(machine_of(clock)):
        modelled = [time_program(program.sample, length, n > 0).cycles for n, length in enumerate(lengths)]
    assert found["cycles"].tolist() == modelled
    # From `start` to the end of the last iteration, a cycle apart on either side.
    assert machine._library.trainer_longest_run() <= max(modelled) - machine_of(clock).LATENCY + machine.stages + 3
    for one, other in zip(machine.store(), fast.store(), strict=True):
        assert equal_bits(one, other)
