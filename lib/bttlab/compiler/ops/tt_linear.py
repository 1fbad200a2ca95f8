"""Linear layers in tensor-train format, y = x W^T + b: their parameters and the instructions of both passes.

The backward pass recomputes y, and the intermediates between z and y, from z.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from typing_extensions import Self

from bttlab.compiler.arrangement import Stored, elements, rearrange
from bttlab.compiler.builder import ROWS, block_rows, padded, vectors_for
from bttlab.compiler.candidates import Tensor
from bttlab.compiler.contraction import Contraction, OperandBuffer
from bttlab.compiler.instruction import At, Level, max_of
from bttlab.compiler.machine import M
from bttlab.compiler.operation import IF_SPACE, Context, Operation, Shapes, Values, core_names
from bttlab.compiler.ops.norm import Norm
from bttlab.compiler.tt_layer import IN, OUT, TTLayer, axes_of
from bttlab.tensor.order import Product

BIAS, ADDEND = "the bias", "the addend"  # two words: no tensor of an order has such a name


@dataclass(eq=False)
class Linear(Operation):
    """A linear layer in tensor-train format.

    `layer`: its order of contraction, and the engines of its products.
    `operand_buffer`: place in an operand buffer to which an attention wants the output, instead of a bank: token t in
    row t mod ROWS, blocks of ROWS tokens one after the other.
    `keeps_between`: whether the intermediate between x and z (`TTLayer.keepable`) is kept for the backward pass.
    `keeps_merges`: whether products of cores are: then the backward pass loads them instead of computing them again.
    `has_sums`: whether gradients that follow from the tokens (of merged cores, say) are summed over the samples of an
    update, in `sums`, and those of the cores follow from the sums once per update (`collect`).
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
            op.sums: dict[str, Stored] = {}
            op.merges: dict[str, Tensor] = {}
        layers = [op.layer for op in operations]
        has_sums = any(not layer.has_tokens(product) for layer in layers for product in layer.backward_products)
        for op in operations:
            op.has_sums = context.sums and has_sums

    def _session(self, phase: int) -> Contraction:
        """Return the emitter of a phase's products, with the cores and their targets."""
        layer, engine = self.layer, self.layer.engines[phase]
        s = Contraction(self.buffers[engine], layer)
        for block, (name, arrangement) in zip(self.blocks, layer.cores.items(), strict=True):
            if any(name in step for step in layer.steps[phase]):
                s.add_copy(Stored(name, block.where(), arrangement), True)
                s.targets[f"d{name}"] = Stored(f"d{name}", block.gradient(), arrangement)
        for step in layer.steps[phase]:
            if "t" not in layer.indices[step[0]]:
                s.defer(step)
                if self.keeps_merges:
                    s.tensors[step[0]] = self.merges.setdefault(step[0], s.tensors[step[0]])
        return s

    def forward(self, context: Context) -> None:
        y, layer = context.output(self.output) if self.is_in_bank else None, self.layer
        x, (*before, last) = self._input(context), layer.of_tokens(IN)
        s = self._session(IN)
        s.add_copy(Stored("x", x, layer.features("x")))
        s.targets[layer.z] = self.stored_z
        if layer.direct:
            merge, last = layer.direct
            s.defer(merge)
        else:
            for step in before:
                self.between = s.product(step)
        if layer.has_one:  # REDUCE can write an extra element of 1 to each row
            s.product(last, s.choose(last, M.REDUCE), flags=M.ONE)
        else:
            s.product(last)
        if layer.direct and self.keeps_between:
            self.between = s.product(before[0])
        self.recompute(context, y)

    def _input(self, context: Context) -> At:
        """Return the place of x: a copy if a layer that reads it on another engine comes first, so that both can.

        Only a norm makes a copy: the vector unit computes it again from another bank.
        """
        x = self.inputs[0]
        first = next(op for op in context.readers(x) if isinstance(op, Linear))
        if self.layer.engines == first.layer.engines or type(context.maker.get(x)) is not Norm:
            return context.value(x)
        return context.copy(x)

    def recompute(self, context: Context, place: At | None) -> None:
        """Emit y = z L^T + b from the z that `forward` computed."""
        layer = self.layer
        s, features = self._session(OUT), layer.features("y")
        s.add_copy(self.stored_z)
        *first, last = layer.of_tokens(OUT)
        for step in first:
            s.product(step)
        blocks, y = None, place or self.operand_buffer
        if not self.is_in_bank:
            vectors, count = features.row_vectors(layer.sizes), -(-max_of(layer.tokens) // ROWS)
            blocks = [(block_rows(layer.tokens, n), ROWS * n, y.part(n * vectors)) for n in range(count)]
        s.targets["y"] = Stored("y", y, features, not self.is_in_bank)
        if self.bias is not None:
            s.add_copy(Stored(BIAS, self.bias.where(), replace(features, order=features.order[1:])))
        s.product(last, s.choose(last, M.EXPAND), addend=BIAS if self.bias is not None else "", blocks=blocks)

    def backward(self, context: Context, d: At) -> None:
        stream = context.backward_value(self.inputs[0])
        context.add_to_gradient(self.inputs[0], lambda addend, d_x: self._gradients(d, stream, d_x, addend), d)

    def _gradients(self, d_y: At, x: At, d_x: At, addend: At | None) -> None:
        """Emit d_x = addend + d_y W, and the gradients of the cores and the bias."""
        layer, (into, out), has_bias = self.layer, [self._session(phase) for phase in (IN, OUT)], False
        b, d_z = into.b, f"d{layer.z}"
        out.add_copy(Stored("dy", d_y, layer.features("y")))
        out.add_copy(self.stored_z)
        into.add_copy(Stored("x", x, layer.features("x")))
        out.targets[d_z] = Stored(d_z, b.allocate("d_z", layer.z_arrangement.vectors(layer.sizes)), layer.z_arrangement)
        into.targets["dx"] = Stored("dx", d_x, layer.features("x"))
        for product in layer.backward_products:
            result, phase = product[0], layer.phase_of(product)
            s = (into, out)[phase]
            if any("t" in layer.indices[n] and n[0] != "d" and n not in s.tensors for n in product[1:]):
                if phase == IN and self.keeps_between:
                    s.add_copy(self.between)
                else:
                    for step in layer.of_tokens(phase)[:-1]:
                        s.product(step)
            if result == d_z:
                s.product(product)
                into.add_copy(s.targets[result])
            elif result == "dx":
                self._d_x(s, product, addend)
            elif not self.has_sums or "t" in layer.indices[result]:
                has_bias |= self._core_gradient(s, product)
            elif layer.has_tokens(product):
                if target := s.targets.get(result):
                    vectors = target.arrangement.vectors(layer.sizes)
                    s.targets[result] = replace(target, place=b.allocate(f"{result} of the sample", vectors))
                has_bias |= self._core_gradient(s, product)
                self._add_to_sum(s, s.targets.get(result) or s.tensors[result].stored[0])
        if self.bias is not None and not has_bias:
            vectors = vectors_for(elements(layer.sizes, layer.features("y").packed))
            loops, result = [Level("t", layer.tokens), padded("w", vectors)], self.bias.gradient(w=1)
            b.columns("d b", loops, d_y.part(t=vectors, w=1), r1=result, check=True)

    def _core_gradient(self, s: Contraction, product: Product) -> bool:
        """Emit a product of the backward pass; return whether it also computes the gradient of the bias.

        Rows of z have an extra element of 1, so the sum over tokens of z^T d_y has one more row: that gradient.
        """
        is_whole = self.layer.has_one and set(product[1:]) == {self.layer.z, "dy"} and product[0] not in s.targets
        if self.bias is not None and is_whole and (candidate := s.choose(product, M.ACCUMULATE, "dy")):
            s.product(product, candidate, bias=self.bias.gradient())
            return True
        s.product(product)
        return False

    def _d_x(self, s: Contraction, product: Product, addend: At | None) -> None:
        features, target = self.layer.features("x"), s.targets["dx"]
        candidate = s.choose(product, M.EXPAND)
        if addend is None:
            s.product(product, candidate)
            return
        if candidate is not None and s.matches_target(candidate, "dx"):
            s.add_copy(Stored(ADDEND, addend, features))
            s.product(product, candidate, addend=ADDEND)
            return
        del s.targets["dx"]
        c = s.product(product, s.choose(product, M.EXPAND))
        term, vectors = s.allocate("dx", features), features.row_vectors(s.sizes)
        rearrange(s.b, s.sizes, c, term)
        loops = [Level("w", vectors), padded("t", self.layer.tokens)]
        first, second, result = (place.part(t=vectors, w=1) for place in (term.place, addend, target.place))
        s.b.vector(M.ADD, "d_x", loops, first, second, r0=result)

    def _add_to_sum(self, s: Contraction, gradient: Stored) -> None:
        name, vectors = gradient.name, gradient.arrangement.vectors(s.sizes)
        if name not in self.sums:
            place = s.b.allocate(f"sum of {name} of {self.name}", vectors, is_persistent=True)
            self.sums[name] = replace(gradient, place=place)
        place, terms = self.sums[name].place.part(w=1), gradient.place.part(w=1)
        s.b.vector(M.ADD, f"sum of {name}", [Level("w", vectors)], place, terms, r0=place, flags=M.CHECK)

    def collect(self) -> None:
        """Emit the gradients of the cores from the sums over samples."""
        self.merges.clear()
        for buffer in self.buffers:
            buffer.clear()
        sessions = [self._session(phase) for phase in (IN, OUT)]
        for product in self.layer.backward_products:
            result, s = product[0], sessions[self.layer.phase_of(product)]
            if result in self.sums:
                s.add_copy(self.sums[result])
                if result in s.targets:  # the sum is a core's gradient
                    loops = [Level("w", s.targets[result].arrangement.vectors(s.sizes))]
                    source, target = (stored.place.part(w=1) for stored in (self.sums[result], s.targets[result]))
                    s.b.vector(M.COPY, f"d{result}", loops, source, r0=target, flags=M.CHECK)
            elif not self.layer.has_tokens(product):
                s.product(product)
