"""Count the machine's Verilog with Yosys, unit by unit, into data/u50/synthesis.json: make synth.

Yosys maps each unit to UltraScale+ (`synth_xilinx -family xcup`) with the FP32 cores as black boxes, which it counts,
and each core once. Memories and delays of a unit are mapped once for each size and counted as often as they are there.
Nothing is placed or routed.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from bttlab.files import replace_whole
from bttlab.hardware import SOURCE, UNIT, analyse
from bttlab.hardware.kernel import module_digests, write_kernel
from bttlab.hardware.synthesis import FILE as RECORD

KINDS = {  # of Yosys' cells, and how many of the resource one is
    **{f"LUT{n}": ("lookup_tables", 1) for n in range(1, 7)},
    **{"INV": ("lookup_tables", 1), "SRL16E": ("shift_registers", 1), "SRLC32E": ("shift_registers", 1)},
    **{"RAM32M": ("memory_tables", 4), "RAM32M16": ("memory_tables", 8), "RAM64M": ("memory_tables", 4)},
    **{"RAM64M8": ("memory_tables", 8), "RAM32X1D": ("memory_tables", 2), "RAM64X1D": ("memory_tables", 2)},
    **{"RAM128X1D": ("memory_tables", 4), "RAM256X1D": ("memory_tables", 8)},
    **{"CARRY4": ("carry_chains", 0.5), "CARRY8": ("carry_chains", 1), "DSP48E2": ("dsps", 1)},
    **{"RAMB18E2": ("bram36", 0.5), "RAMB36E2": ("bram36", 1), "URAM288": ("uram", 1)},
    **{f"MUXF{n}": ("wide_multiplexers", 1) for n in (7, 8, 9)},
    **{name: ("flip_flops", 1) for name in ("FDRE", "FDSE", "FDCE", "FDPE")},
}


def count(folder: Path, top: str) -> tuple[str, dict[str, float]]:
    """Return a module's name, what Yosys makes of a module, and how many cores it has of each kind."""
    commands = [
        f"read_verilog {folder}/*.v",
        f"hierarchy -check -top {top}",
        *(
            []
            if top.startswith("fp32_")
            else ["blackbox *fp32_*", "setattr -mod -set keep_hierarchy 1 *memory* *delay*"]
        ),
        f"synth_xilinx -family xcup -uram -noiopad -noclkbuf -flatten -top {top}",
        f"tee -o {folder}/{top}.json stat -json",
    ]
    with (folder / f"{top}.log").open("w") as log:
        subprocess.run(["yosys", "-p", "; ".join(commands)], stdout=log, stderr=subprocess.STDOUT, check=True)
    text = (folder / f"{top}.json").read_text()  # Yosys mixes lines of its own into the modules' part
    made: Counter = Counter()
    for cell, number in json.loads("{" + text[text.index('"design": {') :])["design"]["num_cells_by_type"].items():
        if core := re.search(r"fp32_\w+", cell):
            made[core[0]] += number
        elif cell in KINDS:
            resource, each = KINDS[cell]
            made[resource] += each * number
        elif not cell.startswith("$paramod") and cell != "BUFG":
            raise ValueError(f"{top} has {number} cells {cell}, which KINDS does not name")
    return top, {name: int(number) if number == int(number) else number for name, number in sorted(made.items())}


def known() -> dict[str, dict]:
    """Return the modules on record."""
    return json.loads(RECORD.read_text(encoding="utf-8"))["modules"] if RECORD.exists() else {}


def main(wanted: list[str]) -> None:
    """Count the modules that have changed since they were counted, or those that are named; keep the others."""
    folder = Path(tempfile.mkdtemp(prefix="synth-"))
    digests = module_digests(write_kernel(analyse(SOURCE / UNIT), folder))
    version = subprocess.run(["yosys", "-V"], capture_output=True, text=True, check=True).stdout.split(" (")[0]
    due = wanted or [name for name, digest in digests.items() if known().get(name, {}).get("sha256") != digest]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for ended in as_completed([pool.submit(count, folder, name) for name in due]):
            name, counts = ended.result()
            print(f"{name}: {counts}", file=sys.stderr, flush=True)
            modules = known() | {name: {"sha256": digests[name], "tool": version, **counts}}
            record = {
                "about": "What Yosys maps the Verilog of bttlab rtl to (UltraScale+), units without cores: make synth",
                "provenance": "modelled",
                "modules": {name: modules[name] for name in digests if name in modules},
            }
            replace_whole(RECORD, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
