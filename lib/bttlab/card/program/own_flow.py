"""The program of one linear layer in an order of contraction of one's own (`bttlab.tensor.Order`).

Each product is compiled by itself: of the ways in which an engine can do it (`products`), with the operands as they lie
or re-ordered by the shuffle unit, the one that takes the fewest steps, those of re-ordering what it leaves included. A
model's own layers (`linear`) are written by hand instead; they know how many cores of each end are merged.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from bttlab.card.machine import Port, machine
from bttlab.card.program import banks
from bttlab.card.program.arrangement import Arrangement, hold, rearrange, rearranging_steps
from bttlab.card.program.builder import LANES, Builder, padded
from bttlab.card.program.errors import ProgramError
from bttlab.card.program.instruction import DRAIN_0, SHUFFLE, VECTOR, At, Loop
from bttlab.card.program.layer import (
    CORES,
    DX,
    DY,
    NAME,
    LayerProgram,
    LayerShape,
    Transfer,
    X,
    Y,
    assemble,
    check_tokens,
    gradient_of,
    matrix_block,
)
from bttlab.card.program.layout import IN_AXES, OUT_AXES, Block
from bttlab.card.program.products import (
    Lying,
    accumulate,
    accumulate_steps,
    expand,
    expand_steps,
    offset_of,
    one_word,
    passes,
    reduce,
    reduce_steps,
)
from bttlab.tensor.order import Order, Product

M = machine()
TURN = M.LATENCY  # cycles that a re-ordering costs beside its steps: what comes next waits for its results
MOST_PASSES = 16
COMMON = banks.KEPT  # both engines read it, as stream and as scalars
INTERMEDIATES = (COMMON, banks.SCALARS, banks.SCORES, *banks.SCRATCH, Y, DX)
_SHUFFLED, _SHUFFLE_SOURCE = M.reach(SHUFFLE, 4, True), M.reach(SHUFFLE, 1, False)
# The cores as a model's layers have them, by indices.
_DIMENSIONS = {
    name: (f"r{k - 1}", f"{'i' if k < 4 else 'j'}{(k - 1) % 3 + 1}", f"r{k}") for k, name in enumerate(CORES, 1)
}


class Room:
    """Words of a bank that are given out and come back."""

    def __init__(self, bank: int, depth: int):
        self.bank, self.depth = bank, depth
        self._taken: list[tuple[int, int]] = []

    def take(self, words: int) -> int | None:
        """Return the first of so many words, None if there is no room."""
        first = 0
        for begin, end in (*sorted(self._taken), (self.depth, 0)):
            if begin - first >= words:
                self._taken.append((first, first + words))
                return first
            first = end
        return None

    def give(self, first: int) -> None:
        """Take words back."""
        self._taken = [span for span in self._taken if span[0] != first]

    @property
    def free(self) -> int:
        """Words that are free."""
        return self.depth - sum(end - begin for begin, end in self._taken)


@dataclass
class Tensor:
    """A tensor of the network: its indices, where it lies, in which arrangements, and what is held of it."""

    name: str
    indices: frozenset[str]
    lying: list[Lying] = field(default_factory=list)
    held: dict[tuple, At] = field(default_factory=dict)

    @property
    def has_tokens(self) -> bool:
        """Whether its size follows the tokens."""
        return "t" in self.indices


@dataclass
class _Way:
    """A way to do a product: its cost, and what emits it."""

    cost: float
    emit: Callable[[], None]


class OwnFlow:
    """Compiles an order.

    Parameters
    ----------
    shape : LayerShape
    tokens : int
    order : Order
    """

    def __init__(self, shape: LayerShape, tokens: int, order: Order):
        self.b, self.shape, self.tokens, self.order = Builder(), shape, tokens, order
        self.sizes = order.sizes(tokens, shape.out_modes, shape.in_modes, shape.ranks)
        self.rooms = {bank: Room(bank, M.banks[bank].depth) for bank in INTERMEDIATES}
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
        # Of each tensor: the indices that had best lie along its words where it goes next.
        self.wanted: dict[str, frozenset[str]] = {}
        for number, (_, left, right) in enumerate(products):
            shared = self.indices[left] & self.indices[right]
            for one in (left, right):
                is_held = number < len(self.order.steps) and "t" not in self.indices[one]
                by_rows = is_held and math.prod(self.sizes[i] for i in shared) <= M.ROWS
                self.wanted.setdefault(one, self.indices[one] - shared if by_rows or "t" in shared else shared)
        last = {one: n for n, (_, left, right) in enumerate(products) for one in (left, right)}
        inputs = self._inputs()
        bias = At(f"bank {banks.REST}", b.banks[banks.REST].take("b", shape.out_features // LANES))
        outputs = {}
        for number, product in enumerate(products):
            b.stage, b.layer = ("FP" if number < len(self.order.steps) else "BP"), NAME
            self._product(product)
            result = product[0]
            if result in ("y", "dx"):
                outputs[result] = self._features(result, bias if result == "y" else None)
            elif result[1:] in CORES and result[0] == "d":
                lying = self.tensors[result].lying[0]
                outputs[result] = _core_block(result, result[1:], self.sizes, lying)
            for one in product[1:]:
                if last[one] == number:
                    self._give(one)
        vector = Block("b", (shape.out_features,), (0,), banks.REST, bias.base, shape.out_features, 1, 1, 0, 1)
        inputs.append(Transfer("b", vector))
        outputs["db"] = gradient_of(vector)
        words, dy = shape.out_features // LANES, self.tensors["dy"].lying[0].place
        b.vector(
            M.COLUMNS,
            "db",
            [Loop("t", tokens), padded("w", words)],
            replace(dy, strides={"t": words, "w": 1}),
            r1=outputs["db"].where(w=1),
            depth=("t",),
            slot_loop="t",
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
        words = math.prod(self.sizes[i] for i in self.indices[step[0]]) // LANES
        most = max(room.depth for room in self.rooms.values())
        if words > most:
            raise ProgramError(
                f"'{_text(step)}': {step[0]} takes {words:,} words, a bank for intermediates has {most:,}: choose "
                "fewer tokens or smaller ranks, or an order whose intermediates are smaller"
            )

    def _inputs(self) -> list[Transfer]:
        """x, dy and the cores, as they are loaded."""
        transfers = []
        features = {"x": (X, ("j1", "j2", "j3")), "dy": (DY, ("i1", "i2", "i3"))}
        for name, (bank, modes) in features.items():
            arrangement = Arrangement(("t", *modes), 3)
            place = At(f"bank {bank}", self.b.banks[bank].take(name, arrangement.words(self.sizes)))
            self._new(name).lying.append(Lying(place, arrangement))
            transfers.append(Transfer(name, self._matrix(name, place, modes)))
        for axes, bank in ((OUT_AXES, banks.OUT_CORES), (IN_AXES, banks.IN_CORES)):
            for core, of in axes.values():
                name = CORES[core]
                order = tuple(i for i in (_DIMENSIONS[name][axis] for axis in of) if i in self.indices[name])
                arrangement = Arrangement(order, 1)
                lying = Lying(
                    At(f"bank {bank}", self.b.banks[bank].take(name, arrangement.words(self.sizes))), arrangement
                )
                self._new(name).lying.append(lying)
                transfers.append(Transfer(name, _core_block(name, name, self.sizes, lying)))
        return transfers

    def _features(self, name: str, bias: At | None) -> Block:
        """Return y or dx as it is stored, a token after the other; y gets its bias."""
        modes = ("i1", "i2", "i3") if name == "y" else ("j1", "j2", "j3")
        lying = self._arranged(self.tensors[name], Arrangement(("t", *modes), 3), M.reach(VECTOR, 0, False))
        if bias is not None:
            words = math.prod(self.sizes[m] for m in modes) // LANES
            target = self._place(name, lying.arrangement.words(self.sizes), M.reach(VECTOR, 3, True))
            matrix, loops = {"t": words, "w": 1}, [Loop("t", self.tokens), Loop("w", words)]
            a, b, result = (replace(one, strides=matrix) for one in (lying.place, bias, target))
            self.b.vector(M.ADD, "y + b", loops, a, replace(b, strides={"w": 1}), r0=result)
            self._release(lying.place)
            lying = Lying(target, lying.arrangement)
        return self._matrix(name, lying.place, modes)

    def _matrix(self, name: str, place: At, modes: Sequence[str]) -> Block:
        """Return where (tokens, features) lie."""
        return matrix_block(name, place.number, place.base, self.tokens, math.prod(self.sizes[m] for m in modes))

    # ---- places --------------------------------------------------------------------------------------------------

    def _new(self, name: str) -> Tensor:
        self.tensors[name] = Tensor(name, self.indices[name])
        return self.tensors[name]

    def _place(self, name: str, words: int, writer: Port, *readers: Port) -> At:
        """Return room for a tensor in a bank that a port writes and others read, best where both engines reach it."""
        rooms = [
            room
            for bank, room in self.rooms.items()
            if bank in writer.banks and all(bank in reader.banks for reader in readers)
        ]
        is_gradient = name.startswith("d") and name[1:] in self.indices
        if is_gradient:  # apart from the tensors of the forward pass, with which they are multiplied
            rooms.sort(key=lambda room: (room.bank == COMMON, -room.free))
        else:
            rooms.sort(key=lambda room: (room.bank != COMMON, -room.free))
        for room in rooms:
            first = room.take(words)
            if first is not None:
                return At(f"bank {room.bank}", first)
        if not rooms:
            raise ProgramError(
                f"{name}: no bank is reached by {', '.join(p.name for p in (writer, *readers))} together"
            )
        room = max(rooms, key=lambda room: room.free)
        raise ProgramError(
            f"{name} takes {words:,} words; bank {room.bank} has {room.free:,} of {room.depth:,} left: choose fewer "
            "tokens or smaller ranks, or an order whose intermediates are smaller"
        )

    def _release(self, place: At) -> None:
        if place.number in self.rooms:
            self.rooms[place.number].give(place.base)

    def _give(self, name: str) -> None:
        """Give back what a tensor takes that no later product reads."""
        for lying in self.tensors[name].lying:
            self._release(lying.place)

    def _arranged(self, tensor: Tensor, arrangement: Arrangement, reader: Port, but: str = "") -> Lying:
        """Return the tensor in an arrangement, where a port reads it and not in the memory `but`: a copy if need be."""
        for lying in tensor.lying:
            is_so = arrangement in lying.arrangement.views(self.sizes)
            if is_so and lying.place.number in reader.banks and lying.place.memory != but:
                return Lying(lying.place, arrangement)
        source = min(tensor.lying, key=lambda one: self._steps_between(one.arrangement, arrangement))
        others = replace(reader, banks=tuple(bank for bank in reader.banks if f"bank {bank}" != but))
        place = self._place(tensor.name, arrangement.words(self.sizes), _SHUFFLED, others)
        rearrange(self.b, f"turn {tensor.name}", self.sizes, source.place, source.arrangement, place, arrangement)
        tensor.lying.append(Lying(place, arrangement))
        return tensor.lying[-1]

    def _held(self, engine: int, tensor: Tensor, fixed: tuple[str, ...], rows: str, words: Arrangement) -> At:
        """Return where an engine holds a tensor: `rows` counts rows, a part for each value of the indices `fixed`."""
        key = engine, fixed, rows, words
        if key not in tensor.held:
            size = words.words(self.sizes)
            place = self.b.hold(
                f"{tensor.name} for engine {engine}", engine, size * math.prod(self.sizes[i] for i in fixed)
            )
            source = next(
                (one for one in tensor.lying if not {*fixed, rows} & {*one.arrangement.packed}), tensor.lying[0]
            )
            if set(fixed) & set(source.arrangement.packed):
                source = self._arranged(tensor, Arrangement((*fixed, rows, *words.order), words.lanes), _SHUFFLE_SOURCE)
            strides = source.strides(self.sizes)
            for number, values in enumerate(passes(self.sizes, fixed)):
                base = source.place.base + offset_of(strides, values)
                held = At(place.memory, place.base + number * size)
                hold(
                    self.b,
                    f"hold {tensor.name}",
                    self.sizes,
                    At(source.place.memory, base),
                    source.arrangement,
                    rows,
                    held,
                    words,
                )
            tensor.held[key] = place
        return tensor.held[key]

    # ---- products ------------------------------------------------------------------------------------------------

    def _product(self, product: Product) -> None:
        """Emit a product in the way with the fewest steps."""
        result, left, right = product
        self._new(result)
        ways = [way for a, b in ((left, right), (right, left)) for way in self._ways(product, a, b)]
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

    def _ways(self, product: Product, a: str, b: str) -> Iterator[_Way]:
        """Yield the ways in which A gives scalars or the stream; B is held, or streams where both have tokens."""
        result = product[0]
        one, other = self.tensors[a], self.tensors[b]
        k = one.indices & other.indices
        m, n = one.indices - k, other.indices - k
        what = _text(product)
        want = self.wanted.get(result, frozenset())
        if not other.has_tokens:
            for engine in self._engines(one, other):
                yield from self._held_ways(what, engine, result, want, one, other, k, m, n)
        if one.has_tokens == other.has_tokens:
            for engine in (0, 1):
                yield from self._streamed_ways(what, engine, result, one, other, k, m, n)

    def _engines(self, one: Tensor, other: Tensor) -> tuple[int, ...]:
        """Engines that may do a product: with tokens, the one of the core's end of the train."""
        if not one.has_tokens:
            return 0, 1
        return (0,) if any(index[0] == "j" for index in other.indices) else (1,)

    def _held_ways(self, what, engine, result, want, one, other, k, m, n) -> Iterator[_Way]:
        sizes = self.sizes
        for arrangement, turning in self._suffixes(one, k):
            ks = arrangement.order[-len(k) :]
            ms = tuple(i for i in arrangement.order if i in m)
            # EXPAND: the last of k counts rows
            if arrangement.lanes == 1 and sizes[ks[-1]] <= M.ROWS and len(passes(sizes, ks[:-1])) <= MOST_PASSES:
                for words in self._rows_of(n, want):
                    outer = sorted((*ms, *words.outer), key=want.__contains__)
                    to = Arrangement((*outer, *words.packed), words.lanes)
                    runs = len(passes(sizes, ks[:-1]))
                    steps = expand_steps(sizes, ms, ks, words) + self._holding(engine, other, ks[:-1], ks[-1], words)
                    emit = partial(self._expanding, what, engine, one, other, arrangement, ks, words, result, to, runs)
                    yield self._way(engine, steps + turning + (runs - 1) * TURN, result, to, emit)
            # REDUCE: the last of n counts rows
            row = Arrangement(ks, arrangement.lanes)
            for last in sorted(n):
                ns = (*sorted(n - {last}), last)
                if sizes[last] > M.ROWS or len(passes(sizes, ns[:-1])) > MOST_PASSES:
                    continue
                to = Arrangement((*sorted((*ms, *ns[:-1]), key=want.__contains__), last), 1)
                steps = reduce_steps(sizes, ms, row, ns) + self._holding(engine, other, ns[:-1], last, row)
                emit = partial(self._reducing, what, engine, one, other, arrangement, ks, row, ns, result, to)
                yield self._way(engine, steps + turning, result, to, emit)

    def _streamed_ways(self, what, engine, result, one, other, k, m, n) -> Iterator[_Way]:
        sizes = self.sizes
        for (rows, turning), (words, turning_words) in itertools.product(
            self._suffixes(one, m), self._suffixes(other, n)
        ):
            if not one_word(sizes, rows.packed):
                continue
            ms, ns = rows.order[-len(m) :], words.order[-len(n) :]
            width = Arrangement(ns, min(words.lanes, len(ns))).words(sizes)
            runs = len(passes(sizes, ms[: -rows.lanes])) * -(-width // M.SLOTS)
            count = math.prod(sizes[i] for i in rows.packed)
            to = Arrangement((*ms, *ns), words.lanes)
            steps = accumulate_steps(sizes, sorted(k), runs, min(width, M.SLOTS), count) + turning + turning_words
            if runs <= MOST_PASSES:
                emit = partial(self._accumulating, what, engine, one, other, rows, words, ms, result, to)
                yield self._way(engine, steps, result, to, emit)

    def _way(self, engine: int, steps: float, result: str, to: Arrangement, emit: Callable[[], None]) -> _Way:
        """Return a way; an engine that has more to do than the other is the dearer, and so is a result to be turned."""
        cost = steps + self._turning(result, to) + max(self.load[engine] - self.load[1 - engine], 0) / 4

        def count_and_emit() -> None:
            emit()
            self.load[engine] += steps

        return _Way(cost, count_and_emit)

    def _turning(self, result: str, to: Arrangement) -> float:
        """Return what it costs to turn a result for where it goes."""
        final = {"y": ("i1", "i2", "i3"), "dx": ("j1", "j2", "j3")}.get(result)
        if final is not None:
            aim = Arrangement(("t", *final), 3)
            if aim in to.views(self.sizes):
                return 0.0
            return self._steps_between(to, aim)
        want = self.wanted.get(result)
        if not want or any(_ends_in(view, want) for view in to.views(self.sizes)):
            return 0.0
        return 4.0 * to.words(self.sizes) + 2 * TURN

    def _steps_between(self, of: Arrangement, to: Arrangement) -> float:
        try:
            return rearranging_steps(self.sizes, of, to) + TURN
        except ProgramError:
            return math.inf

    def _suffixes(self, tensor: Tensor, last: frozenset[str]) -> list[tuple[Arrangement, float]]:
        """Return arrangements of a tensor that end in some of its indices, and what it costs to bring it there."""
        cost_of: dict[Arrangement, float] = {}
        for lying in tensor.lying:
            for view in lying.arrangement.views(self.sizes):
                if _ends_in(view, last):
                    cost_of[view] = 0.0
        order = tensor.lying[0].arrangement.order
        front, back = tuple(i for i in order if i not in last), tuple(i for i in order if i in last)
        for lanes in {1, len(back)}:
            for final in back if lanes == 1 else back[-1:]:
                ends = (*(i for i in back if i != final), final) if lanes == 1 else back
                arrangement = Arrangement((*front, *ends), lanes)
                if arrangement not in cost_of:
                    cost_of[arrangement] = min(
                        self._steps_between(one.arrangement, arrangement) for one in tensor.lying
                    )
        return [(arrangement, cost) for arrangement, cost in cost_of.items() if cost < math.inf]

    def _rows_of(self, n: frozenset[str], want: frozenset[str]) -> list[Arrangement]:
        """Return arrangements in which a result may have the indices of the held operand."""
        order = (*sorted(n - want), *sorted(n & want))
        return [Arrangement(order, lanes) for lanes in sorted({1, len(n & want) or 1, len(n)})]

    def _holding(self, engine: int, tensor: Tensor, fixed, rows: str, words: Arrangement) -> float:
        """Return what it costs to hold a tensor, where it is not held yet."""
        if (engine, tuple(fixed), rows, words) in tensor.held:
            return 0.0
        size = words.words(self.sizes) * self.sizes[rows]
        parts = len(passes(self.sizes, tuple(fixed)))
        if size * parts // self.sizes[rows] > M.HELD_DEPTH - self.b.held[engine].used:
            return math.inf if parts > 1 else 1e9
        return parts * (2 * size + 2 * M.SHUFFLE_GAP) + TURN

    def _expanding(self, what, engine, one, other, arrangement, ks, words, result, to, runs) -> None:
        a = self._arranged(one, arrangement, M.reach(engine, 2, False))
        held = self._held(engine, other, tuple(ks[:-1]), ks[-1], words)
        addend = M.reach(engine, 3, False)
        apart = replace(addend, banks=tuple(bank for bank in addend.banks if bank != a.place.number))
        place = self._place(result, to.words(self.sizes), M.reach(engine, 4, True), *([apart] if runs > 1 else []))
        c = Lying(place, to)
        expand(self.b, engine, what, self.sizes, a, ks, held, words, c)
        self.tensors[result].lying.append(c)

    def _reducing(self, what, engine, one, other, arrangement, ks, row, ns, result, to) -> None:
        a = self._arranged(one, arrangement, M.reach(engine, 1, False))
        held = self._held(engine, other, tuple(ns[:-1]), ns[-1], row)
        c = Lying(self._place(result, to.words(self.sizes), M.reach(engine, 4, True)), to)
        reduce(self.b, engine, what, self.sizes, a, ks, held, ns, c)
        self.tensors[result].lying.append(c)

    def _accumulating(self, what, engine, one, other, rows, words, ms, result, to) -> None:
        a = self._arranged(one, rows, M.reach(engine, 2, False))
        stream = self._arranged(other, words, M.reach(engine, 1, False), a.place.memory)
        c = Lying(self._place(result, to.words(self.sizes), M.reach(DRAIN_0 + engine, 4, True)), to)
        accumulate(self.b, engine, what, self.sizes, a, ms, stream, c)
        self.tensors[result].lying.append(c)


def compile_order(shape: LayerShape, tokens: int, order: Order) -> LayerProgram:
    """Return the program of a layer in an order of one's own.

    Parameters
    ----------
    shape : LayerShape
    tokens : int
    order : Order

    Raises
    ------
    ProgramError
        If the machine cannot run it; the line says which step, why, and what would do.
    """
    check_tokens(tokens)
    return OwnFlow(shape, tokens, order).program()


def _text(product: Product) -> str:
    return f"{product[0]} = {product[1]} {product[2]}"


def _ends_in(arrangement: Arrangement, last: frozenset[str]) -> bool:
    """Whether the last indices of an arrangement are these, in some order, and all lanes are theirs."""
    return set(arrangement.order[len(arrangement.order) - len(last) :]) == set(last) and arrangement.lanes <= len(last)


def _core_block(name: str, core: str, sizes, lying: Lying) -> Block:
    """Return a core, or its gradient, as it lies."""
    dimensions = _DIMENSIONS[core]
    shape = tuple(sizes.get(i, 1) for i in dimensions)
    missing = [axis for axis, i in enumerate(dimensions) if i not in sizes]
    axes = (*missing, *(dimensions.index(i) for i in lying.arrangement.order))
    columns = lying.arrangement.row_elements(sizes)
    rows = math.prod(shape) // columns
    return Block(name, shape, axes, lying.place.number, lying.place.base, columns, rows, rows, 0, rows)
