"""A linear layer in tensor-train format, y = x W^T + b, in any of the orders of contraction from both ends.

W[i1 i2 i3, j1 j2 j3] = G1[i1] G2[i2] G3[i3] G4[j1] G5[j2] G6[j3]. In the paper's bi-directional flow (BTT, arXiv
2501.06663, section III) G1..G3 merge into L (features x rank) and G4..G6 into R (rank x features), whatever the tokens;
then z = x R^T and y = z L^T + b. The backward pass computes d_z = d_y L and d_x = d_z R, the output cores' gradients
from z and d_y, and the input cores' from x and d_z. Engine 0 has the input's half, engine 1 the output's (`halves`).
"""

import math
from collections.abc import Collection, Mapping

from bttlab.compiler.builder import LANES, MOST_RANK, ROWS, Builder, padded, vectors_for
from bttlab.compiler.errors import DoesNotFit, ProgramError
from bttlab.compiler.graph import core_names
from bttlab.compiler.half import IN, OUT, Half
from bttlab.compiler.half_backward import HalfLowering
from bttlab.compiler.instruction import At, Bound, Level, most_of
from bttlab.compiler.layout import IN_AXES, OUT_AXES, Block, Layout
from bttlab.compiler.machine import machine
from bttlab.compiler.operands import part
from bttlab.compiler.scratch import Scratch

M = machine()
# Cores that are merged of the input's half and of the output's, before tokens come.
FLOWS = {"bidirectional": (3, 3), "right_to_left": (1, 1), "auto": (2, 3)}
AUTO_SINGLE = (2, 2)  # "auto", of a layer that one token comes to: permuting it is cheaper than merging L


class LinearLayers:
    """All linear layers of a model: their halves, their operand buffers, and the instructions of a pass.

    Parameters
    ----------
    names : mapping of str to int or Register
        The layers in the order of the forward pass, and their tokens.
    shapes : dict of str to tuple of int
        Of the parameters: each layer may have ranks of its own.
    flow : str or tuple of int
        One of FLOWS, or how many cores are merged of the input's half and of the output's.
    """

    def __init__(self, builder: Builder, layout: Layout, names: Mapping[str, Bound], shapes, flow):
        self.builder, self.layout, self.names, self.flow = builder, layout, list(names), flow
        self.tokens = names
        merged = FLOWS.get(flow, flow)
        if not (isinstance(merged, tuple) and len(merged) == 2 and set(merged) <= {1, 2, 3}):
            raise ProgramError(
                f"flow is {flow!r}: choose {', '.join(FLOWS)}, or how many cores are merged at each end, (1..3, 1..3)"
            )
        self.halves = []
        for layer, (name, tokens) in enumerate(names.items()):
            at_ends = AUTO_SINGLE if flow == "auto" and tokens == 1 else merged
            # Where halves differ, engines alternate between them, so that both have as much to do.
            swap = layer % 2 if merged[IN] != merged[OUT] else 0
            self.halves.append(tuple(self._half(name, w, shapes, at_ends[w], w ^ swap) for w in (IN, OUT)))
        self.z = [
            builder.take(f"z of {name}", most_of(tokens) * half.k_vectors)
            for (name, tokens), (half, _) in zip(names.items(), self.halves, strict=True)
        ]
        self._there: dict[tuple[int, int], int] = {}  # (engine, slot): the layer whose half is loaded there
        self._slots: list[list[At]] = [[], []]
        self._scratch = [Scratch(builder, engine) for engine in range(M.ENGINES)]
        self._kept: dict[int, At] = {}

    def _half(self, name: str, which: int, shapes, merged: int, engine: int) -> Half:
        cores = core_names(shapes, name)
        count = len(cores) // 2
        if len(cores) not in (4, 6, 8):
            raise ProgramError(
                f"{name} has {len(cores)} cores: the card takes two, three or four modes at each end, as many at both"
            )
        ranks = [shapes[core][2] for core in cores[:-1]]
        if max(ranks) > MOST_RANK:
            raise DoesNotFit(
                f"{name} has rank {max(ranks)}; an engine takes up to {MOST_RANK}, {ROWS} in a pass",
                f"ranks up to {MOST_RANK}",
            )
        # From the middle of the train to its end.
        inward, bonds = slice(count, None), slice(count - 1, None)
        if which == OUT:
            inward = bonds = slice(count - 1, None, -1)
        kinds = ("near", "middle", "middle", "far") if count == 4 else ("near", "middle", "far")[-count:]
        axes = IN_AXES if which == IN else OUT_AXES
        blocks = [self.layout.place(core, axes[kind]) for core, kind in zip(cores[inward], kinds, strict=True)]
        modes, bonds = [block.shape[1] for block in blocks], ranks[bonds]

        last = modes[-2 if count < 4 else -3 :]
        if math.prod(last) % LANES:
            raise ProgramError(
                f"{name}: the modes {', '.join(map(str, last))} at an end of the train multiply to {math.prod(last)}, "
                f"which does not fill vectors of {LANES}: choose other modes"
            )

        def half(merged: int, bonds: list[int], modes: list[int], which_cores: list[int], *more) -> Half:
            own = {kinds[n]: blocks[n] for n in which_cores}
            places = [{kind: place(block) for kind, block in own.items()} for place in (Block.where, Block.gradient)]
            return Half(which, engine, merged, *bonds, *modes, *places, *more)

        if count == 2:
            return half(min(merged, 2), [bonds[0], *bonds], [1, *modes], [0, 1])
        if count == 3:
            return half(merged, bonds, modes, [0, 1, 2])
        outer = half(2, [bonds[2], *bonds[2:]], [1, *modes[2:]], [2, 3])
        return half(merged, bonds[:3], [*modes[:2], modes[2] * modes[3]], [0, 1], outer, tuple(modes[2:]))

    @property
    def between(self) -> list[int]:
        """The layers in which tokens leave something before z that the backward pass reads."""
        return [layer for layer, (half, _) in enumerate(self.halves) if half.merged == 2 and half.has_near]

    def divide_buffers(self, kept: Collection | None = None) -> None:
        """Divide what is left of the operand buffers into slots for halves; call it last.

        Parameters
        ----------
        kept : collection of int, optional
            Those of `between` that is kept for the backward pass; by default all.
        """
        if not self.halves:
            return
        for engine, slots in enumerate(self._slots):
            sizes = [0, 0]  # of the slots of even and odd layers
            for layer, pair in enumerate(self.halves):
                half = next(half for half in pair if half.engine == engine)
                sizes[layer % 2] = max(sizes[layer % 2], half.buffer_vectors)
            memory = self.builder.buffers[engine]
            count = min((memory.depth - memory.used) // sum(sizes), -(-len(self.halves) // 2))
            for n in range(max(count, 1)):
                slots.extend(
                    self.builder.take_buffer(f"a linear layer's half, slot {2 * n + i}", engine, sizes[i])
                    for i in (0, 1)
                )
        for layer in self.between:
            if kept is None or layer in kept:
                half = self.halves[layer][IN]
                vectors = most_of(self.tokens[self.names[layer]]) * half.near * half.b_vectors
                self._kept[layer] = self.builder.take("u", vectors)

    def half(self, layer: int, which: int) -> HalfLowering:
        """Return a layer's half in its operand buffer; load it first if it is not there."""
        half = self.halves[layer][which]
        engine, slots = half.engine, self._slots[half.engine]
        n = layer % len(slots)
        buffer, first = {}, 0
        for name, (rows, vectors) in half.buffered().items():
            buffer[name] = part(slots[n], first)
            first += vectors_for(rows) * vectors
        code = HalfLowering(self.builder, half, buffer, self._scratch[engine], self._scratch[1 - engine])
        if self._there.get((engine, n)) != layer:
            self._there[engine, n] = layer
            code.merge()
        return code

    def _begin(self, layer: int) -> Builder:
        self.builder.layer = self.names[layer]
        return self.builder

    def _bias(self, layer: int) -> Block | None:
        name = f"{self.names[layer]}.bias"
        return self.layout.place(name) if name in self.layout.shapes else None

    # ---- passes --------------------------------------------------------------------------------------------------

    def forward(self, layer: int, x: At, tokens: Bound, y: At | None, also: At | None = None, rows=None) -> None:
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
        self._begin(layer)
        self._lower(layer, self.half(layer, IN), x, tokens, self.z[layer])
        self.recompute(layer, tokens, y, also, rows)

    def recompute(self, layer: int, tokens: Bound, y: At | None, also: At | None = None, rows=None) -> None:
        """y = z L^T + b, as `forward` has it, from the z that it left; the backward pass recomputes it."""
        b = self._begin(layer)
        vectors = self.halves[layer][OUT].vectors
        code = self.half(layer, OUT)
        bias = self._bias(layer)
        bias = None if bias is None else bias.where()
        if not code.half.is_permuted:
            if also is None:
                code.lift(self.z[layer], tokens, y, bias and part(bias, w=1))
                return
            for block in range(-(-most_of(tokens) // ROWS)):
                buffer = part(also, block * vectors, w=1)
                more = bias and part(bias, w=1), buffer, ROWS * block, ("t", 0)
                code.lift(self.z[layer], rows(block), y, *more)
            return
        half = code.half
        permuted = bias and code.permuted("permute b", bias, 1, b.take("b, permuted", half.token_vectors))
        own = code.scratch.take(most_of(tokens) * half.token_vectors)
        strides = {"j": half.tail_vectors, "w": 1} if half.merged == 2 else {"jm": half.far_vectors, "f": 1}
        code.lift(self.z[layer], tokens, own, permuted and part(permuted, **strides))
        for block in range(-(-most_of(tokens) // ROWS) if also is not None else 1):
            b.shuffle(
                "permute y",
                tokens if also is None else rows(block),
                half.to_features,
                part(own, ROWS * block * half.token_vectors, block=half.token_vectors, y=1),
                None if y is None else part(y, ROWS * block * vectors, block=vectors, y=1),
                None if also is None else part(also, block * vectors, y=1),
                row=None if also is None else ("block", 0),
            )

    def _lower(self, layer: int, code: HalfLowering, x: At, tokens: Bound, z: At) -> list[At]:
        one = code.half.rank < ROWS
        own = code.permuted("permute x", x, tokens)
        return code.lower(own, tokens, z, one, self._kept.get(layer))

    def backward(self, layer: int, d_y: At, x: At, tokens: Bound, d_x: At, addend: At | None = None) -> None:
        """d_x = addend + d_y W; the gradients of the cores and of the bias."""
        b = self._begin(layer)
        out, into = self.half(layer, OUT), self.half(layer, IN)
        d_z = b.take("d_z", most_of(tokens) * out.half.k_vectors)
        d_lowered = out.lower(out.permuted("permute d_y", d_y, tokens), tokens, d_z, False)
        d_lifted = self._d_x(into, d_z, tokens, d_x, addend)
        bias = self._bias(layer)
        whole = bias is not None and out.half.merged == 3 and out.half.rank < ROWS
        d_bias = bias and bias.gradient()
        if out.half.merged == 3:
            lifted = [self.z[layer]]
        else:  # what the forward pass had between z and y
            lifted = out.lift(self.z[layer], tokens, None)
        out.backward(lifted, d_lowered, tokens, d_bias if whole else None)
        if bias is not None and not whole:
            vectors = out.half.vectors
            b.columns(
                "d b",
                [Level("t", tokens), padded("w", vectors)],
                part(d_y, t=vectors, w=1),
                r1=part(d_bias, w=1),
                check=True,
            )
        if into.half.merged == 3 or (into.half.merged == 2 and not into.half.has_near):
            lowered = [x, self.z[layer]]
        elif layer in self._kept:
            lowered = [x, self._kept[layer], self.z[layer]]
        else:
            lowered = into.lower(into.permuted("permute x", x, tokens), tokens, self.z[layer], into.half.rank < ROWS)
        into.backward(d_lifted, lowered, tokens, None)

    def _d_x(self, into: HalfLowering, d_z: At, tokens: Bound, d_x: At, addend: At | None) -> list[At]:
        b, half = self.builder, into.half
        vectors = half.vectors
        if not half.is_permuted:
            strides = {"t": vectors, "w": 1} if half.merged == 3 else {"t": vectors, "j": half.tail_vectors, "w": 1}
            return into.lift(d_z, tokens, d_x, None if addend is None else part(addend, **strides))
        own = into.scratch.take(most_of(tokens) * half.token_vectors)
        lifted = into.lift(d_z, tokens, own, None)
        target = d_x if addend is None else into.scratch.take(most_of(tokens) * vectors)
        source = part(own, block=half.token_vectors, y=1)
        b.shuffle("permute d_x", tokens, half.to_features, source, part(target, block=vectors, y=1))
        if addend is not None:
            matrix, loops = {"t": vectors, "w": 1}, [Level("t", tokens), Level("w", vectors)]
            b.vector(M.ADD, "d_x", loops, part(target, **matrix), part(addend, **matrix), r0=part(d_x, **matrix))
        return lifted
