"""Signals of the loop's Verilog that a testbench looks at: whether each unit is busy, and ends an instruction."""

import re
from pathlib import Path

from bttlab.hardware.control import LOOP
from bttlab.hardware.rtl import LoopVerilog
from bttlab.hardware.verilog import Signal

ENDS = "const bool ends = nest[u].busy & is_end(nest[u]);"  # in machine.h, a unit at a time


def watched(loop: LoopVerilog, source: Path) -> list[Signal]:
    """Return a unit's `ends` and `busy`, which are bits, after the other's.

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
    """Return what Verilator keeps as it is: watched signals; operands of cores, so that these are one function each."""
    kept = [("fp32_*", "a"), ("fp32_*", "b"), *((signal.module, signal.name) for signal in signals)]
    lines = [f'public_flat_rd -module "{module}" -var "{name}"' for module, name in kept]
    return "\n".join(["`verilator_config", "// Made by: bttlab rtl", *lines, ""])


def fields_of(signals: list[Signal]) -> list[tuple[int, str, int]]:
    """Return each signal's place among the bits that a testbench collects, its name in Verilator's model, its stage."""
    path = f"{LOOP}_unit__DOT__%s_unit__DOT__%s"
    return [(i, path % (signal.module, signal.name), signal.stage) for i, signal in enumerate(signals)]
