"""All tensor-train linear layers of a model: their operand buffers and their instructions.

The backward pass recomputes y, and the intermediates between z and y, from z.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bttlab.compiler.arrangement import Sizes, Stored, elements, rearrange
from bttlab.compiler.builder import MAX_RANK, ROWS, Builder, block_rows, padded, vectors_for
from bttlab.compiler.candidates import Contents
from bttlab.compiler.contraction import Blocks, Contraction
from bttlab.compiler.errors import DoesNotFit, ProgramError
from bttlab.compiler.instruction import ACCUMULATE, EXPAND, REDUCE, At, Bound, Level, max_of
from bttlab.compiler.layout import Block, Layout
from bttlab.compiler.machine import M
from bttlab.compiler.matrix import core_names
from bttlab.compiler.tt_layer import IN, OUT, TTLayer, axes_of, order_of_merges
from bttlab.tensor.order import Order, Product

# Cores that are merged at the input's end and at the output's, before the tokens are contracted with them. The forward
# pass of "mixed" merges all: its path from x to y is shorter, and its backward pass has less to do than the paper's.
MERGED = {"bidirectional": (3, 3), "right_to_left": (1, 1), "mixed": (2, 3)}
BIAS, ADDEND = "the bias", "the addend"  # two words: no tensor of an order has such a name


def _merges(flow: str | tuple[int, int] | Order) -> tuple[int, int] | None:
    """Return how many cores a flow merges at the input's end and at the output's; None if it is an `Order`."""
    if isinstance(flow, Order):
        return None
    merged = MERGED.get(flow, flow)
    if not (isinstance(merged, tuple) and len(merged) == 2 and set(merged) <= {1, 2, 3}):
        raise ProgramError(
            f"flow is {flow!r}: choose {', '.join(MERGED)}, auto, or how many cores are merged at each end, (1..3, "
            "1..3)"
        )
    return merged


def _cores(name: str, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return the names of a layer's cores.

    Raise `ProgramError` if the engines cannot compute a layer of so many cores, or of such ranks.
    """
    cores = core_names(shapes, name)
    if len(cores) not in (4, 6, 8):
        rule = "the card takes two, three or four modes at each end, the same number at both"
        raise ProgramError(f"{name} has {len(cores)} cores: {rule}")
    highest = max(shapes[core][2] for core in cores)
    if highest > MAX_RANK:
        what = f"{name} has rank {highest}; an engine takes up to {MAX_RANK}, {ROWS} in a pass"
        raise DoesNotFit(what, f"ranks up to {MAX_RANK}")
    return cores


class OperandContents:
    """What linear layers have loaded into the operand buffer of an engine."""

    def __init__(self, builder: Builder, engine: int):
        self.builder, self.home = builder, f"buffer {engine}"
        self._of: dict[str, Contents] = {}  # by the layer's name, in the order of their last use

    def of(self, layer: str) -> Contents:
        """Return what a layer has loaded: none of it if the operand buffer has no space for it and all loaded since."""
        names = list(self._of)
        since = names[names.index(layer) :] if layer in self._of else []
        used = (buffer for name in since for buffer in self._of[name].buffers)
        always = (b for b in self.builder.made if b.home == self.home and b.is_persistent)
        is_kept = sum(b.vectors for b in (*used, *always)) <= M.OPERAND_BUFFER_DEPTH
        contents = self._of.pop(layer, None)
        contents = self._of[layer] = contents if contents is not None and is_kept else Contents()
        contents.buffers.append(self.builder.new_buffer(f"operands of {layer}", 0, home=self.home))
        return contents

    def clear(self) -> None:
        self._of.clear()


def linear_layers(
    builder: Builder,
    layout: Layout,
    names: Mapping[str, Bound],
    shapes: Mapping[str, tuple[int, ...]],
    flow: str | tuple[int, int] | Order,
    sums: bool = False,
) -> "list[LinearLayer]":
    """Return all linear layers of a model, in the order of the forward pass.

    `names`: their names, and their numbers of tokens.
    `flow`: a key of MERGED, the number of cores to merge at the input's and the output's end, or an order of
    contraction.
    `sums`: whether gradients that follow from the tokens (of merged cores, say) are summed over the samples of an
    update, and those of the cores follow from the sums once per update (`collect`).
    """
    layers, contents = [], [OperandContents(builder, engine) for engine in range(M.ENGINES)]
    biases = [layout.place(f"{name}.bias") if f"{name}.bias" in shapes else None for name in names]
    for number, (name, tokens) in enumerate(names.items()):
        cores = _cores(name, shapes)
        merged = _merges(flow)
        # Where the two ends take different work, the engines swap ends from layer to layer to balance the load.
        swap = number % 2 if merged and merged[IN] != merged[OUT] else 0
        order = order_of_merges(len(cores), merged) if merged else flow
        if (order.outputs, order.inputs) != (len(cores) // 2,) * 2:
            rule = f"the order has {order.outputs} and {order.inputs} at the ends"
            raise ProgramError(f"{name} has {len(cores) // 2} cores at each end, {rule}: give one with as many")
        blocks = [layout.place(core, axes) for core, axes in zip(cores, axes_of(len(cores) // 2), strict=True)]
        ranks = tuple(shapes[core] for core in cores)
        engines, is_direct, bias = (swap, 1 - swap), flow == "mixed", biases[number]
        layer = LinearLayer(name, tokens, order, engines, ranks, is_direct, builder, contents, blocks, bias)
        layers.append(layer)
    has_sums = sums and any(not layer.has_tokens(product) for layer in layers for product in layer.backward_products)
    for layer in layers:
        layer.has_sums = has_sums
    return layers


@dataclass(eq=False)
class LinearLayer(TTLayer):
    """A linear layer with its parameters; its methods emit the instructions of the passes.

    `keeps_between`: whether the intermediate between x and z (`keepable`) is kept for the backward pass.
    `sums`: for a gradient of the tokens, its sum over the samples of an update.
    """

    builder: Builder
    contents: Sequence[OperandContents]  # of the engines
    blocks: Sequence[Block]  # of the cores
    bias: Block | None
    has_sums: bool = False
    keeps_between: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        place = self.builder.allocate(f"z of {self.name}", self.z_arrangement.vectors(self.sizes))
        self.stored_z = Stored(self.z, place, self.z_arrangement)
        self.between: Stored | None = None
        self.sums: dict[str, Stored] = {}

    def _contraction(self, phase: int) -> Contraction:
        """Return the emitter of a phase's products, with the cores and their targets."""
        self.builder.layer, engine = self.name, self.engines[phase]
        s = Contraction(self.builder, engine, self, self.contents[engine].of(self.name))
        for block, (name, arrangement) in zip(self.blocks, self.cores.items(), strict=True):
            if any(name in step for step in self.steps[phase]):
                s.add_copy(Stored(name, block.where(), arrangement), True)
                s.targets[f"d{name}"] = Stored(f"d{name}", block.gradient(), arrangement)
        for step in self.steps[phase]:
            if "t" not in self.indices[step[0]]:
                s.defer(step)
        return s

    def _tokens(self, phase: int) -> list[Product]:
        return [step for step in self.steps[phase] if "t" in self.indices[step[0]]]

    def _store_result(self, s: Contraction, name: str) -> None:
        """Copy a result to its target, unless it was computed there."""
        target = s.targets[name]
        for stored in s.tensors[name].stored:
            if stored.place.memory == target.place.memory and stored.place.base == target.place.base:
                return
        s.copy_to(s.tensors[name], target)

    # ---- forward -------------------------------------------------------------------------------------------------

    def forward(self, x: At, y: At, is_buffered: bool = False) -> None:
        """Emit y = x W^T + b.

        `x`, `y`: (tokens, features), row by row; y in an operand buffer if `is_buffered`: token t in row t mod ROWS,
        blocks of ROWS tokens one after the other.
        """
        s = self._contraction(IN)
        s.add_copy(Stored("x", x, self.features("x")))
        self._emit_z(s)
        self.recompute(y, is_buffered)

    def _emit_z(self, s: Contraction) -> None:
        """Emit the products from x to z."""
        s.targets[self.z] = self.stored_z
        *before, last = self._tokens(IN)
        if self.direct:
            merge, last = self.direct
            s.defer(merge)
        else:
            for step in before:
                self.between = s.product(step)
        if self.has_one:  # REDUCE can write an extra element of 1 to each row
            s.product(last, s.choose(last, REDUCE), flags=M.ONE)
        else:
            s.product(last)
        self._store_result(s, self.z)
        if self.direct and self.keeps_between:
            self.between = s.product(before[0])

    def recompute(self, y: At, is_buffered: bool = False) -> None:
        """Emit y = z L^T + b from the z that `forward` computed; arguments as for `forward`."""
        s = self._contraction(OUT)
        s.add_copy(self.stored_z)
        *first, last = self._tokens(OUT)
        for step in first:
            s.product(step)
        features = self.features("y")
        blocks = None
        if is_buffered:
            vectors, count = features.row_vectors(self.sizes), -(-max_of(self.tokens) // ROWS)
            blocks = [(block_rows(self.tokens, n), ROWS * n, y.part(n * vectors)) for n in range(count)]
        self._emit_y(s, last, Stored("y", y, features), blocks)

    def _emit_y(self, s: Contraction, last: Product, y: Stored, blocks: Blocks | None) -> None:
        """Emit the last product, y, with the bias as addend, and permute it to the features' order if necessary."""
        s.targets["y"] = y
        if self.bias is not None:
            s.add_copy(Stored(BIAS, self.bias.where(), replace(y.arrangement, order=y.arrangement.order[1:])))
        c = s.product(last, s.choose(last, EXPAND), addend=BIAS if self.bias is not None else "", blocks=blocks)
        if c.place.memory == y.place.memory:
            return
        if blocks is None:
            rearrange(s.b, s.sizes, c, y)
            return
        t = c.strides(s.sizes)["t"]
        for bound, first, place in blocks:
            sizes = Sizes(s.sizes, {"t": bound})
            rearrange(s.b, sizes, replace(c, place=c.place.offset_by(first * t)), replace(y, place=place))

    # ---- backward ------------------------------------------------------------------------------------------------

    def backward(self, d_y: At, x: At, tokens: Bound, d_x: At, addend: At | None = None) -> None:
        """Emit d_x = addend + d_y W, and the gradients of the cores and the bias."""
        b, z = self.builder, self.z
        sessions = [self._contraction(phase) for phase in (IN, OUT)]
        into, out = sessions
        out.add_copy(Stored("dy", d_y, self.features("y")))
        out.add_copy(self.stored_z)
        into.add_copy(Stored("x", x, self.features("x")))
        d_z = b.allocate("d_z", self.z_arrangement.vectors(self.sizes))
        out.targets[f"d{z}"] = Stored(f"d{z}", d_z, self.z_arrangement)
        into.targets["dx"] = Stored("dx", d_x, self.features("x"))
        has_bias = False
        prepared = [False, False]
        for product in self.backward_products:
            result = product[0]
            phase = self.phase_of(product)
            s = sessions[phase]
            if not prepared[phase] and any(
                "t" in self.indices[n] and not n.startswith("d") and n not in s.tensors for n in product[1:]
            ):
                prepared[phase] = True
                if phase == IN and self.keeps_between:
                    s.add_copy(self.between)
                else:
                    for step in self._tokens(phase)[:-1]:
                        s.product(step)
            if result == f"d{z}":
                s.product(product)
                self._store_result(s, result)
                into.add_copy(s.targets[result])
            elif result == "dx":
                self._d_x(s, product, addend)
            elif not self.has_sums or "t" in self.indices[result]:
                has_bias |= self._core_gradient(s, product, self.bias)
            elif self.has_tokens(product):
                if target := s.targets.get(result):
                    vectors = target.arrangement.vectors(self.sizes)
                    s.targets[result] = replace(target, place=b.allocate(f"{result} of the sample", vectors))
                has_bias |= self._core_gradient(s, product, self.bias)
                self._add_to_sum(s.targets.get(result) or s.tensors[result].stored[0])
        if self.bias is not None and not has_bias:
            vectors = vectors_for(elements(self.sizes, self.features("y").packed))
            b.columns(
                "d b",
                [Level("t", tokens), padded("w", vectors)],
                d_y.part(t=vectors, w=1),
                r1=self.bias.gradient().part(w=1),
                check=True,
            )

    def _core_gradient(self, s: Contraction, product: Product, bias: Block | None) -> bool:
        """Emit a product of the backward pass; return whether it also computes the gradient of the bias.

        Rows of z have an extra element of 1, so the sum over tokens of z^T d_y has one more row: that gradient.
        """
        result = product[0]
        if result in s.targets:
            s.product(product)
            self._store_result(s, result)
            return False
        is_whole = bias is not None and self.has_one and set(product[1:]) == {self.z, "dy"}
        if is_whole and (candidate := s.choose(product, ACCUMULATE, "dy")):
            s.product(product, candidate, bias=bias.gradient())
            return True
        s.product(product)
        return False

    def _d_x(self, s: Contraction, product: Product, addend: At | None) -> None:
        features, target = self.features("x"), s.targets["dx"]
        vectors = features.row_vectors(self.sizes)
        candidate = s.choose(product, EXPAND)
        if addend is None:
            s.product(product, candidate)
            self._store_result(s, "dx")
            return
        if candidate is not None and s.matches_target(candidate, "dx"):
            s.add_copy(Stored(ADDEND, addend, features))
            s.product(product, candidate, addend=ADDEND)
            return
        del s.targets["dx"]
        c = s.product(product, s.choose(product, EXPAND))
        s.targets["dx"] = target
        term = s.allocate("dx", features)
        rearrange(s.b, s.sizes, c, term)
        matrix, loops = {"t": vectors, "w": 1}, [Level("w", vectors), padded("t", self.tokens)]
        first, second, result = (place.part(**matrix) for place in (term.place, addend, target.place))
        self.builder.vector(M.ADD, "d_x", loops, first, second, r0=result)

    # ---- sums over samples ---------------------------------------------------------------------------------------

    def _add_to_sum(self, gradient: Stored) -> None:
        """Emit sum = sum + gradient, for a gradient of the sample."""
        name, vectors = gradient.name, gradient.arrangement.vectors(self.sizes)
        if name not in self.sums:
            place = self.builder.allocate(f"sum of {name} of {self.name}", vectors, is_persistent=True)
            self.sums[name] = replace(gradient, place=place)
        place, terms = self.sums[name].place.part(w=1), gradient.place.part(w=1)
        self.builder.vector(M.ADD, f"sum of {name}", [Level("w", vectors)], place, terms, r0=place, flags=M.CHECK)

    def collect(self) -> None:
        """Emit the gradients of the cores from the sums over samples."""
        for contents in self.contents:
            contents.clear()
        sessions = [self._contraction(phase) for phase in (IN, OUT)]
        for product in self.backward_products:
            result = product[0]
            s = sessions[self.phase_of(product)]
            if result in self.sums:
                s.add_copy(self.sums[result])
                if result in s.targets:  # the sum is a core's gradient
                    vectors = s.targets[result].arrangement.vectors(s.sizes)
                    source, target = (stored.place.part(w=1) for stored in (self.sums[result], s.targets[result]))
                    self.builder.vector(M.COPY, f"d{result}", [Level("w", vectors)], source, r0=target, flags=M.CHECK)
            elif not self.has_tokens(product):
                self._core_gradient(s, product, None)
