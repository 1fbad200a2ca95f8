"""One half of a linear layer's tensor train: its three cores, how they are merged, and the way of tokens through them.

A half has a core `near` the middle rank, one in the `middle` and one at the `far` end; N, M, F with ranks k (middle
of the
train), b (between near and middle) and a (between middle and far). Its features are those of (near, middle, far), in
this
order: the order of the input's features. The output's half is held the other way round, far end of the output first.

How many cores are merged before tokens come decides the order of contraction:

    3  tokens meet W3 = N (M F), rank x features         (the paper's bi-directional flow, both halves)
    2  tokens meet W2 = M F, then N                      (the cheapest order for short sentences)
    1  tokens meet F, then M, then N                     (right to left)
"""

from dataclasses import dataclass, field

import numpy as np

from bttlab.card.machine import machine
from bttlab.card.program.builder import LANES, Builder, padded, words_for
from bttlab.card.program.instruction import At, Bound, Loop, at, most_of
from bttlab.card.program.moving import moved, part

M = machine()
IN, OUT = 0, 1  # halves, and the engines that have them


@dataclass(frozen=True)
class Half:
    """One half of a linear layer.

    Attributes
    ----------
    engine : int
        IN or OUT.
    merged : int
        Cores that are merged before tokens come: 1, 2 or 3.
    rank, near_rank, far_rank : int
        k, b, a.
    near, middle, far : int
        Modes.
    cores, gradients : dict of str to At
        Where "near", "middle" and "far" core and their gradients lie: N as (k, near) words of b, M as (b, middle) words
        of a, F as (a) words of `far`.
    """

    engine: int
    merged: int
    rank: int
    near_rank: int
    far_rank: int
    near: int
    middle: int
    far: int
    cores: dict[str, At] = field(hash=False)
    gradients: dict[str, At] = field(hash=False)

    @property
    def tail_words(self) -> int:
        """Words of a row of M F."""
        return self.middle * self.far // LANES

    @property
    def far_words(self) -> int:
        """Words of a row of F."""
        return words_for(self.far)

    @property
    def words(self) -> int:
        """Words of the features."""
        return self.near * self.tail_words

    @property
    def block(self) -> int:
        """Words of the features of one index of `near`, each `far` in words of its own."""
        return self.middle * self.far_words

    def held(self) -> dict[str, tuple[int, int]]:
        """Return what the engine holds of it: (rows, words of a row) by name."""
        parts = {"far": (self.far_rank, self.far_words)}
        if self.merged == 1:
            parts["middle"] = (self.near_rank, self.middle)
        else:
            parts["tail"] = (self.near_rank, self.tail_words)
        if self.merged == 3:
            parts["merged"] = (self.rank, self.words)
        else:
            parts["near"] = (self.rank, self.near)
        return parts

    # ---- permutations: for each element out its element in ---------------------------------------------------------

    def _features(self) -> np.ndarray:
        """The place of (near, middle, far) among the layer's features."""
        if self.engine == IN:
            return np.arange(self.near * self.middle * self.far).reshape(self.near, self.middle, self.far)
        return (
            np.arange(self.near * self.middle * self.far).reshape(self.far, self.middle, self.near).transpose(2, 1, 0)
        )

    def _loose(self) -> np.ndarray:
        """The place of (near, middle, far) where each `far` has words of its own."""
        near, middle, far = np.ogrid[: self.near, : self.middle, : self.far]
        return (near * self.middle + middle) * self.far_words * LANES + far

    def _through(self, source: np.ndarray, target: np.ndarray, words: int) -> np.ndarray:
        result = np.full(words * LANES, -1)
        result[target.reshape(-1)] = source.reshape(-1)
        return result.reshape(words, LANES)

    @property
    def packing(self) -> np.ndarray:
        """From `middle` rows of loose words to whole words."""
        return self._through(self._loose()[0], np.arange(self.middle * self.far), self.tail_words)

    @property
    def unpacking(self) -> np.ndarray:
        """Back, 0 in the gaps."""
        return self._through(np.arange(self.middle * self.far), self._loose()[0], self.block)

    @property
    def to_features(self) -> np.ndarray:
        """From the half's order to that of the layer's features."""
        source = self._loose() if self.merged == 1 else np.arange(self.words * LANES)
        return self._through(source, self._features(), self.words)

    @property
    def from_features(self) -> np.ndarray:
        """From the order of the layer's features to the half's."""
        if self.merged == 1:
            return self._through(self._features(), self._loose(), self.near * self.block)
        return self._through(self._features(), np.arange(self.words * LANES), self.words)

    @property
    def token_words(self) -> int:
        """Words of a token's features in the half's own order."""
        return self.near * self.block if self.merged == 1 else self.words

    @property
    def is_turned(self) -> bool:
        """Whether tokens' features have another order than the layer's, or gaps."""
        return self.merged == 1 or (self.merged == 2 and self.engine == OUT)


class HalfCode:
    """The instructions of one half, where it is held.

    Parameters
    ----------
    builder : Builder
    half : Half
    held : dict of str to At
        Where the parts of `Half.held` lie in the engine's held memory.
    scratch, lifted : Scratch
        Where words between go; those on the way up to the features in a bank of their own, since gradients meet both.
    """

    def __init__(self, builder: Builder, half: Half, held: dict[str, At], scratch, lifted):
        self.b, self.half, self.held, self.scratch, self.lifted = builder, half, held, scratch, lifted
        self.engine = half.engine

    # ---- merging -------------------------------------------------------------------------------------------------

    def merge(self) -> None:
        """Cores into the held memory, merged as far as the flow asks for."""
        b, half = self.b, self.half
        for name in ("far", "middle", "near"):
            if name in self.held:
                moved(b, f"hold {name} core", half.cores[name], self.held[name], *half.held()[name])
        if half.merged == 1:
            return
        loose = self.scratch.take(half.near_rank * half.block)
        b.expand(
            self.engine,
            "tail = M F",
            [Loop("bj", half.near_rank * half.middle), Loop("f", half.far_words)],
            part(self.held["far"], f=1),
            part(half.cores["middle"], bj=1),
            part(loose, bj=half.far_words, f=1),
            count=half.far_rank,
        )
        b.shuffle(
            "pack the tail",
            half.near_rank,
            half.packing,
            part(loose, block=half.block, y=1),
            also=part(self.held["tail"], y=1),
            row=("block", 0),
        )
        if half.merged == 2:
            return
        loops = [Loop("k", half.rank), Loop("j", half.near), Loop("w", half.tail_words)]
        scalars, tail = part(half.cores["near"], k=half.near, j=1), part(self.held["tail"], w=1)
        strides, merged = {"j": half.tail_words, "w": 1}, self.held["merged"]
        if self.engine == IN:
            b.expand(
                IN, "R = N tail", loops, tail, scalars, also=part(merged, **strides), count=half.near_rank, row=("k", 0)
            )
            return
        turned = self.scratch.take(half.rank * half.words)
        result = part(turned, k=half.words, **strides)
        b.expand(OUT, "L^T = N tail, turned", loops, tail, scalars, result, count=half.near_rank)
        source = part(turned, block=half.words, y=1)
        permutation = half._through(np.arange(half.words * LANES), half._features(), half.words)
        b.shuffle("turn L^T", half.rank, permutation, source, also=part(merged, y=1), row=("block", 0))

    # ---- tokens --------------------------------------------------------------------------------------------------

    def turned(self, what: str, x: At, tokens: Bound, result: At | None = None) -> At:
        """Return tokens' features (tokens, features) in the half's own order."""
        half = self.half
        if not half.is_turned:
            return x
        result = result or self.scratch.take(most_of(tokens) * half.token_words)
        self.b.shuffle(
            what,
            tokens,
            half.from_features,
            part(x, block=half.words, y=1),
            part(result, block=half.token_words, y=1),
        )
        return result

    def lower(self, x: At, tokens: Bound, z: At, one: bool, kept: At | None = None) -> list[At]:
        """Return [x, ..., z]: from features in the half's order to the middle rank, with what lies between.

        Parameters
        ----------
        x : At
            (tokens, token_words).
        tokens : int or Register
        z : At
            (tokens) words of k; with `one`, a 1 stands behind them.
        kept : At, optional
            Where the words before z go; by default into the scratch.
        """
        b, half = self.b, self.half
        flags = M.ONE if one else 0
        if half.merged == 3:
            b.reduce(
                self.engine,
                "z = x W3^T",
                [Loop("w", half.words + 1), padded("t", tokens)],
                "w",
                part(self.held["merged"], w=1),
                part(x, t=half.words, w=1),
                part(z, t=1),
                count=half.rank,
                flags=flags,
            )
            return [x, z]
        u = kept or self.scratch.take(most_of(tokens) * half.near)
        result = [x, u, z]
        if half.merged == 2:
            b.reduce(
                self.engine,
                "u = x W2^T",
                [Loop("t", tokens), Loop("w", half.tail_words + 1), padded("j", half.near)],
                "w",
                part(self.held["tail"], w=1),
                part(x, t=half.words, j=half.tail_words, w=1),
                part(u, t=half.near, j=1),
                count=half.near_rank,
            )
        else:
            p = self.scratch.take(most_of(tokens) * half.near * half.middle)
            result = [x, p, u, z]
            # one loop over tokens and near: rows of `middle` follow each other without a gap
            rows = self._rows(tokens)
            b.reduce(
                self.engine,
                "p = x F^T",
                [*rows, Loop("f", half.far_words + 1), padded("m", half.middle)],
                "f",
                part(self.held["far"], f=1),
                part(x, t=half.near * half.block, j=half.block, m=half.far_words, f=1),
                part(p, t=half.near * half.middle, j=half.middle, m=1),
                count=half.far_rank,
            )
            b.reduce(
                self.engine,
                "u = p M^T",
                [Loop("t", tokens), Loop("m", half.middle + 1), padded("j", half.near)],
                "m",
                part(self.held["middle"], m=1),
                part(p, t=half.near * half.middle, j=half.middle, m=1),
                part(u, t=half.near, j=1),
                count=half.near_rank,
            )
        b.reduce(
            self.engine,
            "z = u N^T",
            [Loop("j", half.near + 1), padded("t", tokens)],
            "j",
            part(self.held["near"], j=1),
            part(u, t=half.near, j=1),
            part(z, t=1),
            count=half.rank,
            flags=flags,
        )
        return result

    def _rows(self, tokens: Bound) -> list[Loop]:
        return [Loop("t", tokens), Loop("j", self.half.near)]

    def lift(
        self, z: At, tokens: Bound, y: At, addend: At | None, also: At | None = None, first: int = 0, row=None
    ) -> list[At]:
        """Return [z, ..., y]: from the middle rank to features in the half's order, with what lies between.

        Parameters
        ----------
        z : At
            (tokens) words of k.
        y : At
            (tokens, token_words).
        addend : At, optional
            In the order of y; with strides of its own.
        also : At, optional
            A held memory that gets y as well (merged halves only).
        first : int
            The first token.
        """
        b, half = self.b, self.half
        if half.merged == 3:
            b.expand(
                self.engine,
                "y = z W3",
                [Loop("w", half.words), padded("t", tokens)],  # as the vector unit goes through y
                part(self.held["merged"], w=1),
                part(z, first, t=1),
                part(y, first * half.words, t=half.words, w=1),
                also=also,
                addend=addend,
                count=half.rank,
                row=row,
            )
            return [z, y]
        v = self.lifted.take(most_of(tokens) * half.near)
        rows = self._rows(tokens)
        b.expand(
            self.engine,
            "v = z N",
            rows,
            part(self.held["near"], j=1),
            part(z, t=1),
            part(v, t=half.near, j=1),
            count=half.rank,
        )
        if half.merged == 2:
            b.expand(
                self.engine,
                "y = v W2",
                [*rows, Loop("w", half.tail_words)],
                part(self.held["tail"], w=1),
                part(v, t=half.near, j=1),
                part(y, t=half.words, j=half.tail_words, w=1),
                addend=addend,
                count=half.near_rank,
            )
            return [z, v, y]
        q = self.lifted.take(most_of(tokens) * half.near * half.middle)
        b.expand(
            self.engine,
            "q = v M",
            [*rows, Loop("m", half.middle)],
            part(self.held["middle"], m=1),
            part(v, t=half.near, j=1),
            part(q, t=half.near * half.middle, j=half.middle, m=1),
            count=half.near_rank,
        )
        b.expand(
            self.engine,
            "y = q F",
            [Loop("t", tokens), Loop("jm", half.near * half.middle), Loop("f", half.far_words)],
            part(self.held["far"], f=1),
            part(q, t=half.near * half.middle, jm=1),
            part(y, t=half.near * half.block, jm=half.far_words, f=1),
            addend=addend,
            count=half.far_rank,
        )
        return [z, v, q, y]

    # ---- gradients of the cores ------------------------------------------------------------------------------------

    def backward(self, lifted: list[At], lowered: list[At], tokens: Bound, bias: At | None) -> None:
        """Gradients of the cores, from both ends' ways through the half.

        Parameters
        ----------
        lifted, lowered : list of At
            From `lift` and `lower`: one has the features (or their gradients), the other what the middle rank has of
            them. tokens : int or Register
        bias : At, optional
            Where the gradient of the bias goes; its words are the features' sums, where z has a one behind it.
        """
        half, x, z = self.half, lowered[0], lifted[0]
        if half.merged == 3:
            self._merged_backward(z, x, tokens, bias)
            return
        v = lifted[1]
        u = lowered[-2]
        # d_N[k, j] = sum over t of z[t][k] u[t, j]
        self._outer(
            "d N",
            [Loop("t", tokens), padded("j", half.near)],
            "t",
            part(z, t=1),
            part(u, t=half.near, j=1),
            half.rank,
            half.near,
            half.gradients["near"],
            check=True,
        )
        rows = self._rows(tokens)
        if half.merged == 2:
            d_tail = self.scratch.take(half.near_rank * half.tail_words)
            self._outer(
                "d tail",
                [*rows, padded("w", half.tail_words)],
                "tj",
                part(v, t=half.near, j=1),
                part(x, t=half.words, j=half.tail_words, w=1),
                half.near_rank,
                half.tail_words,
                d_tail,
            )
            self._tail_backward(d_tail)
            return
        q, p = lifted[2], lowered[1]
        self._outer(
            "d M",
            [*rows, padded("m", half.middle)],
            "tj",
            part(v, t=half.near, j=1),
            part(p, t=half.near * half.middle, j=half.middle, m=1),
            half.near_rank,
            half.middle,
            half.gradients["middle"],
            check=True,
        )
        self._far_backward(
            [*rows, padded("m", half.middle, half.far_words), Loop("f", half.far_words)],
            ("t", "j"),
            part(q, t=half.near * half.middle, j=half.middle, m=1),
            part(x, t=half.near * half.block, j=half.block, m=half.far_words, f=1),
        )

    def _outer(self, what, loops, depth, scalars, stream, rows, words, result, check=False, count=None) -> None:
        """result (rows, words) = sum over the depth of scalars^T stream"""
        self.b.accumulate(self.engine, what, loops, tuple(depth), depth[-1], scalars, stream, count=count or rows)
        self.b.drain(
            self.engine,
            what,
            [Loop("r", rows), Loop("w", words)],
            "r",
            0,
            at("", 0, w=1),
            part(result, r=words, w=1),
            check=check,
        )

    def _merged_backward(self, z: At, x: At, tokens: Bound, bias: At | None) -> None:
        """d_W3 = z^T x; d_N and d_tail from it."""
        b, half = self.b, self.half
        words, tail_words = half.words, half.tail_words
        d_merged = self.scratch.take(half.rank * words)
        loops = [Loop("t", tokens), padded("w", words)]
        count = half.rank + (bias is not None)
        self._outer(
            "d W3 = z^T x", loops, "t", part(z, t=1), part(x, t=words, w=1), half.rank, words, d_merged, count=count
        )
        if bias is not None:
            b.drain(
                self.engine, "d b", [Loop("w", words)], None, half.rank, at("", 0, w=1), part(bias, w=1), check=True
            )
        if self.engine == OUT:
            turned = self.scratch.take(half.rank * words)
            permutation = half._through(half._features(), np.arange(words * LANES), words)
            b.shuffle(
                "turn d W3", half.rank, permutation, part(d_merged, block=words, y=1), part(turned, block=words, y=1)
            )
            d_merged = turned
        stream = part(d_merged, k=words, j=tail_words, w=1)
        b.reduce(
            self.engine,
            "d N = d W3 tail^T",
            [Loop("k", half.rank), Loop("w", tail_words + 1), padded("j", half.near)],
            "w",
            part(self.held["tail"], w=1),
            stream,
            part(half.gradients["near"], k=half.near, j=1),
            count=half.near_rank,
            flags=M.CHECK,
        )
        d_tail = self.scratch.take(half.near_rank * tail_words)
        self._outer(
            "d tail = N^T d W3",
            [Loop("k", half.rank), Loop("j", half.near), padded("w", tail_words)],
            "kj",
            part(half.cores["near"], k=half.near, j=1),
            stream,
            half.near_rank,
            tail_words,
            d_tail,
        )
        self._tail_backward(d_tail)

    def _tail_backward(self, d_tail: At) -> None:
        """d_M = d_tail F^T; d_F = M^T d_tail."""
        b, half = self.b, self.half
        loose = self.scratch.take(half.near_rank * half.block)
        b.shuffle(
            "unpack d tail",
            half.near_rank,
            half.unpacking,
            part(d_tail, block=half.tail_words, y=1),
            part(loose, block=half.block, y=1),
        )
        stream = part(loose, b=half.block, m=half.far_words, f=1)
        b.reduce(
            self.engine,
            "d M = d tail F^T",
            [Loop("b", half.near_rank), Loop("f", half.far_words + 1), padded("m", half.middle)],
            "f",
            part(self.held["far"], f=1),
            stream,
            part(half.gradients["middle"], b=half.middle, m=1),
            count=half.far_rank,
            flags=M.CHECK,
        )
        loops = [Loop("b", half.near_rank), padded("m", half.middle, half.far_words), Loop("f", half.far_words)]
        self._far_backward(loops, ("b",), part(half.cores["middle"], b=half.middle, m=1), stream)

    def _far_backward(self, loops, depth, scalars: At, stream: At) -> None:
        """d_F = sum of scalars^T stream: an engine sums it in `middle` parts, the vector unit adds them up."""
        b, half = self.b, self.half
        b.accumulate(self.engine, "d F, in parts", loops, depth, depth[-1], scalars, stream, count=half.far_rank)
        parts = self.scratch.take(half.far_rank * half.block)
        b.drain(
            self.engine,
            "d F, in parts",
            [Loop("a", half.far_rank), Loop("p", half.block)],
            "a",
            0,
            at("", 0, p=1),
            part(parts, a=half.block, p=1),
        )
        b.vector(
            M.COLUMNS,
            "d F",
            [Loop("m", half.middle), padded("a", half.far_rank, half.far_words), Loop("f", half.far_words)],
            part(parts, m=half.far_words, a=half.block, f=1),
            r1=part(half.gradients["far"], a=half.far_words, f=1),
            depth=("m",),
            slot_loop="m",
            flags=M.CHECK,
        )
