"""Emit the instructions of a linear layer's plans (`contraction`): the places of its tensors, and a step at a time."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bttlab.compiler.buffers import Buffer
from bttlab.compiler.builder import ROWS, Builder, padded, row_passes
from bttlab.compiler.instruction import At, Bound, Level, Memory, at
from bttlab.compiler.machine import M
from bttlab.compiler.memory.layout import Block
from bttlab.compiler.plan.arrangement import Arrangement, Sizes, Stored, rearrange
from bttlab.compiler.plan.candidates import Copy
from bttlab.compiler.plan.contraction import (
    ADDEND,
    Add,
    AddToSum,
    Given,
    Load,
    Multiply,
    Permute,
    Step,
    TakeSum,
    text_of,
)
from bttlab.compiler.plan.products import EngineProduct
from bttlab.compiler.plan.tt_layer import IN, OUT, TTLayer

# Of a result: tokens of each block, by default all, the first, and its place.
Blocks = Sequence[tuple[Bound | None, int, At]]


class OperandBuffer:
    """What linear layers have loaded into the operand buffer of an engine."""

    def __init__(self, builder: Builder, engine: int):
        self.builder, self.engine, self._home = builder, engine, Memory.operand_buffer(engine)
        # By the layer's name, in the order of their last use: the tensors, by name and arrangement, and their buffers.
        self._of: dict[str, tuple[dict[Copy, Stored], list[Buffer]]] = {}

    def loaded_by(self, layer: str) -> dict[Copy, Stored]:
        """Return what a layer has loaded: none of it if the operand buffer has no space for it and all loaded since."""
        names = list(self._of)
        since = names[names.index(layer) :] if layer in self._of else []
        used = [buffer for name in since for buffer in self._of[name][1]]
        used += self.builder.persistent[self._home]
        loaded, buffers = self._of.pop(layer, ({}, []))
        if sum(b.vectors for b in used) > M.OPERAND_BUFFER_DEPTH:
            loaded, buffers = {}, []
        self._of[layer] = loaded, buffers
        buffers.append(self.builder.new_buffer(f"operands of {layer}", 0, home=self._home))
        return loaded

    def place(self, layer: str, offset: int, vectors: int) -> At:
        """Return the place of vectors in the last buffer of a layer."""
        buffer = self._of[layer][1][-1]
        buffer.vectors = max(buffer.vectors, offset + vectors)
        return at(buffer.memory, offset)

    def clear(self) -> None:
        self._of.clear()


@dataclass(frozen=True)
class Final:
    """Where a plan's result is wanted; `blocks` are places of blocks of tokens, if it is divided into such."""

    stored: Stored
    blocks: Blocks = ()


class Emitter:
    """Emits the plans of a layer.

    `cores`: the parameters in the banks.
    `buffers`: the operand buffers of the engines.
    `merged`: the copies of products of cores that later plans may read.
    `sums`: gradients that are summed over the samples of an update.
    """

    def __init__(self, builder: Builder, layer: TTLayer, cores: Sequence[Block], buffers: Sequence[OperandBuffer]):
        self.b, self.layer, self.sizes, self._buffers = builder, layer, layer.sizes, buffers
        cores_of = zip(cores, layer.cores.items(), strict=True)
        self._cores = {name: (block, Stored(name, block.where(), of)) for block, (name, of) in cores_of}
        self.merged: dict[str, list[Stored]] = {}
        self.sums: dict[str, Stored] = {}
        self._loaded: dict[int, dict[Copy, Stored]] = {}
        self._copies: dict[tuple[int, str], list[Stored]] = defaultdict(list)

    def begin(self, *phases: int, keeps_merged: bool = False, between: Stored | None = None) -> Given:
        """Begin a plan of some phases; return what it begins with.

        `keeps_merged`: whether later plans may read the products of cores that this one computes.
        """
        for name, *_ in self.layer.merges if keeps_merged else ():
            self.merged.setdefault(name, [])
        self._loaded = {phase: self._buffer(phase).loaded_by(self.layer.name) for phase in phases}
        self._copies.clear()
        for phase in phases:
            self._copies |= {(phase, name): [core] for name, (_, core) in self._cores.items()}
            self._copies |= {(phase, name): copies for name, copies in self.merged.items()}
        merged = tuple((name, copy.arrangement) for name, copies in self.merged.items() for copy in copies)
        sums = tuple((name, stored.arrangement) for name, stored in self.sums.items())
        loaded = tuple(frozenset(self._loaded.get(phase, ())) for phase in (IN, OUT))
        return Given(merged, loaded, between and between.arrangement, sums)

    def emit(
        self,
        steps: Iterable[Step],
        copies: Iterable[tuple[int, Stored]] = (),
        finals: Iterable[Final] = (),
        bias: At | None = None,
        is_summed: bool = False,
    ) -> None:
        """Emit the steps of a plan.

        `copies`: what the plan reads beside the cores, with its phase.
        `finals`: where its results are wanted, beside the gradients of cores.
        `bias`: where the gradient of the bias is wanted.
        `is_summed`: whether gradients of cores are those of a sample, which are added to sums.
        """
        for phase, stored in copies:
            self._copies[phase, stored.name].append(stored)
        self._finals = {final.stored.name: final for final in finals}
        self._bias, self._is_summed = bias, is_summed
        for step in steps:
            match step:
                case Permute():
                    self._permute(step)
                case Load():
                    self._load(step)
                case Multiply():
                    self._multiply(step)
                case Add():
                    self._add(step)
                case AddToSum():
                    self._add_to_sum(step)
                case TakeSum():
                    self._take_sum(step)

    def stored(self, phase: int, name: str) -> list[Stored]:
        """Return the copies of a tensor that the last plan has left in banks, the first one first."""
        return self._copies[phase, name]

    # ---- places --------------------------------------------------------------------------------------------------

    def _buffer(self, phase: int) -> OperandBuffer:
        return self._buffers[self.layer.engines[phase]]

    def _find(self, phase: int, name: str, arrangement: Arrangement) -> Stored:
        copies = self._copies[phase, name]
        found = next(copy for copy in copies if arrangement in copy.arrangement.views(self.sizes))
        return found._replace(arrangement=arrangement)

    def _new(self, phase: int, name: str, arrangement: Arrangement, what: str) -> Stored:
        stored = Stored(name, self.b.allocate(what, arrangement.vectors(self.sizes)), arrangement)
        self._copies[phase, name].append(stored)
        return stored

    def _final(self, name: str) -> Final:
        """Return where a result is wanted; by default it is the gradient of a core."""
        if name not in self._finals:
            block, core = self._cores[name.removeprefix("d")]
            place = block.gradient()
            if self._is_summed:
                place = self.b.allocate(f"{name} of the sample", core.arrangement.vectors(self.sizes))
            self._finals[name] = Final(Stored(name, place, core.arrangement))
        return self._finals[name]

    def _in_operand_buffer(self, phase: int, name: str, arrangement: Arrangement, offset: int) -> Stored:
        rows = self.sizes[arrangement.order[0]]
        vectors = arrangement.vectors(self.sizes) // rows * len(row_passes(rows))
        stored = Stored(name, self._buffer(phase).place(self.layer.name, offset, vectors), arrangement, True)
        self._loaded[phase][name, arrangement] = stored
        return stored

    # ---- steps ---------------------------------------------------------------------------------------------------

    def _permute(self, step: Permute) -> None:
        source = self._find(step.phase, step.tensor, step.source)
        if step.is_final:
            final = self._final(step.tensor)
            for sizes, part, place in self._in_blocks(source, final):
                rearrange(self.b, sizes, part, final.stored._replace(place=place))
            self._copies[step.phase, step.tensor].append(final.stored)
            return
        target = self._new(step.phase, step.tensor, step.target, f"{step.tensor}, permuted")
        rearrange(self.b, self.sizes, source, target)

    def _load(self, step: Load) -> None:
        source = self._find(step.phase, step.tensor, step.source)
        place = self._in_operand_buffer(step.phase, step.tensor, step.target, step.offset)
        if not step.is_by_engine:
            for sizes, rows, destination in self._passes(source, place):
                rearrange(self.b, sizes, rows, destination)
            return
        for n, count in row_passes(self.sizes[place.rows]):
            first, into = source.place.offset_by(ROWS * n), place.place.offset_by(n)
            self.b.load_rows(f"load {step.tensor}", first, into, count, 1)

    def _multiply(self, step: Multiply) -> None:
        phase, name, operation = step.phase, step.product[0], step.operation
        if operation == M.ACCUMULATE:
            b = self._find(phase, *step.b)
        else:
            b = self._loaded[phase][step.b]
        a = self._find(phase, *step.a)
        if step.loaded is not None:
            place = self._in_operand_buffer(phase, name, step.loaded, step.offset)
            parts = self._passes(a, place._replace(arrangement=step.result))
        else:
            if step.is_final:
                final = self._final(name)
                c = final.stored._replace(arrangement=step.result)
                self._copies[phase, name].append(c)
            else:
                c, final = self._new(phase, name, step.result, name), None
            blocks = self._in_blocks(a, final or Final(c))
            parts = ((sizes, source, c._replace(place=place)) for sizes, source, place in blocks)
        fields = {"addend": step.addend and self._find(phase, *step.addend), "flags": step.flags}
        fields["bias"] = self._bias if step.has_bias else None
        engine, text = self.layer.engines[phase], text_of(step.product)
        for sizes, source, into in parts:
            EngineProduct(self.b, engine, operation, text, sizes, source, step.contracted, b, into, **fields).emit()

    def _passes(self, source: Stored, place: Stored) -> Iterator[tuple[Sizes, Stored, Stored]]:
        """Yield the sizes, source and destination of each pass of up to ROWS rows into an operand buffer."""
        rows = place.rows
        vectors = place.arrangement.vectors(self.sizes) // self.sizes[rows]
        for n, count in row_passes(self.sizes[rows]):
            sizes = self.sizes if count == self.sizes[rows] else Sizes(self.sizes | {rows: count}, self.sizes.bounds)
            step = source.strides(self.sizes).get(rows, 0)
            # Rows are the outermost index of the source, so its other strides do not depend on their number.
            yield (
                sizes,
                source._replace(place=source.place.offset_by(ROWS * n * step)),
                place._replace(place=place.place.offset_by(n * vectors)),
            )

    def _in_blocks(self, source: Stored, final: Final) -> Iterator[tuple[Sizes, Stored, At]]:
        """Yield sizes and source of each block of tokens, and its place in the result."""
        for bound, first, place in final.blocks or [(None, 0, final.stored.place)]:
            step = first and first * source.strides(self.sizes)["t"]
            sizes = self.sizes if bound is None else Sizes(self.sizes, {"t": bound})
            yield sizes, source._replace(place=source.place.offset_by(step)), place

    def _add(self, step: Add) -> None:
        term, final = self._find(step.phase, step.tensor, step.source), self._final(step.tensor).stored
        vectors = step.source.row_vectors(self.sizes)
        loops = [Level("w", vectors), padded("t", self.layer.tokens)]
        places = term.place, self._find(step.phase, ADDEND, step.source).place, final.place
        first, second, result = (place.part(t=vectors, w=1) for place in places)
        self.b.vector(M.ADD, "d_x", loops, first, second, r0=result)

    def _add_to_sum(self, step: AddToSum) -> None:
        name, gradient = step.tensor, self._find(step.phase, step.tensor, step.source)
        vectors = step.source.vectors(self.sizes)
        if name not in self.sums:
            place = self.b.allocate(f"sum of {name} of {self.layer.name}", vectors, is_persistent=True)
            self.sums[name] = gradient._replace(place=place)
        place, terms = self.sums[name].place.part(w=1), gradient.place.part(w=1)
        self.b.vector(M.ADD, f"sum of {name}", [Level("w", vectors)], place, terms, r0=place, flags=M.CHECK)

    def _take_sum(self, step: TakeSum) -> None:
        final, total = self._final(step.tensor).stored, self.sums[step.tensor]
        loops = [Level("w", final.arrangement.vectors(self.sizes))]
        source, target = (stored.place.part(w=1) for stored in (total, final))
        self.b.vector(M.COPY, step.tensor, loops, source, r0=target, flags=M.CHECK)
