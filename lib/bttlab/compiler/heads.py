"""From the last hidden states to the losses and back: the intent from token 0, a slot from each vector.

A head is a TT pooler with tanh, then a dense layer. The weight's rows are buffer, class c in row c mod ROWS, and pooled
tokens stream past: logits come as vectors of classes. A head with many classes has them in two parts, one an engine;
what
both engines read in one cycle, the pooled tokens and the logits' gradients, is there twice.
"""

from dataclasses import dataclass

from bttlab.compiler import banks
from bttlab.compiler.builder import LANES, ROWS, Builder, padded, vectors_for
from bttlab.compiler.functions import EXPONENT, TANH
from bttlab.compiler.instruction import At, Bound, Level, most_of
from bttlab.compiler.layout import Block, Layout
from bttlab.compiler.machine import machine
from bttlab.compiler.operands import moved, part

M = machine()
# Where the weight of the first and of the second part may lie: engines pass it on, and drains bring its gradient.
WEIGHT = ((banks.REST, banks.IN_CORES), (banks.EMBEDDING, banks.REST, banks.OUT_CORES))


@dataclass(frozen=True)
class Part:
    """The classes of a head that one engine has.

    Attributes
    ----------
    block : Block
        Their rows of the weight.
    vectors : int
        Of classes, LANES of them each.
    first : int
        The first of these vectors.
    buffer : At
        The weight in the engine's operand buffer.
    logits : At
        Logits, then their gradients, as vectors of classes.
    stride : int
        From a token's logits to the next one's.
    """

    engine: int
    block: Block
    vectors: int
    first: int
    buffer: At
    logits: At
    stride: int


class Head:
    """One of the two heads.

    Parameters
    ----------
    name : str
        "intent" or "slot".
    classes, vectors : int
        Vectors of a token.
    rows : int
        First statistic of its tokens.
    weight, label_weight, class_weight : tuple
        Immediates: of the softmax in the gradient, of the label's one, and of every class for label smoothing.
    """

    def __init__(self, builder: Builder, layout: Layout, name, classes, vectors, tokens: Bound, rows, weights):
        self.builder, self.layout, self.name = builder, layout, name
        self.classes, self.vectors, self.tokens, self.rows = classes, vectors, tokens, rows
        self.weight, self.label_weight, self.class_weight = weights
        self.class_vectors = vectors_for(classes)
        most = most_of(tokens)
        self.logits = builder.take(f"{name} logits", banks.KEPT, most * self.class_vectors)
        split = self.class_vectors > 2
        first_vectors = -(-self.class_vectors // 2) if split else self.class_vectors
        pieces = [(0 if split else 1, 0, first_vectors)]
        if split:
            pieces.append((1, first_vectors, self.class_vectors - first_vectors))
        self.parts = []
        for engine, first, count in pieces:
            lines = (first * LANES, (first + count) * LANES)
            block = layout.place(f"{name}_head.weight", WEIGHT[engine if split else 0], part=lines)
            buffer = builder.take_buffer(f"weight of {name}_head", engine, count * vectors)
            logits, stride = self.logits, self.class_vectors
            if first:
                logits, stride = builder.take(f"{name} logits", banks.SCORES, most * count), count
            self.parts.append(Part(engine, block, count, first, buffer, logits, stride))
        self.bias = layout.place(f"{name}_head.bias", banks.REST)

    @property
    def _rows(self) -> dict:
        loops = [Level("w", self.class_vectors), padded("t", self.tokens)]
        flags = M.INTENT if self.name == "intent" else 0
        return {
            "loops": loops,
            "accumulator_loop": "w",
            "rows": self.rows,
            "count": self.classes,
            "vector_loop": "w",
            "flags": flags,
        }

    def _rows_of(self, p: Part, c: int) -> int:
        """Return the classes of a part's vector of them."""
        return min(ROWS, self.classes - (p.first + c) * LANES)

    def _matrix(self) -> list[Level]:
        return [Level("w", self.vectors), Level("t", self.tokens)]

    def prepare(self) -> None:
        """The weight into the operand buffers."""
        b = self.builder
        b.layer = f"{self.name}_head"
        for p in self.parts:
            for c in range(p.vectors):
                source = p.block.where()
                source, buffer = part(source, c * ROWS * self.vectors), part(p.buffer, c * self.vectors)
                rows = self._rows_of(p, c)
                moved(b, "load weight", source, buffer, rows, self.vectors)
                if rows < ROWS:
                    moved(b, "no more classes", None, buffer, ROWS - rows, self.vectors, rows)

    def forward(self, y: At, pooled: list[At]) -> None:
        """pooled = tanh(y), once for each part; logits; softmax, loss and the gradient of the logits."""
        b, w = self.builder, self.vectors
        b.layer = f"{self.name}_head"
        tanh = b.functions.number(TANH)
        first, *others = (part(copy, t=w, w=1) for copy in pooled)
        b.vector(M.FUNCTION, "pooled = tanh(y)", self._matrix(), part(y, t=w, w=1), r0=first, function=tanh)
        for copy in others:
            b.vector(M.COPY, "pooled", self._matrix(), first, r0=copy)
        for p, stream in zip(self.parts, pooled, strict=True):
            classes, tokens, depth = Level("c", p.vectors), padded("t", self.tokens), Level("w", w + 1)
            loops = [classes, depth, tokens]
            if self.tokens == 1:
                loops = [depth, padded("c", p.vectors)]
            b.reduce(
                p.engine,
                "logits",
                loops,
                "w",
                part(p.buffer, c=w, w=1),
                part(stream, w=1) if self.tokens == 1 else part(stream, t=w, w=1),
                part(p.logits, c=1) if self.tokens == 1 else part(p.logits, t=p.stride, c=1),
            )
        self._loss()

    def _loss(self) -> None:
        b, rows = self.builder, self._rows
        logits = part(self.logits, t=self.class_vectors, w=1)
        exponent = b.functions.number(EXPONENT)
        for p in self.parts:
            loops = [Level("w", p.vectors), padded("t", self.tokens)]
            more = {"count": self.classes - p.first * LANES, "vector_loop": "w"}
            bias = part(self.bias.where(), p.first, w=1)
            own, whole = part(p.logits, t=p.stride, w=1), part(self.logits, p.first, t=self.class_vectors, w=1)
            b.vector(M.ADD, "logits + b", loops, own, bias, r0=whole, **more)
        b.vector(M.MAXIMUM, "largest logit", a=logits, depth=("w",), **rows)
        more = rows | {"flags": rows["flags"] | M.LOSS}
        weights = {"immediates": (1.0, self.weight)}
        b.vector(
            M.EXPONENT, "exp(logit), loss", a=logits, r0=logits, depth=("w",), function=exponent, **weights, **more
        )
        weights = {"immediates": (self.class_weight, self.label_weight)}
        b.vector(M.LOSS_BACK, "d_logits", a=logits, r0=logits, **weights, **rows)
        for p in self.parts[1:]:
            loops = [Level("w", p.vectors), Level("t", self.tokens)]
            whole = part(self.logits, p.first, t=self.class_vectors, w=1)
            b.vector(M.COPY, "d_logits", loops, whole, r0=part(p.logits, t=p.stride, w=1))

    def backward(self, pooled: list[At], pieces: list[At], d_pooled: At, d_y: At) -> None:
        """Gradients of weight and bias; d_y = d_pooled (1 - pooled^2); `pieces`: each part's share of d_pooled."""
        b, w = self.builder, self.vectors
        b.layer = f"{self.name}_head"
        matrix = {"t": w, "w": 1}
        for p, piece in zip(self.parts, pieces, strict=True):
            result = part(piece, **matrix)
            for c in range(p.vectors):
                b.expand(
                    p.engine,
                    "d_pooled = d_logits weight",
                    self._matrix(),
                    part(p.buffer, c * w, w=1),
                    part(p.logits, c, t=p.stride),
                    result,
                    addend=result if c else None,
                    count=self._rows_of(p, c),
                )
        loops, d = self._matrix(), pieces[0]
        if len(self.parts) == 2:
            d = d_pooled
            a, c = (part(piece, **matrix) for piece in pieces)
            b.vector(M.ADD, "d_pooled", loops, a, c, r0=part(d, **matrix))
        b.vector(M.TANH_BACK, "d_y", loops, part(d, **matrix), part(pooled[0], **matrix), r0=part(d_y, **matrix))
        b.columns(
            "d_b",
            [Level("t", self.tokens), padded("w", self.class_vectors)],
            a=part(self.logits, t=self.class_vectors, w=1),
            r1=self.bias.gradient(w=1),
            check=True,
        )
        for p, stream in zip(self.parts, pooled, strict=True):
            for c in range(p.vectors):
                self._d_weight(p, c, part(stream, **matrix))

    def _d_weight(self, p: Part, c: int, stream: At) -> None:
        """d_weight = d_logits^T pooled, of a vector of classes."""
        b, w, what = self.builder, self.vectors, "d_weight = d_logits^T pooled"
        gradient = part(p.block.gradient(), c * ROWS * w, r=w, w=1)
        rows, loops = Level("r", self._rows_of(p, c)), [Level("t", self.tokens), padded("w", w)]
        scalars = part(p.logits, c, t=p.stride)
        b.accumulate(p.engine, what, loops, ("t",), scalars, stream, rows, gradient, ROWS, check=True)
