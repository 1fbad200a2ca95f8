"""Emit the tensor products of a linear layer on an engine, each by its cheapest candidate (`candidates`).

A product of cores alone is emitted when it is first read. If the engine produces it in the arrangement that an operand
buffer needs, it is written there directly.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from bttlab.compiler.arrangement import Arrangement, Sizes, Stored, rearrange, rearranging_steps
from bttlab.compiler.buffers import Buffer
from bttlab.compiler.builder import ROWS, Builder, row_passes
from bttlab.compiler.candidates import Candidate, Candidates, Tensor
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.instruction import At, Bound, Memory
from bttlab.compiler.machine import M
from bttlab.compiler.products import EngineProduct
from bttlab.compiler.tt_layer import TTLayer
from bttlab.tensor.order import Product

# Of a result: tokens of each block, by default all, the first, and its place.
Blocks = Sequence[tuple[Bound | None, int, At]]


class OperandBuffer:
    """What linear layers have loaded into the operand buffer of an engine."""

    def __init__(self, builder: Builder, engine: int):
        self.builder, self.engine, self._home = builder, engine, Memory.operand_buffer(engine)
        # By the layer's name, in the order of their last use: the tensors, by name and arrangement, and their buffers.
        self._of: dict[str, tuple[dict[tuple[str, Arrangement], Stored], list[Buffer]]] = {}

    def loaded_by(self, layer: str) -> dict[tuple[str, Arrangement], Stored]:
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

    def place(self, layer: str, vectors: int) -> At:
        """Add vectors to the last buffer of a layer; return their place."""
        buffer = self._of[layer][1][-1]
        buffer.vectors += vectors
        return At(buffer.memory, buffer.vectors - vectors)

    def clear(self) -> None:
        self._of.clear()


class Contraction(Candidates):
    def __init__(self, operand_buffer: OperandBuffer, layer: TTLayer):
        super().__init__(layer, operand_buffer.loaded_by(layer.name))
        self.b, self.operand_buffer = operand_buffer.builder, operand_buffer

    # ---- places --------------------------------------------------------------------------------------------------

    def allocate(self, name: str, arrangement: Arrangement) -> Stored:
        return Stored(name, self.b.allocate(name, arrangement.vectors(self.sizes)), arrangement)

    def arranged(self, tensor: Tensor, arrangement: Arrangement) -> Stored:
        """Return a copy of a tensor in an arrangement; permute the tensor if it has none."""
        self._make(tensor, arrangement)
        for stored in tensor.stored:
            if arrangement in stored.arrangement.views(self.sizes):
                return replace(stored, arrangement=arrangement)
        target = self.allocate(f"{tensor.name}, permuted", arrangement)
        rearrange(self.b, self.sizes, self._nearest(tensor.stored, target), target)
        tensor.stored.append(target)
        return target

    def _nearest(self, stored: Iterable[Stored], target: Stored) -> Stored:
        """Return the copy that takes the fewest steps to rearrange into the target."""
        to = target.arrangement, target.rows
        return min(stored, key=lambda copy: rearranging_steps(self.costs, copy.arrangement, *to))

    def buffered(self, tensor: Tensor, arrangement: Arrangement) -> Stored:
        """Return a tensor in the operand buffer, loaded if necessary; its outermost index counts rows."""
        key = tensor.name, arrangement
        if key not in self.loaded:
            rows = self.sizes[arrangement.order[0]]
            vectors, passes = arrangement.vectors(self.sizes) // rows, row_passes(rows)
            place = Stored(
                tensor.name, self.operand_buffer.place(self.layer.name, vectors * len(passes)), arrangement, True
            )
            if tensor.is_parameter and vectors > 1:
                self._load(tensor.stored[0], place)
            elif tensor.is_parameter:  # rows of one vector are sooner loaded by the engine
                for n, count in passes:
                    source = tensor.stored[0].place.offset_by(ROWS * n * vectors)
                    self.b.load_rows(f"load {tensor.name}", source, place.place.offset_by(n * vectors), count, vectors)
            elif not self._emit_into_buffer(tensor, place):
                self._make(tensor, arrangement, place.rows)
                is_cut = len(passes) > 1  # the source, too, must then have the rows as its outermost index
                _, copy = self._load_cost(tensor, arrangement)
                if is_cut or copy is not None:
                    self.arranged(tensor, arrangement if is_cut else copy)
                stored = [s for s in tensor.stored if not is_cut or s.arrangement.order[0] == place.rows]
                self._load(self._nearest(stored, place), place)
            self.loaded[key] = place
        return self.loaded[key]

    def _load(self, source: Stored, place: Stored) -> None:
        """Load a copy into the operand buffer by the shuffle unit."""
        for sizes, rows, destination in self._passes(source, place):
            rearrange(self.b, sizes, rows, destination)

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
                replace(source, place=source.place.offset_by(ROWS * n * step)),
                replace(place, place=place.place.offset_by(n * vectors)),
            )

    # ---- products ------------------------------------------------------------------------------------------------

    def product(self, product: Product, candidate: Candidate | None = None, **fields) -> Stored:
        """Emit a product by a candidate, by default the cheapest, and copy it to its target; return its stored result.

        Raise `ProgramError` if there is no candidate. `fields` are those of `_emit`.
        """
        candidate = candidate or self.choose(product)
        tensor = self.tensors[product[0]] = self.tensor_of(product)
        return self._emit(tensor, candidate, **fields)

    def defer(self, product: Product) -> None:
        """Register a product of cores; it is emitted when it is first read."""
        self.tensors[product[0]] = self.tensor_of(product)

    def _make(self, tensor: Tensor, to: Arrangement, rows: str = "") -> None:
        """Emit a deferred product by the candidate that reaches an arrangement at the least total cost."""
        if not tensor.stored:
            self._emit(tensor, next(iter(self._sorted_candidates(tensor, to, rows)), None))

    def _emit_into_buffer(self, tensor: Tensor, place: Stored) -> bool:
        """Emit a product of cores directly into the operand buffer; return False if no arrangement allows it."""
        for a, b, k, view in self._direct_operands(tensor, place.arrangement):
            a, b = self.arranged(*a), self.buffered(*b)
            for sizes, source, destination in self._passes(a, replace(place, arrangement=view)):
                self._multiply(tensor, M.EXPAND, sizes, source, k, b, destination)
            return True
        return False

    def _emit(
        self,
        tensor: Tensor,
        candidate: Candidate | None,
        addend: str = "",
        blocks: Blocks | None = None,
        flags: int = 0,
        bias: At | None = None,
    ) -> Stored:
        """Emit a tensor's product by a candidate.

        `addend`: name of a tensor that is added to the result.
        `blocks`: places of blocks of tokens, if the target is divided into such.
        `flags`, `bias`: as for `EngineProduct`.
        """
        if candidate is None:
            raise ProgramError(
                f"'{_text(tensor.product)}': no engine can compute it: an engine has {ROWS} rows, and neither operand "
                f"has an index for them; multiply others first, or take ranks of at most {ROWS}"
            )
        operation, _, _, (left, of_left), (right, of_right), contracted, to = candidate
        place_right = self.arranged if operation == M.ACCUMULATE else self.buffered
        b = place_right(self.tensors[right], of_right)
        a = self.arranged(self.tensors[left], of_left)
        target, is_final = self.targets.get(tensor.name), self.matches_target(candidate, tensor.name)
        c = replace(target, arrangement=to) if is_final else self.allocate(tensor.name, to)
        added = None
        if addend:  # in the arrangement of the result; without tokens, if it has none
            term = self.tensors[addend]
            added = self.arranged(term, replace(to, order=tuple(i for i in to.order if i in term.indices)))
        if tensor.name.startswith("dG"):
            flags |= M.CHECK
        for sizes, source, place in self._in_blocks(a, (is_final and blocks) or [(None, 0, c.place)]):
            into = replace(c, place=place)
            self._multiply(tensor, operation, sizes, source, contracted, b, into, addend=added, flags=flags, bias=bias)
        tensor.stored.append(c)
        if target and not is_final:
            for sizes, source, place in self._in_blocks(c, blocks or [(None, 0, target.place)]):
                rearrange(self.b, sizes, source, replace(target, place=place))
            tensor.stored.append(target)
        return c

    def _in_blocks(self, source: Stored, blocks: Blocks) -> Iterator[tuple[Sizes, Stored, At]]:
        """Yield sizes and source of each block of tokens, and its place in the result."""
        for bound, first, place in blocks:
            step = first and first * source.strides(self.sizes)["t"]
            sizes = self.sizes if bound is None else Sizes(self.sizes, {"t": bound})
            yield sizes, replace(source, place=source.place.offset_by(step)), place

    def _multiply(self, tensor: Tensor, operation: int, *operands, **fields) -> None:
        EngineProduct(self.b, self.operand_buffer.engine, operation, _text(tensor.product), *operands, **fields).emit()


def _text(product: Product) -> str:
    return f"{product[0]} = {product[1]} {product[2]}"
