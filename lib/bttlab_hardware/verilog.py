"""A pipelined design as Verilog: signals with a stage, delays to later stages that use them, one module a unit."""

import itertools
import re
from dataclasses import dataclass, field

from bttlab.util.places import ROOT

TOP = "machine_loop"
RESERVED = "and or xor not input output wire reg delay memory clock begin end case".split()
WIDTH = 100  # characters of a line of declarations
# Vivado builds delays of three cycles or more as shift registers (UG901), or from the length in trainer.cfg.
LINK_SETTINGS = ROOT / "hls_src" / "vitis" / "processor" / "trainer.cfg"
SHIFT_FROM = 3


@dataclass(eq=False)
class Signal:
    """A value of an iteration, or a value that is constant for a run.

    Attributes
    ----------
    module : str
        The unit that computes it.
    stage : int or None
        Cycle of the iteration in which it is available; None if it is constant for a run.
    lanes : tuple of int
        Lanes of a vector that are built, in the order of its bits; (0,) for a scalar.
    width : int
        Bits of a lane.
    alike : bool
        Whether all lanes of the vector are equal; only one is built.
    uses : dict of int to set of str
        Modules that use it in each stage.
    first : int or None
        Stage from which on it is delayed: its own, or that behind it if a register takes it. None without delays.
    """

    name: str
    module: str
    stage: int | None
    lanes: tuple[int, ...] = (0,)
    width: int = 1
    signed: bool = False
    alike: bool = False
    place: str = ""
    uses: dict[int | None, set[str]] = field(default_factory=dict)
    first: int | None = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.stage

    @property
    def bits(self) -> int:
        return self.width * len(self.lanes)

    @property
    def waits(self) -> int:
        """Cycles from its stage to the first use; 0 if it is constant for a run."""
        return 0 if self.stage is None else min(self.uses) - self.stage

    @property
    def stages(self) -> list[int | None]:
        """Stages in which it has a name."""
        own = [self.first] if self.first is not None or self.stage is None else []
        return list(dict.fromkeys([*own, *self.uses]))

    def at(self, stage: int | None, module: str) -> str:
        """Return the signal's name in a stage, as a module sees it."""
        if self.stage is None or stage is None:
            stage = self.stage
        elif stage < self.stage:
            raise ValueError(f"{self.name} of stage {self.stage} is used in stage {stage}, before it: {self.place}")
        self.uses.setdefault(stage, set()).add(module)
        return self.name if stage == self.stage else f"{self.name}_at_{stage}"


@dataclass(frozen=True)
class Bits:
    """A range of bits of a signal of `of` bits, or of a constant without a name: an operand of expressions."""

    name: str
    low: int
    width: int
    of: int
    signed: bool = False
    number: int = 0

    def __str__(self) -> str:
        if not self.name:
            return f"{self.width}'h{self.number & ((1 << self.width) - 1):x}"
        if self.width == self.of:
            return self.name
        return f"{self.name}[{self.low}]" if self.width == 1 else f"{self.name}[{self.low + self.width - 1}:{self.low}]"

    def part(self, low: int, width: int) -> "Bits":
        return Bits(self.name, self.low + low, width, self.of, self.signed, self.number >> low)

    def fit(self, width: int) -> str:
        """Return the expression with `width` bits: truncated, or extended by its sign or by zeros."""
        if not self.name or width <= self.width:
            return str(self.part(0, width))
        more, last = width - self.width, self.part(self.width - 1, 1)
        return f"{{{{{more}{{{last}}}}}, {self}}}" if self.signed else f"{{{more}'b0, {self}}}"


def number(value: int, width: int) -> Bits:
    return Bits("", 0, width, width, value < 0, value)


def joined(parts: list[Bits]) -> str:
    """Return the concatenation of bits, the first the lowest; adjacent ranges of a signal are merged."""
    merged: list[Bits] = []
    for part in parts:
        last = merged[-1] if merged else None
        if last and last.name == part.name and last.name and last.low + last.width == part.low:
            merged[-1] = Bits(last.name, last.low, last.width + part.width, last.of)
        else:
            merged.append(part)
    if len(merged) == 1:
        return str(merged[0])
    return "{" + ", ".join(map(str, reversed(merged))) + "}"


def identifier(text: str) -> str:
    """Return an LLVM name as a Verilog identifier, without the numbers that inlining and unrolling add."""
    text = re.sub(r"(\.(i|addr|sroa|lcssa|ph)|\.?\d+)+$", "", text.strip('%"'))
    text = re.sub(r"\W+", "_", re.sub(r"\.(sroa|i)\b\.?\d*", "", text)).strip("_")
    return text if text and text[0].isalpha() else f"value_{text}".rstrip("_")


class Design:
    """Signals and statements of a design; `ports` are the inputs of the top, whose module is ""."""

    def __init__(self) -> None:
        self.signals: list[Signal] = []
        self.ports: dict[str, Signal] = {}
        self.outputs: list[Signal] = []
        self._names: dict[str, int] = dict.fromkeys(RESERVED, 1)
        self._statements: dict[str, list[tuple[int, str]]] = {}

    def signal(self, name: str, module: str, stage: int | None, **more) -> Signal:
        """Add a signal; a number is added to its name if the name is taken."""
        made = Signal(self.unique(name), module, stage, **more)
        self.signals.append(made)
        return made

    def unique(self, name: str) -> str:
        name = identifier(name)
        while True:
            self._names[name] = count = self._names.get(name, 0) + 1
            made = name if count == 1 else f"{name}_{count}"
            if count == 1 or made not in self._names:
                self._names.setdefault(made, 1)
                return made

    def port(self, name: str, width: int) -> Signal:
        """Return the input of the top of this name; add it if there is none."""
        if name not in self.ports:
            self.ports[name] = self.signal(name, "", None, width=width)
        return self.ports[name]

    def assign(self, signal: Signal, text: str) -> None:
        self.statement(signal.module, signal.stage, f"assign {signal.name} = {text};", signal.place)

    def register(self, signal: Signal, text: str) -> None:
        """Make a signal a register that takes the value of an expression at each clock."""
        self.statement(signal.module, signal.stage, _register(signal.name, signal.bits, text), signal.place)

    def register_after(self, signal: Signal, text: str) -> None:
        """Give the signal an expression's value from the stage behind its own on: a register takes it."""
        signal.first = signal.stage + 1
        self.statement(
            signal.module, signal.stage, _register(_name(signal, signal.first), signal.bits, text), signal.place
        )

    def assign_anew(self, signal: Signal, stage: int | None, text: str) -> None:
        """Assign the signal in one of the stages that use it; it has no delays."""
        signal.first = None
        self.statement(signal.module, stage, f"assign {_name(signal, stage)} = {text};", signal.place)

    def statement(self, module: str, stage: int | None, text: str, place: str = "") -> None:
        line = f"  {text}{f'  // {place}' if place else ''}"
        self._statements.setdefault(module, []).append((-1 if stage is None else stage, line))

    def text(self, head: str) -> str:
        """Return the text of all modules, the top last."""
        chains = {signal: _chain(signal) for signal in self.signals}
        modules = sorted({s.module for s in self.signals if s.module})
        parts = [head]
        instances = []
        for module in modules:
            own = [s for s in self.signals if s.module == module]
            others = [s for s in self.signals if s.module != module]
            inputs = [(s, stage) for s in others for stage, users in s.uses.items() if module in users]
            outputs = [(s, stage) for s in own for stage, users in s.uses.items() if users - {module}]
            outputs += [(s, s.stage) for s in own if s in self.outputs and (s, s.stage) not in outputs]
            ports = [("input ", s, n) for s, n in inputs] + [("output", s, n) for s, n in outputs]
            shown = set(outputs)
            lines = [f"  {way} wire {bit_range(s.bits)}{_name(s, n)}" for way, s, n in ports]
            parts.append(f"\nmodule {module} (\n" + ",\n".join(["  input  wire clock", *lines]) + "\n);")
            declared: dict[int, list[str]] = {}
            for s in own:
                for n in s.stages:
                    if (s, n) not in shown:
                        declared.setdefault(s.bits, []).append(_name(s, n))
            for bits, names in sorted(declared.items()):
                parts += _declaration(f"wire {bit_range(bits)}", names)
            statements = [*self._statements.get(module, [])]
            statements += _delays({s: chains[s] for s in own})
            stage = None
            # Last in, first out: the users of a signal were added before it.
            for number, line in sorted(reversed(statements), key=lambda one: one[0]):
                if number != stage:
                    stage = number
                    parts.append("  // for the whole run" if number < 0 else f"  // stage {number}")
                parts.append(line)
            parts.append("endmodule")
            connected = ", ".join(f".{_name(s, n)}({_name(s, n)})" for _, s, n in ports)
            instances.append(f"  {module} {module}_unit (.clock(clock), {connected});")
        parts += self._top(instances)
        return "\n".join(parts) + "\n"

    def _top(self, instances: list[str]) -> list[str]:
        ports = [f"  input  wire {bit_range(s.bits)}{s.name}" for s in self.ports.values()]
        ports += [f"  output wire {bit_range(s.bits)}{s.name}" for s in self.outputs]
        lines = [f"\nmodule {TOP} (\n" + ",\n".join(["  input  wire clock", *ports]) + "\n);"]
        for s in self.signals:
            if s.module and s not in self.outputs:
                names = [_name(s, stage) for stage, users in s.uses.items() if users - {s.module}]
                lines += _declaration(f"wire {bit_range(s.bits)}", names) if names else []
        return [*lines, *instances, "endmodule"]


def _chain(signal: Signal) -> list[tuple[int, int]]:
    """Return pairs of consecutive stages in which a signal is used: each needs a delay."""
    if signal.first is None:
        return []
    return list(itertools.pairwise(sorted({signal.first, *(n for n in signal.uses if n is not None)})))


def _delays(chains: dict[Signal, list[tuple[int, int]]]) -> list[tuple[int, str]]:
    """Return delays as statements; long ones between the same two stages are one, whose rings share their counters."""
    groups: dict[tuple, list[Signal]] = {}
    for signal, chain in chains.items():
        for earlier, later in chain:
            alone = later - earlier < shortest_shift()
            groups.setdefault((earlier, later, signal if alone else None), []).append(signal)
    statements = []
    for (earlier, later, _), signals in groups.items():
        name = f"{_name(signals[0], later)}_delay"
        sides = [[_name(signal, stage) for signal in signals] for stage in (earlier, later)]
        given, out = (f"{{{', '.join(side)}}}" if signals[1:] else side[0] for side in sides)
        text = f"  delay #(.WIDTH({sum(s.bits for s in signals)}), .CYCLES({later - earlier})) {name} "
        statements.append((earlier, f"{text}(.clock(clock), .in({given}), .out({out}));"))
    return statements


def _register(name: str, bits: int, text: str) -> str:
    return f"reg {bit_range(bits)}{name}_q; always @(posedge clock) {name}_q <= {text}; assign {name} = {name}_q;"


def _name(signal: Signal, stage: int | None) -> str:
    return signal.name if stage == signal.stage else f"{signal.name}_at_{stage}"


def bit_range(bits: int) -> str:
    """Return the range of a declaration, followed by a space; empty for a single bit."""
    return f"[{bits - 1}:0] " if bits > 1 else ""


def _declaration(kind: str, names: list[str]) -> list[str]:
    lines, line = [], ""
    for name in names:
        if line and len(line) + len(name) > WIDTH:
            lines.append(f"  {kind}{line};")
            line = ""
        line += f", {name}" if line else name
    return [*lines, f"  {kind}{line};"]


def shortest_shift() -> int:
    """Return the fewest cycles of a delay that is a shift register."""
    setting = re.search(r"SHREG_MIN_SIZE=(\d+)", LINK_SETTINGS.read_text(encoding="utf-8"))
    return int(setting[1]) if setting else SHIFT_FROM
