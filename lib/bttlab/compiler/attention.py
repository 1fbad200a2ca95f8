"""Multi-head self-attention: context = softmax(Q K^T / sqrt(head size)) V for each head, forward and backward.

Keys are in engine 0's operand buffer, values in engine 1's, token t in row t mod ROWS; ROWS tokens form a block. Scores
are (heads, tokens, blocks) vectors: a vector has the scores of a query with the keys of a block.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from bttlab.compiler.builder import LANES, ROWS, Builder, block_rows, even_parts, gate, padded
from bttlab.compiler.functions import EXPONENT, constant
from bttlab.compiler.instruction import ENGINE_0, ENGINE_1, At, Bound, Level, Register, max_of
from bttlab.compiler.machine import machine
from bttlab.compiler.operands import part

M = machine()


@dataclass(frozen=True)
class Attention:
    """An attention of a model.

    Attributes
    ----------
    heads : int
        Number of heads.
    vectors : int
        Vectors of a token, all heads together.
    keys, values : At
        Places in the operand buffers.
    rows : int
        First of the heads x tokens rows of statistics.
    mask : At, optional
        (tokens, blocks) vectors that are added to each head's scores.
    """

    builder: Builder
    tokens: Register
    heads: int
    vectors: int
    keys: At
    values: At
    rows: int
    mask: At | None = None

    @property
    def most(self) -> int:
        """Tokens of the longest sequence."""
        return max_of(self.tokens)

    @property
    def blocks(self) -> int:
        """Blocks of the longest sequence."""
        return -(-self.most // ROWS)

    @property
    def head_vectors(self) -> int:
        """Vectors of a head of a token."""
        return self.vectors // self.heads

    @property
    def score_vectors(self) -> int:
        """Vectors of all heads' scores."""
        return self.heads * self.most * self.blocks

    @property
    def _scores(self) -> dict[str, int]:
        return {"h": self.most * self.blocks, "t": self.blocks}

    def _loops(self, block: int, *loops: Level) -> list[Level]:
        """Return the loops of an instruction for a block of keys; it has no step if the sample has no such tokens."""
        return [Level("g", gate(self.tokens, block)), *loops] if block else list(loops)

    def _inner(self, what, engine, stream: At, buffer: At, result: At, addend: At | None = None) -> None:
        """Emit result[h, t] = stream[t, head h] . buffer[head h]^T, block by block of the keys."""
        hw = self.head_vectors
        for block in range(self.blocks):
            self.builder.reduce(
                engine,
                what,
                self._loops(block, Level("h", self.heads), Level("w", hw + 1), padded("t", self.tokens)),
                "w",
                part(buffer, block * self.vectors, h=hw, w=1),
                part(stream, t=self.vectors, h=hw, w=1),
                part(result, block, **self._scores),
                addend=addend and part(addend, block, t=self.blocks),
                count=block_rows(self.tokens, block),
            )

    def _outer(self, what, engine, scalars: At, buffer: At, result: At) -> None:
        """Emit result[t, head h] = scalars[h, t] . buffer[head h]."""
        hw = self.head_vectors
        for block in range(self.blocks):
            where = part(result, t=self.vectors, h=hw, w=1)
            self.builder.expand(
                engine,
                what,
                self._loops(block, Level("h", self.heads), Level("t", self.tokens), Level("w", hw)),
                part(buffer, block * self.vectors, h=hw, w=1),
                part(scalars, block, **self._scores),
                where,
                addend=where if block else None,
                count=block_rows(self.tokens, block),
            )

    def _transposed(self, what, engine, scalars: At, stream: At, result: At) -> None:
        """Emit result[s, head h] = sum over t of scalars[h, t][s] stream[t, head h]."""
        hw = self.head_vectors
        for block in range(self.blocks):
            rows = Level("s", block_rows(self.tokens, block))
            loops = [Level("t", self.tokens), padded("h", self.heads, hw), Level("w", hw)]
            self.builder.accumulate(
                engine,
                what,
                self._loops(block, *loops),
                ("t",),
                part(scalars, block, **self._scores),
                part(stream, t=self.vectors, h=hw, w=1),
                rows,
                part(result, block * ROWS * self.vectors, s=self.vectors, w=1),
            )

    def _rows(self) -> Iterator[tuple[int, dict]]:
        """Yield the vector unit's loops over the scores, for as many heads at a time as it has accumulators for.

        Yields
        ------
        int
            First vector of the heads' scores.
        dict
            Arguments of `Builder.vector`: the outer loop counts vectors of a row, the inner ones count rows.
        """
        vectors = Register(ROWS - 1, 4, 1, self.blocks)
        for first, heads in even_parts(self.heads, self.most, M.ROW_ACCUMULATORS):
            loops = [Level("w", vectors), Level("h", heads), padded("t", self.tokens, heads)]
            rows = {"loops": loops, "accumulator_loop": "w", "rows": self.rows + first * self.most}
            yield first * self._scores["h"], rows

    def forward(self, q: At, p: At, context: At) -> None:
        """Emit p = softmax(q K^T / sqrt(head size)) and context = p V."""
        b, scale = self.builder, 1 / math.sqrt(self.head_vectors * LANES)
        mask = {"count": self.tokens, "vector_loop": "w"}
        self._inner("scores = q k^T", ENGINE_0, q, self.keys, p, self.mask)
        number = b.functions.number(EXPONENT)
        more = {"function": number, "immediates": (scale, 1.0)}
        for first, rows in self._rows():
            scores = part(p, first, w=1, **self._scores)
            b.vector(M.MAXIMUM, "largest score", a=scores, depth=("w",), **rows, **mask)
            b.vector(M.EXPONENT, "exp(score)", a=scores, r0=scores, depth=("w",), **rows, **mask, **more)
            b.vector(M.SCALE, "p", a=scores, r0=scores, **rows)
        self.recompute(p, context)

    def recompute(self, p: At, context: At) -> None:
        """Emit context = p V, in the forward pass, or in the backward pass to recompute it."""
        self._outer("context = p v", ENGINE_1, p, self.values, context)

    def backward(self, d_context: At, p: At, d_p: At, q: At, d_q: At, d_k: At, d_v: At) -> None:
        """Emit d_q, d_k and d_v from d_context; d_p is overwritten with the gradient of the scores."""
        b, scale = self.builder, 1 / math.sqrt(self.head_vectors * LANES)
        self._inner("d_p = d_context v^T", ENGINE_1, d_context, self.values, d_p)
        self._transposed("d_v = p^T d_context", ENGINE_0, p, d_context, d_v)
        for first, rows in self._rows():
            slope, share = (part(one, first, w=1, **self._scores) for one in (d_p, p))
            b.vector(M.DOT, "sum of p d_p", a=share, b=slope, depth=("w",), **rows)
            b.vector(M.SOFTMAX_BACK, "d_scores", a=share, b=slope, r0=slope, immediates=(scale,), **rows)
        self._outer("d_q = d_scores k", ENGINE_0, d_p, self.keys, d_q)
        self._transposed("d_k = d_scores^T q", ENGINE_1, d_p, q, d_k)


MASKED = -1e9  # added to a score, it makes the exponential negligible


def causal_mask(b: Builder, tokens: Bound) -> At:
    """Emit the causal mask, which is added to scores: 0 up to the query's token, MASKED after it; return its place."""
    most, blocks = max_of(tokens), -(-max_of(tokens) // ROWS)
    mask = b.allocate("causal mask", most * blocks, is_persistent=True)
    all_of, hidden = b.allocate("all masked", 1, is_persistent=True), b.functions.number(constant(MASKED))
    shown, one = b.functions.number(constant(-MASKED)), [Level("one", 1)]
    b.layer = "causal mask"
    b.vector(M.FUNCTION, "all keys", one, r0=all_of, function=hidden)
    for block in range(blocks):
        for t in range(most):
            result, count = part(mask, t * blocks + block), min(max(t + 1 - block * ROWS, 0), LANES)
            if count:
                b.vector(M.FUNCTION, "keys up to the query", one, r0=result, function=shown, count=count)
            else:
                b.vector(M.COPY, "no keys", one, r0=result)
    whole = part(mask, w=1)
    b.vector(M.ADD, "hidden keys", [Level("w", most * blocks)], whole, part(all_of), r0=whole)
    return mask


def block_sizes(tokens: Bound):
    """Return a function from a block's number to its number of tokens."""
    return lambda block: block_rows(tokens, block)
