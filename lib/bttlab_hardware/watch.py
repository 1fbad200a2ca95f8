"""Signals of the loop's Verilog that testbenches read: whether each unit is busy, and when it ends an instruction."""

import re
from pathlib import Path

from bttlab_hardware.control import LOOP
from bttlab_hardware.rtl import LoopVerilog
from bttlab_hardware.verilog import Signal

ENDS = "const bool ends = nest[u].busy & is_end(nest[u]);"  # the line of machine.h, unrolled over the units


def watched(loop: LoopVerilog, source: Path) -> list[Signal]:
    """Return the one-bit signals `ends` and `busy` of each unit, unit by unit.

    Parameters
    ----------
    loop : LoopVerilog
    source : Path
        Folder of machine.h.
    """
    lines = (source / "machine.h").read_text(encoding="utf-8").splitlines()
    place = f"machine.h:{next(n for n, line in enumerate(lines, 1) if line.strip() == ENDS)}"
    by_name = {signal.name: signal for signal in loop.signals}
    found = []
    for signal in (signal for signal in loop.signals if signal.place == place):
        busy = re.search(rf"assign {signal.name} = (\w+) & \w+;", loop.text)[1]
        found += [signal, by_name[busy]]
    return found


def verilator_settings(signals: list[Signal]) -> str:
    """Return Verilator's settings: keep watched signals, and operands of cores so that each core is one function."""
    kept = [("fp32_*", "a"), ("fp32_*", "b"), *((signal.module, signal.name) for signal in signals)]
    lines = [f'public_flat_rd -module "{module}" -var "{name}"' for module, name in kept]
    return "\n".join(["`verilator_config", "// Made by: make rtl", *lines, ""])


def fields_of(signals: list[Signal]) -> list[tuple[int, str, int]]:
    """Return, for each signal, its bit number in a testbench's record, its name in Verilator's model, and its stage."""
    path = f"{LOOP}_unit__DOT__%s_unit__DOT__%s"
    return [(i, path % (signal.module, signal.name), signal.stage) for i, signal in enumerate(signals)]
