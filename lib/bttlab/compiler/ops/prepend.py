"""Rows in front of the tokens: a class token, or the rows of a soft prompt."""

from dataclasses import dataclass

from bttlab.compiler.builder import padded
from bttlab.compiler.instruction import At, Level, max_of
from bttlab.compiler.machine import M
from bttlab.compiler.operation import NEVER, Context, Operation, Shapes, rows_of


@dataclass(eq=False)
class Prepend(Operation):
    """Rows of a parameter or of a constant, from row `first` on, and then x."""

    kind, keep, has_prefix, keeps_zeros, reads_inputs = "prepend", NEVER, False, True, False

    table: str
    first: int = 0

    @property
    def rows(self) -> int:
        return max_of(self.output.tokens) - max_of(self.inputs[0].tokens)

    def parameters(self, shapes: Shapes) -> list[str]:
        return [self.table] if self.table in shapes else []  # else it is a constant

    def allocate(self, context: Context) -> None:
        self.block = context.layout.place(self.table, added=True)

    def emit(self, context: Context, result: At, x: At) -> None:
        matrix, vectors = self.inputs[0], self.output.vectors
        rows = rows_of(matrix, self.block.where().part(self.first * vectors))
        context.builder.vector(M.COPY, "rows in front", self._loops, rows, r0=rows_of(matrix, result))
        context.emit_rows(M.COPY, "tokens", matrix, result.part(self.rows * vectors), x)

    @property
    def _loops(self) -> list[Level]:
        return [Level("w", self.output.vectors), padded("t", self.rows)]

    def backward(self, context: Context, d: At) -> None:
        matrix, vectors = self.inputs[0], self.output.vectors
        if self.table in context.shapes and self.table not in context.frozen:
            gradient = rows_of(matrix, self.block.gradient().part(self.first * vectors))
            context.builder.vector(M.COPY, "gradient", self._loops, rows_of(matrix, d), r0=gradient, flags=M.CHECK)
        context.pass_gradient(matrix, d.part(self.rows * vectors))
