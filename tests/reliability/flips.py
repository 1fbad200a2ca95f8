"""A bit of each kind of file turned round: refused, read as before, or read as another value without a word."""

import contextlib
import io
import random
import shutil
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bttlab.card import EmulatedU50
from bttlab.card.manifest import digest, overlays_folder, read_file, read_manifest
from bttlab.runs import read_run
from bttlab.runs.checkpoint import pack, read_checkpoint
from bttlab.runs.metrics import METRICS_FILE, read_lines
from bttlab.util.errors import BttlabError
from reliability.outcome import Outcome, attempts
from tiny_runs import train, write_corpus

OVERLAY = "trainer.xclbin"


def trial(count: int) -> Outcome:
    """Turn `count` bits round, in each kind of file in turn.

    A failure is an error that is no line for the user, and a bit that nobody notices in a file with a digest: a
    checkpoint or an overlay.
    """
    draw = random.Random(0)
    failures: list[str] = []
    found = {kind: {"refused or named": 0, "the same values": 0, "other values": 0} for kind in KINDS}
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
        folder = Path(name)
        train(folder / "run", write_corpus(folder / "corpus"), epochs=2)
        for file in ("manifest.json", OVERLAY):
            shutil.copy(overlays_folder() / file, folder / "run")
        sound = {kind: KINDS[kind](folder / "run") for kind in KINDS}
        for number in attempts(count):
            kind = list(KINDS)[number % len(KINDS)]
            path = folder / "run" / kind
            data = path.read_bytes()
            place, bit = draw.randrange(len(data)), draw.randrange(8)
            path.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
            try:
                value = KINDS[kind](folder / "run")
                result = "the same values" if value == sound[kind] else "other values"
            except BttlabError:
                result = "refused or named"
            except Exception as error:  # what a user would see as a traceback
                result = "refused or named"
                failures.append(f"{kind}, bit {bit} of byte {place}: {traceback.format_exception_only(error)[-1]}")
            finally:
                path.write_bytes(data)
            found[kind][result] += 1
            if result == "other values" and kind in (OVERLAY, "checkpoint.safetensors"):
                failures.append(f"{kind}, bit {bit} of byte {place}: read as another value")
    counts = {kind: ", ".join(f"{times} {what}" for what, times in row.items() if times) for kind, row in found.items()}
    return Outcome(number + 1, failures, {kind: counted for kind, counted in counts.items() if counted})


def _checkpoint(folder: Path) -> bytes:
    return pack(read_checkpoint(folder / "checkpoint.safetensors"))


def _metrics(folder: Path) -> Any:
    lines, faults = read_lines(folder / METRICS_FILE)
    if faults:
        raise BttlabError(faults[0])
    return lines


def _overlay(folder: Path) -> str:
    sha256 = digest(read_file(folder / OVERLAY))
    EmulatedU50.check_trusted(folder / OVERLAY, sha256)
    return sha256


KINDS: dict[str, Callable[[Path], Any]] = {
    "checkpoint.safetensors": _checkpoint,
    "run.json": lambda folder: asdict(read_run(folder)),
    METRICS_FILE: _metrics,
    "manifest.json": read_manifest,
    OVERLAY: _overlay,
}
