"""All linear layers of a model in tensor-train format: their operand buffers, and their instructions.

The backward pass recomputes y, and what lies between z and y, from z.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache

from bttlab.compiler.arrangement import Arrangement, Sizes, Stored, elements, rearrange
from bttlab.compiler.builder import MOST_RANK, ROWS, Builder, padded, vectors_for
from bttlab.compiler.contraction import Contraction, Held, Way
from bttlab.compiler.errors import DoesNotFit, ProgramError
from bttlab.compiler.graph import core_names
from bttlab.compiler.instruction import At, Bound, Level, most_of
from bttlab.compiler.layout import Block, Layout
from bttlab.compiler.machine import machine
from bttlab.compiler.operands import part
from bttlab.compiler.products import accumulate, expand, reduce
from bttlab.compiler.scratch import Scratch
from bttlab.compiler.tt_layer import IN, OUT, TTLayer, axes_of, order_of_merges
from bttlab.tensor.order import Order, Product

M = machine()
# Cores that are merged of the input's end and of the output's, before tokens come.
FLOWS = {"bidirectional": (3, 3), "right_to_left": (1, 1), "auto": (2, 3)}
Key = tuple[str, Arrangement]
BIAS = "the bias"  # no tensor of an order has a name of two words
AUTO_SINGLE = (2, 2)  # "auto", of a layer that one token comes to: permuting it is cheaper than merging L


def _merges(flow: str | tuple[int, int] | Order, tokens: Bound) -> tuple[int, int] | None:
    """Return how many cores a flow merges at the input's end and at the output's; None of an order."""
    if isinstance(flow, Order):
        return None
    merged = FLOWS.get(flow, flow)
    if not (isinstance(merged, tuple) and len(merged) == 2 and set(merged) <= {1, 2, 3}):
        raise ProgramError(
            f"flow is {flow!r}: choose {', '.join(FLOWS)}, or how many cores are merged at each end, (1..3, 1..3)"
        )
    return AUTO_SINGLE if flow == "auto" and tokens == 1 else merged


def _cores(name: str, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return the names of a layer's cores; raise ProgramError unless engines can do it."""
    cores = core_names(shapes, name)
    if len(cores) not in (4, 6, 8):
        rule = "the card takes two, three or four modes at each end, as many at both"
        raise ProgramError(f"{name} has {len(cores)} cores: {rule}")
    highest = max(shapes[core][2] for core in cores)
    if highest > MOST_RANK:
        what = f"{name} has rank {highest}; an engine takes up to {MOST_RANK}, {ROWS} in a pass"
        raise DoesNotFit(what, f"ranks up to {MOST_RANK}")
    return cores


@lru_cache(maxsize=256)
def _buffered(shapes: tuple, tokens: Bound, order: Order, has_scratch: bool) -> tuple[dict[Key, tuple[int, int]], ...]:
    """Return what lies in the operand buffer before z and after it: first vector and vectors, by name and arrangement.

    A trial of both passes says it.
    """
    b, names = Builder(), {f"l.cores.{k}": shape for k, shape in enumerate(shapes)}
    trial = LinearLayers(b, Layout(b, names), {"l": tokens}, names, order, has_scratch)
    (layer,) = trial.layers
    x, y, dy, dx = (b.take(n, layer.features(n).vectors(layer.sizes)) for n in ("x", "y", "dy", "dx"))
    trial.forward(0, x, tokens, y)
    trial.backward(0, dy, x, tokens, dx)
    return tuple(trial.plans[0])


def is_expand(way: Way) -> bool:
    """Return True for what takes an addend, and leaves features along the vectors."""
    return way.function is expand


def is_reduce(way: Way) -> bool:
    """Return True for what leaves a 1 behind each row."""
    return way.function is reduce


class LinearLayers:
    """All linear layers of a model: their operand buffers, and the instructions of a pass.

    Parameters
    ----------
    names : mapping of str to int or Register
        The layers in the order of the forward pass, and their tokens.
    shapes : dict of str to tuple of int
        Of the parameters: each layer may have ranks of its own.
    flow : str, tuple of int or Order
        One of FLOWS, or how many cores are merged of the input's end and of the output's, or an order.
    has_scratch : bool
        Whether intermediates share a bank for each engine; else each finds one of its own.
    """

    def __init__(self, builder: Builder, layout: Layout, names: Mapping[str, Bound], shapes, flow, has_scratch=True):
        self.builder, self.layout, self.names = builder, layout, list(names)
        self.layers: list[TTLayer] = []
        for number, (name, tokens) in enumerate(names.items()):
            cores = _cores(name, shapes)
            merged = _merges(flow, tokens)
            # Where ends differ, engines alternate between them, so that both have as much to do.
            swap = number % 2 if merged and merged[IN] != merged[OUT] else 0
            order = order_of_merges(len(cores), merged) if merged else flow
            if (order.outputs, order.inputs) != (len(cores) // 2,) * 2:
                rule = f"the order has {order.outputs} and {order.inputs} at the ends"
                raise ProgramError(f"{name} has {len(cores) // 2} cores at each end, {rule}: give one that has as many")
            for core, axes in zip(cores, axes_of(len(cores) // 2), strict=True):
                layout.place(core, axes)
            self.layers.append(TTLayer(name, tokens, order, (swap, 1 - swap), tuple(shapes[core] for core in cores)))
        self.places = [
            builder.take(f"z of {layer.name}", layer.z_arrangement.vectors(layer.sizes)) for layer in self.layers
        ]
        self._scratch = [Scratch(builder, engine) for engine in range(M.ENGINES)] if has_scratch else []
        self._slots: list[list[At]] = [[], []]
        self._there: dict[tuple[int, int], tuple[int, int, Held]] = {}
        self.plans: list[tuple[dict[Key, tuple[int, int]], ...]] = [({}, {}) for _ in self.layers]
        self._is_trial = True  # until buffers are divided: what is asked for is noted
        self._kept: dict[int, Stored | None] = {}  # None until the forward pass leaves it

    @property
    def between(self) -> list[int]:
        """The layers in which tokens leave something before z that the backward pass reads."""
        return [n for n, layer in enumerate(self.layers) if layer.keepable]

    # ---- operand buffers -----------------------------------------------------------------------------------------

    def divide_buffers(self, kept: Collection | None = None) -> None:
        """Divide what is left of the operand buffers into slots; call it last.

        Parameters
        ----------
        kept : collection of int, optional
            Those of `between` that is kept for the backward pass; by default all.
        """
        if not self.layers:
            return
        has_scratch, self._is_trial = bool(self._scratch), False
        self.plans = [_buffered(layer.shapes, layer.tokens, layer.order, has_scratch) for layer in self.layers]
        for engine, slots in enumerate(self._slots):
            sizes = [0, 0]  # of the slots of even and odd layers
            for n, layer in enumerate(self.layers):
                phase = layer.engines.index(engine)
                sizes[n % 2] = max(sizes[n % 2], sum(vectors for _, vectors in self.plans[n][phase].values()))
            memory = self.builder.buffers[engine]
            count = min((memory.depth - memory.used) // max(sum(sizes), 1), -(-len(self.layers) // 2))
            for n in range(max(count, 1)):
                slots.extend(
                    self.builder.take_buffer(f"a linear layer's cores, slot {2 * n + i}", engine, sizes[i])
                    for i in (0, 1)
                )
        self._kept = {n: None for n in self.between if kept is None or n in kept}

    def _open(self, number: int, phase: int) -> Contraction:
        layer = self.layers[number]
        engine = layer.engines[phase]
        self.builder.layer = layer.name
        plan = self.plans[number][phase]
        if self._is_trial:
            slot, n = At(f"buffer {engine}", 0), 0
        else:
            n = number % len(self._slots[engine])
            slot = self._slots[engine][n]
        if self._there.get((engine, n), (None, None))[:2] != (number, phase):
            self._there[engine, n] = number, phase, {}
        held = self._there[engine, n][2]

        def room_held(key, vectors: int) -> At:
            if self._is_trial and key not in plan:
                plan[key] = sum(v for _, v in plan.values()), vectors
            if key not in plan:
                raise ValueError(f"no room for {key} in the operand buffer")
            return slot.behind(plan[key][0])

        def room(name: str, vectors: int) -> At:
            of = name.partition(",")[0]
            if of == BIAS or not self._scratch:
                return self.builder.take(name, vectors)
            if not name.endswith("in parts") and of in layer.indices and "t" in layer.indices[of]:
                return self._scratch[layer.engines[IN] ^ of.startswith("d")].take(vectors)
            return self._scratch[engine].take(vectors)

        sizes, wanted = (layer.sizes, layer.costs), layer.wanted
        rooms = room, room_held, layer.known
        s = Contraction(self.builder, engine, *sizes, layer.indices, wanted, {}, held, *rooms)
        for k, (name, arrangement) in enumerate(layer.cores.items()):
            if any(name in step for step in layer.steps[phase]):
                block = self.layout.of(f"{layer.name}.cores.{k}")
                s.give(name, Stored(name, block.where(), arrangement), True)
                s.targets[f"d{name}"] = Stored(f"d{name}", block.gradient(), arrangement)
        for step in layer.steps[phase]:
            if "t" not in layer.indices[step[0]]:
                s.promise(step)
        return s

    def _bias(self, number: int):
        name = f"{self.names[number]}.bias"
        return self.layout.of(name) if name in self.layout.shapes else None

    # ---- passes --------------------------------------------------------------------------------------------------

    def _tokens(self, number: int, phase: int) -> list[Product]:
        layer = self.layers[number]
        return [step for step in layer.steps[phase] if "t" in layer.indices[step[0]]]

    def _finish(self, s: Contraction, name: str) -> None:
        """Bring a result where it has to lie in the end."""
        target = s.targets[name]
        for stored in s.tensors[name].stored:
            if stored.place.memory == target.place.memory and stored.place.base == target.place.base:
                return
        s.copied(s.tensors[name], target)

    def forward(self, number: int, x: At, tokens: Bound, y: At | None, also: At | None = None, rows=None) -> None:
        """y = x W^T + b.

        Parameters
        ----------
        x, y : At
            (tokens, features), a row after the other; y may be left out with `also`.
        also : At, optional
            A operand buffer that gets y as well: token t into row t mod ROWS, blocks of ROWS tokens one after the
            other.
        rows : callable, optional
            From a block's number to its tokens; needed with `also`.
        """
        layer = self.layers[number]
        s = self._open(number, IN)
        s.give("x", Stored("x", x, layer.features("x")))
        self._lower(number, s)
        self.recompute(number, tokens, y, also, rows)

    def _lower(self, number: int, s: Contraction, only_between: bool = False) -> None:
        """From x to z; what is kept gets a place of its own."""
        layer = self.layers[number]
        s.targets[layer.z] = Stored(layer.z, self.places[number], layer.z_arrangement)
        for step in self._tokens(number, IN):
            if step[0] == layer.z:
                if only_between:
                    return
                s.product(step, **({"may": is_reduce, "flags": M.ONE} if layer.has_one else {}))
            elif self._kept.get(number, step) is None:
                s.room_of[step[0]] = self.builder.take
                self._kept[number] = s.product(step)
            else:
                s.product(step)
        self._finish(s, layer.z)

    def recompute(self, number: int, tokens: Bound, y: At | None, also: At | None = None, rows=None) -> None:
        """y = z L^T + b, as `forward` has it, from the z that it left; the backward pass recomputes it."""
        layer = self.layers[number]
        s = self._open(number, OUT)
        s.give(layer.z, Stored(layer.z, self.places[number], layer.z_arrangement))
        *between, last = self._tokens(number, OUT)
        for step in between:
            s.product(step)
        self._lift(number, s, last, y, also, rows)

    def _lift(self, number: int, s: Contraction, last: Product, y: At | None, also: At | None, rows) -> None:
        layer, bias = self.layers[number], self._bias(number)
        features = layer.features("y")
        vectors = features.row_vectors(layer.sizes)

        def addend(to: Arrangement) -> Stored:
            modes = Arrangement(tuple(i for i in to.order if i != "t"), to.lanes)
            own = replace(features, order=features.order[1:])
            s.indices = {**s.indices, BIAS: features.order[1:]}
            if BIAS not in s.tensors:
                s.give(BIAS, Stored(BIAS, bias.where(), own))
            return s.arranged(s.tensors[BIAS], modes)

        blocks = None
        if also is not None:
            blocks = [(rows(n), ROWS * n, part(also, n * vectors)) for n in range(-(-most_of(layer.tokens) // ROWS))]
        s.targets["y"] = Stored("y", y if y is not None else part(also), features)
        s.blocks = blocks
        c = s.product(last, is_expand, addend if bias is not None else None)
        s.blocks = None
        if c.place.memory == s.targets["y"].place.memory:
            return
        if blocks is None:
            rearrange(s.b, s.sizes, c, s.targets["y"])
            return
        t = c.strides(s.sizes)["t"]
        for bound, first, place in blocks:
            sizes = Sizes(s.sizes, {"t": bound})
            rearrange(s.b, sizes, replace(c, place=c.place.behind(first * t)), Stored("y", place, features))

    def backward(self, number: int, d_y: At, x: At, tokens: Bound, d_x: At, addend: At | None = None) -> None:
        """d_x = addend + d_y W; the gradients of the cores and of the bias."""
        layer, b = self.layers[number], self.builder
        bias = self._bias(number)
        sessions = [self._open(number, phase) for phase in (IN, OUT)]
        into, out = sessions
        z = layer.z
        out.give("dy", Stored("dy", d_y, layer.features("y")))
        out.give(z, Stored(z, self.places[number], layer.z_arrangement))
        into.give("x", Stored("x", x, layer.features("x")))
        out.targets[f"d{z}"] = Stored(
            f"d{z}", b.take("d_z", layer.z_arrangement.vectors(layer.sizes)), layer.z_arrangement
        )
        into.targets["dx"] = Stored("dx", d_x, layer.features("x"))
        is_summed = False
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
                    s.give(layer.keepable[0], self._kept[number])
                else:
                    self._lower(number, s, True)
            if result == f"d{z}":
                s.product(product)
                self._finish(s, result)
                into.give(result, s.targets[result])
            elif result == "dx":
                self._d_x(number, s, product, addend)
            elif result in s.targets:
                s.product(product)
                self._finish(s, result)
            else:
                is_summed |= self._merged_gradient(number, s, product, bias)
        if bias is not None and not is_summed:
            vectors = vectors_for(elements(layer.sizes, layer.features("y").packed))
            b.columns(
                "d b",
                [Level("t", tokens), padded("w", vectors)],
                part(d_y, t=vectors, w=1),
                r1=part(bias.gradient(), w=1),
                check=True,
            )

    def _merged_gradient(self, number: int, s: Contraction, product: Product, bias: Block | None) -> bool:
        """Emit a product of the backward pass; return whether it sums up the gradient of the bias, too.

        Rows of z have a 1 behind them, so the sum over tokens of z^T d_y has one row more.
        """
        layer = self.layers[number]
        whole = s.tensors["dy"].stored[0].arrangement if "dy" in s.tensors else None

        def is_direct(way: Way) -> bool:
            return way.function is accumulate and way.b[0].name == "dy" and way.b[1] in whole.views(s.sizes)

        is_whole = bias is not None and layer.has_one and set(product[1:]) == {layer.z, "dy"}
        if is_whole and s.cheapest(product, is_direct):
            s.product(product, is_direct, bias=bias.gradient())
            return True
        s.product(product)
        return False

    def _d_x(self, number: int, s: Contraction, product: Product, addend: At | None) -> None:
        layer, b = self.layers[number], self.builder
        features, target = layer.features("x"), s.targets["dx"]
        vectors = features.row_vectors(layer.sizes)
        if addend is not None and s.fits(s.cheapest(product, is_expand), "dx"):
            s.product(product, is_expand, lambda to: Stored("addend", addend, to))
            return
        if addend is None:
            s.product(product, is_expand)
            self._finish(s, "dx")
            return
        own = s.targets.pop("dx")
        c = s.product(product, is_expand)
        s.targets["dx"] = own
        whole = s.room("dx", features)
        rearrange(s.b, s.sizes, c, whole)
        matrix, loops = {"t": vectors, "w": 1}, [Level("w", vectors), padded("t", layer.tokens)]
        b.vector(
            M.ADD, "d_x", loops, part(whole.place, **matrix), part(addend, **matrix), r0=part(target.place, **matrix)
        )
