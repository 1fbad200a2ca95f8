"""The matrices of the graph that have the elements of a traced tensor: rows, columns and parts of layers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, count
from typing import Any

import torch
from torch import Tensor, nn

from bttlab.compiler.graph import Graph
from bttlab.compiler.instruction import max_of, min_of
from bttlab.compiler.machine import M
from bttlab.compiler.operation import Matrix, SourceLine
from bttlab.compiler.ops.dense import Dense
from bttlab.compiler.trace.places import Places
from bttlab.compiler.trace.values import Elements, Refusal, Rows, columns_in, covers, in_order, rows_in

LANES, MOST_COPIES = M.LANES, 8  # each copy of a column that is no whole vector takes a pass


class Matrices(Places):
    """Records what a tensor's elements take, once each.

    `divides_layers`: whether columns of a dense layer are a layer of their own; else they are moved, as those of other
    matrices.
    """

    def __init__(self, module: nn.Module, graph: Graph, divides_layers: bool):
        super().__init__(module)
        self.graph, self.divides_layers = graph, divides_layers
        self._parts: dict[tuple, Matrix] = {}
        self._is_later = False  # what an earlier line computes is recorded now

    @contextmanager
    def at_line(self, line: SourceLine | None) -> Iterator[None]:
        """Record operations that an earlier line of the module computes."""
        before = self.graph.line, self._is_later
        self.graph.line, self._is_later = line or before[0], True
        try:
            yield
        finally:
            self.graph.line, self._is_later = before

    def unique(self, name: str) -> str:
        """Return a name that no operation has."""
        names = {op.name for op in self.graph.operations}
        return next(new for new in chain([name], (f"{name}.{n}" for n in count(1))) if new not in names)

    def operand(self, x: Elements) -> tuple[Matrix, Tensor]:
        """Return a matrix of the graph with the elements of a tensor, and the index for a result of its shape."""
        rows = rows_in(x.index, x.matrix.features)
        if rows is not None:
            return self._rows(x.matrix, rows), torch.arange(x.index.numel()).view(x.index.shape)
        if covers(x.index, max_of(x.matrix.tokens) * x.matrix.features):
            return x.matrix, x.index
        return self.columns(x)

    def rows(self, x: Elements) -> Matrix:
        """Return the matrix whose rows are those of a tensor, token by token."""
        matrix, index = self.operand(x)
        if not in_order(index):
            matrix, index = self.columns(Elements(matrix, index))
        if not in_order(index) or index.shape[-1] != matrix.features:
            near = "axes (batch, tokens, features), tokens in the order of the sample"
            raise Refusal(f"elements of {x.matrix.name} in this order", near)
        return matrix

    def heads(self, x: Elements, what: str) -> tuple[Matrix, Tensor, int]:
        """Return the matrix whose rows consist of heads, the last axis of a tensor, and the tensor's index in it.

        The third value is the number of heads. A tensor whose last axis has all features of a token has one.
        """
        matrix, index = self.operand(x)
        size = index.shape[-1]

        def is_of_heads() -> bool:
            first = index[..., :1]
            return not bool((first % size).any()) and torch.equal(index, first + torch.arange(size))

        if not is_of_heads():
            matrix, index = self.columns(Elements(matrix, index))
        if matrix.features % size or not is_of_heads():
            raise Refusal(
                f"{what} over elements of {x.matrix.name} in this order", "the last axis, that of the features"
            )
        if matrix.features > size and size % LANES:
            raise Refusal(f"{what} over {size} features of a token", f"heads of a multiple of {LANES} features")
        return matrix, index, matrix.features // size

    def columns(self, x: Elements) -> tuple[Matrix, Tensor]:
        """Return the matrix of the columns that a tensor holds, in its order, and the index of the tensor there."""
        matrix, index = self.part_with(x)
        found = columns_in(index, matrix.features, max_of(matrix.tokens))
        if found is None:
            raise Refusal(f"these elements of {x.matrix.name}", "the same features of all tokens")
        return self._columns((matrix,), found[0]), found[1]

    def part_with(self, x: Elements) -> tuple[Matrix, Tensor]:
        """Return the columns of a dense layer that a tensor holds, if they are one range, or the matrix itself."""
        matrix, features = x.matrix, x.matrix.features
        columns = (x.index % features).unique()
        first, count = int(columns[0]), len(columns)
        is_range = int(columns[-1]) - first + 1 == count < features
        if not is_range or not self._is_divisible(matrix):
            return matrix, x.index
        return self._part(matrix, first, count), x.index // features * count + x.index % features - first

    def _columns(self, matrices: Sequence[Matrix], columns: Tensor) -> Matrix:
        key, name = tuple(columns.tolist()), self.name("columns")
        if len(matrices) == 1 and key == tuple(range(matrices[0].features)):
            return matrices[0]
        matrix = self._once((*matrices, key), lambda: self.graph.columns(matrices, key, self.unique(name)))
        if (copies := self.maker(matrix).copies) > MOST_COPIES:
            near = f"up to {MOST_COPIES}, or heads of a multiple of {LANES} features"
            raise Refusal(f"{copies} moves of a column", near)
        return matrix

    def _is_divisible(self, matrix: Matrix) -> bool:
        return self.divides_layers and type(self.maker(matrix)) is Dense

    def maker(self, matrix: Matrix) -> Any:
        """Return the operation that computes a matrix; None for a range of rows."""
        return next((op for op in self.graph.operations if op.output is matrix), None)

    def _rows(self, matrix: Matrix, rows: Rows) -> Matrix:
        """Return rows and columns of a matrix."""
        if rows.columns < matrix.features:
            matrix = self._part(matrix, rows.column, rows.columns)
        most, least = max_of(matrix.tokens), min_of(matrix.tokens)
        left = most - rows.count
        if not left:
            return matrix
        if rows.count == 1 and rows.first < least:
            return self.graph.rows(matrix, rows.first, 1)
        if left <= least:
            return self.graph.rows(matrix, rows.first, matrix.tokens - left)
        if (rows.first, rows.count) == (most - 1, 1) and least:
            return self._last(matrix)
        what = f"rows {rows.first} to {rows.first + rows.count - 1} of the tokens"
        raise Refusal(what, "x[:, 0], x[:, -1], x[:, 1:] or x[:, :-1]")

    def _part(self, matrix: Matrix, first: int, count: int) -> Matrix:
        """Return a range of columns; for those of a dense layer, a layer of its own."""
        if not self._is_divisible(matrix):
            return self._columns((matrix,), torch.arange(first, first + count))
        maker = self.maker(matrix)
        layer = (maker.weight, maker.bias, maker.first + first, count, maker.transposed)
        name = f"{maker.name}.{first // count}"
        with self.at_line(matrix.line):
            return self._once(
                (matrix, first, count), lambda: self.graph.dense(maker.inputs[0], self.unique(name), *layer)
            )

    def _last(self, matrix: Matrix) -> Matrix:
        """Return the last token's row; of a dense layer, the layer of its input's last token, as for logits."""
        maker = self.maker(matrix)
        if type(maker) is not Dense:
            name = self.name("last token")
            return self._once((matrix, -1, 1), lambda: self.graph.pooled(matrix, self.unique(name), True))
        x, layer = self._last(maker.inputs[0]), (maker.weight, maker.bias, maker.first, matrix.features)
        name = self.unique(maker.name)
        with self.at_line(matrix.line):
            return self._once((matrix, -1, 1), lambda: self.graph.dense(x, name, *layer, maker.transposed))

    @property
    def divided(self) -> set[Matrix]:
        """The matrices of which parts are computed by layers of their own."""
        return {matrix for matrix, *part in self._parts if all(isinstance(number, int) for number in part)}

    def _once(self, key: tuple, record: Callable[[], Matrix]) -> Matrix:
        """Return a part of a matrix; record it when it is first read."""
        if key not in self._parts:
            self._parts[key] = record()
        return self._parts[key]

    def like(self, result: Tensor, matrix: Matrix) -> Elements:
        """Return the elements of a new matrix, row by row in a result's shape."""
        return Elements(matrix, torch.arange(result.numel()).view(result.shape))
