"""Operations of the vector unit, element by element: sums and functions."""

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import Self

from bttlab.compiler.builder import padded
from bttlab.compiler.context import Context, row_loops, rows_of
from bttlab.compiler.functions import ACTIVATIONS, constant
from bttlab.compiler.instruction import At, Level
from bttlab.compiler.machine import M
from bttlab.compiler.matrix import Matrix, Shapes
from bttlab.compiler.operation import NEVER, Operation


@dataclass(eq=False)
class Sum(Operation):
    """A sum of two matrices. If its first reader is a norm, the norm computes it in the same instruction."""

    is_fused = False  # with the norm that reads it

    def terms(self, context: Context) -> tuple[At, At]:
        """Return the places of both terms in the forward pass."""
        self._has_no("terms")

    def forward(self, context: Context) -> None:
        if self.is_fused:
            return
        context.builder.layer, y = self.name, self.output
        a, b = (rows_of(y, term) for term in self.terms(context))
        context.builder.vector(M.ADD, "sum", row_loops(y), a, b, r0=rows_of(y, context.output(y)))

    def backward(self, context: Context, d: At) -> None:
        if not self.is_fused:
            self.backward_terms(context, d)

    def backward_terms(self, context: Context, d: At) -> None:
        """Emit the gradients of the terms."""
        self._has_no("backward_terms")

    def reads_in_backward(self, is_late: bool) -> tuple[Matrix, ...]:
        return ()


@dataclass(eq=False)
class Add(Sum):
    """a + b."""

    kind = "add"
    keeps_zeros = True

    def terms(self, context: Context) -> tuple[At, At]:
        """Return the places of a and b, the second first in a fused sum."""
        a, b = map(context.value, self.inputs)
        return (b, a) if self.is_fused else (a, b)

    def backward_terms(self, context: Context, d: At) -> None:
        for matrix in self.inputs:
            context.pass_gradient(matrix, d)


@dataclass(eq=False)
class Position(Sum):
    """x + rows of a table, the parameter `name`, from row `first` on."""

    kind, has_prefix = "position", False

    first: int = 0

    def parameters(self, shapes: Shapes) -> list[str]:
        return [self.name] if self.name in shapes else []  # else it is a constant

    @classmethod
    def prepare(cls, operations: Sequence[Self], context: Context) -> None:
        for op in operations:
            op.table = context.layout.place(op.name, added=True)

    def terms(self, context: Context) -> tuple[At, At]:
        return context.value(self.inputs[0]), self.table.where().part(self.first * self.output.vectors)

    def gradient(self) -> At:
        return self.table.gradient().part(self.first * self.output.vectors)

    def backward_terms(self, context: Context, d: At) -> None:
        """Copy the gradient to the table's, and pass it on to x."""
        context.builder.layer, y = self.name.rpartition(".")[0], self.output
        if self.name in context.shapes and self.name not in context.frozen:
            result = rows_of(y, self.gradient())
            context.builder.vector(M.COPY, "gradient", row_loops(y), rows_of(y, d), r0=result, flags=M.CHECK)
        context.pass_gradient(self.inputs[0], d)


@dataclass(eq=False)
class Function(Operation):
    """An activation, a key of `functions.ACTIVATIONS`."""

    kind, keep = "function", NEVER

    function: str

    @property
    def keeps_zeros(self) -> bool:
        return ACTIVATIONS[self.function].times_x

    def forward(self, context: Context) -> None:
        self._emit(context, context.value(self.inputs[0]), context.output(self.output))

    def recompute(self, context: Context, place: At) -> None:
        self._emit(context, context.backward_value(self.inputs[0]), place)

    def _emit(self, context: Context, u: At, result: At) -> None:
        b, y, activation = context.builder, self.output, ACTIVATIONS[self.function]
        b.layer = self.name
        operation = M.TIMES_FUNCTION if activation.times_x else M.FUNCTION
        number = b.functions.number(activation.function)
        what = f"{self.function}(u)"
        b.vector(operation, what, row_loops(y), rows_of(y, u), r0=rows_of(y, result), function=number)

    def reads_in_backward(self, is_late: bool) -> tuple[Matrix, ...]:
        return (self.output if self.function == "tanh" and is_late else self.inputs[0],)

    def backward(self, context: Context, d: At) -> None:
        b, x = context.builder, self.inputs[0]
        is_from_output = self.function == "tanh" and self.output in context.kept
        u = rows_of(x, context.backward_value(self.output if is_from_output else x))

        def produce(place: At) -> None:
            b.layer, loops, result, d_y = self.name, row_loops(x), rows_of(x, place), rows_of(x, d)
            if is_from_output:
                b.vector(M.TANH_BACK, "d_u = d_y (1 - y y)", loops, d_y, u, r0=result)
            else:
                number = b.functions.number(ACTIVATIONS[self.function].slope)
                what = f"d_u = d_a {self.function}'(u)"
                b.vector(M.TIMES_FUNCTION, what, loops, u, d_y, r0=result, function=number)

        context.write_gradient(x, produce)


@dataclass(eq=False)
class Shift(Operation):
    """x + a row of a parameter, the same for all tokens."""

    kind, keep, has_prefix = "shift", NEVER, False

    parameter: str
    row: int = 0

    def parameters(self, shapes: Shapes) -> list[str]:
        return [self.parameter]

    @classmethod
    def prepare(cls, operations: Sequence[Self], context: Context) -> None:
        for op in operations:
            op.block = context.layout.place(op.parameter, added=True)

    def forward(self, context: Context) -> None:
        self._emit(context, context.value(self.inputs[0]), context.output(self.output))

    def recompute(self, context: Context, place: At) -> None:
        self._emit(context, context.backward_value(self.inputs[0]), place)

    def _emit(self, context: Context, x: At, result: At) -> None:
        context.builder.layer, y = self.name, self.output
        row = self.block.where().part(self.row * y.vectors, w=1)
        context.builder.vector(M.ADD, "x + row", row_loops(y), rows_of(y, x), row, r0=rows_of(y, result))

    def reads_in_backward(self, is_late: bool) -> tuple[Matrix, ...]:
        return ()

    def backward(self, context: Context, d: At) -> None:
        context.builder.layer, y = self.name, self.output
        if self.parameter not in context.frozen:
            row = self.block.gradient().part(self.row * y.vectors, w=1)
            loops = [Level("t", y.tokens), padded("w", y.vectors)]
            context.builder.columns("d_row", loops, a=rows_of(y, d), r1=row, check=True)
        context.pass_gradient(self.inputs[0], d)


@dataclass(eq=False)
class Gain(Shift):
    """x times a row of a parameter, the same for all tokens, such as a LayerScale."""

    kind = "gain"
    keeps_zeros = True

    def _emit(self, context: Context, x: At, result: At) -> None:
        context.builder.layer, y = self.name, self.output
        row = self.block.where().part(self.row * y.vectors, w=1)
        context.builder.vector(M.AFFINE, "x row", row_loops(y), rows_of(y, x), row, r0=rows_of(y, result))

    def reads_in_backward(self, is_late: bool) -> tuple[Matrix, ...]:
        return self.inputs

    def backward(self, context: Context, d: At) -> None:
        (x,), y = self.inputs, self.output
        if self.parameter not in context.frozen:
            context.builder.layer = self.name
            row = self.block.gradient().part(self.row * y.vectors, w=1)
            loops = [Level("t", y.tokens), padded("w", y.vectors)]
            value = rows_of(x, context.backward_value(x))
            context.builder.columns("d_row", loops, a=rows_of(y, d), b=value, r0=row, check=True)
        if context.is_needed(x):
            context.write_gradient(x, lambda place: self._emit(context, d, place))


@dataclass(eq=False)
class Scale(Operation):
    """factor * x."""

    kind, keep = "scale", NEVER
    keeps_zeros = True

    factor: float

    def forward(self, context: Context) -> None:
        self._emit(context, "c x", context.value(self.inputs[0]), context.output(self.output))

    def recompute(self, context: Context, place: At) -> None:
        self._emit(context, "c x", context.backward_value(self.inputs[0]), place)

    def reads_in_backward(self, is_late: bool) -> tuple[Matrix, ...]:
        return ()

    def backward(self, context: Context, d: At) -> None:
        context.write_gradient(self.inputs[0], lambda place: self._emit(context, "d_x = c d_y", d, place))

    def _emit(self, context: Context, what: str, x: At, result: At) -> None:
        b, y = context.builder, self.output
        b.layer, number = self.name, b.functions.number(constant(self.factor))
        b.vector(M.TIMES_FUNCTION, what, row_loops(y), rows_of(y, x), r0=rows_of(y, result), function=number)


@dataclass(eq=False)
class Factors(Operation):
    """x times a constant, such as the cosines of rotary positions.

    Attributes
    ----------
    constant : str
        Of shape (tokens, features), or (1, features) for all tokens; of the first features alone if they repeat.
    """

    kind, keep, keeps_zeros = "factors", NEVER, True

    constant: str

    @classmethod
    def prepare(cls, operations: Sequence[Self], context: Context) -> None:
        for op in operations:
            op.block = context.layout.place(op.constant)

    def forward(self, context: Context) -> None:
        self._emit(context, "x c", context.value(self.inputs[0]), context.output(self.output))

    def recompute(self, context: Context, place: At) -> None:
        self._emit(context, "x c", context.backward_value(self.inputs[0]), place)

    def reads_in_backward(self, is_late: bool) -> tuple[Matrix, ...]:
        return ()

    def backward(self, context: Context, d: At) -> None:
        context.write_gradient(self.inputs[0], lambda place: self._emit(context, "d_x = d_y c", d, place))

    def _emit(self, context: Context, what: str, x: At, result: At) -> None:
        y, size = self.output, self.block.row_vectors
        loops = [Level("n", y.vectors // size), Level("w", size), padded("t", y.tokens)]
        x, result = (place.part(n=size, w=1, t=y.vectors) for place in (x, result))
        factors = self.block.where(w=1, t=size if self.block.last > 1 else 0)
        context.builder.layer = self.name
        context.builder.vector(M.AFFINE, what, loops, x, factors, r0=result)


@dataclass(eq=False)
class Multiply(Operation):
    """a * b, element by element: a gate."""

    kind, functions = "multiply", ("mul",)

    def forward(self, context: Context) -> None:
        a, b = map(context.value, self.inputs)
        self._emit(context, "a b", a, b, context.output(self.output))

    def reads_in_backward(self, is_late: bool) -> tuple[Matrix, ...]:
        return self.inputs

    def backward(self, context: Context, d: At) -> None:
        a, b = map(context.backward_value, self.inputs)
        for matrix, factor in zip(self.inputs, (b, a), strict=True):
            context.write_gradient(matrix, lambda place, factor=factor: self._emit(context, "d_y b", d, factor, place))

    def _emit(self, context: Context, what: str, a: At, b: At, result: At) -> None:
        context.builder.layer, y = self.name, self.output
        context.builder.vector(M.AFFINE, what, row_loops(y), rows_of(y, a), rows_of(y, b), r0=rows_of(y, result))
