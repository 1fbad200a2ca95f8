"""Lower a graph to the instructions of a sample: the passes, the updates, and what is kept between the passes.

`Lowerings.lower` decides which matrices of the forward pass are kept for the backward pass, and which are recomputed
there: as many are kept as the banks have space for.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from bttlab.compiler.buffers import GRADIENT_OF, INNER, MOMENTS
from bttlab.compiler.builder import LANES, even_parts
from bttlab.compiler.errors import SMALLER_MODEL, DoesNotFit, ProgramError, RowsDoNotFit, TablesFull, with_space
from bttlab.compiler.graph import Graph
from bttlab.compiler.instruction import At, Instruction, Level, Memory, at, max_of
from bttlab.compiler.machine import M
from bttlab.compiler.memory.banks import WINDOW, Placement
from bttlab.compiler.memory.copies import uses_of
from bttlab.compiler.memory.layout import Block, Region
from bttlab.compiler.operation import ALWAYS, IF_SPACE, INTENT, NEVER, Context, Matrix
from bttlab.compiler.ops.attention import Attention
from bttlab.compiler.ops.dense import Classifier, no_loss
from bttlab.compiler.ops.embedding import Embedding, TypeEmbedding
from bttlab.compiler.ops.transfers import Boundary
from bttlab.compiler.ops.tt_linear import TTLinear
from bttlab.compiler.plan.tt_layer import TTLayer
from bttlab.compiler.space import (
    LARGEST_BANK,
    largest_list,
    layer_number,
    layers_that_fit,
    parameter_vectors,
    prepare,
    what_fits,
)

RESULT = {M.VECTOR: 3, M.ENGINE_0: 4, M.ENGINE_1: 4}  # number of a unit's operand that zeros are written to
EVERYTHING = 1 << 20  # more than there is to keep
UPDATE_VECTORS = 256  # of one UPDATE instruction: for as many cycles other units wait for the ports of its banks
# Banks are hard to find if both passes use more of their vectors, besides parameters and gradients.
MOST_KEPT = 0.73
MOST_FILLED = 0.85  # of the banks' vectors, by what both passes use: about as many as the search finds places for
INNER_VECTORS = sum(M.banks[bank].depth for bank in INNER)
PARAMETER_VECTORS = sum(M.banks[bank].depth for bank in GRADIENT_OF)


class Lowering(Context):
    """The instructions of a model's sample.

    `flow`: order of contraction of the linear layers (`tt_layer.MERGED`).
    `kept`: number of matrices of `keepable` that are kept for the backward pass, the first ones; the rest are
    recomputed.
    `sums`: whether gradients are summed over the samples of an update, if the tensor-train layers merge cores.
    `forward`, `backward`: the passes, in the order of the mathematics.
    `collect`: the gradients of the cores from the sums, once per update; empty without sums.
    `keepable`: what the backward pass reads and engines can recompute:
        - linear layers, for their intermediate between x and z;
        - matrices;
        - the products of cores of `merging`.
    `kept_buffers`: buffers that both passes use: kept matrices and parameters.
    """

    embedding: Embedding | None  # None in the program of a layer alone

    def __init__(self, graph: Graph, flow="bidirectional", kept: int = EVERYTHING, sums: bool = False):
        super().__init__(graph, flow, sums)
        operations = self.operations
        self.freeze(graph.frozen | {copy for copy, name in graph.copies.items() if name in graph.frozen})
        self.boundary = [op for op in operations if isinstance(op, Boundary)]
        self.losses = {op.loss for op in operations if isinstance(op, Classifier)}
        _check_sizes(graph)
        tables = (op for op in operations if isinstance(op, Embedding) and not isinstance(op, TypeEmbedding))
        self.embedding = next(tables, None)
        prepare(self)
        vectors = parameter_vectors(self)
        if vectors > PARAMETER_VECTORS:  # before all instructions are emitted
            what = f"the parameters take {vectors} vectors, the banks of parameters have {PARAMETER_VECTORS}"
            raise DoesNotFit(what, with_space(SMALLER_MODEL, what_fits(graph, flow, sums, PARAMETER_VECTORS)))
        for block in self.layout.blocks:
            if block.buffer.is_parameter and block.buffer.vectors > LARGEST_BANK:
                what = f"{block.name} takes {block.buffer.vectors} vectors"
                what = f"{what}, the largest bank of parameters has {LARGEST_BANK}"
                raise DoesNotFit(what, with_space(SMALLER_MODEL, what_fits(graph, flow, sums, PARAMETER_VECTORS)))
        recomputable, always_kept = self._read_by_backward()
        linears = [op for op in operations if isinstance(op, TTLinear)]
        self.order = linears[0].layer.order if linears else None  # of the first tensor-train layer
        self.merging = [op for op in linears if op.layer.merges]
        self.keepable = [
            *(op for op in linears if op.layer.keepable),
            *recomputable,
            *(op.layer for op in self.merging),
        ]
        self.kept = {*always_kept, *self.keepable[:kept]}
        for op in linears:
            op.keeps_between, op.keeps_merges = op in self.kept, op.layer in self.kept
        self.forward, self.backward = self.section("FP", self._forward), self.section("BP", self._backward)
        self.collect = self.section("BP", self._collect)
        written = {operand.memory for i in self.collect for operand in i.operands.values()}
        self.collected = {buffer for buffer in self.builder.made if buffer.memory_of_gradient in written}
        self._reader_of_sum = {self.builder.buffer_at(s.place): op for op in linears for s in op.emitter.sums.values()}
        self.summed = list(self._reader_of_sum)
        self.first_use: dict[Memory | None, int] = {}  # of a buffer in the forward pass
        self._sections, self._placement = (self.forward, self.backward, self.collect), None

    @property
    def is_placed(self) -> bool:
        """True if banks were searched, at least once."""
        return self._placement is not None

    @property
    def _used_by_both(self) -> set[Memory | None]:
        """The memories that both passes use."""
        forward, backward = (
            {o.memory for i in run for o in i.operands.values()} for run in (self.forward, self.backward)
        )
        return forward & backward

    def guess_kept(self) -> int:
        """Return how many of what is kept will fit, by its vectors: a share `MOST_FILLED` of those of the banks."""
        sizes, count = self._kept_sizes, sum(kept in self.kept for kept in self.keepable)
        surplus = sum(sizes.values()) + 2 * self.layout.finished.vectors - MOST_FILLED * INNER_VECTORS
        while count and surplus > 0:
            count -= 1
            surplus -= sum(sizes.get(place.memory, 0) for place in self._kept_places(self.keepable[count]))
        return count

    @property
    def _kept_sizes(self) -> dict[Memory, int]:
        """The vectors of what both passes use, apart from parameters, by their memory."""
        both, made = self._used_by_both, self.builder.made
        return {b.memory: b.vectors for b in made if b.memory in both and b.is_in_bank and not b.is_parameter}

    def _kept_places(self, kept: TTLinear | Matrix | TTLayer) -> list[At]:
        """Return the places of what is kept: of the intermediate, the matrix, or the products of cores."""
        if isinstance(kept, TTLinear):
            return [kept.between.place]
        if isinstance(kept, Matrix):
            return [self._values[kept]]
        (merging,) = (op for op in self.merging if op.layer is kept)
        return [stored.place for copies in merging.emitter.merged.values() for stored in copies]

    @property
    def most_kept(self) -> int:
        """The length of `keepable` for which the banks have space, if only products of cores are left out."""
        sizes, count = self._kept_sizes, len(self.keepable)
        always = sum(b.vectors for b in self.builder.made if b.is_in_bank and b.is_persistent)
        space = INNER_VECTORS - 2 * self.layout.finished.vectors - always
        surplus = sum(sizes.values()) - MOST_KEPT * space
        for op in reversed(self.merging):
            if surplus <= 0:
                break
            count -= 1
            surplus -= sum(sizes.get(place.memory, 0) for place in self._kept_places(op.layer))
        return count

    def fit(self, tokens: int, window: int = WINDOW) -> None:
        """Find a bank and an address for every buffer, for samples of about `tokens` tokens.

        It may be called again, with another window: then the instructions of the passes are new ones.

        `window`: as for `banks.Assignment`.
        Raise `DoesNotFit` if the search finds none.
        """
        self.forward, self.backward, self.collect = self._sections
        if self._placement is None:
            transferred = {name for op in self.boundary for name in (*op.names, *self.shapes)}
            transferred |= self.layout.constants.keys()
            self._placement = Placement(self.builder.made, self._sections, tokens, transferred)
        (self.forward, self.backward, self.collect), self._assignment = self._placement.fitted(window)
        self.first_use.clear()
        for number, instruction in enumerate(self.forward):
            for operand in instruction.operands.values():
                self.first_use.setdefault(operand.memory, number)
        both = self._used_by_both
        self.kept_buffers = {buffer for buffer in self.builder.made if buffer.is_in_bank and buffer.memory in both}

    def assign(self) -> None:
        """Write the banks and addresses of all buffers into the instructions."""
        self._assignment.write()
        self.layout.blocks.sort(key=lambda block: (block.bank, block.base))

    def regions(self) -> Iterator[Region]:
        """Yield what lies in the banks for the whole program, or from one pass to the other, after `assign`."""
        for buffer in self.builder.made:
            if buffer.is_parameter:
                yield Region(buffer.bank, buffer.base, buffer.vectors, "parameters")
                yield Region(GRADIENT_OF[buffer.bank], buffer.base, buffer.vectors, "gradients")
            elif buffer in self.summed:
                yield Region(buffer.bank, buffer.base, buffer.vectors, "gradients")
            elif buffer in self.kept_buffers:  # written by the forward pass for the backward pass
                yield Region(buffer.bank, buffer.base, buffer.vectors, "activations")
        layout = self.layout.finished
        for bank in MOMENTS if layout.has_moments else ():
            yield Region(bank, 0, layout.vectors, "optimizer state")

    def _read_by_backward(self) -> tuple[list[Matrix], list[Matrix]]:
        """Return the matrices of the forward pass that the backward pass reads: recomputable ones, and the others.

        Matrices after the last attention are always kept, since the backward pass reads them first.
        """
        end = max((n for n, op in enumerate(self.operations) if isinstance(op, Attention)), default=-1)
        needed: set[Matrix] = set()
        for n, op in enumerate(self.operations):
            if self.is_needed(op.output):
                needed.update(matrix.base or matrix for matrix in op.reads_in_backward(n > end))
        for op in reversed(self.operations[: end + 1]):
            if op.output in needed and op.keep == NEVER:  # it is recomputed from its inputs
                needed.update(matrix.base or matrix for matrix in op.inputs)
        keepable, always_kept = [], []
        for n, op in enumerate(self.operations):
            if op.output in needed and op.is_in_bank:
                if op.keep == ALWAYS or n > end:
                    always_kept.append(op.output)
                elif op.keep == IF_SPACE:
                    keepable.append(op.output)
        return keepable, always_kept

    def _forward(self) -> None:
        table, *others = sorted(self.operations, key=lambda op: op is not self.embedding)
        self.label_with(table)
        table.forward(self)
        for op in self.operations:  # afterwards: the table may use the same vectors of the operand buffers
            self.label_with(op)
            op.load(self)
        for op in others:
            self.label_with(op)
            op.forward(self)
        for loss, rows in self.loss_rows.items():
            if self.losses and loss not in self.losses:
                tokens = 1 if loss == INTENT else self.tokens
                no_loss(self.builder, f"{loss}_head", loss == INTENT, tokens, rows)

    def _backward(self) -> None:
        for op in reversed(self.operations):
            if self.is_needed(op.output):
                self.label_with(op)
                op.backward(self, self.gradient(op.output))
        self._add_gradients_of_uses(are_collected=False)

    def _collect(self) -> None:
        for op in self.operations:
            if isinstance(op, TTLinear) and op.has_sums:
                self.label_with(op)
                op.collect()
        self._add_gradients_of_uses(are_collected=True)

    def _add_gradients_of_uses(self, are_collected: bool) -> None:
        """Add up the gradients of parameters with several uses: of cores that `collect` computes, or of all others."""
        summed = [op for op in self.operations if isinstance(op, TTLinear) and op.has_sums]
        cores = {block.buffer for op in summed for block in op.blocks}
        for blocks in self.layout.uses():
            if blocks[0].name not in self.frozen and (blocks[0].buffer in cores) == are_collected:
                kinds = {(b.vectors, b.axes, b.rows, b.is_repeated, b.buffer in cores) for b in blocks}
                if len(kinds) > 1:
                    raise ProgramError(f"{blocks[0].name} has uses of different kinds: use a parameter for each")
                self._add_gradients(blocks)

    def _add_gradients(self, blocks: list[Block]) -> None:
        """Add the gradients of a parameter's uses, and give each use the sum: all copies stay equal to the bit."""
        parameter, *others = blocks
        b, loops, total = self.builder, [Level("w", parameter.vectors)], parameter.gradient(w=1)
        self.label_with_parameter(parameter.name)
        for block in others:
            place = b.allocate("sum of uses", parameter.vectors).part(w=1)
            b.vector(M.ADD, "sum of uses", loops, total, block.gradient(w=1), r0=place)
            total = place
        for block in blocks:
            b.vector(M.COPY, "sum of uses", loops, total, r0=block.gradient(w=1), flags=M.CHECK)

    @property
    def _live_vectors(self) -> tuple[int, int]:
        """The vectors of the banks that a program always uses, and the most that it uses besides at one time."""
        instructions = [*self.forward, *self.backward, *self.collect]
        uses, always, change = uses_of(self.builder.made, instructions), 0, [0] * (len(instructions) + 1)
        for buffer in self.builder.made:
            if buffer.is_in_bank and buffer.is_parameter:
                always += 2 * buffer.vectors  # its gradient, too
            elif buffer.is_in_bank and buffer.number in uses:
                if buffer.is_persistent:
                    always += buffer.vectors
                else:
                    change[uses[buffer.number][0].instruction] += buffer.vectors
                    change[uses[buffer.number][-1].instruction + 1] -= buffer.vectors
        return always, max(accumulate(change))

    def check_live(self) -> None:
        """Raise `DoesNotFit` if the banks together have too few vectors: no search of banks can succeed then."""
        if self.is_placed:
            return  # it was checked before the first search
        always, besides = self._live_vectors
        if always + besides > INNER_VECTORS:
            what = f"the program uses {always + besides:,} vectors of the banks at one time, all have {INNER_VECTORS:,}"
            raise DoesNotFit(what, self.with_tokens(SMALLER_MODEL))

    def with_tokens(self, choose: str, share: float = 1.0) -> str:
        """Return what to choose, and how many tokens about have space: all but parameters grows with them.

        `share`: the part of a matrix of all tokens that has space.
        """
        always, besides = self._live_vectors
        length = max(max_of(op.output.tokens) for op in self.operations)
        tokens = math.floor(length * (MOST_FILLED * INNER_VECTORS - always) / max(besides, 1))
        tokens = min(tokens, math.floor(length * min(share, 1)))
        return with_space(choose, f"samples of about {tokens} tokens" if 1 < tokens < length else "")

    @property
    def _counts(self) -> dict[str, float]:
        """The least numbers of a program's instructions, by the name of an operation or a parameter.

        A program has at least those that are emitted, those of the updates, in the forward pass and in FLUSH, those
        that clear sums over samples and what follows from them, and those that transfer the parameters and moments.
        Matrices that are not kept take more.
        """
        counts: dict[str, float] = defaultdict(float)
        for instruction in (*self.forward, *self.backward, *self.collect):
            counts["" if instruction.node is None else self.operations[instruction.node].name] += 1
        for block in self._trained_blocks:
            counts[block.name] += 2 * len(even_parts(block.vectors, 1, UPDATE_VECTORS))
        for op in self._reader_of_sum.values():
            counts[op.name] += 2  # FLUSH and the start of a call clear the sum, and what follows from it
        for block in self.layout.blocks:
            counts[block.name] += 2 * (block.buffer in self.collected)
        per_vector = 2 * (1 + len(MOMENTS)) / M.TRANSFER_VECTORS  # LOAD and STORE
        for block in self.layout.blocks:
            counts[block.name] += block.vectors * per_vector
        return counts

    def least_count(self, layer: str, copies: int) -> int:
        """Return the least number of instructions of the program of a model with copies of a layer.

        The last copy of an encoder has the fewest instructions: the others read a gradient that it wrote.

        `layer`: beginning of the names of its operations and parameters.
        """
        return math.ceil(sum(n * (copies if name.startswith(layer) else 1) for name, n in self._counts.items()))

    def check_count(self) -> None:
        """Raise `DoesNotFit` if the machine has no space for the instructions, before banks are searched."""
        counts = self._counts
        count, most = math.ceil(sum(counts.values())), M.PROGRAM_DEPTH
        if count > most:
            what = f"the program has at least {count:,} instructions, the machine takes {most:,}"
            fits = [layers_that_fit(counts, most, "instructions"), self._layers_to_freeze(counts, count - most)]
            raise DoesNotFit(what, with_space("fewer encoders", " or ".join(filter(None, fits))))

    def _layers_to_freeze(self, counts: Mapping[str, float], surplus: int) -> str:
        """Return how many of the first layers may be frozen, so that as many instructions are saved; "" if none.

        A frozen layer has no update and, if all before it is frozen, too, no backward pass.
        """
        saved: Counter[str] = Counter()
        for instruction in (*self.backward, *self.collect):
            saved["" if instruction.node is None else self.operations[instruction.node].name] += 1
        for block in self._trained_blocks:
            saved[block.name] += 2 * len(even_parts(block.vectors, 1, UPDATE_VECTORS))
        name, layers = largest_list(counts)
        for frozen in range(1, len(layers)):
            surplus -= sum(n for key, n in saved.items() if layer_number(key, name) == sorted(layers)[frozen - 1])
            if surplus <= 0:
                return f"the first {frozen} of {len(layers)} layers of {name} frozen, and all before them"
        return ""

    @property
    def _trained_blocks(self) -> list[Block]:
        blocks, constants = self.layout.blocks, self.layout.constants
        return [block for block in blocks if block.name not in self.frozen and block.name not in constants]

    def emit_updates(self, is_early: bool | None = None) -> list[Instruction]:
        """Return the updates of parameters; they clear gradients that are accumulated or not always written.

        `is_early`: true for parameters that the first half of the forward pass reads, False for the others; by default
        all.
        """
        return self.section("PU", lambda: self._updates(is_early))

    def emit_clears(self) -> list[Instruction]:
        """Return the instructions that clear the sums, and the gradients that follow from them."""
        return self.section("PU", self._clears)

    def _clears(self) -> None:
        steps: Counter[int] = Counter()
        for instruction in self.collect:
            steps[instruction.unit] += instruction.steps(1)
        # Most sums have been read after two thirds of the engines' steps: until then the vector unit cannot clear them.
        steps[M.VECTOR] = max(steps[M.VECTOR], 2 * steps[M.ENGINE_0] // 3)
        places = [
            (op, at(Memory.bank(buffer.bank), buffer.base), buffer.vectors)
            for buffer, op in self._reader_of_sum.items()
        ]
        places += (
            (block.name, block.gradient(), block.vectors)
            for block in self.layout.blocks
            if block.buffer in self.collected
        )
        for owner, place, vectors in places:
            if isinstance(owner, str):
                what = "clear"
                self.label_with_parameter(owner)
            else:
                what = "clear the sum"
                self.label_with(owner)
            units = [unit for unit, number in RESULT.items() if place.number in M.reach(unit, number, True).banks]
            # The one with the fewest steps of those that reach the bank.
            unit = min(units, key=lambda unit: steps[unit])
            steps[unit] += vectors
            operation = M.COPY if unit == M.VECTOR else M.EXPAND
            self.builder.emit(unit, operation, what, [Level("w", vectors)], {RESULT[unit]: place.part(w=1)})

    def _updates(self, is_early: bool | None) -> None:
        b, offsets, offset, has_moments = self.builder, {}, 0, self.layout.finished.has_moments
        for block in self.layout.blocks:
            offsets[block], offset = offset, offset + block.vectors
        for block in sorted(self._trained_blocks, key=lambda block: block.buffer.number):
            first_use = self.first_use.get(block.buffer.memory, 0)
            if is_early is not None and is_early != (first_use < len(self.forward) // 2):
                continue
            self.label_with_parameter(block.name)
            state = [block.where(), block.gradient()]
            if has_moments:
                state += (at(Memory.bank(number), offsets[block]) for number in MOMENTS)
            for first, count in even_parts(block.vectors, 1, UPDATE_VECTORS):
                b.update("update", count, *(place.part(first) for place in state), clear=block.buffer.is_accumulated)


def _check_sizes(graph: Graph) -> None:
    for op in graph.operations:
        if (rows := max_of(op.output.tokens)) > M.SEQUENCE:
            raise ProgramError(f"sequences of {rows}: the card takes up to {M.SEQUENCE} tokens")
        for matrix in (*op.inputs, op.output):
            if matrix.features % LANES and not op.keeps_zeros:
                rule = f"the card takes multiples of {LANES}, and others between dense layers, ReLU, GELU and SiLU"
                raise ProgramError(f"{op.name} has {matrix.features} features: {rule}")


class Lowerings:
    """The lowerings of a graph by a flow, which searches of banks with several windows share.

    `sums`: as for `Lowering`.
    """

    def __init__(self, graph: Graph, flow, sums: bool = False):
        self.graph, self.flow, self.sums = graph, flow, sums
        self._variants: dict[str, Graph] = {}  # of the graph, by the name of the method that returns them
        self._wholes: dict[int, tuple[Lowering, int]] = {}  # by the variant, of `_whole`
        self._made: dict[tuple[int, int], Lowering] = {}  # by the variant, and how much is kept

    def lower(self, tokens: int, window: int = WINDOW) -> Lowering:
        """Return the instructions of a model's sample, with as many matrices kept as the banks have space for.

        With sums, everything is kept or everything recomputed: without them there is a program, too. Another call may
        return the same object, with other banks.

        `tokens`: length of the samples for which banks are chosen.
        `window`: as for `banks.Assignment`.
        Raise `DoesNotFit` if the model does not fit even with everything recomputed that can be.

        The rows of a frozen table of tokens come in the samples' records if the graph asks for it, or does not fit
        otherwise. Numbers that multiply matrices are rows in place of tables if the tables are full.
        """
        try:
            return self._lowered_with_table(self.graph, tokens, window)
        except TablesFull:
            return self._lowered_with_table(self._variant(self.graph.with_numbers_in_rows), tokens, window)

    def unplaced(self) -> Lowering:
        """Return the instructions of a sample for which no banks are searched, with everything kept.

        Raise `ProgramError` if the rows of a table would have to come in records, or the tables are full.
        """
        fitting = self._kept(self.graph, EVERYTHING)
        return Lowering(self.graph, self.flow, sums=self.sums) if fitting.is_placed else fitting

    def _variant(self, method: Callable[[], Graph]) -> Graph:
        name = f"{id(method.__self__)}.{method.__name__}"
        return self._variants.get(name) or self._variants.setdefault(name, method())

    def _lowered_with_table(self, graph: Graph, tokens: int, window: int) -> Lowering:
        """Return the instructions of a model's sample; arguments and errors are those of `lower`."""
        if graph.frozen_table is None or graph.rows_in_records is False:
            return self._lowered(graph, tokens, window)
        if graph.rows_in_records:
            return self._lowered(self._variant(graph.with_rows_in_records), tokens, window)
        try:
            return self._lowered(graph, tokens, window)
        except DoesNotFit as error:
            on_chip = error
        try:
            return self._lowered(self._variant(graph.with_rows_in_records), tokens, window)
        except RowsDoNotFit as error:
            raise DoesNotFit(on_chip.what, f"{on_chip.choose}; or, with its rows in records, {error.choose}") from None

    def _kept(self, graph: Graph, kept: int) -> Lowering:
        """Return the lowering that keeps the first `kept` of what may be kept, before banks are searched."""
        key = id(graph), kept
        if key not in self._made:
            self._made[key] = Lowering(graph, self.flow, kept, self.sums)
        return self._made[key]

    def _whole(self, graph: Graph) -> tuple[Lowering, int]:
        """Return the lowering that keeps all for which there is space, by a count of vectors, and how much that is."""
        fitting = self._kept(graph, EVERYTHING)
        fitting.check_count()
        if (most := fitting.most_kept) < len(fitting.keepable):
            fitting = self._kept(graph, most)
        return fitting, most

    def _lowered(self, graph: Graph, tokens: int, window: int) -> Lowering:
        """Return the instructions of a model's sample; arguments and errors are those of `lower`."""
        if id(graph) not in self._wholes:
            self._wholes[id(graph)] = self._whole(graph)
        fitting, most = self._wholes[id(graph)]
        try:
            fitting.check_live()
            fitting.fit(tokens, window)
        except DoesNotFit:
            guess = fitting.guess_kept()
            fits, does_not = 0, most  # numbers of matrices to keep
            fitting = self._kept(graph, 0)
            fitting.check_live()
            if self.sums:
                fitting.check_count()
            try:
                fitting.fit(tokens, window)
            except DoesNotFit as error:
                raise DoesNotFit(error.what, fitting.with_tokens(error.choose, error.share)) from None
            kept, step = min(max(guess, 1), most - 1), 1  # from the guess on in growing steps, then by halves
            while does_not - fits > 1 and not self.sums:
                model = self._kept(graph, kept)
                try:
                    model.fit(tokens, window)
                    fits, fitting, kept = kept, model, kept + step
                except DoesNotFit:
                    does_not, kept = kept, kept - step
                if not fits < kept < does_not:
                    kept = (fits + does_not + 1) // 2
                step *= 2
        fitting.assign()
        return fitting
