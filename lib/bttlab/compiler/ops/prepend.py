"""Rows in front of the tokens: a class token, or the rows of a soft prompt."""

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import Self

from bttlab.compiler.builder import padded
from bttlab.compiler.context import Context, row_loops, rows_of
from bttlab.compiler.instruction import At, Level, max_of
from bttlab.compiler.machine import M
from bttlab.compiler.matrix import Shapes
from bttlab.compiler.operation import NEVER, Operation


@dataclass(eq=False)
class Prepend(Operation):
    """Rows of a parameter or of a constant, from row `first` on, and then x."""

    kind, keep, has_prefix, keeps_zeros = "prepend", NEVER, False, True

    table: str
    first: int = 0

    @property
    def rows(self) -> int:
        return max_of(self.output.tokens) - max_of(self.inputs[0].tokens)

    def parameters(self, shapes: Shapes) -> list[str]:
        return [self.table] if self.table in shapes else []  # else it is a constant

    @classmethod
    def prepare(cls, operations: Sequence[Self], context: Context) -> None:
        for op in operations:
            op.block = context.layout.place(op.table, added=True)

    def forward(self, context: Context) -> None:
        self._emit(context, context.value(self.inputs[0]), context.output(self.output))

    def recompute(self, context: Context, place: At) -> None:
        self._emit(context, context.backward_value(self.inputs[0]), place)

    def _emit(self, context: Context, x: At, result: At) -> None:
        b, matrix, vectors = context.builder, self.inputs[0], self.output.vectors
        rows = self.block.where().part(self.first * vectors)
        b.layer = self.name
        b.vector(M.COPY, "rows in front", self._loops, rows_of(matrix, rows), r0=rows_of(matrix, result))
        after = result.part(self.rows * vectors)
        b.vector(M.COPY, "tokens", row_loops(matrix), rows_of(matrix, x), r0=rows_of(matrix, after))

    @property
    def _loops(self) -> list[Level]:
        return [Level("w", self.output.vectors), padded("t", self.rows)]

    def reads_in_backward(self, is_late: bool) -> tuple[()]:
        return ()

    def backward(self, context: Context, d: At) -> None:
        b, matrix, vectors = context.builder, self.inputs[0], self.output.vectors
        if self.table in context.shapes and self.table not in context.frozen:
            b.layer = self.name
            gradient = rows_of(matrix, self.block.gradient().part(self.first * vectors))
            b.vector(M.COPY, "gradient", self._loops, rows_of(matrix, d), r0=gradient, flags=M.CHECK)
        context.pass_gradient(matrix, d.part(self.rows * vectors))
