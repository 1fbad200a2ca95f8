"""Modelled cycles of a program by stage and layer."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from bttlab.compiler.instruction import Instruction
from bttlab.compiler.listing import layer_of
from bttlab.compiler.program import Program
from bttlab.compiler.timing import time_program

Table = Counter[tuple[str, str]]


def cycles_by_instruction(
    instructions: Sequence[Instruction], lengths: Sequence[int], updates: bool = True
) -> np.ndarray:
    """Return the cycles of one run of the loop by instruction, int of shape (instructions, lengths).

    They are counted as in `cycles_by_layer`: their sum is the run's.
    """
    timing = time_program(instructions, np.array(lengths), updates)
    reached = np.maximum.accumulate(timing.end)
    gained = np.diff(reached, axis=0, prepend=0)
    last = len(instructions) - 1 - np.argmax(gained[::-1] > 0, axis=0)
    gained[last, range(len(lengths))] += timing.cycles - reached[-1]  # the pipeline drains after the last step
    return gained


def cycles_by_layer(instructions: Sequence[Instruction], lengths: Sequence[int], updates: bool = True) -> list[Table]:
    """Return the cycles of one run of the loop by stage and layer, for each sample length in tokens.

    A cycle counts for the first instruction of the list that needs it: an instruction that overlaps completely with
    earlier ones counts no cycles. `updates` says whether an update is pending.
    """
    gained = cycles_by_instruction(instructions, lengths, updates)
    tables: list[Table] = [Counter() for _ in lengths]
    keys = [(i.label[0], layer_of(i)) for i in instructions]
    for n, k in np.argwhere(gained).tolist():
        tables[k][keys[n]] += int(gained[n, k])
    return tables


class Profile:
    """Modelled cycles of the samples that a card trains on."""

    def __init__(self, program: Program):
        self._program = program
        self._runs: Counter[tuple[int, bool]] = Counter()  # by length, and whether an update was pending
        self._flushes = 0
        self._tables: dict[tuple[int, bool], Table] = {}

    def add(self, lengths: Sequence[int], ends: Sequence[bool]) -> None:
        """Count a call's samples; `ends`: whether FLUSH is to follow each. It follows the last one of the call, too."""
        follows = [True, *ends][: len(lengths)]  # FLUSH, or the call's beginning: then no update is pending
        self._runs.update((int(tokens), not first) for tokens, first in zip(lengths, follows, strict=True))
        self._flushes += 1 + sum(follows[1:])

    def take(self) -> dict[tuple[str, str], int]:
        """Return the cycles since the last call by stage and layer, without zeros, and reset them."""
        total: Table = Counter()
        for updates in (False, True):
            new = [n for n, pending in self._runs if pending == updates and (n, pending) not in self._tables]
            tables = cycles_by_layer(self._program.sample, new, updates) if new else ()
            self._tables |= {(tokens, updates): table for tokens, table in zip(new, tables, strict=True)}
        for (tokens, updates), runs in self._runs.items():
            for key, cycles in self._tables[tokens, updates].items():
                total[key] += runs * cycles
        if self._flushes:
            for key, cycles in cycles_by_layer(self._program.flush, [1])[0].items():
                total[key] += self._flushes * cycles
        self._runs.clear()
        self._flushes = 0
        return {key: cycles for key, cycles in total.items() if cycles}
