"""Resources: operator counts against the source, costs against their bands, totals against the card."""

import json
import re
import subprocess
from collections import Counter

import pytest

from bttlab.model.config import ModelConfig
from bttlab.u50.constants import constant, read_data
from bttlab.u50.facts import ROOT, U50
from bttlab.u50.hardware import HLS_SOURCE, HardwareConfig, read_constants
from bttlab.u50.memory_map import memory_map, total_blocks
from bttlab.u50.operators import FUNCTIONS, units
from bttlab.u50.records import words_for
from bttlab.u50.resources import RESOURCES, budget, card, resources
from bttlab.u50.work import element_operations

# A float that counts what is done with it, in the place of functions.h's.
COUNTER = r"""
#include <cmath>
#include <cstdio>
enum { ADD, MULTIPLY, DIVIDE, ROOT, COMPARE, CONVERT, KINDS };
static int counts[KINDS];
struct Number {
    float value;
    Number() = default;
    Number(float v) : value(v) {}
    Number(double v) : value(static_cast<float>(v)) {}
    explicit Number(int v) : value(static_cast<float>(v)) { counts[CONVERT]++; }
    Number operator-() const { return Number(-value); }
};
#define OPERATOR(symbol, kind) \
    static inline Number operator symbol(Number a, Number b) { counts[kind]++; return Number(a.value symbol b.value); }
OPERATOR(+, ADD)
OPERATOR(-, ADD)
OPERATOR(*, MULTIPLY)
OPERATOR(/, DIVIDE)
static inline bool operator<(Number a, Number b) { counts[COMPARE]++; return a.value < b.value; }
static inline bool operator>(Number a, Number b) { counts[COMPARE]++; return a.value > b.value; }
namespace std {
static inline Number fabs(Number a) { return Number(a.value < 0 ? -a.value : a.value); }
static inline Number sqrt(Number a) { counts[ROOT]++; return a; }
}
#define BTTLAB_WORD_H
#define __SYNTHESIS__
#define LANES 1
struct Word {
    Number value[1];
    Number &operator[](int i) { return value[i]; }
    const Number &operator[](int i) const { return value[i]; }
};
#define float Number
#include "functions.h"
#undef float
#define REPORT(name) \
    for (int &count : counts) count = 0; \
    name(Number(0.7f)); \
    printf("%s %d %d %d %d %d %d\n", #name, counts[0], counts[1], counts[2], counts[3], counts[4], counts[5]);
int main() {
    REPORT(exponential)
    REPORT(logarithm)
    REPORT(hyperbolic_tangent)
    REPORT(normal_distribution)
    REPORT(normal_density)
}
"""
KINDS = ("add", "multiply", "divide", "square_root", "compare", "convert")


@pytest.fixture(scope="module")
def found():
    return resources(ModelConfig(encoders=2), HardwareConfig())


def test_operators_are_those_of_the_source(tmp_path):
    (tmp_path / "count.cpp").write_text(COUNTER)
    program = tmp_path / "count"
    command = ["g++", "-std=c++17", "-w", f"-I{HLS_SOURCE}", str(tmp_path / "count.cpp"), "-o", str(program)]
    subprocess.run(command, check=True)
    lines = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.splitlines()
    for line in lines:
        name, *counts = line.split()
        expected = Counter(FUNCTIONS[name])
        expected.pop("select", None)  # a multiplexer each comparison, which is no operator in C++
        assert +Counter(dict(zip(KINDS, map(int, counts), strict=True))) == expected, name
    assert len(lines) == len(FUNCTIONS)


def pipelines() -> dict[str, list[int]]:
    """The II of each pipelined loop of the training kernel's source by function; 1 where none is said."""
    found: dict[str, list[int]] = {}
    function = ""
    constants = read_constants(HLS_SOURCE / "config.h", HLS_SOURCE / "timing.h")
    constants["SEQUENCE_WORDS"] = words_for(ModelConfig().sequence_length)
    headers = [path for path in sorted(HLS_SOURCE.glob("*.h")) if not path.name.startswith("contract")]
    for path in [*headers, HLS_SOURCE / "train_transformer.cpp"]:
        for line in path.read_text().splitlines():
            if match := re.match(r"static (?:inline )?[\w *]+?\b(\w+)\(", line):
                function = match[1]
            if match := re.search(r"#pragma HLS PIPELINE II=(.+)", line):
                found.setdefault(function, []).append(eval(match[1].replace("/", "//"), dict(constants)))
    return found


def test_every_function_with_a_pipeline_is_in_a_unit():
    covered = [name for unit in units(HardwareConfig()) for name in unit.functions]
    assert set(pipelines()) <= set(covered) and len(covered) == len(set(covered))


def test_intervals_are_those_of_the_pragmas():
    found = pipelines()
    for unit in units(HardwareConfig()):
        for name in unit.functions:
            if unit.operators and name in found:
                assert unit.interval in found[name], name


def test_multiply_accumulates_take_five_dsps(found):
    [engine] = [part for part in found.parts if part.name == "contraction"]
    lanes, trees = HardwareConfig().multiply_accumulates, 2 * HardwareConfig().lane_trees * 16
    assert engine.operators["multiply"] == lanes and engine.operators["add"] == lanes + trees
    assert engine.dsps.mid == 5 * lanes + 2 * trees


def test_the_kernels_memory_is_the_map_and_the_ports(found):
    total = total_blocks(memory_map(ModelConfig(encoders=2), HardwareConfig()))
    assert found.total("uram").mid == total.uram
    assert found.total("bram36").mid == total.bram36 + 3 * 15


def test_totals_are_the_sums_of_the_parts_and_bands_are_ordered(found):
    for resource in RESOURCES:
        total = found.total(resource)
        assert total.mid == pytest.approx(sum(getattr(part, resource).mid for part in found.parts))
        assert total.low <= total.mid <= total.high and total.unit == RESOURCES[resource]
        assert all(getattr(part, resource).unit == RESOURCES[resource] for part in found.parts)


def test_what_the_shell_takes_is_what_it_does_not_leave(found):
    shell = found.to_dict()["shell"]
    assert (
        shell["lookup_tables"]["value"] == U50.lookup_tables - 699619 == card("lookup_tables") - budget("lookup_tables")
    )
    assert shell["uram"]["value"] == 0 and shell["dsps"]["provenance"] == "published"


def test_an_excess_is_named():
    wide = resources(ModelConfig(encoders=2), HardwareConfig(lane_trees=100))
    over = wide.total("dsps").mid - budget("dsps")
    assert wide.excess["dsps"] == over > 0
    assert wide.utilisation("dsps") == pytest.approx(1 + over / budget("dsps"))


def test_to_dict_is_json_and_modelled(found):
    values = json.loads(json.dumps(found.to_dict()))
    for row in values["kernel"].values():
        assert row["provenance"] == "modelled" and row["model"] and row["low"] <= row["value"] <= row["high"]


@pytest.mark.parametrize("name", ["operators", "power", "platform", "published"])
def test_every_constant_has_a_source_and_an_ordered_band(name):
    def walk(value, path, sourced):
        if isinstance(value, dict):
            sourced = sourced or "source" in value
            if {"value", "low", "high"} <= set(value):
                band = constant(value)
                assert sourced, path
                assert min(band.low, band.high) <= band.mid <= max(band.low, band.high), path
                assert band.low <= band.high or path.endswith("regulator_efficiency"), path
            for key, inner in value.items():
                walk(inner, f"{path}.{key}", sourced)
        elif isinstance(value, float | int):
            assert sourced, path

    assert (ROOT / "data" / "u50" / f"{name}.json").is_file()
    walk(read_data(name), name, False)


def test_the_work_of_a_sample():
    work = element_operations(ModelConfig(encoders=2), 13)
    assert work["update"] == 300288 and work["gelu_forward"] == 2 * 13 * 768
    assert work["softmax_backward"] == 2 * 12 * 13 * 13
