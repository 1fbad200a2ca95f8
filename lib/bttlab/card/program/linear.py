"""A linear layer in tensor-train format, y = x W^T + b, contracted from both ends (BTT, arXiv 2501.06663, section III).

W[i1 i2 i3, j1 j2 j3] = G1[i1] G2[i2] G3[i3] G4[j1] G5[j2] G6[j3]. G1..G3 merge into L (features x rank), G4..G6 into R (rank x
features), whatever the tokens; then z = x R^T and y = z L^T + b. The way back goes the same two ways: d_z = d_y L, d_L =
d_y^T z, d_x = d_z R, d_R = d_z^T x, and from d_L and d_R to the cores. Engine 0 has the input's half, engine 1 the output's.

Both halves are merged by the same code: a half has a core `near` the middle rank, one in the `middle` and one at the `far`
end, and gives rows of the middle rank, a row the features in the order (near, middle, far) of its modes. That is the order
of the input's features; the output's are turned round, (i3, i2, i1) to (i1, i2, i3), by the shuffle unit.
"""

from dataclasses import dataclass

import numpy as np

from bttlab.card.program import banks
from bttlab.card.program.builder import LANES, ROWS, Builder, padded, words_for
from bttlab.card.program.errors import ProgramError
from bttlab.card.program.instruction import At, Bound, Loop, at, most_of
from bttlab.card.program.layout import IN_AXES, OUT_AXES, Layout
from bttlab.card.program.moving import moved, part
from bttlab.card.machine import machine

CHECK, ONE = machine().CHECK, machine().ONE
IN, OUT = 0, 1  # halves, and the engines that have them


@dataclass(frozen=True)
class Half:
    """One half of a linear layer.

    Attributes
    ----------
    engine : int
    rank, near_rank, far_rank : int
        The middle rank of the train; the ranks between near and middle core, and between middle and far core.
    near, middle, far : int
        Modes.
    cores : dict of str to At
        Where "near", "middle" and "far" core lie.
    gradients : dict of str to At
    """

    engine: int
    rank: int
    near_rank: int
    far_rank: int
    near: int
    middle: int
    far: int
    cores: dict[str, At]
    gradients: dict[str, At]

    @property
    def tail_words(self) -> int:
        """Words of a row of the tail: middle and far core merged."""
        return self.middle * self.far // LANES

    @property
    def far_words(self) -> int:
        """Words of a row of the far core."""
        return words_for(self.far)

    @property
    def words(self) -> int:
        """Words of a row of the merged half."""
        return self.near * self.tail_words

    @property
    def packing(self) -> np.ndarray:
        """The permutation that packs `middle` rows of `far` elements into whole words."""
        element = np.arange(self.middle * self.far)
        row, column = divmod(element, self.far)
        return (row * self.far_words * LANES + column).reshape(-1, LANES)

    @property
    def unpacking(self) -> np.ndarray:
        """The permutation back, 0 in the gaps."""
        out = np.full((self.middle, self.far_words * LANES), -1)
        out[:, : self.far] = np.arange(self.middle * self.far).reshape(self.middle, self.far)
        return out.reshape(-1, LANES)

    @property
    def turning(self) -> np.ndarray:
        """The permutation from (near, middle, far) to (far, middle, near)."""
        order = np.arange(self.words * LANES).reshape(self.near, self.middle, self.far)
        return order.transpose(2, 1, 0).reshape(-1, LANES)

    @property
    def turning_back(self) -> np.ndarray:
        """The permutation from (far, middle, near) to (near, middle, far)."""
        order = np.arange(self.words * LANES).reshape(self.far, self.middle, self.near)
        return order.transpose(2, 1, 0).reshape(-1, LANES)


@dataclass(frozen=True)
class Slot:
    """Where a half lies in its engine's held memory while it is merged: rows of the middle rank, tail, far core."""

    merged: At
    tail: At
    far: At


class LinearLayers:
    """All linear layers of a model: their halves, where they are merged, and the instructions of a pass.

    Parameters
    ----------
    builder : Builder
    layout : Layout
    names : list of str
        In the order of the forward pass.
    shapes : dict of str to tuple of int
        Of the parameters: each layer may have ranks of its own.
    sequence_length : int
    """

    def __init__(self, builder: Builder, layout: Layout, names, shapes, sequence_length: int):
        self.builder, self.layout, self.names = builder, layout, list(names)
        self.halves = [(self._half(name, IN, shapes), self._half(name, OUT, shapes)) for name in self.names]
        self.z = [builder.take(f"z of {name}", banks.SCALARS, sequence_length) for name in self.names]
        self._d_z = [builder.take("d_z", banks.SCALARS, sequence_length) for _ in range(4)]
        self._merged_in: dict[tuple[int, int], int] = {}  # (half, slot): the layer that is there
        self._slots: list[list[Slot]] = [[], []]
        self._scratch = [_Scratch(builder, bank) for bank in banks.SCRATCH]

    def _half(self, name: str, which: int, shapes) -> Half:
        axes = OUT_AXES if which == OUT else IN_AXES
        shape = {part: shapes[f"{name}.cores.{core}"] for part, (core, _) in axes.items()}
        modes = {part: s[1] for part, s in shape.items()}
        order = {part: tuple(shape[part][a] for a in axes[part][1]) for part in shape}
        rank, near_rank, far_rank = order["near"][0], order["near"][2], order["middle"][2]
        for kind, value in (("middle", rank), ("near", near_rank), ("far", far_rank)):
            if value > ROWS:
                raise ProgramError(f"{name}: the {kind} rank is {value}; an engine has {ROWS} rows: choose ranks up to {ROWS}")
        if modes["middle"] * modes["far"] % LANES:
            raise ProgramError(
                f"{name}: the modes {modes['middle']} and {modes['far']} at an end of the train multiply to "
                f"{modes['middle'] * modes['far']}, which does not fill words of {LANES}: choose other modes"
            )
        bank = banks.OUT_CORES if which == OUT else banks.IN_CORES
        cores, gradients = {}, {}
        for kind, (core, order_of) in axes.items():
            # A core's rows are its first two axes in this order; its last rank or mode lies along the lanes.
            block = self.layout.place(f"{name}.cores.{core}", bank, order_of)
            cores[kind] = block.where()
            gradients[kind] = at(f"bank {bank + banks.GRADIENT}", block.base)
        return Half(which, rank, near_rank, far_rank, *modes.values(), cores, gradients)

    def hold(self) -> None:
        """Divide what is left of the held memories into slots for merged halves; call it last."""
        for which in (IN, OUT):
            of = [pair[which] for pair in self.halves]
            words, tail, far = (max(w) for w in zip(*((h.words, h.tail_words, h.far_words) for h in of), strict=True))
            held = self.builder.held[which]
            count = min((held.depth - held.used) // (words + tail + far), len(of))
            if count < 2:
                held.take("two merged halves", 2 * (words + tail + far))
            for n in range(count):
                places = (self.builder.hold(f"merged half {n}", which, w) for w in (words, tail, far))
                self._slots[which].append(Slot(*places))

    # ---- merging -------------------------------------------------------------------------------------------------

    def slot(self, layer: int, which: int) -> Slot:
        """Return where a layer's half is merged, and merge it first if it is not there."""
        slots = self._slots[which]
        n = layer % len(slots)
        if self._merged_in.get((which, n)) != layer:
            self._merged_in[which, n] = layer
            self._merge(layer, which, slots[n])
        return slots[n]

    def _merge(self, layer: int, which: int, slot: Slot) -> None:
        """far -> held; tail = middle . far; merged = near . tail (rank x features)"""
        b, half, scratch = self.builder, self.halves[layer][which], self._scratch[which]
        name = b.layer
        b.layer = self.names[layer]
        moved(b, "far core", half.cores["far"], slot.far, half.far_rank, half.far_words)
        rows = half.near_rank * half.middle
        loose = scratch.take(rows * half.far_words)
        b.expand(
            which,
            "tail",
            [Loop("bj", rows), Loop("f", half.far_words)],
            part(slot.far, f=1),
            part(half.cores["middle"], bj=1),
            part(loose, bj=half.far_words, f=1),
            count=half.far_rank,
        )
        block = half.middle * half.far_words
        b.shuffle(
            "pack the tail",
            half.near_rank,
            half.packing,
            part(loose, block=block, y=1),
            also=part(slot.tail, y=1),
            row=("block", 0),
        )
        loops = [Loop("k", half.rank), Loop("j", half.near), Loop("w", half.tail_words)]
        scalars, tail = part(half.cores["near"], k=half.near, j=1), part(slot.tail, w=1)
        if which == IN:
            b.expand(
                which, "R", loops, tail, scalars, also=part(slot.merged, j=half.tail_words, w=1), count=half.near_rank, row=("k", 0)
            )
        else:
            turned = scratch.take(half.rank * half.words)
            strides = {"k": half.words, "j": half.tail_words, "w": 1}
            b.expand(which, "L, turned", loops, tail, scalars, part(turned, **strides), count=half.near_rank)
            b.shuffle(
                "turn L",
                half.rank,
                half.turning,
                part(turned, block=half.words, y=1),
                also=part(slot.merged, y=1),
                row=("block", 0),
            )
        b.layer = name

    # ---- passes --------------------------------------------------------------------------------------------------

    def forward(self, layer: int, x: At, tokens: Bound, y: At | None, also: At | None = None, rows=None) -> None:
        """z = x R^T; y = z L^T + b.

        Parameters
        ----------
        layer : int
        x, y : At
            (tokens, features), a row after the other.
        also : At, optional
            A held memory: token t into row t mod ROWS, blocks of ROWS tokens one after the other.
        rows : callable, optional
            From a block's number to its tokens; needed with `also`.
        """
        b, (half_in, half_out) = self.builder, self.halves[layer]
        b.layer = self.names[layer]
        words_in, words = half_in.words, half_out.words
        r = self.slot(layer, IN)
        one = ONE if half_in.rank < ROWS else 0
        b.reduce(
            IN,
            "z = x R^T",
            [Loop("w", words_in + 1), padded("t", tokens)],
            "w",
            part(r.merged, w=1),
            part(x, t=words_in, w=1),
            part(self.z[layer], t=1),
            count=half_in.rank,
            flags=one,
        )
        merged = self.slot(layer, OUT).merged
        bias = self.layout.of(f"{self.names[layer]}.bias").where()
        if also is None:
            b.expand(
                OUT,
                "y = z L^T + b",
                [Loop("t", tokens), Loop("w", words)],
                part(merged, w=1),
                part(self.z[layer], t=1),
                part(y, t=words, w=1),
                addend=part(bias, w=1),
                count=half_out.rank,
            )
            return
        for block in range(-(-most_of(tokens) // ROWS)):
            b.expand(
                OUT,
                "y = z L^T + b",
                [Loop("t", rows(block)), Loop("w", words)],
                part(merged, w=1),
                part(self.z[layer], ROWS * block, t=1),
                part(y, ROWS * block * words, t=words, w=1),
                also=part(also, block * words, w=1),
                addend=part(bias, w=1),
                count=half_out.rank,
                row=("t", 0),
            )

    def backward(self, layer: int, d_y: At, x: At, tokens: Bound, d_x: At | None, addend: At | None = None) -> None:
        """d_x = addend + d_z R, with d_z = d_y L; the gradients of the cores and of the bias."""
        b, (half_in, half_out) = self.builder, self.halves[layer]
        b.layer = self.names[layer]
        words_in, words = half_in.words, half_out.words
        d_z = self._d_z[layer % len(self._d_z)]
        b.reduce(
            OUT,
            "d_z = d_y L",
            [Loop("w", words + 1), padded("t", tokens)],
            "w",
            part(self.slot(layer, OUT).merged, w=1),
            part(d_y, t=words, w=1),
            part(d_z, t=1),
            count=half_out.rank,
        )
        if d_x is not None:
            b.expand(
                IN,
                "d_x = d_z R",
                [Loop("t", tokens), Loop("w", words_in)],
                part(self.slot(layer, IN).merged, w=1),
                part(d_z, t=1),
                part(d_x, t=words_in, w=1),
                addend=None if addend is None else part(addend, t=words_in, w=1),
                count=half_in.rank,
            )
        else:
            self.slot(layer, IN)
        d_l = self._outer("d_L = z^T d_y", OUT, half_out, self.z[layer], d_y, tokens, layer)
        d_r = self._outer("d_R = d_z^T x", IN, half_in, d_z, x, tokens, None)
        self._merge_backward(layer, OUT, d_l)
        self._merge_backward(layer, IN, d_r)

    def _outer(self, what, which, half: Half, scalars: At, stream: At, tokens: Bound, layer: int | None) -> At:
        """(rank x features) = scalars^T stream; row `rank` of it, where scalars hold a one, is the bias's gradient."""
        b, words = self.builder, half.words
        bias = layer is not None and half.rank < ROWS
        if words > machine().SLOTS:
            raise ProgramError(f"{self.names[0]}: {words} words of features; an engine sums {machine().SLOTS} at once")
        b.accumulate(
            which,
            what,
            [Loop("t", tokens), padded("w", words)],
            ("t",),
            "t",
            part(scalars, t=1),
            part(stream, t=words, w=1),
            count=half.rank + bias,
        )
        gradient = self._scratch[which].take(half.rank * words)
        b.drain(
            which,
            what,
            [Loop("k", half.rank), Loop("w", words)],
            "k",
            0,
            at("", 0, w=1),
            part(gradient, k=words, w=1),
        )
        if layer is None:
            return gradient
        block = self.layout.of(f"{self.names[layer]}.bias")
        d_bias = at(f"bank {block.bank + banks.GRADIENT}", block.base)
        if bias:
            b.drain(which, "d_b", [Loop("w", words)], None, half.rank, at("", 0, w=1), part(d_bias, w=1), check=True)
        else:
            b.vector(
                machine().COLUMNS,
                "d_b",
                [Loop("t", tokens), padded("w", words)],
                part(stream, t=words, w=1),
                r1=part(d_bias, w=1),
                depth=("t",),
                slot_loop="t",
                flags=CHECK,
            )
        return gradient

    def _merge_backward(self, layer: int, which: int, d_merged: At) -> None:
        """Gradients of the three cores from that of the merged half."""
        b, half, scratch = self.builder, self.halves[layer][which], self._scratch[which]
        slot = self.slot(layer, which)
        words, tail_words = half.words, half.tail_words
        if which == OUT:
            turned = scratch.take(half.rank * words)
            b.shuffle(
                "turn d_L", half.rank, half.turning_back, part(d_merged, block=words, y=1), part(turned, block=words, y=1)
            )
            d_merged = turned
        stream = part(d_merged, k=words, j=tail_words, w=1)
        # d_near[(k, j)] = d_merged[(k, j)] . tail^T
        b.reduce(
            which,
            "d near core",
            [Loop("k", half.rank), Loop("w", tail_words + 1), padded("j", half.near)],
            "w",
            part(slot.tail, w=1),
            stream,
            part(half.gradients["near"], k=half.near, j=1),
            count=half.near_rank,
            flags=CHECK,
        )
        # d_tail = near^T . d_merged
        b.accumulate(
            which,
            "d tail",
            [Loop("k", half.rank), Loop("j", half.near), padded("w", tail_words)],
            ("k", "j"),
            "j",
            part(half.cores["near"], k=half.near, j=1),
            stream,
            count=half.near_rank,
        )
        d_tail = scratch.take(half.near_rank * tail_words)
        rows = [Loop("b", half.near_rank), Loop("w", tail_words)]
        b.drain(which, "d tail", rows, "b", 0, at("", 0, w=1), part(d_tail, b=tail_words, w=1))
        block = half.middle * half.far_words
        loose = scratch.take(half.near_rank * block)
        b.shuffle(
            "unpack d tail",
            half.near_rank,
            half.unpacking,
            part(d_tail, block=tail_words, y=1),
            part(loose, block=block, y=1),
        )
        stream = part(loose, b=block, j=half.far_words, f=1)
        # d_middle[(b, j)] = d_tail[(b, j)] . far^T
        b.reduce(
            which,
            "d middle core",
            [Loop("b", half.near_rank), Loop("f", half.far_words + 1), padded("j", half.middle)],
            "f",
            part(slot.far, f=1),
            stream,
            part(half.gradients["middle"], b=half.middle, j=1),
            count=half.far_rank,
            flags=CHECK,
        )
        # d_far = sum over (b, j) of middle[(b, j)]^T d_tail[(b, j)]: `middle` partial sums, then added up
        pieces = block
        b.accumulate(
            which,
            "d far core, in parts",
            [Loop("b", half.near_rank), padded("j", half.middle, half.far_words), Loop("f", half.far_words)],
            ("b",),
            "b",
            part(half.cores["middle"], b=half.middle, j=1),
            stream,
            count=half.far_rank,
        )
        parts = scratch.take(half.far_rank * pieces)
        rows = [Loop("a", half.far_rank), Loop("p", pieces)]
        b.drain(which, "d far core, in parts", rows, "a", 0, at("", 0, p=1), part(parts, a=pieces, p=1))
        b.vector(
            machine().COLUMNS,
            "d far core",
            [Loop("j", half.middle), padded("a", half.far_rank, half.far_words), Loop("f", half.far_words)],
            part(parts, j=half.far_words, a=pieces, f=1),
            r1=part(half.gradients["far"], a=half.far_words, f=1),
            depth=("j",),
            slot_loop="j",
            flags=CHECK,
        )


class _Scratch:
    """Words of a bank in turn: by the time they are taken again, what they held has long been used."""

    def __init__(self, builder: Builder, bank: int):
        self.bank, self.depth, self.next = bank, builder.banks[bank].depth, 0
        builder.take("scratch", bank, self.depth)

    def take(self, words: int) -> At:
        if self.next + words > self.depth:
            self.next = 0
        if words > self.depth:
            raise ProgramError(f"a half of a linear layer takes {words} words of bank {self.bank}, which has {self.depth}")
        first, self.next = self.next, self.next + words
        return at(f"bank {self.bank}", first)
