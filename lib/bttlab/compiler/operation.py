"""The base class of operations: what each of them has to say for the forward and the backward pass.

A new operation is a class in a file of `ops/`. It has

- `emit`: emits the output from the values of the inputs, in the forward pass, or again in the backward pass if the
  output is not to be kept for it; `keep` says when it is. An operation that does something else in each of them defines
  `forward` and `recompute` instead;
- `backward`: emits the inputs' gradients from the output's; it reads the values of the inputs unless `reads_inputs` is
  False.

`functions` names functions of PyTorch: the tracer records the operation for each call with activations of one shape.
Operations with parameters, statistics or space in operand buffers allocate them in `allocate`. The methods see banks
only as places that the context (`context.Context`) returns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NoReturn

from typing_extensions import Self

from bttlab.compiler.context import Context
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.instruction import At
from bttlab.compiler.matrix import Matrix, Shapes

ALWAYS, IF_SPACE, NEVER = "always", "if there is space", "never"


@dataclass(eq=False)
class Operation:
    kind: ClassVar[str] = ""  # name of the class, for messages
    has_prefix: ClassVar[bool] = True  # its parameters are called by its name
    # Whether the output is kept for the backward pass if that reads it: ALWAYS; IF_SPACE, if the banks have space for
    # it; NEVER, since recomputing it takes the vector unit a short time.
    keep: ClassVar[str] = ALWAYS
    reads_inputs: ClassVar[bool] = True  # `backward` reads the values of the inputs
    # Lanes beyond the features stay 0 in both passes, so features need not fill whole vectors.
    keeps_zeros: ClassVar[bool] = False
    is_in_bank: ClassVar[bool] = True  # False if the output is written into operand buffers alone
    functions: ClassVar[tuple[str, ...]] = ()  # functions of PyTorch that it computes, of activations of one shape
    of_function: ClassVar[dict[str, type[Self]]] = {}  # the operations, by the functions that they compute

    name: str  # its place in the module
    inputs: tuple[Matrix, ...]
    output: Matrix

    def __init_subclass__(cls) -> None:
        cls.of_function.update(dict.fromkeys(cls.functions, cls))

    @property
    def options(self) -> dict[str, Any]:
        """The fields of its class, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)[3:]}

    def parameters(self, shapes: Shapes) -> list[str]:
        """Return the names of its parameters."""
        return []

    def copy_parameters(self, names: Sequence[str], number: int) -> dict[str, str]:
        """Use copies of parameters; return the parameters by the copies' names."""
        if self.has_prefix:
            prefix, self.name = self.name, f"{self.name}#{number}"
            return {f"{self.name}{name.removeprefix(prefix)}": name for name in names}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str) and value in names:
                setattr(self, field.name, f"{value}#{number}")
        return {f"{name}#{number}": name for name in names}

    @classmethod
    def prepare(cls, operations: Sequence[Self], context: Context) -> None:
        """Allocate what the operations of this class need for both passes."""
        for op in operations:
            op.allocate(context)

    def allocate(self, context: Context) -> None:
        """Allocate what the operation needs for both passes."""

    def load(self, context: Context) -> None:
        """Emit loads of operand buffers that no other operation of the forward pass uses."""

    def emit(self, context: Context, result: At, *values: At) -> None:
        """Emit the output, to `result`, from the values of the inputs."""
        self._has_no("emit")

    def forward(self, context: Context) -> None:
        """Emit the output in the forward pass."""
        values = [context.value(matrix) for matrix in self.inputs]
        self.emit(context, context.output(self.output), *values)

    def recompute(self, context: Context, place: At) -> None:
        """Emit the output again, to `place`, in the backward pass."""
        self.emit(context, place, *map(context.backward_value, self.inputs))

    def backward(self, context: Context, d: At) -> None:
        """Emit the gradients of inputs and parameters from `d`, the gradient of the output."""
        self._has_no("backward")

    def reads_in_backward(self, is_late: bool) -> tuple[Matrix, ...]:
        """Return the matrices whose values `backward` reads.

        `is_late`: whether the operation is after the last attention: its output is then kept, at no cost.
        """
        return self.inputs if self.reads_inputs else ()

    def _has_no(self, method: str) -> NoReturn:
        raise ProgramError(
            f"{self.name}: the operation '{self.kind}' has no method '{method}'; {type(self).__name__} must define it "
            "(docs/extending.md)"
        )
