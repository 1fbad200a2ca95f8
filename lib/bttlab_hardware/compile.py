"""Compile the synthesis source to LLVM IR, with all functions inlined and all loops unrolled that the source unrolls.

clang compiles, llvmlite reads the IR. Only the passes run that HLS needs, too, to see a pipelined loop: inlining, SROA,
constant propagation, unrolling. No pass merges, hoists or sinks loads or stores, so the IR has the same memory accesses
as the source.
"""

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bttlab.util.errors import BttlabError
from bttlab_hardware.pragmas import read_pragmas
from bttlab_hardware.root import call_paths_to, root_function

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
# Raise LLVM's limit on loops that the source unrolls, and switch off passes that merge stores.
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
UNROLL_PASSES = 2  # unrolling an outer loop can make the bounds of inner loops constant


@dataclass(frozen=True)
class CompiledSource:
    """A compiled source.

    Attributes
    ----------
    module : llvmlite.binding.ModuleRef
        Its IR, inlined and unrolled.
    preprocessed : str
        The preprocessed source, with line markers.
    constants : dict of str to int
        The constants of `CONSTANTS` that it defines, and the distances and latencies of its pragmas.
    call_paths : int
        Number of call paths to the function with the machine's loop.
    """

    module: object
    preprocessed: str
    constants: dict[str, int]
    call_paths: int


def compile_source(unit: Path, include: tuple[Path, ...] = ()) -> CompiledSource:
    """Compile one translation unit.

    Parameters
    ----------
    unit : Path
        The source file.
    include : tuple of Path
        Further folders of headers.

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
        module, preprocessed, _constants(unit, folders, preprocessed), call_paths_to(text, root) if root else 1
    )


def compile_function(unit: Path, name: str) -> tuple[object, str]:
    """Compile one function with all others inlined; return the module and the preprocessed source.

    Control flow is simplified and equal values are merged: the function becomes a sequential state machine.
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
        raise BttlabError(f"{CLANG} is not installed; the schedule needs its IR: apt install clang-16")
    done = subprocess.run([CLANG, *FLAGS, *arguments], capture_output=True, text=True, check=False)
    if done.returncode and check:
        errors = [line for line in done.stderr.splitlines() if "error:" in line] or done.stderr.splitlines()[-1:]
        raise BttlabError(f"{CLANG}: {errors[0] if errors else f'exit code {done.returncode}'}")
    return done.stdout


def _constants(unit: Path, folders: list[str], preprocessed: str) -> dict[str, int]:
    """Evaluate, with clang, the constants that the source defines, and the distances and latencies of its pragmas."""
    expressions = [name for name in CONSTANTS if re.search(rf"\b{name} = ", preprocessed)]
    pragma_values = {
        p.values[name] for p in read_pragmas(preprocessed) for name in ("distance", "min") if name in p.values
    }
    expressions += sorted(text for text in pragma_values if not text.isdigit() and text not in expressions)
    if not expressions:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe.cpp"
        lines = [f"extern const int schedule_{i} = {text};" for i, text in enumerate(expressions)]
        probe.write_text("\n".join([f'#include "{unit.resolve()}"', 'extern "C" {', *lines, "}"]), encoding="utf-8")
        text = _clang("-S", "-emit-llvm", *folders, "-o", "-", str(probe))
    values = dict(re.findall(r"^@schedule_(\d+) = .*?constant i32 (-?\d+)", text, re.MULTILINE))
    return {text: int(values[str(i)]) for i, text in enumerate(expressions) if str(i) in values}


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
    _add_unrolling(passes)  # before inlining: unrolling the whole loop takes several times as long
    passes.add_always_inliner_pass()
    if root:
        passes.add_global_dead_code_eliminate_pass()
    for _ in range(UNROLL_PASSES):
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
