"""Operations of the vector unit, element by element: sums and functions."""

from dataclasses import dataclass
from typing import Any

from bttlab.compiler.builder import padded
from bttlab.compiler.functions import ACTIVATIONS, constant
from bttlab.compiler.instruction import At, Level
from bttlab.compiler.machine import M
from bttlab.compiler.operation import NEVER, Context, Matrix, Operation, Shapes, Values, rows_of


@dataclass(eq=False)
class Sum(Operation):
    """A sum of two matrices. If its first reader is a norm, the norm computes it in the same instruction."""

    reads_inputs = False
    is_fused = False  # with the norm that reads it

    def terms(self, context: Context) -> tuple[At, At]:
        """Return the places of both terms in the forward pass."""
        self._has_no("terms")

    def forward(self, context: Context) -> None:
        if not self.is_fused:
            a, b = self.terms(context)
            context.emit_rows(M.ADD, "sum", self.output, context.output(self.output), a, b)

    def backward(self, context: Context, d: At) -> None:
        if not self.is_fused:
            self.backward_terms(context, d)

    def backward_terms(self, context: Context, d: At) -> None:
        self._has_no("backward_terms")


@dataclass(eq=False)
class Add(Sum):
    """a + b."""

    kind, functions, keeps_zeros = "add", ("add",), True

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

    def torch(self, values: Values, x: Any) -> Any:
        return x + values.rows(self.name, x.shape[1])[self.first : self.first + len(x)]

    def parameters(self, shapes: Shapes) -> list[str]:
        return [self.name] if self.name in shapes else []  # else it is a constant

    def allocate(self, context: Context) -> None:
        self.table = context.layout.place(self.name, added=True)

    def terms(self, context: Context) -> tuple[At, At]:
        return context.value(self.inputs[0]), self.table.where().part(self.first * self.output.vectors)

    def gradient(self) -> At:
        return self.table.gradient().part(self.first * self.output.vectors)

    def backward_terms(self, context: Context, d: At) -> None:
        context.builder.layer = self.name.rpartition(".")[0]
        if self.name in context.shapes and self.name not in context.frozen:
            context.emit_rows(M.COPY, "gradient", self.output, self.gradient(), d, flags=M.CHECK)
        context.pass_gradient(self.inputs[0], d)


@dataclass(eq=False)
class Function(Operation):
    """An activation, a key of `functions.ACTIVATIONS`."""

    kind, keep = "function", NEVER

    function: str

    def torch(self, values: Values, x: Any) -> Any:
        return ACTIVATIONS[self.function].torch(x)

    @property
    def keeps_zeros(self) -> bool:
        return ACTIVATIONS[self.function].times_x

    def emit(self, context: Context, result: At, u: At) -> None:
        activation = ACTIVATIONS[self.function]
        operation = M.TIMES_FUNCTION if activation.times_x else M.FUNCTION
        number = context.builder.functions.number(activation.function)
        context.emit_rows(operation, f"{self.function}(u)", self.output, result, u, function=number)

    def reads_in_backward(self, is_late: bool) -> tuple[Matrix, ...]:
        return (self.output if self.function == "tanh" and is_late else self.inputs[0],)

    def backward(self, context: Context, d: At) -> None:
        x = self.inputs[0]
        is_from_output = self.function == "tanh" and self.output in context.kept
        u = context.backward_value(self.output if is_from_output else x)

        def produce(d_u: At) -> None:
            if is_from_output:
                context.emit_rows(M.TANH_BACK, "d_u = d_y (1 - y y)", x, d_u, d, u)
            else:
                number = context.builder.functions.number(ACTIVATIONS[self.function].slope)
                context.emit_rows(M.TIMES_FUNCTION, f"d_u = d_a {self.function}'(u)", x, d_u, u, d, function=number)

        context.write_gradient(x, produce)


@dataclass(eq=False)
class Shift(Operation):
    """x + a row of a parameter, the same for all tokens."""

    kind, keep, has_prefix, reads_inputs = "shift", NEVER, False, False

    parameter: str
    row: int = 0

    def torch(self, values: Values, x: Any) -> Any:
        return x + values.rows(self.parameter, x.shape[1])[self.row]

    def parameters(self, shapes: Shapes) -> list[str]:
        return [self.parameter]

    def allocate(self, context: Context) -> None:
        block, first = context.layout.place(self.parameter, added=True), self.row * self.output.vectors
        self.values, self.gradient = (place.part(first, w=1) for place in (block.where(), block.gradient()))

    def emit(self, context: Context, result: At, x: At) -> None:
        context.emit_rows(M.ADD, "x + row", self.output, result, x, b=self.values)

    def backward(self, context: Context, d: At) -> None:
        if self.parameter not in context.frozen:
            self._sum_columns(context, d, r1=self.gradient)
        context.pass_gradient(self.inputs[0], d)

    def _sum_columns(self, context: Context, d: At, **operands: At) -> None:
        loops = [Level("t", self.output.tokens), padded("w", self.output.vectors)]
        context.builder.columns("d_row", loops, rows_of(self.output, d), check=True, **operands)


@dataclass(eq=False)
class Gain(Shift):
    """x times a row of a parameter, the same for all tokens, such as a LayerScale."""

    kind, keeps_zeros, reads_inputs = "gain", True, True

    def torch(self, values: Values, x: Any) -> Any:
        return x * values.rows(self.parameter, x.shape[1])[self.row]

    def emit(self, context: Context, result: At, x: At) -> None:
        context.emit_rows(M.AFFINE, "x row", self.output, result, x, b=self.values)

    def backward(self, context: Context, d: At) -> None:
        (x,) = self.inputs
        if self.parameter not in context.frozen:
            self._sum_columns(context, d, b=rows_of(x, context.backward_value(x)), r0=self.gradient)
        if context.is_needed(x):
            context.write_gradient(x, lambda d_x: self.emit(context, d_x, d))


@dataclass(eq=False)
class Times(Operation):
    """x times a constant; the backward pass does the same with the gradient."""

    keep, keeps_zeros, reads_inputs = NEVER, True, False

    def backward(self, context: Context, d: At) -> None:
        context.write_gradient(self.inputs[0], lambda d_x: self.emit(context, d_x, d, "d_x = c d_y"))


@dataclass(eq=False)
class Scale(Times):
    """factor * x."""

    kind = "scale"

    factor: float

    def torch(self, values: Values, x: Any) -> Any:
        return self.factor * x

    def emit(self, context: Context, result: At, x: At, what: str = "c x") -> None:
        number = context.builder.functions.number(constant(self.factor))
        context.emit_rows(M.TIMES_FUNCTION, what, self.output, result, x, function=number)


@dataclass(eq=False)
class Factors(Times):
    """x times a constant, such as the cosines of rotary positions.

    `constant`: its name. Its shape is (tokens, features), or (1, features) for all tokens; features that repeat are in
    it once.
    """

    kind = "factors"

    constant: str

    def torch(self, values: Values, x: Any) -> Any:
        factors = values[self.constant][: len(x)]
        return x * factors.repeat(1, x.shape[1] // factors.shape[1])

    def allocate(self, context: Context) -> None:
        self.block = context.layout.place(self.constant)

    def emit(self, context: Context, result: At, x: At, what: str = "c x") -> None:
        y, size = self.output, self.block.row_vectors
        loops = [Level("n", y.vectors // size), Level("w", size), padded("t", y.tokens)]
        x, result = (place.part(n=size, w=1, t=y.vectors) for place in (x, result))
        factors = self.block.where(w=1, t=size if self.block.last > 1 else 0)
        context.builder.vector(M.AFFINE, what, loops, x, factors, r0=result)


@dataclass(eq=False)
class Multiply(Operation):
    """a * b, element by element: a gate."""

    kind, functions = "multiply", ("mul",)

    def emit(self, context: Context, result: At, a: At, b: At, what: str = "a b") -> None:
        context.emit_rows(M.AFFINE, what, self.output, result, a, b)

    def backward(self, context: Context, d: At) -> None:
        a, b = map(context.backward_value, self.inputs)
        for matrix, factor in zip(self.inputs, (b, a), strict=True):
            context.write_gradient(matrix, lambda d_x, factor=factor: self.emit(context, d_x, d, factor, "d_y b"))
