"""The builder of a program: it allocates memory, collects tables of permutations and functions, emits instructions."""

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import starmap

import numpy as np

from bttlab.compiler.buffers import STATISTICS, Buffer, buffer_of
from bttlab.compiler.errors import DoesNotFit, ProgramError
from bttlab.compiler.functions import Functions
from bttlab.compiler.instruction import At, Bound, Instruction, Level, Memory, Register, at, bound_of_part, max_of
from bttlab.compiler.machine import M
from bttlab.compiler.shuffles import permutation_entries

LANES, ROWS = M.LANES, M.ROWS
MAX_RANK = 4 * ROWS  # of a linear layer; an engine takes ROWS of it in a pass


def vectors_for(elements: int) -> int:
    return -(-elements // LANES)


def padded(name: str, bound: Bound, other_steps: int = 1) -> Level:
    """Return a loop over sums, with idle steps so that a sum is updated again after SUM_DISTANCE steps or more.

    `other_steps` is the number of steps of the other loops over sums.
    """
    least = -(-M.SUM_DISTANCE // max(other_steps, 1))
    if least <= 1:
        return Level(name, bound)
    if isinstance(bound, int):
        return Level(name, max(bound, least), bound)
    return Level(name, bound.clipped(least, max(bound.high, least)), bound)


def even_parts(steps: int, sums: int, most: int) -> list[tuple[int, int]]:
    """Return first index and size of a loop's parts: the fewest even ones whose size times `sums` is at most `most`."""
    fitting = most // sums if sums else steps  # steps of a part
    count = max(-(-steps // fitting), 1) if fitting else max(steps, 1)
    size = max(-(-steps // count), 1)
    return [(first, min(size, steps - first)) for first in range(0, max(steps, 1), size)]


def row_passes(rows: int) -> list[tuple[int, int]]:
    """Return the number of each pass of an engine and its rows: ROWS in each pass, the rest in the last."""
    return [(n, min(ROWS, rows - ROWS * n)) for n in range(-(-rows // ROWS))]


class Builder:
    """A program under construction; its methods append instructions in the order of the mathematics.

    `stage`, `layer`: first two parts of the label of instructions that are appended.
    `node`: number of the graph's operation that they belong to.
    """

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.stage, self.layer = "", ""
        self.node: int | None = None
        self.made: list[Buffer] = []
        self.persistent: dict[Memory, list[Buffer]] = defaultdict(list)  # of operand buffers, those that stay
        self.functions = Functions()
        self.entries: dict[bytes, int] = {}
        self.entry_in: list[np.ndarray] = []
        self.entry_out: list[np.ndarray] = []

    def new_buffer(self, name: str, vectors: int, **fields) -> Buffer:
        """Return a new buffer; its place is assigned when all instructions are listed."""
        buffer = Buffer(name, vectors, len(self.made), **fields)
        self.made.append(buffer)
        if buffer.is_persistent and buffer.home is not None:
            self.persistent[buffer.home].append(buffer)
        return buffer

    def allocate(self, name: str, vectors: int, **fields) -> At:
        return at(self.new_buffer(name, vectors, **fields).memory, 0)

    def engine_of(self, place: At) -> int:
        """Return the engine of an operand in an operand buffer."""
        buffer = buffer_of(place, self.made)
        return (place.memory if buffer is None else buffer.home).number

    def buffer_at(self, place: At) -> Buffer:
        return self.made[place.memory.number]

    def emit(
        self, unit: int, operation: int, what: str, loops: Sequence[Level], operands: dict[int, At | None], **fields
    ) -> None:
        """Append an instruction; an operand that is None is left out.

        Raise `ProgramError` if the instruction needs too many accumulators, or an operand that has a bank already is
        out of reach.
        """
        label = (self.stage, self.layer, what)
        given = {number: operand for number, operand in operands.items() if operand is not None}
        instruction = Instruction(unit, operation, tuple(loops), given, label, node=self.node, **fields)
        used = instruction.most_accumulators if instruction.depth and instruction.accumulator_loop else 0
        if used > instruction.accumulator_count:
            owner = f"engine {unit}" if unit <= M.ENGINE_1 else "the vector unit"
            raise DoesNotFit(
                f"{' / '.join(label)} needs {used} accumulators, {owner} has {instruction.accumulator_count}",
                "a smaller hidden size or a shorter sequence",
            )
        for _, text in instruction.unreached():
            raise ProgramError(f"{' / '.join(label)}: {text}")
        self.instructions.append(instruction)

    def expand(
        self, engine, what, loops, buffer, scalars, result=None, buffered_result=None, addend=None, count=ROWS, **fields
    ) -> None:
        """Append EXPAND: result = addend + scalars[0] buffer[0] + ..., a sum over the rows.

        `result` is in a bank, `buffered_result` in an operand buffer; either may be left out.
        """
        operands = {0: buffer, 2: scalars, 3: addend, 4: result, 5: buffered_result}
        self.emit(engine, M.EXPAND, what, loops, operands, count=count, **fields)

    def load_rows(self, what: str, source: At | None, buffer: At, rows: Bound, vectors: int, first: int = 0) -> None:
        """Append a load of rows of an operand buffer by its engine, from a bank or with zeros.

        `source`: place of the first vector in a bank; None for zeros.
        `first`: the first of the rows.
        """
        loops, addend = [Level("r", rows), Level("w", vectors)], source and source.part(r=vectors, w=1)
        result = {"buffered_result": buffer.part(w=1), "row": ("r", first)}
        self.expand(self.engine_of(buffer), what, loops, None, None, addend=addend, count=0, **result)

    def reduce(self, engine, what, loops, depth, buffer, stream, result, addend=None, count=ROWS, **fields) -> None:
        """Append REDUCE: result[r] = sum over depth and lanes of buffer[r] x stream.

        The loop of the depth has one more step, the fold. If the innermost loop has more sums than there are
        accumulators, several instructions follow.
        """
        last = loops[-1]
        for first, size in even_parts(max_of(last.active_bound), 1, M.ACCUMULATORS):
            nest = list(loops)
            if first or size < max_of(last.active_bound):
                nest[-1] = padded(last.name, bound_of_part(last.active_bound, first, size))
                if first and isinstance(last.active_bound, Register) and len(nest) < M.LEVELS:
                    # without such tokens the instruction has no step
                    nest.insert(0, Level("part", bound_of_part(last.active_bound, first, 1)))
            operands = {0: buffer, 1: stream, 3: addend, 4: result}
            operands = {n: o and o.at_step(last.name, first) for n, o in operands.items()}
            fields |= {"count": count, "depth": (depth,), "accumulator_loop": depth}
            self.emit(engine, M.REDUCE, what, nest, operands, **fields)

    def accumulate(
        self,
        engine,
        what,
        loops,
        depth,
        scalars,
        stream,
        rows: Level,
        result,
        count=None,
        check=False,
        bias=None,
        first_row=0,
    ) -> None:
        """Append ACCUMULATE, result = sum over the depth of scalars^T stream, and the instructions of its drain.

        The sums are in the engine's second ping-pong buffer. If there are more of them than accumulators, the outermost
        loop over sums with more than one step is divided into several instructions.

        `depth`: loops that are summed over; the loops over sums follow the last of them.
        `rows`: rows of the result. Its strides are named after this loop, "w" for the sums, and a loop over tokens if
        the sums have one.
        `count`, `first_row`: rows that are summed, by default those of the result, and the first one of the result.
        `bias`: place of one more row: the gradient of the bias.
        """
        inside = [loop.name for loop in loops].index(depth[-1]) + 1
        inner = {loop.name: loop.active_bound for loop in loops[inside:]}
        tokens = [Level(name, active) for name, active in inner.items() if isinstance(active, Register)]
        counted = {name: active for name, active in inner.items() if not isinstance(active, Register)}
        counted = counted or {loops[-1].name: 1}
        split = next((name for name, active in counted.items() if active > 1), loops[-1].name)
        steps, inner_sums = counted[split], math.prod(counted.values()) // counted[split]
        sums = inner_sums * math.prod(max_of(loop.active_bound) for loop in tokens)
        flags = M.PONG | (M.CHECK if check else 0)
        for first, size in even_parts(steps, sums, M.ACCUMULATORS):
            nest = loops
            if size < steps:
                (name, bound), *rest = (inner | {split: size}).items()
                nest = [*loops[:inside], padded(name, bound, sums * size // max_of(bound)), *starmap(Level, rest)]
            operands = {1: stream.at_step(split, first), 2: scalars.at_step(split, first)}
            fields = {"depth": tuple(depth), "accumulator_loop": depth[-1], "flags": M.PONG}
            summed = count or (rows.bound if bias is None else rows.bound + 1)
            self.emit(engine, M.ACCUMULATE, what, nest, operands, count=summed, **fields)
            width = Level("w", inner_sums * size)
            accumulators = at(None, 0, w=1, **{loop.name: inner_sums * size for loop in tokens})
            operands = {0: accumulators, 4: result.at_step("w", inner_sums * first)}
            self.emit(
                M.DRAIN_0 + engine, 0, what, [rows, *tokens, width], operands, row=(rows.name, first_row), flags=flags
            )
            if bias is not None:
                operands = {0: accumulators, 4: bias.part(inner_sums * first, w=1)}
                row, nest, checked = ("one", rows.bound), [Level("one", 1), width], flags | M.CHECK
                self.emit(M.DRAIN_0 + engine, 0, "d b", nest, operands, row=row, flags=checked)

    def vector(
        self, operation, what, loops, a=None, b=None, c=None, r0=None, r1=None, rows=None, function=None, **fields
    ):
        """Append a row operation; `rows` is the place of its statistics, `function` the number of its function F."""
        if function is not None:
            rows, fields["function"] = rows or at(STATISTICS, 0), function
        operands = {0: a, 1: b, 2: c, 3: r0, 4: r1, 5: rows}
        self.emit(M.VECTOR, operation, what, loops, operands, **fields)

    def columns(self, what, loops, a, b=None, r0=None, r1=None, check=False) -> None:
        """Append COLUMNS: r0 = sum of a b, r1 = sum of a, over the first loop, lane by lane; `check` for gradients."""
        depth, flags = loops[0].name, M.CHECK if check else 0
        fields = {"depth": (depth,), "accumulator_loop": depth, "flags": flags}
        self.vector(M.COLUMNS, what, loops, a, b, r0=r0, r1=r1, **fields)

    def update(self, what, vectors: Bound, *state: At, clear=False) -> None:
        """Append the update of the state (p, g[, m, v]): parameters, gradient, moments; `clear` sets g to 0."""
        operands = {n: At(o.memory, o.base, {"w": 1}) for n, o in enumerate(state)}
        self.emit(M.UPDATE, 0, what, (Level("w", vectors),), operands, flags=M.CLEAR if clear else 0)

    def shuffle(
        self,
        what,
        blocks: Bound,
        permutation,
        source: At,
        result=None,
        buffered_result=None,
        row=None,
        out=None,
        gate=None,
    ) -> None:
        """Append a shuffle: permute the elements of each block of vectors.

        `permutation`: for each element out its element in, or -1 for 0; of shape (vectors out, LANES).
        `source`, `result`, `buffered_result`: place of the source, and of the result in a bank and in an operand
        buffer. Their strides are named "block", and "x", "y" after the loops of a block.
        `row`: row level and row base of `buffered_result`.
        `out`: numbers of x and y whose product is the vectors out; by default y counts them all.
        `gate`: 0 or 1; with 0 the instruction has no step.
        """
        permutation = np.asarray(permutation)
        vectors_in = int(permutation.max()) // LANES + 1
        vectors_out = len(permutation)
        base = self._entries(permutation, vectors_in)
        if out is None:
            count, x_in = vectors_out, 0
            loops = [Level("x", 1), Level("y", max(vectors_in, vectors_out), vectors_in)]
        else:
            x, count = out
            x_active, x_in = (x, vectors_in // x) if vectors_in % x == 0 else (1, vectors_in)
            loops = [Level("x", x, x_active), Level("y", max(count, x_in), x_in)]
        loops = [Level("block", blocks + 1), Level("gate", 1 if gate is None else gate), *loops]
        entries = (At(None, base, {"y": 1} | ({} if out is None else {"x": along_x})) for along_x in (x_in, count))
        # While block b is read, block b - 1 is written.
        results = (operand and operand.at_step("block", -1) for operand in (result, buffered_result))
        operands = dict(zip((0, 2, 1, 4, 5), (*entries, source, *results), strict=True))
        if row is not None and row[0] == "block":
            row = ("block", row[1] - 1)
        self.emit(M.SHUFFLE, 0, what, loops, operands, count=count, row=row)

    def _entries(self, permutation: np.ndarray, vectors_in: int) -> int:
        key = permutation.tobytes()
        if key not in self.entries:
            into, out = permutation_entries(permutation, vectors_in)
            length = max(len(into), len(out))
            total = len(self.entry_in) + length
            if total > M.SHUFFLE_ENTRIES:
                raise ProgramError(
                    f"the program's permutations take {total} entries, the shuffle unit has "
                    f"{M.SHUFFLE_ENTRIES}: choose modes that fill whole vectors"
                )
            self.entries[key] = len(self.entry_in)
            for table, entries in ((self.entry_in, into), (self.entry_out, out)):
                table.extend(entries)
                table.extend([np.zeros(LANES, np.int64)] * (length - len(entries)))
        return self.entries[key]


def block_rows(tokens: Bound, block: int) -> Bound:
    """Return the number of tokens in a block of ROWS."""
    return bound_of_part(tokens, ROWS * block, ROWS)


def gate(tokens: Bound, block: int) -> Bound:
    """Return 1 if there are tokens in a block of ROWS, else 0."""
    return bound_of_part(tokens, ROWS * block, 1)
