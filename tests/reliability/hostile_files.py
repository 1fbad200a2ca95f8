"""Files made to do harm: read them, and nothing but an error of our own, or correct work, comes of it."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bttlab.util.quantities import measured
from reliability.hostile_worker import MOST_SECONDS
from reliability.outcome import Outcome
from subprocess_env import environment

WHAT = {
    "overlay": "overlays (.xclbin), as the emulated card reads them",
    "manifest": "manifests of overlays",
    "checkpoint": "checkpoints, every other one with a forged digest",
    "corpus": "corpora",
}


def trial(target: str, count: int) -> Outcome:
    """Give `count` hostile inputs to a reader.

    Parameters
    ----------
    target : {"overlay", "manifest", "checkpoint", "corpus"}
    count : int
    """
    failures: list[str] = []
    accepted, slowest, grown, first = 0, 0.0, 0, 1
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        while first <= count:
            command = [sys.executable, "-m", "reliability.hostile_worker", target, str(first), str(count), folder]
            process = subprocess.run(command, capture_output=True, text=True, env=environment())
            for line in map(json.loads, process.stdout.splitlines()):
                if "fault" in line:
                    failures.append(f"input {line['number']}: {line['fault']}")
                else:
                    accepted += line["accepted"]
                    slowest, grown = max(slowest, line["slowest"]), max(grown, line["grown_bytes"])
            if process.returncode == 0:
                break
            if process.returncode > 0:
                raise RuntimeError(f"the worker failed: {process.stderr}")
            number = int.from_bytes((Path(folder) / "number").read_bytes(), "little")
            failures.append(f"input {number}: the interpreter was ended by signal {-process.returncode}")
            first = number + 1
    tried = (
        f"mutated {WHAT[target]}, by bytes and by structure, given to the reader in a process with {MOST_SECONDS} s "
        "for each and 1 GiB of address space: one clear error of our own type, or correct work; nothing executed or "
        "written (audit hook)"
    )
    figures = {
        "refused": count - accepted - len(failures),
        "read": accepted,
        "slowest": measured(slowest, "s", "time.perf_counter"),
        "most memory for a read": measured(grown / 2**20, "MiB", "VmHWM of the process, reset before each"),
    }
    return Outcome(f"hostile files: {target}", tried, count, failures, figures)


def _memory() -> str | None:
    """A folder in memory, where there is one: a disk has better things to do."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
