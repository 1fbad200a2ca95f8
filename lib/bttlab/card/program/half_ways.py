"""One half of a linear layer where an engine holds it: merging its cores, and the ways of tokens through it."""

from bttlab.card.machine import machine
from bttlab.card.program.builder import Builder, padded
from bttlab.card.program.halves import IN, Half
from bttlab.card.program.instruction import At, Bound, Loop, most_of
from bttlab.card.program.moving import moved, part

M = machine()


class HalfWays:
    """How a half is held, and the ways of tokens through it: down to the middle rank, and up to the features.

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
        source, tail = part(loose, x=half.block, y=1), part(self.held["tail"], y=1)
        b.shuffle_rows("pack the tail", half.near_rank, half.packing, source, tail)
        if half.merged == 2:
            return
        loops = [Loop("k", half.rank), Loop("j", half.near), Loop("w", half.tail_words)]
        scalars, tail = part(half.cores["near"], k=half.near, j=1), part(self.held["tail"], w=1)
        strides, merged = {"j": half.tail_words, "w": 1}, self.held["merged"]
        if half.which == IN:
            also = part(merged, **strides)
            b.expand(self.engine, "R = N tail", loops, tail, scalars, also=also, count=half.near_rank, row=("k", 0))
            return
        turned = self.scratch.take(half.rank * half.words)
        result = part(turned, k=half.words, **strides)
        b.expand(self.engine, "L^T = N tail, turned", loops, tail, scalars, result, count=half.near_rank)
        source = part(turned, block=half.words, y=1)
        b.shuffle("turn L^T", half.rank, half.to_features, source, also=part(merged, y=1), row=("block", 0))

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
            depth = Loop("w", half.tail_words + 1)
            b.reduce(
                self.engine,
                "u = x W2^T",
                [Loop("t", tokens), depth, padded("j", half.near)]
                if isinstance(tokens, int)
                else [Loop("j", half.near), depth, padded("t", tokens)],  # as the words of x come
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
        self,
        z: At,
        tokens: Bound,
        y: At | None,
        addend: At | None = None,
        also: At | None = None,
        first: int = 0,
        row=None,
    ) -> list[At]:
        """Return [z, ..., y]: from the middle rank to features in the half's order, with what lies between.

        Parameters
        ----------
        z : At
            (tokens) words of k.
        y : At, optional
            (tokens, token_words); without it, only what lies between is made.
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
                [Loop("w", half.words), Loop("t", tokens)],  # as the vector unit goes through y
                part(self.held["merged"], w=1),
                part(z, first, t=1),
                y and part(y, first * half.words, t=half.words, w=1),
                also=also,
                addend=addend,
                count=half.rank,
                row=row,
            )
            return [z, y]
        v = self.lifted.take(most_of(tokens) * half.near)
        rows = self._rows(tokens)
        if half.merged == 2:  # as the vector unit goes through y
            rows.reverse()
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
            if y is None:
                return [z, v]
            b.expand(
                self.engine,
                "y = v W2",
                [rows[0], Loop("w", half.tail_words), rows[1]],
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
        if y is None:
            return [z, v, q]
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
