"""Dense layers y = x W^T + b, and the cross-entropy of the last ones.

The rows of W are loaded into an operand buffer, output c in row c mod ROWS, and the tokens are streamed: outputs are
written as vectors. A layer with many outputs divides them between the two engines. Both then read x and the gradient of
y, so each of these has two copies in different banks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bttlab.compiler.builder import LANES, ROWS, Builder, padded, row_passes
from bttlab.compiler.functions import EXPONENT
from bttlab.compiler.instruction import At, Bound, Level, Memory, max_of
from bttlab.compiler.machine import M
from bttlab.compiler.memory.layout import Block
from bttlab.compiler.operation import INTENT, Context, Operation, Shapes, Values, row_loops, rows_of
from bttlab.compiler.shuffles import identity
from bttlab.model.choices import IGNORED

# Scalars of the sample's record that weight the terms of a loss's gradient: the softmax, all classes (label smoothing),
# and the label.
INTENT_LABEL, INTENT_CLASS, SLOT_WEIGHT, SLOT_LABEL, SLOT_CLASS = (("scalar", number) for number in range(4, 9))
CERTAIN = 2.0**40  # above all logits
WEIGHTS = {True: (1.0, INTENT_CLASS, INTENT_LABEL), False: (SLOT_WEIGHT, SLOT_CLASS, SLOT_LABEL)}


@dataclass(frozen=True)
class Share:
    """The outputs of a layer that one engine computes."""

    engine: int
    block: Block  # rows of the weight for these outputs
    # Number of vectors of outputs, and the first of them.
    vectors: int
    first: int
    outputs: int
    buffer: At  # place of the weight in the engine's operand buffer
    stride: int  # vectors from token to token: the first share uses y and its gradient, another has buffers of its own

    def passes(self) -> list[tuple[int, int]]:
        """Return the number of each vector of outputs, and the number of its outputs."""
        return row_passes(min(self.outputs, self.vectors * ROWS))


@dataclass(eq=False)
class Dense(Operation):
    kind, has_prefix = "dense", False

    # Parameters or constants; `bias` is empty if there is none.
    weight: str
    bias: str = ""
    first: int = 0  # row of both for the first output
    transposed: bool = False  # whether the weight is (in, out)

    def torch(self, values: Values, x: Any) -> Any:
        weight, rows = values[self.weight], slice(self.first, self.first + self.output.features)
        y = x @ (weight.T if self.transposed else weight)[rows].T
        return y + values[self.bias][rows] if self.bias else y

    @property
    def keeps_zeros(self) -> bool:
        return self.first % LANES == 0

    def parameters(self, shapes: Shapes) -> list[str]:
        return [name for name in (self.weight, self.bias) if name in shapes]  # else they are constants

    def allocate(self, context: Context) -> None:
        """Allocate the parameters and their places in the operand buffers."""
        x, y, layout = self.inputs[0], self.output, context.layout
        table = next((op.name for op in context.operations if op.kind == "embedding"), "")
        is_shared = self.weight == f"{table}.weight"
        is_split = y.vectors > 2 and not is_shared
        sizes = [-(-y.vectors // 2), y.vectors // 2] if is_split else [y.vectors]
        self.shares = []
        for number, count in enumerate(sizes):
            engine, first = (number if is_split else M.ENGINE_1), number * sizes[0]
            rows = (self.first + first * LANES, self.first + min((first + count) * LANES, y.features))
            axes = (1, 0) if self.transposed else None
            block = layout.place(self.weight, axes, part=rows, added=is_shared)
            name, vectors = f"weight of {self.name}", count * x.vectors
            buffer = context.builder.allocate(name, vectors, home=Memory.operand_buffer(engine), is_persistent=True)
            outputs, stride = y.features - first * LANES, count if first else y.vectors
            self.shares.append(Share(engine, block, count, first, outputs, buffer, stride))
        self.bias_block = layout.place(self.bias) if self.bias else None

    def load(self, context: Context) -> None:
        b, vectors = context.builder, self.inputs[0].vectors
        for share in self.shares:
            for c, rows in share.passes():
                source, buffer = share.block.where().part(c * ROWS * vectors), share.buffer.part(c * vectors)
                if vectors <= M.SHUFFLE_VECTORS:  # the engines have more to do than the shuffle unit
                    source, buffered_result = source.part(block=vectors, y=1), buffer.part(y=1)
                    b.shuffle("load weight", rows, identity(vectors), source, None, buffered_result, ("block", 0))
                else:
                    b.load_rows("load weight", source, buffer, rows, vectors)
                if rows < ROWS and self.output.tokens == 1:  # one instruction computes all outputs
                    b.load_rows("no more outputs", None, buffer, ROWS - rows, vectors, rows)

    def forward(self, context: Context) -> None:
        self._multiply(context, self._copies(context, context.value(self.inputs[0])), context.output(self.output))

    def backward(self, context: Context, d: At) -> None:
        self._add_gradients(context, self._copies(context, context.backward_value(self.inputs[0])), d)

    def _add_gradients(self, context: Context, streams: Sequence[At], d_y: At) -> None:
        """Emit the gradients of x, weight and bias, as far as they are needed."""
        multiply_back = partial(self._multiply_back, context, streams, d_y)
        if context.is_needed(self.inputs[0]):
            context.add_to_gradient(self.inputs[0], multiply_back, d_y)
        else:
            multiply_back(None, None)

    def _copies(self, context: Context, x: At, what: str = "x") -> list[At]:
        """Return a copy of x for each share; the first share reads x itself."""
        b, matrix = context.builder, self.inputs[0]
        loops = [Level("w", matrix.vectors), padded("t", matrix.tokens)]
        copies = [context.new(matrix, f"{what}, twice") for _ in self.shares[1:]]
        for copy in copies:
            b.vector(M.COPY, what, loops, rows_of(matrix, x), r0=rows_of(matrix, copy))
        return [x, *copies]

    def _places(self, b: Builder, y: At, what: str) -> list[At]:
        """Return the place of each share's columns of y, or of its gradient."""
        tokens = max_of(self.output.tokens)
        return [y, *(b.allocate(what, tokens * share.vectors) for share in self.shares[1:])]

    def _multiply(self, context: Context, streams: Sequence[At], y: At, what: str = "y") -> None:
        """Emit y = x W^T + b."""
        b, w, tokens, row = context.builder, self.inputs[0].vectors, self.output.tokens, self.output.vectors
        products = self._places(b, y, f"{what} of {self.name}")  # without the bias
        for share, stream, result in zip(self.shares, streams, products, strict=True):
            depth = Level("w", w + 1)
            if tokens == 1:
                buffer, loops = share.buffer.part(c=w, w=1), [depth, padded("c", share.vectors)]
                b.reduce(share.engine, what, loops, "w", buffer, stream.part(w=1), result.part(c=1))
                continue
            loops, stream = [depth, padded("t", tokens)], stream.part(t=w, w=1)
            for c, rows in share.passes():  # an instruction each: it begins when its rows of the weight are loaded
                buffer, outputs = share.buffer.part(c * w, w=1), result.part(c, t=share.stride)
                b.reduce(share.engine, what, loops, "w", buffer, stream, outputs, count=rows)
        for share, product in zip(self.shares, products, strict=True):
            if product is y and self.bias_block is None:
                continue
            loops = [Level("w", share.vectors), padded("t", tokens)]
            lanes = {"count": share.outputs, "vector_loop": "w"}
            bias = self.bias_block and self.bias_block.where().part(self.first // LANES + share.first, w=1)
            product, result = product.part(t=share.stride, w=1), y.part(share.first, t=row, w=1)
            b.vector(M.ADD if bias else M.COPY, f"{what} + b", loops, product, bias, r0=result, **lanes)

    def _multiply_back(
        self, context: Context, streams: Sequence[At], d_y: At, addend: At | None, d_x: At | None
    ) -> None:
        """Emit d_x = addend + d_y W and the gradients of weight and bias."""
        b, x, y = context.builder, self.inputs[0], self.output
        w, row = x.vectors, y.vectors
        scalars = self._places(b, d_y, "d_y, twice")
        for share, copy in zip(self.shares[1:], scalars[1:], strict=True):
            nest = [Level("w", share.vectors), Level("t", x.tokens)]
            b.vector(M.COPY, "d_y", nest, d_y.part(share.first, t=row, w=1), r0=copy.part(t=share.stride, w=1))
        if d_x is not None:
            self._emit_d_x(b, scalars, d_x, addend)
        if self.bias_block is not None and context.is_trained(self.bias):
            nest, gradient = [Level("t", x.tokens), padded("w", row)], self.bias_block.gradient()
            b.columns("d_b", nest, a=rows_of(y, d_y), r1=gradient.part(self.first // LANES, w=1), check=True)
        if not context.is_trained(self.weight):
            return
        for share, stream, d_share in zip(self.shares, streams, scalars, strict=True):
            for c, count in share.passes():
                gradient = share.block.gradient().part(c * ROWS * w, r=w, w=1)
                rows, nest = Level("r", count), [Level("t", x.tokens), padded("w", w)]
                scalar, what = d_share.part(c, t=share.stride), "d_W = d_y^T x"
                b.accumulate(
                    share.engine, what, nest, ("t",), scalar, rows_of(x, stream), rows, gradient, ROWS, check=True
                )

    def _emit_d_x(self, b: Builder, scalars: Sequence[At], d_x: At, addend: At | None) -> None:
        x, w = self.inputs[0], self.inputs[0].vectors
        terms, loops = [d_x], [Level("w", w), Level("t", x.tokens)]
        if len(self.shares) > 1:
            terms = [b.allocate("share of d_x", max_of(x.tokens) * w) for _ in self.shares]
        for share, term, d_share in zip(self.shares, terms, scalars, strict=True):
            result = rows_of(x, term)
            before = rows_of(x, addend) if addend and share is self.shares[0] else None
            for c, rows in share.passes():
                buffer, scalar = share.buffer.part(c * w, w=1), d_share.part(c, t=share.stride)
                b.expand(share.engine, "d_x = d_y W", loops, buffer, scalar, result, addend=before, count=rows)
                before = result
        if len(terms) == 2:
            first, second = (rows_of(x, term) for term in terms)
            b.vector(M.ADD, "d_x", loops, first, second, r0=rows_of(x, d_x))


@dataclass(eq=False)
class Classifier(Dense):
    """A dense layer whose outputs are logits, and their cross-entropy with the sample's label or with each token's.

    `ignore_index`: the label of tokens that have neither a loss nor a gradient: 0 (PAD), or -100, which is none of the
    classes. A record has the number of classes in its place.
    """

    kind = "classifier"

    loss: str = INTENT
    ignore_index: int | None = None

    def allocate(self, context: Context) -> None:
        super().allocate(context)
        self.rows, size = context.loss_rows[self.loss], max_of(self.output.tokens) * self.output.vectors
        self.logits = context.builder.allocate(f"{self.loss} logits", size)
        if self.ignore_index is not None:
            self.of_pad = context.builder.allocate(f"{self.loss} PAD", max_of(self.output.tokens))
        if self.ignore_index == IGNORED:
            self.labels = context.builder.allocate(f"{self.loss} labels", size)

    def forward(self, context: Context) -> None:
        self.streams = self._copies(context, context.value(self.inputs[0]), "pooled")
        self._multiply(context, self.streams, self.logits, "logits")
        self._emit_loss(context.builder)

    def _emit_loss(self, b: Builder) -> None:
        """Emit the softmax, the loss and the gradient of the logits, which overwrites the logits."""
        logits, flags = rows_of(self.output, self.logits), M.INTENT if self.loss == INTENT else 0
        weight, class_weight, label_weight = WEIGHTS[self.loss == INTENT]
        rows = {"loops": row_loops(self.output), "accumulator_loop": "w", "rows": self.rows}
        rows |= {"count": self.output.features, "vector_loop": "w"}
        exponent = {"function": b.functions.number(EXPONENT), "immediates": (1.0, weight), "flags": flags | M.LOSS}
        if self.ignore_index == IGNORED:
            self._emit_certain_class(b, rows)
        elif self.ignore_index is not None:
            self._emit_certain_pad(b)
        b.vector(M.MAXIMUM, "largest logit", a=logits, depth=("w",), flags=flags, **rows)
        b.vector(M.EXPONENT, "exp(logit), loss", a=logits, r0=logits, depth=("w",), **exponent, **rows)
        weights = {"immediates": (class_weight, label_weight)}
        b.vector(M.LOSS_BACK, "d_logits", a=logits, r0=logits, flags=flags, **weights, **rows)
        if self.ignore_index == IGNORED:
            labels = rows_of(self.output, self.labels)
            b.vector(M.SOFTMAX_BACK, "d_logits by label", a=logits, b=labels, r0=logits, immediates=(-1.0,), **rows)
        elif self.ignore_index is not None:
            self._emit_no_gradient_of_pad(b, logits, rows)

    def _of_tokens(self) -> dict[str, Any]:
        """Return the fields of a row operation on the first lane of each token: 0 is the label of PAD."""
        loops = [Level("w", 1), padded("t", self.output.tokens)]
        return {"loops": loops, "accumulator_loop": "w", "rows": self.rows, "count": 1, "vector_loop": "w"}

    def _emit_certain_pad(self, b: Builder) -> None:
        """Add a large number to the logit of PAD where it is the label: its loss is then log 1 = 0."""
        where, first = self.of_pad.part(t=1, w=1), self.logits.part(t=self.output.vectors, w=1)
        self._emit_no_factor(b)
        b.vector(M.LOSS_BACK, "PAD", r0=where, immediates=(0.0, -CERTAIN), **self._of_tokens())
        b.vector(M.ADD, "logit of PAD", [Level("w", 1), Level("t", self.output.tokens)], first, where, r0=first)

    def _emit_certain_class(self, b: Builder, rows: dict[str, Any]) -> None:
        """Add a large number to the first logit of tokens whose label is no class: their loss is then log 1 = 0."""
        where, first = self.of_pad.part(t=1, w=1), self.logits.part(t=self.output.vectors, w=1)
        labels, one_lane = rows_of(self.output, self.labels), self._of_tokens()
        self._emit_no_factor(b)
        b.vector(M.LOSS_BACK, "labels", r0=labels, immediates=(0.0, 1.0), **rows)  # -1 at the label's lane, if any
        b.vector(M.DOT, "has a label", a=labels, b=labels, depth=("w",), **rows)  # p = 1, or 0
        b.vector(M.LOSS_BACK, "zeros", r0=labels, immediates=(0.0, 0.0), **rows)
        b.vector(M.LOSS_BACK, "one", r0=where, immediates=(-1.0, 0.0), **one_lane)
        b.vector(M.SOFTMAX_BACK, "no label", a=where, b=where, r0=where, immediates=(CERTAIN,), **one_lane)
        b.vector(M.ADD, "first logit", [Level("w", 1), Level("t", self.output.tokens)], first, where, r0=first)

    def _emit_no_factor(self, b: Builder) -> None:
        """Set i to 0, by which LOSS_BACK multiplies its a, 0."""
        of_tokens = self._of_tokens() | {"depth": ("w",)}
        b.vector(M.MAXIMUM, "m = 0", **of_tokens)
        b.vector(M.EXPONENT, "i = 0", function=b.functions.number(EXPONENT), immediates=(0.0, 0.0), **of_tokens)

    def _emit_no_gradient_of_pad(self, b: Builder, logits: At, rows: dict[str, Any]) -> None:
        """Multiply the gradients of a token by 1, or by 0 where the label is PAD: label smoothing has left some."""
        where, of_tokens = self.of_pad.part(t=1, w=1), self._of_tokens()
        b.vector(M.LOSS_BACK, "PAD", r0=where, immediates=(0.0, 1.0), **of_tokens)  # -1 where it is the label
        b.vector(M.DOT, "PAD", a=where, b=where, depth=("w",), **of_tokens)  # p = 1 where it is
        b.vector(M.LOSS_BACK, "ones", r0=where, immediates=(-1.0, 0.0), **of_tokens | {"count": LANES})
        ones = self.of_pad.part(t=1)
        b.vector(M.SOFTMAX_BACK, "d_logits without PAD", a=logits, b=ones, r0=logits, immediates=(1.0,), **rows)

    def backward(self, context: Context, d: At | None) -> None:
        self._add_gradients(context, [context.backward_value(self.inputs[0]), *self.streams[1:]], self.logits)


def no_loss(b: Builder, name: str, is_intent: bool, tokens: Bound, rows: At) -> None:
    """Emit a loss of 0 and label 0 for an output that the model does not have: the machine adds both losses."""
    b.layer, b.node, flags = name, None, M.INTENT if is_intent else 0
    nest = {"loops": [Level("w", 1), padded("t", tokens)], "accumulator_loop": "w", "rows": rows}
    nest |= {"depth": ("w",), "count": 1, "vector_loop": "w"}
    exponent = {"function": b.functions.number(EXPONENT), "immediates": (0.0, 0.0), "flags": flags | M.LOSS}
    b.vector(M.MAXIMUM, "no label", flags=flags, **nest)
    b.vector(M.EXPONENT, "no loss", **exponent, **nest)
