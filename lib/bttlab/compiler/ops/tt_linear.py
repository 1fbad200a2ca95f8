"""Linear layers in tensor-train format: y = x W^T + b."""

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import Self

from bttlab.compiler.context import Context
from bttlab.compiler.instruction import At
from bttlab.compiler.linear import linear_layers
from bttlab.compiler.matrix import Shapes, core_names
from bttlab.compiler.operation import IF_SPACE, Operation
from bttlab.compiler.ops.norm import Norm


@dataclass(eq=False)
class Linear(Operation):
    """A linear layer in tensor-train format (`linear.LinearLayer`).

    `operand_buffer`: place in an operand buffer to which an attention wants the output, instead of a bank: block by
    block of ROWS tokens.
    """

    kind, keep = "linear", IF_SPACE
    operand_buffer = None

    @property
    def is_in_bank(self) -> bool:
        return self.operand_buffer is None

    def parameters(self, shapes: Shapes) -> list[str]:
        bias = f"{self.name}.bias"
        return [*core_names(shapes, self.name), *([bias] if bias in shapes else ())]

    @classmethod
    def prepare(cls, operations: Sequence[Self], context: Context) -> None:
        tokens = {op.name: op.inputs[0].tokens for op in operations}
        layers = linear_layers(context.builder, context.layout, tokens, context.shapes, context.flow, context.sums)
        for op, layer in zip(operations, layers, strict=True):
            op.layer = layer

    def forward(self, context: Context) -> None:
        y = context.output(self.output) if self.is_in_bank else self.operand_buffer
        self.layer.forward(self._input(context), y, not self.is_in_bank)

    def _input(self, context: Context) -> At:
        """Return the place of x: a copy if a layer that reads it on another engine comes first, so that both can.

        Only a norm makes a copy: the vector unit computes it again from another bank.
        """
        x = self.inputs[0]
        first = next(op for op in context.readers(x) if isinstance(op, Linear))
        if self.layer.engines == first.layer.engines or not isinstance(context.maker.get(x), Norm):
            return context.value(x)
        return context.copy(x)

    def recompute(self, context: Context, place: At | None = None) -> None:
        self.layer.recompute(place if self.is_in_bank else self.operand_buffer, not self.is_in_bank)

    def backward(self, context: Context, d: At) -> None:
        x = self.inputs[0]
        stream = context.backward_value(x)
        context.add_to_gradient(x, lambda addend, result: self.layer.backward(d, stream, x.tokens, result, addend), d)
