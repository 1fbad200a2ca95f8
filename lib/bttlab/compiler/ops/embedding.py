"""The embedding of tokens: a table in tensor-train-matrix format, or a dense one.

The row of token (i1 i2 i3) is F1[i1] F2[i2] F3[i3] with F1[i1] (n1 x a), F2[i2] (a x n2 x b), F3[i3] (b x n3). It is
computed from the right: V = F2 F3 (a x n2 n3), row = F1 V (n1 x n2 n3). Only the slices of the sample's tokens are
read, and only their gradients are not zero.

Backward: d_V = F1^T d_row, d_F1 = d_row V^T, d_F2 = d_V F3^T, d_F3 = F2^T d_V. Gradients of slices that tokens share
are added.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bttlab.compiler.builder import LANES, ROWS, Builder, padded, vectors_for
from bttlab.compiler.errors import ProgramError, RowsDoNotFit
from bttlab.compiler.instruction import At, Bound, Level, Memory, TokenOffset, at, bound_of_part, max_of
from bttlab.compiler.machine import M, target
from bttlab.compiler.memory.layout import Block, LayoutBuilder, TokenTable
from bttlab.compiler.operation import Context, Operation, Shapes, Values, core_names
from bttlab.compiler.shuffles import identity
from bttlab.util.renamed import renamed

if not TYPE_CHECKING:
    __getattr__ = renamed(
        __name__, {"Table": "DenseEmbedding", "TTMTable": "TTMEmbedding", "TypeTable": "TypeEmbedding"}
    )

F1, F2, F3, F3_BUFFERED = range(4)  # tables of token offsets: of the cores in banks, and of F3 in the operand buffers
GROUP = 8  # tokens of an instruction


@dataclass(eq=False)
class Embedding(Operation):
    """The rows of a table for the sample's tokens.

    `digits`, `slice_vectors`: as for `TokenTable`.
    """

    kind, reads_inputs = "embedding", False

    def parameters(self, shapes: Shapes) -> list[str]:
        return core_names(shapes, self.name) or [f"{self.name}.weight"]

    def allocate(self, context: Context) -> None:
        self.tokens, self.most = context.tokens, max_of(context.tokens)

    @property
    def token_table(self) -> TokenTable:
        return TokenTable(self.digits, self.slice_vectors)

    def add_slices(self, b: Builder, what: str, table: int, slices: At, vectors: int, parameter: Block) -> None:
        """Add the tokens' slices of a gradient to the parameter's; each is written before the next can add to it."""
        where = parameter.gradient().part(token_offset=TokenOffset(table, "t"), x=1)
        loops = [Level("t", self.tokens), Level("x", max(vectors, target().LATENCY), vectors)]
        b.vector(M.ADD, what, loops, slices.part(t=vectors, x=1), where, r0=where, flags=M.CHECK)


@dataclass(eq=False)
class TTMEmbedding(Embedding):
    """A table in tensor-train-matrix format, with three cores."""

    def torch(self, values: Values) -> Any:
        """Return products of slices of the cores."""
        import torch

        cores = [values[name] for name in core_names(values, self.name)]
        rows = cores[0].new_ones(len(values.tokens), 1, 1)
        digits = torch.unravel_index(values.tokens, [core.shape[1] for core in cores])
        for core, digit in zip(cores, digits, strict=True):
            rows = torch.einsum("tnr,rtms->tnms", rows, core[:, digit]).flatten(1, 2)
        return rows[..., 0]

    def allocate(self, context: Context) -> None:
        """Allocate the cores, and vectors of the operand buffers that linear layers may use, too."""
        builder, layout, shapes, name = context.builder, context.layout, context.shapes, self.name
        cores = [shapes[core] for core in core_names(shapes, name)]
        if len(cores) != 3:
            raise ProgramError(f"{name} has {len(cores)} cores: the card takes tables of three")
        (_, rows_1, self.n1, self.a), (_, rows_2, self.n2, self.b), (_, rows_3, self.n3, _) = cores
        self.digits = rows_1, rows_2, rows_3
        super().allocate(context)
        self.a_vectors, self.b_vectors = vectors_for(self.a), vectors_for(self.b)
        self.row_vectors = self.n2 * self.n3 // LANES  # of a token's row, for each of n1
        # A vector has n3 elements for each of `per` values of n2.
        self.per = max(n for n in range(1, LANES // min(self.n3, LANES) + 1) if not self.n2 % n)
        self.width = self.n2 // self.per  # vectors of a token's row, for each of n1, or of V, for each of a
        too_long = self.n1 * self.width > M.SHUFFLE_VECTORS
        if (
            max(self.n1, self.n3) > ROWS
            or self.n2 * self.n3 % LANES
            or max(self.a_vectors, self.b_vectors) > 2
            or too_long
        ):
            raise ProgramError(
                f"the embedding's column modes are {self.n1}, {self.n2}, {self.n3} and its ranks {self.a}, {self.b}: "
                f"the first and last mode go up to {ROWS}, the product of the last two is a multiple of {LANES}, ranks "
                f"go up to {2 * ROWS}"
            )
        # F1 as [i1][a][n1], F2 as [i2][a][n2][b], F3 as [i3][n3][b]; a slice of F1 also has space for [n1][part of a].
        self.slice_1 = max(self.a, self.n1)
        axes = (1, 0, 3, 2)
        self.f1 = layout.place(f"{name}.cores.0", axes, rows=self.a, group_rows=self.slice_1, added=True)
        # Each engine computes V for a part of the first rank, from its own part of F2, block by block.
        self.a_part = -(-self.a // self.a_vectors)
        buffered = self.per * self.b_vectors
        # Partial sums of d_F3 for each place in a vector of d_V, of each part of the first rank.
        self.pieces = max(GROUP // buffered // self.a_vectors, 1)
        while any(count * self.width % self.pieces for *_, count in self._a_parts()):
            self.pieces -= 1
        most = 3 if self.pieces == 1 else 1  # d_F3 has a loop for blocks or for pieces
        self.blocks = max(n for n in range(1, most + 1) if not any(count % n for *_, count in self._a_parts()))
        self.slice_2, self.slice_3 = self.a_part // self.blocks * self.n2 * self.b_vectors, self.n3 * self.b_vectors
        self.f2 = [self._place_f2(layout, first, count) for _, first, count in self._a_parts()]
        self.f3 = layout.place(f"{name}.cores.2", (1, 3, 2, 0), rows=self.n3, added=True)
        fields = {"vectors": buffered * rows_3, "is_persistent": True}
        homes = [Memory.operand_buffer(engine) for engine in (M.ENGINE_0, M.ENGINE_1)]
        # Engines of each part: of V, and of the rows.
        self.v_engines = (M.ENGINE_1, M.ENGINE_0)[-self.a_vectors :]
        self.row_engines = (M.ENGINE_1, M.ENGINE_0)[: self.a_vectors]
        self.buffer_by_b = [builder.allocate("F3", home=homes[engine], **fields) for engine in self.v_engines]
        self.buffer_by_n3 = builder.allocate("F3", home=homes[M.ENGINE_1], **fields)
        # In use only before the first and after the last linear layer: they share vectors with the linear layers.
        # V of several groups of tokens: one is computed while others are read.
        buffer_vectors = GROUP * self.width
        self.buffer_v = [
            [builder.allocate("V", buffer_vectors, home=homes[engine]) for engine in self.row_engines]
            for _ in range(2 * self.per)
        ]
        # For d_V, and for d_F1: engine 1 has less to do where gradients of cores do not follow from each sample.
        engines = (M.ENGINE_0, M.ENGINE_1) if context.sums else (M.ENGINE_0,)
        self.buffers_d = [builder.allocate("d_row", self.most * self.width, home=homes[e]) for e in engines]
        # Both engines read d_V at the same time; engine 1 from a copy, of as many tokens as a bank has space for.
        reached = set(M.reach(M.VECTOR, 3, True).banks) & set(M.reach(M.ENGINE_1, 2, False).banks)
        space = max(M.banks[bank].depth for bank in reached) // (self.a * self.width)
        self.copied_tokens = self.most if self.most <= space else space // GROUP * GROUP
        self.v = [builder.allocate("V", self.most * count * self.width) for *_, count in self._a_parts()]
        self.slice_vectors = (self.slice_1, self.slice_2, self.slice_3, buffered)

    def _place_f2(self, layout: LayoutBuilder, first: int, count: int) -> list[Block]:
        """Place the blocks of a part of F2, one behind the other."""
        rows, blocks = count // self.blocks * self.n2, []
        of_f2 = {"rows": self.a * self.n2, "group_rows": self.slice_2 // self.b_vectors, "added": True}
        for start in range(first * self.n2, (first + count) * self.n2, rows):
            behind = blocks[-1] if blocks else None
            part = start, start + rows
            blocks.append(layout.place(f"{self.name}.cores.1", (1, 0, 2, 3), part=part, behind=behind, **of_f2))
        return blocks

    def _a_parts(self) -> Iterator[tuple[int, int, int]]:
        """Yield (number, first, count) of the parts into which the first rank, a, is divided."""
        for n in range(self.a_vectors):
            yield n, n * self.a_part, min(self.a_part, self.a - n * self.a_part)

    def forward(self, context: Context) -> None:
        b, rows = context.builder, context.output(self.output)
        self._prepare_cores(b)
        in_parts = [b.allocate("V, in parts", self.most * self.a_part * self.width) for _ in self.v]
        of_rows = [b.allocate("rows, in parts", self.most * self.n1 * self.width) for _ in range(2)]
        for group in range(-(-self.most // GROUP)):
            self._group_forward(b, group, in_parts, of_rows, rows)

    def _prepare_cores(self, b: Builder) -> None:
        """Emit F1 permuted to [i1][n1][part of a], and load F3: rows of b (forward), and of n3 (backward).

        In the vectors that V and d_V share, each place has a copy of F3; the other elements of it are 0.
        """
        rows_1, _, rows_3 = self.digits
        self.f1_rows = [b.allocate("F1 by rows", rows_1 * self.slice_1) for _ in self.row_engines]
        for n, first, count in self._a_parts():
            permuted = np.full((self.n1, LANES), -1)
            permuted[:, :count] = np.arange(count)[None, :] * LANES + np.arange(self.n1)[:, None]
            b.shuffle(
                "F1 by rows",
                rows_1,
                permuted,
                self.f1.where().part(first, block=self.slice_1, y=1),
                self.f1_rows[n].part(block=self.slice_1, y=1),
            )
        source = self.f3.where().part(block=self.slice_3, y=1)
        for place in range(self.per):
            by_b = np.full((self.b_vectors, ROWS, LANES), -1)
            lanes = slice(place * self.n3, (place + 1) * self.n3)
            for row in range(self.b):
                by_b[row // ROWS, row % ROWS, lanes] = np.arange(self.n3) * self.b_vectors * LANES + row
            for buffer in self.buffer_by_b:
                b.shuffle(
                    "F3 by b",
                    rows_3,
                    by_b.reshape(-1, LANES),
                    _whole(source, self.slice_3, self.b_vectors),
                    buffered_result=buffer.part(place * self.b_vectors, block=self.slice_vectors[F3_BUFFERED], x=1),
                    row=("y", 0),
                    out=(self.b_vectors, ROWS),
                )
            by_n3 = np.full((self.per, self.n3, self.b_vectors * LANES), -1)
            by_n3[place] = identity(self.slice_3).reshape(self.n3, -1)
            b.shuffle(
                "F3 by n3",
                rows_3,
                by_n3.reshape(-1, LANES),
                _whole(source, self.slice_3, self.per * self.n3),
                buffered_result=self.buffer_by_n3.part(
                    place * self.b_vectors, block=self.slice_vectors[F3_BUFFERED], y=1
                ),
                row=("x", 0),
                out=(self.per * self.n3, self.b_vectors),
            )

    def _group_forward(self, b: Builder, group: int, in_parts: Sequence[At], of_rows: Sequence[At], result: At) -> None:
        """Emit the rows of a group of tokens."""
        tokens, first_token = bound_of_part(self.tokens, GROUP * group, GROUP), GROUP * group
        n, buffer, row = self.n1 * self.width, self.buffer_v[group % len(self.buffer_v)], self.per * self.b_vectors
        for (n_part, _, count), block in itertools.product(self._a_parts(), range(self.blocks)):
            an, in_block = count * self.width, count // self.blocks
            first = first_token * an + block * in_block * self.width
            parts, v = (place.part(first, t=an, a=self.width, w=1) for place in (in_parts[n_part], self.v[n_part]))
            for part in range(row):
                last, vector = part == row - 1, part % self.b_vectors
                token_offset = TokenOffset(F2, "t", group)
                b.expand(
                    self.v_engines[n_part],
                    "V = F2 F3",
                    [Level("t", tokens), Level("a", in_block), Level("w", self.width)],
                    self.buffer_by_b[n_part].part(part, token_offset=TokenOffset(F3_BUFFERED, "t", group)),
                    self.f2[n_part][block].where().part(part, token_offset, a=self.n2 * self.b_vectors, w=row),
                    v if last else parts,
                    buffered_result=buffer[n_part].part(t=self.width, w=1) if last else None,
                    row=("a", block * in_block) if last else None,
                    addend=parts if part else None,
                    count=min(ROWS, self.b - ROWS * vector),
                )
        width, is_packed = self.n1 * self.row_vectors, self.per * self.n3 == LANES
        whole = result if is_packed else of_rows[1]
        rows = [place.part(first_token * n, t=n, m=self.width, w=1) for place in (of_rows[0], whole)]
        for n_part, _, count in self._a_parts():
            b.expand(
                self.row_engines[n_part],
                "row = F1 V",
                [Level("t", tokens), Level("m", self.n1), Level("w", self.width)],
                buffer[n_part].part(t=self.width, w=1),
                self.f1_rows[n_part].part(token_offset=TokenOffset(F1, "t", group), m=1),
                rows[n_part == self.a_vectors - 1],
                addend=rows[0] if n_part else None,
                count=count,
            )
        if not is_packed:
            vector, lane = divmod(np.arange(self.n1 * self.n2 * self.n3), self.per * self.n3)
            b.shuffle(
                "pack the rows",
                tokens,
                _in_lanes(vector * LANES + lane, LANES),
                of_rows[1].part(first_token * n, block=n, y=1),
                result.part(first_token * width, block=width, y=1),
                gate=tokens.clipped(0, 1) if group else None,
            )

    def backward(self, context: Context, d: At) -> None:
        b, width, an = context.builder, self.width, self.a * self.width
        d_v, copied = b.allocate("d_V", self.most * an), b.allocate("d_V, copied", self.copied_tokens * an)
        order = _in_lanes(np.arange(self.n1 * self.n2 * self.n3), self.per * self.n3)
        row = self.n1 * self.row_vectors
        for buffer in self.buffers_d:
            b.shuffle(
                "load d_row",
                self.tokens,
                order,
                _whole(d.part(block=row, y=1), row, self.n1),
                buffered_result=buffer.part(block=width, y=1),
                row=("x", 0),
                out=(self.n1, width),
            )
        loops = [Level("t", self.tokens), Level("a", self.a), Level("w", width)]
        scalars = self.f1.where().part(token_offset=TokenOffset(F1, "t"), a=1)
        places = [place.part(t=an, a=width, w=1) for place in (d_v, copied)]
        d_row, d_row_of_last = (self.buffers_d[n].part(t=width, w=1) for n in (0, -1))
        b.expand(M.ENGINE_0, "d_V = F1^T d_row", loops, d_row, scalars, places[0], count=self.n1)
        row = self.per * self.b_vectors
        steps = -(-target().LATENCY // row)  # enough that the next token reads the sums that this one has written
        for first in range(0, self.most, self.copied_tokens):
            tokens, group = bound_of_part(self.tokens, first, self.copied_tokens), first // GROUP
            b.vector(M.COPY, "d_V", [Level("t", tokens), *loops[1:]], places[0].at_step("t", first), r0=places[1])
            for n, first_row, count in self._a_parts():
                f2, aw = self.f2[n][0], count // self.blocks * width
                where = f2.gradient().part(token_offset=TokenOffset(F2, "t", group), block=f2.vectors, aw=row, b=1)
                aw_level = Level("aw", max(aw, -(-steps // self.blocks)), aw)
                b.expand(
                    M.ENGINE_1,
                    "d_F2 = d_V F3^T",
                    [Level("t", tokens), Level("block", self.blocks), aw_level, Level("b", row)],
                    self.buffer_by_n3.part(token_offset=TokenOffset(F3_BUFFERED, "t", group), b=1),
                    copied.part(first_row * width, t=an, block=aw, aw=1),
                    where,
                    addend=where,
                    count=self.per * self.n3,
                    flags=M.CHECK,
                )
        self._backward_far(b, d_v)
        self._backward_near(b, d_row_of_last)

    def _backward_near(self, b: Builder, d_row: At) -> None:
        """Emit d_F1 = V d_row^T of each token, added to its slice."""
        width, d_f1 = self.width, b.allocate("d_F1 of tokens", self.most * self.a).part(t=self.a, a=1)
        for n, first, count in self._a_parts():
            b.reduce(
                b.engine_of(d_row),
                "d_F1 = V d_row^T",
                [Level("t", self.tokens), Level("w", width + 1), Level("a", max(count, M.SUM_DISTANCE), count)],
                "w",
                d_row,
                self.v[n].part(t=count * width, a=width, w=1),
                d_f1.offset_by(first),
                count=self.n1,
            )
        self.add_slices(b, "d_F1", F1, d_f1, self.a, self.f1)

    def _groups(self, most: int) -> Iterator[tuple[int, Bound]]:
        """Yield the first token and the number of tokens of each group, of at most `most` tokens."""
        size = max(most // GROUP, 1) * GROUP
        for first in range(0, self.most, size):
            yield first, bound_of_part(self.tokens, first, size)

    def _backward_far(self, b: Builder, d_v: At) -> None:
        """Emit d_F3 = F2^T d_V: partial sums by group of tokens, then their sum for each token, added to its slice."""
        an, part = self.a * self.width, self.a_part * self.width
        each, pieces = self.per * self.b_vectors, self.pieces
        places = pieces * self.a_vectors
        parts, d_f3 = (
            b.allocate("d_F3, in parts", self.most * self.n3 * places * each),
            b.allocate("d_F3 of tokens", self.most * self.slice_3),
        )
        parts = parts.part(t=self.n3 * places * each, n=places * each, w=each)
        for first, tokens in self._groups(M.ACCUMULATORS // pieces):
            gate, in_group = Level("gate", tokens.clipped(0, 1) if first else 1), parts.at_step("t", first)
            for (n, _, count), place, vector in itertools.product(
                self._a_parts(), range(self.per), range(self.b_vectors)
            ):
                offset, in_block = place * self.b_vectors + vector, count // self.blocks * self.width
                f2, token_offset = self.f2[n][0], TokenOffset(F2, "t", first // GROUP)
                loops = [gate, Level("block", self.blocks), Level("q", in_block // pieces)]
                loops += [padded("t", tokens, pieces), Level("p", pieces)]
                loops = [loop for loop in loops if loop.bound != 1 or loop.name == "q"]
                names = [loop.name for loop in loops]
                of_d_v = {"t": an, "block": in_block, "q": pieces, "p": 1}
                of_f2 = {"block": f2.vectors, "q": pieces * each, "p": each}
                b.accumulate(
                    M.ENGINE_0,
                    "d_F3 = F2^T d_V, in parts",
                    loops,
                    [name for name in names if name in ("block", "q")],
                    d_v.part(first * an + n * part, **{name: of_d_v.get(name, 0) for name in names}),
                    f2.where().part(offset, token_offset, **{name: of_f2.get(name, 0) for name in names}),
                    Level("n", self.n3),
                    in_group.offset_by(n * pieces * each + offset),
                    count=(place + 1) * self.n3,
                    first_row=place * self.n3,
                )
        sums = padded("w", self.b_vectors, self.n3)
        for first, tokens in self._groups(M.ROW_ACCUMULATORS // (self.n3 * max_of(sums.bound))):
            b.columns(
                "d_F3 of tokens",
                [Level("p", places * self.per), Level("t", tokens), Level("n", self.n3), sums],
                parts.at_step("t", first).part(p=self.b_vectors, t=self.n3 * places * each, n=places * each, w=1),
                r1=d_f3.part(first * self.slice_3, t=self.slice_3, n=self.b_vectors, w=1),
            )
        self.add_slices(b, "d_F3", F3, d_f3, self.slice_3, self.f3)


@dataclass(eq=False)
class DenseEmbedding(Embedding):
    """A dense table: rows of tokens are copied, and their gradients added to those of the table.

    `words`: if token ids are type * words + word, the number of words; 0 if they are words.
    `in_records`: whether the rows of a sample's tokens come in its record, from a frozen table in the host's memory.
    """

    words: int = 0
    in_records: bool = False

    @property
    def rows_by(self) -> int:
        """The table of token offsets that has its rows."""
        return F2 if self.words else F1

    def torch(self, values: Values) -> Any:
        return values[f"{self.name}.weight"][values.tokens % self.words if self.words else values.tokens]

    def allocate(self, context: Context) -> None:
        rows, features = context.shapes[f"{self.name}.weight"]
        self.row_vectors = features // LANES
        super().allocate(context)
        if self.in_records:
            self._check_records(features)
            context.layout.in_records = f"{self.name}.weight"
        else:
            self.table = context.layout.place(f"{self.name}.weight", added=True)
        row_vectors = 0 if self.in_records else self.row_vectors
        if self.words:
            types = next((op for op in context.operations if isinstance(op, TypeEmbedding)), None)
            number, width = (1, 0) if types is None else context.shapes[f"{types.name}.weight"]
            self.digits, self.slice_vectors = (number, self.words, 1), (width // LANES, row_vectors, 0, 0)
        else:
            self.digits, self.slice_vectors = (rows, 1, 1), (row_vectors, 0, 0, 0)

    def emit(self, context: Context, result: At) -> None:
        if self.in_records:
            where = at(Memory.bank(M.IN_BANK), 0, t=self.row_vectors, w=1)
        else:
            where = self.table.where().part(token_offset=TokenOffset(self.rows_by, "t"), w=1)
        loops = [Level("t", self.tokens), Level("w", self.row_vectors)]
        context.builder.vector(M.COPY, "rows", loops, where, r0=result.part(t=self.row_vectors, w=1))

    def _check_records(self, features: int) -> None:
        """Raise RowsDoNotFit if IN_BANK has no space for the rows of the longest sample."""
        space, vectors = M.banks[M.IN_BANK].depth, self.most * self.row_vectors
        if vectors > space:
            widest = LANES * (space // self.most)
            raise RowsDoNotFit(
                f"the rows of {self.name} for {self.most} tokens of {features} features take {vectors} vectors of a "
                f"sample's record, bank {M.IN_BANK} has {space}",
                f"samples of up to {space // self.row_vectors} tokens, or up to {widest} features",
            )

    def backward(self, context: Context, d: At) -> None:
        self.add_slices(context.builder, "d_rows", self.rows_by, d, self.row_vectors, self.table)


@dataclass(eq=False)
class TypeEmbedding(DenseEmbedding):
    """A dense table of types, such as of the first and the second sentence: of token id // words."""

    kind = "token types"

    @property
    def rows_by(self) -> int:
        return F1

    def torch(self, values: Values) -> Any:
        return values[f"{self.name}.weight"][values.tokens // self.words]


def _in_lanes(elements: np.ndarray, lanes: int) -> np.ndarray:
    out = np.full((len(elements) // lanes, LANES), -1)
    out[:, :lanes] = elements.reshape(-1, lanes)
    return out


def _whole(source: At, vectors: int, columns: int) -> At:
    """Return the source of a block with a loop x: its vectors are divided evenly among the steps of x if they can be.

    Otherwise all of them are read while x is 0.
    """
    strides = dict(source.strides)
    if vectors % columns == 0:
        strides["x"] = vectors // columns
    return At(source.memory, source.base, strides)
