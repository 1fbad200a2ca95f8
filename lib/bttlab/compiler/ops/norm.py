"""LayerNorm and RMSNorm over a token's features, or over those of each head: forward, backward, recomputed output."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bttlab.compiler.buffers import STATISTICS
from bttlab.compiler.builder import LANES, even_parts, padded
from bttlab.compiler.instruction import At, Level, max_of
from bttlab.compiler.machine import M
from bttlab.compiler.operation import NEVER, Context, Operation, Shapes, Values, row_loops, rows_of
from bttlab.compiler.ops.elementwise import Add


@dataclass(eq=False)
class Norm(Operation):
    """y = n scale + shift with n = (x - mean) / std; n = x / root mean square if not `centred`.

    n stays in a bank, and 1 / std in rows of statistics, for the backward pass.
    """

    kind, keep, has_prefix, reads_inputs, heads = "norm", NEVER, False, False, 1

    # Parameters; `bias` is empty if there is none, and `weight` may be a constant.
    weight: str
    bias: str = ""
    epsilon: float = 1e-5
    centred: bool = True

    def torch(self, values: Values, x: Any) -> Any:
        tokens, x = len(x), x.reshape(len(x) * self.heads, -1)
        x = x - x.mean(1, keepdim=True) if self.centred else x
        # nn.RMSNorm takes the resolution of its input's type if it has no epsilon: of double precision in the check.
        is_default = self.epsilon == float(np.finfo(np.float32).eps) and x.element_size() == 8
        epsilon = float(np.finfo(np.float64).eps) if is_default else self.epsilon
        y = x / (x.square().mean(1, keepdim=True) + epsilon).sqrt() * values[self.weight].reshape(-1)
        y = y + values[self.bias].reshape(-1) if self.bias else y
        return y.reshape(tokens, -1)

    def parameters(self, shapes: Shapes) -> list[str]:
        return [name for name in (self.weight, self.bias) if name in shapes]

    def allocate(self, context: Context) -> None:
        x = self.inputs[0]
        self._place_parameters(context)
        self.normalized = context.builder.allocate(f"normalized by {self.name}", max_of(x.tokens) * x.vectors)
        self.rows = context.builder.allocate(f"means of {self.name}", max_of(x.tokens), home=STATISTICS)
        maker = context.maker.get(x)
        self.sum = maker if isinstance(maker, Add) and maker.is_fusible and context.readers(x)[0] is self else None
        if self.sum is not None:
            self.sum.is_fused = True

    def _place_parameters(self, context: Context) -> None:
        place = context.layout.place
        self.scale, self.shift = place(self.weight), place(self.bias) if self.bias else None

    def _parameters(self) -> dict[str, At]:
        shift = {} if self.shift is None else {"c": self.shift.where(w=1)}
        return {"b": self.scale.where(w=1)} | shift

    def _parts(self) -> list[tuple[int, int, int]]:
        """Return the first of some heads, their number, and the most tokens: as many as there are accumulators."""
        tokens, heads = self.output.tokens, self.heads
        parts = even_parts(heads, max_of(padded("t", tokens, heads).bound), M.ROW_ACCUMULATORS)
        return [(first, count, max_of(padded("t", tokens, count).bound)) for first, count in parts]

    def _row_sums(self) -> Iterator[tuple[Callable[[At], At], dict]]:
        """Yield how the rows of some heads are read and written, and arguments of `Builder.vector` for them."""
        statistic, matrix = self.rows, self.output
        for first, count, most in self._parts():
            skipped, loops = first * matrix.vectors // self.heads, row_loops(matrix, self.heads, count)

            def rows(where: At, skipped: int = skipped) -> At:
                return rows_of(matrix, where.part(skipped), self.heads)

            yield rows, {"loops": loops, "accumulator_loop": "w", "rows": statistic}
            statistic = statistic.offset_by(count * most)

    @property
    def _share(self) -> float:
        return self.heads / (self.output.vectors * LANES)

    def _emit(self, context: Context, x: At, normalized: At | None, y: At | None, terms: tuple[At, ...] = ()) -> None:
        """Emit n, y and 1 / std of x, and x itself if it is the sum of two terms."""
        b, depth = context.builder, {"depth": ("w",)}
        for rows, sums in self._row_sums():
            summed = dict(zip("ab", map(rows, terms), strict=True)) | {"r0": rows(x)} if terms else {"a": rows(x)}
            mean = {"immediates": (self._share * self.centred,)}
            b.vector(M.SUM, "mean" if self.centred else "no mean", **summed, **mean, **sums, **depth)
            b.vector(M.VARIANCE, "1 / std", a=rows(x), immediates=(self._share, self.epsilon), **sums, **depth)
            results = {"r0": normalized and rows(normalized), "r1": y and rows(y)}
            b.vector(M.NORMALIZE, "y", a=rows(x), **self._parameters(), **results, **sums)

    def forward(self, context: Context) -> None:
        terms, x = (), self.inputs[0]
        if self.sum is not None:
            terms, place = self.sum.terms(context), context.output(x)
        else:
            place = context.value(x)
        self._emit(context, place, self.normalized, context.output(self.output), terms)

    def recompute(self, context: Context, place: At) -> None:
        context.emit_rows(M.AFFINE, "recompute y", self.output, place, self.normalized, **self._parameters())

    def backward(self, context: Context, d: At) -> None:
        x = self.inputs[0]
        is_table = self.sum is not None and self.sum.is_trained(context)
        if is_table and context.gradient(x) is None:
            where = self.sum.gradient  # the table's gradient is that of the sum
            self._emit_backward(context, d, where, M.CHECK)
            context.pass_gradient(self.sum.inputs[0], where)
            return
        context.write_gradient(x, lambda result: self._emit_backward(context, d, result))
        if self.sum is not None and context.is_needed(x):
            self.sum.backward_terms(context, context.gradient(x))

    def _emit_backward(self, context: Context, d_y: At, d_x: At, flags: int = 0) -> None:
        """Emit d_x = (d - mean(d) - n mean(d n)) / std with d = d_y scale, and the gradients of scale and shift."""
        b, scale, depth, n = context.builder, self.scale.where(w=1), {"depth": ("w",)}, self.normalized
        for rows, sums in self._row_sums():
            operands = {"a": rows(d_y), "b": scale, "c": rows(n)}
            b.vector(M.NORM_SUMS, "mean(d), mean(d n)", immediates=(self._share,), **operands, **sums, **depth)
            if not self.centred:
                loops = [Level("w", 1), *sums["loops"][1:]]
                b.vector(M.DOT, "no mean(d)", **sums | depth | {"loops": loops})
            b.vector(M.NORM_BACK, "d_x", r0=rows(d_x), flags=flags, **operands, **sums)
        if context.is_frozen(self):
            return
        results = {"r0": self.scale.gradient(w=1)} if self.weight in context.shapes else {}
        results |= {} if self.shift is None else {"r1": self.shift.gradient(w=1)}
        context.sum_tokens("d_scale, d_shift", self.output, d_y, n, self.heads, **results)


@dataclass(eq=False)
class HeadNorm(Norm):
    """Norm of each head: scale and shift have the features of one.

    Heads of all tokens are rows of their own, too many to keep 1 / std of all layers: the backward pass computes n and
    1 / std from x again.
    """

    reads_inputs, sum = True, None

    heads: int = 1

    def allocate(self, context: Context) -> None:
        self._place_parameters(context)
        self.normalized: At | None = None  # in the backward pass

    def _emit(self, context: Context, *places: At | None, **terms) -> None:
        size = sum(count * most for _, count, most in self._parts())
        self.rows = context.builder.allocate(f"means of {self.name}", size, home=STATISTICS)
        super()._emit(context, *places, **terms)

    def recompute(self, context: Context, place: At | None) -> None:
        x = context.backward_value(self.inputs[0])
        self.normalized = context.new(self.output, f"normalized by {self.name}")
        self._emit(context, x, self.normalized, place)

    def backward(self, context: Context, d: At) -> None:
        if self.normalized is None:
            self.recompute(context, None)
        super().backward(context, d)
