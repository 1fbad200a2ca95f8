"""Analyse netlists mapped by Yosys: logic depth between registers, delays, memories and cores; shared LUTs."""

import re
from collections.abc import Iterator

TABLES = ("INV", *(f"LUT{n}" for n in range(1, 7)))
LEVELS = {**dict.fromkeys(TABLES, 1), "INV": 0, "CARRY4": 1, "CARRY8": 1, "MUXF7": 0, "MUXF8": 0, "MUXF9": 0}
# An inverter is part of the LUT after it. A carry chain is one level, whatever its length. A wide multiplexer is in the
# slice of the LUTs it selects from, but its select input is routed like a LUT's input.
PORT_LEVELS = {("CARRY4", "CI"): 0, ("CARRY8", "CI"): 0, **{(f"MUXF{n}", "S"): 1 for n in (7, 8, 9)}}


class Depth:
    """Levels of logic before each signal of Yosys' modules; ports with the same name connect modules."""

    def __init__(self, modules: dict[str, dict]) -> None:
        self._modules, self._sources, self._levels = modules, {}, {}
        for name, module in modules.items():
            for port, wires in module["ports"].items():
                for i, bit in enumerate(wires["bits"]):
                    pair = (name, bit), (port, i)
                    signal, source = pair if wires["direction"] == "input" else reversed(pair)
                    self._sources.setdefault(signal, []).append((source, 0))
            for cell in module["cells"].values():
                kind = cell["type"]
                if kind in LEVELS:
                    sources = [
                        ((name, bit), PORT_LEVELS.get((kind, port), LEVELS[kind])) for port, bit in _bits(cell, "input")
                    ]
                    for _, bit in _bits(cell, "output"):
                        self._sources.setdefault((name, bit), []).extend(sources)

    def of(self, signal: tuple) -> int:
        """Return the levels before a signal: (module, bit) or (port, index)."""
        if signal not in self._levels:
            self._levels[signal] = max((self.of(source) + n for source, n in self._sources.get(signal, [])), default=0)
        return self._levels[signal]

    def deepest(self, name: str) -> tuple[int, str]:
        """Return the most levels before a cell of a module that stores its input, and the cell's source position."""
        ends = [
            (self.of((name, bit)), cell.get("attributes", {}).get("src", ""))
            for cell in self._modules[name]["cells"].values()
            if cell["type"] not in LEVELS
            for _, bit in _bits(cell, "input")
        ]
        return max(ends, default=(0, ""))


def _bits(cell: dict, direction: str) -> Iterator[tuple[str, int]]:
    for port, bits in cell["connections"].items():
        if cell["port_directions"].get(port, "input") == direction:
            yield from ((port, bit) for bit in bits if isinstance(bit, int))


def packed_tables(cells: dict[str, dict]) -> int:
    """Return the number of six-input LUTs if two functions of at most three inputs with a common input share a LUT."""
    functions = [frozenset(bit for _, bit in _bits(cell, "input")) for cell in cells.values() if cell["type"] in TABLES]
    pairs = 0
    waiting: dict[int, frozenset] = {}
    for inputs in sorted((inputs for inputs in functions if len(inputs) <= 3), key=len, reverse=True):
        partner = next((waiting[bit] for bit in inputs if bit in waiting), None)
        if partner is None:
            waiting |= dict.fromkeys(inputs, inputs)
        else:
            pairs += 1
            for bit in partner:
                if waiting.get(bit) is partner:
                    del waiting[bit]
    return len(functions) - pairs


def stage_of(place: str, text: str) -> int | None:
    """Return the pipeline stage of a line of the loop's Verilog; None if it belongs to all stages.

    The place is in Yosys' format: FILE:LINE.COLUMN-LINE.COLUMN.
    """
    lines = text.splitlines()[: int(re.match(r"\w+\.v:(\d+)", place)[1])]
    heads = (re.fullmatch(r"  // (?:stage (\d+)|for the whole run)", line) for line in reversed(lines))
    found = next(head for head in heads if head)
    return found[1] and int(found[1])
