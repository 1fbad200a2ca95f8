"""Lower a graph to the instructions of a sample: the forward pass, and a rule for the gradient of each operation.

`lower` decides which matrices of the forward pass are kept for the backward pass, and which are recomputed there: as
many are kept as the banks have space for.
"""

from bisect import bisect_left
from collections.abc import Callable

from bttlab.compiler.attention import Attention, block_sizes, causal_mask
from bttlab.compiler.banks import MOMENTS, Assignment, with_copies
from bttlab.compiler.builder import LANES, ROWS, Builder, padded
from bttlab.compiler.dense import Classifier, Dense, no_loss
from bttlab.compiler.embedding import Embedding, Table
from bttlab.compiler.errors import DoesNotFit, ProgramError
from bttlab.compiler.functions import ACTIVATIONS
from bttlab.compiler.graph import INTENT, SLOTS, Graph, Matrix, Operation, core_names
from bttlab.compiler.instruction import At, Instruction, Level, at, max_of
from bttlab.compiler.layout import Layout
from bttlab.compiler.linear import LinearLayers
from bttlab.compiler.machine import machine
from bttlab.compiler.norm import Norm
from bttlab.compiler.operands import load_rows, part

M = machine()
UPDATE_VECTORS = 128  # of one UPDATE instruction: for as many cycles other units wait for the ports of its banks
Produce = Callable[[At | None, At], None]  # from addend and result: emits result = addend + ...


class Lowering:
    """The instructions of a model's sample.

    Parameters
    ----------
    graph : Graph
    flow : str or tuple of int
        Order of contraction of the linear layers (`linear.FLOWS`).
    kept : int
        Number of matrices of `keepable` that are kept for the backward pass, the first ones; the rest are recomputed.

    Attributes
    ----------
    constants, forward, backward : list of Instruction
        Constants that CLEAR computes once, and the passes, in the order of the mathematics.
    keepable : list
        What the backward pass reads and engines can recompute: numbers of linear layers, for their intermediate
        between x and z, and matrices.
    kept_buffers : set of Buffer
        Buffers that both passes use: kept matrices and parameters.
    """

    def __init__(self, graph: Graph, flow="bidirectional", kept: int = 1 << 20):
        self.graph, self.flow, self.shapes = graph, flow, graph.shapes
        self.builder = b = Builder()
        self.layout = Layout(b, graph.shapes)
        self._statistics = 0
        self._at: dict[Matrix, At] = {}
        self._recomputed: dict[Matrix, At] = {}
        self._gradients: dict[Matrix, At] = {}
        self._owned: set[Matrix] = set()  # matrices whose gradient has a buffer that no other matrix shares
        self._unwritten: dict[Matrix, set[int]] = {}
        self._streams: dict[str, list[At]] = {}
        self._maker = {op.output: op for op in graph.operations}
        self._fused = {op.inputs[0]: op for op in graph.operations if op.kind == "norm" and self._is_fused(op)}
        self.constants = self._emit_section("CLEAR", lambda: None)
        self._prepare()
        recomputable, always_kept = self._read_by_backward()
        self.keepable = [*self.linears.layers_with_intermediate, *recomputable]
        self._kept = {*always_kept, *self.keepable[:kept]}
        self.linears.divide_buffers(self._kept)
        self.forward = with_copies(b, self._emit_section("FP", self._forward))
        self.backward = with_copies(b, self._emit_section("BP", self._backward))
        used = [{o.memory for i in part for o in i.operands.values()} for part in (self.forward, self.backward)]
        self.kept_buffers = {buffer for buffer in b.made if {f"matrix {buffer.number}"} <= used[0] & used[1]}

    @property
    def has_moments(self) -> bool:
        """True if the banks have space for the moments of momentum and AdamW; else only SGD trains the model."""
        return self.layout.vectors <= min(M.banks[bank].depth for bank in MOMENTS)

    def fit(self) -> None:
        """Find a bank and an address for every buffer; raise `DoesNotFit` if the search finds none."""
        instructions = [*self.constants, *self.forward, *self.backward]
        self._assignment = Assignment(self.builder.made, instructions)
        self._assignment.fit()

    def assign(self, tokens: int) -> None:
        """Assign all buffers banks that suit samples of about `tokens` tokens, and write them into the instructions."""
        self._assignment.balance(tokens)
        self.layout.blocks.sort(key=lambda block: (block.bank, block.base))

    # ---- preparation ---------------------------------------------------------------------------------------------

    def _emit_section(self, stage: str, emit: Callable[[], None]) -> list[Instruction]:
        self.builder.stage = stage
        emit()
        listed = list(self.builder.instructions)
        self.builder.instructions.clear()
        return listed

    def _rows(self, count: int) -> int:
        """Allocate rows of statistics and return the first."""
        first = self._statistics
        self._statistics += count
        if self._statistics > M.STATISTICS:
            raise DoesNotFit(
                f"the model needs {self._statistics} rows of statistics, the machine has {M.STATISTICS}",
                "fewer encoders or heads, or a shorter sequence",
            )
        return first

    def _operations(self, kind: str) -> list[Operation]:
        return [op for op in self.graph.operations if op.kind == kind]

    def _prepare(self) -> None:
        """Allocate parameters, the state that operations keep, and the permanent part of the operand buffers."""
        b, graph, layout = self.builder, self.graph, self.layout
        if graph.sequence_length > M.SEQUENCE:
            raise ProgramError(f"sequences of {graph.sequence_length}: the card takes up to {M.SEQUENCE} tokens")
        for op in graph.operations:
            for matrix in (*op.inputs, op.output):
                if matrix.features % LANES and op.kind != "classifier":
                    rule = f"the card takes multiples of {LANES}"
                    raise ProgramError(f"{op.name} has {matrix.features} features: {rule}")
        (embedding,) = self._operations("embedding")
        kind = Embedding if core_names(graph.shapes, embedding.name) else Table
        self.embedding = kind(b, layout, graph.shapes, graph.tokens, embedding.name)
        for op in self._operations("position"):
            layout.place(op.name, added=True)
        names = {op.name: op.inputs[0].tokens for op in self._operations("linear")}
        for name in names:
            if f"{name}.bias" in graph.shapes:
                layout.place(f"{name}.bias")
        shared = f"{embedding.name}.weight"
        loss_rows = {loss: self._rows(M.SEQUENCE if loss == SLOTS else M.SUM_DISTANCE) for loss in (INTENT, SLOTS)}
        self._loss_rows = loss_rows
        self.dense: dict[str, Dense] = {}
        for op in graph.operations:
            if op.kind == "classifier":
                is_shared = op.options["weight"] == shared
                self.dense[op.name] = Classifier(b, layout, op, loss_rows[op.options["loss"]], is_shared)
            elif op.kind == "dense":
                self.dense[op.name] = Dense(b, layout, op)
        self.norms: dict[str, Norm] = {}
        for op in self._operations("norm"):
            x = op.output
            scale, shift = layout.place(f"{op.name}.weight"), None
            if f"{op.name}.bias" in graph.shapes:
                shift = layout.place(f"{op.name}.bias")
            kept = b.allocate(f"normalized by {op.name}", max_of(x.tokens) * x.vectors)
            more = op.options["epsilon"], op.options["centred"]
            rows = self._rows(max_of(x.tokens))
            self.norms[op.name] = Norm(b, op.name, x.tokens, x.vectors, kept, rows, scale, shift, *more)
        self._prepare_attention()
        self.linears = LinearLayers(b, layout, names, graph.shapes, self.flow)
        self.numbers = {name: number for number, name in enumerate(names)}

    def _prepare_attention(self) -> None:
        b, found = self.builder, self._operations("attention")
        self.attention: dict[str, Attention] = {}
        self._streamed: dict[Matrix, Attention] = {}  # keys and values that layers write into operand buffers
        self._in_buffers: Operation | None = None
        if not found:
            return
        most, blocks = self.graph.sequence_length, -(-self.graph.sequence_length // ROWS)
        vectors = max(op.output.vectors for op in found)
        keys, values = (
            b.allocate_operand_buffer(name, e, vectors * blocks) for e, name in enumerate(("keys", "values"))
        )
        rows, mask = self._rows(most * max(op.options["heads"] for op in found)), None
        if any(op.options["causal"] for op in found):
            self.constants += self._emit_section(
                "CLEAR", lambda: setattr(self, "_mask", causal_mask(b, self.graph.tokens))
            )
            mask = self._mask
        for op in found:
            heads, x = op.options["heads"], op.output
            if x.features % (heads * LANES):
                rule = f"heads of a multiple of {LANES} features"
                raise ProgramError(f"{op.name} has heads of {x.features / heads:g} features: the card takes {rule}")
            hides = mask if op.options["causal"] else None
            self.attention[op.name] = Attention(b, x.tokens, heads, x.vectors, keys, values, rows, hides)
            for matrix in op.inputs[1:]:
                is_alone = len(self.graph.users(matrix)) == op.inputs.count(matrix) == 1
                if matrix.base is None and is_alone and self._maker[matrix].kind == "linear":
                    self._streamed[matrix] = self.attention[op.name]
        size = {op.name: self.attention[op.name].score_vectors for op in found}
        self.probabilities = {op.name: b.allocate(f"attention of {op.name}", size[op.name]) for op in found}

    def _read_by_backward(self) -> tuple[list[Matrix], list[Matrix]]:
        """Return the matrices of the forward pass that the backward pass reads: recomputable ones, and the others.

        Matrices after the last attention are always kept, since the backward pass reads them first.
        """
        operations = self.graph.operations
        end = max((n for n, op in enumerate(operations) if op.kind == "attention"), default=-1)
        needed: set[Matrix] = set()
        for n, op in enumerate(operations):
            if op.kind in ("linear", "dense", "classifier", "attention"):
                needed.update(matrix.base or matrix for matrix in op.inputs)
            elif op.kind == "function":
                needed.add(op.output if _is_tanh(op) and n > end else op.inputs[0])
        keepable, always_kept = [], []
        for n, op in enumerate(operations):
            if op.output not in needed or op.output in self._streamed:
                continue
            if op.kind in ("linear", "attention") and n <= end:
                keepable.append(op.output)
            elif op.kind not in ("norm", "function") or n > end:
                always_kept.append(op.output)
        return keepable, always_kept

    def _is_fused(self, norm: Operation) -> bool:
        """Return True if a norm computes the sum that it normalizes: it is the sum's first reader."""
        maker = self._maker.get(norm.inputs[0])
        users = self.graph.users(norm.inputs[0])
        return maker is not None and maker.kind in ("add", "position") and users[0] is norm

    # ---- matrices ------------------------------------------------------------------------------------------------

    def _new(self, matrix: Matrix, what: str = "") -> At:
        return self.builder.allocate(what or matrix.name, max_of(matrix.tokens) * matrix.vectors, rows=matrix.tokens)

    def _out(self, matrix: Matrix) -> At:
        """Allocate the output of an operation of the forward pass."""
        self._at[matrix] = self._new(matrix)
        return self._at[matrix]

    def value(self, matrix: Matrix) -> At:
        """Return the place of a matrix in the forward pass."""
        if matrix.base is not None:
            return part(self.value(matrix.base), matrix.first * matrix.vectors)
        return self._at[matrix]

    def backward_value(self, matrix: Matrix) -> At:
        """Return the place of a matrix in the backward pass; recompute it there unless it is kept."""
        if matrix.base is not None:
            return part(self.backward_value(matrix.base), matrix.first * matrix.vectors)
        if matrix in self._kept:
            return self._at[matrix]
        if matrix not in self._recomputed:
            place = self._new(matrix, f"{matrix.name}, recomputed")
            getattr(self, f"_recompute_{self._maker[matrix].kind}")(self._maker[matrix], place)
            self._recomputed[matrix] = place
        return self._recomputed[matrix]

    def _row_loops(self, matrix: Matrix) -> list[Level]:
        return [Level("w", matrix.vectors), padded("t", matrix.tokens)]

    # ---- gradients -----------------------------------------------------------------------------------------------

    def _gradient(self, matrix: Matrix, produce: Produce) -> None:
        """Add the result of `produce` to the gradient of a matrix."""
        if matrix.base is not None:
            where = part(self._whole_gradient(matrix.base), matrix.first * matrix.vectors)
            is_first = matrix.first in self._unwritten[matrix.base]
            self._unwritten[matrix.base].discard(matrix.first)
            produce(None if is_first else where, where)
            return
        before = self._gradients.get(matrix)
        self._gradients[matrix] = before if matrix in self._owned else self._new(matrix, f"gradient of {matrix.name}")
        produce(before, self._gradients[matrix])

    def _whole_gradient(self, whole: Matrix) -> At:
        """Return the gradient of a matrix whose rows are read; initialize it unless each row is written once."""
        if whole not in self._owned:
            before, rows = self._gradients.get(whole), {"t": whole.vectors, "w": 1}
            self._gradients[whole] = self._new(whole, f"gradient of {whole.name}")
            self._owned.add(whole)
            parts = self._row_parts(whole)
            self._unwritten[whole] = set(parts or ())
            if parts is None:
                where, source = part(self._gradients[whole], **rows), before and part(before, **rows)
                self.builder.vector(M.COPY, "gradient so far", self._row_loops(whole), source, r0=where)
        return self._gradients[whole]

    def _row_parts(self, whole: Matrix) -> list[int] | None:
        """Return the first rows of the two parts of a matrix if each is read once and together they are all of it."""
        rows = [m for op in self.graph.users(whole) for m in op.inputs if m is whole or m.base is whole]
        parts = sorted((m.first, max_of(m.tokens)) for m in rows if m.base is whole)
        fits = len(parts) == len(rows) == 2 and parts == [(0, 1), (1, max_of(whole.tokens) - 1)]
        return [first for first, _ in parts] if fits else None

    def _same_gradient(self, matrix: Matrix, where: At) -> None:
        """Add an existing gradient, that of another matrix, to the gradient of a matrix."""
        if matrix.base is None and matrix not in self._gradients:
            self._gradients[matrix] = where
            return

        def produce(addend: At | None, result: At) -> None:
            rows = {"t": matrix.vectors, "w": 1}
            operands = [part(one, **rows) for one in (where, addend) if one is not None]
            kind = M.ADD if addend is not None else M.COPY
            self.builder.vector(kind, "sum of gradients", self._row_loops(matrix), *operands, r0=part(result, **rows))

        self._gradient(matrix, produce)

    def _without_addend(self, matrix: Matrix, produce: Callable[[At], None]) -> None:
        """Add to the gradient of a matrix the result of an operation that has no addend."""
        if matrix.base is None and matrix not in self._gradients:
            self._gradient(matrix, lambda _, result: produce(result))
            return
        own = self._new(matrix, f"gradient of {matrix.name}")
        produce(own)
        self._same_gradient(matrix, own)

    # ---- passes --------------------------------------------------------------------------------------------------

    def _forward(self) -> None:
        for op in self.graph.operations:
            if op.output not in self._fused:
                getattr(self, f"_{op.kind}")(op)
        for loss in (INTENT, SLOTS):
            if loss not in self.graph.losses:
                tokens = 1 if loss == INTENT else self.graph.tokens
                no_loss(self.builder, f"{loss}_head", loss == INTENT, tokens, self._loss_rows[loss])

    def _backward(self) -> None:
        for op in reversed(self.graph.operations):
            if op.output not in self._fused:
                d = self._gradients.get(op.output)
                getattr(self, f"_{op.kind}_back")(op, d)

    def _embedding(self, op: Operation) -> None:
        self.embedding.prepare()
        self.embedding.forward(self._out(op.output))
        for layer in self.dense.values():  # afterwards: the embedding may use the same vectors of the operand buffers
            layer.prepare()

    def _embedding_back(self, op: Operation, d: At) -> None:
        self.embedding.backward(d)

    def _position(self, op: Operation) -> None:
        self._sum(op, self.layout.of(op.name).where())

    def _position_back(self, op: Operation, d: At) -> None:
        matrix, b = op.output, self.builder
        b.layer, rows = op.name.rpartition(".")[0], {"t": matrix.vectors, "w": 1}
        where = self.layout.of(op.name).gradient(**rows)
        b.vector(M.COPY, "gradient", self._row_loops(matrix), part(d, **rows), r0=where, flags=M.CHECK)
        self._same_gradient(op.inputs[0], d)

    def _add(self, op: Operation) -> None:
        self._sum(op, self.value(op.inputs[1]))

    def _add_back(self, op: Operation, d: At) -> None:
        for matrix in op.inputs:
            self._same_gradient(matrix, d)

    def _recompute_add(self, op: Operation, place: At) -> None:
        self._sum(op, self.backward_value(op.inputs[1]), self.backward_value(op.inputs[0]), place)

    def _sum(self, op: Operation, other: At, one: At | None = None, result: At | None = None) -> None:
        rows = {"t": op.output.vectors, "w": 1}
        self.builder.layer = op.name
        a, b, r0 = one or self.value(op.inputs[0]), other, result or self._out(op.output)
        self.builder.vector(
            M.ADD, "sum", self._row_loops(op.output), part(a, **rows), part(b, **rows), r0=part(r0, **rows)
        )

    def _norm(self, op: Operation) -> None:
        norm, x = self.norms[op.name], op.inputs[0]
        if x not in self._fused:
            norm.forward(self.value(x), None, None, self._out(op.output))
            return
        maker = self._maker[x]
        if maker.kind == "position":
            a, residual = self.value(maker.inputs[0]), self.layout.of(maker.name).where()
        else:
            residual, a = map(self.value, maker.inputs)
        norm.forward(a, residual, self._out(x), self._out(op.output))

    def _recompute_norm(self, op: Operation, place: At) -> None:
        self.norms[op.name].recompute(place)

    def _norm_back(self, op: Operation, d: At) -> None:
        norm, x = self.norms[op.name], op.inputs[0]
        maker = self._maker.get(x)
        if x not in self._fused:
            self._without_addend(x, lambda result: norm.backward(d, result))
        elif maker.kind == "position" and x not in self._gradients:
            where = self.layout.of(maker.name).gradient()
            norm.backward(d, where, check=True)
            self._same_gradient(maker.inputs[0], where)
        else:
            self._without_addend(x, lambda result: norm.backward(d, result))
            getattr(self, f"_{maker.kind}_back")(maker, self._gradients[x])

    def _linear(self, op: Operation) -> None:
        number, x = self.numbers[op.name], op.inputs[0]
        self.linears.forward(number, self.value(x), x.tokens, *self._target(op))

    def _target(self, op: Operation, place: At | None = None) -> tuple:
        """Return the place of a linear layer's output, in a bank or an operand buffer: arguments of `forward`."""
        attention = self._streamed.get(op.output)
        if attention is None:
            return (place or self._out(op.output),)
        is_key = any(user.inputs[1] is op.output for user in self.graph.users(op.output))
        return None, attention.keys if is_key else attention.values, block_sizes(op.output.tokens)

    def _recompute_linear(self, op: Operation, place: At | None = None) -> None:
        self.linears.recompute(self.numbers[op.name], op.inputs[0].tokens, *self._target(op, place))

    def _linear_back(self, op: Operation, d: At) -> None:
        x, number = op.inputs[0], self.numbers[op.name]
        stream = self.backward_value(x)
        self._gradient(x, lambda addend, result: self.linears.backward(number, d, stream, x.tokens, result, addend))

    def _dense(self, op: Operation) -> None:
        layer = self.dense[op.name]
        self.builder.layer = op.name
        layer.forward(layer.copies(self.value(op.inputs[0])), self._out(op.output))

    def _dense_back(self, op: Operation, d: At) -> None:
        layer, x = self.dense[op.name], op.inputs[0]
        stream = self.backward_value(x)
        self.builder.layer = op.name
        streams = layer.copies(stream)
        self._gradient(x, lambda addend, result: layer.backward(streams, d, result, addend))

    def _classifier(self, op: Operation) -> None:
        layer = self.dense[op.name]
        self.builder.layer = op.name
        self._streams[op.name] = layer.copies(self.value(op.inputs[0]), "pooled")
        layer.forward(self._streams[op.name], layer.logits, "logits")
        layer.loss()

    def _classifier_back(self, op: Operation, _: At | None) -> None:
        layer, x = self.dense[op.name], op.inputs[0]
        streams = [self.backward_value(x), *self._streams[op.name][1:]]
        self._gradient(x, lambda addend, result: layer.backward(streams, layer.logits, result, addend))

    def _function(self, op: Operation) -> None:
        self._activate(op, self.value(op.inputs[0]), self._out(op.output))

    def _recompute_function(self, op: Operation, place: At) -> None:
        self._activate(op, self.backward_value(op.inputs[0]), place)

    def _activate(self, op: Operation, u: At, activated: At) -> None:
        b, x, name = self.builder, op.output, op.options["function"]
        b.layer, activation = op.name, ACTIVATIONS[name]
        operation = M.TIMES_FUNCTION if activation.times_x else M.FUNCTION
        u, result = part(u, t=x.vectors, w=1), part(activated, t=x.vectors, w=1)
        number = b.functions.number(activation.function)
        b.vector(operation, f"{name}(u)", self._row_loops(x), u, r0=result, function=number)

    def _function_back(self, op: Operation, d: At) -> None:
        b, x, name, rows = self.builder, op.inputs[0], op.options["function"], {"t": op.output.vectors, "w": 1}
        is_kept = _is_tanh(op) and op.output in self._kept
        u = part(self.backward_value(op.output if is_kept else x), **rows)

        def produce(result: At) -> None:
            b.layer, where, loops = op.name, part(result, **rows), self._row_loops(x)
            if is_kept:
                b.vector(M.TANH_BACK, "d_u = d_y (1 - y y)", loops, part(d, **rows), u, r0=where)
            else:
                number = b.functions.number(ACTIVATIONS[name].slope)
                b.vector(
                    M.TIMES_FUNCTION, f"d_u = d_a {name}'(u)", loops, u, part(d, **rows), r0=where, function=number
                )

        self._without_addend(x, produce)

    def _attention(self, op: Operation) -> None:
        q, attention = op.inputs[0], self.attention[op.name]
        self._load_keys(op, self.value)
        self.builder.layer = op.name
        attention.forward(self.value(q), self.probabilities[op.name], self._out(op.output))
        self._in_buffers = op

    def _load_keys(self, op: Operation, value: Callable[[Matrix], At]) -> None:
        """Load the keys and values that no layer writes into the operand buffers directly."""
        attention = self.attention[op.name]
        for matrix, buffer in zip(op.inputs[1:], (attention.keys, attention.values), strict=True):
            if matrix in self._streamed:
                continue
            source, rows = value(matrix), block_sizes(matrix.tokens)
            self.builder.layer = op.name
            for block in range(attention.blocks):
                first = ROWS * block * matrix.vectors
                where = part(buffer, block * matrix.vectors)
                load_rows(self.builder, "load keys, values", part(source, first), where, rows(block), matrix.vectors)

    def _ensure_keys(self, op: Operation) -> None:
        """Reload or recompute an attention's keys and values if the operand buffers have those of another."""
        if self._in_buffers is not op:
            for matrix in op.inputs[1:]:
                if matrix in self._streamed:
                    self._recompute_linear(self._maker[matrix])
            self._load_keys(op, self.backward_value)
            self._in_buffers = op

    def _recompute_attention(self, op: Operation, place: At) -> None:
        self._ensure_keys(op)
        self.builder.layer = op.name
        self.attention[op.name].recompute(self.probabilities[op.name], place)

    def _attention_back(self, op: Operation, d: At) -> None:
        attention, b = self.attention[op.name], self.builder
        self._ensure_keys(op)
        q = self.backward_value(op.inputs[0])
        b.layer, d_scores = op.name, b.allocate("d_scores", attention.score_vectors)
        gradients = [self._new(matrix, f"gradient of {matrix.name}") for matrix in op.inputs]
        attention.backward(d, self.probabilities[op.name], d_scores, q, *gradients)
        for matrix, gradient in zip(op.inputs, gradients, strict=True):
            self._same_gradient(matrix, gradient)

    # ---- the update ----------------------------------------------------------------------------------------------

    def emit_updates(self) -> list[Instruction]:
        """Return the updates of all parameters; they clear gradients that are accumulated or not always written."""
        return self._emit_section("PU", self._updates)

    def _updates(self) -> None:
        b, offsets, offset, has_moments = self.builder, {}, 0, self.has_moments
        for block in self.layout.blocks:
            offsets[block], offset = offset, offset + block.vectors
        for block in sorted(offsets, key=lambda block: block.buffer.number):
            b.layer = block.name
            state = [block.where(), block.gradient()]
            if has_moments:
                state += (at(f"bank {bank}", offsets[block]) for bank in MOMENTS)
            for first in range(0, block.vectors, UPDATE_VECTORS):
                parts, count = (part(whole, first) for whole in state), min(block.vectors - first, UPDATE_VECTORS)
                b.update("update", count, *parts, clear=block.buffer.is_accumulated)


def _is_tanh(op: Operation) -> bool:
    return op.options["function"] == "tanh"


def lower(graph: Graph, flow, tokens: int) -> Lowering:
    """Return the instructions of a model's sample, with as many matrices kept as the banks have space for.

    Parameters
    ----------
    tokens : int
        Length of the samples for which banks are chosen.

    Raises
    ------
    DoesNotFit
        If the model does not fit even with everything recomputed that can be.
    """
    model = lower_to_fit(graph, flow)
    model.assign(tokens)
    return model


def lower_to_fit(graph: Graph, flow, is_quick: bool = False) -> Lowering:
    """Return the result of `lower` before banks are assigned.

    Parameters
    ----------
    is_quick : bool
        Whether to try only two cases, keeping everything and recomputing everything, without a search in between.
    """
    fitting: dict[int, Lowering] = {}

    def does_not_fit(count: int) -> bool:
        model = Lowering(graph, flow, count)
        try:
            model.fit()
        except DoesNotFit:
            if count == 0:
                raise
            return True
        fitting[count] = model
        return False

    whole = Lowering(graph, flow)
    try:
        whole.fit()
        return whole
    except DoesNotFit:
        does_not_fit(0)  # raises DoesNotFit if not even this fits
    if not is_quick:
        bisect_left(range(1, len(whole.keepable)), True, key=does_not_fit)
    return fitting[max(fitting)]
