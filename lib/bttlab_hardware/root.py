"""Find the function with the machine's loop, and the call paths to it, before anything is inlined."""

import re
from pathlib import Path

from bttlab_hardware.places import Places
from bttlab_hardware.pragmas import Pragma

_DEFINE = re.compile(r"^define [^\n]*?@([\w.$]+|\"[^\"]*\")\(.*?^\}", re.MULTILINE | re.DOTALL)
_CALL = re.compile(r"^\s+(?:%[\w.]+ = )?(?:tail |notail |musttail )?call [^\n]*?@([\w.$]+)\(", re.MULTILINE)
_LOOP = re.compile(r"!llvm\.loop !(\d+)")


def root_function(text: str, pragmas: list[Pragma]) -> str | None:
    """Return the function with a pipelined loop that has the most code, callees included; None if there is none.

    Parameters
    ----------
    text : str
        The module's IR, printed by clang.
    pragmas : list of Pragma
    """
    bodies, calls = _bodies(text)
    places = Places({int(n): body for n, body in re.findall(r"^!(\d+) = (.*)$", text, re.MULTILINE)})
    loops = []
    for name, body in bodies.items():
        for number in {int(n) for n in _LOOP.findall(body)}:
            chain, end = places.loop_range(number)
            if chain:
                loops.append((end - chain[-1].line, name, chain[-1], end))
    functions = set()
    for pragma in (p for p in pragmas if p.name == "PIPELINE"):
        around = [
            loop
            for loop in loops
            if Path(loop[2].file).name == Path(pragma.file).name and loop[2].line <= pragma.line <= loop[3]
        ]
        if around:
            functions.add(min(around, key=lambda loop: loop[0])[1])
    return max(functions, key=lambda name: sum(len(bodies[n]) for n in _reachable(name, calls)), default=None)


def call_paths_to(text: str, name: str) -> int:
    """Return the number of call paths to a function from functions without callers."""
    _, calls = _bodies(text)
    callers = {one: [c for c, called in calls.items() for n in called if n == one] for one in calls}

    def paths(one: str, seen: tuple[str, ...]) -> int:
        if one in seen:
            return 0
        return sum(paths(caller, (*seen, one)) for caller in callers[one]) if callers[one] else 1

    return paths(name, ())


def _bodies(text: str) -> tuple[dict[str, str], dict[str, list[str]]]:
    bodies = {match[1].strip('"'): match[0] for match in _DEFINE.finditer(text)}
    return bodies, {name: [n for n in _CALL.findall(body) if n in bodies] for name, body in bodies.items()}


def _reachable(name: str, calls: dict[str, list[str]]) -> set[str]:
    reached, stack = set(), [name]
    while stack:
        one = stack.pop()
        if one not in reached:
            reached.add(one)
            stack.extend(calls[one])
    return reached
