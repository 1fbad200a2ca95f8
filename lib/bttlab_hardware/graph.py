"""The data-flow graph of the loop's body: the operators and their inputs, as HLS schedules them."""

import re
from collections import Counter
from dataclasses import dataclass, field

from bttlab_hardware import latencies
from bttlab_hardware.ir import Function, Instruction, Value
from bttlab_hardware.lanes import shuffle_mask, used_lanes
from bttlab_hardware.loops import Body
from bttlab_hardware.memories import Access
from bttlab_hardware.types import element_bits, is_float, lanes_of
from bttlab_hardware.widths import Widths, constant_number

FLOATS = {"fadd": "fadd", "fsub": "fadd", "fmul": "fmul", "fdiv": "fdiv", "fcmp": "fcompare"}
CONVERSIONS = ("fptosi", "fptoui", "sitofp", "uitofp")
INTRINSICS = {
    **{"sqrt": "fsqrt", "floor": "ffloor", "trunc": "ffloor", "fabs": "wire", "copysign": "wire"},
    **{"minnum": "fcompare", "maxnum": "fcompare", "abs": "add"},
    **{name: "compare" for name in ("smax", "smin", "umax", "umin")},
}
IGNORED = ("llvm.lifetime", "llvm.dbg", "llvm.assume", "llvm.experimental.noalias")
GATES = ("and", "or", "xor")
WIRES = ("zext", "sext", "trunc", "bitcast", "freeze", "fneg", "shufflevector", "extractvalue", "insertvalue")
DSP_BITS = (18, 27)  # of the two factors of one DSP48E2, signs included


@dataclass(eq=False, slots=True)
class Node:
    """One operator, load or store of an iteration.

    Attributes
    ----------
    kind : str
        fadd, fmul, fdiv, fsqrt, fcompare, fconvert, ffloor; add, compare, logic, select, shift, multiply, divide;
        load, store; wire, phi; call; unknown.
    inputs : list of Node
        Data, addresses and conditions.
    lanes, bits : int
        Number of parallel operators, and width of each; for a comparison, the width of its operands.
    choices : int
        Number of inputs that a selection chooses from.
    gates : int
        Number of gates with two inputs that were merged into this one.
    clock_mhz : float
        Clock of the schedule, on which the latency of an operator depends.
    """

    instruction: Instruction
    kind: str
    inputs: list["Node"] = field(default_factory=list)
    lanes: int = 1
    bits: int = 1
    choices: int = 2
    access: Access | None = None
    gates: int = 1
    clock_mhz: float = latencies.SLOWER

    @property
    def cycles(self) -> int | None:
        """Latency of an operator with registers inside; None for combinational logic."""
        if self.kind == "load":
            memory = self.access.memory
            return latencies.read_cycles(memory.implementation, memory.latency)
        if self.kind == "divide":
            return self.bits
        if self.kind == "delay":
            return self.instruction.delay
        return latencies.cycles(self.kind, self.clock_mhz)

    @property
    def delay(self) -> float:
        """Nanoseconds of combinational logic, which is chained within a cycle."""
        return latencies.delay(self.kind, self.bits, self.choices)


def _padding(function: Function) -> set[Instruction]:
    """Return the memory copies whose destination is never read: padding between the members of structs."""
    copies, sources, alive = [], {}, set()
    for instruction in (i for block in function.blocks.values() for i in block):
        if instruction.opcode == "call" and callee(instruction).startswith(("llvm.memcpy", "llvm.memset")):
            copies.append(instruction)
            if callee(instruction).startswith("llvm.memcpy"):
                sources.setdefault(_root(instruction.operands[0]), []).append(_root(instruction.operands[1]))
        elif instruction.opcode != "getelementptr" and not callee(instruction).startswith(IGNORED):
            used = instruction.operands[1:] if instruction.opcode == "store" else instruction.operands
            alive.update(_root(o) for o in used if o.type == "ptr" and instruction.opcode != "store")
            alive.update(o for o in instruction.operands[:1] if instruction.opcode == "store" and o.type == "ptr")
    stack = [value for value in alive | set(sources) if _opcode(value) != "alloca" or value in alive]
    while stack:
        for source in sources.pop(stack.pop(), ()):
            alive.add(source)
            stack.append(source)
    return {i for i in copies if _opcode(_root(i.operands[0])) == "alloca" and _root(i.operands[0]) not in alive}


def _opcode(value: Value) -> str:
    return value.opcode if isinstance(value, Instruction) else ""


def _is_one_bit(value: Value) -> bool:
    """Return True if a value is another one masked to a single bit: its comparison with 0 is a wire of that bit."""
    if _opcode(value) != "and" or value.operands[1].kind != "constant":
        return False
    number = constant_number(value.operands[1].text)
    return number is not None and number > 0 and number & (number - 1) == 0


def _root(value: Value) -> Value:
    while _opcode(value) == "getelementptr":
        value = value.operands[0]
    return value


def callee(instruction: Instruction) -> str:
    """Return the name of the function that an instruction calls; empty for other instructions."""
    if instruction.opcode != "call":
        return ""
    match = re.search(r"@([\w.$]+|\"[^\"]*\")\(", instruction.text)
    return match[1].strip('"') if match else "a function through a pointer"


class Graph:
    """Nodes of a loop's body, in topological order.

    Attributes
    ----------
    back : list of (Node, Node)
        Loop-carried values: the node that computes one, and the phi that receives it in the next iteration.
    exits : list of Node
        Conditions that decide whether there is a next iteration.
    alias : dict of Instruction to Value
        Values that equal another one, except for truncation or extension.
    values : dict of Node to list of Instruction
        Instructions that a node computes: equal operations share a node.
    """

    def __init__(
        self, function: Function, body: Body, accesses: dict[Instruction, Access], clock_mhz: float = latencies.SLOWER
    ) -> None:
        self._clock_mhz = clock_mhz
        self.nodes: list[Node] = []
        self.back: list[tuple[Node, Node]] = []
        self.function, self.body, self.accesses = function, body, accesses
        self._by_value: dict[Value, Node | None] = {}
        self._same: dict[tuple, Node] = {}
        self._constant: dict[Value, str] = {}
        self.alias: dict[Value, Value] = {}
        self.values: dict[Node, list[Instruction]] = {}
        order = [i for block in body.order for i in function.blocks[block]]
        self._padding = _padding(function)
        self.phis = dict.fromkeys(i for i in function.blocks[body.header] if i.opcode == "phi")
        self.widths = Widths(order, self.phis)
        self.masks, self.alike = used_lanes(order)
        for phi in self.phis:
            self._by_value[phi] = self._new(phi, "phi", [])
        for block in body.order:
            for instruction in function.blocks[block]:
                if instruction not in self.phis:
                    self._add(instruction)
        self._close()
        self._balance()

    def node(self, value: Value) -> Node | None:
        """Return the node of a value; None if the value is loop-invariant."""
        return self._by_value.get(value)

    def condition(self, block: str) -> Node | None:
        last = self.function.blocks[block][-1]
        return self._by_value.get(last)

    def _close(self) -> None:
        inside = set(self.body.order)
        for phi in self.phis:
            for value, block in zip(phi.operands, phi.blocks, strict=True):
                source = self._by_value.get(value) if block in inside else None
                if source is not None:
                    self.back.append((source, self._by_value[phi]))
        conditions = [self.condition(block) for block in self.body.exits]
        self.exits = [node for node in conditions if node is not None]

    def _balance(self) -> None:
        """Merge chains of gates of one kind into one gate with many inputs, as HLS does: it is built as a tree."""
        used: Counter = Counter(other for node in self.nodes for other in node.inputs)
        used.update([source for source, _ in self.back] + self.exits)
        joined: set[Node] = set()
        for node in self.nodes:
            if node.kind == "logic" and node.instruction.opcode in GATES:
                inputs: list[Node] = []
                for other in node.inputs:
                    if (
                        other.kind == "logic"
                        and other.instruction.opcode == node.instruction.opcode
                        and used[other] == 1
                    ):
                        joined.add(other)
                        inputs += other.inputs
                        node.gates += other.gates
                    else:
                        inputs.append(other)
                node.inputs = list(dict.fromkeys(inputs))
        self.nodes = [node for node in self.nodes if node not in joined]

    def _new(self, instruction: Instruction, kind: str, inputs: list[Node | None], **more) -> Node:
        kept = list(dict.fromkeys(node for node in inputs if node is not None))
        used = 1 if instruction in self.alike else self.masks.get(instruction, 1).bit_count()
        more.setdefault("lanes", used)
        if "bits" not in more and instruction.type not in ("void", "ptr"):
            more["bits"] = self._bits(instruction)
        node = Node(instruction, kind, kept, clock_mhz=self._clock_mhz, **more)
        self.nodes.append(node)
        self.values[node] = []
        return node

    def _bits(self, value: Value) -> int:
        if value.type[0] in "[{%" or value.type == "ptr":
            return 64
        return element_bits(value.type) if is_float(value.type) else self.widths.bits(value)

    def _inputs(self, instruction: Instruction) -> list[Node | None]:
        return [self._by_value.get(operand) for operand in instruction.operands]

    def _reached(self, block: str) -> list[Node | None]:
        """Return the conditions under which a block is reached."""
        conditions: list[Node | None] = []
        seen, stack = set(), [block]
        while stack:
            for other in self.body.controllers(stack.pop()):
                if other not in seen:
                    seen.add(other)
                    conditions.append(self.condition(other))
                    stack.append(other)
        return conditions

    def _add(self, instruction: Instruction) -> None:
        opcode, inputs = instruction.opcode, self._inputs(instruction)
        if opcode in ("load", "store"):
            self._memory(instruction, inputs)
        elif opcode in ("br", "switch"):
            self._branch(instruction, inputs)
        elif opcode == "phi":
            self._merge(instruction, inputs)
        elif opcode in ("getelementptr", "alloca", "ret", "unreachable"):
            pass  # an access has the indices of its address as inputs
        elif opcode == "call" and (callee(instruction).startswith(IGNORED) or instruction in self._padding):
            pass
        else:
            self._operator(instruction, inputs)

    def _memory(self, instruction: Instruction, inputs: list[Node | None]) -> None:
        access = self.accesses.get(instruction)
        address = [self._by_value.get(value) for value in access.index] if access else inputs
        if instruction.opcode == "load":
            node = self._new(instruction, "load", address, access=access, choices=access.choices if access else 1)
            if access is None or access.memory.register:
                node.kind = "select" if node.choices > 1 else "wire"
            self._by_value[instruction] = node
        else:
            conditions = self._reached(instruction.block)
            known = [*inputs[:1], *address, *conditions]
            lanes, bits = lanes_of(instruction.operands[0].type)[0], self._bits(instruction.operands[0])
            self._new(instruction, "store", known, access=access, lanes=lanes, bits=bits)

    def _branch(self, instruction: Instruction, inputs: list[Node | None]) -> None:
        if instruction.opcode == "switch" and inputs[0] is not None:
            cases = max(1, len(instruction.blocks) - 1)
            bits = self._bits(instruction.operands[0])
            self._by_value[instruction] = self._new(instruction, "compare", inputs[:1], lanes=cases, bits=bits)
        elif instruction.operands:
            self._by_value[instruction] = inputs[0]

    def _merge(self, instruction: Instruction, inputs: list[Node | None]) -> None:
        """Add a phi inside the body: a selection by the conditions of the branches that lead to it."""
        pairs = zip(inputs, instruction.operands, strict=True)
        kept = [(n, v) for n, v in pairs if v.text not in ("undef", "poison") or v.kind != "constant"]
        different = {id(n) if n is not None else v.text if v.kind == "constant" else id(v) for n, v in kept}
        if len(different) <= 1:
            self._by_value[instruction] = kept[0][0] if kept else None
            self.alias[instruction] = (kept[0] if kept else (None, instruction.operands[0]))[1]
            if kept and kept[0][0] is None:
                self._constant[instruction] = self._text(kept[0][1])
            return
        conditions = [self.condition(block) for block in self.body.deciders(instruction.block)]
        kind = "logic" if self._bits(instruction) == 1 and not is_float(instruction.type) else "select"
        key = ("phi", instruction.block, *map(self._key, instruction.operands), *instruction.blocks)
        if key not in self._same:
            nodes = [*inputs, *conditions]
            self._same[key] = self._new(instruction, kind, nodes, choices=max(2, len(different)))
        self._by_value[instruction] = self._same[key]
        self.values[self._same[key]].append(instruction)

    def _operator(self, instruction: Instruction, inputs: list[Node | None]) -> None:
        if all(node is None for node in inputs) and instruction.opcode != "call":
            return  # loop-invariant
        same = self._pass_through(instruction)
        if same is not None:
            self.alias[instruction] = same
            self._by_value[instruction] = self._by_value.get(same)
            return
        kind, more = self._kind(instruction)
        words = instruction.text.split("=", 1)[-1].split("!", 1)[0].split()[:3]
        words = [word for word in words if word[0] != "%"]  # the key has operands as nodes
        key = (*words, instruction.type, *map(self._key, instruction.operands))
        if instruction.opcode == "shufflevector":
            key = (*key, *shuffle_mask(instruction.text))
        elif instruction.opcode in ("extractvalue", "insertvalue"):
            key = (*key, instruction.text.split("!dbg", 1)[0].rsplit(",", 2)[-2])
        if key not in self._same or (instruction.opcode == "call" and kind == "call"):
            self._same[key] = self._new(instruction, kind, inputs, **more)
        self._by_value[instruction] = self._same[key]
        self.values[self._same[key]].append(instruction)

    def _key(self, value: Value) -> object:
        """Return a key that equal values share; an extension or truncation that changes the number changes the key."""
        if value in self.alias:
            wider = value.opcode in ("zext", "sext", "trunc") and not self.widths.same(value, self.alias[value])
            inner = self._key(self.alias[value])
            return (value.opcode, value.type, inner) if wider else inner
        node = self._by_value.get(value)
        return id(node) if node is not None else self._text(value)

    def _text(self, value: Value) -> str:
        return self._constant.get(value, f"{value.type} {value.text.split(' = ')[0]}")

    def _pass_through(self, instruction: Instruction) -> Value | None:
        """Return the operand that an instruction passes through, as x + 0 or x | 0 do, which HLS builds as wires."""
        if instruction.opcode in ("zext", "sext", "trunc", "freeze"):
            return instruction.operands[0]
        if len(instruction.operands) != 2:
            return None
        first, second = instruction.operands
        constants = [o.text if o.kind == "constant" else "" for o in instruction.operands]
        number = constant_number(constants[1]) if constants[1] else None
        if (
            instruction.opcode == "icmp"
            and number == 0
            and " icmp ne " in instruction.text
            and self._bits(instruction.operands[0]) == 1
        ):
            return first
        if instruction.opcode == "fsub" and constants[1] in ("zeroinitializer", "0.000000e+00"):
            return first
        if instruction.opcode in ("add", "sub", "or", "xor", "shl", "lshr", "ashr") and number == 0:
            return first
        if instruction.opcode in ("add", "or") and constants[0] and constant_number(constants[0]) == 0:
            return second
        return None

    def _kind(self, instruction: Instruction) -> tuple[str, dict]:
        opcode, operands = instruction.opcode, instruction.operands
        constant = [o.kind == "constant" for o in operands]
        if any(lanes_of(o.type)[1] in ("double", "half", "fp128") for o in (instruction, *operands)):
            return "unknown", {}  # every operator of the machine is FP32
        if opcode in FLOATS:
            return FLOATS[opcode], {"bits": element_bits(operands[0].type)}
        if opcode in CONVERSIONS:
            return "fconvert", {}
        if opcode == "call":
            name = callee(instruction)
            short = name.split(".")[1] if name.startswith("llvm.") else name.removesuffix("f")
            return INTRINSICS.get(short, "call"), {}
        if opcode == "delay":
            return "delay", {}
        if opcode in WIRES:
            return "wire", {}
        if opcode in ("add", "sub"):
            return "add", {}
        if opcode == "icmp":
            if constant[1] and constant_number(operands[1].text) == 0 and _is_one_bit(operands[0]):
                return "wire", {"bits": 1}
            sizes = [self._bits(o) for o in operands]
            kind = "compare" if max(sizes) > 1 else "wire" if any(constant) else "logic"
            return kind, {"bits": max(sizes)}
        if opcode in ("and", "or", "xor"):
            return ("wire" if any(constant) else "logic"), {}
        if opcode == "select":
            one = self._bits(instruction) == 1 and not is_float(instruction.type)
            return ("logic" if one else "select"), {}
        if opcode in ("shl", "lshr", "ashr"):
            return ("wire", {}) if constant[1] else ("shift", {"bits": min(6, self._bits(operands[1]))})
        if opcode == "mul":
            return self._product(instruction, constant)
        if opcode in ("udiv", "sdiv", "urem", "srem"):
            number = constant_number(operands[1].text) if constant[1] else None
            power = number is not None and number > 0 and number & (number - 1) == 0
            return ("add" if power and opcode[0] == "s" else "wire" if power else "divide"), {}
        if opcode == "extractelement":
            return ("wire", {}) if constant[1] else ("select", {"choices": lanes_of(operands[0].type)[0]})
        if opcode == "insertelement":
            return ("wire", {}) if constant[2] else ("select", {})
        return "call" if opcode in ("invoke", "callbr") else "unknown", {}

    def _product(self, instruction: Instruction, constant: list[bool]) -> tuple[str, dict]:
        """Return kind and options of a product; by a constant it is additions, one fewer than the constant's ones."""
        if any(constant):
            number = abs(constant_number(instruction.operands[constant.index(True)].text) or 0)
            return ("wire", {}) if number.bit_count() <= 1 else ("add", {"lanes": number.bit_count() - 1})
        return "multiply", {}
