"""The graph of a model: matrices of (tokens, features), and the operations that compute them.

A graph comes from a configuration (`graph_of_config`) or from a PyTorch module (`bttlab.compiler.trace`). Parameters
have the names that they have in the module. `lowering` emits the operations' instructions.
"""

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from itertools import chain, count

import numpy as np

from bttlab.compiler.builder import vectors_for
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.instruction import Bound, Register, max_of
from bttlab.compiler.machine import M
from bttlab.compiler.operation import INTENT, SLOTS, Matrix, Operation, Shapes, SourceLine, core_names
from bttlab.compiler.ops.attention import Attention
from bttlab.compiler.ops.columns import GatherColumns, PrependRows
from bttlab.compiler.ops.dense import Classifier, Dense
from bttlab.compiler.ops.elementwise import (
    Activate,
    Add,
    FactorsOperand,
    Multiply,
    NumberOperand,
    ScalarOperand,
    TokenRowsOperand,
)
from bttlab.compiler.ops.embedding import DenseEmbedding, TTMEmbedding, TypeEmbedding
from bttlab.compiler.ops.norm import HeadNorm, Norm
from bttlab.compiler.ops.score_bias import ScoreBias, choices_of
from bttlab.compiler.ops.transfers import Input, Output
from bttlab.compiler.ops.tt_linear import TTLinear
from bttlab.model.config import ModelConfig

# A constant that the card loads is below 2^63 (STATE_LIMIT of hls_src/processor/vector.h).
HIDES = -(2.0**60)  # added to a score below 2^59, it makes the exponential negligible
# Of the scores by which the last token is chosen: products of activations below 2^54 are nothing beside them.
SCALE_OF_LAST, FALL = 2.0**-48, 200.0


class Graph:
    """A model's operations, in topological order.

    `sequence_length`: tokens of the longest sample.
    `tokens`: number of tokens of a sample, if it is the same for all.
    """

    def __init__(self, shapes: Shapes, sequence_length: int, tokens: int | None = None):
        self.shapes, self.sequence_length = dict(shapes), sequence_length
        self.operations: list[Operation] = []
        self.constants: dict[str, np.ndarray] = {}  # placed as parameters are, and never changed
        self.folded: dict[str, np.ndarray] = {}  # frozen parameters of which a constant is a function: their values
        self.frozen: set[str] = set()  # parameters that are not trained
        self.copies: dict[str, str] = {}  # a parameter's second use has a copy: from the copy's name to its own
        self.rows_in_records: bool | None = (
            None  # of the frozen table of tokens; None: if the banks have no space for it
        )
        self.line: SourceLine | None = None  # of the operations that are appended
        self.unseen: list[str] = []  # operations that reached no output in the check of the trace
        self.tokens = Register(0, 0, 1, sequence_length) if tokens is None else tokens

    def append(self, operation: Operation) -> Matrix:
        self.operations.append(operation)
        operation.output.line = self.line
        return operation.output

    def scalar(self, name: str, element: int = 0, function: str = "") -> ScalarOperand:
        """Return an element of a parameter, or an activation function of it, as the operand of a sum or product."""
        units = np.repeat(np.array([[0.0], [1.0]], np.float32), M.LANES, 1)
        return ScalarOperand(name, element, units=self.constant(units, "zeros and ones"), function=function)

    def embedding(self, name: str, words: int = 0, is_type: bool = False) -> Matrix:
        """Append the embedding of the sample's tokens: a table in TTM format, or a dense one.

        `words`: if token ids are type * words + word, the number of words; the table is dense then.
        `is_type`: whether it is the table of the types.
        """
        cores = core_names(self.shapes, name)
        if cores:
            features = math.prod(self.shapes[core][2] for core in cores)
            return self.append(TTMEmbedding(name, (), Matrix(name, self.tokens, features)))
        output = Matrix(name, self.tokens, self.shapes[f"{name}.weight"][1])
        return self.append((TypeEmbedding if is_type else DenseEmbedding)(name, (), output, words))

    @property
    def frozen_table(self) -> DenseEmbedding | None:
        """The table of tokens if it is dense, frozen and of no other layer: its rows can come in samples' records."""
        for op in self.operations:
            if type(op) is DenseEmbedding and (name := f"{op.name}.weight") in self.frozen:
                users = [user for user in self.operations if name in user.parameters(self.shapes)]
                return op if users == [op] else None
        return None

    def with_rows_in_records(self) -> "Graph":
        """Return the graph with the rows of `frozen_table` in the samples' records."""
        moved, table = copy(self), self.frozen_table
        moved.operations = [replace(op, in_records=True) if op is table else op for op in self.operations]
        return moved

    def with_numbers_in_rows(self) -> "Graph":
        """Return the graph with a constant of the layout in place of each number that multiplies a matrix.

        The product is the same. A number takes entries of the functions' tables; a constant takes a vector.
        """
        moved = copy(self)
        moved.constants, moved.operations = dict(self.constants), []
        for op in self.operations:
            if isinstance(op, Multiply) and isinstance(op.operand, NumberOperand):
                row = np.full((1, M.LANES), op.operand.number, np.float32)
                op = replace(op, operand=FactorsOperand(moved.constant(row, f"factor {op.operand.number:g}")))
            moved.operations.append(op)
        return moved

    def same(self, kind: type[Operation], x: Matrix, name: str, *options, others: Sequence[Matrix] = ()) -> Matrix:
        """Append an operation whose output has the shape of x, its first input.

        `options`: fields of its class.
        """
        return self.append(kind(name, (x, *others), Matrix(name, x.tokens, x.features), *options))

    def add(self, a: Matrix, b: Matrix, name: str = "add") -> Matrix:
        return self.same(Add, a, name, others=(b,))

    def input(self, name: str, features: int) -> Matrix:
        """Append an input that comes from HBM: its gradient goes there."""
        return self.append(Input(name, (), Matrix(name, self.tokens, features)))

    def output(self, x: Matrix, name: str) -> None:
        """Append an output that goes to HBM: its gradient comes from there."""
        self.append(Output(name, (x,), Matrix(name, x.tokens, x.features)))

    def norm(
        self,
        x: Matrix,
        name: str,
        weight: str,
        bias: str = "",
        epsilon: float = 1e-5,
        centred: bool = True,
        heads: int = 1,
    ) -> Matrix:
        """Append LayerNorm, of each head; RMSNorm if not `centred`. Without a weight, its scale is 1."""
        weight = weight or self.constant(np.ones(x.features // heads, np.float32), f"scale of {name}")
        options = weight, bias, epsilon, centred
        return self.same(Norm, x, name, *options) if heads == 1 else self.same(HeadNorm, x, name, *options, heads)

    def linear(self, x: Matrix, name: str) -> Matrix:
        """Append x W^T + b, W in TT format or dense."""
        cores = core_names(self.shapes, name)
        if not cores:
            return self.dense(x, name, f"{name}.weight", f"{name}.bias" if f"{name}.bias" in self.shapes else "")
        features = math.prod(self.shapes[core][1] for core in cores[: len(cores) // 2])
        return self.append(TTLinear(name, (x,), Matrix(name, x.tokens, features)))

    def dense(
        self,
        x: Matrix,
        name: str,
        weight: str,
        bias: str = "",
        first: int = 0,
        outputs: int = 0,
        transposed: bool = False,
    ) -> Matrix:
        """Append a dense layer with rows of a parameter: `outputs` of them, by default all, from `first` on."""
        output = Matrix(name, x.tokens, outputs or self.shapes[weight][1 if transposed else 0])
        return self.append(Dense(name, (x,), output, weight, bias, first, transposed))

    def attention(
        self,
        q: Matrix,
        k: Matrix,
        v: Matrix,
        heads: int,
        name: str,
        causal: bool = False,
        scale: float | None = None,
        mask: str = "",
        bias: Matrix | None = None,
    ) -> Matrix:
        """Append softmax(scale (q k^T + mask)) v for each head; if `causal`, over tokens up to the query's own.

        `bias`: output of `score_bias`, in place of a mask.
        """
        if causal:
            hidden = np.triu(np.full((max_of(q.tokens),) * 2, HIDES, np.float32), 1)
            mask = self.constant(hidden, f"causal mask of {len(hidden)} tokens")
        others = (k, v) if bias is None else (k, v, bias)
        return self.same(Attention, q, name, heads, causal, scale, mask, others=others)

    def score_bias(
        self, table: str, index: np.ndarray, heads: int, transposed: bool, factor: float, mask: np.ndarray | None
    ) -> Matrix:
        """Append the bias factor table[index[t, s], h] + mask[h, t, s] of scores: of a head, a query and a key.

        `transposed`: whether the table is (heads, rows).
        """
        most, rows = len(index), self.shapes[table][1 if transposed else 0]
        keys = vectors_for(most) * M.LANES
        choices = tuple(self.constant(c, f"choice of {table}") for c in choices_of(index, rows, factor, keys))
        name = ""
        if mask is not None:
            of_tokens = np.zeros((most, heads, keys), np.float32)
            of_tokens[..., :most] = mask.swapaxes(0, 1)
            name = self.constant(of_tokens.reshape(most, -1), f"mask beside {table}")
        for op in self.operations:
            if isinstance(op, ScoreBias) and (op.table, op.choices, op.mask) == (table, choices, name):
                return op.output
        output = Matrix(f"bias of scores, {table}", self.tokens, heads * keys)
        return self.append(ScoreBias(output.name, (), output, table, choices, heads, transposed, name))

    def pooled(self, x: Matrix, name: str, is_last: bool = False) -> Matrix:
        """Append the mean of all tokens, or the last one: attention with the same scores for each query."""
        size = next((size for size in (64, 32, 16) if x.features % size == 0), x.features)
        scale, mask = 0.0, ""
        if is_last:  # a score falls by FALL from each token to the one before, so that p is 1 and zeros
            scale, order = SCALE_OF_LAST, np.arange(max_of(x.tokens))
            falling = np.tile(order * FALL / scale, (len(order), 1)).astype(np.float32)
            mask = self.constant(falling, f"mask of {name}")
        return self.rows(self.attention(x, x, x, x.features // size, name, scale=scale, mask=mask), 0, 1)

    def prepend(self, x: Matrix, table: str, first: int, rows: int, name: str) -> Matrix:
        """Append rows of a parameter or constant, from row `first` on, and then x."""
        return self.append(PrependRows(name, (x,), Matrix(name, x.tokens + rows, x.features), table, first))

    def columns(self, inputs: Sequence[Matrix], columns: Sequence[int], name: str) -> Matrix:
        """Append columns of the inputs beside each other."""
        output = Matrix(name, inputs[0].tokens, len(columns))
        return self.append(GatherColumns(name, tuple(inputs), output, tuple(columns)))

    def constant(self, value: np.ndarray, name: str) -> str:
        """Add a constant, unless it is there, and return its name: `name`, with a number if another one has it."""
        for its_name, its_value in self.constants.items():
            if its_value.shape == value.shape and (its_value == value).all():
                return its_name
        name = next(new for new in chain([name], (f"{name}, {n}" for n in count(2))) if new not in self.constants)
        self.constants[name] = value
        return name

    def rows(self, x: Matrix, first: int, tokens: Bound) -> Matrix:
        """Return a view of the rows of a matrix from `first` on."""
        return Matrix(x.name, tokens, x.features, x.base or x, x.first + first)

    def classify(self, layer: Dense, x: Matrix, loss: str, ignore_index: int | None = None) -> None:
        """Replace a dense layer by a classifier of `x`, with the same weight."""
        output = Matrix(layer.name, x.tokens, layer.output.features, line=layer.output.line)
        of_layer = layer.weight, layer.bias, layer.first, layer.transposed
        classifier = Classifier(layer.name, (x,), output, *of_layer, loss, ignore_index)
        self.operations[self.operations.index(layer)] = classifier

    def drop_unused(self, outputs: Sequence[Matrix]) -> None:
        """Remove operations whose output is not read, and is not one of the graph's."""
        while True:
            used = [op for op in self.operations if op.output in outputs or self.users(op.output)]
            if len(used) == len(self.operations):
                return
            self.operations = used

    def users(self, matrix: Matrix) -> list[Operation]:
        """Return the operations that read a matrix, or rows of it."""
        return [op for op in self.operations if any(m is matrix or m.base is matrix for m in op.inputs)]


def graph_of_config(config: ModelConfig) -> Graph:
    """Return the graph of the paper's transformer: what `bttlab.model.Transformer` computes.

    Raise `ProgramError` if the model is dense.
    """
    if config.format != "tensor":
        raise ProgramError("the model is dense: the card trains tensor-compressed ones; choose format tensor")
    graph = Graph(config.parameter_shapes(), config.sequence_length)
    x = graph.same(
        Add,
        graph.embedding("embedding.word"),
        "embedding.position.weight",
        TokenRowsOperand("embedding.position.weight"),
    )

    def norm(x: Matrix, name: str) -> Matrix:
        return graph.norm(x, name, f"{name}.weight", f"{name}.bias")

    x = norm(x, "embedding.norm")
    for e in range(config.encoders):
        name = f"encoders.{e}"
        q, k, v = (graph.linear(x, f"{name}.{part}") for part in ("query", "key", "value"))
        context = graph.attention(q, k, v, config.heads, f"{name}.attention")
        h = norm(graph.add(x, graph.linear(context, f"{name}.output")), f"{name}.attention_norm")
        activation = config.activation
        activated = graph.same(Activate, graph.linear(h, f"{name}.first"), f"{name}.{activation}", activation)
        x = norm(graph.add(h, graph.linear(activated, f"{name}.second")), f"{name}.feed_forward_norm")
    for loss, rows in ((INTENT, graph.rows(x, 0, 1)), (SLOTS, graph.rows(x, 1, graph.tokens - 1))):
        pooled = graph.same(Activate, graph.linear(rows, f"{loss}_pooler"), f"{loss}_head", "tanh")
        graph.dense(pooled, f"{loss}_head", f"{loss}_head.weight", f"{loss}_head.bias")
        graph.classify(graph.operations[-1], pooled, loss, config.ignore_index if loss == SLOTS else None)
    return graph
