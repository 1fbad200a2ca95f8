"""What Yosys has mapped: logic depth between registers, delays, memories and cores; functions that share a LUT."""

import re
from collections.abc import Iterator

TABLES = ("INV", *(f"LUT{n}" for n in range(1, 7)))
LEVELS = {**dict.fromkeys(TABLES, 1), "INV": 0, "CARRY4": 1, "CARRY8": 1, "MUXF7": 0, "MUXF8": 0, "MUXF9": 0}
# An inverter goes into the LUT behind it. A carry chain is a level, however long; a wide multiplexer is in the slice of
# the LUTs between which it chooses, but what it chooses by comes as a LUT's inputs do.
OTHERWISE = {("CARRY4", "CI"): 0, ("CARRY8", "CI"): 0, **{(f"MUXF{n}", "S"): 1 for n in (7, 8, 9)}}


class Depth:
    """Levels of logic in front of each signal; modules are connected by ports of one name.

    Parameters
    ----------
    modules : dict of str to dict
        As Yosys writes them into JSON, by name.
    """

    def __init__(self, modules: dict[str, dict]) -> None:
        self._modules, self._sources, self._levels = modules, {}, {}
        for name, module in modules.items():
            for port, wires in module["ports"].items():
                for i, bit in enumerate(wires["bits"]):
                    pair = (name, bit), (port, i)
                    made, source = pair if wires["direction"] == "input" else reversed(pair)
                    self._sources.setdefault(made, []).append((source, 0))
            for cell in module["cells"].values():
                kind = cell["type"]
                if kind in LEVELS:
                    sources = [
                        ((name, bit), OTHERWISE.get((kind, port), LEVELS[kind])) for port, bit in _bits(cell, "input")
                    ]
                    for _, bit in _bits(cell, "output"):
                        self._sources.setdefault((name, bit), []).extend(sources)

    def of(self, signal: tuple) -> int:
        """Return the levels in front of a signal: (module, bit), or (port, index)."""
        if signal not in self._levels:
            self._levels[signal] = max((self.of(source) + n for source, n in self._sources.get(signal, [])), default=0)
        return self._levels[signal]

    def deepest(self, name: str) -> tuple[int, str]:
        """Return the most levels in front of a cell of a module that keeps what it gets for later, and its place."""
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
    """Return the LUTs of six inputs, if two functions of three inputs or fewer that share one of them share a LUT."""
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
    """Return the stage to which a line of the loop's Verilog belongs; None: to all.

    Parameters
    ----------
    place : str
        As Yosys has it: FILE:LINE.COLUMN-LINE.COLUMN.
    text : str
        The file.
    """
    lines = text.splitlines()[: int(re.match(r"\w+\.v:(\d+)", place)[1])]
    heads = (re.fullmatch(r"  // (?:stage (\d+)|for the whole run)", line) for line in reversed(lines))
    found = next(head for head in heads if head)
    return found[1] and int(found[1])
