"""Count the machine's Verilog with Yosys, unit by unit, into data/u50/synthesis.json: make synth.

Yosys maps each unit to UltraScale+ (`synth_xilinx -family xcup`) with FP32 cores, delays and memories as black boxes,
because it takes hours for wide modules. It maps each core, and each size of memory and of delay, once, and the tool
multiplies them by their number. Modules that are equal but for names are mapped once. Nothing is placed or routed.

Yosys 0.23 packs no register of the multiplier into a DSP48E2, and some into a DSP48E1: the multiplier is also mapped to
the 7 series (`-family xc7`), as the lower end of a range.
"""

import json
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from bttlab.estimate.synthesis import MULTIPLIER, SERIES_7, file_of
from bttlab.util.errors import BttlabError
from bttlab.util.files import write_file
from bttlab.util.terminal import say
from bttlab_hardware import SOURCE, UNIT, analyse
from bttlab_hardware.files import module_digests, module_text, write_loop
from bttlab_hardware.netlist import Depth, packed_tables, stage_of
from bttlab_hardware.verilog import TOP, shortest_shift

KINDS = {  # resource of each kind of Yosys cell, and how much of it a cell uses
    **{f"LUT{n}": ("lookup_tables", 1) for n in range(1, 7)},
    **{"INV": ("lookup_tables", 1), "SRL16E": ("shift_registers", 1), "SRLC32E": ("shift_registers", 1)},
    **{"RAM32M": ("memory_tables", 4), "RAM32M16": ("memory_tables", 8), "RAM64M": ("memory_tables", 4)},
    **{"RAM64M8": ("memory_tables", 8), "RAM32X1D": ("memory_tables", 2), "RAM64X1D": ("memory_tables", 2)},
    **{"RAM128X1D": ("memory_tables", 4), "RAM256X1D": ("memory_tables", 8), "RAM64X8SW": ("memory_tables", 8)},
    **{"RAM32X1S": ("memory_tables", 1), "RAM64X1S": ("memory_tables", 1), "RAM128X1S": ("memory_tables", 2)},
    **{"CARRY4": ("carry_chains", 0.5), "CARRY8": ("carry_chains", 1), "DSP48E2": ("dsps", 1)},
    "DSP48E1": ("dsps", 1),
    **{"RAMB18E2": ("bram36", 0.5), "RAMB36E2": ("bram36", 1), "URAM288": ("uram", 1)},
    **{f"MUXF{n}": ("wide_multiplexers", 1) for n in (7, 8, 9)},
    **{name: ("flip_flops", 1) for name in ("FDRE", "FDSE", "FDCE", "FDPE")},
}
UNCOUNTED = ("BUFG",)
# How synth_xilinx ends for units, without two of its steps. Its pass xilinx_dffopt moves a reset into each LUT before a
# flip-flop with an input free, where two functions would share the LUT. Vivado does so with resets of few flip-flops
# (UG901). And no function has nine inputs (MUXF9), which would take all LUTs of a slice. Cores are mapped by all of it.
MAP_LUTS = (
    *("opt_expr -mux_undef -noclkinv", "abc -luts 2:2,3,6:5,10,20", "clean", "techmap -map +/xilinx/ff_map.v"),
    *("xilinx_srl -fixed -minlen 3", "techmap -map +/xilinx/lut_map.v -map +/xilinx/cells_map.v -D LUT_WIDTH=6"),
    *("opt_lut_ins -tech xilinx", "clean"),
)
WIRES = {"delay": ".in(in)", "memory": ".load_address(in), .store(in[0]), .store_address(in), .stored(in)"}
BOXES = tuple(WIRES)
FAMILY = "xcup"  # UltraScale+, as Yosys calls it


def mapped(folder: Path, name: str, commands: list[str], family: str = FAMILY) -> dict[str, dict]:
    """Run Yosys commands that name a top, map it, and return all modules."""
    synthesis = f"synth_xilinx -family {family} -uram -noiopad -noclkbuf -flatten"
    steps = [synthesis] if name.startswith("fp32_") else [f"{synthesis} -run begin:map_luts", *MAP_LUTS]
    script = [*commands, *steps, f"write_json {name}.json"]
    with (folder / f"{name}.log").open("w") as log:
        subprocess.run(["yosys", "-p", "; ".join(script)], stdout=log, stderr=log, cwd=folder, check=True)
    return json.loads((folder / f"{name}.json").read_text())["modules"]


class Counts:
    """Resources of a folder's modules; memories and delays are mapped once for each size."""

    def __init__(self, folder: Path, latency_of: Mapping[str, int]) -> None:
        self._folder, self._latency_of, self._boxes, self._lock = folder, latency_of, {}, Lock()

    def map_module(self, top: str, family: str = FAMILY) -> dict:
        """Map a module with Yosys and return it. Cores, memories and delays are cells of it, except in a core."""
        files = sorted(path.name for path in self._folder.glob("*.v"))
        cores = [file for file in files if file.startswith(("fp32_", *BOXES))]
        read = [f"read_verilog {' '.join(cores)}"]
        if not top.startswith("fp32_"):
            read = [f"read_verilog -lib {' '.join(cores)}", f"read_verilog {' '.join(sorted({*files} - {*cores}))}"]
        latency = f" -chparam LATENCY {self._latency_of[top]}" if top in self._latency_of else ""
        commands = [*read, f"hierarchy -check -top {top}{latency}"]
        made = top_of(mapped(self._folder, top, commands, family))
        with self._lock:
            cells = (cell for cell in made["cells"].values() if cell["type"] in BOXES)
            boxes = {box_of(cell) for cell in cells if flip_flops_of(cell) is None}
            self._map_boxes(sorted(boxes - self._boxes.keys()))
        return made

    def of(self, module: dict) -> Counter:
        return self._sum({}, module["cells"])

    def _sum(self, modules: dict[str, dict], cells: dict[str, dict]) -> Counter:
        made = Counter(packed_tables=packed_tables(cells))
        for cell in cells.values():
            kind = cell["type"]
            if kind in BOXES:
                made.update(self._of_box(cell))
            elif kind.startswith("fp32_"):
                made[kind] += 1
            elif kind in KINDS:
                resource, each = KINDS[kind]
                made[resource] += each
            elif kind not in UNCOUNTED:
                if modules[kind]["attributes"].keys() & {"blackbox", "whitebox"}:  # a cell of Yosys' library
                    raise BttlabError(f"Yosys uses a cell {kind}, of which KINDS in {Path(__file__).name} has no cost")
                made += self._sum(modules, modules[kind]["cells"])
        return made

    def _of_box(self, cell: dict) -> dict[str, float]:
        if (waiting := flip_flops_of(cell)) is not None:
            return {"flip_flops": waiting}
        made = self._boxes[box_of(cell)]
        if cell["type"] == "delay" and made["memory_tables"]:  # a ring: memories are counted by their geometry, too
            made = made - Counter(memory_tables=made["memory_tables"]) + Counter(ring_tables=made["memory_tables"])
        return made

    def _map_boxes(self, boxes: list[str]) -> None:
        name = f"boxes_{len(self._boxes)}"
        lines = [f"  (* keep *) {box} box_{i} (.clock(clock), {WIRES[box.split()[0]]});" for i, box in enumerate(boxes)]
        text = "\n".join([f"module {name} (input wire clock, input wire [511:0] in);", *lines, "endmodule\n"])
        (self._folder / f"{name}.boxes").write_text(text)
        commands = [f"read_verilog delay.v memory.v {name}.boxes", f"hierarchy -check -top {name}"]
        modules = mapped(self._folder, name, [*commands, "setattr -mod -set keep_hierarchy 1 *memory* *delay*"])
        cells = top_of(modules)["cells"]
        for i, box in enumerate(boxes):
            self._boxes[box] = self._sum(modules, modules[cells[f"box_{i}"]["type"]]["cells"])


def top_of(modules: dict[str, dict]) -> dict:
    return next(module for module in modules.values() if int(module["attributes"].get("top", "0"), 2))


def box_of(cell: dict) -> str:
    """Return a delay or a memory as a Verilog instance."""
    values = {
        name: str(int(text, 2)) if re.fullmatch("[01]{32}", text) else f'"{text.strip()}"'
        for name, text in cell["parameters"].items()
    }
    return f"{cell['type']} #({', '.join(f'.{name}({value})' for name, value in sorted(values.items()))})"


def flip_flops_of(cell: dict) -> int | None:
    """Return the flip-flops of a delay that is too short for a shift register in Vivado, None for other cells.

    Yosys uses shift registers from three cycles on.
    """
    if cell["type"] != "delay":
        return None
    width, cycles = (int(cell["parameters"][name], 2) for name in ("WIDTH", "CYCLES"))
    return width * cycles if cycles < shortest_shift() else None


def count_modules(clock_mhz: int) -> None:
    """Count the loop that is scheduled for a clock, and its cores with the latencies that they have in it."""
    folder = Path(tempfile.mkdtemp(prefix="synth-"))
    files = write_loop(analyse(SOURCE / UNIT, clock_mhz=clock_mhz), folder)
    digests, latency_of = module_digests(files), latencies_in(files[f"{TOP}.v"])
    counts = Counts(folder, latency_of)
    version = subprocess.run(["yosys", "-V"], capture_output=True, text=True, check=True).stdout.split(" (")[0]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        modules = map_all(pool, counts, {name: module_text(files, name) for name in digests})
    loop = {name: module for name, module in modules.items() if f"\nmodule {name} (" in files[f"{TOP}.v"]}
    depth = Depth(loop)
    record = {}
    for name, module in modules.items():
        levels, place = (depth if name in loop else Depth({name: module})).deepest(name)
        made = dict(counts.of(module), levels=levels)
        if name in loop:
            made["stage_of_levels"] = stage_of(place, files[f"{TOP}.v"])
        if name in latency_of:
            made["latency"] = latency_of[name]
        numbers = {kind: int(n) if n == int(n) else n for kind, n in sorted(made.items())}
        record[name] = {"sha256": digests[name], "tool": version, **numbers}
        if name == MULTIPLIER:
            record[name][SERIES_7] = dict(sorted(counts.of(counts.map_module(name, SERIES_7)).items()))
        say(f"{name}: {record[name]}")
    about = "What Yosys maps the Verilog of the machine to (UltraScale+), units without cores: make synth"
    text = json.dumps({"about": about, "provenance": "modelled", "modules": record}, indent=1)
    write_file(file_of(clock_mhz), text + "\n")


def map_all(pool: ThreadPoolExecutor, counts: Counts, texts: dict[str, str]) -> dict[str, dict]:
    """Map modules, those whose texts are equal but for names once: the two engines are."""
    bare = {name: without_names(text) for name, text in texts.items()}
    firsts = {key: name for name, (key, _) in sorted(bare.items(), key=lambda one: len(texts[one[0]]), reverse=True)}
    mapped_of = dict(zip(firsts.values(), pool.map(counts.map_module, firsts.values()), strict=True))
    modules = {}
    for name, (key, names) in bare.items():
        module = mapped_of[firsts[key]]
        own = dict(zip(bare[firsts[key]][1], names, strict=True))
        modules[name] = module | {"ports": {own.get(port, port): wires for port, wires in module["ports"].items()}}
    return modules


def without_names(text: str) -> tuple[str, list[str]]:
    """Return a module's text with a number for each name, and the names.

    Which bit of the host's port stores into a memory counts as a name, and a declaration's lines do not count.
    """
    text = re.sub(r" *//.*", "", text)
    text = re.sub(r"^(  wire [^;]*?)(\w+(?:, \w+)+);$", _one_a_line, text, flags=re.MULTILINE)
    numbers: dict[str, int] = {}
    text = re.sub(
        r"host_store\[\d+\]|(?<![\w'])[a-zA-Z_]\w*", lambda m: f"n{numbers.setdefault(m[0], len(numbers))}", text
    )
    return text, list(numbers)


def _one_a_line(declaration: re.Match) -> str:
    return "\n".join(f"{declaration[1]}{name};" for name in declaration[2].split(", "))


def latencies_in(text: str) -> dict[str, int]:
    """Return the latency of each core in the loop's Verilog, which has one for all instances."""
    pairs = re.findall(r"^  (fp32_\w+) #\(\.LATENCY\((\d+)\)", text, re.MULTILINE)
    return {core: int(cycles) for core, cycles in sorted(set(pairs))}
