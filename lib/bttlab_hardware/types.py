"""LLVM types: sizes, layouts of structs, and dimensions of arrays."""

import re
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod

_SCALARS = {"float": 32, "double": 64, "half": 16, "ptr": 64}
POINTER_BYTES = 8


@cache
def element_bits(kind: str) -> int:
    """Return the bits of a scalar, or of an element of a vector."""
    _, element = lanes_of(kind)
    return _SCALARS[element] if element in _SCALARS else int(element.removeprefix("i"))


@cache
def lanes_of(kind: str) -> tuple[int, str]:
    """Return the number of elements of a vector, and their type; a scalar has one element."""
    match = re.fullmatch(r"<(\d+) x (\w+)>", kind)
    return (int(match[1]), match[2]) if match else (1, kind)


def is_float(kind: str) -> bool:
    return lanes_of(kind)[1] in ("float", "double", "half")


@dataclass(frozen=True)
class Array:
    """A nested array type: its shape, outermost first, and a scalar, vector or struct as element."""

    shape: tuple[int, ...]
    element: str
    element_bytes: int

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbours of each dimension."""
        return tuple(self.element_bytes * prod(self.shape[i + 1 :]) for i in range(len(self.shape)))


class Types:
    """Sizes of types, with the bodies of the module's named structs."""

    def __init__(self, structs: dict[str, str]) -> None:
        self._structs = structs

    def split(self, text: str) -> tuple[str, str]:
        """Split a text into the type that it begins with, and the rest."""
        text = text.lstrip()
        if text[0] in "[<{":
            depth, close = 0, {"[": "]", "<": ">", "{": "}"}[text[0]]
            for i, character in enumerate(text):
                depth += (character == text[0]) - (character == close)
                if depth == 0:
                    return text[: i + 1], text[i + 1 :]
        match = re.match(r"%\"[^\"]*\"|%[\w.:]+|\w+", text)
        return match[0], text[match.end() :]

    def size(self, kind: str) -> int:
        """Return the bytes of an element of a type in an array, padding included."""
        return self._layout(kind)[0]

    def element(self, kind: str) -> str | None:
        """Return the element type of an array or vector; None for other types."""
        match = re.fullmatch(r"[\[<]\d+ x (.*)[\]>]", kind, re.DOTALL)
        return match[1] if match else None

    def members(self, kind: str) -> list[tuple[int, str]]:
        """Return the offset in bytes and the type of each member of a struct."""
        body = self._structs.get(kind, kind).strip()
        packed = body.startswith("<{")
        body = body.strip("<>").strip()[1:-1].strip()
        offsets, offset = [], 0
        while body:
            member, body = self.split(body)
            size, alignment = self._layout(member)
            offset += 0 if packed else -offset % alignment
            offsets.append((offset, member))
            offset += size
            body = body.lstrip().removeprefix(",").lstrip()
        return offsets

    def array(self, kind: str) -> Array:
        """Return a type as an array; a type that is no array has no dimensions."""
        shape = []
        while kind.startswith("["):
            shape.append(int(re.match(r"\[(\d+) x", kind)[1]))
            kind = self.element(kind)
        return Array(tuple(shape), kind, self.size(kind))

    def _layout(self, kind: str) -> tuple[int, int]:
        """Return size and alignment in bytes."""
        if kind in self._structs or kind[0] == "{" or kind.startswith("<{"):
            members = self.members(kind)
            if not members:
                return 1, 1
            layouts = [self._layout(member) for _, member in members]
            alignment = max(alignment for _, alignment in layouts)
            end = members[-1][0] + layouts[-1][0]
            return end + -end % alignment, alignment
        if kind[0] == "[":
            count, (size, alignment) = int(re.match(r"\[(\d+) x", kind)[1]), self._layout(self.element(kind))
            return count * size, alignment
        if kind[0] == "<":
            count, size = int(re.match(r"<(\d+) x", kind)[1]), self._layout(self.element(kind))[0]
            return count * size, count * size
        size = POINTER_BYTES if kind == "ptr" else max(1, element_bits(kind) // 8)
        return size, size
