"""Verilog of the state machine's memories, and its accesses to the loop's memories through the host port."""

import re
from collections import defaultdict
from dataclasses import dataclass, field

from bttlab_hardware.control import States
from bttlab_hardware.memories import Memory, source_name
from bttlab_hardware.rtl import LoopVerilog, NotEmitted
from bttlab_hardware.verilog import Design, bit_range

MAX_DISTRIBUTED = 512  # words of a memory that is built of LUT RAM
HOST_WORD = 512


@dataclass
class Ram:
    """Accesses to a memory by state: the address of a load; the address and value of a store."""

    memory: Memory
    name: str
    loads: dict[int, str] = field(default_factory=dict)
    stores: dict[int, tuple[str, str]] = field(default_factory=dict)
    loaded: str = ""


class ControlMemories:
    """All memories that the state machine accesses.

    Parameters
    ----------
    plan : States
    loop : LoopVerilog
    names : Design
        The source of unique names.

    Attributes
    ----------
    lines : dict of int to list of str
        Statements of each state that drive the loop's host port.
    """

    def __init__(self, plan: States, loop: LoopVerilog, names: Design) -> None:
        self._plan, self._loop, self._names = plan, loop, names
        self._memories: dict[Memory, Ram] = {}
        self.lines: dict[int, list[str]] = defaultdict(list)

    def of(self, memory: Memory) -> Ram:
        """Return the record of accesses to a memory."""
        if memory not in self._memories:
            self._memories[memory] = Ram(memory, self._names.unique(re.sub(r"\W+", "_", memory.name).strip("_")))
        return self._memories[memory]

    def text(self) -> list[str]:
        """Return the declarations of all memories; accesses to the loop's memories are added to `lines`."""
        lines: list[str] = []
        shared_loads = {}
        for memory, ram in self._memories.items():
            if self._plan.is_shared(memory):
                for state, address in ram.loads.items():
                    self.lines[state].append(f"host_address <= {address};")
                if ram.loads:
                    shared_loads[ram.loaded] = self._loop.host_reads[memory]
                continue
            bits = max(1, (memory.words - 1).bit_length())
            lines += self._chosen(f"{ram.name}_load_address", bits, ram.loads)
            if ram.stores:
                lines += self._chosen(f"{ram.name}_store_address", bits, {s: a for s, (a, _) in ram.stores.items()})
                lines += self._chosen(f"{ram.name}_stored", memory.width, {s: v for s, (_, v) in ram.stores.items()})
                enable = " | ".join(f"state == {self._plan.number(s)}" for s in ram.stores)
                lines.append(f"  wire {bit_range(memory.width)}{ram.loaded};")
                style = "distributed" if memory.words <= MAX_DISTRIBUTED else "block"
                lines.append(
                    f"  memory #(.WIDTH({memory.width}), .DEPTH({memory.words}), .ADDRESS({bits}), .LATENCY(1), "
                    f'.STYLE("{style}")) {ram.name}_memory (.clock(clock), .loaded({ram.loaded}), '
                    f".load_address({ram.name}_load_address), .store({enable}), "
                    f".store_address({ram.name}_store_address), .stored({ram.name}_stored));  // {memory.name}"
                )
            else:
                lines += self._table(ram)
        lines += [
            f"  wire {bit_range(self._width_of(loaded))}{loaded} = {port};" for loaded, port in shared_loads.items()
        ]
        self._store_to_loop()
        return lines

    def _width_of(self, loaded: str) -> int:
        return next(memory.width for memory, ram in self._memories.items() if ram.loaded == loaded)

    def _table(self, ram: Ram) -> list[str]:
        """Return the declaration of a constant array."""
        symbol = next(s for s in self._plan.module.globals if source_name(s) == ram.memory.variable)
        values = [int(n) for n in re.findall(rf"i{ram.memory.width} (-?\d+)", self._plan.module.globals[symbol])]
        if len(values) != ram.memory.words:
            raise NotEmitted(f"{ram.memory.name} is read but never written, and is no table of numbers")
        kind = bit_range(ram.memory.width)
        lines = [f"  reg {kind}{ram.name}_words[0:{len(values) - 1}], {ram.loaded};", "  initial begin"]
        lines += [
            f"    {ram.name}_words[{i}] = {ram.memory.width}'d{v % (1 << ram.memory.width)};"
            for i, v in enumerate(values)
        ]
        lines += ["  end", f"  always @(posedge clock) {ram.loaded} <= {ram.name}_words[{ram.name}_load_address];"]
        return lines

    def _store_to_loop(self) -> None:
        """Add the stores to the loop's memories; all stores of a state have the same address and word."""
        bits = {memory: bit for bit, memory in enumerate(self._loop.host_writes)}
        states: dict[int, list[tuple[Memory, str, str]]] = defaultdict(list)
        for memory, ram in self._memories.items():
            if memory in bits:
                for state, (address, value) in ram.stores.items():
                    states[state].append((memory, address, value))
        for state, stores in states.items():
            mask = sum(1 << bits[memory] for memory, _, _ in stores)
            memory, address, value = stores[0]
            word = f"{{{HOST_WORD - memory.width}'b0, {value}}}" if memory.width < HOST_WORD else value
            self.lines[state] += [
                f"host_store <= {len(bits)}'h{mask:x};  // {', '.join(m.name for m, _, _ in stores)}",
                f"host_address <= {address};",
                f"host_word <= {word};",
            ]

    def _chosen(self, name: str, bits: int, by_state: dict[int, str]) -> list[str]:
        """Return a multiplexer that selects a value by the state; the last value is the default."""
        *others, (_, last) = by_state.items()
        lines = [f"  reg {bit_range(bits)}{name};", "  always @*", "    case (state)"]
        lines += [f"      {self._plan.number(state)}: {name} = {text};" for state, text in others]
        return [*lines, f"      default: {name} = {last};", "    endcase"]
