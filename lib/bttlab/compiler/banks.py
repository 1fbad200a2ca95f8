"""Assignment of banks: each buffer gets one that all its ports reach, apart from what is read beside it.

Layers ask for buffers by name and size (`Builder.take`). When all instructions of a sample are listed, their operands
say which ports must reach a buffer and from which instruction to which it is in use. Buffers that
different units read, or write, at about one time go to different banks, so that both units can work.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from bttlab.compiler.errors import DoesNotFit, ProgramError
from bttlab.compiler.instruction import (
    DRAIN_0,
    ENGINE_0,
    ENGINE_1,
    MACHINE,
    UPDATE,
    VECTOR,
    At,
    Bound,
    Instruction,
    Level,
    most_of,
)

if TYPE_CHECKING:
    from bttlab.compiler.builder import Builder

M = MACHINE
# The gradient of a parameter in a bank lies in the bank that the update unit reads beside it, at the same address.
GRADIENT_OF = dict(zip(M.reach(UPDATE, 0, False).banks, M.reach(UPDATE, 1, False).banks, strict=True))
MOMENTS = tuple(M.reach(UPDATE, number, False).banks[0] for number in (2, 3))
# What is used at about one time: two units work at any, and an order of instructions moves uses by thousands of cycles.
WORKING, NEIGHBOURS, NEAR_BY = 2, 8000, 0.25
CROWDED = 40.0  # cycles that a port more is worth: what many ports reach is left for what needs it
ATTEMPTS, SWEEPS = 6, 2
PARAMETERS_TOO = 400.0  # and a bank of parameters or gradients


def scratch_bank(engine: int) -> int:
    """Return the bank of an engine's intermediates: it streams them, its drain writes them, the other has scalars."""
    reached = (
        M.reach(engine, 1, False).banks,
        M.reach(DRAIN_0 + engine, 4, True).banks,
        M.reach(ENGINE_0 + ENGINE_1 - engine, 2, False).banks,
    )
    return min(set.intersection(*map(set, reached)))


def inner_banks(buffers: Iterable["Buffer"]) -> set[int]:
    """Return the banks of buffers: not the ways in and out, those of moments, and those that some have as scratch."""
    return {*range(M.BANKS)} - {M.IN_BANK, M.OUT_BANK, *MOMENTS} - {buffer.bank for buffer in buffers}


@dataclass(eq=False)
class Buffer:
    """Vectors of a bank.

    Attributes
    ----------
    number : int
        Among all of a program: operands in it have the memory "matrix N", or "gradient N" of a parameter's gradient.
    is_parameter : bool
        Whether it is in use at all times and has a gradient.
    is_added : bool
        Whether what is added to its gradient is cleared after the update.
    rows : int or Register
        Into which its vectors are divided; only these are in use.
    bank, base : int, optional
        Known when all instructions are listed.
    """

    name: str
    vectors: int
    number: int = -1
    is_parameter: bool = False
    is_added: bool = False
    is_lasting: bool = False
    rows: Bound = 1
    bank: int | None = None
    base: int = 0


def with_copies(builder: "Builder", instructions: list[Instruction]) -> list[Instruction]:
    """Return instructions with copies of what no bank holds for all its readers: the vector unit makes them."""
    inner, reached = inner_banks(builder.made), {}
    readers: dict[str, list[tuple[int, int, set[int]]]] = defaultdict(list)
    written: dict[str, int] = {}
    for i, instruction in enumerate(instructions):
        matrices = {n for n, operand in instruction.operands.items() if operand.memory.startswith("matrix")}
        for number in matrices.intersection(instruction.writes()):
            name, banks = instruction.operands[number].memory, set(M.reach(instruction.unit, number, True).banks)
            reached[name] = reached.get(name, inner) & banks
            written.setdefault(name, i)
        for number in sorted(matrices.intersection(instruction.reads())):
            banks = set(M.reach(instruction.unit, number, False).banks)
            readers[instruction.operands[number].memory].append((i, number, banks))
    after: dict[int, list[Instruction]] = defaultdict(list)
    for name, first in written.items():
        if not reached[name]:
            continue
        banks, away = set(reached[name]), []
        for i, number, reach in readers[name]:
            if banks & reach:
                banks &= reach
            else:
                away.append((i, number))
        if not away:
            continue
        whole = builder.made[int(name.split()[1])]
        width, copy = whole.vectors // most_of(whole.rows), builder.new_buffer(f"{whole.name}, copied", whole.vectors)
        copy.rows = whole.rows
        last = max(i for i in range(first, away[0][0]) if name in _written_by(instructions[i]))
        strides, label = {"t": width, "w": 1}, instructions[last].label
        loops = (Level("t", whole.rows), Level("w", width))
        operands = {0: At(name, 0, strides), 3: At(f"matrix {copy.number}", 0, strides)}
        after[last].append(Instruction(VECTOR, M.COPY, loops, operands, (*label[:2], f"copy of {whole.name}")))
        for i, number in away:
            operand = instructions[i].operands[number]
            instructions[i].operands[number] = replace(operand, memory=f"matrix {copy.number}")
    return [one for i, instruction in enumerate(instructions) for one in (instruction, *after[i])]


def _written_by(instruction: Instruction) -> set[str]:
    return {instruction.operands[number].memory for number in instruction.writes()}


@dataclass
class _Use:
    """Accesses of a sample's instructions to a buffer."""

    banks: set[int]
    instructions: list[int] = field(default_factory=list)

    @property
    def span(self) -> tuple[int, int]:
        return self.instructions[0], self.instructions[-1]


class _Room:
    """A bank's vectors, each taken from one instruction to another."""

    def __init__(self, number: int):
        self.number, self.depth = number, M.banks[number].depth
        self.taken: list[tuple[int, int, int, int]] = []  # first and last instruction, first and last vector

    def place(self, vectors: int, first: int, last: int) -> tuple[int, int] | None:
        """Return the vectors that were used longest ago, and until which instruction; None if there are none."""
        beside = sorted((low, high) for begin, end, low, high in self.taken if begin <= last and first <= end)
        gaps, low = [], 0
        for begin, end in [*beside, (self.depth, self.depth)]:
            if begin - low >= vectors:
                gaps.append((low, begin))
            if end > low:
                low = end
        if not gaps:
            return None
        before = sorted(((end, low, high) for _, end, low, high in self.taken if end < first), reverse=True)
        edges = {high for _, _, high in before}
        best = (1 << 30, 0)
        for low, high in gaps:
            for at in (low, *(edge for edge in edges if low < edge <= high - vectors)):
                used = next((end for end, lo, hi in before if lo < at + vectors and at < hi), -1)
                best = min(best, (used, at))
        return best[1], best[0]


def assign_banks(
    buffers: Sequence[Buffer],
    instructions: Sequence[Instruction],
    tokens: int,
    moved: Collection[str] = (),
) -> None:
    """Give each buffer its bank and its vectors, and write both into the operands.

    Parameters
    ----------
    instructions : sequence of Instruction
        Of a sample, in the order of the mathematics.
    tokens : int
        The sample's length for which units shall wait little for each other.
    moved : collection of str
        Buffers that LOAD and STORE move, beside parameters; of parameters, those whose gradients STORE moves.

    Raises
    ------
    ProgramError
        If no bank is reached by all ports of a buffer, or none that is has room.
    """
    assignment = Assignment(buffers, instructions, moved)
    assignment.fit()
    assignment.settle(tokens)


class Assignment:
    """Buffers and their banks, as far as they have any; parameters as for `assign_banks`."""

    def __init__(self, buffers: Sequence[Buffer], instructions: Sequence[Instruction], moved: Collection[str] = ()):
        self.instructions, self.all, self.last = instructions, buffers, len(instructions)
        self.uses, self.apart = _uses(buffers, instructions, moved)
        self.fixed = [buffer for buffer in buffers if buffer.bank is not None]
        self.buffers = [buffer for buffer in buffers if buffer.number in self.uses]
        self.crowd = [CROWDED * sum(bank in port.banks for port in M.ports) for bank in range(M.BANKS)]
        self.times, self.together = None, {}

    def fit(self) -> None:
        """Find places for all buffers.

        Raises
        ------
        ProgramError
            If there are none.
        """
        refused = self._attempt()
        if refused is not None:
            self._refuse(refused)

    def settle(self, tokens: int) -> None:
        """From places that fit, go to banks for which units wait little for each other; write them into operands."""
        places = self.placed
        self.times = _times(self.instructions, tokens)
        self.together = _together(self.instructions, self.times)
        if self._attempt() is not None:
            self._begin()
            for buffer, place in places.items():
                self._take(buffer, *place)
        for _ in range(SWEEPS):
            self._improve()
        for buffer, place in self.placed.items():
            buffer.bank, buffer.base = place
        for instruction in self.instructions:
            resolve(instruction, self.all)

    def _attempt(self) -> Buffer | None:
        """Place all buffers; return one that finds no room."""
        first: list[Buffer] = []  # what found no room comes first in the next attempt
        for _ in range(ATTEMPTS):
            refused = self._place_all(first)
            if refused is None:
                return None
            first.append(refused)
        return refused

    def _begin(self) -> None:
        self.rooms = [_Room(number) for number in range(M.BANKS)]
        self.inside: list[set[str]] = [set() for _ in self.rooms]
        self.placed: dict[Buffer, tuple[int, int]] = {}
        for buffer in self.fixed:
            self.rooms[buffer.bank].taken.append((0, self.last, buffer.base, buffer.base + buffer.vectors))

    def _place_all(self, first: Sequence[Buffer]) -> Buffer | None:
        self._begin()
        for buffer in sorted(self.buffers, key=lambda one: (one not in first, self._key(one))):
            if not self._place(buffer):
                return buffer
        return None

    def _take(self, buffer: Buffer, bank: int, base: int) -> None:
        self.placed[buffer] = bank, base
        for name, at in _names(buffer, bank):
            self.inside[at].add(name)
            self.rooms[at].taken.append((*self._span(buffer), base, base + buffer.vectors))

    def _improve(self) -> None:
        """Place each buffer again, where it costs least now that all others have their places."""
        for buffer in self.buffers:
            if buffer.is_parameter or len(self.uses[buffer.number].banks) == 1:
                continue
            bank, base = self.placed.pop(buffer)
            self.inside[bank].discard(f"matrix {buffer.number}")
            self.rooms[bank].taken.remove((*self._span(buffer), base, base + buffer.vectors))
            self._place(buffer)

    def _key(self, buffer: Buffer):  # first what has few choices, then what is in use for long
        use = self.uses[buffer.number]
        if buffer.is_parameter:
            return 0, len(use.banks), -buffer.vectors
        is_kept = buffer.is_lasting or use.span[1] - use.span[0] > self.last // 4
        return (1, len(use.banks), use.span[0]) if is_kept else (2, len(use.banks) > 1, use.span[0])

    def _span(self, buffer: Buffer) -> tuple[int, int]:
        return (0, self.last) if buffer.is_parameter or buffer.is_lasting else self.uses[buffer.number].span

    def _place(self, buffer: Buffer) -> bool:
        span, choices = self._span(buffer), []
        for bank in sorted(self.uses[buffer.number].banks):
            memories = list(_names(buffer, bank))
            if any(not self.apart[name].isdisjoint(self.inside[at]) for name, at in memories):
                continue
            found = self.rooms[bank].place(buffer.vectors, *span)
            if found is not None and buffer.is_parameter:  # the gradient has the same address
                taken = self.rooms[GRADIENT_OF[bank]].taken
                found = found if all(found[0] >= high for *_, high in taken) else None
            if found is not None:
                choices.append((self._cost(buffer, bank, found[1]), bank, found[0]))
        if not choices:
            return False
        self._take(buffer, *min(choices)[1:])
        return True

    def _cost(self, buffer: Buffer, bank: int, used: int) -> float:
        total = self.crowd[bank]
        if not buffer.is_parameter and bank in {*GRADIENT_OF, *GRADIENT_OF.values()}:
            total += PARAMETERS_TOO
        for name, at in _names(buffer, bank):
            others = self.together.get(name)
            if others:
                total += sum(cycles for other, cycles in others.items() if other in self.inside[at])
        if self.times is not None and used >= 0 and not buffer.is_parameter:
            total += max(self.times[used][1] + NEIGHBOURS - self.times[self.uses[buffer.number].span[0]][0], 0)
        return total

    def _refuse(self, buffer: Buffer) -> None:
        """Raise an error for a buffer that finds no room."""
        use = self.uses[buffer.number]
        if not use.banks:
            raise ProgramError(f"{buffer.name}: no bank is reached by all that read and write it")
        number, span = max(use.banks, key=lambda bank: self.rooms[bank].depth), use.span
        room = self.rooms[number]
        taken = sum(high - low for begin, end, low, high in room.taken if begin <= span[1] and span[0] <= end)
        raise DoesNotFit(
            f"{buffer.name} takes {buffer.vectors} vectors of bank {number}, which has {max(room.depth - taken, 0)} of "
            f"{room.depth} left",
            "fewer encoders, a shorter sequence, smaller ranks or a smaller vocabulary",
        )


def resolve(instruction: Instruction, buffers: Sequence[Buffer]) -> None:
    """Write banks and addresses into an instruction's operands."""
    for number, operand in instruction.operands.items():
        kind, _, of = operand.memory.partition(" ")
        if kind in ("matrix", "gradient"):
            buffer = buffers[int(of)]
            bank = buffer.bank if kind == "matrix" else GRADIENT_OF[buffer.bank]
            instruction.operands[number] = replace(operand, memory=f"bank {bank}", base=buffer.base + operand.base)
    for _, text in instruction.unreached():
        raise ProgramError(f"{' / '.join(instruction.label)}: {text}")


def _names(buffer: Buffer, bank: int) -> Iterable[tuple[str, int]]:
    """Yield the memory of a buffer and its bank; and those of its gradient, if it is a parameter."""
    yield f"matrix {buffer.number}", bank
    if buffer.is_parameter:
        yield f"gradient {buffer.number}", GRADIENT_OF[bank]


def _uses(buffers: Sequence[Buffer], instructions: Sequence[Instruction], moved: Collection[str]):
    """Return what instructions do with each buffer, and the memories that no bank may hold together."""
    reached: dict[str, set[int]] = {}
    used: dict[str, list[int]] = defaultdict(list)
    apart: dict[str, set[str]] = defaultdict(set)
    inner = inner_banks(buffers)
    for i, instruction in enumerate(instructions):
        for stores, numbers in ((False, instruction.reads()), (True, instruction.writes())):
            names = []
            for number in numbers:
                memory = instruction.operands[number].memory
                names.append(memory)
                if memory.startswith(("matrix", "gradient")):
                    reached[memory] = reached.get(memory, inner) & set(M.reach(instruction.unit, number, stores).banks)
                    used[memory].append(i)
            for name in names:
                apart[name].update(other for other in names if other != name)
    for name, others in list(apart.items()):  # of banks that are known, only the number counts
        for bank in [other for other in others if other.startswith("bank")]:
            if name in reached:
                reached[name].discard(int(bank.split()[1]))
    uses = {}
    loads, stores = set(M.reach(VECTOR, 3, True).banks), set(M.reach(VECTOR, 0, False).banks)
    for buffer in buffers:
        name, gradient = f"matrix {buffer.number}", f"gradient {buffer.number}"
        if buffer.bank is not None or not (buffer.is_parameter or name in reached):
            continue
        banks = set(reached.get(name, inner))
        if buffer.is_parameter:
            writers = set(M.reach(UPDATE, 1, True).banks) & loads if buffer.is_added else inner
            fits = reached.get(gradient, inner) & writers & (stores if buffer.name in moved else inner)
            banks = {bank for bank in banks & set(GRADIENT_OF) & loads & stores if GRADIENT_OF[bank] in fits}
        if buffer.name in moved:
            banks &= loads & stores
        banks = {bank for bank in banks if M.banks[bank].depth >= buffer.vectors} or banks
        uses[buffer.number] = _Use(banks, sorted(used[name] + used[gradient]) or [0])
    return uses, apart


def _times(instructions: Sequence[Instruction], tokens: int) -> np.ndarray:
    """Return when each instruction begins and ends if two units work at any time."""
    steps = np.array([instruction.steps(tokens) for instruction in instructions], float)
    begin = np.concatenate([[0], np.cumsum(steps)[:-1]]) / WORKING
    return np.stack([begin, begin + steps], 1)


def _together(instructions: Sequence[Instruction], times: np.ndarray) -> dict[str, dict[str, float]]:
    """Return what it costs in cycles if two memories are in one bank: other units ask for them at about one time."""
    result: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for of in (Instruction.reads, Instruction.writes):
        uses = [
            (i, instruction.operands[n].memory) for i, instruction in enumerate(instructions) for n in of(instruction)
        ]
        uses = [(i, name) for i, name in uses if name.startswith(("matrix", "gradient"))]
        names = [name for _, name in uses]
        begin, end = times[[i for i, _ in uses]].T
        unit = np.array([instructions[i].unit for i, _ in uses])
        until = np.searchsorted(begin, end + NEIGHBOURS)
        for n, (name, last) in enumerate(zip(names, until, strict=True)):
            after = slice(n + 1, last)
            cycles = np.minimum(end[n], end[after]) - begin[after]
            near = NEAR_BY * np.minimum(end[n] - begin[n], end[after] - begin[after])
            cycles = np.where(unit[after] == unit[n], 0, np.where(cycles > 0, cycles, near))
            for k in np.flatnonzero(cycles):
                other = names[n + 1 + k]
                if other != name:
                    result[name][other] += cycles[k]
                    result[other][name] += cycles[k]
    return result
