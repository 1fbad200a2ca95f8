"""The embedding: words in tensor-train-matrix format, positions, LayerNorm.

The row of token (i1 i2 i3) is F1[i1] F2[i2] F3[i3] with F1[i1] (n1 x a), F2[i2] (a x n2 x b), F3[i3] (b x n3). From
the far end: V = F2
F3 (a x n2 n3), row = F1 V (n1 x n2 n3). Only the slices that a token touches are read; only their gradients are not
zero.
The way back: d_V = F1^T d_row, d_F1 = d_row V^T, d_F2 = d_V F3^T, d_F3 = F2^T d_V; slices that tokens share add up.
"""

import numpy as np

from bttlab.card.machine import machine
from bttlab.card.program import banks
from bttlab.card.program.builder import LANES, ROWS, Builder, bound_of_part, padded, words_for
from bttlab.card.program.errors import ProgramError
from bttlab.card.program.instruction import ENGINE_0, ENGINE_1, At, Loop, Register, Slice, at, most_of
from bttlab.card.program.layout import Layout
from bttlab.card.program.moving import identity, part

M = machine()
F1, F2, F3, F3_HELD = range(4)  # slice tables
GROUP = 8  # tokens that an engine works on at once


class Embedding:
    """The word embedding of a model.

    Parameters
    ----------
    builder : Builder
    layout : Layout
    shapes : dict
        Of the parameters.
    tokens : Register
    """

    def __init__(self, builder: Builder, layout: Layout, shapes, tokens: Register):
        self.builder, self.layout, self.tokens = builder, layout, tokens
        cores = [shapes[f"embedding.word.cores.{k}"] for k in range(3)]
        (_, self.rows_1, self.n1, self.a), (_, self.rows_2, self.n2, self.b), (_, self.rows_3, self.n3, _) = cores
        self.a_words, self.b_words = words_for(self.a), words_for(self.b)
        self.row_words = self.n2 * self.n3 // LANES  # of a token's row, for each of n1
        too_long = max(self.n1, min(self.a, ROWS)) * self.n2 > M.SHUFFLE_WORDS
        if max(self.n1, self.n3) > ROWS or self.n2 * self.n3 % LANES or max(self.a_words, self.b_words) > 2 or too_long:
            raise ProgramError(
                f"the embedding's column modes are {self.n1}, {self.n2}, {self.n3} and its ranks {self.a}, "
                f"{self.b}: the "
                f"first and last mode go up to {ROWS}, the last two multiply to whole words of {LANES}, ranks go "
                f"up to {2 * ROWS}"
            )
        name = "embedding.word.cores"
        # F1 as [i1][a][n1], F2 as [i2][a][n2][b], F3 as [i3][n3][b]; a slice of F1 also has room for [n1][a].
        self.slice_1 = max(self.a, self.n1 * self.a_words)
        self.f1 = layout.place(f"{name}.0", banks.REST, (1, 0, 3, 2), rows=self.a, group_rows=self.slice_1)
        self.f2 = layout.place(f"{name}.1", banks.EMBEDDING, (1, 0, 2, 3), rows=self.a * self.n2)
        self.f3 = layout.place(f"{name}.2", (banks.EMBEDDING, banks.REST), (1, 3, 2, 0), rows=self.n3)
        self.slice_2, self.slice_3 = self.a * self.n2 * self.b_words, self.n3 * self.b_words
        most = most_of(tokens)
        self.held_f3 = [builder.hold("F3", e, 4 * self.rows_3) for e in (ENGINE_0, ENGINE_1)]
        self._most = most
        # Only needed before the first and after the last linear layer: where merged halves lie in between.
        held_words = GROUP * self.n2  # a group of tokens is made while another is in use
        self.held_v = [[builder.hold_over("V", ENGINE_1, held_words) for _ in range(self.a_words)] for _ in range(2)]
        self.held_d = [
            builder.hold_over("d_row", e, most * n) for e, n in ((ENGINE_0, self.n2), (ENGINE_1, self.row_words))
        ]
        # Not needed while encoders work: where these keep what they need for the way back.
        self.f1_rows = builder.take_over("F1 by rows", banks.SCORES, self.rows_1 * self.slice_1)
        self.loose = builder.take_over("V, loose", banks.NORMALIZED, most * self.a * self.n2)
        self.loose_rows = builder.take_over("rows, loose", banks.WORK[1], most * self.n1 * self.n2)
        # Both engines read d_V at a time; of as many tokens as there is room for.
        room = builder.banks[banks.KEPT].depth // (self.n2 * self.a)
        self.some = most if most <= room else room // GROUP * GROUP
        self.copy = builder.take_over("d_V, loose", banks.KEPT, self.n2 * max(self.some * self.a, most * self.n1))
        self.parts = builder.take_over("d_F3, in parts", banks.WORK[1], most * self.n3 * GROUP)
        self.d_f3 = builder.take_over("d_F3 of tokens", banks.WORK[2], most * self.slice_3)
        self.slice_words = (self.slice_1, self.slice_2, self.slice_3, 4)
        self.slice_rows = (self.rows_1, self.rows_2, self.rows_3, self.rows_3)

    def keep(self) -> None:
        """Find room for V, which is kept for the way back; when all parameters have theirs."""
        self.v = self.builder.take("V", (banks.EMBEDDING, banks.KEPT), self._most * self.a * self.row_words)

    @property
    def slice_span(self) -> tuple[int, ...]:
        """The most that a slice of each table adds to an address."""
        return tuple(w * (n - 1) for w, n in zip(self.slice_words, self.slice_rows, strict=True))

    def slices(self, token_ids: np.ndarray) -> np.ndarray:
        """Return the offsets of tokens' slices, int64 of shape (4, tokens)."""
        i1, rest = np.divmod(np.asarray(token_ids, np.int64), self.rows_2 * self.rows_3)
        i2, i3 = np.divmod(rest, self.rows_3)
        return np.stack([i * w for i, w in zip((i1, i2, i3, i3), self.slice_words, strict=True)])

    def _packing(self, rows: int) -> np.ndarray:
        """Rows of n2 words of n3 elements to rows of whole words."""
        element = np.arange(rows * self.n2 * self.n3)
        word, lane = divmod(element, self.n3)
        return (word * LANES + lane).reshape(-1, LANES)

    def _unpacking(self, rows: int) -> np.ndarray:
        out = np.full((rows * self.n2, LANES), -1)
        out[:, : self.n3] = np.arange(rows * self.n2 * self.n3).reshape(-1, self.n3)
        return out

    def _a_blocks(self):
        """Yield (number, first, rows) of the blocks of ROWS of the first rank."""
        for block in range(self.a_words):
            yield block, block * ROWS, min(ROWS, self.a - block * ROWS)

    def prepare(self) -> None:
        """F1 by rows, and F3 in the held memories: rows of b for the way forward, rows of n3 for the way back."""
        b = self.builder
        b.layer = "embedding"
        turned = np.full((self.n1, self.a_words * LANES), -1)
        turned[:, : self.a] = np.arange(self.a)[None, :] * LANES + np.arange(self.n1)[:, None]
        b.shuffle(
            "F1 by rows",
            self.rows_1,
            turned.reshape(-1, LANES),
            part(self.f1.where(), block=self.slice_1, y=1),
            part(self.f1_rows, block=self.slice_1, y=1),
        )
        by_b = np.full((self.b_words, ROWS, LANES), -1)
        for row in range(self.b):
            by_b[row // ROWS, row % ROWS, : self.n3] = np.arange(self.n3) * self.b_words * LANES + row
        source = part(self.f3.where(), block=self.slice_3, y=1)
        b.shuffle(
            "F3 by b",
            self.rows_3,
            by_b.reshape(-1, LANES),
            _whole(source, self.slice_3, self.b_words),
            also=part(self.held_f3[ENGINE_0], block=4, x=1),
            row=("y", 0),
            out=(self.b_words, ROWS),
        )
        b.shuffle(
            "F3 by n3",
            self.rows_3,
            identity(self.slice_3),
            part(self.f3.where(), block=self.slice_3, x=self.b_words, y=1),
            also=part(self.held_f3[ENGINE_1], 2, block=4, y=1),
            row=("x", 0),
            out=(self.n3, self.b_words),
        )

    def _group(self, group: int) -> Register:
        """Return how many tokens of a group there are."""
        return self.tokens._replace(offset=-GROUP * group, low=0, high=GROUP)

    def forward(self, rows: At) -> None:
        """rows (tokens, features) of the words' table."""
        b = self.builder
        b.layer = "embedding"
        an, width = self.a * self.n2, self.row_words
        for group in range(-(-most_of(self.tokens) // GROUP)):
            self._group_forward(group, rows)
        for _, first, count in self._a_blocks():  # for the way back
            b.shuffle(
                "pack V",
                self.tokens,
                self._packing(count),
                part(self.loose, first * self.n2, block=an, x=self.n2, y=1),
                part(self.v, first * width, block=self.a * width, x=width, y=1),
                out=(count, width),
            )

    def _group_forward(self, group: int, rows: At) -> None:
        b, tokens, an, n = self.builder, self._group(group), self.a * self.n2, self.n1 * self.n2
        held = self.held_v[group % 2]
        for block, first, count in self._a_blocks():
            loose = part(self.loose, GROUP * group * an + first * self.n2, t=an, a=self.n2, n=1)
            for word in range(self.b_words):
                last = word == self.b_words - 1
                b.expand(
                    ENGINE_0,
                    "V = F2 F3",
                    [Loop("t", tokens), Loop("a", count), Loop("n", self.n2)],
                    part(self.held_f3[ENGINE_0], word, slice=Slice(F3_HELD, "t", group)),
                    part(
                        self.f2.where(),
                        first * self.n2 * self.b_words + word,
                        slice=Slice(F2, "t", group),
                        a=self.n2 * self.b_words,
                        n=self.b_words,
                    ),
                    loose,
                    also=part(held[block], t=self.n2, n=1) if last else None,
                    row=("a", 0) if last else None,
                    addend=loose if word else None,
                    count=min(ROWS, self.b - ROWS * word),
                )
        loose, whole = (part(x, GROUP * group * n, t=n, m=self.n2, n=1) for x in (self.loose_rows, self.copy))
        for block, _, count in self._a_blocks():
            b.expand(
                ENGINE_1,
                "row = F1 V",
                [Loop("t", tokens), Loop("m", self.n1), Loop("n", self.n2)],
                part(held[block], t=self.n2, n=1),
                part(self.f1_rows, block, slice=Slice(F1, "t", group), m=self.a_words),
                whole if block == self.a_words - 1 else loose,
                addend=loose if block else None,
                count=count,
            )
        width = self.n1 * self.row_words
        b.shuffle(
            "pack the rows",
            tokens,
            self._packing(self.n1),
            part(self.copy, GROUP * group * n, block=n, y=1),
            part(rows, GROUP * group * width, block=width, y=1),
            gate=tokens._replace(high=1) if group else None,
        )

    def backward(self, d_rows: At) -> None:
        """Gradients of the cores from d_rows (tokens, features)."""
        b, width, an = self.builder, self.row_words, self.a * self.n2
        b.layer = "embedding"
        for engine, order in ((ENGINE_0, self._unpacking(self.n1)), (ENGINE_1, identity(self.n1 * width))):
            words = len(order) // self.n1
            b.shuffle(
                "hold d_row",
                self.tokens,
                order,
                _whole(part(d_rows, block=self.n1 * width, y=1), self.n1 * width, self.n1),
                also=part(self.held_d[engine], block=words, y=1),
                row=("x", 0),
                out=(self.n1, words),
            )
        steps = -(-M.LATENCY // (width + 1))  # of a token, so many that the next one's sums read what this one's wrote
        gradient = at(f"bank {self.f1.bank + banks.GRADIENT}", self.f1.base)
        where = part(gradient, slice=Slice(F1, "t"), a=1)
        b.reduce(
            ENGINE_1,
            "d_F1 = V d_row^T",
            [Loop("t", self.tokens), Loop("w", width + 1), Loop("a", max(self.a, steps), self.a)],
            "w",
            part(self.held_d[ENGINE_1], t=width, w=1),
            part(self.v, t=self.a * width, a=width, w=1),
            where,
            addend=where,
            count=self.n1,
            flags=M.CHECK,
        )
        loose, copy = (part(x, t=an, a=self.n2, n=1) for x in (self.loose, self.copy))
        loops = [Loop("t", self.tokens), Loop("a", self.a), Loop("n", self.n2)]
        b.expand(
            ENGINE_0,
            "d_V = F1^T d_row",
            loops,
            part(self.held_d[ENGINE_0], t=self.n2, n=1),
            part(self.f1.where(), slice=Slice(F1, "t"), a=1),
            loose,
            count=self.n1,
        )
        gradient = at(f"bank {self.f2.bank + banks.GRADIENT}", self.f2.base)
        steps = -(-M.LATENCY // self.b_words)
        for first in range(0, self._most, self.some):
            some, group = bound_of_part(self.tokens, first, self.some), first // GROUP
            where = part(gradient, slice=Slice(F2, "t", group), an=self.b_words, w=1)
            b.vector(M.COPY, "d_V", [Loop("t", some), *loops[1:]], loose.moved("t", first), r0=copy)
            b.expand(
                ENGINE_1,
                "d_F2 = d_V F3^T",
                [Loop("t", some), Loop("an", max(an, steps), an), Loop("w", self.b_words)],
                part(self.held_f3[ENGINE_1], 2, slice=Slice(F3_HELD, "t", group), w=1),
                part(self.copy, t=an, an=1),
                where,
                addend=where,
                count=self.n3,
                flags=M.CHECK,
            )
        self._backward_far(an)

    def _backward_far(self, an: int) -> None:
        """d_F3 = F2^T d_V: partial sums of groups of tokens, added up for each token, then to its slice."""
        b = self.builder
        pieces = GROUP // self.b_words  # partial sums of a word
        while an % pieces:
            pieces -= 1
        each = pieces * self.b_words
        for group in range(-(-most_of(self.tokens) // GROUP)):
            tokens = self._group(group)
            b.accumulate(
                ENGINE_0,
                "d_F3 = F2^T d_V, in parts",
                [Loop("q", an // pieces), padded("t", tokens, each), Loop("p", pieces), Loop("w", self.b_words)],
                ("q",),
                part(self.loose, GROUP * group * an, t=an, q=pieces, p=1),
                part(self.f2.where(), slice=Slice(F2, "t", group), q=each, p=self.b_words, w=1),
                Loop("n", self.n3),
                part(self.parts, GROUP * group * self.n3 * each, t=self.n3 * each, n=each, w=1),
            )
            b.vector(
                M.COLUMNS,
                "d_F3 of tokens",
                [Loop("p", pieces), Loop("t", tokens), Loop("n", self.n3), padded("w", self.b_words, self.n3)],
                part(self.parts, GROUP * group * self.n3 * each, p=self.b_words, t=self.n3 * each, n=each, w=1),
                r1=part(self.d_f3, GROUP * group * self.slice_3, t=self.slice_3, n=self.b_words, w=1),
                depth=("p",),
                slot_loop="p",
            )
        gradient = at(f"bank {self.f3.bank + banks.GRADIENT}", self.f3.base)
        where = part(gradient, slice=Slice(F3, "t"), x=1)
        b.vector(
            M.ADD,
            "d_F3",
            [Loop("t", self.tokens), Loop("x", max(self.slice_3, M.LATENCY), self.slice_3)],
            part(self.d_f3, t=self.slice_3, x=1),
            where,
            r0=where,
            flags=M.CHECK,
        )


def _whole(source: At, words: int, columns: int) -> At:
    """The source of a block whose words in all come while x is 0, or divided among the x evenly."""
    strides = dict(source.strides)
    if words % columns == 0:
        strides["x"] = words // columns
    return At(source.memory, source.base, strides)
