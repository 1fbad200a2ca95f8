"""Inputs and outputs of a graph without a loss: matrices that LOAD brings and STORE takes away."""

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import Self

from bttlab.compiler.context import Context, row_loops, rows_of
from bttlab.compiler.instruction import At, max_of
from bttlab.compiler.machine import M
from bttlab.compiler.matrix import Matrix
from bttlab.compiler.operation import Operation


@dataclass(eq=False)
class Transfer(Operation):
    """A matrix that is loaded, in the forward or the backward pass, and one of its size that is stored."""

    @classmethod
    def prepare(cls, operations: Sequence[Self], context: Context) -> None:
        for op in operations:
            op.loaded, op.stored = (op.allocate(context, name) for name in op.names)

    @property
    def names(self) -> tuple[str, str]:
        """Names of the matrix that is loaded, and of the one that is stored."""
        return self.name, f"d{self.name}"

    def allocate(self, context: Context, name: str) -> At:
        """Allocate a buffer of the matrix's size that keeps its vectors for the whole program."""
        vectors = max_of(self.output.tokens) * self.output.vectors
        return context.builder.allocate(name, vectors, is_persistent=True)

    def copy(self, context: Context, source: At) -> None:
        """Copy a matrix to the one that is stored, unless it is there."""
        if source != self.stored:
            context.builder.layer, y = self.name, self.output
            context.builder.vector(M.COPY, "copy", row_loops(y), rows_of(y, source), r0=rows_of(y, self.stored))

    def reads_in_backward(self, is_late: bool) -> tuple[Matrix, ...]:
        return ()


@dataclass(eq=False)
class Input(Transfer):
    """An input; its gradient is stored."""

    kind = "input"

    def forward(self, context: Context) -> None:
        context.place_value(self.output, self.loaded)
        context.place_gradient(self.output, self.stored)

    def backward(self, context: Context, d: At) -> None:
        self.copy(context, d)


@dataclass(eq=False)
class Output(Transfer):
    """The matrix `inputs[0]` is stored; its gradient is loaded."""

    kind = "output"

    @property
    def names(self) -> tuple[str, str]:
        return f"d{self.name}", self.name

    @classmethod
    def prepare(cls, operations: Sequence[Self], context: Context) -> None:
        super().prepare(operations, context)
        for op in operations:
            context.place_value(op.inputs[0], op.stored)

    def forward(self, context: Context) -> None:
        self.copy(context, context.value(self.inputs[0]))

    def backward(self, context: Context, d: At | None) -> None:
        context.pass_gradient(self.inputs[0], self.loaded)
