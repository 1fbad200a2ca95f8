"""Assign each buffer a bank that all its ports reach.

Layers allocate buffers by name and size (`Builder.allocate`). When all instructions of a sample are listed, their
operands show which ports must reach a buffer, and its lifetime. Two buffers that one instruction reads, or writes, need
different banks. Buffers that different units read, or write, at about the same time go to different banks if possible,
so that both units can work.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bttlab.compiler.buffers import Buffer
from bttlab.compiler.errors import DoesNotFit, ProgramError
from bttlab.compiler.instruction import (
    UPDATE,
    VECTOR,
    At,
    Instruction,
    Level,
    max_of,
)
from bttlab.compiler.machine import M

# Bank of a parameter -> bank of its gradient, which has the same address there: the update unit reads both in one step.
GRADIENT_OF = dict(zip(M.reach(UPDATE, 0, False).banks, M.reach(UPDATE, 1, False).banks, strict=True))
MOMENTS = tuple(M.reach(UPDATE, number, False).banks[0] for number in (2, 3))
# Times of instructions are estimates: BUSY_UNITS units work on average, and scheduling moves an instruction by up to
# WINDOW cycles. Two uses within the window but not at the same time cost WINDOW_SHARE of a conflict.
BUSY_UNITS, WINDOW, WINDOW_SHARE = 2, 8000, 0.25
PORT_COST = 40.0  # cycles, for each port that reaches a bank: well-connected banks are left for buffers that need them
ATTEMPTS, SWEEPS = 6, 2
PARAMETER_BANK_COST = 400.0  # cycles, for an activation in a bank of parameters or gradients


INNER = frozenset(range(M.BANKS)) - {M.IN_BANK, M.OUT_BANK, *MOMENTS}  # banks for buffers


def with_copies(made: list[Buffer], instructions: list[Instruction]) -> list[Instruction]:
    """Insert copies, by the vector unit, of buffers for which no bank is reached by all readers and writers."""
    reached: dict[str, set[int]] = {}
    readers: dict[str, list[tuple[int, int, set[int]]]] = defaultdict(list)
    written: dict[str, int] = {}
    for i, instruction in enumerate(instructions):
        matrices = {n for n, operand in instruction.operands.items() if operand.memory.startswith("matrix")}
        for number in matrices.intersection(instruction.writes()):
            name, banks = instruction.operands[number].memory, set(M.reach(instruction.unit, number, True).banks)
            reached[name] = reached.get(name, set(INNER)) & banks
            written.setdefault(name, i)
        for number in sorted(matrices.intersection(instruction.reads())):
            banks = set(M.reach(instruction.unit, number, False).banks)
            readers[instruction.operands[number].memory].append((i, number, banks))
    after: dict[int, list[Instruction]] = defaultdict(list)
    for name, first in written.items():
        if not reached[name]:
            continue
        banks, unreached = set(reached[name]), []
        for i, number, reach in readers[name]:
            if banks & reach:
                banks &= reach
            else:
                unreached.append((i, number))
        if not unreached:
            continue
        buffer = made[int(name.split()[1])]
        width = buffer.vectors // max_of(buffer.rows)
        copy = Buffer(f"{buffer.name}, copied", buffer.vectors, len(made), rows=buffer.rows)
        made.append(copy)
        last = max(i for i in range(first, unreached[0][0]) if name in _written_by(instructions[i]))
        strides, label = {"t": width, "w": 1}, instructions[last].label
        loops = (Level("t", buffer.rows), Level("w", width))
        operands = {0: At(name, 0, strides), 3: At(f"matrix {copy.number}", 0, strides)}
        after[last].append(Instruction(VECTOR, M.COPY, loops, operands, (*label[:2], f"copy of {buffer.name}")))
        for i, number in unreached:
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


class _BankSpace:
    """Address ranges of a bank that are allocated, each for a range of instructions."""

    def __init__(self, number: int):
        self.number, self.depth = number, M.banks[number].depth
        self.taken: list[tuple[int, int, int, int]] = []  # first and last instruction, first and last vector

    def place(self, vectors: int, first: int, last: int) -> tuple[int, int] | None:
        """Choose the free range whose last use is the longest ago.

        Returns
        -------
        tuple of (int, int), optional
            Its first vector, and the last instruction that used it (-1 if none did); None if no range is free.
        """
        allocated = sorted((low, high) for begin, end, low, high in self.taken if begin <= last and first <= end)
        gaps, low = [], 0
        for begin, end in [*allocated, (self.depth, self.depth)]:
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


class Assignment:
    """Assigns each buffer a bank and an address, in two steps: `fit` and `balance`.

    Parameters
    ----------
    instructions : sequence of Instruction
        Instructions of a sample, in the order of the mathematics.
    transferred : collection of str
        Buffers other than parameters that LOAD and STORE transfer, and parameters whose gradients STORE transfers.
    """

    def __init__(
        self, buffers: Sequence[Buffer], instructions: Sequence[Instruction], transferred: Collection[str] = ()
    ):
        self.instructions, self.all, self.last = instructions, buffers, len(instructions)
        self.uses, self.conflicts = _uses(buffers, instructions, transferred)
        self.buffers = [buffer for buffer in buffers if buffer.number in self.uses]
        self.port_costs = [PORT_COST * sum(bank in port.banks for port in M.ports) for bank in range(M.BANKS)]
        self.times, self.contention = None, {}

    def fit(self) -> None:
        """Find a bank and an address for every buffer.

        Raises
        ------
        ProgramError
            If the search finds none.
        """
        unplaced = self._attempt()
        if unplaced is not None:
            self._raise_unplaced(unplaced)

    def balance(self, tokens: int) -> None:
        """Move buffers to banks that let units work at the same time, and write the result into the operands.

        Call it after `fit`; the placement of `fit` is the fallback.
        """
        places = self.placed
        self.times = _times(self.instructions, tokens)
        self.contention = _contention(self.instructions, self.times)
        if self._attempt() is not None:
            self._reset()
            for buffer, place in places.items():
                self._allocate(buffer, *place)
        for _ in range(SWEEPS):
            self._improve()
        for buffer, place in self.placed.items():
            buffer.bank, buffer.base = place
        for instruction in self.instructions:
            resolve(instruction, self.all)

    def _attempt(self) -> Buffer | None:
        """Place all buffers; return None, or a buffer for which no space was found."""
        first: list[Buffer] = []  # buffers that found no space are placed first in the next attempt
        for _ in range(ATTEMPTS):
            unplaced = self._place_all(first)
            if unplaced is None:
                return None
            first.append(unplaced)
        return unplaced

    def _reset(self) -> None:
        self.spaces = [_BankSpace(number) for number in range(M.BANKS)]
        self.names_in: list[set[str]] = [set() for _ in self.spaces]
        self.placed: dict[Buffer, tuple[int, int]] = {}

    def _place_all(self, first: Sequence[Buffer]) -> Buffer | None:
        self._reset()
        for buffer in sorted(self.buffers, key=lambda one: (one not in first, self._key(one))):
            if not self._place(buffer):
                return buffer
        return None

    def _allocate(self, buffer: Buffer, bank: int, base: int) -> None:
        self.placed[buffer] = bank, base
        for name, at in _names(buffer, bank):
            self.names_in[at].add(name)
            self.spaces[at].taken.append((*self._span(buffer), base, base + buffer.vectors))

    def _improve(self) -> None:
        """Move each buffer to the bank that costs least, given where all others are."""
        for buffer in self.buffers:
            if buffer.is_parameter or len(self.uses[buffer.number].banks) == 1:
                continue
            bank, base = self.placed.pop(buffer)
            self.names_in[bank].discard(f"matrix {buffer.number}")
            self.spaces[bank].taken.remove((*self._span(buffer), base, base + buffer.vectors))
            self._place(buffer)

    def _key(self, buffer: Buffer):
        """Sort key of the order of placement: parameters, long-lived buffers, the rest; few choices first in each."""
        use = self.uses[buffer.number]
        if buffer.is_parameter:
            return 0, len(use.banks), -buffer.vectors
        is_kept = buffer.is_persistent or use.span[1] - use.span[0] > self.last // 4
        return (1, len(use.banks), use.span[0]) if is_kept else (2, len(use.banks) > 1, use.span[0])

    def _span(self, buffer: Buffer) -> tuple[int, int]:
        return (0, self.last) if buffer.is_parameter or buffer.is_persistent else self.uses[buffer.number].span

    def _place(self, buffer: Buffer) -> bool:
        span, choices = self._span(buffer), []
        for bank in sorted(self.uses[buffer.number].banks):
            memories = list(_names(buffer, bank))
            if any(not self.conflicts[name].isdisjoint(self.names_in[at]) for name, at in memories):
                continue
            found = self.spaces[bank].place(buffer.vectors, *span)
            if found is not None and buffer.is_parameter:  # the gradient has the same address
                taken = self.spaces[GRADIENT_OF[bank]].taken
                found = found if all(found[0] >= high for *_, high in taken) else None
            if found is not None:
                choices.append((self._cost(buffer, bank, found[1]), bank, found[0]))
        if not choices:
            return False
        self._allocate(buffer, *min(choices)[1:])
        return True

    def _cost(self, buffer: Buffer, bank: int, used: int) -> float:
        total = self.port_costs[bank]
        if not buffer.is_parameter and bank in {*GRADIENT_OF, *GRADIENT_OF.values()}:
            total += PARAMETER_BANK_COST
        for name, at in _names(buffer, bank):
            others = self.contention.get(name)
            if others:
                total += sum(cycles for other, cycles in others.items() if other in self.names_in[at])
        if self.times is not None and used >= 0 and not buffer.is_parameter:
            total += max(self.times[used][1] + WINDOW - self.times[self.uses[buffer.number].span[0]][0], 0)
        return total

    def _raise_unplaced(self, buffer: Buffer) -> None:
        """Raise the error for a buffer for which no space was found."""
        use = self.uses[buffer.number]
        if not use.banks:
            raise ProgramError(f"{buffer.name}: no bank is reached by all units that read and write it")
        number, span = max(use.banks, key=lambda bank: self.spaces[bank].depth), use.span
        space = self.spaces[number]
        taken = sum(high - low for begin, end, low, high in space.taken if begin <= span[1] and span[0] <= end)
        raise DoesNotFit(
            f"{buffer.name} takes {buffer.vectors} vectors of bank {number}; {max(space.depth - taken, 0)} "
            f"of its {space.depth} are free",
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
    """Yield (memory, bank) of a buffer and, if it is a parameter, of its gradient."""
    yield f"matrix {buffer.number}", bank
    if buffer.is_parameter:
        yield f"gradient {buffer.number}", GRADIENT_OF[bank]


def _uses(buffers: Sequence[Buffer], instructions: Sequence[Instruction], transferred: Collection[str]):
    """Return each buffer's possible banks and users, and the pairs of memories that need different banks."""
    reached: dict[str, set[int]] = {}
    used: dict[str, list[int]] = defaultdict(list)
    conflicts: dict[str, set[str]] = defaultdict(set)
    for i, instruction in enumerate(instructions):
        for stores, numbers in ((False, instruction.reads()), (True, instruction.writes())):
            names = []
            for number in numbers:
                memory = instruction.operands[number].memory
                names.append(memory)
                if memory.startswith(("matrix", "gradient")):
                    reached[memory] = reached.get(memory, INNER) & set(M.reach(instruction.unit, number, stores).banks)
                    used[memory].append(i)
            for name in names:
                conflicts[name].update(other for other in names if other != name)
    for name, others in list(conflicts.items()):  # a conflict with a fixed bank excludes this bank
        for bank in [other for other in others if other.startswith("bank")]:
            if name in reached:
                reached[name].discard(int(bank.split()[1]))
    uses = {}
    loads, stores = set(M.reach(VECTOR, 3, True).banks), set(M.reach(VECTOR, 0, False).banks)
    for buffer in buffers:
        name, gradient = f"matrix {buffer.number}", f"gradient {buffer.number}"
        if not (buffer.is_parameter or name in reached):
            continue
        banks = set(reached.get(name, INNER))
        if buffer.is_parameter:
            writers = set(M.reach(UPDATE, 1, True).banks) & loads if buffer.is_accumulated else INNER
            fits = reached.get(gradient, INNER) & writers & (stores if buffer.name in transferred else INNER)
            banks = {bank for bank in banks & set(GRADIENT_OF) & loads & stores if GRADIENT_OF[bank] in fits}
        if buffer.name in transferred:
            banks &= loads & stores
        banks = {bank for bank in banks if M.banks[bank].depth >= buffer.vectors} or banks
        uses[buffer.number] = _Use(banks, sorted(used[name] + used[gradient]) or [0])
    return uses, conflicts


def _times(instructions: Sequence[Instruction], tokens: int) -> np.ndarray:
    """Return estimated times at which instructions begin and end, as if BUSY_UNITS units worked at all times."""
    steps = np.array([instruction.steps(tokens) for instruction in instructions], float)
    begin = np.concatenate([[0], np.cumsum(steps)[:-1]]) / BUSY_UNITS
    return np.stack([begin, begin + steps], 1)


def _contention(instructions: Sequence[Instruction], times: np.ndarray) -> dict[str, dict[str, float]]:
    """Return the cost, in cycles, of two memories in one bank: different units use them at about the same time."""
    result: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for of in (Instruction.reads, Instruction.writes):
        uses = [
            (i, instruction.operands[n].memory) for i, instruction in enumerate(instructions) for n in of(instruction)
        ]
        uses = [(i, name) for i, name in uses if name.startswith(("matrix", "gradient"))]
        names = [name for _, name in uses]
        begin, end = times[[i for i, _ in uses]].T
        unit = np.array([instructions[i].unit for i, _ in uses])
        until = np.searchsorted(begin, end + WINDOW)
        for n, (name, last) in enumerate(zip(names, until, strict=True)):
            after = slice(n + 1, last)
            cycles = np.minimum(end[n], end[after]) - begin[after]
            near = WINDOW_SHARE * np.minimum(end[n] - begin[n], end[after] - begin[after])
            cycles = np.where(unit[after] == unit[n], 0, np.where(cycles > 0, cycles, near))
            for k in np.flatnonzero(cycles):
                other = names[n + 1 + k]
                if other != name:
                    result[name][other] += cycles[k]
                    result[other][name] += cycles[k]
    return result
