"""Compile the synthesis source to LLVM IR, with all functions inlined and all loops unrolled that the source unrolls.

clang compiles, llvmlite reads the IR. Only the passes run that HLS needs, too, to see a pipelined loop: inlining, SROA,
constant propagation, unrolling. No pass merges, hoists or sinks loads or stores, so the IR has the same memory accesses
as the source.
"""

import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bttlab.compiler.machine import value_of
from bttlab.util.errors import BttlabError

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
NOT_INLINED = "noinline"
UNROLL_PASSES = 2  # unrolling an outer loop can make the bounds of inner loops constant


@dataclass(frozen=True)
class CompiledSource:
    """A compiled source: its IR, inlined and unrolled, and the preprocessed text with line markers.

    `root` is the name in the module of the function `run`, which has the machine's loop.
    """

    module: object
    root: str
    preprocessed: str
    constants: dict[str, int]
    call_paths: int


def compile_source(unit: Path, clock_mhz: int | None = None) -> CompiledSource:
    """Compile a source for a clock in MHz, by default that of its configuration."""
    arguments = [] if clock_mhz is None else [f"-DBTTLAB_CLOCK_MHZ={clock_mhz}"]
    preprocessed = _clang("-E", "-o", "-", *arguments, str(unit))
    module = _llvm().parse_assembly(_clang("-S", "-emit-llvm", "-o", "-", *arguments, str(unit)))
    root = next((f.name for f in module.functions if re.fullmatch(r"run|_ZL?3run\w*", f.name)), None)
    if root is None:
        raise BttlabError(f"{unit} has no function run, which has the machine's loop")
    paths = _call_paths(module, root)
    _simplify(module, root)
    return CompiledSource(module, root, preprocessed, _constants(preprocessed), paths)


def _clang(*arguments: str) -> str:
    if shutil.which(CLANG) is None:
        raise BttlabError(f"{CLANG} is not installed; the schedule needs its IR: apt install clang-16")
    done = subprocess.run([CLANG, *FLAGS, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error:" in line] or done.stderr.splitlines()[-1:]
        raise BttlabError(f"{CLANG}: {errors[0] if errors else f'exit code {done.returncode}'}")
    return done.stdout


def _constants(preprocessed: str) -> dict[str, int]:
    """Return the constants of a source that are integers, or computed from other constants and integers."""
    constants: dict[str, int] = {}
    for line in re.findall(r"^constexpr int [^;]*;", preprocessed, re.MULTILINE):
        for name, expression in re.findall(r"(\w+) = ([^,;]+)[,;]", line):
            with suppress(KeyError, SyntaxError):
                constants[name] = value_of(expression, constants)
    return constants


def _call_paths(module, name: str) -> int:
    calls = ((f.name, i) for f in module.functions for block in f.blocks for i in block.instructions)
    callers = [caller for caller, i in calls if i.opcode == "call" and [*i.operands][-1].name == name]
    return sum(_call_paths(module, caller) for caller in callers) or 1


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


def _simplify(module, root: str) -> None:
    """Inline everything into a function, and unroll its loops."""
    functions = {function.name: function for function in module.functions if not function.is_declaration}
    for name, function in functions.items():
        attributes = b" ".join(function.attributes).decode()
        if name == root:
            function.linkage = "external"
            function.add_function_attribute("noinline")
        elif NOT_INLINED not in attributes.split():
            function.add_function_attribute("alwaysinline")
        if name != root:
            function.linkage = "internal"
    passes = _llvm().create_new_module_pass_manager()
    _add_unrolling(passes)  # before inlining: unrolling the whole loop takes several times as long
    passes.add_always_inliner_pass()
    passes.add_global_dead_code_eliminate_pass()
    for _ in range(UNROLL_PASSES):
        _add_unrolling(passes)
    passes.add_sccp_pass()
    passes.add_aggressive_dce_pass()
    passes.run(module, _pass_builder())


def _add_unrolling(passes) -> None:
    passes.add_sroa_pass()
    passes.add_sccp_pass()
    passes.add_loop_simplify_pass()
    passes.add_lcssa_pass()
    passes.add_loop_rotate_pass()
    passes.add_loop_unroll_pass()
    passes.add_sccp_pass()
    passes.add_sroa_pass()
