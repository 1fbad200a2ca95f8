"""A learned bias of attention scores: rows of a table by a constant index, such as the distance of two tokens.

The bias of head h, query t and key s is the table's element of row index[t, s] and column h. Choices, constants of
zeros and ones (times a factor), say which row each pair has. Forward, the bias is a sum over the rows; backward, the
gradient of a row is the sum of the scores' gradients for its pairs: both are products with the choices, which are in an
operand buffer, that of row r in row r mod ROWS.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bttlab.compiler.builder import ROWS, Builder, gate, padded, row_passes, vectors_for
from bttlab.compiler.errors import DoesNotFit
from bttlab.compiler.instruction import At, Level, Memory, max_of
from bttlab.compiler.machine import M
from bttlab.compiler.operation import NEVER, Context, Operation, Shapes, Values

ENGINE = M.ENGINE_1


@dataclass(eq=False)
class ScoreBias(Operation):
    """Rows of a table by a constant index; a row of the output has the scores of a token's query: keys of each head.

    The keys of a head fill whole vectors.
    `table`: parameter of shape (rows, heads), or (heads, rows) if `transposed`.
    `choices`: constants of `choices_of`.
    `mask`: constant of the output's shape that is added; none if empty.
    """

    kind, has_prefix, keep, reads_inputs, keeps_zeros = "bias of scores", False, NEVER, False, True

    table: str
    choices: tuple[str, ...]
    heads: int
    transposed: bool = False
    mask: str = ""

    def torch(self, values: Values) -> Any:
        table, tokens = values[self.table], len(values.tokens)
        table = table if self.transposed else table.T
        keys, most = self.output.features // self.heads, max_of(self.output.tokens)
        parts = zip(table.split(ROWS, 1), (values[name] for name in self.choices), strict=True)
        bias = sum(rows @ choice for rows, choice in parts).view(self.heads, most, keys).transpose(0, 1).flatten(1)
        return (bias + values[self.mask] if self.mask else bias)[:tokens]

    def parameters(self, shapes: Shapes) -> list[str]:
        return [self.table]

    def allocate(self, context: Context) -> None:
        self.most, self.blocks = max_of(self.output.tokens), self.output.vectors // self.heads
        axes = (0, 1) if self.transposed else (1, 0)
        self.block = context.layout.place(self.table, axes, added=False)
        self.passes = row_passes(self.block.columns)
        vectors = len(self.passes) * self.most * self.blocks
        if vectors > M.OPERAND_BUFFER_DEPTH:
            what = f"the bias of scores of {self.table} has {self.block.columns} rows for {self.most} tokens"
            raise DoesNotFit(what, f"up to {most_rows(self.most)} rows, or shorter samples")
        self.sources = [context.layout.place(choice).where() for choice in self.choices]
        self.addend = context.layout.place(self.mask).where() if self.mask else None
        home = Memory.operand_buffer(ENGINE)
        self.forward_rows, self.backward_rows = (
            context.builder.allocate(f"choice of {self.name}", vectors, home=home) for _ in range(2)
        )

    def _load(self, b: Builder, buffer: At) -> None:
        """Load the choice of the sample's tokens, all rows of the table."""
        size = self.most * self.blocks
        for n, rows in self.passes:
            loops = [Level("r", rows), Level("t", self.output.tokens), Level("w", self.blocks)]
            source = self.sources[n].part(r=size, t=self.blocks, w=1)
            result = {"buffered_result": buffer.part(n * size, t=self.blocks, w=1), "row": ("r", 0)}
            b.expand(ENGINE, "load choice", loops, None, None, addend=source, count=0, **result)

    def emit(self, context: Context, result: At) -> None:
        """Emit bias[t, h] = mask[t, h] + the sum over the rows of table[row, h] choice[row, t]."""
        b, size, row = context.builder, self.most * self.blocks, len(self.passes)
        self._load(b, self.forward_rows)
        matrix = self.output
        strides = {"t": matrix.vectors, "h": self.blocks, "w": 1}
        place, before = result.part(**strides), self.addend and self.addend.part(**strides)
        for n, rows in self.passes:
            loops = [Level("t", matrix.tokens), Level("h", self.heads), Level("w", self.blocks)]
            choice, scalars = self.forward_rows.part(n * size, t=self.blocks, w=1), self.block.where().part(n, h=row)
            b.expand(ENGINE, "bias of scores", loops, choice, scalars, place, addend=before, count=rows)
            before = place

    def backward(self, context: Context, d: At) -> None:
        """Emit d_table[row, h] = the sum over t of choice[row, t] . d[t, h], block by block of the keys."""
        b, size, row, tokens = context.builder, self.most * self.blocks, len(self.passes), self.output.tokens
        self._load(b, self.backward_rows)
        sums = b.allocate("d_table", self.heads * row)
        for n, rows in self.passes:
            for block in range(self.blocks):
                loops = [Level("t", tokens + 1), padded("h", self.heads)]
                if block:
                    loops.insert(0, Level("g", gate(tokens, block)))
                choice = self.backward_rows.part(n * size + block, t=self.blocks)
                scores, result = d.part(block, t=self.output.vectors, h=self.blocks), sums.part(n, h=row)
                before = result if block else None
                b.reduce(ENGINE, "d_table", loops, "t", choice, scores, result, before, count=rows)
        gradient = self.block.gradient(w=1)
        b.vector(M.COPY, "d_table", [Level("w", self.heads * row)], sums.part(w=1), r0=gradient, flags=M.CHECK)


def most_rows(tokens: int) -> int:
    """Return how many rows a table may have for samples of up to this many tokens."""
    return ROWS * (M.OPERAND_BUFFER_DEPTH // (tokens * vectors_for(tokens)))


def choices_of(index: np.ndarray, rows: int, factor: float, keys: int) -> list[np.ndarray]:
    """Return the choices of a bias, for each ROWS rows of the table: float32 of shape (rows, tokens x keys).

    Parameters
    ----------
    index
        Row of the table for each query and key, of shape (tokens, tokens).
    rows
        Rows of the table.
    factor
        What the rows are multiplied by.
    keys
        Keys with those that fill whole vectors, which have no row.
    """
    choice = np.zeros((rows, len(index), keys), np.float32)
    queries, others = np.indices(index.shape)
    choice[index, queries, others] = factor
    return [choice[ROWS * n : ROWS * n + count].reshape(count, -1) for n, count in row_passes(rows)]
