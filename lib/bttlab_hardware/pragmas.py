"""HLS pragmas of the preprocessed source, with their places."""

import re
from dataclasses import dataclass
from pathlib import Path

_MARKER = re.compile(r'^# (\d+) "([^"]*)"')
_PRAGMA = re.compile(r"^\s*#\s*pragma\s+HLS\s+(\w+)\s*(.*)$", re.IGNORECASE)
_WORD = re.compile(r"(\w+)\s*=\s*([-+*/()\w.,]+)|(\w+)")


@dataclass(frozen=True)
class Pragma:
    """One `#pragma HLS`: its name in upper case, options in lower case: values by name, and words without a value."""

    name: str
    values: dict[str, str]
    words: frozenset[str]
    file: str
    line: int

    @property
    def place(self) -> str:
        return f"{Path(self.file).name}:{self.line}"

    @property
    def variable(self) -> str:
        """The variable that it names; empty if there is none."""
        return self.values.get("variable", "")

    def says(self, *words: str) -> bool:
        """Return True if one of the words is an option, alone or as the value of type=, direction=, dependent=, …"""
        return any(word in self.words or word in map(str.lower, self.values.values()) for word in words)


@dataclass(frozen=True)
class Promise:
    """A DEPENDENCE pragma: the least number of iterations from a store to a load of the same address."""

    variable: str
    distance: int
    line: int


def read_pragmas(preprocessed: str) -> list[Pragma]:
    pragmas, file, line = [], "", 0
    for text in preprocessed.splitlines():
        if marker := _MARKER.match(text):
            file, line = marker[2], int(marker[1]) - 1
            continue
        line += 1
        if match := _PRAGMA.match(text):
            body = re.sub(r"\s*=\s*", "=", match[2])
            values, words = {}, set()
            for key, value, word in _WORD.findall(body):
                if key:
                    values[key.lower()] = value
                else:
                    words.add(word.lower())
            pragmas.append(Pragma(match[1].upper(), values, frozenset(words), file, line))
    return pragmas


def promises(pragmas: list[Pragma], constants: dict[str, int]) -> dict[str, Promise]:
    """Return the distance that DEPENDENCE pragmas of a loop promise for each variable."""
    by_variable = {}
    for pragma in pragmas:
        distance = pragma.values.get("distance")
        if pragma.name == "DEPENDENCE" and distance is not None and not pragma.says("intra", "war", "waw", "false"):
            value = int(distance) if distance.isdigit() else constants.get(distance, 1)
            by_variable[pragma.variable] = Promise(pragma.variable, value, pragma.line)
    return by_variable
