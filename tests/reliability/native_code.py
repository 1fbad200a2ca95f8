"""The native code under sanitizers: at the kernel's port, in its testbenches, and over an epoch."""

import os
import subprocess
import tempfile
from pathlib import Path

from bttlab.model import ModelConfig
from bttlab.u50.build import HLS_SOURCE, model_flags
from bttlab.u50.native import IMAGES
from bttlab.u50.records import STATUS
from reliability.outcome import Outcome
from test_testbenches import ODD

SANITIZERS = "AddressSanitizer and UndefinedBehaviorSanitizer"
FLAGS = "-std=c++17 -O1 -g -ffp-contract=off -Wno-unknown-pragmas -Wno-unused-label"
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
PARTS = 1000  # calls of a program: a failure is known to that


def fuzz(count: int) -> Outcome:
    """Call the kernel `count` times with arguments and records of garbage."""
    failures, seen = [], [0] * len(STATUS)
    with tempfile.TemporaryDirectory() as scratch:
        program = _built("port", ODD, Path(scratch))
        for first in range(0, count, PARTS):
            calls = min(PARTS, count - first)
            fault, output = _run(program, "fuzz", calls, first + 1)
            if fault:
                failures.append(f"calls from {first}: {fault}")
            else:
                seen = [a + int(b) for a, b in zip(seen, output.split(), strict=True)]
    tried = (
        "The kernel called with any command, number of samples, optimizer and constants, and with tokens, lengths, "
        f"labels and parameters spoilt, in buffers of exactly the bytes that a call reaches, under {SANITIZERS}: every "
        "sample has a status, and no byte outside is touched"
    )
    figures = {f"samples {name}": number for name, number in zip(STATUS, seen, strict=True)}
    return Outcome("no index out of range", tried, count, failures, figures)


def epoch(count: int) -> Outcome:
    """Run the testbenches, then train on `count` samples with the model of train_enc2."""
    failures = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("test_functions", "test_engine", "test_layers"):
            fault, _ = _run(_built(name, ODD, Path(scratch)))
            if fault:
                failures.append(f"{name}: {fault}")
        fault, _ = _run(_built("port", ModelConfig(encoders=2), Path(scratch)), "train", count, 1)
        if fault:
            failures.append(f"training: {fault}")
    tried = (
        f"The three C++ testbenches, and training on random samples of 2 to {ModelConfig().sequence_length} tokens "
        f"with each of the optimizers in turn (2 encoders), under {SANITIZERS}"
    )
    return Outcome("native code is clean", tried, count, failures, {"testbenches": 3, "samples": count})


def _built(name: str, model: ModelConfig, folder: Path) -> Path:
    program = folder / name
    source = HLS_SOURCE / "testbench" / f"{name}.cpp"
    includes = [f"-I{HLS_SOURCE}", f"-I{HLS_SOURCE / 'emulation'}"]
    flags = [*FLAGS.split(), *SANITIZE, *IMAGES[-1].flags, *model_flags(model), *includes]
    subprocess.run(["g++", *flags, str(source), "-o", str(program)], check=True)
    return program


def _run(program: Path, *arguments: object) -> tuple[str, str]:
    """Run a program; returns what the sanitizers, or it, said of a fault, and its output."""
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, env=environment)
    if done.returncode == 0:
        return "", done.stdout
    said = [line for line in done.stderr.splitlines() if "ERROR" in line or "runtime error" in line]
    return said[0] if said else done.stdout[-200:] or f"exit code {done.returncode}", done.stdout
