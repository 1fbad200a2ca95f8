"""Dense layers y = x W^T + b, and the cross-entropy of the last ones.

The rows of W are loaded into an operand buffer, output c in row c mod ROWS, and the tokens are streamed: outputs are
written as vectors. A layer with many outputs divides them between the two engines. Both then read x and the gradient of
y, so each of these has two copies in different banks.
"""

from dataclasses import dataclass

from bttlab.compiler.builder import LANES, ROWS, Builder, padded, vectors_for
from bttlab.compiler.functions import EXPONENT
from bttlab.compiler.graph import INTENT, Operation
from bttlab.compiler.instruction import ENGINE_1, At, Level, max_of
from bttlab.compiler.layout import Block, Layout
from bttlab.compiler.machine import machine
from bttlab.compiler.operands import load_rows, part

M = machine()
# Scalars of the sample's record that weight the terms of a loss's gradient: the softmax, all classes (label smoothing),
# and the label.
INTENT_LABEL, INTENT_CLASS, SLOT_WEIGHT, SLOT_LABEL, SLOT_CLASS = (("scalar", number) for number in range(4, 9))
WEIGHTS = {True: (1.0, INTENT_CLASS, INTENT_LABEL), False: (SLOT_WEIGHT, SLOT_CLASS, SLOT_LABEL)}


@dataclass(frozen=True)
class Part:
    """The outputs of a layer that one engine computes.

    Attributes
    ----------
    block : Block
        Rows of the weight for these outputs.
    vectors, first : int
        Number of vectors of outputs, and the first of them.
    buffer : At
        Place of the weight in the engine's operand buffer.
    """

    engine: int
    block: Block
    vectors: int
    first: int
    buffer: At


class Dense:
    """A dense layer.

    Parameters
    ----------
    operation : Operation
        Of kind "dense" or "classifier".
    """

    def __init__(self, builder: Builder, layout: Layout, operation: Operation, is_shared: bool = False):
        self.builder, self.layout, self.name = builder, layout, operation.name
        x, self.tokens = operation.inputs[0], operation.inputs[0].tokens
        self.vectors, self.outputs = x.vectors, operation.output.features
        self.row = vectors_for(self.outputs)
        weight, bias, self.first = (operation.options[name] for name in ("weight", "bias", "first"))
        split = self.row > 2 and not is_shared
        sizes = [-(-self.row // 2), self.row // 2] if split else [self.row]
        self.parts = []
        for number, count in enumerate(sizes):
            engine, first = (number if split else ENGINE_1), number * sizes[0]
            rows = (self.first + first * LANES, self.first + min((first + count) * LANES, self.outputs))
            block = layout.place(weight, part=rows, added=is_shared)
            buffer = builder.allocate_operand_buffer(f"weight of {self.name}", engine, count * x.vectors)
            self.parts.append(Part(engine, block, count, first, buffer))
        self.bias = layout.place(bias) if bias else None

    def _rows_of(self, p: Part, c: int) -> int:
        """Return the number of outputs in vector `c` of a part."""
        return min(ROWS, self.outputs - (p.first + c) * LANES)

    def _matrix(self) -> list[Level]:
        return [Level("w", self.vectors), Level("t", self.tokens)]

    def prepare(self) -> None:
        """Load the weight into the operand buffers."""
        b = self.builder
        b.layer = self.name
        for p in self.parts:
            for c in range(p.vectors):
                source, buffer = part(p.block.where(), c * ROWS * self.vectors), part(p.buffer, c * self.vectors)
                rows = self._rows_of(p, c)
                load_rows(b, "load weight", source, buffer, rows, self.vectors)
                if rows < ROWS:
                    load_rows(b, "no more outputs", None, buffer, ROWS - rows, self.vectors, rows)

    def copies(self, x: At, what: str = "x") -> list[At]:
        """Return a copy of x for each part; the first part reads x itself."""
        streams, matrix = [x], {"t": self.vectors, "w": 1}
        for _ in self.parts[1:]:
            copy = self.builder.allocate(f"{what}, twice", max_of(self.tokens) * self.vectors, rows=self.tokens)
            self.builder.vector(M.COPY, what, self._matrix(), part(x, **matrix), r0=part(copy, **matrix))
            streams.append(copy)
        return streams

    def forward(self, streams: list[At], y: At, what: str = "y") -> None:
        """Emit y = x W^T + b."""
        b, w = self.builder, self.vectors
        raw = [(y, self.row)]
        for p in self.parts[1:]:
            own = b.allocate(f"{what} of {self.name}", max_of(self.tokens) * p.vectors, rows=self.tokens)
            raw.append((own, p.vectors))
        for p, stream, (result, stride) in zip(self.parts, streams, raw, strict=True):
            depth, one = Level("w", w + 1), self.tokens == 1
            loops = [depth, padded("c", p.vectors)] if one else [Level("c", p.vectors), depth, padded("t", self.tokens)]
            strides = ({"w": 1}, {"c": 1}) if one else ({"t": w, "w": 1}, {"t": stride, "c": 1})
            buffer = part(p.buffer, c=w, w=1)
            b.reduce(p.engine, what, loops, "w", buffer, part(stream, **strides[0]), part(result, **strides[1]))
        for p, (own, stride) in zip(self.parts, raw, strict=True):
            if own is y and self.bias is None:
                continue
            loops = [Level("w", p.vectors), padded("t", self.tokens)]
            more = {"count": self.outputs - p.first * LANES, "vector_loop": "w"}
            bias = self.bias and part(self.bias.where(), self.first // LANES + p.first, w=1)
            own, whole = part(own, t=stride, w=1), part(y, p.first, t=self.row, w=1)
            b.vector(M.ADD if bias else M.COPY, f"{what} + b", loops, own, bias, r0=whole, **more)

    def backward(self, streams: list[At], d_y: At, d_x: At, addend: At | None) -> None:
        """Emit d_x = addend + d_y W and the gradients of weight and bias."""
        b, w = self.builder, self.vectors
        b.layer = self.name
        matrix, most, loops = {"t": w, "w": 1}, max_of(self.tokens), self._matrix()
        scalars = [(d_y, self.row)]
        for p in self.parts[1:]:
            copy = b.allocate("d_y, twice", most * p.vectors, rows=self.tokens)
            whole, nest = part(d_y, p.first, t=self.row, w=1), [Level("w", p.vectors), Level("t", self.tokens)]
            b.vector(M.COPY, "d_y", nest, whole, r0=part(copy, t=p.vectors, w=1))
            scalars.append((copy, p.vectors))
        pieces = (
            [b.allocate("share of d_x", most * w, rows=self.tokens) for _ in self.parts]
            if len(self.parts) > 1
            else [d_x]
        )
        for p, piece, (given, stride) in zip(self.parts, pieces, scalars, strict=True):
            result, before = part(piece, **matrix), addend and part(addend, **matrix)
            for c in range(p.vectors):
                buffer, more = part(p.buffer, c * w, w=1), {"count": self._rows_of(p, c)}
                before = result if c else before if p is self.parts[0] else None
                b.expand(
                    p.engine, "d_x = d_y W", loops, buffer, part(given, c, t=stride), result, addend=before, **more
                )
        if len(pieces) == 2:
            a, c = (part(piece, **matrix) for piece in pieces)
            b.vector(M.ADD, "d_x", loops, a, c, r0=part(d_x, **matrix))
        if self.bias is not None:
            nest, whole = [Level("t", self.tokens), padded("w", self.row)], part(d_y, t=self.row, w=1)
            b.columns("d_b", nest, a=whole, r1=part(self.bias.gradient(), self.first // LANES, w=1), check=True)
        for p, stream, (given, stride) in zip(self.parts, streams, scalars, strict=True):
            for c in range(p.vectors):
                gradient = part(p.block.gradient(), c * ROWS * w, r=w, w=1)
                rows, nest = Level("r", self._rows_of(p, c)), [Level("t", self.tokens), padded("w", w)]
                given_c, x, what = part(given, c, t=stride), part(stream, **matrix), "d_W = d_y^T x"
                b.accumulate(p.engine, what, nest, ("t",), given_c, x, rows, gradient, ROWS, check=True)


class Classifier(Dense):
    """A dense layer whose outputs are logits, and their cross-entropy with the sample's label or with each token's.

    Parameters
    ----------
    rows : int
        First row of statistics of its tokens.
    """

    def __init__(self, builder: Builder, layout: Layout, operation: Operation, rows: int, is_shared: bool = False):
        super().__init__(builder, layout, operation, is_shared)
        self.is_intent, self.rows = operation.options["loss"] == INTENT, rows
        self.logits = builder.allocate(f"{operation.options['loss']} logits", max_of(self.tokens) * self.row)

    def loss(self) -> None:
        """Emit the softmax, the loss and the gradient of the logits, which overwrites the logits."""
        b, logits = self.builder, part(self.logits, t=self.row, w=1)
        flags = M.INTENT if self.is_intent else 0
        weight, class_weight, label_weight = WEIGHTS[self.is_intent]
        rows = {
            "loops": [Level("w", self.row), padded("t", self.tokens)],
            "accumulator_loop": "w",
            "rows": self.rows,
            "count": self.outputs,
            "vector_loop": "w",
        }
        exponent = {"function": b.functions.number(EXPONENT), "immediates": (1.0, weight), "flags": flags | M.LOSS}
        b.vector(M.MAXIMUM, "largest logit", a=logits, depth=("w",), flags=flags, **rows)
        b.vector(M.EXPONENT, "exp(logit), loss", a=logits, r0=logits, depth=("w",), **exponent, **rows)
        weights = {"immediates": (class_weight, label_weight)}
        b.vector(M.LOSS_BACK, "d_logits", a=logits, r0=logits, flags=flags, **weights, **rows)


def no_loss(b: Builder, name: str, is_intent: bool, tokens, rows: int) -> None:
    """Emit a loss of 0 and label 0 for an output that the model does not have: the machine adds both losses."""
    b.layer, flags = name, M.INTENT if is_intent else 0
    more = {"loops": [Level("w", 1), padded("t", tokens)], "accumulator_loop": "w", "rows": rows}
    more |= {"depth": ("w",), "count": 1, "vector_loop": "w"}
    exponent = {"function": b.functions.number(EXPONENT), "immediates": (0.0, 0.0), "flags": flags | M.LOSS}
    b.vector(M.MAXIMUM, "no label", flags=flags, **more)
    b.vector(M.EXPONENT, "no loss", **exponent, **more)
