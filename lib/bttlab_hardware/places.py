"""Source locations of instructions, with the calls that were inlined, from LLVM's debug information."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FIELD = re.compile(r"(\w+): (?:!(\d+)|(\d+)|\"([^\"]*)\")")


@dataclass(frozen=True)
class Place:
    """A line of the source; the function's name has its template arguments, and `start` is its first line."""

    function: str
    file: str
    line: int
    start: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


class SourceLocations:
    """The source locations of a module."""

    def __init__(self, metadata: dict[int, str]) -> None:
        self._metadata = metadata
        self.chain = cache(self._chain)
        self._fields = cache(self._read)

    def _read(self, number: int) -> dict[str, str]:
        return {key: ref or value or text for key, ref, value, text in _FIELD.findall(self._metadata.get(number, ""))}

    def _chain(self, number: int | None) -> tuple[Place, ...]:
        """Return the call chain of a location: a line of the outermost function first, the instruction's line last."""
        inner_first = []
        while number is not None:
            location = self._fields(number)
            scope = int(location["scope"])
            while "DISubprogram" not in self._metadata[scope]:
                scope = int(self._fields(scope)["scope"])
            subprogram = self._fields(scope)
            file = self._fields(int(subprogram["file"]))["filename"]
            inner_first.append(Place(subprogram["name"], file, int(location["line"]), int(subprogram.get("line", 0))))
            number = int(location["inlinedAt"]) if "inlinedAt" in location else None
        return tuple(reversed(inner_first))

    def text(self, number: int | None) -> str:
        chain = self._chain(number)
        return str(chain[-1]) if chain else "an unknown line"

    def loop_range(self, number: int | None) -> tuple[tuple[Place, ...], int]:
        """Return the call chain of the place at which a loop begins, and its last line; `number` is its metadata's."""
        if number is None:
            return (), 0
        refs = [int(n) for n in re.findall(r"!(\d+)", self._metadata[number])]
        lines = [self._chain(n) for n in refs if "!DILocation" in self._metadata.get(n, "")]
        return (lines[0], lines[-1][-1].line) if lines else ((), 0)
