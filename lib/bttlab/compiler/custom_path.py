"""The program of one linear layer in a custom contraction path (`bttlab.tensor.Order`).

Each product is lowered by itself: of the ways in which an engine can do it (`products`), with the operands as they lie
or re-ordered by the shuffle unit, the one that takes the fewest steps, those of re-ordering what it leaves included. A
model's own layers (`linear`) are written by hand instead; they know how many cores of each end are merged.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from bttlab.compiler.arrangement import Arrangement, load_operand, rearrange, rearranging_steps
from bttlab.compiler.banks import Buffer, scratch_bank
from bttlab.compiler.builder import LANES, Builder, padded
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.instruction import DRAIN_0, SHUFFLE, VECTOR, At, Level
from bttlab.compiler.layer import (
    CORES,
    NAME,
    LayerProgram,
    LayerShape,
    Transfer,
    assemble,
    check_tokens,
    gradient_of,
    matrix_block,
)
from bttlab.compiler.layout import IN_AXES, OUT_AXES, Block
from bttlab.compiler.machine import Port, machine
from bttlab.compiler.products import (
    Stored,
    accumulate,
    accumulate_steps,
    expand,
    expand_steps,
    offset_of,
    one_vector,
    passes,
    reduce,
    reduce_steps,
)
from bttlab.tensor.order import Order, Product

M = machine()
PERMUTE_CYCLES = M.LATENCY  # cycles that a re-ordering costs beside its steps: what comes next waits for its results
MOST_PASSES = 16
IN_CORES, OUT_CORES, BIAS = 2, 3, 5  # banks of what comes in and goes out
X, DY, Y, DX = 16, 14, 15, 17
COMMON = 13  # both engines read it, as stream and as scalars
INTERMEDIATES = (COMMON, 18, 19, scratch_bank(0), scratch_bank(1), Y, DX)
_SHUFFLED, _SHUFFLE_SOURCE = M.reach(SHUFFLE, 4, True), M.reach(SHUFFLE, 1, False)
# The cores as a model's layers have them, by indices.
_DIMENSIONS = {
    name: (f"r{k - 1}", f"{'i' if k < 4 else 'j'}{(k - 1) % 3 + 1}", f"r{k}") for k, name in enumerate(CORES, 1)
}


class FreeList:
    """A free list of a bank's vectors."""

    def __init__(self, bank: int, depth: int):
        self.bank, self.depth = bank, depth
        self._taken: list[tuple[int, int]] = []

    def take(self, vectors: int) -> int | None:
        """Return the first of so many vectors, None if there is no room."""
        first = 0
        for begin, end in (*sorted(self._taken), (self.depth, 0)):
            if begin - first >= vectors:
                self._taken.append((first, first + vectors))
                return first
            first = end
        return None

    def give(self, first: int) -> None:
        """Take vectors back."""
        self._taken = [span for span in self._taken if span[0] != first]

    @property
    def free(self) -> int:
        """Vectors that are free."""
        return self.depth - sum(end - begin for begin, end in self._taken)


@dataclass
class Tensor:
    """A tensor of the network: its indices, its copies in banks and those in operand buffers."""

    name: str
    indices: frozenset[str]
    stored: list[Stored] = field(default_factory=list)
    loaded: dict[tuple, At] = field(default_factory=dict)

    @property
    def has_tokens(self) -> bool:
        """True if its size depends on the tokens."""
        return "t" in self.indices


@dataclass
class _Lowering:
    """A way to do a product: its cost, and what emits it."""

    cost: float
    emit: Callable[[], None]


class CustomPath:
    """Compiles an order.

    Parameters
    ----------
    shape : LayerShape
    """

    def __init__(self, shape: LayerShape, tokens: int, order: Order):
        self.b, self.shape, self.tokens, self.order = Builder(), shape, tokens, order
        self.sizes = order.sizes(tokens, shape.out_modes, shape.in_modes, shape.ranks)
        self.free_lists = {bank: FreeList(bank, M.banks[bank].depth) for bank in INTERMEDIATES}
        self.load = [0.0, 0.0]  # steps of each engine
        self.tensors: dict[str, Tensor] = {}
        self.indices = {name: frozenset(of) for name, of in order.indices().items()}
        self.indices |= {f"d{name}": of for name, of in self.indices.items()}

    # ---- the whole program ---------------------------------------------------------------------------------------

    def program(self) -> LayerProgram:
        """Return the program."""
        b, tokens, shape = self.b, self.tokens, self.shape
        backward = self.order.passes(self.sizes)[1]
        products = [*self.order.steps, *backward]
        for step in self.order.steps:
            self._check(step)
        # Of each tensor: the indices that should lie along its vectors for its next use.
        self.wanted: dict[str, frozenset[str]] = {}
        for number, (_, left, right) in enumerate(products):
            shared = self.indices[left] & self.indices[right]
            for one in (left, right):
                is_buffered = number < len(self.order.steps) and "t" not in self.indices[one]
                by_rows = is_buffered and math.prod(self.sizes[i] for i in shared) <= M.ROWS
                self.wanted.setdefault(one, self.indices[one] - shared if by_rows or "t" in shared else shared)
        last = {one: n for n, (_, left, right) in enumerate(products) for one in (left, right)}
        inputs = self._inputs()
        bias = At(f"bank {BIAS}", 0)
        outputs = {}
        for number, product in enumerate(products):
            b.stage, b.layer = ("FP" if number < len(self.order.steps) else "BP"), NAME
            self._product(product)
            result = product[0]
            if result in ("y", "dx"):
                outputs[result] = self._features(result, bias if result == "y" else None)
            elif result[1:] in CORES and result[0] == "d":
                stored = self.tensors[result].stored[0]
                outputs[result] = _core_block(result, result[1:], self.sizes, stored)
            for one in product[1:]:
                if last[one] == number:
                    self._give(one)
        buffer = Buffer("b", shape.out_features // LANES, bank=BIAS)
        vector = Block("b", (shape.out_features,), (0,), buffer, shape.out_features, 1, 1, 0, 1)
        inputs.append(Transfer("b", vector))
        outputs["db"] = gradient_of(vector)
        vectors, dy = shape.out_features // LANES, self.tensors["dy"].stored[0].place
        b.columns(
            "db",
            [Level("t", tokens), padded("w", vectors)],
            replace(dy, strides={"t": vectors, "w": 1}),
            r1=outputs["db"].where(w=1),
        )
        return assemble(b, shape, tokens, inputs, [Transfer(n, block) for n, block in outputs.items()], self.order)

    def _check(self, step: Product) -> None:
        """Check that an engine's rows and lanes both have an index in a product, and the sum has one."""
        _, left, right = step
        shared = self.indices[left] & self.indices[right]
        if not shared:
            raise ProgramError(
                f"'{_text(step)}': {left} and {right} share no index; an engine multiplies neighbours only"
            )
        for one in (left, right):
            if self.indices[one] == shared:
                raise ProgramError(
                    f"'{_text(step)}' sums over all indices of {one} at once and leaves none for an engine's rows: "
                    f"contract {one} earlier"
                )
        vectors = math.prod(self.sizes[i] for i in self.indices[step[0]]) // LANES
        most = max(room.depth for room in self.free_lists.values())
        if vectors > most:
            raise ProgramError(
                f"'{_text(step)}': {step[0]} takes {vectors:,} vectors, a bank for intermediates has {most:,}: choose "
                "fewer tokens or smaller ranks, or an order whose intermediates are smaller"
            )

    def _inputs(self) -> list[Transfer]:
        """x, dy and the cores, as they are loaded."""
        transfers = []
        features = {"x": (X, ("j1", "j2", "j3")), "dy": (DY, ("i1", "i2", "i3"))}
        for name, (bank, modes) in features.items():
            arrangement = Arrangement(("t", *modes), 3)
            place = At(f"bank {bank}", 0)
            self._new(name).stored.append(Stored(place, arrangement))
            transfers.append(Transfer(name, self._matrix(name, place, modes)))
        for axes, cores, bank in ((OUT_AXES, (2, 1, 0), OUT_CORES), (IN_AXES, (3, 4, 5), IN_CORES)):
            used = 0
            for core, of in zip(cores, axes.values(), strict=True):
                name = CORES[core]
                order = tuple(i for i in (_DIMENSIONS[name][axis] for axis in of) if i in self.indices[name])
                arrangement = Arrangement(order, 1)
                stored = Stored(At(f"bank {bank}", used), arrangement)
                used += arrangement.vectors(self.sizes)
                self._new(name).stored.append(stored)
                transfers.append(Transfer(name, _core_block(name, name, self.sizes, stored)))
        return transfers

    def _features(self, name: str, bias: At | None) -> Block:
        """Return y or dx as it is stored, a token after the other; y gets its bias."""
        modes = ("i1", "i2", "i3") if name == "y" else ("j1", "j2", "j3")
        stored = self._arranged(self.tensors[name], Arrangement(("t", *modes), 3), M.reach(VECTOR, 0, False))
        if bias is not None:
            vectors = math.prod(self.sizes[m] for m in modes) // LANES
            target = self._place(name, stored.arrangement.vectors(self.sizes), M.reach(VECTOR, 3, True))
            matrix, loops = {"t": vectors, "w": 1}, [Level("t", self.tokens), Level("w", vectors)]
            a, b, result = (replace(one, strides=matrix) for one in (stored.place, bias, target))
            self.b.vector(M.ADD, "y + b", loops, a, replace(b, strides={"w": 1}), r0=result)
            self._release(stored.place)
            stored = Stored(target, stored.arrangement)
        return self._matrix(name, stored.place, modes)

    def _matrix(self, name: str, place: At, modes: Sequence[str]) -> Block:
        """Return where (tokens, features) lie."""
        return matrix_block(name, place.number, place.base, self.tokens, math.prod(self.sizes[m] for m in modes))

    # ---- places --------------------------------------------------------------------------------------------------

    def _new(self, name: str) -> Tensor:
        self.tensors[name] = Tensor(name, self.indices[name])
        return self.tensors[name]

    def _place(self, name: str, vectors: int, writer: Port, *readers: Port) -> At:
        """Return room for a tensor in a bank that a port writes and others read, best where both engines reach it."""
        rooms = [
            room
            for bank, room in self.free_lists.items()
            if bank in writer.banks and all(bank in reader.banks for reader in readers)
        ]
        is_gradient = name.startswith("d") and name[1:] in self.indices
        if is_gradient:  # apart from the tensors of the forward pass, with which they are multiplied
            rooms.sort(key=lambda room: (room.bank == COMMON, -room.free))
        else:
            rooms.sort(key=lambda room: (room.bank != COMMON, -room.free))
        for room in rooms:
            first = room.take(vectors)
            if first is not None:
                return At(f"bank {room.bank}", first)
        if not rooms:
            raise ProgramError(
                f"{name}: no bank is reached by {', '.join(p.name for p in (writer, *readers))} together"
            )
        room = max(rooms, key=lambda room: room.free)
        raise ProgramError(
            f"{name} takes {vectors:,} vectors; bank {room.bank} has {room.free:,} of {room.depth:,} left: choose "
            "fewer tokens or smaller ranks, or an order whose intermediates are smaller"
        )

    def _release(self, place: At) -> None:
        if place.number in self.free_lists:
            self.free_lists[place.number].give(place.base)

    def _give(self, name: str) -> None:
        """Give back what a tensor takes that no later product reads."""
        for stored in self.tensors[name].stored:
            self._release(stored.place)

    def _arranged(self, tensor: Tensor, arrangement: Arrangement, reader: Port, but: str = "") -> Stored:
        """Return the tensor in an arrangement, where a port reads it and not in the memory `but`: a copy if need be."""
        for stored in tensor.stored:
            is_so = arrangement in stored.arrangement.views(self.sizes)
            if is_so and stored.place.number in reader.banks and stored.place.memory != but:
                return Stored(stored.place, arrangement)
        source = min(tensor.stored, key=lambda one: self._steps_between(one.arrangement, arrangement))
        others = replace(reader, banks=tuple(bank for bank in reader.banks if f"bank {bank}" != but))
        place = self._place(tensor.name, arrangement.vectors(self.sizes), _SHUFFLED, others)
        rearrange(self.b, f"permute {tensor.name}", self.sizes, source.place, source.arrangement, place, arrangement)
        tensor.stored.append(Stored(place, arrangement))
        return tensor.stored[-1]

    def _buffered(self, engine: int, tensor: Tensor, fixed: tuple[str, ...], rows: str, vectors: Arrangement) -> At:
        """Return a tensor's place in an engine's operand buffer, a part for each value of the indices `fixed`."""
        key = engine, fixed, rows, vectors
        if key not in tensor.loaded:
            size = vectors.vectors(self.sizes)
            place = self.b.take_buffer(
                f"{tensor.name} for engine {engine}", engine, size * math.prod(self.sizes[i] for i in fixed)
            )
            source = next(
                (one for one in tensor.stored if not {*fixed, rows} & {*one.arrangement.packed}), tensor.stored[0]
            )
            if set(fixed) & set(source.arrangement.packed):
                source = self._arranged(
                    tensor, Arrangement((*fixed, rows, *vectors.order), vectors.lanes), _SHUFFLE_SOURCE
                )
            strides = source.strides(self.sizes)
            for number, values in enumerate(passes(self.sizes, fixed)):
                base = source.place.base + offset_of(strides, values)
                buffer = At(place.memory, place.base + number * size)
                load_operand(
                    self.b,
                    f"load {tensor.name}",
                    self.sizes,
                    At(source.place.memory, base),
                    source.arrangement,
                    rows,
                    buffer,
                    vectors,
                )
            tensor.loaded[key] = place
        return tensor.loaded[key]

    # ---- products ------------------------------------------------------------------------------------------------

    def _product(self, product: Product) -> None:
        """Emit a product in its cheapest lowering."""
        result, left, right = product
        self._new(result)
        ways = [way for a, b in ((left, right), (right, left)) for way in self._lowerings(product, a, b)]
        refused = None
        for way in sorted(ways, key=lambda one: one.cost):
            try:
                way.emit()
                return
            except ValueError as error:  # no room, or a port that is asked twice
                refused = refused or error
        raise refused or ProgramError(
            f"'{_text(product)}': no engine can do it: it has {M.ROWS} rows, and neither operand has an index for them"
        )

    def _lowerings(self, product: Product, a: str, b: str) -> Iterator[_Lowering]:
        """Yield the lowerings in which A gives scalars or the stream; B is loaded, or streams if both have tokens."""
        result = product[0]
        one, other = self.tensors[a], self.tensors[b]
        k = one.indices & other.indices
        m, n = one.indices - k, other.indices - k
        what = _text(product)
        want = self.wanted.get(result, frozenset())
        if not other.has_tokens:
            for engine in self._engines(one, other):
                yield from self._buffered_lowerings(what, engine, result, want, one, other, k, m, n)
        if one.has_tokens == other.has_tokens:
            for engine in (0, 1):
                yield from self._streamed_lowerings(what, engine, result, one, other, k, m, n)

    def _engines(self, one: Tensor, other: Tensor) -> tuple[int, ...]:
        """Engines that may do a product: with tokens, the one of the core's end of the train."""
        if not one.has_tokens:
            return 0, 1
        return (0,) if any(index[0] == "j" for index in other.indices) else (1,)

    def _buffered_lowerings(self, what, engine, result, want, one, other, k, m, n) -> Iterator[_Lowering]:
        sizes = self.sizes
        for arrangement, permuting in self._suffixes(one, k):
            ks = arrangement.order[-len(k) :]
            ms = tuple(i for i in arrangement.order if i in m)
            # EXPAND: the last of k counts rows
            if arrangement.lanes == 1 and sizes[ks[-1]] <= M.ROWS and len(passes(sizes, ks[:-1])) <= MOST_PASSES:
                for vectors in self._rows_of(n, want):
                    outer = sorted((*ms, *vectors.outer), key=want.__contains__)
                    to = Arrangement((*outer, *vectors.packed), vectors.lanes)
                    runs = len(passes(sizes, ks[:-1]))
                    steps = expand_steps(sizes, ms, ks, vectors) + self._holding(
                        engine, other, ks[:-1], ks[-1], vectors
                    )
                    emit = partial(
                        self._expanding, what, engine, one, other, arrangement, ks, vectors, result, to, runs
                    )
                    yield self._lowering(engine, steps + permuting + (runs - 1) * PERMUTE_CYCLES, result, to, emit)
            # REDUCE: the last of n counts rows
            row = Arrangement(ks, arrangement.lanes)
            for last in sorted(n):
                ns = (*sorted(n - {last}), last)
                if sizes[last] > M.ROWS or len(passes(sizes, ns[:-1])) > MOST_PASSES:
                    continue
                to = Arrangement((*sorted((*ms, *ns[:-1]), key=want.__contains__), last), 1)
                steps = reduce_steps(sizes, ms, row, ns) + self._holding(engine, other, ns[:-1], last, row)
                emit = partial(self._reducing, what, engine, one, other, arrangement, ks, row, ns, result, to)
                yield self._lowering(engine, steps + permuting, result, to, emit)

    def _streamed_lowerings(self, what, engine, result, one, other, k, m, n) -> Iterator[_Lowering]:
        sizes = self.sizes
        for (rows, permuting), (vectors, permuting_vectors) in itertools.product(
            self._suffixes(one, m), self._suffixes(other, n)
        ):
            if not one_vector(sizes, rows.packed):
                continue
            ms, ns = rows.order[-len(m) :], vectors.order[-len(n) :]
            width = Arrangement(ns, min(vectors.lanes, len(ns))).vectors(sizes)
            runs = len(passes(sizes, ms[: -rows.lanes])) * -(-width // M.ACCUMULATORS)
            count = math.prod(sizes[i] for i in rows.packed)
            to = Arrangement((*ms, *ns), vectors.lanes)
            steps = (
                accumulate_steps(sizes, sorted(k), runs, min(width, M.ACCUMULATORS), count)
                + permuting
                + permuting_vectors
            )
            if runs <= MOST_PASSES:
                emit = partial(self._accumulating, what, engine, one, other, rows, vectors, ms, result, to)
                yield self._lowering(engine, steps, result, to, emit)

    def _lowering(self, engine: int, steps: float, result: str, to: Arrangement, emit: Callable[[], None]) -> _Lowering:
        """Return a lowering; its cost includes the permutation of its result and the imbalance of the engines."""
        cost = steps + self._permuting(result, to) + max(self.load[engine] - self.load[1 - engine], 0) / 4

        def count_and_emit() -> None:
            emit()
            self.load[engine] += steps

        return _Lowering(cost, count_and_emit)

    def _permuting(self, result: str, to: Arrangement) -> float:
        """Return the cost of permuting a result for its next use."""
        final = {"y": ("i1", "i2", "i3"), "dx": ("j1", "j2", "j3")}.get(result)
        if final is not None:
            aim = Arrangement(("t", *final), 3)
            if aim in to.views(self.sizes):
                return 0.0
            return self._steps_between(to, aim)
        want = self.wanted.get(result)
        if not want or any(_ends_in(view, want) for view in to.views(self.sizes)):
            return 0.0
        return 4.0 * to.vectors(self.sizes) + 2 * PERMUTE_CYCLES

    def _steps_between(self, of: Arrangement, to: Arrangement) -> float:
        try:
            return rearranging_steps(self.sizes, of, to) + PERMUTE_CYCLES
        except ProgramError:
            return math.inf

    def _suffixes(self, tensor: Tensor, last: frozenset[str]) -> list[tuple[Arrangement, float]]:
        """Return arrangements of a tensor that end in some of its indices, and what it costs to bring it there."""
        cost_of: dict[Arrangement, float] = {}
        for stored in tensor.stored:
            for view in stored.arrangement.views(self.sizes):
                if _ends_in(view, last):
                    cost_of[view] = 0.0
        order = tensor.stored[0].arrangement.order
        front, back = tuple(i for i in order if i not in last), tuple(i for i in order if i in last)
        for lanes in {1, len(back)}:
            for final in back if lanes == 1 else back[-1:]:
                ends = (*(i for i in back if i != final), final) if lanes == 1 else back
                arrangement = Arrangement((*front, *ends), lanes)
                if arrangement not in cost_of:
                    cost_of[arrangement] = min(
                        self._steps_between(one.arrangement, arrangement) for one in tensor.stored
                    )
        return [(arrangement, cost) for arrangement, cost in cost_of.items() if cost < math.inf]

    def _rows_of(self, n: frozenset[str], want: frozenset[str]) -> list[Arrangement]:
        """Return arrangements in which a result may have the indices of the buffered operand."""
        order = (*sorted(n - want), *sorted(n & want))
        return [Arrangement(order, lanes) for lanes in sorted({1, len(n & want) or 1, len(n)})]

    def _holding(self, engine: int, tensor: Tensor, fixed, rows: str, vectors: Arrangement) -> float:
        """Return the cost of loading a tensor into an operand buffer, 0 if it is there."""
        if (engine, tuple(fixed), rows, vectors) in tensor.loaded:
            return 0.0
        size = vectors.vectors(self.sizes) * self.sizes[rows]
        parts = len(passes(self.sizes, tuple(fixed)))
        if size * parts // self.sizes[rows] > M.OPERAND_BUFFER_DEPTH - self.b.buffers[engine].used:
            return math.inf if parts > 1 else 1e9
        return parts * (2 * size + 2 * M.SHUFFLE_GAP) + PERMUTE_CYCLES

    def _expanding(self, what, engine, one, other, arrangement, ks, vectors, result, to, runs) -> None:
        a = self._arranged(one, arrangement, M.reach(engine, 2, False))
        buffer = self._buffered(engine, other, tuple(ks[:-1]), ks[-1], vectors)
        addend = M.reach(engine, 3, False)
        apart = replace(addend, banks=tuple(bank for bank in addend.banks if bank != a.place.number))
        place = self._place(result, to.vectors(self.sizes), M.reach(engine, 4, True), *([apart] if runs > 1 else []))
        c = Stored(place, to)
        expand(self.b, engine, what, self.sizes, a, ks, buffer, vectors, c)
        self.tensors[result].stored.append(c)

    def _reducing(self, what, engine, one, other, arrangement, ks, row, ns, result, to) -> None:
        a = self._arranged(one, arrangement, M.reach(engine, 1, False))
        buffer = self._buffered(engine, other, tuple(ns[:-1]), ns[-1], row)
        c = Stored(self._place(result, to.vectors(self.sizes), M.reach(engine, 4, True)), to)
        reduce(self.b, engine, what, self.sizes, a, ks, buffer, ns, c)
        self.tensors[result].stored.append(c)

    def _accumulating(self, what, engine, one, other, rows, vectors, ms, result, to) -> None:
        a = self._arranged(one, rows, M.reach(engine, 2, False))
        stream = self._arranged(other, vectors, M.reach(engine, 1, False), a.place.memory)
        c = Stored(self._place(result, to.vectors(self.sizes), M.reach(DRAIN_0 + engine, 4, True)), to)
        accumulate(self.b, engine, what, self.sizes, a, ms, stream, c)
        self.tensors[result].stored.append(c)


def compile_order(shape: LayerShape, tokens: int, order: Order) -> LayerProgram:
    """Return the program of a layer in a custom contraction path.

    Parameters
    ----------
    shape : LayerShape

    Raises
    ------
    ProgramError
        If the machine cannot run it; the message names the step and the way out.
    """
    check_tokens(tokens)
    if max(shape.ranks) > M.ROWS:
        raise ProgramError(
            f"the layer has rank {max(shape.ranks)}: a custom contraction path takes ranks up to {M.ROWS}; "
            "choose a flow by its name"
        )
    return CustomPath(shape, tokens, order).program()


def _text(product: Product) -> str:
    return f"{product[0]} = {product[1]} {product[2]}"


def _ends_in(arrangement: Arrangement, last: frozenset[str]) -> bool:
    """Return True if the last indices of an arrangement are these, in some order, and fill all lanes."""
    return set(arrangement.order[len(arrangement.order) - len(last) :]) == set(last) and arrangement.lanes <= len(last)


def _core_block(name: str, core: str, sizes, stored: Stored) -> Block:
    """Return a core, or its gradient, as it lies."""
    dimensions = _DIMENSIONS[core]
    shape = tuple(sizes.get(i, 1) for i in dimensions)
    missing = [axis for axis, i in enumerate(dimensions) if i not in sizes]
    axes = (*missing, *(dimensions.index(i) for i in stored.arrangement.order))
    columns = stored.arrangement.row_elements(sizes)
    rows = math.prod(shape) // columns
    buffer = Buffer(name, stored.arrangement.vectors(sizes), bank=stored.place.number, base=stored.place.base)
    return Block(name, shape, axes, buffer, columns, rows, rows, 0, rows)
