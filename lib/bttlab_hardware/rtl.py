"""Generate Verilog of the machine's loop (`make rtl`): each operator in its stage of the schedule.

An iteration enters the pipeline each cycle. A value that is used in a later stage is delayed by registers; a
loop-carried value is fed back from the stage that computes it. Operators with registers inside are the cores of
hls_src/rtl.
"""

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import floor
from pathlib import Path

from bttlab.util.errors import BttlabError
from bttlab.util.places import ROOT
from bttlab_hardware import latencies
from bttlab_hardware.analyse import Schedule
from bttlab_hardware.census import CONTROL, unit_of
from bttlab_hardware.graph import Graph, Node, callee
from bttlab_hardware.ir import Instruction, Value
from bttlab_hardware.lanes import shuffle_mask
from bttlab_hardware.loops import Body, whole_body
from bttlab_hardware.memories import Access, Memory
from bttlab_hardware.places import SourceLocations
from bttlab_hardware.types import element_bits, is_float, lanes_of
from bttlab_hardware.verilog import Bits, Design, Signal, identifier, joined, number, shortest_shift
from bttlab_hardware.widths import constant_number

CORE_FOLDER = ROOT / "hls_src" / "rtl"
CORES = {
    **{"fadd": "fp32_add", "fsub": "fp32_add", "fmul": "fp32_multiply", "fdiv": "fp32_divide"},
    **{"sqrt": "fp32_square_root", "floor": "fp32_floor", "fptosi": "fp32_to_int"},
}
RELATIONS = {"l": 1, "e": 2, "g": 4, "u": 8}  # bits of fp32_compare's MASK: less, equal, greater, unordered
INTEGER = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
STYLES = {"uram": "ultra", "bram": "block", "lutram": "distributed"}
HOST = "host"  # prefix of the ports that access the loop's memories between runs
ADDRESS_BITS = 16
RESET_BITS = 8  # Vivado gives few flip-flops no reset of their own: they would take a slice's control signals
MAIN = CONTROL
COMMON = ("vector", "step")  # headers that all units include


class NotEmitted(BttlabError):
    """The source has an operation for which there is no Verilog."""


@dataclass(frozen=True)
class LoopVerilog:
    """A loop as Verilog, whose top is `machine_loop`, and its interface for testbenches in C++.

    Attributes
    ----------
    memories : dict of Memory to str
        How the loop uses each memory: READ, WRITTEN, or KEPT for both.
    inputs, results : list of (str, str, int, int)
        Ports of the top, and their fields: argument of the loop's function, offset and size in bytes.
    returned : str
        Port of the function's return value.
    host_reads : dict of Memory to str
        For each memory that the loop only writes: the output of the top with its word at `host_address`.
    """

    text: str
    memories: dict[Memory, str]
    inputs: list[tuple[str, str, int, int]]
    results: list[tuple[str, str, int, int]]
    returned: str
    stages: int
    host_reads: dict[Memory, str]

    @property
    def host_writes(self) -> list[Memory]:
        """Memories that the host port writes, in the order of the bits of `host_store`."""
        return [memory for memory, way in self.memories.items() if way == "READ"]


def emit(schedule: Schedule) -> LoopVerilog:
    """Return the Verilog of a scheduled loop, without violations and with initiation interval 1.

    BttlabError if it has an operation for which there is no Verilog.
    """
    if schedule.violations or schedule.interval != 1:
        raise BttlabError("the loop has violations, so there is no Verilog of it; make schedule lists them")
    return _Emitter(schedule).emit()


class _Emitter:
    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._graph, self._places = schedule, schedule.graph, schedule.places
        self._body: Body = self._graph.body
        self._start = schedule.times.start
        self._design = Design()
        self._signals: dict[object, Signal] = {}
        self._written = {port.memory for port in schedule.ports if port.stores}
        self._inside = {i for block in self._body.order for i in self._graph.function.blocks[block]}
        self._results: list[tuple[str, str, int, int]] = []
        self._returned = ""
        self._host_reads: dict[Memory, str] = {}
        self._loads: dict[tuple[Memory, Value], Node] = {}
        self._inputs: dict[tuple[str, int], tuple[Signal, Signal]] = {}
        self._outside = whole_body(self._graph.function)
        self._modules = module_names(self._graph, self._places)

    def emit(self) -> LoopVerilog:
        design = self._design
        self._running = design.signal("running", MAIN, 0)
        self._first = design.signal("first", MAIN, 0)
        # `values` also has the gates that the graph has merged; instructions that only move values have no signal.
        nodes = [node for node in self._graph.values if not _only_moves(node.instruction)]
        for node in nodes:  # name all signals first: loop-carried values are used before they are defined
            if node.kind != "store":
                self._signal_of(node)
        memories = self._memories()
        self._control()
        defined = [node for node in nodes if node.instruction.opcode not in ("store", "load")]
        for node in defined:
            if node.kind == "phi":
                self._define_carried(node)
        for node in reversed(defined):  # those that use a signal stand before it: so all its uses are known
            if node.kind != "phi" and self._signals[node].uses:
                self._operate(self._widest(node), self._signals[node], self._stage(node), node.cycles or 0)
        head = "// The machine's loop, made by: make rtl. A stage takes a cycle; name_at_N is name in stage N."
        inputs = [(port.name, *field, port.width // 8) for field, (port, _) in self._inputs.items()]
        outside = memories, inputs, self._results, self._returned
        return LoopVerilog(design.text(head), *outside, self._schedule.stages, self._host_reads)

    # --- signals

    def _stage(self, node: Node) -> int:
        """Return the stage in which a node takes its operands."""
        return floor(self._start[node]) if node in self._start else max(self._home(n) for n in node.inputs)

    def _home(self, node: Node) -> int:
        """Return the stage in which a node's result is available."""
        if node.kind == "load":
            return self._stage(node) + max(1, node.cycles)
        return self._stage(node) + (node.cycles or 0)

    def _module(self, node: Node) -> str:
        return self._modules[node.instruction.line]

    def _signal_of(self, node: Node) -> Signal:
        if node.kind == "load" and node.access.memory not in self._written:
            node = self._loads.setdefault((node.access.memory, node.instruction.operands[-1]), node)
        if node not in self._signals:
            values = self._graph.values[node] or [node.instruction]
            self._signals[node] = self._new(node.instruction, values, self._module(node), self._home(node))
        return self._signals[node]

    def _new(self, value: Instruction, values: list[Instruction], module: str, stage: int | None) -> Signal:
        """Add the signal of an instruction and of the instructions that are equal to it."""
        lanes, kind = lanes_of(value.type)
        mask, alike = 1, any(v in self._graph.alike for v in values)
        if lanes > 1 and not alike:
            mask = (1 << lanes) - 1
            if stage is not None and value.opcode != "load":
                mask = 0
                for v in values:
                    mask |= self._graph.masks[v]
        used = tuple(i for i in range(lanes) if mask >> i & 1) or (0,)
        whole = is_float(kind) or value.opcode == "load" or stage is None
        bits = element_bits(kind) if whole else max(self._graph.widths.bits(v) for v in values)
        signed = not is_float(kind) and any(self._graph.widths.signed(v) for v in values)
        name = value.name or value.opcode
        if re.fullmatch(r"%\d+", name):
            name = self._graph.accesses[value].memory.variable if value in self._graph.accesses else value.opcode
        place = self._places.text(value.line) if value.line else ""
        return self._design.signal(
            name, module, stage, lanes=used, width=bits, signed=signed and bits > 1, alike=alike, place=place
        )

    # --- values as bits

    def _lane(self, value: Value, lane: int, stage: int | None, module: str) -> Bits:
        """Return the bits of a vector's lane, or of a scalar, in a stage."""
        source = self._source(value, lane)
        return source if isinstance(source, Bits) else self._bits(*source, stage, module)

    def _source(self, value: Value, lane: int) -> Bits | tuple[Signal, int]:
        """Return the signal that has a vector's lane, or a scalar, and its lane there; or the bits of a constant."""
        if value.kind == "constant":
            return constant(value, lane)
        alias = self._graph.alias.get(value)
        if alias is None and value.kind == "instruction" and value.opcode in ("zext", "sext", "trunc", "freeze"):
            alias = value.operands[0]
        if alias is not None:
            widened = value.opcode in ("zext", "sext", "trunc") and not self._graph.widths.same(value, alias)
            return (self._widened(value, alias), 0) if widened else self._source(alias, lane)
        if value.kind == "instruction" and _only_moves(value):
            if value.opcode == "insertelement":
                base, scalar, index = value.operands
                inserted = constant_number(index.text) == lane
                return self._source(scalar, 0) if inserted else self._source(base, lane)
            if value.opcode == "delay":  # a signal has its delay to each stage that uses it
                return self._source(value.operands[0], lane)
            source, width = shuffle_mask(value.text)[lane], lanes_of(value.operands[0].type)[0]
            if source is None:
                return number(0, element_bits(value.type))
            return self._source(value.operands[source >= width], source % width)
        node = self._graph.node(value)
        return self._signal_of(node) if node else self._fixed(value), lane

    def _bits(self, signal: Signal, lane: int, stage: int | None, module: str) -> Bits:
        if signal.alike:
            lane = 0
        if lane not in signal.lanes:
            return number(0, signal.width)
        low = signal.lanes.index(lane) * signal.width
        return Bits(signal.at(stage, module), low, signal.width, signal.bits, signal.signed)

    def _number(self, value: Value, bits: int, stage: int | None, module: str) -> str:
        return self._lane(value, 0, stage, module).fit(bits)

    def _like(self, value: Value, shape: Signal, stage: int | None, module: str) -> str:
        """Return the expression for a value with the lanes and width of a signal."""
        lanes = [self._lane(value, lane, stage, module) for lane in shape.lanes]
        if all(lane.width == shape.width for lane in lanes):
            return joined(lanes)
        return (
            "{" + ", ".join(lane.fit(shape.width) for lane in reversed(lanes)) + "}"
            if lanes[1:]
            else lanes[0].fit(shape.width)
        )

    def _widened(self, value: Instruction, alias: Value) -> Signal:
        """Return the signal of a truncation or extension that changes the number."""
        if value not in self._signals:
            node = self._graph.node(value)
            stage, module = (self._home(node), self._module(node)) if node else (None, MAIN)
            made = self._signals[value] = self._new(value, [value], module, stage)
            own, bits = made.bits, element_bits(alias.type)
            if value.opcode == "trunc" or own <= bits:
                text = self._number(alias, own, stage, module)
            else:
                inner = self._design.signal(
                    f"{made.name}_bits", module, stage, width=bits, signed=value.opcode == "sext"
                )
                self._design.assign(inner, self._number(alias, bits, stage, module))
                text = self._bits(inner, 0, stage, module).fit(own)
            self._design.assign(made, text)
        return self._signals[value]

    def _fixed(self, value: Value) -> Signal:
        """Return the signal of a loop-invariant value: a field of an argument, or a value computed from fields."""
        if value not in self._signals:
            if value.kind != "instruction":
                raise NotEmitted(f"the loop uses {value.text} as a value, which is no number")
            if value.opcode == "load":
                self._signals[value] = self._field(value)
            else:
                made = self._signals[value] = self._new(value, [value], MAIN, None)
                self._operate(value, made, None, 0)
        return self._signals[value]

    def _field(self, load: Instruction) -> Signal:
        """Return the signal of an argument's field: an input of the top, registered at the start of a run."""
        argument, offset = self._schedule.memories.field(load)
        bits = element_bits(load.type)
        if (argument, offset) not in self._inputs:
            name = load.operands[0].name if load.operands[0].kind == "instruction" else "first"
            port = self._design.port(f"{argument}_{offset}_{identifier(name)}", bits)
            kept = self._design.signal(f"{port.name}_kept", MAIN, None, width=bits)
            start = self._design.port("start", 1).at(None, MAIN)
            self._design.register(kept, f"{start} ? {port.at(None, MAIN)} : {kept.name}")
            self._inputs[argument, offset] = port, kept
        return self._inputs[argument, offset][1]

    # --- operators

    def _define_carried(self, node: Node) -> None:
        """Define a loop-carried value: the start's in the first iteration, then that of the iteration before."""
        made, stage, phi = self._signal_of(node), self._stage(node), self._widest(node)
        module, pairs = made.module, list(zip(phi.operands, phi.blocks, strict=True))
        ((start, _),) = [p for p in pairs if p[1] not in self._body.successors]
        ((back, _),) = [p for p in pairs if p[1] in self._body.successors]
        early = start.kind == "constant" and self._ready(back, made) <= stage
        first = self._first_before(stage, module) if early else self._first.at(stage, module)
        text = f"{first} ? {self._like(start, made, stage, module)}"
        text += f" : {self._like(back, made, stage if early else stage + 1, module)}"
        if early:  # a constant is what a register's reset gives
            self._design.register(made, text)
        else:
            self._design.assign(made, text)

    def _ready(self, value: Value, shape: Signal) -> int:
        """Return the stage from which on a value is there, in the lanes of a signal."""
        sources = [self._source(value, lane) for lane in shape.lanes]
        return max((source[0].stage or 0 for source in sources if isinstance(source, tuple)), default=0)

    def _first_before(self, stage: int, module: str) -> str:
        """Return the signal of the first iteration a cycle before it is in a stage: for a register's reset."""
        return self._first.at(stage - 1, module) if stage else self._design.port("start", 1).at(None, module)

    def _widest(self, node: Node) -> Instruction:
        """Return the widest of a node's equal instructions: its operands have all bits that the others need."""
        first = node.instruction
        if is_float(lanes_of(first.type)[1]):
            return first
        return max(
            [first, *self._graph.values[node]], key=self._graph.widths.bits
        )  # the first of those with the same width

    def _operate(self, instruction: Instruction, made: Signal, stage: int | None, cycles: int) -> None:
        opcode = instruction.opcode
        name = callee(instruction).split(".")[1] if callee(instruction).startswith("llvm.") else opcode
        if name in CORES or opcode == "fcmp":
            for i, lane in enumerate(made.lanes):
                self._core(CORES.get(name, "fp32_compare"), instruction, made, i, lane, stage, cycles)
        elif stage is None or not self._select(instruction, made, stage):
            self._design.assign(made, self._expression(instruction, made, stage))

    def _core(
        self, core: str, instruction: Instruction, made: Signal, i: int, lane: int, stage: int | None, cycles: int
    ) -> None:
        count = 1 if instruction.opcode == "call" else 2
        operands = [str(self._lane(o, lane, stage, made.module)) for o in instruction.operands[:count]]
        settings = f".LATENCY({cycles})"
        if core == "fp32_compare":
            settings += f", .MASK(4'd{relation_mask(instruction)})"
        if instruction.opcode == "fsub":
            operands[1] = operands[1] + " ^ 32'h80000000"
        ports = ", ".join(f".{port}({text})" for port, text in zip("ab", operands, strict=False))
        result = Bits(made.name, i * made.width, made.width, made.bits)
        unit = f"{made.name}_core" + (f"_{lane}" if len(made.lanes) > 1 else "")
        if core == "fp32_to_int" and made.width < 32:
            whole = self._design.signal(f"{made.name}_whole", made.module, made.stage, width=32)
            self._design.assign(made, f"{whole.name}[{made.width - 1}:0]")
            result = Bits(whole.name, 0, 32, 32)
        text = f"{core} #({settings}) {unit} (.clock(clock), {ports}, .result({result}));"
        self._design.statement(made.module, stage, text, made.place)

    def _expression(self, instruction: Instruction, made: Signal, stage: int | None) -> str:
        opcode, operands, module, bits = instruction.opcode, instruction.operands, made.module, made.width
        lanes = lanes_of(instruction.type)[0]
        if opcode == "phi":
            return self._merge(instruction, made, stage)
        if opcode == "select":
            one, other = (self._like(o, made, stage, module) for o in operands[1:])
            return f"{self._number(operands[0], 1, stage, module)} ? {one} : {other}"
        if opcode == "fneg":
            parts = [self._lane(operands[0], lane, stage, module) for lane in made.lanes]
            return "{" + ", ".join(f"~{p.part(31, 1)}, {p.part(0, 31)}" for p in reversed(parts)) + "}"
        if opcode == "extractelement":
            return self._extract(instruction, made, stage)
        if lanes == 1 and opcode == "bitcast":
            return self._number(operands[0], bits, stage, module)
        if lanes == 1 and opcode in INTEGER:
            return f" {INTEGER[opcode]} ".join(self._number(o, bits, stage, module) for o in operands)
        if lanes == 1 and opcode in ("shl", "lshr", "ashr"):
            return self._shift(instruction, made, stage)
        if lanes == 1 and opcode == "icmp":
            return self._compare(instruction, stage, module)
        raise NotEmitted(f"no Verilog for {opcode} {instruction.type} at {self._places.text(instruction.line)}")

    def _extract(self, instruction: Instruction, made: Signal, stage: int | None) -> str:
        vector, index = instruction.operands
        if index.kind == "constant":
            return self._lane(vector, constant_number(index.text), stage, made.module).fit(made.width)
        lanes = lanes_of(vector.type)[0]
        parts = [self._lane(vector, lane, stage, made.module) for lane in range(lanes)]
        all_lanes = self._design.signal(
            f"{made.name}_of", made.module, stage, lanes=tuple(range(lanes)), width=parts[0].width
        )
        self._design.assign(all_lanes, joined(parts))
        chosen = self._number(index, (lanes - 1).bit_length(), stage, made.module)
        low = (parts[0].width - 1).bit_length()
        if 1 << low != parts[0].width or parts[0].width != made.width:
            raise NotEmitted(f"a lane of {parts[0].width} bits is selected at {made.place}")
        return f"{all_lanes.name}[{{{chosen}, {low}'b0}} +: {made.width}]"

    def _shift(self, instruction: Instruction, made: Signal, stage: int | None) -> str:
        (value, by), module, bits = instruction.operands, made.module, made.width
        own = self._lane(value, 0, stage, module)
        opcode, whole = instruction.opcode, element_bits(instruction.type)
        if by.kind == "constant":
            count = constant_number(by.text)
            if opcode == "shl":
                return f"{{{own.fit(bits - count)}, {count}'b0}}" if bits > count else f"{bits}'b0"
            if (opcode == "lshr" and own.signed) or count >= own.width:
                own = self._wider(own, made, stage, whole, opcode == "ashr")
            shifted = own.part(count, own.width - count)
            return Bits(shifted.name, shifted.low, shifted.width, shifted.of, opcode == "ashr" and own.signed).fit(bits)
        amount = self._lane(by, 0, stage, module)
        if opcode == "shl":
            return f"{own.fit(bits)} << {amount}"
        own = self._wider(own, made, stage, whole, True)
        shifted = self._design.signal(f"{made.name}_shifted", module, stage, width=whole)
        self._design.assign(shifted, f"$signed({own}) >>> {amount}" if opcode == "ashr" else f"{own} >> {amount}")
        return self._bits(shifted, 0, stage, module).fit(bits)

    def _wider(self, own: Bits, made: Signal, stage: int | None, bits: int, signed: bool) -> Bits:
        """Return a number extended to all bits of its type."""
        wide = self._design.signal(f"{made.name}_from", made.module, stage, width=bits, signed=signed)
        self._design.assign(wide, own.fit(bits))
        return self._bits(wide, 0, stage, made.module)

    def _compare(self, instruction: Instruction, stage: int | None, module: str) -> str:
        predicate = re.search(r"icmp (?:samesign )?(\w+) ", instruction.text)[1]
        sides = [self._lane(o, 0, stage, module) for o in instruction.operands]
        kind = element_bits(instruction.operands[0].type)
        signed = any(side.signed for side in sides)
        bits = max(side.width + (signed and not side.signed) for side in sides)
        sign = COMPARED[predicate[-2:]]
        if signed and predicate[0] == "u":
            bits = kind
        one, other = (side.fit(min(bits, kind)) for side in sides)
        if signed and predicate[0] == "s":
            return f"$signed({one}) {sign} $signed({other})"
        return f"{one} {sign} {other}"

    # --- selections and conditions

    def _select(self, instruction: Instruction, made: Signal, stage: int) -> bool:
        """Assign a selection that may give a constant, if that takes fewer LUTs or delays; return whether it did.

        One of two constants is selected where it is used. If only flip-flops take a selection, the reset of the first
        ones gives the constant; the selection may also be a lane of another one.
        """
        lane = _lane_number(instruction)
        value, lanes = (instruction, made.lanes) if lane is None else (instruction.operands[0], (lane,))
        node, decision = self._graph.node(value), self._decision(value)
        if made.bits == 1 or decision is None or node is None or self._stage(node) != stage:
            return False
        if all(arm.kind == "constant" for arm in decision[1:]):
            texts = [self._like(arm, replace(made, lanes=lanes), stage, made.module) for arm in decision[1:]]
            for n in list(made.uses):
                chosen = self._number(decision[0], 1, n, made.module)
                self._design.assign_anew(made, n, f"{chosen} ? {texts[0]} : {texts[1]}")
            return True
        if made.bits < RESET_BITS or not 0 < made.waits < shortest_shift():
            return False
        found = self._with_constant(decision, replace(made, lanes=lanes), stage)
        if found:
            condition, constant, text = found
            self._design.register_after(made, f"{condition} ? {constant} : {text}")
        return bool(found)

    def _decision(self, value: Value) -> tuple[Value, Value, Value] | None:
        """Return the condition of a selection between two values, and both; None for other instructions."""
        if _opcode(value) == "select":
            return tuple(value.operands)
        if _opcode(value) != "phi" or value in self._graph.phis or value.block not in self._body.successors:
            return None

        def decide(block: str, ways: dict) -> object:
            different = list(dict.fromkeys(way for way in ways.values() if way is not None))
            if len(different) < 2:
                return different[0] if different else None
            branch = self._graph.function.blocks[block][-1]
            return (branch.operands[0], *(ways[target] for target in branch.blocks)) if branch.opcode == "br" else ()

        pairs = zip(value.operands, value.blocks, strict=True)
        came = {block: None if _is_unknown(operand) else operand for operand, block in pairs}
        found = self._selection(self._body, value.block, came.get, None, decide)
        simple = isinstance(found, tuple) and len(found) == 3 and all(isinstance(part, Value) for part in found)
        return found if simple else None

    def _with_constant(
        self, decision: tuple[Value, Value, Value], shape: Signal, stage: int
    ) -> tuple[str, str, str] | None:
        """Return when a selection gives a constant, the constant, and the expression for all other cases.

        The constant may be that of a selection of floats among what it selects. None if there is no constant.
        """
        module, (condition, *arms) = shape.module, decision
        chosen = self._number(condition, 1, stage, module)
        ways = ((*arms, chosen), (*reversed(arms), f"~{chosen}"))
        for arm, other, when in ways:
            if arm.kind == "constant":
                return when, self._like(arm, shape, stage, module), self._like(other, shape, stage, module)
        for arm, other, when in ways:
            node, inner = self._graph.node(arm), self._decision(arm)
            if inner and node and self._stage(node) == stage and is_float(lanes_of(arm.type)[1]):
                found = self._with_constant(inner, shape, stage)
                if found:
                    also, constant, text = found
                    texts = {arm: _atom(text), other: _atom(self._like(other, shape, stage, module))}
                    return f"{when} & {_atom(also)}", constant, f"{chosen} ? {texts[arms[0]]} : {texts[arms[1]]}"
        return None

    def _merge(self, phi: Instruction, made: Signal, stage: int | None) -> str:
        """Return the expression for a phi: a selection by the branches between its block and the block's dominator."""
        module, came = made.module, {}
        for value, block in zip(phi.operands, phi.blocks, strict=True):
            came[block] = None if _is_unknown(value) else self._like(value, made, stage, module)
        body = self._body if stage is not None else self._outside
        return self._selection(body, phi.block, came.get, None, self._chooser(stage, module))

    def _reached(self, block: str, stage: int, module: str) -> str:
        """Return the condition under which a block of the body is reached."""
        conditions = [self._running.at(stage, module)]
        while block != self._body.header:
            chooser = self._chooser(stage, module)
            condition = self._selection(self._body, block, lambda _: "1'h1", "1'h0", chooser)
            if condition != "1'h1":
                conditions.append(_atom(condition))
            block = self._body.above[block]
        return " & ".join(conditions)

    def _selection(self, body: Body, target: str, way_of: Callable, otherwise: object, choose: Callable) -> object:
        """Return the selection that the branches from a block's dominator to the block make.

        `way_of` gives what comes by paths through a predecessor, `otherwise` is that of paths that miss the block.
        `choose` takes a block and, for each block after it, what comes by that way.
        """
        found: dict[str, object] = {}
        for block in body.region(target):
            ways = {o: way_of(block) if o == target else found.get(o, otherwise) for o in body.successors[block]}
            found[block] = choose(block, ways)
        return found[body.above[target]]

    def _chooser(self, stage: int | None, module: str) -> Callable[[str, dict[str, str | None]], str | None]:
        """Return a function that gives the expression for a selection by the branch of a block."""

        def choose(block: str, ways: dict[str, str | None]) -> str | None:
            different = list(dict.fromkeys(text for text in ways.values() if text is not None))
            if len(different) < 2:
                return different[0] if different else None
            branch = self._graph.function.blocks[block][-1]
            if branch.opcode != "br":
                raise NotEmitted(f"a {branch.opcode} at {self._places.text(branch.line)}")
            one, other = (_atom(ways[target]) for target in branch.blocks)
            condition = self._number(branch.operands[0], 1, stage, module)
            if {one, other} == {"1'h1", "1'h0"}:
                return condition if one == "1'h1" else f"~{condition}"
            return f"{condition} ? {one} : {other}"

        return choose

    # --- memories

    def _memories(self) -> dict[Memory, str]:
        by_memory: dict[Memory, dict[str, Node]] = {}
        for node in self._graph.nodes:
            if node.access is not None:
                by_memory.setdefault(node.access.memory, {}).setdefault(node.instruction.opcode, node)
        read_only = [memory for memory, nodes in by_memory.items() if "store" not in nodes]
        host_store = self._design.port(f"{HOST}_store", max(1, len(read_only)))
        described = {}
        for memory, nodes in by_memory.items():
            loads, stores = nodes.get("load"), nodes.get("store")
            module = self._module(loads or stores)
            bit = "" if stores else Bits(host_store.at(None, module), read_only.index(memory), 1, host_store.width)
            self._memory(str(bit), memory, loads, stores, module)
            described[memory] = "KEPT" if loads and stores else "READ" if loads else "WRITTEN"
        return described

    def _memory(self, host_store: str, memory: Memory, load: Node | None, store: Node | None, module: str) -> None:
        """Add a memory; if the loop does not load from it, or does not store to it, the host port has that access."""
        design = self._design
        address_bits = max(1, (memory.words - 1).bit_length())
        made = (
            self._signal_of(load)
            if load
            else design.signal(f"{memory.variable}_read", module, None, width=memory.width)
        )
        name = design.unique(f"{memory.variable}_memory")
        if made.bits != memory.width:
            raise NotEmitted(f"{made.bits} of the {memory.width} bits of a word of {memory.name} are read")
        host_address = f"{design.port(f'{HOST}_address', ADDRESS_BITS).at(None, module)}[{address_bits - 1}:0]"
        ports = {"load_address": host_address}
        cycles = latencies.read_cycles(memory.implementation, memory.latency)
        if load:
            ports["load_address"] = self._address(load.access, address_bits, self._stage(load), module, made.name)
        else:
            design.outputs.append(made)
            self._host_reads[memory] = made.name
        if store:
            stage, value = self._stage(store), store.instruction.operands[0]
            lanes = lanes_of(value.type)[0]
            word = Signal("", module, stage, lanes=tuple(range(lanes)), width=memory.width // lanes)
            ports["store"] = self._reached(store.instruction.block, stage, module)
            ports["store_address"] = self._address(store.access, address_bits, stage, module, f"{name}_store")
            ports["stored"] = self._like(value, word, stage, module)
        else:
            ports["store"] = host_store
            ports["store_address"] = host_address
            ports["stored"] = str(Bits(design.port(f"{HOST}_word", 512).at(None, module), 0, memory.width, 512))
        settings = (
            f".WIDTH({memory.width}), .DEPTH({memory.words}), .ADDRESS({address_bits}), .LATENCY({max(1, cycles)}), "
        )
        settings += f'.STYLE("{STYLES[memory.implementation]}")'
        connected = ", ".join(f".{port}({text})" for port, text in ports.items())
        text = f"memory #({settings}) {name} (.clock(clock), .loaded({made.name}), {connected});"
        design.statement(module, made.stage, text, memory.name)

    def _address(self, access: Access, bits: int, stage: int, module: str, name: str) -> str:
        if access.address is None:
            raise NotEmitted(f"a part of a word of {access.memory.name} is addressed")
        terms = [self._number(v, bits, stage, module) + (f" * {bits}'d{n}" if n > 1 else "") for n, v in access.address]
        if access.offset or not terms:
            terms.append(f"{bits}'d{access.offset}")
        if len(terms) == 1:
            return terms[0]
        made = self._design.signal(f"{name}_address", module, stage, width=bits)
        self._design.assign(made, " + ".join(terms))
        return made.name

    # --- the run

    def _control(self) -> None:
        """Add the loop's control: start an iteration each cycle until the last, and register results of the loop."""
        design, body = self._design, self._body
        start = design.port("start", 1).at(None, MAIN)
        (exit_block,) = body.exits
        branch = self._graph.function.blocks[exit_block][-1]
        last = self._number(branch.operands[0], 1, 1, MAIN)
        if branch.blocks[0] == body.header:
            last = f"~{last}"
        last = last.removeprefix("~~")
        running = self._running.at(0, MAIN)
        design.register(self._first, start)
        design.assign(self._running, f"{self._first.at(0, MAIN)} | {self._running.at(1, MAIN)} & ~{last}")
        left = design.signal("stages_left", MAIN, None, width=16)
        depth = self._schedule.stages + 1
        design.register(left, f"{running} ? 16'd{depth} : {left.name} - {{15'b0, |{left.name}}}")
        busy = design.signal("busy", MAIN, None)
        design.assign(busy, f"{start} | {running} | |{left.name}")
        design.outputs.append(busy)
        for value, name in self._used_after_loop().items():
            stage = self._home(self._graph.node(value))
            kept = design.signal(f"last_{identifier(name)}", MAIN, None, width=element_bits(value.type))
            now = self._number(value, kept.width, stage, MAIN)
            design.register(kept, f"{self._running.at(stage, MAIN)} ? {now} : {kept.name}")
            design.outputs.append(kept)
            result_field = self._result_field(value)
            if result_field:
                self._results.append((kept.name, *result_field, max(1, kept.width // 8)))
            else:
                self._returned = kept.name

    def _used_after_loop(self) -> dict[Instruction, str]:
        """Return the values of the body that are used after the loop, and their names there."""
        used = {}
        for value, instruction in self._uses_after_loop():
            if value in self._inside:
                used.setdefault(value, instruction.name)
        return used

    def _uses_after_loop(self) -> list[tuple[Value, Instruction]]:
        """Return (operand, instruction) for all operands of instructions outside the loop."""
        blocks = self._graph.function.blocks.items()
        outside = [i for block, instructions in blocks if block not in self._body.successors for i in instructions]
        return [(operand, i) for i in outside for operand in i.operands]

    def _result_field(self, value: Instruction) -> tuple[str, int] | None:
        """Return the argument's field in which a value is stored after the loop; None if the function returns it."""
        reached = {value}
        for operand, instruction in self._uses_after_loop():
            if operand in reached and instruction.opcode == "store":
                return self._schedule.memories.field(instruction)
            if operand in reached:
                reached.add(instruction)
        return None


def module_names(graph: Graph, places: SourceLocations) -> dict[int | None, str]:
    """Return the module of each source location: the unit's step, else the file of the function that the loop calls."""
    calls: dict[str, list[int]] = {}
    units = {}
    lines = dict.fromkeys(node.instruction.line for node in graph.values)
    steps = tuple({unit_of(places.chain(line))[0] for line in lines} - {CONTROL})
    for line in lines:
        unit, called = unit_of(places.chain(line))
        if unit == CONTROL:
            files = [Path(place.file).stem for place in places.chain(line)]
            others = [name for name in files if name not in (files[0], *COMMON) and not name.startswith(steps)]
            unit, called = others[0] if others else CONTROL, 0
        units[line] = unit, called
        calls.setdefault(unit, [])
        if called not in calls[unit]:
            calls[unit].append(called)
    return {
        line: f"{unit}_{sorted(calls[unit]).index(called)}" if len(calls[unit]) > 1 else unit
        for line, (unit, called) in units.items()
    }


def _opcode(value: Value) -> str:
    return value.opcode if isinstance(value, Instruction) else ""


def _lane_number(value: Instruction) -> int | None:
    """Return the lane that an instruction takes out of a vector of floats; None for other instructions."""
    if value.opcode != "extractelement" or value.operands[1].kind != "constant" or not is_float(value.type):
        return None
    return constant_number(value.operands[1].text)


def _is_unknown(value: Value) -> bool:
    return value.kind == "constant" and value.text in ("undef", "poison")


def _only_moves(value: Instruction) -> bool:
    """Return True if an instruction only moves lanes of vectors, or waits; it has no signal."""
    if value.opcode == "insertelement":
        return value.operands[2].kind == "constant"
    return value.opcode in ("shufflevector", "delay")


def _atom(text: str) -> str:
    return f"({text})" if re.search(r" [?:|&^+\-<>=*]", text) and text[0] != "{" else text


def relation_mask(fcmp: Instruction) -> int:
    """Return fp32_compare's MASK for a comparison: the relations for which it is true."""
    relation = re.search(r"fcmp (?:\w+ )*?([ou]?(?:eq|ne|lt|le|gt|ge)|ord|uno) ", fcmp.text)[1]
    if relation in ("ord", "uno"):
        return RELATIONS["u"] if relation == "uno" else 7
    kind = {"eq": "e", "ne": "lg", "lt": "l", "le": "le", "gt": "g", "ge": "ge"}[relation[1:]]
    return sum(RELATIONS[one] for one in kind) + (RELATIONS["u"] if relation[0] == "u" else 0)


def constant(value: Value, lane: int) -> Bits:
    """Return a lane of a constant."""
    text, kind = value.text, lanes_of(value.type)[1]
    if text.startswith("splat"):
        text = text[text.index("(") + 1 : -1].split(" ", 1)[1]
    elif text.startswith("<"):
        text = text[1:-1].split(", ")[lane].split(" ", 1)[1]
    bits = element_bits(value.type)
    if text in ("zeroinitializer", "undef", "poison", "null"):
        return number(0, 1 if bits == 1 else min(bits, 32))
    if is_float(kind):
        if text.startswith("0x"):
            (wide,) = struct.unpack(">d", bytes.fromhex(text[2:].zfill(16)))
        else:
            wide = float(text)
        return number(int.from_bytes(struct.pack(">f", wide), "big"), 32)
    whole = constant_number(text)
    if whole < 0 and bits <= 8:
        whole += 1 << bits
    return number(whole, max(1, whole.bit_length() + (whole < 0)))
