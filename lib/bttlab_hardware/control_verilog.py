"""Verilog of the kernel outside the loop: `trainer_control`, a state machine generated from the HLS source."""

import re
from collections import defaultdict
from dataclasses import dataclass, field

from bttlab_hardware.control import KERNEL, LOOP, States
from bttlab_hardware.control_memories import HOST_WORD, ControlMemories
from bttlab_hardware.graph import callee
from bttlab_hardware.ir import Instruction, Value
from bttlab_hardware.memories import Access, Memory, source_name
from bttlab_hardware.rtl import (
    ADDRESS_BITS,
    COMPARED,
    CORES,
    INTEGER,
    LoopVerilog,
    NotEmitted,
    constant,
    relation_mask,
)
from bttlab_hardware.types import element_bits, lanes_of
from bttlab_hardware.verilog import Design, bit_range
from bttlab_hardware.widths import constant_number


@dataclass
class _State:
    """Statements of a state, and the condition under which it ends; `until` is empty for a state of one cycle."""

    place: str = ""
    lines: list[str] = field(default_factory=list)
    last: list[str] = field(default_factory=list)  # executed in its last cycle
    until: str = ""


def _width(kind: str) -> int:
    return lanes_of(kind)[0] * element_bits(kind)


class ControlVerilog:
    """The state machine as Verilog.

    Parameters
    ----------
    plan : States
    loop : LoopVerilog
        The loop of the same source.

    Attributes
    ----------
    text : str
        The module `trainer_control`.
    ports : list of str
        Its port declarations.
    """

    def __init__(self, plan: States, loop: LoopVerilog) -> None:
        self._plan, self.loop = plan, loop
        self._names = Design()
        self._name: dict[Value, str] = {}
        self._kept: dict[Value, None] = {}  # values that a later state uses: each gets a register
        self._loaded: set[Value] = set()  # values whose register `_keep` writes
        self._states = [_State() for _ in range(plan.count)]
        self._memories = ControlMemories(plan, loop, self._names)
        self._registers: dict[tuple[Memory, int], str] = {}
        self._cores: dict[str, str] = {}
        self._wires: list[str] = []
        self._cleared: dict[int, str] = {}  # for some states: the variable whose registers it sets to 0
        self._arguments_of_kernel = [(a.text.strip("%"), a.type) for a in plan.function.arguments]
        for label, block in plan.function.blocks.items():
            for state in range(plan.first[label], plan.last[label] + 1):
                self._states[state].place = plan.places.text(block[-1].line)
            for instruction in block:
                self._emit(label, instruction)
        self.text = self._text()

    # --- values

    def _at(self, value: Value, state: int, label: str) -> str:
        """Return the expression for a value in a state."""
        if value.kind == "constant":
            lanes = lanes_of(value.type)[0]
            if lanes == 1:
                return constant(value, 0).fit(_width(value.type))
            parts = [constant(value, lane).fit(element_bits(value.type)) for lane in range(lanes)]
            return "{" + ", ".join(reversed(parts)) + "}"
        if value.kind == "argument":
            return value.text.strip("%")
        name = self._named(value)
        if value.opcode == "phi":
            return name
        if self._plan.block[value] == label and self._plan.home[value] == state and state not in self._plan.waits:
            return name
        self._kept[value] = None
        return f"{name}_q"

    def _named(self, value: Value) -> str:
        if value not in self._name:
            self._name[value] = self._names.unique(
                value.name if not re.fullmatch(r"%\d+", value.name) else value.opcode
            )
        return self._name[value]

    def _sum(self, terms: list[tuple[int, Value]], offset: int, bits: int, state: int, label: str) -> str:
        parts = []
        for scale, value in terms:
            own, text = _width(value.type), self._at(value, state, label)
            text = (
                f"{text}[{bits - 1}:0]"
                if own > bits
                else f"{{{{{bits - own}{{{text}[{own - 1}]}}}}, {text}}}"
                if own < bits
                else text
            )
            parts.append(f"{text} * {bits}'d{scale}" if scale > 1 else text)
        if offset or not parts:
            parts.append(f"{bits}'d{offset}")
        return " + ".join(parts)

    # --- statements of states

    def _emit(self, label: str, instruction: Instruction) -> None:
        opcode = instruction.opcode
        if opcode == "phi":
            self._named(instruction)
        elif opcode in ("br", "switch", "ret"):
            self._leave(label, instruction)
        elif instruction in self._plan.issue:
            state = self._plan.issue[instruction]
            see = lambda value: self._at(value, state, label)  # noqa: E731
            if self._plan.is_port(instruction):
                self._transfer(instruction, state, label)
            elif opcode == "call":
                self._call(instruction, state)
            elif self._plan.cycles(instruction):
                self._float(instruction, state, see)
            elif opcode in ("load", "store"):
                self._memory(instruction, state, label, see)
            else:
                self._wire(instruction, self._expression(instruction, see))

    def _wire(self, instruction: Instruction, text: str) -> None:
        self._wires.append(f"  wire {bit_range(_width(instruction.type))}{self._named(instruction)} = {text};")

    def _transfer(self, instruction: Instruction, state: int, label: str) -> None:
        """Emit the transfer of one vector from or to HBM."""
        base, offset, terms = self._plan.memories.pointer(instruction)
        name = base.strip("%")
        way = "write" if instruction.opcode == "store" else "read"
        lines = [
            f"{name}_{way} <= 1'b1;",
            f"port_address <= {name} + {self._sum(list(terms), offset, 64, state, label)};",
        ]
        if way == "write":
            lines.append(f"port_written <= {self._at(instruction.operands[0], state, label)};")
        self._states[state].lines += lines
        self._states[state + 1].until = f"{name}_done"
        if way == "read":
            self._keep(instruction, state + 1, f"{name}_word")

    def _keep(self, value: Instruction, state: int, text: str) -> None:
        self._kept[value] = None
        self._states[state].last.append(f"{self._named(value)}_q <= {text};")
        self._loaded.add(value)

    def _call(self, call: Instruction, state: int) -> None:
        if callee(call).startswith("llvm.memset"):
            self._cleared[state] = source_name(
                self._plan.memories.at(call.operands[0], 0).memory.variable.split(".")[0]
            )
            return
        if callee(call) != LOOP:
            raise NotEmitted(f"the kernel calls {callee(call)}, which is not inlined")
        self._states[state].lines.append("loop_start <= 1'b1;")
        self._states[state + 1].until = "~loop_busy"
        self._keep(call, state + 1, self.loop.returned)
        for port, argument, offset in self.loop.results:
            self._states[state + 1].last.append(f"{self._field(argument, offset)} <= {port};")

    def _field(self, argument: str, offset: int) -> str:
        """Return the register of a field of the loop's arguments."""
        access = self._plan.memories.at(self._plan.arguments[argument], offset)
        if access.memory not in self._plan.fixed and access.memory in {a.memory for a in self._plan.access.values()}:
            raise NotEmitted(f"the loop has the argument {access.memory.name}, which is no register")
        return self._register(access)

    def _register(self, access: Access) -> str:
        key = access.memory, access.offset
        if key not in self._registers:
            name = re.sub(
                r"\W+", "_", f"{access.memory.variable}_{access.offset}" if access.offset else access.memory.variable
            )
            self._registers[key] = self._names.unique(f"{name}_field")
        return self._registers[key]

    def _float(self, instruction: Instruction, state: int, see) -> None:
        opcode, operands = instruction.opcode, [see(o) for o in instruction.operands[:2]]
        if opcode == "uitofp" and " nneg " not in instruction.text:
            raise NotEmitted("an unsigned number is converted to FP32")
        if opcode == "fsub":
            operands[1] = f"{operands[1]} ^ 32'h80000000"
        module = CORES.get({"uitofp": "sitofp"}.get(opcode, opcode), "fp32_compare")
        settings = f".LATENCY({self._plan.cycles(instruction)})"
        if opcode == "fcmp":
            settings += f", .MASK(4'd{relation_mask(instruction)})"
        core = f"{module} #({settings})"
        if core not in self._cores:
            self._cores[core] = self._names.unique(f"{module}_result")
        lines = [f"{port} <= {text};" for port, text in zip(("operand_a", "operand_b"), operands, strict=False)]
        self._states[state].lines += [*lines, f"cycles_left <= 5'd{self._plan.cycles(instruction)};"]
        self._states[state + 1].until = "cycles_left == 5'd0"
        self._keep(instruction, state + 1, self._cores[core])

    def _memory(self, instruction: Instruction, state: int, label: str, see) -> None:
        access = self._plan.access[instruction]
        memory, value = access.memory, instruction.operands[0]
        if access.address is None:
            raise NotEmitted(f"a part of a word of {memory.name} at {self._plan.places.text(instruction.line)}")
        if memory in self._plan.fixed:
            register = self._register(access)
            if instruction.opcode == "load":
                self._wire(instruction, register)
            else:
                self._states[state].lines.append(f"{register} <= {see(value)};")
            return
        ram = self._memories.of(memory)
        bits = ADDRESS_BITS if self._plan.is_shared(memory) else max(1, (memory.words - 1).bit_length())
        address = self._sum(list(access.address), access.offset, bits, state, label)
        if instruction.opcode == "store":
            ram.stores[state] = address, see(value)
            return
        ram.loads[state] = address
        ram.loaded = ram.loaded or f"{ram.name}_loaded"
        self._wire(instruction, ram.loaded)

    def _expression(self, instruction: Instruction, see) -> str:
        opcode, operands = instruction.opcode, instruction.operands
        texts, bits = [see(o) for o in operands], _width(instruction.type)
        if opcode in INTEGER:
            return f" {INTEGER[opcode]} ".join(texts)
        if opcode in ("shl", "lshr", "ashr"):
            sign = {"shl": "<<", "lshr": ">>", "ashr": ">>>"}[opcode]
            return f"$signed({texts[0]}) {sign} {texts[1]}" if opcode == "ashr" else f"{texts[0]} {sign} {texts[1]}"
        if opcode in ("sdiv", "srem"):
            number = constant_number(operands[1].text) or 0
            if number <= 0 or number & (number - 1):
                raise NotEmitted(f"a division by {operands[1].text} at {self._plan.places.text(instruction.line)}")
            return f"$signed({texts[0]}) {'/' if opcode == 'sdiv' else '%'} $signed({texts[1]})"
        if opcode == "icmp":
            relation = re.search(r"icmp (?:samesign )?(\w+) ", instruction.text)[1]
            sides = [f"$signed({t})" for t in texts] if relation[0] == "s" else texts
            return f"{sides[0]} {COMPARED[relation[-2:]]} {sides[1]}"
        if opcode == "select":
            return f"{texts[0]} ? {texts[1]} : {texts[2]}"
        if opcode in ("zext", "sext"):
            more, own = bits - _width(operands[0].type), _width(operands[0].type)
            top = f"{texts[0]}[{own - 1}]" if own > 1 else texts[0]
            return f"{{{{{more}{{{top}}}}}, {texts[0]}}}" if opcode == "sext" else f"{{{more}'b0, {texts[0]}}}"
        if opcode == "trunc":
            return f"{texts[0]}[{bits - 1}:0]" if bits > 1 else f"{texts[0]}[0]"
        if opcode in ("bitcast", "freeze"):
            return texts[0]
        if opcode == "extractelement":
            index = constant_number(operands[1].text) if operands[1].kind == "constant" else None
            chosen = f"{texts[1]}[{(lanes_of(operands[0].type)[0] - 1).bit_length() - 1}:0]"
            low = f"{{{chosen}, {(bits - 1).bit_length()}'b0}}" if index is None else index * bits
            return f"{texts[0]}[{low} +: {bits}]"
        if opcode == "insertelement":
            return self._insert(instruction, texts)
        raise NotEmitted(f"no Verilog for {opcode} {instruction.type} at {self._plan.places.text(instruction.line)}")

    @staticmethod
    def _insert(instruction: Instruction, texts: list[str]) -> str:
        vector, index = instruction.operands[0], instruction.operands[2]
        bits, parts = element_bits(instruction.type), []
        for lane in range(lanes_of(instruction.type)[0]):
            before = f"{texts[0]}[{bits * lane + bits - 1}:{bits * lane}]"
            if vector.kind == "constant":
                before = constant(vector, lane).fit(bits)
            if index.kind == "constant":
                parts.append(texts[1] if constant_number(index.text) == lane else before)
            else:
                parts.append(f"{texts[2]} == {_width(index.type)}'d{lane} ? {texts[1]} : {before}")
        return "{" + ", ".join(reversed(parts)) + "}"

    def _leave(self, label: str, end: Instruction) -> None:
        state, lines = self._plan.last[label], self._states[self._plan.last[label]].lines

        def enter(target: str) -> str:
            moved = []
            for phi in (i for i in self._plan.function.blocks[target] if i.opcode == "phi"):
                (value,) = {v for v, b in zip(phi.operands, phi.blocks, strict=True) if b == label}
                if value is not phi and value.text not in ("undef", "poison"):
                    moved.append(f"{self._named(phi)} <= {self._at(value, state, label)};")
            return " ".join([*moved, f"state <= {self._plan.number(self._plan.first[target])};"])

        if end.opcode == "ret":
            lines.append("done <= 1'b1; state <= 0;")
        elif len(end.blocks) == 1:
            lines.append(enter(end.blocks[0]))
        elif end.opcode == "br":
            lines.append(f"if ({self._at(end.operands[0], state, label)}) begin {enter(end.blocks[0])} end")
            lines.append(f"else begin {enter(end.blocks[1])} end")
        else:
            cases = re.findall(r"i\d+ (-?\d+), label", end.text.split("[", 1)[1])
            lines.append(f"case ({self._at(end.operands[0], state, label)})")
            for number, target in zip(cases, end.blocks[1:], strict=True):
                lines.append(f"  {_width(end.operands[0].type)}'d{number}: begin {enter(target)} end")
            lines += [f"  default: begin {enter(end.blocks[0])} end", "endcase"]

    # --- the module

    def _text(self) -> str:
        ports = self.ports = self._ports()
        lines = [
            "// The kernel around the loop, made by: bttlab rtl. A state takes a cycle, or waits for what stands there."
        ]
        lines += [f"module {KERNEL}_control (", ",\n".join(f"  {p}" for p in ports), ");"]
        lines.append(f"  reg {bit_range((len(self._states) - 1).bit_length())}state;")
        lines += ["  reg [31:0] operand_a, operand_b;", "  reg [4:0] cycles_left;"]
        for (memory, _), name in self._registers.items():
            lines.append(f"  reg {bit_range(memory.width)}{name};  // {memory.name}")
        for value in self._name:
            if value.opcode == "phi":
                lines.append(f"  reg {bit_range(_width(value.type))}{self._name[value]};")
        lines += [f"  reg {bit_range(_width(v.type))}{self._named(v)}_q;" for v in self._kept]
        for core, result in self._cores.items():
            width = 1 if core.startswith("fp32_compare") else 32
            lines.append(f"  wire {bit_range(width)}{result};")
            b = "" if core.startswith("fp32_from") else ".b(operand_b), "
            lines.append(f"  {core} {result}_core (.clock(clock), .a(operand_a), {b}.result({result}));")
        lines += self._memories.text() + self._wires + self._process()
        return "\n".join([*lines, "endmodule", ""])

    def _ports(self) -> list[str]:
        lines = ["input wire clock, reset, start", "output reg done"]
        for name, kind in self._arguments_of_kernel:
            lines.append(f"input wire {bit_range(_width(kind))}{name}")
            if kind == "ptr":
                lines += [
                    f"output reg {name}_read, {name}_write",
                    f"input wire {name}_done",
                    f"input wire [511:0] {name}_word",
                ]
        lines += ["output reg [63:0] port_address", "output reg [511:0] port_written"]
        lines += [f"output reg [{ADDRESS_BITS - 1}:0] host_address", f"output reg [{HOST_WORD - 1}:0] host_word"]
        lines += [
            f"output reg {bit_range(len(self.loop.host_writes))}host_store",
            "output reg loop_start",
            "input wire loop_busy",
        ]
        lines += [f"input wire {bit_range(memory.width)}{name}" for memory, name in self.loop.host_reads.items()]
        fields = {port: self._field(argument, offset) for port, argument, offset in self.loop.inputs}
        widths = {name: memory.width for (memory, _), name in self._registers.items()}
        lines += [f"output wire {bit_range(widths[register])}{port}" for port, register in fields.items()]
        self._wires += [f"  assign {port} = {register};" for port, register in fields.items()]
        results = {port: widths[self._field(argument, offset)] for port, argument, offset in self.loop.results}
        results[self.loop.returned] = 32
        return [*lines, *(f"input wire {bit_range(width)}{port}" for port, width in results.items())]

    def _process(self) -> list[str]:
        pulses = [
            f"{name}_{way}" for name, kind in self._arguments_of_kernel if kind == "ptr" for way in ("read", "write")
        ]
        lines = ["  always @(posedge clock) begin", "    done <= 1'b0;", "    loop_start <= 1'b0;"]
        lines += [f"    {pulse} <= 1'b0;" for pulse in pulses]
        lines += [f"    host_store <= {len(self.loop.host_writes)}'d0;"]
        lines += [
            "    if (cycles_left != 5'd0) cycles_left <= cycles_left - 5'd1;",
            "    if (reset) begin",
            f"      state <= {self._plan.number(0)};",
        ]
        lines += [f"      {name} <= {memory.width}'d0;" for (memory, _), name in self._registers.items()]
        lines += [
            "    end else",
            "      case (state)",
            f"        {self._plan.number(0)}: if (start) state <= {self._plan.number(1)};",
        ]
        kept: dict[int, list[str]] = defaultdict(list)
        for value in self._kept:
            if value not in self._loaded:
                kept[self._plan.home[value]].append(f"{self._named(value)}_q <= {self._named(value)};")
        ends = set(self._plan.last.values())
        for number, state in enumerate(self._states[1:], 1):
            body = [
                f"{name} <= {m.width}'d0;"
                for (m, _), name in self._registers.items()
                if number in self._cleared and m.variable.split(".")[0] == self._cleared[number]
            ]
            body += kept[number] + state.lines + self._memories.lines[number] + state.last
            if number not in ends:
                body.append(f"state <= {self._plan.number(number + 1)};")
            begin = f"if ({state.until}) begin" if state.until else "begin"
            lines += [
                f"        {self._plan.number(number)}: {begin}  // {state.place}",
                *(f"          {text}" for text in body),
                "        end",
            ]
        return [*lines, f"        default: state <= {self._plan.number(0)};", "      endcase", "  end"]
