"""Forward pass of one half of a linear layer: merging its cores, and contracting tokens with them.

An engine has ROWS rows: what has more along its rows, of a rank, is done in several passes.
"""

from collections.abc import Sequence

from bttlab.compiler.builder import ROWS, Builder, padded, row_passes
from bttlab.compiler.half import OUT, Half
from bttlab.compiler.instruction import At, Bound, Level, most_of
from bttlab.compiler.machine import machine
from bttlab.compiler.operands import moved, part

M = machine()
VECTOR_LOOPS = {"far": "f", "middle": "m", "tail": "w", "near": "j", "merged": "w"}  # over the vectors of a row


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

    # ---- products with what an operand buffer holds --------------------------------------------------------------

    def _expand(
        self,
        what: str,
        loops: Sequence[Level],
        name: str,
        scalars: At,
        result: At | None = None,
        addend: At | None = None,
        also: At | None = None,
        row=None,
        strides: dict[str, int] | None = None,
    ) -> None:
        """result = addend + the sum over rows of scalars x buffer; each pass adds to what the one before left.

        Parameters
        ----------
        name : str
            Of the part in the operand buffer; rows of the next pass lie behind those of the pass before.
        strides : dict of str to int, optional
            Of what a pass leaves to the next; by default those of the result.
        """
        *others, (last, count) = self._passes(name)
        if others:
            strides = strides or result.strides
            vectors = 1 + sum((most_of(loop.active_bound) - 1) * strides.get(loop.name, 0) for loop in loops)
            left = part(self.b.take(f"{what}, a pass", vectors), **strides)
        for n, some in others:
            own = self._held(name, n), scalars.behind(n)
            self.b.expand(self.engine, what, loops, *own, left, addend=addend, count=some)
            addend = left
        own = self._held(name, last), scalars.behind(last)
        self.b.expand(self.engine, what, loops, *own, result, also, addend, count, row=row)

    def _reduce(self, what: str, loops: Sequence[Level], name: str, stream: At, result: At, flags: int = 0) -> None:
        """result = sum over depth and lanes of buffer x stream, a lane for each row; a vector for each pass."""
        for n, count in self._passes(name):
            operands = self._held(name, n), stream, result.behind(n)
            self.b.reduce(self.engine, what, loops, VECTOR_LOOPS[name], *operands, count=count, flags=flags)

    def _passes(self, name: str) -> list[tuple[int, int]]:
        return row_passes(self.half.buffered()[name][0])

    def _held(self, name: str, number: int) -> At:
        """Return the rows of a pass in the operand buffer."""
        return part(self.buffers[name], number * self.half.buffered()[name][1], **{VECTOR_LOOPS[name]: 1})

    # ---- merging -------------------------------------------------------------------------------------------------

    def merge(self) -> None:
        """Cores into the operand buffer, merged as far as the flow asks for."""
        b, half = self.b, self.half
        if half.outer is not None:
            self.outer().merge()
        for name in ("far", "middle", "near"):
            if name in self.buffers and (name != "far" or half.outer is None):
                rows, vectors = half.buffered()[name]
                for n, some in row_passes(rows):
                    source = half.cores[name].behind(ROWS * n * vectors)
                    moved(b, f"load {name} core", source, self.buffers[name].behind(n * vectors), some, vectors)
        if half.merged == 1:
            return
        loose = self.scratch.take(half.near_rank * half.block)
        self._expand(
            "tail = M F",
            [Level("bj", half.near_rank * half.middle), Level("f", half.far_vectors)],
            "far",
            part(half.cores["middle"], bj=half.a_vectors),
            part(loose, bj=half.far_vectors, f=1),
        )
        for n, rows in row_passes(half.near_rank):
            source = part(loose, ROWS * n * half.block, block=half.block, y=1)
            tail = part(self.buffers["tail"], n * half.tail_vectors, y=1)
            b.shuffle("pack the tail", rows, half.packing, source, also=tail, row=("block", 0))
        if half.merged == 3:
            self._merge_near()

    def _merge_near(self) -> None:
        """N tail into the operand buffer."""
        half, merged = self.half, self.buffers["merged"]
        strides = {"j": half.tail_vectors, "w": 1}
        inner = [Level("j", half.near), Level("w", half.tail_vectors)]
        scalars = part(half.cores["near"], k=half.near * half.b_vectors, j=half.b_vectors)
        if half.which == OUT:
            permuted = self.scratch.take(half.rank * half.vectors)
            result, loops = part(permuted, k=half.vectors, **strides), [Level("k", half.rank), *inner]
            self._expand("L^T = N tail, permuted", loops, "tail", scalars, result)
        for n, rows in row_passes(half.rank):
            first, own = ROWS * n, merged.behind(n * half.vectors)
            if half.which == OUT:
                source, also = part(permuted, first * half.vectors, block=half.vectors, y=1), part(own, y=1)
                self.b.shuffle("permute L^T", rows, half.to_features, source, also=also, row=("block", 0))
                continue
            self._expand(
                "R = N tail",
                [Level("k", rows), *inner],
                "tail",
                scalars.moved("k", first),
                also=part(own, **strides),
                row=("k", 0),
                strides={"k": half.vectors, **strides},
            )

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
            (tokens) rows of k; with `one`, a 1 stands behind them.
        kept : At, optional
            Where the vectors before z go; by default into the scratch.
        """
        half = self.half
        flags = M.ONE if one else 0
        if half.merged == 3:
            self._reduce(
                "z = x W3^T",
                [Level("w", half.vectors + 1), padded("t", tokens)],
                "merged",
                part(x, t=half.vectors, w=1),
                part(z, t=half.k_vectors),
                flags,
            )
            return [x, z]
        near = half.near * half.b_vectors
        u = (kept or self.scratch.take(most_of(tokens) * near)) if half.has_near else z
        flags_of_u = 0 if half.has_near else flags  # without a near core u is z
        result = [x, u, z]
        if half.merged == 2:
            depth = Level("w", half.tail_vectors + 1)
            self._reduce(
                "u = x W2^T",
                [Level("t", tokens), depth, padded("j", half.near)]
                if isinstance(tokens, int)
                else [Level("j", half.near), depth, padded("t", tokens)],  # as the vectors of x come
                "tail",
                part(x, t=half.vectors, j=half.tail_vectors, w=1),
                part(u, t=near, j=half.b_vectors),
                flags_of_u,
            )
        else:
            middle = half.middle * half.a_vectors
            p = self.scratch.take(most_of(tokens) * half.near * middle)
            result = [x, p, u, z]
            # one loop over tokens and near: rows of `middle` follow each other without a gap
            rows = self._rows(tokens)
            self._reduce(
                "p = x F^T",
                [*rows, Level("f", half.far_vectors + 1), padded("m", half.middle)],
                "far",
                part(x, t=half.near * half.block, j=half.block, m=half.far_vectors, f=1),
                part(p, t=half.near * middle, j=middle, m=half.a_vectors),
            )
            self._reduce(
                "u = p M^T",
                [Level("t", tokens), Level("m", middle + 1), padded("j", half.near)],
                "middle",
                part(p, t=half.near * middle, j=middle, m=1),
                part(u, t=near, j=half.b_vectors),
                flags_of_u,
            )
        if not half.has_near:
            return result
        self._reduce(
            "z = u N^T",
            [Level("j", near + 1), padded("t", tokens)],
            "near",
            part(u, t=near, j=1),
            part(z, t=half.k_vectors),
            flags,
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
            (tokens) rows of k.
        y : At, optional
            (tokens, token_vectors); without it, only what lies between is made.
        addend : At, optional
            In the order of y, with its own strides.
        also : At, optional
            A operand buffer that gets y as well (merged halves only).
        first : int
            The first token.
        """
        half = self.half
        if half.merged == 3:
            to = y and part(y, first * half.vectors, t=half.vectors, w=1)
            self._expand(
                "y = z W3",
                [Level("w", half.vectors), Level("t", tokens)],  # as the vector unit goes through y
                "merged",
                part(z, first * half.k_vectors, t=half.k_vectors),
                to,
                addend,
                also,
                row,
                {"t": half.vectors, "w": 1},
            )
            return [z, y]
        near = half.near * half.b_vectors
        v = self.lifted.take(most_of(tokens) * near) if half.has_near else z
        rows = self._rows(tokens)
        if half.merged == 2:  # as the vector unit goes through y
            rows.reverse()
        if half.has_near:
            self._expand(
                "v = z N",
                [Level("j", near) if loop.name == "j" else loop for loop in rows],
                "near",
                part(z, t=half.k_vectors),
                part(v, t=near, j=1),
            )
        if half.merged == 2:
            if y is None:
                return [z, v]
            self._expand(
                "y = v W2",
                [rows[0], Level("w", half.tail_vectors), rows[1]],
                "tail",
                part(v, t=near, j=half.b_vectors),
                part(y, t=half.vectors, j=half.tail_vectors, w=1),
                addend,
            )
            return [z, v, y]
        middle = half.middle * half.a_vectors
        q = self.lifted.take(most_of(tokens) * half.near * middle)
        self._expand(
            "q = v M",
            [*rows, Level("m", middle)],
            "middle",
            part(v, t=near, j=half.b_vectors),
            part(q, t=half.near * middle, j=middle, m=1),
        )
        if y is None:
            return [z, v, q]
        self._expand(
            "y = q F",
            [Level("t", tokens), Level("jm", half.near * half.middle), Level("f", half.far_vectors)],
            "far",
            part(q, t=half.near * middle, jm=half.a_vectors),
            part(y, t=half.near * half.block, jm=half.far_vectors, f=1),
            addend,
        )
        return [z, v, q, y]
