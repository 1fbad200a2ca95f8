"""Resolve each load and store to a memory: a variable, and constant indices in its partitioned dimensions."""

import re
from collections import Counter
from dataclasses import dataclass, replace

from bttlab_hardware.ir import Instruction, Module, Value
from bttlab_hardware.pragmas import Pragma
from bttlab_hardware.types import Types

ALL_DIMENSIONS = -1


@dataclass(frozen=True)
class Memory:
    """A memory, or a register.

    Attributes
    ----------
    variable : str
        Name in the source; a member of a struct follows a point.
    places : tuple of (int or None)
        Constant index in each partitioned dimension, None in the others.
    words, width : int
        Number of words, and bits of each.
    register : bool
        Whether it is partitioned in every dimension, or without dimensions.
    implementation : str
        uram, bram, lutram or register: from BIND_STORAGE, or HLS's default. "argument" for memory behind a pointer.
    latency : int or None
        Latency of a load, from BIND_STORAGE.
    """

    variable: str
    places: tuple[int | None, ...]
    words: int
    width: int
    register: bool
    implementation: str
    latency: int | None

    @property
    def name(self) -> str:
        return self.variable + "".join("[]" if place is None else f"[{place}]" for place in self.places)


@dataclass(frozen=True)
class Access:
    """One load or store.

    Attributes
    ----------
    index : tuple of Value
        Values from which its address is computed.
    choices : int
        Number of registers that a variable index selects from, else 1.
    address : tuple of (int, Value) or None
        Factors and values: the word's number is `offset` plus the sum of their products. None if the access is not to a
        whole word.
    """

    memory: Memory
    index: tuple[Value, ...]
    choices: int
    address: tuple[tuple[int, Value], ...] | None = None
    offset: int = 0


class Unresolved(Exception):
    """A pointer that does not resolve to one variable; the message gives the reason."""


@dataclass(frozen=True)
class _Pointer:
    base: str
    type: str
    offset: int
    terms: tuple[tuple[int, Value], ...]


def source_name(symbol: str) -> str:
    """Return the source's name of a variable, without C++ mangling and the numbers that inlining adds."""
    if match := re.match(r"_ZZ.*E(\d+)(\w+)$", symbol) or re.match(r"_ZL?(\d+)(\w+)$", symbol):
        return match[2][: int(match[1])]
    if match := re.match(r"_ZN(?:L?\d+\w+?)*?L?(\d+)(\w+)E", symbol):
        return match[2][: int(match[1])]
    return re.sub(r"(\.i\d*|\.addr|\d+)+$", "", symbol.removeprefix("%"))


class Memories:
    """Resolves pointers of a module, with its pragmas ARRAY_PARTITION and BIND_STORAGE."""

    def __init__(self, module: Module, pragmas: list[Pragma]) -> None:
        self._module = module
        self._types = Types(module.types)
        self._partitioned: dict[str, set[int]] = {}
        self._storage: dict[str, Pragma] = {}
        self._known: dict[tuple, Memory] = {}
        for pragma in pragmas:
            if pragma.name == "ARRAY_PARTITION" and pragma.says("complete"):
                dimension = int(pragma.values.get("dim", "1"))
                self._partitioned.setdefault(pragma.variable, set()).add(dimension - 1 if dimension else ALL_DIMENSIONS)
            elif pragma.name == "BIND_STORAGE":
                self._storage[pragma.variable] = pragma

    def access(self, instruction: Instruction) -> Access:
        """Return the access of a load or store; Unresolved if its pointer does not resolve to one variable."""
        return self._place(self._resolve(instruction.operands[-1]))

    def field(self, load: Instruction) -> tuple[str, int]:
        """Return the argument whose field a load reads or a store writes, and the field's offset in bytes, or raise."""
        pointer = self._resolve(load.operands[-1])
        if pointer.type or pointer.terms or not pointer.base.startswith("%"):
            raise Unresolved(f"no field of an argument: {load.text}")
        return pointer.base.strip("%"), pointer.offset

    def _resolve(self, value: Value) -> _Pointer:
        if value.kind == "global":
            return _Pointer(value.text, self._global_type(value.text), 0, ())
        if value.kind == "argument":
            return _Pointer(value.text, "", 0, ())
        if value.kind == "constant":
            return self._constant(value.text)
        match value.opcode:
            case "getelementptr":
                return self._element(value)
            case "alloca":
                kind, _ = self._types.split(value.text.split(" alloca ", 1)[1].removeprefix("inalloca "))
                return _Pointer(value.name, kind, 0, ())
            case "select" | "phi":
                raise Unresolved("a selection between pointers")
            case "load":
                raise Unresolved("a pointer that was loaded")
            case "inttoptr":
                raise Unresolved("a pointer made from an integer")
        raise Unresolved(f"a pointer from {value.opcode}")

    def _global_type(self, symbol: str) -> str:
        if symbol not in self._module.globals:
            raise Unresolved(f"{symbol}, which is no variable that the source defines")
        return self._types.split(self._module.globals[symbol])[0]

    def _constant(self, text: str) -> _Pointer:
        if text.startswith("@"):
            return self._resolve(Value("global", "ptr", text[1:].strip('"')))
        match = re.match(r"getelementptr (?:inbounds |nuw |nusw |inrange\S* )*\((.*)\)$", text)
        if not match:
            raise Unresolved("the null pointer" if text == "null" else f"a pointer {text[:60]}")
        kind, indexing = self._types.split(match[1])
        parts, depth, start = [], 0, 0
        for i, character in enumerate(indexing):
            depth += (character in "([{<") - (character in ")]}>")
            if character == "," and depth == 0:
                parts.append(indexing[start:i].strip())
                start = i + 1
        base, *indices = [part for part in [*parts, indexing[start:].strip()] if part]
        pointer = self._constant(base.removeprefix("ptr ").strip())
        values = [Value("constant", *index.rsplit(" ", 1)) for index in indices]
        return self._walk(pointer, kind, values)

    def _element(self, instruction: Instruction) -> _Pointer:
        body = instruction.text.split("getelementptr ", 1)[1]
        while match := re.match(r"(inbounds|nuw|nusw|inrange\([^)]*\)) ", body):
            body = body[match.end() :]
        kind, _ = self._types.split(body)
        base, *indices = instruction.operands
        return self._walk(self._resolve(base), kind, indices)

    def _walk(self, pointer: _Pointer, kind: str, indices: list[Value]) -> _Pointer:
        offset, terms = pointer.offset, list(pointer.terms)
        for level, index in enumerate(indices):
            if level:
                element = self._types.element(kind)
                if element is None:
                    member, kind = self._types.members(kind)[int(index.text)]
                    offset += member
                    continue
                kind = element
            scale = self._types.size(kind)
            if index.kind == "constant":
                offset += scale * int(index.text)
            else:
                terms.append((scale, index))
        return _Pointer(pointer.base, pointer.type, offset, tuple(terms))

    def _place(self, pointer: _Pointer) -> Access:
        variable, kind, offset = source_name(pointer.base), pointer.type, pointer.offset
        if not kind:
            memory = Memory(variable, (), 0, 0, False, "argument", None)
            return Access(memory, tuple(index for _, index in pointer.terms), 1)
        terms = sorted(pointer.terms, key=lambda term: -term[0])
        shape: list[int] = []
        places: list[int | None] = []  # None: a variable index
        index: list[Value] = []
        address: list[tuple[int, int, list[tuple[int, Value]]]] = []  # for each dimension: size, constant index, terms
        while True:
            array = self._types.array(kind)
            for count, stride in zip(array.shape, array.strides, strict=True):
                here = [(scale // stride, value) for scale, value in terms if scale % stride == 0]
                terms = [(scale, value) for scale, value in terms if scale % stride]
                shape.append(count)
                places.append(None if here else offset // stride)
                address.append((count, offset // stride, here))
                index.extend(value for _, value in here)
                offset -= offset // stride * stride
            kind = array.element
            if kind[0] not in "%{" and not kind.startswith("<{"):
                break
            number, (start, member) = [
                (i, member_at) for i, member_at in enumerate(self._types.members(kind)) if member_at[0] <= offset
            ][-1]
            variable, kind, offset = f"{variable}.{number}", member, offset - start
        index.extend(value for _, value in terms)
        access = self._memory(variable, tuple(shape), tuple(places), 8 * self._types.size(kind), tuple(index))
        if terms or offset:
            return access
        scale, whole, number = 1, [], 0
        for i in reversed(range(len(shape))):
            count, constant, here = address[i]
            if not self._is_partitioned(variable, i):
                whole += [(scale * factor, value) for factor, value in here]
                number, scale = number + scale * constant, scale * count
        return replace(access, address=tuple(whole), offset=number)

    def _is_partitioned(self, variable: str, dimension: int) -> bool:
        partitioned = self._partitioned.get(variable, set())
        return ALL_DIMENSIONS in partitioned or dimension in partitioned

    def _memory(
        self,
        variable: str,
        shape: tuple[int, ...],
        places: tuple[int | None, ...],
        width: int,
        index: tuple[Value, ...],
    ) -> Access:
        partitioned = [self._is_partitioned(variable, i) for i in range(len(shape))]
        register = all(partitioned)
        words = choices = 1
        for count, alone, place in zip(shape, partitioned, places, strict=True):
            if not alone:
                words *= count
            elif place is None and register:
                choices *= count
            elif place is None:
                raise Unresolved(f"a choice between the memories of {variable} by a variable index")
        shown = tuple(place if alone else None for alone, place in zip(partitioned, places, strict=True))
        storage = self._storage.get(variable)
        pinned_latency = storage.values.get("latency") if storage else None
        key = (variable, shown)
        if key not in self._known:
            self._known[key] = Memory(
                variable,
                shown,
                words,
                width,
                register,
                "register" if register else storage.values.get("impl", "bram").lower() if storage else "bram",
                int(pinned_latency) if pinned_latency else None,
            )
        return Access(self._known[key], index, choices)


@dataclass(frozen=True)
class Port:
    """Number of loads and stores of an iteration at a memory, after unrolling."""

    memory: Memory
    loads: int
    stores: int

    @property
    def interval(self) -> int:
        return 1 if self.memory.register else max(1, self.loads, self.stores)


def ports(accesses: list[tuple[Instruction, Access]]) -> list[Port]:
    """Return the ports of all memories, sorted by name.

    Several loads through one pointer count once if the loop does not write the memory: HLS reads the word once.
    """
    written = {access.memory for instruction, access in accesses if instruction.opcode == "store"}
    seen = set()
    counts: Counter = Counter()
    for instruction, access in accesses:
        pointer = instruction.operands[-1]
        if instruction.opcode == "store" or access.memory in written or pointer not in seen:
            counts[access.memory, instruction.opcode] += 1
        seen.add(pointer)
    memories = {access.memory for _, access in accesses}
    key = {memory: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", memory.name)] for memory in memories}
    return [Port(m, counts[m, "load"], counts[m, "store"]) for m in sorted(memories, key=key.__getitem__)]
