"""Operations of the vector unit, element by element: sums, products and functions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from bttlab.compiler.builder import padded
from bttlab.compiler.functions import ACTIVATIONS, constant
from bttlab.compiler.instruction import At, Level, max_of
from bttlab.compiler.machine import M
from bttlab.compiler.memory.layout import Block
from bttlab.compiler.operation import ALWAYS, NEVER, Context, Matrix, Operation, Shapes, Values, row_loops, rows_of
from bttlab.util.renamed import renamed

if not TYPE_CHECKING:
    __getattr__ = renamed(
        __name__,
        {
            "Row": "RowOperand",
            "Rows": "TokenRowsOperand",
            "Factors": "FactorsOperand",
            "Number": "NumberOperand",
            "Function": "Activate",
        },
    )


@dataclass(frozen=True)
class RowOperand:
    """Row `first` of a parameter or constant, the same for all tokens, and for all heads if it is that of a head."""

    is_added: ClassVar[bool] = True  # as for `LayoutBuilder.place`

    name: str
    first: int = 0
    heads: int = 1

    def count(self, matrix: Matrix) -> int:
        """Return how many rows it has for a matrix."""
        return 1

    def place(self, context: Context) -> Block:
        return context.layout.place(self.name, added=self.is_added)

    def row_vectors(self, matrix: Matrix) -> int:
        """Return the vectors of one of its rows for a matrix."""
        return matrix.vectors // self.heads

    def torch(self, values: Values, x: Any) -> Any:
        return values.rows(self.name, x.shape[1] // self.heads)[self.first].repeat(self.heads)

    def strides(self, matrix: Matrix) -> dict[str, int]:
        return {"w": 1}


@dataclass(frozen=True)
class TokenRowsOperand(RowOperand):
    """Rows of a parameter or constant from row `first` on, one for each token, such as positions."""

    def count(self, matrix: Matrix) -> int:
        return max_of(matrix.tokens)

    def torch(self, values: Values, x: Any) -> Any:
        return values.rows(self.name, x.shape[1])[self.first : self.first + len(x)]

    def strides(self, matrix: Matrix) -> dict[str, int]:
        return {"t": matrix.vectors, "w": 1}


@dataclass(frozen=True)
class ScalarOperand(RowOperand):
    """Element `first` of a parameter, or a function of it, the same for all elements of a matrix, as in ReZero.

    It is a vector of equal lanes. Each gets the gradient, a sum over all elements, so updates keep them equal.
    `units`: a constant of a vector of zeros and one of ones, by which the gradient is summed.
    `function`: a key of `functions.ACTIVATIONS`, or empty.
    """

    units: str = ""
    function: str = ""

    def place(self, context: Context) -> Block:
        return context.layout.place(self.name, added=self.is_added, is_repeated=True)

    def row_vectors(self, matrix: Matrix) -> int:
        return 1

    def torch(self, values: Values, x: Any) -> Any:
        element = values[self.name].reshape(-1)[self.first]
        return ACTIVATIONS[self.function].torch(element) if self.function else element

    def strides(self, matrix: Matrix) -> dict[str, int]:
        return {}


@dataclass(frozen=True)
class FactorsOperand(RowOperand):
    """A constant such as the cosines of rotary positions, of shape (tokens, features), or (1, features) for all tokens.

    Features that repeat are in it once.
    """

    is_added = False

    def torch(self, values: Values, x: Any) -> Any:
        factors = values[self.name][: len(x)]
        return factors.repeat(1, x.shape[1] // factors.shape[1])


@dataclass(frozen=True)
class NumberOperand:
    """A number for all elements."""

    number: float
    name: ClassVar[str] = ""

    def torch(self, values: Values, x: Any) -> Any:
        return self.number


@dataclass(eq=False)
class Elementwise(Operation):
    """A function of x and y: of two matrices, or of a matrix and an operand that does not depend on the sample."""

    operand: RowOperand | NumberOperand | None = None

    @property
    def family(self) -> type:
        return type(self.operand) if isinstance(self.operand, RowOperand) else Operation

    @property
    def has_prefix(self) -> bool:
        return self.operand is None

    def torch(self, values: Values, *inputs: Any) -> Any:
        y = inputs if self.operand is None else (*inputs, self.operand.torch(values, *inputs))
        return super().torch(values, *y)

    def parameters(self, shapes: Shapes) -> list[str]:
        return [self.operand.name] if self.operand is not None and self.operand.name in shapes else []

    def copy_parameters(self, names: Sequence[str], number: int) -> dict[str, str]:
        copy = f"{self.operand.name}#{number}"
        names, self.operand = {copy: self.operand.name}, replace(self.operand, name=copy)
        return names

    def allocate(self, context: Context) -> None:
        if isinstance(self.operand, RowOperand):
            self.block = self.operand.place(context)
            first = (self.operand.first - self.block.first) * self.operand.row_vectors(self.output)
            self.values, self.gradient = self.block.where().part(first), self.block.gradient().part(first)
        if isinstance(self.operand, ScalarOperand):
            self.units, self.element = context.layout.place(self.operand.units), self.values
            if self.operand.function:
                self.values = context.builder.allocate(f"{self.operand.function} of {self.operand.name}", 1)

    def forward(self, context: Context) -> None:
        if isinstance(self.operand, ScalarOperand) and self.operand.function:
            emit_activation(context, self.operand.function, [Level("w", 1)], self.values, self.element)
        super().forward(context)

    def rows_read(self) -> tuple[int, int] | None:
        operand = self.operand
        if not isinstance(operand, RowOperand) or operand.heads > 1 or isinstance(operand, ScalarOperand):
            return None
        return self.operand.first, self.operand.first + self.operand.count(self.output)

    def is_trained(self, context: Context) -> bool:
        """Return True if the operand is a parameter that is trained."""
        return bool(self.parameters(context.shapes)) and not context.is_frozen(self)

    @property
    def heads(self) -> int:
        """Number of the parts of a row that have the same operand."""
        return self.operand.heads if isinstance(self.operand, RowOperand) else 1

    def emit_terms(self, operation: int, what: str, context: Context, result: At, x: At, y: At | None) -> None:
        """Emit a function of x and y, or of x and the operand."""
        matrix, heads = self.output, self.heads
        y = rows_of(matrix, y) if y is not None else self.values.part(**self.operand.strides(matrix))
        a, r0 = rows_of(matrix, x, heads), rows_of(matrix, result, heads)
        context.builder.vector(operation, what, row_loops(matrix, heads), a, y, r0=r0)

    def sum_columns(self, context: Context, d: At, **operands: At) -> None:
        """Emit the gradient of a row: a sum over the tokens, and over the heads; of a scalar, over all elements."""
        operand = self.operand
        if isinstance(operand, ScalarOperand):
            name, b = operand.function, context.builder
            d_value = b.allocate(f"d_{name}", 1) if name else self.gradient
            context.sum_elements("d_scalar", self.output, self.units, d_value, d, operands.get("b"))
            if name:
                number, loops = b.functions.number(ACTIVATIONS[name].slope), [Level("w", 1)]
                fields = {"r0": self.gradient, "function": number, "flags": M.CHECK}
                b.vector(M.TIMES_FUNCTION, f"d_scalar {name}'", loops, self.element, d_value, **fields)
        else:
            context.sum_tokens("d_row", self.output, d, heads=self.heads, **operands)


@dataclass(eq=False)
class Add(Elementwise):
    """x + y. If its first reader is a norm, the norm computes it, too, unless y is a row for all tokens or a scalar."""

    kind, functions, reads_inputs = "add", ("add",), False
    is_fused = False  # with the norm that reads it

    @property
    def is_fusible(self) -> bool:
        return self.operand is None or isinstance(self.operand, TokenRowsOperand)

    @property
    def keep(self) -> str:
        return ALWAYS if self.is_fusible else NEVER

    @property
    def keeps_zeros(self) -> bool:
        return self.operand is None

    def terms(self, context: Context) -> tuple[At, At]:
        """Return the places of x and y in the forward pass; of two matrices, the second first in a fused sum."""
        x, *others = map(context.value, self.inputs)
        y = others[0] if others else self.values
        return (y, x) if others and self.is_fused else (x, y)

    def emit(self, context: Context, result: At, x: At, y: At | None = None) -> None:
        self.emit_terms(M.ADD, "sum", context, result, x, y)

    def forward(self, context: Context) -> None:
        if not self.is_fused:
            super().forward(context)

    def backward(self, context: Context, d: At) -> None:
        if not self.is_fused:
            self.backward_terms(context, d)

    def backward_terms(self, context: Context, d: At) -> None:
        if self.operand is not None:
            context.builder.layer = self.operand.name.rpartition(".")[0]
            if self.is_trained(context) and self.is_fusible:
                context.emit_rows(M.COPY, "gradient", self.output, self.gradient, d, flags=M.CHECK)
            elif self.is_trained(context):
                self.sum_columns(context, d, r1=self.gradient.part(w=1))
        for matrix in self.inputs:
            context.pass_gradient(matrix, d)


@dataclass(eq=False)
class Multiply(Elementwise):
    """x y: a gate, a factor for each feature (LayerScale), one for all of them (ReZero), a constant."""

    kind, functions = "multiply", ("mul",)

    @property
    def keep(self) -> str:
        return ALWAYS if self.operand is None else NEVER

    @property
    def keeps_zeros(self) -> bool:
        return self.operand is not None

    @property
    def reads_inputs(self) -> bool:
        return not isinstance(self.operand, FactorsOperand | NumberOperand)

    def emit(self, context: Context, result: At, x: At, y: At | None = None) -> None:
        b, r0 = context.builder, rows_of(self.output, result)
        if isinstance(self.operand, NumberOperand):
            number = b.functions.number(constant(self.operand.number))
            b.vector(M.TIMES_FUNCTION, "c x", row_loops(self.output), rows_of(self.output, x), r0=r0, function=number)
        elif isinstance(self.operand, FactorsOperand):
            matrix, size = self.output, self.block.row_vectors
            loops = [Level("n", matrix.vectors // size), Level("w", size), padded("t", matrix.tokens)]
            x, result = (place.part(n=size, w=1, t=matrix.vectors) for place in (x, result))
            factors = self.block.where(w=1, t=size if self.block.last > 1 else 0)
            b.vector(M.AFFINE, "c x", loops, x, factors, r0=result)
        else:
            self.emit_terms(M.AFFINE, "x y", context, result, x, y)

    def backward(self, context: Context, d: At) -> None:
        if self.operand is None:
            x, y = map(context.backward_value, self.inputs)
            for matrix, factor in zip(self.inputs, (y, x), strict=True):
                context.write_gradient(matrix, lambda d_x, factor=factor: self.emit(context, d_x, d, factor))
            return
        (x,) = self.inputs
        if self.is_trained(context):
            self.sum_columns(context, d, b=context.backward_value(x), r0=self.gradient.part(w=1))
        if context.is_needed(x):
            context.write_gradient(x, lambda d_x: self.emit(context, d_x, d))


def emit_activation(context: Context, name: str, loops: Sequence[Level], result: At, u: At) -> None:
    """Emit an activation function, a key of `functions.ACTIVATIONS`, of u."""
    activation = ACTIVATIONS[name]
    operation = M.TIMES_FUNCTION if activation.times_x else M.FUNCTION
    number = context.builder.functions.number(activation.function)
    context.builder.vector(operation, f"{name}(u)", loops, u, r0=result, function=number)


@dataclass(eq=False)
class Activate(Operation):
    """An activation function of x. `function`: a key of `functions.ACTIVATIONS`."""

    kind, keep = "function", NEVER

    function: str

    def torch(self, values: Values, x: Any) -> Any:
        return ACTIVATIONS[self.function].torch(x)

    @property
    def keeps_zeros(self) -> bool:
        return ACTIVATIONS[self.function].times_x

    def emit(self, context: Context, result: At, u: At) -> None:
        loops, places = row_loops(self.output), (rows_of(self.output, place) for place in (result, u))
        emit_activation(context, self.function, loops, *places)

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
