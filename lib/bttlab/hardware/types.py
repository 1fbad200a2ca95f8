"""LLVM's types: how many bytes they take, and how an array nests."""

import re
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod

_SCALARS = {"float": 32, "double": 64, "half": 16, "ptr": 64}
POINTER_BYTES = 8


@cache
def element_bits(kind: str) -> int:
    """Return the bits of a scalar, or of a vector's element."""
    _, element = lanes_of(kind)
    return _SCALARS[element] if element in _SCALARS else int(element.removeprefix("i"))


@cache
def lanes_of(kind: str) -> tuple[int, str]:
    """Return how many elements a vector has, and their type; a scalar has one."""
    match = re.fullmatch(r"<(\d+) x (\w+)>", kind)
    return (int(match[1]), match[2]) if match else (1, kind)


def is_float(kind: str) -> bool:
    """Return whether a scalar or a vector's element is a floating point number."""
    return lanes_of(kind)[1] in ("float", "double", "half")


@dataclass(frozen=True)
class Array:
    """An array as a global variable is one: dimensions outermost first, and what is in it.

    Attributes
    ----------
    shape : tuple of int
    element : str
        Type of an element: a scalar, a vector or a struct.
    strides : tuple of int
        Bytes between neighbours of each dimension.
    """

    shape: tuple[int, ...]
    element: str
    element_bytes: int

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbours of each dimension."""
        return tuple(self.element_bytes * prod(self.shape[i + 1 :]) for i in range(len(self.shape)))


class Types:
    """Sizes of types, with the module's named structs.

    Parameters
    ----------
    structs : dict of str to str
        Bodies of the named ones.
    """

    def __init__(self, structs: dict[str, str]) -> None:
        self._structs = structs

    def split(self, text: str) -> tuple[str, str]:
        """Return the type that a text begins with, and the rest of the text."""
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
        """Return the bytes between two of a type in an array."""
        return self._layout(kind)[0]

    def element(self, kind: str) -> str | None:
        """Return what an array or vector is made of."""
        match = re.fullmatch(r"[\[<]\d+ x (.*)[\]>]", kind, re.DOTALL)
        return match[1] if match else None

    def members(self, kind: str) -> list[tuple[int, str]]:
        """Return offset and type of a struct's members."""
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
        """Return a global variable's type as an array; one that is none has no dimension."""
        shape = []
        while kind.startswith("["):
            shape.append(int(re.match(r"\[(\d+) x", kind)[1]))
            kind = self.element(kind)
        return Array(tuple(shape), kind, self.size(kind))

    def _layout(self, kind: str) -> tuple[int, int]:
        """Size and alignment in bytes."""
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
