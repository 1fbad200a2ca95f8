"""Small loops whose answers are known by hand; the machine's source, as it is and with faults in it."""

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from bttlab.card.constants import read_data
from bttlab.card.facts import ROOT
from bttlab.estimate.recorded import RECORD, make_record
from bttlab.estimate.schedule import SOURCE, UNIT, analyse, census, resources, schedule_of
from bttlab.estimate.schedule import compile as compiling
from bttlab.estimate.schedule.analyse import Schedule
from bttlab.estimate.schedule.census import Census

HEAD = """
typedef float Word __attribute__((vector_size(64)));
#define UNROLL _Pragma("clang loop unroll(full)")
static Word bank_0[1024], bank_1[1024];
static float total[64];
"""
# One load of one bank, a sum, one store of another: nothing is wrong with it.
BODY = "Word word = bank_0[address]; bank_1[address] = word + word;"


def source(body: str = BODY, before: str = "", arguments: str = "", pragmas: str = "") -> str:
    return f"""{HEAD}{before}
extern "C" void top(int cycles, int step{arguments}) {{
    int address = 0;
Cycles:
    for (int t = 0; t < cycles; t++) {{
#pragma HLS PIPELINE II=1
{pragmas}
        {body}
        address = (address + step) & 1023;
    }}
}}
"""


@pytest.fixture
def analysed(tmp_path):
    """Return a function that analyses a source's text."""

    def run(text: str, **options) -> Schedule:
        unit = tmp_path / "loop.cpp"
        unit.write_text(text, encoding="utf-8")
        return analyse(unit, **options)

    return run


def kinds(schedule: Schedule) -> set[str]:
    return {wrong.kind for wrong in schedule.violations}


def test_loop_without_fault(analysed):
    found = analysed(source())
    assert (found.interval, found.violations) == (1, [])
    assert {port.memory.name: (port.loads, port.stores) for port in found.ports} == {
        "bank_0[]": (1, 0),
        "bank_1[]": (0, 1),
    }
    # A load of 3 cycles, an addition of 5; the store is seen a cycle later.
    store = next(node for node in found.graph.nodes if node.kind == "store")
    assert found.times.start[store] == 3 + 5
    assert found.times.visible(store) == 9


def test_census_counts_lanes_that_are_used(analysed):
    body = "Word a = bank_0[address], b = a * a; Word c = {}; c[0] = b[0] + b[1]; c[5] = b[7]; bank_1[address] = c;"
    found = analysed(source(body))
    total = census(found.graph.nodes, found.places).total
    assert (total["fmul"], total["fadd"]) == (3, 1)  # lanes 0, 1 and 7


@pytest.mark.parametrize(
    ("body", "options", "kind", "interval"),
    [
        ("bank_1[address] = bank_0[address]; bank_1[address ^ 1] = bank_0[address];", {}, "port", 2),
        ("bank_1[address] = bank_0[address] + bank_0[address ^ 3] + bank_0[address ^ 5];", {}, "port", 3),
        ("Word *p = step & 1 ? bank_0 : bank_1; total[address & 63] = p[address][0];", {}, "pointer", 1),
        ("if (out) out[address] = t;", {"arguments": ", int *out"}, "null", 1),
        ("bank_1[address / step] = bank_0[address];", {}, "division", 1),
        ("bank_1[address % 10] = bank_0[address];", {}, "division", 1),
        ("bank_1[(t * step >> 16) & 1023] = bank_0[address];", {}, "product", 1),
        (
            "bank_1[address] = twice(bank_0[address]);",
            {"before": "__attribute__((noinline)) static Word twice(Word w) { return w + w; }"},
            "call",
            1,
        ),
        ("for (int i = 0; i < step; i++) total[i & 63] = i;", {}, "loop", 1),
    ],
    ids=["store", "loads", "selection", "null", "division", "remainder", "product", "call", "loop"],
)
def test_fault_in_a_small_loop(analysed, body, options, kind, interval):
    found = analysed(source(body, **options))
    assert kind in kinds(found)
    assert found.interval >= interval


def test_factors_of_sixteen_bits_take_one_dsp(analysed):
    body = "bank_1[(unsigned short)(t & 0xffff) * (step & 0xffff) >> 22 & 1023] = bank_0[address];"
    found = analysed(source(body))
    assert "product" not in kinds(found)
    assert census(found.graph.nodes, found.places).total["multiply"] == 1


SUM = "total[address & 63] = total[address & 63] + bank_0[address][0];"
# 3 cycles to load, 5 to add, 1 until the store is seen.
SUM_CYCLES = 9


@pytest.mark.parametrize(("distance", "interval"), [(9, 1), (12, 1), (8, 2), (5, 2), (4, 3), (3, 3), (2, 5), (1, 9)])
def test_interval_of_a_sum_follows_from_the_promised_distance(analysed, distance, interval):
    promise = f"#pragma HLS DEPENDENCE variable=total type=inter direction=RAW distance={distance} dependent=true"
    found = analysed(source(SUM, pragmas=promise))
    assert found.interval == interval
    assert ("recurrence" in kinds(found)) == (interval > 1)
    circle = next(c for c in found.recurrences if c.name == "total[]")
    assert (circle.latency, circle.distance, circle.promised) == (SUM_CYCLES, distance, True)


def test_without_a_promise_the_next_iteration_may_load_it(analysed):
    assert analysed(source(SUM)).interval == SUM_CYCLES


def test_storage_decides_the_latency_of_a_load(analysed):
    pragmas = "#pragma HLS BIND_STORAGE variable=total type=ram_2p impl=lutram\n"
    promise = "#pragma HLS DEPENDENCE variable=total type=inter direction=RAW distance=7 dependent=true"
    assert analysed(source(SUM, pragmas=pragmas + promise)).interval == 1


def test_no_dependence_is_believed_only_where_the_program_keeps_it(analysed):
    promise = "#pragma HLS DEPENDENCE variable=bank_0 type=inter dependent=false"
    body = "Word word = bank_0[address ^ 1]; bank_0[address] = word * word;"
    assert kinds(analysed(source(body, pragmas=promise))) == {"promise"}
    latency = "constexpr int LATENCY = {};\n"
    kept = {"LATENCY": ("bank_",)}
    # 3 cycles to load, 4 to multiply, 1 until it is seen.
    good = analysed(source(body, before=latency.format(8), pragmas=promise), kept_apart=kept)
    assert (good.depth, good.violations) == (8, [])
    assert kinds(analysed(source(body, before=latency.format(7), pragmas=promise), kept_apart=kept)) == {"depth"}


def test_value_that_goes_round_through_an_adder(analysed):
    body = "sum = sum + bank_0[address][0]; bank_1[address] = bank_0[address] * sum;"
    text = source(body).replace("int address = 0;", "int address = 0; float sum = 0;")
    assert analysed(text).interval == 5  # one addition


def test_circle_through_two_values(analysed):
    # From `first` to `second` an addition of 5 cycles, and back another: 10 cycles in 2 iterations.
    body = "float was = first; first = second + step; second = was + t; bank_1[address] = bank_0[address] * first;"
    text = source(body).replace("int address = 0;", "int address = 0; float first = 0, second = 1;")
    found = analysed(text)
    assert found.interval == 5
    assert "recurrence" in kinds(found)


def test_end_of_the_loop_that_is_known_late(analysed):
    text = source("if (bank_0[address][0] > 4) break; bank_1[address] = {};")
    found = analysed(text)
    assert "exit" in kinds(found)
    assert found.interval == 3 + 2  # a load and a comparison


def test_block_that_gives_its_argument_back_is_as_late_as_its_pragma_says(analysed):
    block = """static __attribute__((noinline)) int later(int value) {
#pragma HLS INLINE off
#pragma HLS PIPELINE II=1
#pragma HLS LATENCY min=7 max=7
    return value;
}
"""
    body = BODY.replace("[address]", "[later(address) & 1023]", 1)
    found = analysed(source(body, before=block))
    assert not found.violations
    (load,) = [n for n in found.graph.nodes if n.kind == "load"]
    (delay,) = [n for n in found.graph.nodes if n.kind == "delay"]
    assert (found.times.start[load], delay.bits) == (7, 10)
    assert kinds(analysed(source(body, before=block.replace("max=7", "max=8")))) == {"call"}
    assert kinds(analysed(source(body, before=block.replace("return value", "return value + 1")))) == {"call"}


def test_choice_between_the_memories_of_a_variable(analysed):
    before = "static Word banks[4][256];"
    partition = "#pragma HLS ARRAY_PARTITION variable=banks complete dim=1"
    one = "banks[1][address & 255] = bank_0[address];"
    found = analysed(source(one, before=before, pragmas=partition))
    assert "banks[1][]" in {port.memory.name for port in found.ports}
    assert found.violations == []
    assert kinds(analysed(source(one.replace("[1]", "[step & 3]"), before=before, pragmas=partition))) == {"pointer"}


def test_second_call_may_build_a_second_machine(analysed):
    text = source().replace('extern "C" void top', "static void run") + (
        'extern "C" void top(int a, int b) { if (a) run(a, b); else run(b, a); }'
    )
    assert "copies" in kinds(analysed(text))


@pytest.fixture(scope="module")
def machine():
    return schedule_of(SOURCE / UNIT)


def test_the_record_is_what_the_analysis_finds_anew(machine):
    made = json.loads(json.dumps(make_record(*machine)))
    kept = json.loads(RECORD.read_text(encoding="utf-8"))
    assert kept == made, "make it anew with: bttlab schedule --record"


def test_machine(machine):
    schedule, counted, taken = machine
    assert schedule.violations == []
    assert schedule.interval == 1
    assert counted.engines(rows=16, lanes=16) == 2
    assert 0 < schedule.depth <= schedule.constants["LATENCY"]
    banks = {p.memory.name: (p.loads, p.stores) for p in schedule.ports if p.memory.name.startswith("bank_")}
    assert len(banks) == 22
    assert set(banks.values()) == {(1, 1), (1, 0), (0, 1)}
    assert banks["bank_0[]"] == (1, 0) and banks["bank_1[]"] == (0, 1)
    assert all(port.loads <= 1 and port.stores <= 1 for port in schedule.ports)
    assert taken.total("dsps").mid >= 2 * (counted.total["fmul"] + counted.total["fadd"])


def broken(folder: Path, edits: list[tuple[str, str, str]]) -> Path:
    """A copy of the machine's source with parts of files replaced; each must be there."""
    copy = folder / "processor"
    shutil.copytree(SOURCE, copy)
    for name, old, new in edits:
        text = (copy / name).read_text(encoding="utf-8")
        assert old in text, f"{name} has no {old!r} to break"
        (copy / name).write_text(text.replace(old, new, 1), encoding="utf-8")
    return copy / UNIT


LOOP = "    for (; !finished; cycles++) {\n#pragma HLS PIPELINE II=1\n"
FAULTS = """
        bank_2[cycles & 1023] = Word{};
        Word *either = cycles & 1 ? bank_3 : bank_4;
        either[cycles & 1023] = Word{};
        if (bank_5[(cycles / (section.count + 1)) & 1023][0] > 0.5f) bank_6[0] = Word{};
"""
SUMS_PROMISE = "variable=sums type=inter direction=RAW distance=SUM_DISTANCE"


def test_faults_in_the_machine(tmp_path):
    """All at once: an analysis takes half a minute."""
    edits = [
        ("machine.h", LOOP, LOOP + FAULTS),
        ("machine.h", SUMS_PROMISE, SUMS_PROMISE.replace("SUM_DISTANCE", "40")),
        ("config.h", "SUM_DISTANCE = 8", "SUM_DISTANCE = 7"),
        ("config.h", "LATENCY = 128", "LATENCY = 100"),
    ]
    found = analyse(broken(tmp_path, edits))
    wrong = [(v.kind, v.message.split(" ")[0]) for v in found.violations]
    assert ("port", "bank_2[]") in wrong  # a second store
    assert ("port", "bank_5[]") in wrong  # a second load
    assert ("pointer", "one") in wrong  # of several is selected
    assert ("division", "an") in wrong  # integer by a variable
    assert ("promise", "sums:") in wrong  # of a distance that no program keeps
    # Words that come round too soon.
    soon = {v.message.split("[")[0] for v in found.violations if v.kind == "recurrence"}
    assert {"accumulator", "statistic"} <= soon and any(name.startswith("bank_") for name in soon)
    assert found.interval >= 2


def test_command(machine, monkeypatch, capsys):
    from bttlab import cli

    monkeypatch.setattr("bttlab.estimate.schedule.schedule_of", lambda unit: machine)
    assert cli.main(["schedule", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {"interval", "depth", "ports", "operators", "violations", "recurrences", "resources"} <= data.keys()
    assert data["engines"] == 2
    assert all(
        data["resources"][r]["provenance"] == "modelled"
        for r in ("dsps", "lookup_tables", "flip_flops", "bram36", "uram")
    )
    assert cli.main(["schedule"]) == 0
    assert "violations: 0" in capsys.readouterr().out


def test_command_says_what_is_missing(monkeypatch, tmp_path, capsys):
    from bttlab import cli

    assert cli.main(["schedule", "--source", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setattr(compiling, "CLANG", "clang++-that-is-nowhere")
    assert cli.main(["schedule"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "apt install clang-16" in err


def made_by_yosys(name: str, verilog: Path | None = None) -> dict[str, int]:
    """Cells that Yosys makes of a module for the card's family; by default one of hls_src/testbench."""
    verilog = verilog or ROOT / "hls_src" / "testbench" / f"{name}.v"
    script = f"read_verilog {verilog}; synth_xilinx -family xcup -noiopad -top {name}; stat -json"
    done = subprocess.run(["yosys", "-p", script], capture_output=True, text=True, check=True)
    cells: Counter = Counter()
    for cell, count in re.findall(r'^\s+"([A-Z]\w+)":\s+(\d+),?$', done.stdout.split('"design":')[1], re.MULTILINE):
        cells["LUT" if cell.startswith("LUT") else cell] += int(count)
    return cells


def test_multiplier_costs_what_yosys_makes_of_one():
    table, cells = read_data("operators")["operators"]["multiply"], made_by_yosys("fp32_multiply")
    assert cells["DSP48E2"] == table["dsps"]["low"]  # full usage, which the schedule's resources take
    assert 0.5 < cells["LUT"] / table["lookup_tables"]["value"] < 2


def test_adder_costs_what_yosys_makes_of_one():
    # Ours is all logic; PG060's has two DSPs for a part of it.
    table, cells = read_data("operators")["operators"]["add"], made_by_yosys("fp32_add")
    assert cells["DSP48E2"] == 0
    assert 1 < cells["LUT"] / table["lookup_tables"]["value"] < 3


CHECK = r"""
#include "model.cpp"
#include <cstdio>
#include <cstring>
#include <random>
int main() {
    cxxrtl_design::p_MODULE unit;
    std::mt19937 random(1);
    for (int n = 0; n < 200000; n++) {
        unsigned a = random(), b = random(), want, got;
        if (n % 2) b = (b & 0x807fffff) | (((a >> 23 & 255) + random() % 5 - 2 & 255) << 23);
        float x, y, z;
        memcpy(&x, &a, 4), memcpy(&y, &b, 4);
        z = x OPERATION y;
        memcpy(&want, &z, 4);
        const auto in = [](unsigned v) { return (v >> 23 & 255) > 30 && (v >> 23 & 255) < 225; };
        if (!in(a) || !in(b) || !(in(want) || want == 0)) continue;
        unit.p_a.set<unsigned>(a), unit.p_b.set<unsigned>(b);
        for (int t = 0; t < 8; t++) {
            unit.p_clock.set<bool>(false), unit.step(), unit.p_clock.set<bool>(true), unit.step();
        }
        got = unit.p_result.get<unsigned>();
        if (got != want) return printf("%08x %08x: %08x, not %08x\n", a, b, got, want), 1;
    }
}
"""


@pytest.mark.parametrize(("name", "operation"), [("fp32_multiply", "*"), ("fp32_add", "+")])
def test_operators_for_yosys_compute_what_they_should(name, operation, tmp_path):
    verilog = ROOT / "hls_src" / "testbench" / f"{name}.v"
    subprocess.run(["yosys", "-q", "-p", f"read_verilog {verilog}; write_cxxrtl {tmp_path}/model.cpp"], check=True)
    (tmp_path / "check.cpp").write_text(
        CHECK.replace("MODULE", name.replace("_", "__")).replace("OPERATION", operation)
    )
    include = Path(shutil.which("yosys")).resolve().parents[1] / "share" / "yosys" / "include"
    build = [
        "clang++-16",
        "-std=c++17",
        "-O2",
        "-w",
        f"-I{include}",
        f"-I{include}/backends/cxxrtl",
        "check.cpp",
        "-o",
        "check",
    ]
    subprocess.run(build, cwd=tmp_path, check=True)
    done = subprocess.run(["./check"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("choices", [4, 10, 16])
def test_a_choice_costs_what_yosys_makes_of_one(analysed, tmp_path, choices):
    """A tree of choices of two, by the bits of a number; for Yosys a quarter of a word, as all its bits are alike."""
    names, lines, level = [f"a{i}" for i in range(choices)], [], 0
    while len(names) > 1:
        pairs = [names[i : i + 2] for i in range(0, len(names), 2)]
        names = [f"t{level}_{i}" if len(pair) == 2 else pair[0] for i, pair in enumerate(pairs)]
        lines += [(f"t{level}_{i}", level, *pair) for i, pair in enumerate(pairs) if len(pair) == 2]
        level += 1
    verilog = "".join(f"wire [127:0] {t} = s[{bit}] ? {b} : {a};\n" for t, bit, a, b in lines)
    inputs = ", ".join(f"a{i}" for i in range(choices))
    module = f"module choice(input [127:0] {inputs}, input [{level - 1}:0] s, output [127:0] y);\n{verilog}"
    path = tmp_path / "choice.v"
    path.write_text(f"{module}assign y = {names[0]};\nendmodule\n", encoding="utf-8")
    made = 4 * made_by_yosys("choice", path)["LUT"]
    before = "".join(f"static Word memory_{i}[64];\n" for i in range(choices))
    body = f"Word {', '.join(f'a{i} = memory_{i}[address & 63]' for i in range(choices))};\n"
    body += "".join(f"Word {t} = step >> {bit} & 1 ? {b} : {a};\n" for t, bit, a, b in lines)
    text = source(body + f"step += t; bank_1[address] = {names[0]};", before=before)
    found = resources(analysed(text), Census({}, Counter())).parts["logic"]["lookup_tables"]
    assert 0.6 < found.mid / made < 1.3
