"""Small loops whose answers are known by hand; the machine's source, as it is and with faults in it."""

import shutil
from pathlib import Path

import pytest

from bttlab_hardware import SOURCE, UNIT, analyse, census, schedule_of
from bttlab_hardware import compile as compiling
from bttlab_hardware.__main__ import main
from bttlab_hardware.analyse import Schedule
from bttlab_hardware.census import unit_of
from bttlab_hardware.places import Place

pytestmark = pytest.mark.long

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
extern "C" void run(int cycles, int step{arguments}) {{
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
    assert found.times.available(store) == 9


def test_census_counts_lanes_that_are_used(analysed):
    body = "Word a = bank_0[address], b = a * a; Word c = {}; c[0] = b[0] + b[1]; c[5] = b[7]; bank_1[address] = c;"
    found = analysed(source(body))
    total = census(found.graph.nodes, found.places).total
    assert (total["fmul"], total["fadd"]) == (3, 1)  # lanes 0, 1 and 7


@pytest.mark.parametrize("function", ["update_step", "update_step<float, 16>"])
def test_a_unit_is_called_by_its_function_without_template_arguments(function):
    assert unit_of((Place("run", "", 7, 1), Place(function, "", 3, 1))) == ("update", 7)


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
    recurrence = next(r for r in found.recurrences if r.name == "total[]")
    assert (recurrence.latency, recurrence.distance, recurrence.promised) == (SUM_CYCLES, distance, True)


def test_without_a_promise_the_next_iteration_may_load_it(analysed):
    assert analysed(source(SUM)).interval == SUM_CYCLES


def test_storage_decides_the_latency_of_a_load(analysed):
    pragmas = "#pragma HLS BIND_STORAGE variable=total type=ram_2p impl=lutram\n"
    promise = "#pragma HLS DEPENDENCE variable=total type=inter direction=RAW distance=7 dependent=true"
    assert analysed(source(SUM, pragmas=pragmas + promise)).interval == 1


@pytest.mark.parametrize("latency", [7, 8])
def test_a_promise_counts_as_far_as_a_rule_keeps_it(analysed, latency):
    promise = "#pragma HLS DEPENDENCE variable=bank_0 type=inter direction=RAW distance=8 dependent=true"
    text = source("Word word = bank_0[address ^ 1]; bank_0[address] = word * word;", pragmas=promise)
    kept = {"LATENCY": ("bank_",)}
    found = analysed(f"constexpr int LATENCY = {latency};\n{text}", guaranteed=kept)
    # 3 cycles to load, 4 to multiply, 1 until it is seen.
    assert (found.interval, kinds(found)) == (1, {"promise"} if latency == 7 else set())
    assert kinds(analysed(text, guaranteed=kept)) == {"promise"}  # a distance that nothing keeps


def test_value_that_goes_round_through_an_adder(analysed):
    body = "sum = sum + bank_0[address][0]; bank_1[address] = bank_0[address] * sum;"
    text = source(body).replace("int address = 0;", "int address = 0; float sum = 0;")
    assert analysed(text).interval == 5  # one addition


def test_dependence_cycle_through_two_values(analysed):
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
    volatile int later = value;
    return later;
}
"""
    body = BODY.replace("[address]", "[later(address) & 1023]", 1)
    found = analysed(source(body, before=block))
    assert not found.violations
    (load,) = [n for n in found.graph.nodes if n.kind == "load"]
    (delay,) = [n for n in found.graph.nodes if n.kind == "delay"]
    assert (found.times.start[load], delay.bits) == (7, 10)
    assert kinds(analysed(source(body, before=block.replace("max=7", "max=8")))) == {"call", "block"}
    assert kinds(analysed(source(body, before=block.replace("return later", "return later + 1")))) == {"call", "block"}
    # An optimizer would see that this gives its argument back.
    plain = block.replace("volatile int later = value;", "").replace("return later", "return value")
    assert {"block"} <= kinds(analysed(source(body, before=plain)))
    inlined = block.replace("__attribute__((noinline))", "inline __attribute__((always_inline))")
    assert {"block"} <= kinds(analysed(source(body, before=inlined)))


STORAGE = "#pragma HLS BIND_STORAGE variable=bank_0 type=ram_s2p impl=bram latency=3"
DEPENDENCE = "#pragma HLS DEPENDENCE variable=bank_1 type=inter direction=RAW distance=1 dependent=true"


@pytest.mark.parametrize(
    ("pragma", "old", "new"),
    [
        ("#pragma HLS PIPELINE II=1", "II=1", "II=2"),
        ("#pragma HLS ARRAY_PARTITION variable=total complete dim=1", "ARRAY_PARTITION", "ARRAY_RESHAPE"),
        (STORAGE, "ram_s2p", "ram_1p"),
        (STORAGE, "impl=bram", "impl=blockram"),
        (STORAGE, "latency=3", "latency=0"),
        (STORAGE, " latency=3", ""),
        (STORAGE, "variable=bank_0", "variable=bank_O"),
        (DEPENDENCE, "variable=bank_1", "variable=bank_l"),
        (DEPENDENCE, "inter direction=RAW distance=1 dependent=true", "intra dependent=false"),
        (DEPENDENCE, "dependent=true", "dependent=false"),
    ],
)
def test_a_pragma_that_the_analysis_does_not_know(analysed, pragma, old, new):
    kept = {"LATENCY": ("bank_",)}
    text = "constexpr int LATENCY = 1;\n" + source(pragmas=pragma)
    assert not analysed(text, guaranteed=kept).violations
    assert "pragma" in kinds(analysed(text.replace(pragma, pragma.replace(old, new)), guaranteed=kept))


@pytest.mark.parametrize(
    "operation",
    ["__builtin_fmodf(x, 3.0f)", "(float)__builtin_sqrt((double)x)", "__builtin_expf(x)", "__builtin_sinf(x)"],
)
def test_an_operation_that_the_machine_has_no_operator_for(analysed, operation):
    body = f"float x = bank_0[address][0]; bank_1[address] = {operation} - Word{{}};"
    assert kinds(analysed(source(body))) & {"operation", "call"}


def test_choice_between_the_memories_of_a_variable(analysed):
    before = "static Word banks[4][256];"
    partition = "#pragma HLS ARRAY_PARTITION variable=banks complete dim=1"
    one = "banks[1][address & 255] = bank_0[address];"
    found = analysed(source(one, before=before, pragmas=partition))
    assert "banks[1][]" in {port.memory.name for port in found.ports}
    assert found.violations == []
    assert kinds(analysed(source(one.replace("[1]", "[step & 3]"), before=before, pragmas=partition))) == {"pointer"}


def test_second_call_may_build_a_second_machine(analysed):
    text = source().replace('extern "C" void run', "static void run") + (
        'extern "C" void top(int a, int b) { if (a) run(a, b); else run(b, a); }'
    )
    assert "copies" in kinds(analysed(text))


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
FAULTS = "        bank_2[cycles & 1023] = Vector{};\n"
QUEUE_PROMISE = "variable=queue type=inter direction=RAW distance=QUEUE_DISTANCE"
BEGUN_PROMISE = "variable=begun_before type=inter direction=RAW distance=COUNTED_CYCLES"
SUMS_PROMISE = "variable=sums type=inter direction=RAW distance=SUM_DISTANCE"


def test_faults_in_the_machine(tmp_path):
    """All at once: an analysis takes half a minute."""
    edits = [
        ("machine.h", LOOP, LOOP + FAULTS),
        ("machine.h", SUMS_PROMISE, SUMS_PROMISE.replace("SUM_DISTANCE", "40")),
        ("machine.h", QUEUE_PROMISE, QUEUE_PROMISE.replace("QUEUE_DISTANCE", "64")),
        ("machine.h", BEGUN_PROMISE, BEGUN_PROMISE.replace("COUNTED_CYCLES", "1000")),
        ("machine.h", "variable=accumulator type=inter", "variable=acumulator type=inter"),
        ("ports.h", "impl=implementation latency=3", "impl=implementation latency=0"),
        ("vector.h", "#define KEPT volatile", "#define KEPT const"),
        ("config.h", "OPERAND_BUFFER_DEPTH = 1024", "OPERAND_BUFFER_DEPTH = 65536"),
        ("config.h", "SUM_DISTANCE = 9", "SUM_DISTANCE = 7"),
        ("config.h", "LATENCY = 144 +", "LATENCY = 100 +"),
    ]
    found, _ = schedule_of(broken(tmp_path, edits))
    wrong = [(v.kind, v.message.split(" ")[0]) for v in found.violations]
    assert ("port", "bank_2[]") in wrong  # a second store
    assert ("promise", "sums:") in wrong  # of a distance that no program keeps
    messages = [f"{v.kind} {v.message}" for v in found.violations]
    for message in (
        "promise queue: a distance of 64",
        "promise begun_before: a distance of 1000",
        "pragma DEPENDENCE at machine.h",
        "block 1 functions have a LATENCY, and 0",
        "budget bram36",
    ):
        assert any(one.startswith(message) for one in messages), message
    for message in ("acumulator, which the source does not have", "latency=0 is not known"):
        assert any(message in one for one in messages), message
    # Vectors that come round too soon.
    soon = {v.message.split("[")[0] for v in found.violations if v.kind == "recurrence"}
    assert "statistic" in soon and any(name.startswith("bank_") for name in soon)
    assert found.interval >= 2


def test_command_says_what_is_missing(monkeypatch, tmp_path, capsys):
    assert main(["schedule", "--source", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setattr(compiling, "CLANG", "clang++-that-is-nowhere")
    assert main(["schedule"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "apt install clang-16" in err


@pytest.mark.parametrize("command", ["schedule", "rtl"])
def test_command_names_the_clocks_in_one_line(tmp_path, capsys, command):
    place = [str(tmp_path)] if command == "rtl" else []
    assert main([command, *place, "--clock", "250"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "--clock: invalid choice: 250 (choose from 200, 300); see " in err
