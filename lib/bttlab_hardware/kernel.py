"""The RTL kernel for Vitis: its top module, kernel.xml, and files for testbenches; `make rtl` writes them all."""

import hashlib
import re
from pathlib import Path
from xml.etree import ElementTree

from bttlab.card.kernel import CONTROL_RANGE, TRAINER_KERNEL, Kernel
from bttlab.util.files import write_file
from bttlab_hardware.analyse import Schedule
from bttlab_hardware.control import KERNEL, LOOP, States
from bttlab_hardware.control_verilog import ControlVerilog
from bttlab_hardware.rtl import CORE_FOLDER, LoopVerilog, emit
from bttlab_hardware.verilog import Signal, bit_range
from bttlab_hardware.watch import fields_of, verilator_settings, watched

SOURCE, PROCESSOR = CORE_FOLDER / "kernel.cpp", CORE_FOLDER.parent / "processor"
CONTROL, MASTER = "s_axi_control", "m_axi_"
# Signals of a port: direction seen from the kernel, bits, name. The kernel's own modules use the names in lower case.
MASTER_SIGNALS = (
    *(("output", 1, "AWVALID"), ("input", 1, "AWREADY"), ("output", 64, "AWADDR"), ("output", 8, "AWLEN")),
    *(("output", 1, "WVALID"), ("input", 1, "WREADY"), ("output", 512, "WDATA"), ("output", 64, "WSTRB")),
    *(("output", 1, "WLAST"), ("input", 1, "BVALID"), ("output", 1, "BREADY"), ("output", 1, "ARVALID")),
    *(("input", 1, "ARREADY"), ("output", 64, "ARADDR"), ("output", 8, "ARLEN"), ("input", 1, "RVALID")),
    *(("output", 1, "RREADY"), ("input", 512, "RDATA")),
)
SLAVE_SIGNALS = (
    *(("input", 12, "AWADDR"), ("input", 1, "AWVALID"), ("output", 1, "AWREADY"), ("input", 32, "WDATA")),
    *(("input", 4, "WSTRB"), ("input", 1, "WVALID"), ("output", 1, "WREADY"), ("output", 2, "BRESP")),
    *(("output", 1, "BVALID"), ("input", 1, "BREADY"), ("input", 12, "ARADDR"), ("input", 1, "ARVALID")),
    *(("output", 1, "ARREADY"), ("output", 32, "RDATA"), ("output", 2, "RRESP"), ("output", 1, "RVALID")),
    ("input", 1, "RREADY"),
)


def write_kernel(schedule: Schedule, folder: Path) -> dict[str, str]:
    """Write the kernel's Verilog, kernel.xml, and files for testbenches; return the text of each file.

    Parameters
    ----------
    schedule : Schedule
        The loop's schedule, without violations.
    folder : Path
    """
    files = kernel_files(emit(schedule), schedule.clock_mhz)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_file(folder / name, text)
    return files


def kernel_files(loop: LoopVerilog, mhz: float) -> dict[str, str]:
    """Return the text of each of the kernel's files by its name: generated files first, the cores last."""
    control = ControlVerilog(States(SOURCE, set(loop.memories), mhz), loop)
    signals = watched(loop, PROCESSOR)
    made = {
        f"{KERNEL}.v": _top(control, TRAINER_KERNEL),
        f"{KERNEL}_control.v": control.text,
        f"{LOOP}.v": loop.text,
        "kernel.xml": kernel_xml(TRAINER_KERNEL),
        "kernel_host.h": _host(TRAINER_KERNEL, loop.stages, signals),
        "kernel.vlt": verilator_settings(signals),
    }
    return made | {core.name: core.read_text(encoding="utf-8") for core in sorted(CORE_FOLDER.glob("*.v"))}


def module_digests(files: dict[str, str]) -> dict[str, str]:
    """Return the SHA-256 of each module that Yosys counts, including the modules that it instantiates.

    Parameters
    ----------
    files : dict of str to str
        Result of `kernel_files`.
    """
    core = {name.removesuffix(".v"): text for name, text in files.items() if name.endswith(".v")}
    loop, control = core.pop(LOOP), core[f"{KERNEL}_control"]
    below = core["delay"] + core["memory"]
    used = sorted(set(re.findall(r"^  (fp32_\w+) #", loop + control, re.MULTILINE)))
    texts = {name: core[name] + core["fp32_round"] + below for name in used}
    texts |= {name: core[name] + below for name in (f"{KERNEL}_control", "control_registers", "axi_port")}
    for module in loop.split("\nmodule ")[1:]:
        texts[module.split(" ", 1)[0]] = module + below
    del texts[LOOP]
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def _masters(kernel: Kernel) -> list[str]:
    return [argument.name for argument in kernel.arguments if argument.is_pointer]


def _top(control: ControlVerilog, kernel: Kernel) -> str:
    """Return the top module: registers, state machine, loop, and a port to HBM for each pointer, connected by name."""
    groups = {CONTROL: SLAVE_SIGNALS} | {MASTER + name: MASTER_SIGNALS for name in _masters(kernel)}
    signals = [f"{way} wire {bit_range(n)}{group}_{s}" for group, names in groups.items() for way, n, s in names]
    ports = ",\n".join(f"  {text}" for text in ("input wire ap_clk, ap_rst_n", *signals, "output wire interrupt"))
    words = (kernel.offsets[-1] + kernel.arguments[-1].size) // 4
    lines = [
        "// The kernel, made by: make rtl. Registers as Vitis HLS lays them out, an AXI4 port for each pointer.",
        "/* verilator lint_off SYMRSVDWORD */  // Vitis wants an output of this name: interrupt",
        f"module {kernel.name} (\n{ports}\n);",
        "  wire reset = ~ap_rst_n;\n  wire start, done, clock_of_loop;",
        f"  wire {bit_range(32 * words)}registers;",
    ]
    inside = {name: name for name in ("start", "done", "reset")} | {"clock": "ap_clk"}
    for argument, offset in zip(kernel.arguments, kernel.offsets, strict=True):
        inside[argument.name] = f"registers[{8 * (offset + argument.size) - 1}:{8 * offset}]"
    for text in control.ports:
        bits, names = re.fullmatch(r"(?:input|output) (?:wire|reg) (\[\d+:0\] )?(.*)", text).groups()
        for name in (n for n in names.split(", ") if n not in inside):
            inside[name] = name
            public = " /* verilator public_flat_rd */" if name == "loop_busy" else ""
            lines.append(f"  wire {bits or ''}{name}{public};")
    loop = {"clock": "clock_of_loop", "start": "loop_start", "busy": "loop_busy"}
    loop |= {name: name for name in inside if name in control.loop.ports and name not in loop}

    def instance(module: str, name: str, wires: dict[str, str]) -> str:
        return f"  {module} {name} ({', '.join(f'.{port}({wire})' for port, wire in wires.items())});"

    common = {"clock": "ap_clk", "reset": "reset"}
    own = {"start": "start", "done": "done", "interrupt": "interrupt", "values": "registers"}
    slave = {name.lower(): f"{CONTROL}_{name}" for _, _, name in SLAVE_SIGNALS}
    lines.append(instance(f"control_registers #(.WORDS({words}))", "control_unit", common | own | slave))
    for name in _masters(kernel):
        own = {port: f"{name}_{port}" for port in ("read", "write", "done", "word")}
        own |= {"address": "port_address", "written": "port_written"}
        master = {signal.lower(): f"{MASTER}{name}_{signal}" for _, _, signal in MASTER_SIGNALS}
        lines.append(instance("axi_port", f"{name}_port", common | own | master))
    wanted = {"wanted": "loop_start | loop_busy | |host_store", "host_address": "host_address", "out": "clock_of_loop"}
    lines.append(instance("loop_clock", "clock_unit", {"clock": "ap_clk"} | wanted))
    lines.append(instance(f"{KERNEL}_control", f"{KERNEL}_control_unit", inside))
    lines.append(instance(LOOP, f"{LOOP}_unit", loop))
    return "\n".join([*lines, "endmodule", ""])


def _host(kernel: Kernel, stages: int, signals: list[Signal]) -> str:
    """Return a C header with the registers, ports and watched signals as macros, and the stages of the loop."""
    lists = {
        "PORTS": enumerate(_masters(kernel)),
        "ARGUMENTS": [(a.name, offset) for a, offset in zip(kernel.arguments, kernel.offsets, strict=True)],
        "WATCHED": fields_of(signals),
    }
    lines = [
        "// Registers, ports and watched signals of the kernel, stages of its loop; made by: make rtl",
        f"#define LOOP_STAGES {stages}",
    ]
    for name, entries in lists.items():
        lines += [
            f"#define KERNEL_{name}(ENTRY) \\",
            *(f"    ENTRY({', '.join(map(str, entry))}) \\" for entry in entries),
            "",
        ]
    return "\n".join(lines)


def kernel_xml(kernel: Kernel) -> str:
    """Return kernel.xml, the description of an RTL kernel for package_xo (UG1393, "RTL kernel XML file")."""
    root = ElementTree.Element("root", versionMajor="1", versionMinor="6")
    node = ElementTree.SubElement(
        root,
        "kernel",
        {"name": kernel.name, "language": "ip_c", "vlnv": kernel.vlnv, "attributes": ""},
        preferredWorkGroupSizeMultiple="0",
        workGroupSize="1",
        interrupt="true",
        hwControlProtocol="ap_ctrl_hs",
    )
    ports, arguments = (ElementTree.SubElement(node, name) for name in ("ports", "args"))
    slave = {"name": CONTROL, "mode": "slave", "range": hex(CONTROL_RANGE), "dataWidth": "32"}
    masters = [
        {"name": MASTER + a.name, "mode": "master", "range": hex(2**64 - 1), "dataWidth": str(a.width)}
        for a in kernel.arguments
        if a.is_pointer
    ]
    for port in (slave, *masters):
        ElementTree.SubElement(ports, "port", port, portType="addressable", base="0x0")
    for number, (argument, offset) in enumerate(zip(kernel.arguments, kernel.offsets, strict=True)):
        ElementTree.SubElement(
            arguments,
            "arg",
            {"name": argument.name, "addressQualifier": str(int(argument.is_pointer)), "id": str(number)},
            port=MASTER + argument.name if argument.is_pointer else CONTROL,
            size=hex(argument.size),
            offset=hex(offset),
            type=argument.ctype,
            hostOffset="0x0",
            hostSize=hex(argument.size),
        )
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
