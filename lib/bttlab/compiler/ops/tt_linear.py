"""Linear layers in tensor-train format, y = x W^T + b: their parameters and the instructions of both passes.

The backward pass recomputes y, and the intermediates between z and y, from z.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from bttlab.compiler.builder import ROWS, block_rows, padded, vectors_for
from bttlab.compiler.instruction import At, Level, max_of
from bttlab.compiler.machine import M
from bttlab.compiler.operation import IF_SPACE, Context, Operation, Shapes, Values, core_names
from bttlab.compiler.ops.norm import Norm
from bttlab.compiler.plan.arrangement import Stored, elements
from bttlab.compiler.plan.contraction import ADDEND, BIAS, Multiply, plan_collection, plan_gradients, plan_y, plan_z
from bttlab.compiler.plan.emitter import Emitter, Final, OperandBuffer
from bttlab.compiler.plan.tt_layer import IN, OUT, TTLayer, axes_of
from bttlab.util.renamed import renamed

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"Linear": "TTLinear"})


@dataclass(eq=False)
class TTLinear(Operation):
    """A linear layer in tensor-train format.

    `layer`: its order of contraction, and the engines of its products.
    `operand_buffer`: place in an operand buffer to which an attention wants the output, instead of a bank: token t in
    row t mod ROWS, blocks of ROWS tokens one after the other.
    `keeps_between`: whether the intermediate between x and z (`TTLayer.keepable`) is kept for the backward pass.
    `keeps_merges`: whether products of cores are: then the backward pass loads them instead of computing them again.
    `has_sums`: whether gradients that follow from the tokens (of merged cores, say) are summed over the samples of an
    update, and those of the cores follow from the sums once per update (`collect`).
    """

    kind, keep = "linear", IF_SPACE
    operand_buffer = None
    keeps_between = keeps_merges = False

    def torch(self, values: Values, x: Any) -> Any:
        import torch

        def halves() -> tuple[Any, Any]:
            """Return W = L R: the products of the cores of each half."""
            cores = [values[name] for name in core_names(values, self.name)]
            middle = len(cores) // 2
            left, right = (
                reduce(lambda a, b: torch.tensordot(a, b, 1), end) for end in (cores[:middle], cores[middle:])
            )
            rank = cores[middle].shape[0]
            return left.reshape(-1, rank), right.reshape(rank, -1)

        left, right = values.once(self.name, halves)
        y, bias = x @ right.T @ left.T, f"{self.name}.bias"
        return y + values[bias] if bias in values else y

    @property
    def is_in_bank(self) -> bool:
        return self.operand_buffer is None

    def parameters(self, shapes: Shapes) -> list[str]:
        bias = f"{self.name}.bias"
        return [*core_names(shapes, self.name), *([bias] if bias in shapes else ())]

    @classmethod
    def prepare(cls, operations: Sequence[Self], context: Context) -> None:
        builder, place, shapes = context.builder, context.layout.place, context.shapes
        buffers = [OperandBuffer(builder, engine) for engine in range(M.ENGINES)]
        for op in operations:
            op.bias = place(f"{op.name}.bias") if f"{op.name}.bias" in shapes else None
        for number, op in enumerate(operations):
            cores = core_names(shapes, op.name)
            layer = TTLayer(op.name, op.inputs[0].tokens, tuple(shapes[core] for core in cores), context.flow, number)
            op.blocks = [place(core, axes) for core, axes in zip(cores, axes_of(len(cores) // 2), strict=True)]
            z = builder.allocate(f"z of {op.name}", layer.z_arrangement.vectors(layer.sizes))
            op.layer, op.buffers, op.stored_z = layer, buffers, Stored(layer.z, z, layer.z_arrangement)
            op.emitter = Emitter(builder, layer, op.blocks, buffers)
        layers = [op.layer for op in operations]
        has_sums = any(not layer.has_tokens(product) for layer in layers for product in layer.backward_products)
        for op in operations:
            op.has_sums = context.sums and has_sums

    def forward(self, context: Context) -> None:
        y, layer = context.output(self.output) if self.is_in_bank else None, self.layer
        x, given = self._input(context), self.emitter.begin(IN, keeps_merged=self.keeps_merges)
        steps = plan_z(layer, given, self.keeps_between)
        self.emitter.emit(steps, [(IN, Stored("x", x, layer.features("x")))], [Final(self.stored_z)])
        for name in layer.keepable:
            self.between = next(iter(self.emitter.stored(IN, name)), None)
        self.recompute(context, y)

    def _input(self, context: Context) -> At:
        """Return the place of x: a copy if a layer that reads it on another engine comes first, so that both can.

        Only a norm makes a copy: the vector unit computes it again from another bank.
        """
        x = self.inputs[0]
        first = next(op for op in context.readers(x) if isinstance(op, TTLinear))
        if self.layer.engines == first.layer.engines or type(context.maker.get(x)) is not Norm:
            return context.value(x)
        return context.copy(x)

    def recompute(self, context: Context, place: At | None) -> None:
        """Emit y = z L^T + b from the z that `forward` computed."""
        layer, features, has_bias = self.layer, self.layer.features("y"), self.bias is not None
        steps = plan_y(layer, self.emitter.begin(OUT, keeps_merged=self.keeps_merges), has_bias)
        copies, blocks, y = [(OUT, self.stored_z)], [], place or self.operand_buffer
        if not self.is_in_bank:
            vectors, count = features.row_vectors(layer.sizes), -(-max_of(layer.tokens) // ROWS)
            blocks = [(block_rows(layer.tokens, n), ROWS * n, y.part(n * vectors)) for n in range(count)]
        if has_bias:
            copies.append((OUT, Stored(BIAS, self.bias.where(), features._replace(order=features.order[1:]))))
        self.emitter.emit(steps, copies, [Final(Stored("y", y, features, not self.is_in_bank), blocks)])

    def backward(self, context: Context, d: At) -> None:
        stream = context.backward_value(self.inputs[0])
        context.add_to_gradient(self.inputs[0], lambda addend, d_x: self._gradients(d, stream, d_x, addend), d)

    def _gradients(self, d_y: At, x: At, d_x: At, addend: At | None) -> None:
        """Emit d_x = addend + d_y W, and the gradients of the cores and the bias."""
        layer, b, bias = self.layer, self.emitter.b, self.bias
        between = self.between if self.keeps_between else None
        given = self.emitter.begin(IN, OUT, keeps_merged=self.keeps_merges, between=between)
        steps = plan_gradients(layer, given, bias is not None, addend is not None, self.has_sums)
        of_x, of_y, of_z = layer.features("x"), layer.features("y"), layer.z_arrangement
        d_z = Stored(f"d{layer.z}", b.allocate("d_z", of_z.vectors(layer.sizes)), of_z)
        copies = [(OUT, Stored("dy", d_y, of_y)), (OUT, self.stored_z), (IN, Stored("x", x, of_x)), (IN, d_z)]
        copies += [(IN, between)] if between else []
        copies += [(IN, Stored(ADDEND, addend, of_x))] if addend else []
        finals = Final(d_z), Final(Stored("dx", d_x, of_x))
        self.emitter.emit(steps, copies, finals, bias and bias.gradient(), self.has_sums)
        if bias is not None and not any(isinstance(step, Multiply) and step.has_bias for step in steps):
            vectors = vectors_for(elements(layer.sizes, of_y.packed))
            loops, result = [Level("t", layer.tokens), padded("w", vectors)], bias.gradient(w=1)
            b.columns("d b", loops, d_y.part(t=vectors, w=1), r1=result, check=True)

    def collect(self) -> None:
        """Emit the gradients of the cores from the sums over samples."""
        self.emitter.merged.clear()
        for buffer in self.buffers:
            buffer.clear()
        steps = plan_collection(self.layer, self.emitter.begin(IN, OUT))
        self.emitter.emit(steps, [(phase, of) for of in self.emitter.sums.values() for phase in (IN, OUT)])
