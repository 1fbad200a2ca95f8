"""All tensor-train linear layers of a model: their operand buffers and their instructions.

The backward pass recomputes y, and the intermediates between z and y, from z.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache

from bttlab.compiler.arrangement import Sizes, Stored, elements, rearrange
from bttlab.compiler.builder import MAX_RANK, ROWS, Builder, block_rows, padded, vectors_for
from bttlab.compiler.candidates import Key, Region
from bttlab.compiler.contraction import Blocks, Contraction
from bttlab.compiler.errors import DoesNotFit, ProgramError
from bttlab.compiler.instruction import ACCUMULATE, EXPAND, REDUCE, At, Bound, Level, max_of
from bttlab.compiler.layout import Block, Layout
from bttlab.compiler.machine import M
from bttlab.compiler.matrix import core_names
from bttlab.compiler.tt_layer import IN, OUT, TTLayer, axes_of, order_of_merges, shared_candidates
from bttlab.tensor.order import Order, Product

# Cores that are merged at the input's end and at the output's, before the tokens are contracted with them.
MERGED = {"bidirectional": (3, 3), "right_to_left": (1, 1)}
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


@lru_cache(maxsize=256)
def _buffer_plans(shapes: tuple, tokens: Bound, order: Order, sums: bool) -> tuple[dict[Key, tuple[int, int]], ...]:
    """Return the plans of both phases' regions (`candidates.Region`), found by emitting both passes once."""
    b, names = Builder(), {f"l.cores.{k}": shape for k, shape in enumerate(shapes)}
    trial = LinearLayers(b, Layout(b, names), {"l": tokens}, names, order, sums)
    (layer,) = trial.layers
    x, y, dy, dx = (b.allocate(n, layer.features(n).vectors(layer.sizes)) for n in ("x", "y", "dy", "dx"))
    trial.forward(0, x, y)
    trial.backward(0, dy, x, tokens, dx)
    trial.collect()
    return tuple(trial.plans[0])


class LinearLayers:
    """All linear layers of a model: their operand buffers, and the instructions of a pass.

    `names`: names of the layers in the order of the forward pass, and their numbers of tokens.
    `flow`: a key of MERGED, the number of cores to merge at the input's and the output's end, or an order of
    contraction.
    `sums`: whether gradients that follow from the tokens (of merged cores, say) are summed over the samples of an
    update, and those of the cores follow from the sums once per update (`collect`).
    """

    def __init__(self, builder: Builder, layout: Layout, names: Mapping[str, Bound], shapes, flow, sums: bool = False):
        self.builder, self.layout, self.names = builder, layout, list(names)
        self.layers: list[TTLayer] = []
        for number, (name, tokens) in enumerate(names.items()):
            cores = _cores(name, shapes)
            merged = _merges(flow)
            # Where the two ends take different work, the engines swap ends from layer to layer to balance the load.
            swap = number % 2 if merged and merged[IN] != merged[OUT] else 0
            order = order_of_merges(len(cores), merged) if merged else flow
            if (order.outputs, order.inputs) != (len(cores) // 2,) * 2:
                rule = f"the order has {order.outputs} and {order.inputs} at the ends"
                raise ProgramError(f"{name} has {len(cores) // 2} cores at each end, {rule}: give one with as many")
            for core, axes in zip(cores, axes_of(len(cores) // 2), strict=True):
                layout.place(core, axes)
            self.layers.append(TTLayer(name, tokens, order, (swap, 1 - swap), tuple(shapes[core] for core in cores)))
        self.places = [
            builder.allocate(f"z of {layer.name}", layer.z_arrangement.vectors(layer.sizes)) for layer in self.layers
        ]
        self._regions: list[list[At]] = [[], []]
        self._loaded: dict[tuple[int, int], tuple[int, int, Region]] = {}  # last user of each region
        self.plans: list[tuple[dict[Key, tuple[int, int]], ...]] = [({}, {}) for _ in self.layers]
        self._is_trial = True  # until `divide_buffers`: the plans are open
        self._kept: dict[int, Stored | None] = {}  # None until the forward pass computes it
        products = [(layer, product) for layer in self.layers for product in layer.backward]
        self.sums = sums and any(not layer.has_tokens(product) for layer, product in products)
        self._sums: list[dict[str, Stored]] = [{} for _ in self.layers]  # by layer and name of the gradient

    @property
    def layers_with_intermediate(self) -> list[int]:
        """Numbers of the layers with an intermediate between x and z that may be kept for the backward pass."""
        return [n for n, layer in enumerate(self.layers) if layer.keepable]

    # ---- operand buffers -----------------------------------------------------------------------------------------

    def divide_buffers(self, kept: Collection | None = None) -> None:
        """Divide the rest of the operand buffers into regions that layers use in turn; call it last.

        `kept`: layers of `layers_with_intermediate` whose intermediate is kept for the backward pass; by default all.
        """
        if not self.layers:
            return
        self._is_trial = False
        self.plans = [_buffer_plans(layer.shapes, layer.tokens, layer.order, self.sums) for layer in self.layers]
        for engine, regions in enumerate(self._regions):
            sizes = [0, 0]  # of the regions of even and odd layers
            for n, layer in enumerate(self.layers):
                phase = layer.engines.index(engine)
                sizes[n % 2] = max(sizes[n % 2], sum(vectors for _, vectors in self.plans[n][phase].values()))
            memory = self.builder.buffers[engine]
            count = min((memory.depth - memory.used) // max(sum(sizes), 1), -(-len(self.layers) // 2))
            for n in range(max(count, 1)):
                regions.extend(
                    self.builder.allocate_operand_buffer(
                        f"a linear layer's cores, region {2 * n + i}", engine, sizes[i]
                    )
                    for i in (0, 1)
                )
        self._kept = {n: None for n in self.layers_with_intermediate if kept is None or n in kept}

    def _contraction(self, number: int, phase: int) -> Contraction:
        """Return the emitter of a phase's products, with the cores and their targets.

        The operand buffer still has its contents if the region's last user was the same phase of the same layer.
        """
        layer = self.layers[number]
        engine = layer.engines[phase]
        self.builder.layer = layer.name
        n = 0 if self._is_trial else number % len(self._regions[engine])
        if self._loaded.get((engine, n), (None, None))[:2] != (number, phase):
            place = At(f"buffer {engine}", 0) if self._is_trial else self._regions[engine][n]
            self._loaded[engine, n] = number, phase, Region(place, self.plans[number][phase], self._is_trial)
        cache = shared_candidates(layer.order, layer.shapes, layer.tokens, self.sums, phase, self._is_trial)
        region = self._loaded[engine, n][2]
        s = Contraction(self.builder, region, layer.sizes, layer.costs, layer.indices, layer.preferred, cache)
        for k, (name, arrangement) in enumerate(layer.cores.items()):
            if any(name in step for step in layer.steps[phase]):
                block = self.layout.of(f"{layer.name}.cores.{k}")
                s.add_copy(Stored(name, block.where(), arrangement), True)
                s.targets[f"d{name}"] = Stored(f"d{name}", block.gradient(), arrangement)
        for step in layer.steps[phase]:
            if "t" not in layer.indices[step[0]]:
                s.defer(step)
        return s

    def _bias(self, number: int):
        name = f"{self.names[number]}.bias"
        return self.layout.of(name) if name in {*self.layout.shapes, *self.layout.copies} else None

    # ---- passes --------------------------------------------------------------------------------------------------

    def _tokens(self, number: int, phase: int) -> list[Product]:
        layer = self.layers[number]
        return [step for step in layer.steps[phase] if "t" in layer.indices[step[0]]]

    def _store_result(self, s: Contraction, name: str) -> None:
        """Copy a result to its target, unless it was computed there."""
        target = s.targets[name]
        for stored in s.tensors[name].stored:
            if stored.place.memory == target.place.memory and stored.place.base == target.place.base:
                return
        s.copy_to(s.tensors[name], target)

    def forward(self, number: int, x: At, y: At, is_buffered: bool = False) -> None:
        """Emit y = x W^T + b.

        `x`, `y`: (tokens, features), row by row; y in an operand buffer if `is_buffered`: token t in row t mod ROWS,
        blocks of ROWS tokens one after the other.
        """
        s = self._contraction(number, IN)
        s.add_copy(Stored("x", x, self.layers[number].features("x")))
        self._emit_z(number, s)
        self.recompute(number, y, is_buffered)

    def _emit_z(self, number: int, s: Contraction, only_between: bool = False) -> None:
        """Emit the products from x to z, or those before z alone; the kept intermediate gets a buffer of its own."""
        layer = self.layers[number]
        s.targets[layer.z] = Stored(layer.z, self.places[number], layer.z_arrangement)
        for step in self._tokens(number, IN):
            if step[0] == layer.z:
                if only_between:
                    return
                if layer.has_one:  # REDUCE can write an extra element of 1 to each row
                    s.product(step, s.choose(step, REDUCE), flags=M.ONE)
                else:
                    s.product(step)
            elif self._kept.get(number, step) is None:
                self._kept[number] = s.product(step)
            else:
                s.product(step)
        self._store_result(s, layer.z)

    def recompute(self, number: int, y: At, is_buffered: bool = False) -> None:
        """Emit y = z L^T + b from the z that `forward` computed; arguments as for `forward`."""
        layer = self.layers[number]
        s = self._contraction(number, OUT)
        s.add_copy(Stored(layer.z, self.places[number], layer.z_arrangement))
        *first, last = self._tokens(number, OUT)
        for step in first:
            s.product(step)
        features = layer.features("y")
        blocks = None
        if is_buffered:
            vectors, count = features.row_vectors(layer.sizes), -(-max_of(layer.tokens) // ROWS)
            blocks = [(block_rows(layer.tokens, n), ROWS * n, y.part(n * vectors)) for n in range(count)]
        self._emit_y(number, s, last, Stored("y", y, features), blocks)

    def _emit_y(self, number: int, s: Contraction, last: Product, y: Stored, blocks: Blocks | None) -> None:
        """Emit the last product, y, with the bias as addend, and permute it to the features' order if necessary."""
        s.targets["y"], bias = y, self._bias(number)
        if bias is not None:
            s.add_copy(Stored(BIAS, bias.where(), replace(y.arrangement, order=y.arrangement.order[1:])))
        c = s.product(last, s.choose(last, EXPAND), addend=BIAS if bias is not None else "", blocks=blocks)
        if c.place.memory == y.place.memory:
            return
        if blocks is None:
            rearrange(s.b, s.sizes, c, y)
            return
        t = c.strides(s.sizes)["t"]
        for bound, first, place in blocks:
            sizes = Sizes(s.sizes, {"t": bound})
            rearrange(s.b, sizes, replace(c, place=c.place.offset_by(first * t)), replace(y, place=place))

    def backward(self, number: int, d_y: At, x: At, tokens: Bound, d_x: At, addend: At | None = None) -> None:
        """Emit d_x = addend + d_y W, and the gradients of the cores and the bias."""
        layer, b = self.layers[number], self.builder
        bias = self._bias(number)
        sessions = [self._contraction(number, phase) for phase in (IN, OUT)]
        into, out = sessions
        z = layer.z
        out.add_copy(Stored("dy", d_y, layer.features("y")))
        out.add_copy(Stored(z, self.places[number], layer.z_arrangement))
        into.add_copy(Stored("x", x, layer.features("x")))
        out.targets[f"d{z}"] = Stored(
            f"d{z}", b.allocate("d_z", layer.z_arrangement.vectors(layer.sizes)), layer.z_arrangement
        )
        into.targets["dx"] = Stored("dx", d_x, layer.features("x"))
        has_bias = False
        prepared = [False, False]
        for product in layer.backward:
            result = product[0]
            phase = layer.phase_of(product)
            s = sessions[phase]
            if not prepared[phase] and any(
                "t" in layer.indices[n] and not n.startswith("d") and n not in s.tensors for n in product[1:]
            ):
                prepared[phase] = True
                if phase == OUT:
                    for step in self._tokens(number, OUT)[:-1]:
                        s.product(step)
                elif number in self._kept:
                    s.add_copy(self._kept[number])
                else:
                    self._emit_z(number, s, True)
            if result == f"d{z}":
                s.product(product)
                self._store_result(s, result)
                into.add_copy(s.targets[result])
            elif result == "dx":
                self._d_x(number, s, product, addend)
            elif not self.sums or "t" in layer.indices[result]:
                has_bias |= self._core_gradient(number, s, product, bias)
            elif layer.has_tokens(product):
                if target := s.targets.get(result):
                    vectors = target.arrangement.vectors(layer.sizes)
                    s.targets[result] = replace(target, place=b.allocate(f"{result} of the sample", vectors))
                has_bias |= self._core_gradient(number, s, product, bias)
                self._add_to_sum(number, s.targets.get(result) or s.tensors[result].stored[0])
        if bias is not None and not has_bias:
            vectors = vectors_for(elements(layer.sizes, layer.features("y").packed))
            b.columns(
                "d b",
                [Level("t", tokens), padded("w", vectors)],
                d_y.part(t=vectors, w=1),
                r1=bias.gradient().part(w=1),
                check=True,
            )

    def _add_to_sum(self, number: int, gradient: Stored) -> None:
        """Emit sum = sum + gradient, for a gradient of the sample."""
        name, vectors = gradient.name, gradient.arrangement.vectors(self.layers[number].sizes)
        if name not in self._sums[number]:
            text = f"sum of {name} of {self.names[number]}"
            place = self.builder.allocate(text, vectors, is_persistent=True)
            self._sums[number][name] = replace(gradient, place=place)
        place, terms = self._sums[number][name].place.part(w=1), gradient.place.part(w=1)
        self.builder.vector(M.ADD, f"sum of {name}", [Level("w", vectors)], place, terms, r0=place, flags=M.CHECK)

    def collect(self) -> None:
        """Emit the gradients of the cores from the sums over samples."""
        for number in range(len(self.layers) if self.sums else 0):
            self._collect(number)

    def sum_buffers(self) -> list[int]:
        return [int(total.place.memory.split()[1]) for sums in self._sums for total in sums.values()]

    def _collect(self, number: int) -> None:
        layer, sums = self.layers[number], self._sums[number]
        self._loaded.clear()
        sessions = [self._contraction(number, phase) for phase in (IN, OUT)]
        for product in layer.backward:
            result = product[0]
            s = sessions[layer.phase_of(product)]
            if result in sums:
                s.add_copy(sums[result])
                self._copy_sum(s, result)
            elif not layer.has_tokens(product):
                self._core_gradient(number, s, product, None)

    def _copy_sum(self, s: Contraction, name: str) -> None:
        """Copy a sum that is a core's gradient to its place."""
        if name in s.targets:
            vectors = s.targets[name].arrangement.vectors(s.sizes)
            source, result = (stored.place.part(w=1) for stored in (s.tensors[name].stored[0], s.targets[name]))
            self.builder.vector(M.COPY, f"d{name}", [Level("w", vectors)], source, r0=result, flags=M.CHECK)

    def _core_gradient(self, number: int, s: Contraction, product: Product, bias: Block | None) -> bool:
        """Emit a product of the backward pass; return whether it also computes the gradient of the bias.

        Rows of z have an extra element of 1, so the sum over tokens of z^T d_y has one more row: that gradient.
        """
        layer, result = self.layers[number], product[0]
        if result in s.targets:
            s.product(product)
            self._store_result(s, result)
            return False
        is_whole = bias is not None and layer.has_one and set(product[1:]) == {layer.z, "dy"}
        if is_whole and (candidate := s.choose(product, ACCUMULATE, "dy")):
            s.product(product, candidate, bias=bias.gradient())
            return True
        s.product(product)
        return False

    def _d_x(self, number: int, s: Contraction, product: Product, addend: At | None) -> None:
        layer, b = self.layers[number], self.builder
        features, target = layer.features("x"), s.targets["dx"]
        vectors = features.row_vectors(layer.sizes)
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
        matrix, loops = {"t": vectors, "w": 1}, [Level("w", vectors), padded("t", layer.tokens)]
        b.vector(M.ADD, "d_x", loops, term.place.part(**matrix), addend.part(**matrix), r0=target.place.part(**matrix))
