"""Inputs and outputs of a graph without a loss: LOAD reads them from HBM, STORE writes them to HBM."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bttlab.compiler.instruction import At, max_of
from bttlab.compiler.machine import M
from bttlab.compiler.operation import Context, Operation
from bttlab.util.renamed import renamed

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"Transfer": "Boundary"})


@dataclass(eq=False)
class Boundary(Operation):
    """A matrix at the boundary of the graph, and its gradient: one is loaded and one is stored, by the pass."""

    reads_inputs = False

    @property
    def names(self) -> tuple[str, str]:
        """Names of the matrix that is loaded, and of the one that is stored."""
        return self.name, f"d{self.name}"

    def allocate(self, context: Context) -> None:
        vectors = max_of(self.output.tokens) * self.output.vectors
        self.loaded, self.stored = (context.builder.allocate(n, vectors, is_persistent=True) for n in self.names)

    def copy(self, context: Context, source: At) -> None:
        if source != self.stored:
            context.emit_rows(M.COPY, "copy", self.output, self.stored, source)


@dataclass(eq=False)
class Input(Boundary):
    """An input; its gradient is stored."""

    kind = "input"

    def forward(self, context: Context) -> None:
        context.place_value(self.output, self.loaded)
        context.place_gradient(self.output, self.stored)

    def backward(self, context: Context, d: At) -> None:
        self.copy(context, d)


@dataclass(eq=False)
class Output(Boundary):
    """The matrix `inputs[0]` is stored; its gradient is loaded."""

    kind = "output"

    @property
    def names(self) -> tuple[str, str]:
        return f"d{self.name}", self.name

    def allocate(self, context: Context) -> None:
        super().allocate(context)
        context.place_value(self.inputs[0], self.stored)

    def forward(self, context: Context) -> None:
        self.copy(context, context.value(self.inputs[0]))

    def backward(self, context: Context, d: At | None) -> None:
        context.pass_gradient(self.inputs[0], self.loaded)
