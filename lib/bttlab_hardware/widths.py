"""Bit widths of integers: HLS builds only the bits that can be set and that are read."""

from collections.abc import Iterable

from bttlab_hardware.ir import Instruction, Value
from bttlab_hardware.types import element_bits, is_float

Range = tuple[int, int]
ROUNDS = 4  # of the range analysis; a range that still grows afterwards is widened to that of its type


def constant_number(text: str) -> int | None:
    """Return the integer value of a constant's text; None if it is no integer. zeroinitializer is 0."""
    match text:
        case "true":
            return 1
        case "false" | "zeroinitializer" | "null":
            return 0
    try:
        return int(text)
    except ValueError:
        return None


def bits_of(low: int, high: int) -> int:
    """Return the number of bits that a range takes, with a sign bit if it has negative numbers."""
    return max(high.bit_length() + (low < 0), (-low - 1).bit_length() + 1 if low < 0 else 0, 1)


def full_range(kind: str) -> Range:
    """Return the range of a type: unsigned for i1 and i8 (truth values), else signed."""
    bits = element_bits(kind)
    return (0, 2**bits - 1) if bits <= 8 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


class Widths:
    """Bit widths of the integers of a loop's body, by range analysis forward and demanded bits backward.

    The body is in topological order, loop-carried values excepted.
    """

    def __init__(self, order: Iterable[Instruction], header_phis: set[Instruction]) -> None:
        self._order = [i for i in order if not is_float_or_other(i.type)]
        self._ranged = set(self._order)
        self._ranges: dict[Instruction, Range] = {}
        wide: set[Instruction] = set()
        for number in range(2 * ROUNDS):
            grown = []
            for instruction in self._order:
                new = full_range(instruction.type) if instruction in wide else self._range(instruction)
                if new is not None and self._ranges.get(instruction) != new:
                    self._ranges[instruction] = new
                    if instruction in header_phis:
                        grown.append(instruction)
            if number >= ROUNDS:
                wide.update(grown)
            if number and not grown:
                break
        else:
            for instruction in self._order:
                self._ranges[instruction] = full_range(instruction.type)
        self._demanded = self._demanded_bits(list(order))

    def bits(self, value: Value) -> int:
        """Return the number of bits of an integer that are built."""
        if value.kind == "constant":
            number = constant_number(value.text)
            return 1 if number is None else bits_of(number, number)
        if value not in self._ranges:
            return element_bits(value.type)
        own = min(element_bits(value.type), bits_of(*self._ranges[value]))
        return max(1, min(own, self._demanded.get(value, own)))

    def signed(self, value: Value) -> bool:
        """Return True if an integer may be negative."""
        if value.kind == "constant":
            return (constant_number(value.text) or 0) < 0
        return self._ranges.get(value, full_range(value.type))[0] < 0

    def same(self, one: Value, other: Value) -> bool:
        """Return True if an integer and its extension or truncation are the same number."""
        ranges = [self._ranges.get(value, full_range(value.type)) for value in (one, other)]
        return ranges[0] == ranges[1]

    def _known(self, value: Value) -> Range | None:
        if value.kind == "constant":
            number = constant_number(value.text)
            if number is not None:
                return number, number
            return None if value.text in ("undef", "poison") else full_range(value.type)
        if value.kind == "instruction":
            if is_float_or_other(value.type):
                return None
            return self._ranges.get(value) or (None if value in self._ranged else full_range(value.type))
        return full_range(value.type)

    def _range(self, instruction: Instruction) -> Range | None:
        kind = instruction.type
        operands = [self._known(o) for o in instruction.operands]
        bounds = _transfer(instruction, operands)
        if bounds is None:
            return None
        least, most = full_range(kind)
        if instruction.opcode == "trunc" and not (least <= bounds[0] and bounds[1] <= most):
            return 0, 2 ** element_bits(kind) - 1
        if bounds[0] < min(least, -(2 ** (element_bits(kind) - 1))) or bounds[1] > 2 ** element_bits(kind) - 1:
            return least, most
        return bounds

    def _demanded_bits(self, order: list[Instruction]) -> dict[Value, int]:
        """Return the number of low bits of each integer that are read."""
        demanded: dict[Value, int] = {}
        for _ in range(64):
            changed = False
            for instruction in reversed(order):
                own = demanded.get(instruction, 0)
                for value, bits in _demands(instruction, own):
                    if value.kind == "instruction" and demanded.get(value, 0) < bits:
                        demanded[value] = bits
                        changed = True
            if not changed:
                break
        return demanded


def is_float_or_other(kind: str) -> bool:
    """Return True if a type is neither an integer nor a vector of integers."""
    return kind in ("void", "ptr") or kind[0] in "[{%" or kind.startswith("<{") or "ptr" in kind or is_float(kind)


def _transfer(instruction: Instruction, operands: list[Range | None]) -> Range | None:
    """Return the range of a result; None while no operand has a range."""
    kind = instruction.type
    full = full_range(kind)
    match instruction.opcode:
        case "phi" | "select":
            known = [r for r in operands[instruction.opcode == "select" :] if r is not None]
            return (min(r[0] for r in known), max(r[1] for r in known)) if known else None
        case "icmp" | "fcmp":
            return 0, 1
        case "load" | "call" | "fptosi" | "fptoui" | "bitcast":
            return full
    if any(r is None for r in operands[:2]) or not operands:
        return None if any(r is None for r in operands) else full
    (a, b), (c, d) = operands[0], operands[min(1, len(operands) - 1)]
    match instruction.opcode:
        case "zext":
            return (a, b) if a >= 0 else (0, 2 ** element_bits(instruction.operands[0].type) - 1)
        case "sext":
            top = 2 ** (element_bits(instruction.operands[0].type) - 1)
            return (a, b) if -top <= a and b < top else (-top, top - 1)
        case "trunc" | "freeze" | "delay" | "extractelement" | "shufflevector":
            return a, b
        case "insertelement":
            return min(a, c), max(b, d)
        case "add":
            return a + c, b + d
        case "sub":
            return a - d, b - c
        case "mul":
            corners = (a * c, a * d, b * c, b * d)
            return min(corners), max(corners)
        case "and":
            limits = [high for low, high in ((a, b), (c, d)) if low >= 0]
            return (0, min(limits)) if limits else full
        case "or" | "xor":
            if a >= 0 and c >= 0:
                return 0, 2 ** max(b.bit_length(), d.bit_length()) - 1
            bits = max(bits_of(a, b), bits_of(c, d))
            return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        case "lshr" | "ashr":
            if a >= 0 and c >= 0:
                return a >> min(d, 64), b >> c
            if instruction.opcode == "ashr" and c >= 0:
                return a >> c, max(b >> c, b >> min(d, 64))
            bits = element_bits(kind)
            return (0, (2**bits - 1) >> c) if c > 0 else full
        case "shl":
            return (a << d if a < 0 else a << c, b << d) if 0 <= c <= d < 64 else full
    return full


def _demands(instruction: Instruction, own: int) -> list[tuple[Value, int]]:
    """Return the number of low bits that an instruction reads of each operand, if `own` low bits of it are read."""
    operands = instruction.operands
    whole = [(o, 0 if is_float_or_other(o.type) else element_bits(o.type)) for o in operands if o.type != "void"]
    match instruction.opcode:
        case "add" | "sub" | "mul" | "or" | "xor":
            return [(o, min(own, element_bits(o.type))) for o in operands]
        case "and":
            limits = [constant_number(o.text) for o in operands if o.kind == "constant"]
            limits = [own] + [n.bit_length() for n in limits if n is not None and n >= 0]
            return [(o, min(limits)) for o in operands]
        case "trunc" | "zext" | "sext" | "phi" | "freeze" | "delay" | "shufflevector":
            return [(o, min(own, element_bits(o.type))) for o in operands if not is_float_or_other(o.type)]
        case "select":
            chosen = [(o, min(own, element_bits(o.type))) for o in operands[1:] if not is_float_or_other(o.type)]
            return [(operands[0], 1), *chosen]
        case "shl" if operands[1].kind == "constant":
            shift = constant_number(operands[1].text) or 0
            return [(operands[0], max(0, own - shift))]
        case "lshr" | "ashr" if operands[1].kind == "constant":
            shift = constant_number(operands[1].text) or 0
            return [(operands[0], min(element_bits(operands[0].type), own + shift) if own else 0)]
        case "extractelement":
            inner = 0 if is_float_or_other(operands[0].type) else own
            return [(operands[0], inner), (operands[1], element_bits(operands[1].type))]
        case "insertelement":
            inner = 0 if is_float_or_other(operands[0].type) else own
            return [(operands[0], inner), (operands[1], inner), (operands[2], element_bits(operands[2].type))]
    return whole
