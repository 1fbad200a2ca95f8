"""The synthesis source as LLVM IR: every function inlined, every loop that the source unrolls unrolled, nothing else.

clang translates and llvmlite reads. Of LLVM's passes only those run that HLS needs as well to see a pipelined loop:
inlining, locals into values, constants, unrolling. Nothing merges, hoists or sinks a load or a store, so what the IR
asks of a memory is what the source asks.
"""

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bttlab.errors import BttlabError
from bttlab.hardware.pragmas import read_pragmas
from bttlab.hardware.root import root_function, ways_to

CLANG = "clang++-16"
FLAGS = (
    *(
        "-std=c++17",
        "-O1",
        "-Xclang",
        "-disable-llvm-passes",
        "-D__SYNTHESIS__",
        "-ffp-contract=off",
        "-fno-math-errno",
    ),
    *("-fno-exceptions", "-fno-rtti", "-gline-tables-only", "-fno-discard-value-names", "-Wno-everything"),
)
# Unrolling is asked for by the source; the limit is LLVM's. Merging stores is not asked for.
LLVM_OPTIONS = (
    "-pragma-unroll-threshold=100000000",
    "-unroll-allow-peeling=false",
    "-simplifycfg-merge-cond-stores=false",
    "-simplifycfg-hoist-cond-stores=false",
)
CONSTANTS = (
    "LATENCY",
    "SUM_DISTANCE",
    "DRAIN_CYCLES",
    "QUEUE_DISTANCE",
    "ROWS",
    "LANES",
    "ENGINES",
    "CLOCK_MHZ",
)
NOT_INLINED = "noinline"
TURNS = 2  # what unrolling an outer loop makes constant, the inner ones may need


@dataclass(frozen=True)
class CompiledSource:
    """The source as clang sees it.

    Attributes
    ----------
    module : llvmlite.binding.ModuleRef
        Its IR, inlined and unrolled.
    preprocessed : str
        The source with macros expanded, and lines that tell where each part comes from.
    constants : dict of str to int
        Those of `CONSTANTS` that it defines, and the distances and latencies of its pragmas.
    ways : int
        In how many ways calls lead to the function with the machine's loop.
    """

    module: object
    preprocessed: str
    constants: dict[str, int]
    ways: int


def compile_source(unit: Path, include: tuple[Path, ...] = ()) -> CompiledSource:
    """Compile one translation unit.

    Parameters
    ----------
    unit : Path
        The source file.
    include : tuple of Path
        Folders of its headers, beside its own.

    Raises
    ------
    BttlabError
        If clang or llvmlite is missing, or the source does not compile.
    """
    if not unit.is_file():
        raise BttlabError(f"no source {unit}: give the folder that has it with --source")
    folders = [f"-I{folder}" for folder in (unit.parent, *include)]
    text = _clang("-S", "-emit-llvm", *folders, "-o", "-", str(unit))
    preprocessed = _clang("-E", *folders, "-o", "-", str(unit))
    root = root_function(text, read_pragmas(preprocessed))
    module = _simplified(text, root)
    return CompiledSource(
        module, preprocessed, _constants(unit, folders, preprocessed), ways_to(text, root) if root else 1
    )


def compile_function(unit: Path, name: str) -> tuple[object, str]:
    """Return a module in which one function has all others inlined, and the preprocessed source.

    Control flow is simplified and equal values are merged: what is built of it does one thing after the other.
    """
    module = _simplified(_clang("-S", "-emit-llvm", "-o", "-", str(unit)), name)
    llvm = _llvm()
    passes = llvm.create_new_module_pass_manager()
    passes.add_simplify_cfg_pass()
    passes.add_sroa_pass()
    passes.add_new_gvn_pass()
    passes.add_simplify_cfg_pass()
    passes.add_sccp_pass()
    passes.add_aggressive_dce_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, _pass_builder())
    return module, _clang("-E", "-o", "-", str(unit))


def _clang(*arguments: str, check: bool = True) -> str:
    if shutil.which(CLANG) is None:
        raise BttlabError(f"{CLANG} is not installed, and the schedule is read from its IR: apt install clang-16")
    done = subprocess.run([CLANG, *FLAGS, *arguments], capture_output=True, text=True, check=False)
    if done.returncode and check:
        errors = [line for line in done.stderr.splitlines() if "error:" in line] or done.stderr.splitlines()[-1:]
        raise BttlabError(f"{CLANG}: {errors[0] if errors else f'exit code {done.returncode}'}")
    return done.stdout


def _constants(unit: Path, folders: list[str], preprocessed: str) -> dict[str, int]:
    """Let clang evaluate the constants that the source defines, and the distances and latencies of its pragmas."""
    wanted = [name for name in CONSTANTS if re.search(rf"\b{name} = ", preprocessed)]
    asked = {p.values[name] for p in read_pragmas(preprocessed) for name in ("distance", "min") if name in p.values}
    wanted += sorted(text for text in asked if not text.isdigit() and text not in wanted)
    if not wanted:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe.cpp"
        lines = [f"extern const int schedule_{i} = {text};" for i, text in enumerate(wanted)]
        probe.write_text("\n".join([f'#include "{unit.resolve()}"', 'extern "C" {', *lines, "}"]), encoding="utf-8")
        text = _clang("-S", "-emit-llvm", *folders, "-o", "-", str(probe))
    values = dict(re.findall(r"^@schedule_(\d+) = .*?constant i32 (-?\d+)", text, re.MULTILINE))
    return {text: int(values[str(i)]) for i, text in enumerate(wanted) if str(i) in values}


@cache
def _llvm():
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for option in LLVM_OPTIONS:
        llvm.set_option("", option)
    return llvm


def _pass_builder():
    machine = _llvm().Target.from_default_triple().create_target_machine()
    return _llvm().create_pass_builder(machine, _llvm().create_pipeline_tuning_options(0))


def _simplified(text: str, root: str | None):
    llvm = _llvm()
    module = llvm.parse_assembly(text)
    functions = {function.name: function for function in module.functions if not function.is_declaration}
    for name, function in functions.items():
        attributes = b" ".join(function.attributes).decode()
        if name == root:
            function.linkage = "external"
            function.add_function_attribute("noinline")
        elif NOT_INLINED not in attributes.split():
            function.add_function_attribute("alwaysinline")
        if root and name != root:
            function.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    _add_unrolling(passes)  # of each function by itself: in the whole loop it takes several times as long
    passes.add_always_inliner_pass()
    if root:
        passes.add_global_dead_code_eliminate_pass()
    for _ in range(TURNS):
        _add_unrolling(passes)
    passes.add_sccp_pass()
    passes.add_aggressive_dce_pass()
    passes.run(module, _pass_builder())
    return module


def _add_unrolling(passes) -> None:
    passes.add_sroa_pass()
    passes.add_sccp_pass()
    passes.add_loop_simplify_pass()
    passes.add_lcssa_pass()
    passes.add_loop_rotate_pass()
    passes.add_loop_unroll_pass()
    passes.add_sccp_pass()
    passes.add_sroa_pass()
