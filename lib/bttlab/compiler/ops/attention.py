"""Multi-head self-attention: context = softmax(Q K^T / sqrt(head size)) V for each head, forward and backward.

Keys are in engine 0's operand buffer, values in engine 1's, token t in row t mod ROWS; ROWS tokens form a block. Scores
are (heads, tokens, blocks) vectors: a vector has the scores of a query with the keys of a block.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import Self

from bttlab.compiler.buffers import STATISTICS
from bttlab.compiler.builder import LANES, ROWS, Builder, block_rows, even_parts, gate, padded
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.functions import EXPONENT
from bttlab.compiler.instruction import At, Level, Memory, Register, max_of
from bttlab.compiler.machine import M
from bttlab.compiler.operation import IF_SPACE, Context, Matrix, Operation, Values
from bttlab.compiler.ops.tt_linear import TTLinear


def usual_scale(size: int) -> float:
    """Return the number by which attention multiplies q k^T, for heads of this size."""
    return 1 / math.sqrt(size)


@dataclass(eq=False)
class KeyBuffers:
    """The operand buffers' vectors for keys and values, which all attentions of a model use in turn."""

    keys: At
    values: At
    user: "Attention | None" = None  # the attention whose keys and values are there


@dataclass(eq=False)
class Attention(Operation):
    """softmax(scale (q k^T + mask)) v for each head.

    A fourth input, of `ScoreBias`, has what is added to q k^T in place of a mask.
    `causal`: whether the mask hides the tokens after the query's own.
    `scale`: by default 1 / sqrt(head size); not negative.
    `mask`: constant of shape (tokens, tokens), or (heads x tokens, tokens); none if empty.
    """

    kind, keep = "attention", IF_SPACE

    heads: int
    causal: bool = False
    scale: float | None = None
    mask: str = ""

    def torch(self, values: Values, q: Any, k: Any, v: Any, bias: Any = None) -> Any:
        q, k, v = (x.view(len(x), self.heads, -1).transpose(0, 1) for x in (q, k, v))
        scores, n = q @ k.transpose(1, 2), q.shape[1]
        if bias is not None:
            scores = scores + bias.view(n, self.heads, -1).transpose(0, 1)[..., :n]
        if self.mask:
            most = max_of(self.output.tokens)
            scores = scores + values[self.mask].view(-1, most, most)[:, :n, :n]
        return ((scores * self.factor_of(q.shape[-1])).softmax(-1) @ v).transpose(0, 1).flatten(1)

    @classmethod
    def prepare(cls, operations: Sequence[Self], context: Context) -> None:
        """Allocate what all attentions share, and let layers write keys and values that only they read there."""
        b = context.builder
        for op in operations:
            op.tokens, op.vectors = op.output.tokens, op.output.vectors
        size = max(op.vectors * op.blocks for op in operations)
        places = (
            b.allocate(name, size, home=Memory.operand_buffer(e), is_persistent=True)
            for e, name in enumerate(("keys", "values"))
        )
        buffers = KeyBuffers(*places)
        rows = max(op.heads * max_of(padded("t", op.tokens, op.heads).bound) for op in operations)  # idle ones, too
        rows = b.allocate("softmax", rows, home=STATISTICS)
        for op in operations:
            if op.output.features % (op.heads * LANES):
                rule = f"heads of a multiple of {LANES} features"
                size = f"{op.output.features / op.heads:g}"
                raise ProgramError(f"{op.name} has heads of {size} features: the card takes {rule}")
            if op.factor < 0:
                raise ProgramError(f"{op.name} has the scale {op.factor:g}: it must not be below 0, negate the queries")
            op.buffers, op.rows, op.addend, op.addend_heads = buffers, rows, None, 0
            if op.mask:
                block = context.layout.place(op.mask)
                op.addend, op.addend_heads = block.where(), block.vectors > op.most * op.blocks
            for matrix, buffer in zip(op.inputs[1:3], (buffers.keys, buffers.values), strict=True):
                maker = context.maker.get(matrix)
                is_alone = len(context.readers(matrix)) == op.inputs.count(matrix) == 1
                if isinstance(maker, TTLinear) and is_alone:
                    maker.operand_buffer = buffer
        for op in operations:
            op.probabilities = b.allocate(f"attention of {op.name}", op.score_vectors)

    @property
    def bias(self) -> Matrix | None:
        """What is added to q k^T: scores of a token's query in a row, head by head."""
        return self.inputs[3] if len(self.inputs) > 3 else None

    @property
    def most(self) -> int:
        return max_of(self.tokens)

    @property
    def factor(self) -> float:
        return self.factor_of(self.head_vectors * LANES)

    def factor_of(self, size: int) -> float:
        return usual_scale(size) if self.scale is None else self.scale

    @property
    def blocks(self) -> int:
        return -(-self.most // ROWS)

    @property
    def head_vectors(self) -> int:
        return self.vectors // self.heads

    @property
    def score_vectors(self) -> int:
        return self.heads * self.most * self.blocks

    @property
    def _parts(self) -> list[tuple[int, int]]:
        """First and number of as many heads at a time as the vector unit has accumulators for their scores."""
        return even_parts(self.heads, self.most, M.ROW_ACCUMULATORS)

    @property
    def _scores(self) -> dict[str, int]:
        if self.bias is not None:  # the order of its rows, so that its gradient is that of the scores
            return {"h": self.blocks, "t": self.heads * self.blocks}
        return {"h": self.most * self.blocks, "t": self.blocks}

    def _loops(self, block: int, *loops: Level) -> list[Level]:
        """Return the loops of an instruction for a block of keys; it has no step if the sample has no such tokens."""
        return [Level("g", gate(self.tokens, block)), *loops] if block else list(loops)

    def _inner(
        self, b: Builder, what, engine, stream: At, buffer: At, result: At, addend: At | None = None, **strides: int
    ) -> None:
        """Emit result[h, t] = stream[t, head h] . buffer[head h]^T, block by block of the keys.

        `strides`: of the addend.
        """
        hw = self.head_vectors
        for (first, heads), block in itertools.product(self._parts, range(self.blocks)):
            loops = self._loops(block, Level("h", heads), Level("w", hw + 1), padded("t", self.tokens))
            rows = buffer.part(block * self.vectors + first * hw, h=hw, w=1)
            head = stream.part(first * hw, t=self.vectors, h=hw, w=1)
            scores = result.part(block + first * self._scores["h"], **self._scores)
            added = addend and addend.part(block + first * strides["h"], **strides)
            b.reduce(engine, what, loops, "w", rows, head, scores, added, block_rows(self.tokens, block))

    def _outer(self, b: Builder, what, engine, scalars: At, buffer: At, result: At) -> None:
        """Emit result[t, head h] = scalars[h, t] . buffer[head h]."""
        hw = self.head_vectors
        for (first, heads), block in itertools.product(self._parts, range(self.blocks)):
            where = result.part(first * hw, t=self.vectors, h=hw, w=1)
            loops = self._loops(block, Level("h", heads), Level("t", self.tokens), Level("w", hw))
            rows = buffer.part(block * self.vectors + first * hw, h=hw, w=1)
            scores = scalars.part(block + first * self._scores["h"], **self._scores)
            before, count = where if block else None, block_rows(self.tokens, block)
            b.expand(engine, what, loops, rows, scores, where, addend=before, count=count)

    def _transposed(self, b: Builder, what, engine, scalars: At, stream: At, result: At) -> None:
        """Emit result[s, head h] = sum over t of scalars[h, t][s] stream[t, head h]."""
        hw = self.head_vectors
        for block in range(self.blocks):
            loops = self._loops(block, Level("t", self.tokens), padded("h", self.heads, hw), Level("w", hw))
            scores, head = scalars.part(block, **self._scores), stream.part(t=self.vectors, h=hw, w=1)
            rows, sums = Level("s", block_rows(self.tokens, block)), result.part(block * ROWS * self.vectors)
            b.accumulate(engine, what, loops, ("t",), scores, head, rows, sums.part(s=self.vectors, w=1))

    def _rows(self) -> Iterator[tuple[int, dict]]:
        """Yield the first vector of some heads' scores, and arguments of `Builder.vector`.

        The outer loop counts vectors of a row, the inner ones count rows.
        """
        vectors, tokens = self.blocks, self.tokens
        if isinstance(tokens, Register):
            vectors = Register(tokens.offset + ROWS - 1, 4, 1, self.blocks)
        for first, heads in self._parts:
            loops = [Level("w", vectors), Level("h", heads), padded("t", tokens, heads)]
            rows = {"loops": loops, "accumulator_loop": "w", "rows": self.rows.offset_by(first * self.most)}
            yield first * self._scores["h"], rows

    def forward(self, context: Context) -> None:
        """Emit p = softmax(q k^T / sqrt(head size)) and the output p v."""
        b, scale, p = context.builder, self.factor, self.probabilities
        self._load(context, context.value)
        q, result = context.value(self.inputs[0]), context.output(self.output)
        mask = {"count": self.tokens, "vector_loop": "w"}
        addend, strides = self.addend, {"t": self.blocks, "h": self.addend_heads * self.most * self.blocks}
        if self.bias is not None:
            addend, strides = context.value(self.bias), self._scores
        self._inner(b, "scores = q k^T", M.ENGINE_0, q, self.buffers.keys, p, addend, **strides)
        exponent = {"function": b.functions.number(EXPONENT), "immediates": (scale, 1.0)}
        for first, rows in self._rows():
            scores = p.part(first, w=1, **self._scores)
            b.vector(M.MAXIMUM, "largest score", a=scores, depth=("w",), **rows, **mask)
            b.vector(M.EXPONENT, "exp(score)", a=scores, r0=scores, depth=("w",), **rows, **mask, **exponent)
            b.vector(M.SCALE, "p", a=scores, r0=scores, **rows)
        self._outer(b, "context = p v", M.ENGINE_1, p, self.buffers.values, result)

    def recompute(self, context: Context, place: At) -> None:
        self._ensure_loaded(context)
        self._outer(context.builder, "context = p v", M.ENGINE_1, self.probabilities, self.buffers.values, place)

    def backward(self, context: Context, d: At) -> None:
        b, scale, p = context.builder, self.factor, self.probabilities
        self._ensure_loaded(context)
        q = context.backward_value(self.inputs[0])
        d_p = b.allocate("d_scores", self.score_vectors)
        d_q, d_k, d_v = gradients = [context.new(matrix, f"gradient of {matrix.name}") for matrix in self.inputs[:3]]
        self._inner(b, "d_p = d_context v^T", M.ENGINE_1, d, self.buffers.values, d_p)
        self._transposed(b, "d_v = p^T d_context", M.ENGINE_0, p, d, d_v)
        for first, rows in self._rows():
            slope, share = (scores.part(first, w=1, **self._scores) for scores in (d_p, p))
            b.vector(M.DOT, "sum of p d_p", a=share, b=slope, depth=("w",), **rows)
            b.vector(M.SOFTMAX_BACK, "d_scores", a=share, b=slope, r0=slope, immediates=(scale,), **rows)
        self._outer(b, "d_q = d_scores k", M.ENGINE_0, d_p, self.buffers.keys, d_q)
        self._transposed(b, "d_k = d_scores^T q", M.ENGINE_1, d_p, q, d_k)
        for matrix, gradient in zip(self.inputs[:3], gradients, strict=True):
            context.pass_gradient(matrix, gradient)
        if self.bias is not None and context.is_needed(self.bias):
            self._pass_gradient_of_bias(context, d_p)

    def _pass_gradient_of_bias(self, context: Context, d_p: At) -> None:
        """Add the gradient of the scores to that of the bias: of the vectors that have keys of the sample."""
        if context.gradient(self.bias) is None:
            context.pass_gradient(self.bias, d_p)
            return

        def produce(addend: At | None, result: At) -> None:
            for first, rows in self._rows():
                a, b, r0 = (place.part(first, w=1, **self._scores) for place in (d_p, addend, result))
                context.builder.vector(M.ADD, "sum of gradients", rows["loops"], a, b, r0=r0)

        context.add_to_gradient(self.bias, produce)

    def reads_in_backward(self, is_late: bool) -> tuple[Matrix, ...]:
        return self.inputs[:3]

    def _load(self, context: Context, value: Callable[[Matrix], At]) -> None:
        """Load the keys and values that no layer writes into the operand buffers directly."""
        for matrix, buffer in zip(self.inputs[1:3], (self.buffers.keys, self.buffers.values), strict=True):
            if not _is_loaded_by_maker(context, matrix):
                source = value(matrix)
                for block in range(self.blocks):
                    first, rows = source.part(ROWS * block * self.vectors), block_rows(matrix.tokens, block)
                    place = buffer.part(block * self.vectors)
                    context.builder.load_rows("load keys, values", first, place, rows, self.vectors)
        self.buffers.user = self

    def _ensure_loaded(self, context: Context) -> None:
        """Reload or recompute the keys and values if the operand buffers have those of another attention."""
        if self.buffers.user is not self:
            for matrix in self.inputs[1:3]:
                if _is_loaded_by_maker(context, matrix):
                    context.recompute(matrix)
            self._load(context, context.backward_value)


def _is_loaded_by_maker(context: Context, matrix: Matrix) -> bool:
    return matrix in context.maker and not context.maker[matrix].is_in_bank
