"""The native code under sanitizers: at the kernel's port, and over an epoch."""

import os
import subprocess
import tempfile
from pathlib import Path

from bttlab.card.build import HLS_SOURCE
from bttlab.card.compiled import compiled_program
from bttlab.card.image import IMAGES
from bttlab.compiler.machine import M
from bttlab.model import ModelConfig
from reliability.outcome import Outcome

from build_library import COMPILER
from training_processor import SMALL

SANITIZERS = "AddressSanitizer and UndefinedBehaviorSanitizer"
FLAGS = "-std=c++17 -g1 -ffp-contract=off -Wno-psabi -DBTTLAB_FAST"
# Labels of padding are any number of the host's; what is subtracted from them wraps, and is compared only.
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize=signed-integer-overflow", "-fno-sanitize-recover=all")
STATUSES = M.statuses
PARTS = 1000  # calls of a program: a failure is known to that


def fuzz(count: int) -> Outcome:
    """Call the kernel `count` times with arguments, records and programs of garbage."""
    failures, seen = [], [0] * len(STATUSES)
    with tempfile.TemporaryDirectory() as scratch:
        # Optimised it takes a minute to compile, and is four times as fast.
        program = _built(SMALL, Path(scratch), "-O0" if count <= PARTS else "-O1")
        for first in range(0, count, PARTS):
            calls = min(PARTS, count - first)
            fault, output = _run(program, "fuzz", calls, first + 1)
            if fault:
                failures.append(f"calls from {first}: {fault}")
            else:
                seen = [a + int(b) for a, b in zip(seen, output.splitlines()[0].split(), strict=True)]
    tried = (
        "The kernel called with any command, number of samples, optimizer and constants, with tokens, lengths, labels "
        "and parameters spoilt, and every 100 calls with ten spoilt programs, in buffers of exactly the bytes that a "
        f"call reaches, under {SANITIZERS}: every sample has a status, and no byte outside is touched"
    )
    figures = {f"samples {name}": number for name, number in zip(STATUSES, seen, strict=True)}
    return Outcome("no index out of range", tried, count, failures, figures)


def epoch(count: int) -> Outcome:
    """Train on `count` samples with the program of 2-ENC."""
    with tempfile.TemporaryDirectory() as scratch:
        fault, _ = _run(_built(ModelConfig(), Path(scratch), "-O1"), "train", count, 1)
    tried = (
        f"Training on random samples of 2 to {ModelConfig().sequence_length} tokens, each of the optimizers in turn "
        f"(2 encoders), under {SANITIZERS}"
    )
    return Outcome("native code is clean", tried, count, [f"training: {fault}"] if fault else [], {"samples": count})


def races(count: int) -> Outcome:
    """Train on `count` samples with two host threads, under ThreadSanitizer."""
    sanitize = ("-fsanitize=thread", "-DBTTLAB_SPINS=1000000")
    with tempfile.TemporaryDirectory() as scratch:
        fault, output = _run(_built(SMALL, Path(scratch), "-O1", sanitize), "train", count, 1)
    failures = [f"training: {fault}"] if fault else []
    runs = int(output.splitlines()[-1].split()[0]) if output else 0
    if runs < count:
        failures.append(f"{runs} of {count} samples by two threads")
    tried = (
        f"Training on random samples of 2 to {SMALL.sequence_length} tokens, each of the optimizers in turn, by two "
        "host threads that share the instructions, under ThreadSanitizer: no vector is accessed by both, one of them "
        "writing, without a wait in between"
    )
    return Outcome("no data race", tried, count, failures, {"samples by two threads": runs})


def _built(model: ModelConfig, folder: Path, level: str, sanitize: tuple[str, ...] = SANITIZE) -> tuple[Path, Path]:
    """The port's program, and the file with the image of a model."""
    port, image = folder / "port", folder / "image"
    image.write_bytes(compiled_program(model).image.tobytes())
    flags = [level, *FLAGS.split(), *sanitize, "-pthread", *IMAGES[-1].flags]
    subprocess.run([COMPILER, *flags, str(HLS_SOURCE / "testbench" / "port.cpp"), "-o", str(port)], check=True)
    return port, image


def _run(program: tuple[Path, Path], *arguments: object) -> tuple[str, str]:
    """Run a program; returns what the sanitizers, or it, said of a fault, and its output."""
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    port, image = program
    done = subprocess.run([port, *map(str, arguments), image], capture_output=True, text=True, env=environment)
    if done.returncode == 0:
        return "", done.stdout
    said = [
        line
        for line in done.stderr.splitlines()
        if any(word in line for word in ("ERROR", "runtime error", "data race"))
    ]
    return said[0] if said else done.stdout[-200:] or f"exit code {done.returncode}", done.stdout
