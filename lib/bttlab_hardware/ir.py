"""LLVM IR as Python objects: operands come from llvmlite, the rest from the printed module."""

import ctypes
import re
from dataclasses import dataclass, field

_LABEL = re.compile(r"label %(\"[^\"]*\"|[-\w.$]+)")
_LINE = re.compile(r"!dbg !(\d+)")
_LOOP = re.compile(r"!llvm\.loop !(\d+)")
_STRUCT = re.compile(r"^(%[\w.\":]+) = type (.*)$", re.MULTILINE)
_GLOBAL = re.compile(
    r"^@([\w.$]+|\"[^\"]*\") = (?:[a-z_]+ )*?(?:global|constant) (.*)$",
    re.MULTILINE,
)


@dataclass(eq=False, slots=True)
class Value:
    """A constant, an argument, a global variable or a function; its type is in LLVM's syntax.

    `kind` is "constant", "argument", "global", "instruction" or "block"; `text` is the value of a constant, else the
    name.
    """

    kind: str
    type: str
    text: str


@dataclass(eq=False, slots=True)
class Instruction(Value):
    """An instruction; `text` is the whole line.

    Attributes
    ----------
    blocks : list of str
        Targets of a branch; for a phi, the predecessor of each operand.
    line : int or None
        Number of its !DILocation.
    loop : int or None
        Number of the loop's metadata, if the instruction ends a latch.
    delay : int
        Cycles of a `delay`: a call of a delay block, which returns its argument that much later.
    """

    opcode: str = ""
    operands: list[Value] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    block: str = ""
    line: int | None = None
    loop: int | None = None
    delay: int = 0

    @property
    def name(self) -> str:
        """Name in the IR; empty if it has no result."""
        return self.text.split(" = ", 1)[0].strip() if " = " in self.text else ""


@dataclass(eq=False)
class Function:
    name: str
    blocks: dict[str, list[Instruction]]
    arguments: list[Value] = field(default_factory=list)

    def successors(self, block: str) -> list[str]:
        last = self.blocks[block][-1]
        return list(dict.fromkeys(last.blocks)) if last.opcode in ("br", "switch") else []


@dataclass(eq=False)
class Module:
    """Functions, global variables (types and initializers as text), bodies of named structs, lines of the source."""

    functions: list[Function]
    globals: dict[str, str]
    types: dict[str, str]
    metadata: dict[int, str]


def read_module(module) -> Module:
    text = str(module)
    metadata = {int(n): body for n, body in re.findall(r"^!(\d+) = (.*)$", text, re.MULTILINE)}
    variables = {name.strip('"'): body for name, body in _GLOBAL.findall(text)}
    functions = [_read_function(f, text) for f in module.functions if not f.is_declaration]
    return Module(functions, variables, dict(_STRUCT.findall(text)), metadata)


def _address(value) -> int:
    return ctypes.cast(value._ptr, ctypes.c_void_p).value


def _body(name: str, text: str) -> list[str]:
    """Return the printed instructions of a function, one string each."""
    quoted = name if re.fullmatch(r"[-\w.$]+", name) else f'"{name}"'
    start = re.search(rf"^define [^\n]*@{re.escape(quoted)}\(.*$", text, re.MULTILINE).end()
    lines, instructions = text[start : text.index("\n}", start)].split("\n"), []
    inside_switch = False
    for line in lines:
        if inside_switch:
            instructions[-1] += " " + line.strip()
            inside_switch = line.strip()[:1] != "]"
        elif line.startswith("  ") and line.strip() and not line.lstrip().startswith(("#dbg_", ";")):
            instructions.append(line.strip())
            inside_switch = line.lstrip().startswith("switch ") and "]" not in line
    return instructions


def _labels(name: str, text: str) -> list[str]:
    """Return the labels of a function's blocks in order; the first block may have none."""
    quoted = name if re.fullmatch(r"[-\w.$]+", name) else f'"{name}"'
    start = re.search(rf"^define [^\n]*@{re.escape(quoted)}\(.*$", text, re.MULTILINE).end()
    return re.findall(r"^(\"[^\"]*\"|[-\w.$]+):", text[start : text.index("\n}", start)], re.MULTILINE)


def _type(ref, known: dict[int, str]) -> str:
    address = _address(ref.type)
    if address not in known:
        known[address] = str(ref.type)
    return known[address]


def _read_function(function, text: str) -> Function:
    types: dict[int, str] = {}
    lines = iter(_body(function.name, text))
    blocks = list(function.blocks)
    labels = _labels(function.name, text)
    labels = ([""] if len(labels) < len(blocks) else []) + labels
    name_of = {_address(block): label for block, label in zip(blocks, labels, strict=True)}
    known: dict[int, Value] = {
        _address(a): Value("argument", _type(a, types), f"%{a.name}") for a in function.arguments
    }
    pairs: list[tuple[object, Instruction]] = []
    result: dict[str, list[Instruction]] = {}
    for block, label in zip(blocks, labels, strict=True):
        result[label] = []
        for ref in block.instructions:
            line = next(lines)
            instruction = Instruction("instruction", _type(ref, types), line, opcode=ref.opcode, block=label)
            instruction.line = int(m[1]) if (m := _LINE.search(line)) else None
            instruction.loop = int(m[1]) if (m := _LOOP.search(line)) else None
            if instruction.opcode in ("br", "switch"):
                instruction.blocks = _LABEL.findall(line)
            elif instruction.opcode == "phi":
                instruction.blocks = [name_of[_address(b)] for b in ref.incoming_blocks]
            known[_address(ref)] = instruction
            pairs.append((ref, instruction))
            result[label].append(instruction)
    for ref, instruction in pairs:
        for operand in ref.operands:
            if _address(operand) in known or operand.value_kind.name not in ("basic_block", "metadata_as_value"):
                instruction.operands.append(_operand(operand, known, types))
    return Function(function.name, result, [v for v in known.values() if v.kind == "argument"])


def _operand(operand, known: dict[int, Value], types: dict[int, str]) -> Value:
    address = _address(operand)
    if address not in known:
        if operand.value_kind.name in ("global_variable", "function"):
            known[address] = Value("global", "ptr", operand.name)
        else:
            kind, whole = _type(operand, types), str(operand)
            known[address] = Value("constant", kind, whole.removeprefix(kind).strip())
    return known[address]
