"""Forward pass of one half of a linear layer: merging its cores, and contracting tokens with them."""

from bttlab.compiler.builder import Builder, padded
from bttlab.compiler.half import IN, Half
from bttlab.compiler.instruction import At, Bound, Level, most_of
from bttlab.compiler.machine import machine
from bttlab.compiler.operands import moved, part

M = machine()


class HalfForward:
    """Lowering of a half: merge, `lower` from features to the middle rank, `lift` back to features.

    Parameters
    ----------
    buffer : dict of str to At
        Where the parts of `Half.buffered` lie in the engine's operand buffer.
    scratch, lifted : Scratch
        For intermediates; those of `lift` lie in another bank, since gradients read both at once.
    """

    def __init__(self, builder: Builder, half: Half, buffer: dict[str, At], scratch, lifted):
        self.b, self.half, self.buffers, self.scratch, self.lifted = builder, half, buffer, scratch, lifted
        self.engine = half.engine

    # ---- merging -------------------------------------------------------------------------------------------------

    def merge(self) -> None:
        """Cores into the operand buffer, merged as far as the flow asks for."""
        b, half = self.b, self.half
        if half.outer is not None:
            self.outer().merge()
        for name in ("far", "middle", "near"):
            if name in self.buffers and (name != "far" or half.outer is None):
                moved(b, f"load {name} core", half.cores[name], self.buffers[name], *half.buffered()[name])
        if half.merged == 1:
            return
        loose = self.scratch.take(half.near_rank * half.block)
        b.expand(
            self.engine,
            "tail = M F",
            [Level("bj", half.near_rank * half.middle), Level("f", half.far_vectors)],
            part(self.buffers["far"], f=1),
            part(half.cores["middle"], bj=1),
            part(loose, bj=half.far_vectors, f=1),
            count=half.far_rank,
        )
        source, tail = part(loose, x=half.block, y=1), part(self.buffers["tail"], y=1)
        b.shuffle_rows("pack the tail", half.near_rank, half.packing, source, tail)
        if half.merged == 2:
            return
        loops = [Level("k", half.rank), Level("j", half.near), Level("w", half.tail_vectors)]
        scalars, tail = part(half.cores["near"], k=half.near, j=1), part(self.buffers["tail"], w=1)
        strides, merged = {"j": half.tail_vectors, "w": 1}, self.buffers["merged"]
        if half.which == IN:
            also = part(merged, **strides)
            b.expand(self.engine, "R = N tail", loops, tail, scalars, also=also, count=half.near_rank, row=("k", 0))
            return
        permuted = self.scratch.take(half.rank * half.vectors)
        result = part(permuted, k=half.vectors, **strides)
        b.expand(self.engine, "L^T = N tail, permuted", loops, tail, scalars, result, count=half.near_rank)
        source = part(permuted, block=half.vectors, y=1)
        b.shuffle("permute L^T", half.rank, half.to_features, source, also=part(merged, y=1), row=("block", 0))

    def outer(self) -> "HalfForward":
        """Return the lowering of the two cores whose product is this half's far core."""
        buffers = {"far": self.buffers["outer"], "tail": self.buffers["far"]}
        return type(self)(self.b, self.half.outer, buffers, self.scratch, self.lifted)

    # ---- tokens --------------------------------------------------------------------------------------------------

    def permuted(self, what: str, x: At, tokens: Bound, result: At | None = None) -> At:
        """Return tokens' features (tokens, features) in the half's own order."""
        half = self.half
        if not half.is_permuted:
            return x
        result = result or self.scratch.take(most_of(tokens) * half.token_vectors)
        self.b.shuffle(
            what,
            tokens,
            half.from_features,
            part(x, block=half.vectors, y=1),
            part(result, block=half.token_vectors, y=1),
        )
        return result

    def lower(self, x: At, tokens: Bound, z: At, one: bool, kept: At | None = None) -> list[At]:
        """Return [x, ..., z]: from features in the half's order to the middle rank, with what lies between.

        Parameters
        ----------
        x : At
            (tokens, token_vectors).
        z : At
            (tokens) vectors of k; with `one`, a 1 stands behind them.
        kept : At, optional
            Where the vectors before z go; by default into the scratch.
        """
        b, half = self.b, self.half
        flags = M.ONE if one else 0
        if half.merged == 3:
            b.reduce(
                self.engine,
                "z = x W3^T",
                [Level("w", half.vectors + 1), padded("t", tokens)],
                "w",
                part(self.buffers["merged"], w=1),
                part(x, t=half.vectors, w=1),
                part(z, t=1),
                count=half.rank,
                flags=flags,
            )
            return [x, z]
        u = (kept or self.scratch.take(most_of(tokens) * half.near)) if half.has_near else z
        flags_of_u = 0 if half.has_near else flags  # without a near core u is z
        result = [x, u, z]
        if half.merged == 2:
            depth = Level("w", half.tail_vectors + 1)
            b.reduce(
                self.engine,
                "u = x W2^T",
                [Level("t", tokens), depth, padded("j", half.near)]
                if isinstance(tokens, int)
                else [Level("j", half.near), depth, padded("t", tokens)],  # as the vectors of x come
                "w",
                part(self.buffers["tail"], w=1),
                part(x, t=half.vectors, j=half.tail_vectors, w=1),
                part(u, t=half.near, j=1),
                count=half.near_rank,
                flags=flags_of_u,
            )
        else:
            p = self.scratch.take(most_of(tokens) * half.near * half.middle)
            result = [x, p, u, z]
            # one loop over tokens and near: rows of `middle` follow each other without a gap
            rows = self._rows(tokens)
            b.reduce(
                self.engine,
                "p = x F^T",
                [*rows, Level("f", half.far_vectors + 1), padded("m", half.middle)],
                "f",
                part(self.buffers["far"], f=1),
                part(x, t=half.near * half.block, j=half.block, m=half.far_vectors, f=1),
                part(p, t=half.near * half.middle, j=half.middle, m=1),
                count=half.far_rank,
            )
            b.reduce(
                self.engine,
                "u = p M^T",
                [Level("t", tokens), Level("m", half.middle + 1), padded("j", half.near)],
                "m",
                part(self.buffers["middle"], m=1),
                part(p, t=half.near * half.middle, j=half.middle, m=1),
                part(u, t=half.near, j=1),
                count=half.near_rank,
                flags=flags_of_u,
            )
        if not half.has_near:
            return result
        b.reduce(
            self.engine,
            "z = u N^T",
            [Level("j", half.near + 1), padded("t", tokens)],
            "j",
            part(self.buffers["near"], j=1),
            part(u, t=half.near, j=1),
            part(z, t=1),
            count=half.rank,
            flags=flags,
        )
        return result

    def _rows(self, tokens: Bound) -> list[Level]:
        return [Level("t", tokens), Level("j", self.half.near)]

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
            (tokens) vectors of k.
        y : At, optional
            (tokens, token_vectors); without it, only what lies between is made.
        addend : At, optional
            In the order of y, with its own strides.
        also : At, optional
            A operand buffer that gets y as well (merged halves only).
        first : int
            The first token.
        """
        b, half = self.b, self.half
        if half.merged == 3:
            b.expand(
                self.engine,
                "y = z W3",
                [Level("w", half.vectors), Level("t", tokens)],  # as the vector unit goes through y
                part(self.buffers["merged"], w=1),
                part(z, first, t=1),
                y and part(y, first * half.vectors, t=half.vectors, w=1),
                also=also,
                addend=addend,
                count=half.rank,
                row=row,
            )
            return [z, y]
        v = self.lifted.take(most_of(tokens) * half.near) if half.has_near else z
        rows = self._rows(tokens)
        if half.merged == 2:  # as the vector unit goes through y
            rows.reverse()
        if half.has_near:
            b.expand(
                self.engine,
                "v = z N",
                rows,
                part(self.buffers["near"], j=1),
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
                [rows[0], Level("w", half.tail_vectors), rows[1]],
                part(self.buffers["tail"], w=1),
                part(v, t=half.near, j=1),
                part(y, t=half.vectors, j=half.tail_vectors, w=1),
                addend=addend,
                count=half.near_rank,
            )
            return [z, v, y]
        q = self.lifted.take(most_of(tokens) * half.near * half.middle)
        b.expand(
            self.engine,
            "q = v M",
            [*rows, Level("m", half.middle)],
            part(self.buffers["middle"], m=1),
            part(v, t=half.near, j=1),
            part(q, t=half.near * half.middle, j=half.middle, m=1),
            count=half.near_rank,
        )
        if y is None:
            return [z, v, q]
        b.expand(
            self.engine,
            "y = q F",
            [Level("t", tokens), Level("jm", half.near * half.middle), Level("f", half.far_vectors)],
            part(self.buffers["far"], f=1),
            part(q, t=half.near * half.middle, jm=1),
            part(y, t=half.near * half.block, jm=half.far_vectors, f=1),
            addend=addend,
            count=half.far_rank,
        )
        return [z, v, q, y]
