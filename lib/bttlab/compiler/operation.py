"""Matrices, the base class of operations that compute them, and the context in which they emit instructions.

A new operation is a class in a file of `ops/`. It has

- `emit`: emits the output from the values of the inputs, in the forward pass, or again in the backward pass if the
  output is not to be kept for it; `keep` says when it is. An operation that does something else in each of them defines
  `forward` and `recompute` instead;
- `backward`: emits the inputs' gradients from the output's; it reads the values of the inputs unless `reads_inputs` is
  False.

- `torch`: computes the output by PyTorch, from the values of the inputs; the tracer's check executes it.

`functions` are functions of PyTorch: the tracer records the operation for each call with activations of one shape, and
`torch` calls the first one unless a class has its own.
Operations with parameters, statistics or space in operand buffers allocate them in `allocate`. The methods see banks
only as places that the `Context` returns. The values of the forward pass that the backward pass reads are kept, or
recomputed when they are first read.
"""

import linecache
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn

from typing_extensions import Self

from bttlab.compiler.buffers import STATISTICS
from bttlab.compiler.builder import Builder, padded, vectors_for
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.instruction import At, Bound, Instruction, Level, max_of
from bttlab.compiler.machine import M
from bttlab.compiler.memory.layout import Block, LayoutBuilder

Shapes = Mapping[str, tuple[int, ...]]
INTENT, SLOTS = "intent", "slot"  # losses: of one label for the sample, and of a label for each token but the first
Produce = Callable[[At | None, At], None]  # from addend and result: emits result = addend + ...
ALWAYS, IF_SPACE, NEVER = "always", "if there is space", "never"


class SourceLine(NamedTuple):
    """A line of the file, or of the notebook's cell, that a module is from."""

    path: str
    number: int

    def __str__(self) -> str:
        is_cell = any(part.startswith("ipykernel_") for part in Path(self.path).parts)
        return f"{'a cell of the notebook' if is_cell else Path(self.path).name}, line {self.number}"

    @property
    def text(self) -> str:
        """The line itself, as it was when Python read the file; empty if that is not to be had."""
        return linecache.getline(self.path, self.number).strip()


@dataclass(eq=False)
class Matrix:
    name: str
    tokens: Bound  # number of rows
    features: int
    base: "Matrix | None" = None  # the matrix of which this one is a range of rows, from `first` on
    first: int = 0
    line: SourceLine | None = None  # of the user's module, where it is computed

    @property
    def vectors(self) -> int:
        return vectors_for(self.features)


def core_names(shapes: Shapes, layer: str) -> list[str]:
    """Return the names of a layer's cores; none if it is dense."""
    count = 0
    while f"{layer}.cores.{count}" in shapes:
        count += 1
    return [f"{layer}.cores.{k}" for k in range(count)]


@dataclass
class Values(Mapping):
    """What `Operation.torch` reads besides its inputs: tensors of parameters and constants by name, and the token ids.

    `shared`: results of `once` for these parameters, whatever the sample.
    """

    named: Mapping[str, Any]
    tokens: Any
    shared: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.named[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.named)

    def __len__(self) -> int:
        return len(self.named)

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return what depends on the parameters alone; compute it for the first sample."""
        if name not in self.shared:
            self.shared[name] = compute()
        return self.shared[name]

    def rows(self, name: str, features: int) -> Any:
        """Return a parameter or constant as rows of this many features."""
        return self[name].reshape(-1, features)


def _function(function: Callable | str) -> Callable:
    """Return a function of PyTorch; a name is that of one in torch, which is imported only here."""
    if isinstance(function, str):
        import torch

        return getattr(torch, function)
    return function


@dataclass(eq=False)
class Operation:
    kind: ClassVar[str] = ""  # name of the class, for messages
    has_prefix: ClassVar[bool] = True  # its parameters are called by its name
    # Whether the output is kept for the backward pass if that reads it: ALWAYS; IF_SPACE, if the banks have space for
    # it; NEVER, since recomputing it takes the vector unit a short time.
    keep: ClassVar[str] = ALWAYS
    reads_inputs: ClassVar[bool] = True  # `backward` reads the values of the inputs
    # Padding lanes are 0 before and after each operation, in both passes, so features need not fill whole vectors.
    keeps_zeros: ClassVar[bool] = False
    is_in_bank: ClassVar[bool] = True  # False if the output is written into operand buffers alone
    functions: ClassVar[tuple[Callable | str, ...]] = ()  # of PyTorch that it computes, or their names in torch
    of_function: ClassVar[dict[str, type[Self]]] = {}  # the operations, by the names of these functions

    name: str  # its place in the module
    inputs: tuple[Matrix, ...]
    output: Matrix

    def __init_subclass__(cls) -> None:
        names = (f if isinstance(f, str) else f.__name__ for f in cls.functions)
        cls.of_function.update(dict.fromkeys(names, cls))

    @property
    def options(self) -> dict[str, Any]:
        """The fields of its class, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)[3:]}

    @property
    def family(self) -> type:
        """The class of which it has `prepare` or `allocate`: the operations of a family allocate together."""
        return [base for base in type(self).__mro__ if {"prepare", "allocate"} & vars(base).keys()][-2:][0]

    def torch(self, values: "Values", *inputs: Any) -> Any:
        """Return the output, (tokens, features), computed by PyTorch from the inputs and from named values."""
        if not self.functions:
            self._has_no("torch")
        return _function(self.functions[0])(*inputs)

    def parameters(self, shapes: Shapes) -> list[str]:
        return []

    def rows_read(self) -> tuple[int, int] | None:
        """Return the first row of its parameter that it reads, and the one behind the last; None for all of it."""
        return None

    def copy_parameters(self, names: Sequence[str], number: int) -> dict[str, str]:
        """Use copies of parameters; return the parameters by the copies' names."""
        if self.has_prefix:
            prefix, self.name = self.name, f"{self.name}#{number}"
            return {f"{self.name}{name.removeprefix(prefix)}": name for name in names}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str) and value in names:
                setattr(self, field.name, f"{value}#{number}")
        return {f"{name}#{number}": name for name in names}

    @classmethod
    def prepare(cls, operations: Sequence[Self], context: "Context") -> None:
        """Allocate what the operations of this class need for both passes."""
        for op in operations:
            op.allocate(context)

    def allocate(self, context: "Context") -> None:
        """Allocate what the operation needs for both passes."""

    def load(self, context: "Context") -> None:
        """Emit loads of operand buffers that no other operation of the forward pass uses."""

    def emit(self, context: "Context", result: At, *values: At) -> None:
        """Emit the output, to `result`, from the values of the inputs."""
        self._has_no("emit")

    def forward(self, context: "Context") -> None:
        """Emit the output in the forward pass."""
        values = [context.value(matrix) for matrix in self.inputs]
        self.emit(context, context.output(self.output), *values)

    def recompute(self, context: "Context", place: At) -> None:
        """Emit the output again, to `place`, in the backward pass."""
        self.emit(context, place, *map(context.backward_value, self.inputs))

    def backward(self, context: "Context", d: At) -> None:
        """Emit the gradients of inputs and parameters from `d`, the gradient of the output."""
        self._has_no("backward")

    def reads_in_backward(self, is_late: bool) -> tuple[Matrix, ...]:
        """Return the matrices whose values `backward` reads.

        `is_late`: whether the operation is after the last attention: its output is then kept, at no cost.
        """
        return self.inputs if self.reads_inputs else ()

    def _has_no(self, method: str) -> NoReturn:
        raise ProgramError(
            f"{self.name}: the operation '{self.kind}' has no method '{method}'; {type(self).__name__} must define it "
            "(docs/extending.md)"
        )


class Context:
    """Builder, parameters, values and gradients of a sample.

    `graph`: a `graph.Graph`.
    `flow`: order of contraction of the tensor-train layers (`tt_layer.MERGED`).
    `sums`: whether the tensor-train layers sum gradients over the samples of an update (`TTLinear.has_sums`).
    """

    def __init__(self, graph: Any, flow: Any, sums: bool):
        self.operations: list[Operation] = [copy(op) for op in graph.operations]  # with places of their own
        self.shapes: Shapes = graph.shapes | {copy: graph.shapes[name] for copy, name in graph.copies.items()}
        self.tokens, self.flow, self.sums = graph.tokens, flow, sums
        self.builder = Builder()
        rows_read = _rows_read(self.operations, self.shapes, graph.copies)
        self.layout = LayoutBuilder(self.builder, self.shapes, graph.constants, graph.copies, graph.folded, rows_read)
        self.maker = {op.output: op for op in self.operations}
        self._number = {op: number for number, op in enumerate(self.operations)}
        # By parameter, the first operation that reads it.
        self._reader = {name: op for op in reversed(self.operations) for name in op.parameters(self.shapes)}
        self.kept: Collection[Matrix] = ()  # values that stay in the banks for the backward pass
        rows = {INTENT: M.SUM_DISTANCE, SLOTS: M.SEQUENCE}
        self.loss_rows = {loss: self.builder.allocate(f"{loss} loss", n, home=STATISTICS) for loss, n in rows.items()}
        self.frozen: Collection[str] = ()  # parameters that are not trained
        self._not_needed: set[Matrix] = set()
        self._values: dict[Matrix, At] = {}
        self._places: dict[Matrix, At] = {}  # for gradients that have a place before they are computed
        self._copies: dict[Matrix, At] = {}
        self._recomputed: dict[Matrix, At] = {}
        self._gradients: dict[Matrix, At] = {}
        self._owned: set[Matrix] = set()  # matrices whose gradient has a buffer that no other matrix shares
        self._unwritten: dict[Matrix, set[int]] = {}

    def label_with(self, op: Operation) -> None:
        """Label the instructions that are emitted from now on with an operation."""
        self.builder.layer, self.builder.node = op.name, self._number[op]

    def label_with_parameter(self, name: str) -> None:
        """Label the instructions that are emitted from now on with a parameter, and the operation that reads it."""
        op = self._reader.get(name)
        self.builder.layer, self.builder.node = name, None if op is None else self._number[op]

    def readers(self, matrix: Matrix) -> list[Operation]:
        """Return the operations that read a matrix, or rows of it."""
        return [op for op in self.operations if any(m is matrix or m.base is matrix for m in op.inputs)]

    def section(self, stage: str, emit: Callable[[], Any]) -> list[Instruction]:
        """Return the instructions that a function emits, labelled with a stage."""
        self.builder.stage = stage
        emit()
        instructions = list(self.builder.instructions)
        self.builder.instructions.clear()
        return instructions

    def emit_rows(self, operation: int, what: str, matrix: Matrix, result: At, *terms: At | None, **fields) -> None:
        """Emit a row operation whose result and terms, the operands a and b, have the shape of a matrix."""
        operands = [term and rows_of(matrix, term) for term in terms]
        self.builder.vector(operation, what, row_loops(matrix), *operands, r0=rows_of(matrix, result), **fields)

    def sum_tokens(self, what: str, matrix: Matrix, a: At, b: At | None = None, heads: int = 1, **results: At) -> None:
        """Emit the gradients of a row of a matrix, or of its heads: r0 = sum of a b, r1 = sum of a over all of them."""
        builder, size, gradients = self.builder, matrix.vectors // heads, results
        if heads > 1:
            results = {n: builder.allocate(f"{what} of heads", matrix.vectors).part(w=1) for n in gradients}
        loops, b = [Level("t", matrix.tokens), padded("w", matrix.vectors)], b and rows_of(matrix, b)
        builder.columns(what, loops, rows_of(matrix, a), b, check=heads == 1, **results)
        if heads > 1:
            for name, result in gradients.items():
                loops, of_heads = [Level("h", heads), padded("w", size)], results[name].part(h=size, w=1)
                builder.columns(f"{what}, sum of heads", loops, of_heads, r1=result, check=True)

    def sum_elements(self, what: str, matrix: Matrix, units: Block, result: At, a: At, b: At | None = None) -> None:
        """Emit the sum of all elements of a matrix, or of a product of two, to each lane of a vector.

        `units`: a block of a vector of zeros and one of ones.
        """
        builder, zeros, ones = self.builder, units.where(), units.where().part(1)
        sums = builder.allocate(f"{what} of columns", matrix.vectors).part(w=1)
        self.sum_tokens(f"{what} of columns", matrix, a, b, **{"r1" if b is None else "r0": sums})
        statistic = builder.allocate(what, 1, home=STATISTICS)
        row, of_row = padded("row", 1), {"rows": statistic, "accumulator_loop": "w"}
        builder.vector(M.DOT, what, [Level("w", matrix.vectors), row], sums, ones, depth=("w",), **of_row)
        # Of the sum p, exactly: p = -((0 - p) 1).
        fields = {"immediates": (-1.0,), "flags": M.CHECK, **of_row}
        builder.vector(M.SOFTMAX_BACK, f"{what} in all lanes", [Level("w", 1), row], ones, zeros, r0=result, **fields)

    # ---- values --------------------------------------------------------------------------------------------------

    def new(self, matrix: Matrix, what: str = "") -> At:
        return self.builder.allocate(what or matrix.name, max_of(matrix.tokens) * matrix.vectors)

    def output(self, matrix: Matrix) -> At:
        """Return the place for the output of an operation of the forward pass."""
        if matrix not in self._values:
            self._values[matrix] = self.new(matrix)
        return self._values[matrix]

    def place_value(self, matrix: Matrix, place: At) -> None:
        """Say where a matrix of the forward pass is to be."""
        if matrix.base is None:
            self._values[matrix] = place

    def place_gradient(self, matrix: Matrix, place: At) -> None:
        """Say where the gradient of a matrix is to be computed, if an operation computes it for this matrix alone."""
        self._places[matrix] = place

    def value(self, matrix: Matrix) -> At:
        """Return the place of a matrix in the forward pass."""
        if matrix.base is not None:
            return self.value(matrix.base).part(matrix.first * matrix.vectors)
        return self._values[matrix]

    def copy(self, matrix: Matrix) -> At:
        """Return the place of a copy of a matrix in the forward pass."""
        if matrix not in self._copies:
            self._copies[matrix] = self.new(matrix, f"{matrix.name}, twice")
            self.recompute(matrix, self._copies[matrix])
        return self._copies[matrix]

    def backward_value(self, matrix: Matrix) -> At:
        """Return the place of a matrix in the backward pass; recompute it there unless it is kept."""
        if matrix.base is not None:
            return self.backward_value(matrix.base).part(matrix.first * matrix.vectors)
        if matrix in self.kept:
            return self._values[matrix]
        if matrix not in self._recomputed:
            place = self.new(matrix, f"{matrix.name}, recomputed")
            self.recompute(matrix, place)
            self._recomputed[matrix] = place
        return self._recomputed[matrix]

    def recompute(self, matrix: Matrix, place: At | None = None) -> None:
        """Emit a matrix again, to a place, or to where its operation writes it."""
        builder = self.builder
        reader = builder.layer, builder.node
        self.label_with(self.maker[matrix])
        self.maker[matrix].recompute(self, place)
        builder.layer, builder.node = reader

    # ---- gradients -----------------------------------------------------------------------------------------------

    def gradient(self, matrix: Matrix) -> At | None:
        """Return the gradient of a matrix as far as it is computed; None if nothing has been added to it."""
        return self._gradients.get(matrix)

    def freeze(self, names: Collection[str]) -> None:
        """Exclude parameters from training, and matrices that depend on no other parameter from the backward pass."""
        self.frozen = names
        for op in self.operations:
            reads = op.inputs or op.parameters(self.shapes)  # an input of the graph has neither: its gradient is stored
            if reads and self.is_frozen(op) and not any(self.is_needed(matrix) for matrix in op.inputs):
                self._not_needed.add(op.output)

    def is_frozen(self, op: Operation) -> bool:
        return all(name in self.frozen for name in op.parameters(self.shapes))

    def is_trained(self, name: str) -> bool:
        """Return True if a name is that of a parameter that is trained, and not of a constant or a frozen one."""
        return name in self.shapes and name not in self.frozen

    def is_needed(self, matrix: Matrix) -> bool:
        """Return True if a matrix depends on a parameter that is trained, so that its gradient is needed."""
        return (matrix.base or matrix) not in self._not_needed

    def add_to_gradient(self, matrix: Matrix, produce: Produce, reads: At | None = None) -> None:
        """Add the result of `produce`, which adds an addend, to the gradient of a matrix.

        `reads`: what `produce` reads besides the addend, on a port that the addend would need, too.
        """
        if reads is not None and matrix.base is None and self._gradients.get(matrix) == reads:
            self.write_gradient(matrix, lambda result: produce(None, result))
            return
        if matrix.base is not None:
            where = self._base_gradient(matrix.base).part(matrix.first * matrix.vectors)
            is_first = matrix.first in self._unwritten[matrix.base]
            self._unwritten[matrix.base].discard(matrix.first)
            produce(None if is_first else where, where)
            return
        before = self._gradients.get(matrix)
        if matrix not in self._owned:
            place = self._places.pop(matrix, None)
            self._gradients[matrix] = place or self.new(matrix, f"gradient of {matrix.name}")
        produce(before, self._gradients[matrix])

    def pass_gradient(self, matrix: Matrix, where: At) -> None:
        """Add an existing gradient, that of another matrix, to the gradient of a matrix."""
        if not self.is_needed(matrix):
            return
        if matrix.base is None and matrix not in self._gradients:
            self._gradients[matrix] = where
            return

        def produce(addend: At | None, result: At) -> None:
            operation = M.ADD if addend is not None else M.COPY
            self.emit_rows(operation, "sum of gradients", matrix, result, where, addend)

        self.add_to_gradient(matrix, produce)

    def write_gradient(self, matrix: Matrix, produce: Callable[[At], None]) -> None:
        """Add the result of `produce`, which takes no addend, to the gradient of a matrix."""
        if matrix.base is None and matrix not in self._gradients:
            self.add_to_gradient(matrix, lambda _, result: produce(result))
            return
        term = self.new(matrix, f"gradient of {matrix.name}")
        produce(term)
        self.pass_gradient(matrix, term)

    def _base_gradient(self, base: Matrix) -> At:
        """Return the gradient of a matrix whose rows are read; initialize it unless each row is written once."""
        if base not in self._owned:
            before = self._gradients.get(base)
            self._gradients[base] = self.new(base, f"gradient of {base.name}")
            self._owned.add(base)
            parts = self._row_parts(base)
            self._unwritten[base] = set(parts or ())
            if parts is None:
                self.emit_rows(M.COPY, "gradient so far", base, self._gradients[base], before)
        return self._gradients[base]

    def _row_parts(self, base: Matrix) -> list[int] | None:
        """Return the first rows of the two parts of a matrix if each is read once and together they are all of it."""
        read = [m for op in self.readers(base) for m in op.inputs if m is base or m.base is base]
        parts = sorted((m.first, max_of(m.tokens)) for m in read if m.base is base)
        fits = len(parts) == len(read) == 2 and parts == [(0, 1), (1, max_of(base.tokens) - 1)]
        return [first for first, _ in parts] if fits else None


def _rows_read(
    operations: Sequence[Operation], shapes: Shapes, copies: Mapping[str, str]
) -> dict[str, tuple[int, int]]:
    """Return the rows, from the first to the one behind the last, of parameters of which not all rows are read."""
    read: dict[str, list[tuple[int, int] | None]] = {name: [] for name in shapes if name not in copies}
    for op in operations:
        for name in op.parameters(shapes):
            is_row = shapes[name][-1:] == (op.output.features,)  # else the parameter's rows are others
            read.setdefault(copies.get(name, name), []).append(op.rows_read() if is_row else None)
    found = {}
    for name, ranges in read.items():
        known = [each for each in ranges if each is not None]
        if len(known) == len(ranges):
            part = min((a for a, _ in known), default=0), max((b for _, b in known), default=0)
            if part != (0, math.prod(shapes[name][:-1])):
                found[name] = part
    return found


def rows_of(matrix: Matrix, where: At, heads: int = 1) -> At:
    """Return the operand of a vector instruction that reads or writes a matrix, row by row, or head by head."""
    of_heads = {"h": matrix.vectors // heads} if heads > 1 else {}
    return where.part(t=matrix.vectors, w=1, **of_heads)


def row_loops(matrix: Matrix, heads: int = 1, count: int | None = None) -> list[Level]:
    """Return the loops of a vector instruction over a matrix, of which each head is a row; or over `count` heads."""
    if heads == 1:
        return [Level("w", matrix.vectors), padded("t", matrix.tokens)]
    count = count or heads
    return [Level("w", matrix.vectors // heads), Level("h", count), padded("t", matrix.tokens, count)]
