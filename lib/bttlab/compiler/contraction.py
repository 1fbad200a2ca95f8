"""Emit the tensor products of a linear layer on an engine, each by its cheapest candidate (`candidates`).

A product of cores alone is emitted when it is first read. If the engine produces it in the arrangement that an operand
buffer needs, it is written there directly.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from bttlab.compiler.arrangement import Arrangement, Sizes, Stored, rearrange, rearranging_steps
from bttlab.compiler.builder import ROWS, Builder, row_passes
from bttlab.compiler.candidates import Candidate, Candidates, Tensor
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.instruction import At, Bound
from bttlab.compiler.machine import M
from bttlab.compiler.operands import load_rows
from bttlab.compiler.products import accumulate, expand, reduce
from bttlab.tensor.order import Product


class Contraction(Candidates):
    """Emits products on one engine.

    `allocate_buffer`: maps a tensor's name and arrangement, and a number of vectors, to a place in the operand buffer.
    """

    def __init__(self, builder: Builder, allocate_buffer: Callable, *more):
        super().__init__(*more)
        self.b, self._allocate_buffer = builder, allocate_buffer
        self.blocks: list[tuple[Bound, int, At]] | None = None  # of y: tokens of each block, the first, and its place

    # ---- places --------------------------------------------------------------------------------------------------

    def allocate(self, name: str, arrangement: Arrangement) -> Stored:
        return Stored(name, self.b.allocate(name, arrangement.vectors(self.sizes)), arrangement)

    def arranged(self, tensor: Tensor, arrangement: Arrangement) -> Stored:
        """Return a copy of a tensor in an arrangement; permute the tensor if it has none."""
        self._make(tensor, arrangement)
        for stored in tensor.stored:
            if arrangement in stored.arrangement.views(self.sizes):
                return replace(stored, arrangement=arrangement)
        return self.copy_to(tensor, self.allocate(f"{tensor.name}, permuted", arrangement))

    def copy_to(self, tensor: Tensor, target: Stored) -> Stored:
        """Copy a tensor to a place and arrangement, from the existing copy that takes the fewest steps."""
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
            place = Stored(tensor.name, self._allocate_buffer(key, vectors * len(passes)), arrangement)
            if tensor.is_parameter:
                for n, some in passes:
                    source = tensor.stored[0].place.offset_by(ROWS * n * vectors)
                    load_rows(self.b, f"load {tensor.name}", source, place.place.offset_by(n * vectors), some, vectors)
            elif not self._emit_into_buffer(tensor, place):
                self._make(tensor, arrangement, place.rows)
                is_cut = len(passes) > 1  # the source, too, must then have the rows as its outermost index
                _, copy = self._load_cost(tensor, arrangement)
                if is_cut or copy is not None:
                    self.arranged(tensor, arrangement if is_cut else copy)
                stored = [s for s in tensor.stored if not is_cut or s.arrangement.order[0] == place.rows]
                for sizes, source, destination in self._passes(self._nearest(stored, place), place):
                    rearrange(self.b, sizes, source, destination)
            self.loaded[key] = place
        return self.loaded[key]

    def _passes(self, source: Stored, place: Stored) -> Iterator[tuple[Sizes, Stored, Stored]]:
        """Yield the sizes, source and destination of each pass of up to ROWS rows into an operand buffer."""
        rows = place.rows
        vectors = place.arrangement.vectors(self.sizes) // self.sizes[rows]
        for n, some in row_passes(self.sizes[rows]):
            sizes = self.sizes if some == self.sizes[rows] else Sizes(self.sizes | {rows: some}, self.sizes.bounds)
            step = source.strides(self.sizes).get(rows, 0)
            # Rows are the outermost index of the source, so its other strides do not depend on their number.
            yield (
                sizes,
                replace(source, place=source.place.offset_by(ROWS * n * step)),
                replace(place, place=place.place.offset_by(n * vectors)),
            )

    # ---- products ------------------------------------------------------------------------------------------------

    def product(self, product: Product, *options, **arguments) -> Stored:
        """Emit the cheapest candidate of a product and return its stored result. Options are those of `_emit`."""
        tensor = self.tensors[product[0]] = Tensor(product[0], self.indices_of(product[0]), product=product)
        return self._emit(tensor, *options, **arguments)

    def defer(self, product: Product) -> None:
        """Register a product of cores; it is emitted when it is first read."""
        self.tensors[product[0]] = Tensor(product[0], self.indices_of(product[0]), product=product)

    def _make(self, tensor: Tensor, to: Arrangement, rows: str = "") -> None:
        """Emit a deferred product by the candidate that reaches an arrangement at the least total cost."""
        if not tensor.stored:
            self._emit(tensor, result_cost=lambda candidate: self._reach_cost(candidate.result, to, rows))

    def _emit_into_buffer(self, tensor: Tensor, place: Stored) -> bool:
        """Emit a product of cores directly into the operand buffer; return False if no arrangement allows it."""
        for a, b, k, view in self._direct_operands(tensor, place.arrangement):
            a, b = self.arranged(*a), self.buffered(*b)
            for sizes, source, destination in self._passes(a, replace(place, arrangement=view)):
                expand(self.b, self.engine, _text(tensor.product), sizes, source, k, b, destination)
            return True
        return False

    def _emit(
        self,
        tensor: Tensor,
        accept: Callable[[Candidate], bool] = lambda _: True,
        addend: Callable[[Arrangement], Stored] | None = None,
        result_cost: Callable[[Candidate], float] | None = None,
        **arguments,
    ) -> Stored:
        """Emit a tensor's product by the cheapest accepted candidate whose instructions the machine can encode.

        `addend`: from the arrangement of the result to the tensor that is added to it.
        `result_cost`: from a candidate to the cost of its result's arrangement; by default `_permute_cost`.
        Raise `ValueError` if no candidate works: the error of the cheapest, a ProgramError if there is no candidate.
        """
        first_error = None
        for candidate in filter(accept, self._sorted_candidates(tensor, result_cost)):
            emitted, loaded = len(self.b.instructions), dict(self.loaded)
            stored = {name: list(tensor.stored) for name, tensor in self.tensors.items()}
            try:
                (left, of_left), (right, of_right) = candidate.a, candidate.b
                place_right = self.arranged if candidate.function is accumulate else self.buffered
                b = place_right(self.tensors[right], of_right)
                a = self.arranged(self.tensors[left], of_left)
                if is_final := self.matches_target(candidate, tensor.name):
                    c = replace(self.targets[tensor.name], arrangement=candidate.result)
                else:
                    c = self.allocate(tensor.name, candidate.result)
                options, is_gradient = dict(arguments), tensor.name.startswith("dG")
                if addend:
                    options["addend"] = addend(candidate.result)
                if candidate.function is reduce and is_gradient:
                    options["flags"] = M.CHECK
                elif candidate.function is accumulate:
                    options |= {"check": is_gradient, "allocate": self._allocate_partial_sums(tensor)}
                self._call(candidate, tensor, a, b, c, is_final, options)
            except ValueError as error:  # no space in an operand buffer, or too many loops
                first_error = first_error or error
                del self.b.instructions[emitted:]
                self.loaded.clear()
                self.loaded |= loaded
                for name, places in stored.items():
                    self.tensors[name].stored = places
                continue
            tensor.stored.append(c)
            return c
        raise first_error or ProgramError(
            f"'{_text(tensor.product)}': no engine can compute it: an engine has {ROWS} rows, and neither operand has "
            "an index for them"
        )

    def _allocate_partial_sums(self, tensor: Tensor) -> Callable[[int], At]:
        return lambda vectors: self.b.allocate(f"{tensor.name}, in parts", vectors)

    def _call(
        self, candidate: Candidate, tensor: Tensor, a: Stored, b: Stored, c: Stored, is_final: bool, options: dict
    ) -> None:
        """Emit a candidate's instructions: for each block of tokens if the result goes to `blocks`."""
        arguments = self.b, self.engine, _text(tensor.product)
        if not (is_final and self.blocks):
            candidate.function(*arguments, self.sizes, a, candidate.contracted, b, c, **options)
            return
        t = a.strides(self.sizes)["t"]
        for bound, first, place in self.blocks:
            sizes = Sizes(self.sizes, {"t": bound})
            block = replace(a, place=a.place.offset_by(first * t))
            candidate.function(*arguments, sizes, block, candidate.contracted, b, replace(c, place=place), **options)


def _text(product: Product) -> str:
    return f"{product[0]} = {product[1]} {product[2]}"
