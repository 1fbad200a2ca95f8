"""What a program's steps take: cycles by stage and layer, from the machine's rule of order and time."""

from collections import Counter
from collections.abc import Sequence

from bttlab.card.program.instruction import Instruction
from bttlab.card.program.profile import layer_of
from bttlab.card.program.program import Program
from bttlab.card.program.timing import time_program

Table = Counter[tuple[str, str]]


def cycles_by_layer(instructions: Sequence[Instruction], tokens: int, updates: bool = True) -> Table:
    """Return the cycles of a run of the loop, by stage and layer; together they are the run's.

    A cycle counts for the first instruction of the list that needs it: what is hidden behind instructions before it
    takes none.

    Parameters
    ----------
    instructions : sequence of Instruction
    tokens : int
        The sample's length.
    updates : bool
        Whether an update is pending.
    """
    timing = time_program(instructions, tokens, updates)
    table: Table = Counter()
    reached, key = 0, ("", "")
    for instruction, end in zip(instructions, timing.end, strict=True):
        if end > reached:
            key = instruction.label[0], layer_of(instruction)
            table[key] += end - reached
            reached = end
    table[key] += timing.cycles - reached  # results of the last step on their way
    return table


class Profile:
    """The cycles of what a card has trained on, from its program.

    Parameters
    ----------
    program : Program
    """

    def __init__(self, program: Program):
        self._program = program
        self._runs: Counter[tuple[int, bool]] = Counter()  # by length, and whether an update was pending
        self._flushes = 0
        self._tables: dict[tuple[int, bool], Table] = {}

    def add(self, lengths: Sequence[int]) -> None:
        """Count a call that trained on samples of these lengths."""
        self._runs.update((int(tokens), number > 0) for number, tokens in enumerate(lengths))
        self._flushes += 1

    def take(self) -> dict[tuple[str, str], int]:
        """Return the cycles since the last call, by stage and layer, without what took none; begin anew."""
        total: Table = Counter()
        for (tokens, updates), runs in self._runs.items():
            if (tokens, updates) not in self._tables:
                self._tables[tokens, updates] = cycles_by_layer(self._program.sample, tokens, updates)
            for key, cycles in self._tables[tokens, updates].items():
                total[key] += runs * cycles
        if self._flushes:
            for key, cycles in cycles_by_layer(self._program.flush, 1).items():
                total[key] += self._flushes * cycles
        self._runs.clear()
        self._flushes = 0
        return {key: cycles for key, cycles in total.items() if cycles}
