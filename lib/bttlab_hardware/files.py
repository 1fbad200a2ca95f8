"""Write the loop's Verilog with the cores that it uses, and its interface for the testbench."""

import hashlib
import re
from pathlib import Path

from bttlab.util.files import write_file
from bttlab_hardware import latencies
from bttlab_hardware.analyse import Schedule
from bttlab_hardware.memories import Memory
from bttlab_hardware.rtl import CORE_FOLDER, LoopVerilog, emit
from bttlab_hardware.verilog import TOP


def write_loop(schedule: Schedule, folder: Path) -> dict[str, str]:
    """Write machine_loop.v, machine_loop.h and the cores into a folder; return the text of each file."""
    loop = emit(schedule)
    files = {f"{TOP}.v": loop.text, f"{TOP}.h": _interface(loop)}
    files |= {core.name: core.read_text(encoding="utf-8") for core in sorted(CORE_FOLDER.glob("*.v"))}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_file(folder / name, text)
    return files


def module_digests(files: dict[str, str]) -> dict[str, str]:
    """Return the SHA-256, without comments, of each module that Yosys counts and of the modules that it instantiates.

    `files` is the result of `write_loop`.
    """
    below = files["delay.v"] + files["memory.v"]
    used = sorted(set(re.findall(r"^  (fp32_\w+) #", files[f"{TOP}.v"], re.MULTILINE)))
    texts = {name: files[f"{name}.v"] + files["fp32_round.v"] + below for name in used}
    texts |= {name: text + below for name, text in _modules(files).items() if name != TOP}
    return {name: hashlib.sha256(re.sub(r" *//.*", "", text).encode()).hexdigest() for name, text in texts.items()}


def module_text(files: dict[str, str], name: str) -> str:
    """Return the Verilog of a module, without those that it instantiates."""
    return _modules(files).get(name) or files[f"{name}.v"]


def _modules(files: dict[str, str]) -> dict[str, str]:
    """Return the texts of the loop's modules, from the name on."""
    return {text.split(" ", 1)[0]: text for text in files[f"{TOP}.v"].split("\nmodule ")[1:]}


def _interface(loop: LoopVerilog) -> str:
    """Return a C header with the loop's memories, inputs and results as macros, and its stages."""

    def variable(memory: Memory) -> str:
        return memory.variable + "".join(f"[{place}]" for place in memory.places if place is not None)

    lists = {
        "READ": [(bit, variable(memory), memory.words) for bit, memory in enumerate(loop.host_writes)],
        "WRITTEN": [
            (port, variable(memory), memory.words, latencies.read_cycles(memory.implementation, memory.latency))
            for memory, port in loop.host_reads.items()
        ],
        "INPUTS": loop.inputs,
        "RESULTS": loop.results,
    }
    lines = [
        "// The loop's memories, inputs and results, and its stages; made by: make rtl",
        f"#define LOOP_STAGES {loop.stages}",
        f"#define LOOP_RETURNED {loop.returned}",
    ]
    for name, entries in lists.items():
        lines += [f"#define LOOP_{name}(ENTRY) \\"]
        lines += [*(f"    ENTRY({', '.join(map(str, entry))}) \\" for entry in entries), ""]
    return "\n".join(lines)
