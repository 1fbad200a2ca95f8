"""python -m reliability.hostile_worker TARGET FIRST LAST FOLDER: a process in which hostile files are read.

It prints a line of JSON for every input that is neither read nor refused as it should be, and a summary. A hang or a
crash ends it; the number of the input is in the file "number" of the folder then.
"""

import json
import mmap
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path

from bttlab.util.errors import BttlabError
from reliability.hostile_targets import TARGETS

MOST_SECONDS = 5
MOST_BYTES = 1 << 30
MOST_CHARACTERS = 3000  # of a clear message
EXECUTES = (
    "exec",
    "compile",
    "ctypes.dlopen",
    "marshal.loads",
    "pickle.find_class",
    "subprocess.Popen",
    "socket.connect",
)
STATUS, RESET_PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def main(target_name: str, first: int, last: int, folder: Path) -> None:
    """Read hostile inputs number `first` to `last`, both included."""
    files = folder / "files"
    files.mkdir(exist_ok=True)
    target = TARGETS[target_name](files)
    target.restore()
    target.read()  # a sound one: imports what is needed, too
    with (folder / "number").open("w+b") as file:
        file.truncate(8)
        number_there = mmap.mmap(file.fileno(), 8)
    events: list[str] = []
    reading = False

    def watch(event: str, arguments: tuple) -> None:
        if reading and (
            event in EXECUTES
            or (event.startswith("os.") and event not in ("os.scandir", "os.listdir"))
            or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES)
        ):
            events.append(f"{event} {arguments}"[:200])

    sys.addaudithook(watch)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    accepted, slowest, grown = 0, 0.0, 0
    for number in range(first, last + 1):
        number_there[:] = number.to_bytes(8, "little")
        target.write(random.Random(f"{target_name} {number}"))
        fault = ""
        RESET_PEAK.write_text("5")  # to what is resident now: writing a file of 3 GiB takes memory, too
        held = _peak()
        signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)  # ends the process, whatever code it is in
        begin, reading = time.perf_counter(), True
        try:
            target.read()
            accepted += 1
        except BttlabError as error:
            message = str(error)
            if len(message) > MOST_CHARACTERS or not message.isprintable():
                fault = f"an unclear message of {len(message)} characters: {message[:100]!r}"
        except BaseException as error:
            fault = f"{type(error).__name__}: {str(error)[:200]}"
        reading = False
        slowest = max(slowest, time.perf_counter() - begin)
        signal.setitimer(signal.ITIMER_REAL, 0)
        grown = max(grown, _peak() - held)
        if events:
            fault = f"it executed or wrote: {events.pop(0)}"
            events.clear()
        if fault:
            print(json.dumps({"number": number, "fault": fault}), flush=True)
    print(json.dumps({"accepted": accepted, "slowest": slowest, "grown_bytes": grown}), flush=True)


def _peak() -> int:
    """The most bytes that were resident at a time since the last reset."""
    return 1024 * int(STATUS.read_text().partition("VmHWM:")[2].split()[0])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
