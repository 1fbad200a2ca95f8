"""The machine's loop with every store as late as its DEPENDENCE pragma allows: equal bits, and no cycle to spare."""

import ctypes
import re
import shutil

import pytest

from bttlab.compiler.program import Options, compile
from bttlab.model import ModelConfig, Optimizer
from test_program_steps import check_same

from build_library import SOURCES, library
from conftest import ROOT
from processor_native import NativeProcessor
from training_processor import COMMON, SMALL, fresh_processor

pytestmark = pytest.mark.long
KINDS = {
    "LATENCY": 0,
    "SUM_DISTANCE": 1,
    "1": 2,
    "QUEUE_DISTANCE": 3,
    "COUNTED_CYCLES": 4,
}  # distances, as in late_stores.h
PRAGMA = re.compile(
    r"HLS DEPENDENCE variable=(\w+)(?:##number)? type=inter direction=RAW distance=(\w+) dependent=true"
)


@pytest.fixture(scope="module")
def late_source(tmp_path_factory):
    """A copy of the source in which each variable of a DEPENDENCE pragma is declared as a late memory."""
    folder = shutil.copytree(SOURCES / "processor", tmp_path_factory.mktemp("late") / "processor")
    files = {path: path.read_text() for path in folder.glob("*.h")}
    distances = dict(PRAGMA.findall("".join(files.values()))) | {"columns": "1"}  # which HLS keeps without a pragma
    assert set(distances.values()) == set(KINDS)
    for path, text in files.items():
        for name, distance in distances.items():
            shape = r"(##number)?(\[[^;]*;)" if name == "bank_" else r"()(\[[^;]*;)"
            late = rf"static Late<\1, {distance}, {KINDS[distance]}> {name}\2\3"
            text = re.sub(rf"static (\w+) {name}{shape}", late, text)
        files[path] = text
    text = "".join(files.values())
    assert all(re.search(rf"static Late<.*\b{name}", text) for name in distances)
    loop, end = "for (; !finished; cycles++) {", "return cycles + LATENCY;"
    files[folder / "machine.h"] = (
        files[folder / "machine.h"].replace(loop, f"{loop} begin_cycle(cycles);").replace(end, f"end_run(); {end}")
    )
    shutil.copy(ROOT / "tests" / "helpers" / "late_stores.h", folder)
    files[folder / "vector.h"] += '#include "late_stores.h"\n'
    for path, text in files.items():
        path.write_text(text)
    return folder / "trainer.cpp"


@pytest.fixture(scope="module")
def late(late_source):
    return library(late_source, *COMMON, "-O1")


def test_stores_as_late_as_promised_give_equal_bits(late, fast):
    processor = NativeProcessor(late)
    check_same(processor, fast, compile(SMALL, Options("mixed")), [2, 9, 18, 5, 13], Optimizer("adamw"))
    check_same(processor, fast, compile(ModelConfig(encoders=2)), [13, 2], Optimizer("momentum"))


@pytest.mark.parametrize("distance", KINDS)
def test_one_cycle_more_breaks(late, fast, tmp_path, distance):
    program, optimizer = compile(SMALL), Optimizer("adamw")
    with fresh_processor(late, tmp_path) as processor:
        extra = (ctypes.c_int * len(KINDS)).in_dll(processor._library, "extra_cycles")
        extra[KINDS[distance]] = 1
        with pytest.raises(AssertionError):  # in bits or, for COUNTED_CYCLES, in cycles
            check_same(processor, fast, program, [18, 2, 9], optimizer)
