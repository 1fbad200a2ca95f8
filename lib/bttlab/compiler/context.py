"""What operations share while they emit a sample's instructions: the builder, and the matrices' values and gradients.

The values of the forward pass that the backward pass reads are kept, or recomputed when they are first read.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from bttlab.compiler.builder import Builder, padded
from bttlab.compiler.instruction import At, Instruction, Level, Register, max_of
from bttlab.compiler.layout import Layout
from bttlab.compiler.machine import M
from bttlab.compiler.matrix import INTENT, SLOTS, Matrix

Produce = Callable[[At | None, At], None]  # from addend and result: emits result = addend + ...


class Maker(Protocol):
    """What the context asks of the operation that computes a matrix."""

    name: str
    inputs: tuple[Matrix, ...]
    output: Matrix

    def parameters(self, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
        """Return the names of its parameters."""

    def recompute(self, context: "Context", place: At | None) -> None:
        """Emit the output again, to a place."""


class Context:
    """Builder, parameters, values and gradients of a sample.

    `flow`: order of contraction of the tensor-train layers (`tt_layer.MERGED`).
    `sums`: whether the tensor-train layers sum gradients over the samples of an update (`Linear.has_sums`).
    """

    def __init__(
        self,
        operations: Sequence[Maker],
        shapes: Mapping[str, tuple[int, ...]],
        tokens: Register,
        flow,
        constants: Mapping[str, np.ndarray] | None = None,
        copies: Mapping[str, str] | None = None,
        sums: bool = False,
    ):
        self.operations, self.shapes, self.tokens, self.flow, self.sums = operations, shapes, tokens, flow, sums
        self.builder = Builder()
        self.layout = Layout(self.builder, shapes, constants, copies)
        self.maker = {op.output: op for op in operations}
        self.transfers: Sequence[Maker] = ()  # inputs and outputs of a graph without a loss
        self.kept: Collection[Matrix] = ()  # values that stay in the banks for the backward pass
        self.constants: list[Instruction] = []  # computed once, by the section CLEAR
        rows = {INTENT: M.SUM_DISTANCE, SLOTS: M.SEQUENCE}
        self.loss_rows = {
            loss: self.builder.allocate(f"{loss} loss", n, home="statistic 0") for loss, n in rows.items()
        }
        self.frozen: Collection[str] = ()  # parameters that are not trained
        self._not_needed: set[Matrix] = set()
        self._values: dict[Matrix, At] = {}
        self._places: dict[Matrix, At] = {}  # for gradients that have a place before they are computed
        self._copies: dict[Matrix, At] = {}
        self._recomputed: dict[Matrix, At] = {}
        self._gradients: dict[Matrix, At] = {}
        self._owned: set[Matrix] = set()  # matrices whose gradient has a buffer that no other matrix shares
        self._unwritten: dict[Matrix, set[int]] = {}

    def readers(self, matrix: Matrix) -> list[Maker]:
        """Return the operations that read a matrix, or rows of it."""
        return [op for op in self.operations if any(m is matrix or m.base is matrix for m in op.inputs)]

    def section(self, stage: str, emit: Callable[[], Any]) -> list[Instruction]:
        """Return the instructions that a function emits, labelled with a stage."""
        self.builder.stage = stage
        emit()
        instructions = list(self.builder.instructions)
        self.builder.instructions.clear()
        return instructions

    def constant(self, emit: Callable[[Builder], At]) -> At:
        """Return the place of a constant, which a function emits."""
        places: list[At] = []
        self.constants += self.section("CLEAR", lambda: places.append(emit(self.builder)))
        return places[0]

    def emit_rows(self, operation: int, what: str, matrix: Matrix, result: At, *terms: At | None, **fields) -> None:
        """Emit a row operation whose result and terms, the operands a and b, have the shape of a matrix."""
        operands = [term and rows_of(matrix, term) for term in terms]
        self.builder.vector(operation, what, row_loops(matrix), *operands, r0=rows_of(matrix, result), **fields)

    # ---- values --------------------------------------------------------------------------------------------------

    def new(self, matrix: Matrix, what: str = "") -> At:
        """Allocate a buffer of a matrix's size."""
        return self.builder.allocate(what or matrix.name, max_of(matrix.tokens) * matrix.vectors)

    def output(self, matrix: Matrix) -> At:
        """Return the place for the output of an operation of the forward pass."""
        if matrix not in self._values:
            self._values[matrix] = self.new(matrix)
        return self._values[matrix]

    def place_value(self, matrix: Matrix, place: At) -> None:
        """Say where a matrix of the forward pass is to be."""
        if matrix.base is None:
            self._values[matrix] = place

    def place_gradient(self, matrix: Matrix, place: At) -> None:
        """Say where the gradient of a matrix is to be computed, if an operation computes it for this matrix alone."""
        self._places[matrix] = place

    def value(self, matrix: Matrix) -> At:
        """Return the place of a matrix in the forward pass."""
        if matrix.base is not None:
            return self.value(matrix.base).part(matrix.first * matrix.vectors)
        return self._values[matrix]

    def copy(self, matrix: Matrix) -> At:
        """Return the place of a copy of a matrix in the forward pass."""
        if matrix not in self._copies:
            self._copies[matrix] = self.new(matrix, f"{matrix.name}, twice")
            self.recompute(matrix, self._copies[matrix])
        return self._copies[matrix]

    def backward_value(self, matrix: Matrix) -> At:
        """Return the place of a matrix in the backward pass; recompute it there unless it is kept."""
        if matrix.base is not None:
            return self.backward_value(matrix.base).part(matrix.first * matrix.vectors)
        if matrix in self.kept:
            return self._values[matrix]
        if matrix not in self._recomputed:
            place = self.new(matrix, f"{matrix.name}, recomputed")
            self.recompute(matrix, place)
            self._recomputed[matrix] = place
        return self._recomputed[matrix]

    def recompute(self, matrix: Matrix, place: At | None = None) -> None:
        """Emit a matrix again, to a place, or to where its operation writes it."""
        reader, self.builder.layer = self.builder.layer, self.maker[matrix].name
        self.maker[matrix].recompute(self, place)
        self.builder.layer = reader

    # ---- gradients -----------------------------------------------------------------------------------------------

    def gradient(self, matrix: Matrix) -> At | None:
        """Return the gradient of a matrix as far as it is computed; None if nothing has been added to it."""
        return self._gradients.get(matrix)

    def freeze(self, names: Collection[str]) -> None:
        """Exclude parameters from training, and matrices that depend on no other parameter from the backward pass."""
        self.frozen = names
        for op in self.operations:
            reads = op.inputs or op.parameters(self.shapes)  # an input of the graph has neither: its gradient is stored
            if reads and self.is_frozen(op) and not any(self.is_needed(matrix) for matrix in op.inputs):
                self._not_needed.add(op.output)

    def is_frozen(self, op: Maker) -> bool:
        """Return True if no parameter of an operation is trained."""
        return all(name in self.frozen for name in op.parameters(self.shapes))

    def is_needed(self, matrix: Matrix) -> bool:
        """Return True if a matrix depends on a parameter that is trained, so that its gradient is needed."""
        return (matrix.base or matrix) not in self._not_needed

    def add_to_gradient(self, matrix: Matrix, produce: Produce, reads: At | None = None) -> None:
        """Add the result of `produce`, which adds an addend, to the gradient of a matrix.

        `reads`: what `produce` reads besides the addend, on a port that the addend would need, too.
        """
        if reads is not None and matrix.base is None and self._gradients.get(matrix) == reads:
            self.write_gradient(matrix, lambda result: produce(None, result))
            return
        if matrix.base is not None:
            where = self._base_gradient(matrix.base).part(matrix.first * matrix.vectors)
            is_first = matrix.first in self._unwritten[matrix.base]
            self._unwritten[matrix.base].discard(matrix.first)
            produce(None if is_first else where, where)
            return
        before = self._gradients.get(matrix)
        if matrix not in self._owned:
            place = self._places.pop(matrix, None)
            self._gradients[matrix] = place or self.new(matrix, f"gradient of {matrix.name}")
        produce(before, self._gradients[matrix])

    def pass_gradient(self, matrix: Matrix, where: At) -> None:
        """Add an existing gradient, that of another matrix, to the gradient of a matrix."""
        if not self.is_needed(matrix):
            return
        if matrix.base is None and matrix not in self._gradients:
            self._gradients[matrix] = where
            return

        def produce(addend: At | None, result: At) -> None:
            operation = M.ADD if addend is not None else M.COPY
            self.emit_rows(operation, "sum of gradients", matrix, result, where, addend)

        self.add_to_gradient(matrix, produce)

    def write_gradient(self, matrix: Matrix, produce: Callable[[At], None]) -> None:
        """Add the result of `produce`, which takes no addend, to the gradient of a matrix."""
        if matrix.base is None and matrix not in self._gradients:
            self.add_to_gradient(matrix, lambda _, result: produce(result))
            return
        term = self.new(matrix, f"gradient of {matrix.name}")
        produce(term)
        self.pass_gradient(matrix, term)

    def _base_gradient(self, base: Matrix) -> At:
        """Return the gradient of a matrix whose rows are read; initialize it unless each row is written once."""
        if base not in self._owned:
            before = self._gradients.get(base)
            self._gradients[base] = self.new(base, f"gradient of {base.name}")
            self._owned.add(base)
            parts = self._row_parts(base)
            self._unwritten[base] = set(parts or ())
            if parts is None:
                self.emit_rows(M.COPY, "gradient so far", base, self._gradients[base], before)
        return self._gradients[base]

    def _row_parts(self, base: Matrix) -> list[int] | None:
        """Return the first rows of the two parts of a matrix if each is read once and together they are all of it."""
        read = [m for op in self.readers(base) for m in op.inputs if m is base or m.base is base]
        parts = sorted((m.first, max_of(m.tokens)) for m in read if m.base is base)
        fits = len(parts) == len(read) == 2 and parts == [(0, 1), (1, max_of(base.tokens) - 1)]
        return [first for first, _ in parts] if fits else None


def rows_of(matrix: Matrix, where: At) -> At:
    """Return the operand of a vector instruction that reads or writes a matrix, row by row."""
    return where.part(t=matrix.vectors, w=1)


def row_loops(matrix: Matrix) -> list[Level]:
    """Return the loops of a vector instruction over a matrix."""
    return [Level("w", matrix.vectors), padded("t", matrix.tokens)]
