"""Backward pass of one half of a linear layer: the gradients of its cores."""

from bttlab.compiler.builder import ROWS, padded, row_passes, together
from bttlab.compiler.half import OUT
from bttlab.compiler.half_forward import HalfForward
from bttlab.compiler.instruction import At, Bound, Level
from bttlab.compiler.machine import machine
from bttlab.compiler.operands import part

M = machine()


class HalfLowering(HalfForward):
    """All instructions of one half, gradients included."""

    def backward(self, lifted: list[At], lowered: list[At], tokens: Bound, bias: At | None) -> None:
        """Gradients of the cores, from both ends' ways through the half.

        Parameters
        ----------
        lifted, lowered : list of At
            From `lift` and `lower`: one has the features (or their gradients), the other what the middle rank has of
            them. tokens : int or Register
        bias : At, optional
            Where the gradient of the bias goes; its vectors are the features' sums, where z has a one behind it.
        """
        half, x, z = self.half, lowered[0], lifted[0]
        if half.merged == 3:
            self._merged_backward(z, x, tokens, bias)
            return
        v = lifted[1]
        u = lowered[-2]
        near, middle = half.near * half.b_vectors, half.middle * half.a_vectors
        if half.has_near:  # d_N[k, j] = sum over t of z[t][k] u[t, j]
            self._outer(
                "d N",
                [Level("t", tokens), padded("j", near)],
                "t",
                part(z, t=half.k_vectors),
                part(u, t=near, j=1),
                half.rank,
                near,
                half.gradients["near"],
                check=True,
            )
        rows = self._rows(tokens)
        if half.merged == 2:
            scalars, stream = {"t": near, "j": half.b_vectors}, {"t": half.vectors, "j": half.tail_vectors}
            self._tail_backward(self._d_tail("d tail", rows[0], v, scalars, x, stream))
            return
        q, p = lifted[2], lowered[1]
        self._outer(
            "d M",
            [*rows, padded("m", middle)],
            "tj",
            part(v, t=near, j=half.b_vectors),
            part(p, t=half.near * middle, j=middle, m=1),
            half.near_rank,
            middle,
            half.gradients["middle"],
            check=True,
        )
        self._far_backward(
            [*rows, padded("m", half.middle, half.far_vectors), Level("f", half.far_vectors)],
            ("t", "j"),
            part(q, t=half.near * middle, j=middle, m=half.a_vectors),
            part(x, t=half.near * half.block, j=half.block, m=half.far_vectors, f=1),
        )

    def _outer(
        self, what, loops, depth, scalars, stream, rows, vectors, result, check=False, bias: At | None = None
    ) -> None:
        """result (rows, vectors) = sum over the depth of scalars^T stream; bias (vectors) is one row more."""
        to = part(result, r=vectors, w=1)
        for n, some in row_passes(rows):
            more = Level("r", some), to.moved("r", ROWS * n), None, check, bias
            self.b.accumulate(self.engine, what, loops, depth, scalars.behind(n), stream, *more)

    def _merged_backward(self, z: At, x: At, tokens: Bound, bias: At | None) -> None:
        """d_W3 = z^T x; d_N and d_tail from it."""
        b, half = self.b, self.half
        vectors, tail_vectors = half.vectors, half.tail_vectors
        d_merged = self.scratch.take(half.rank * vectors)
        loops = [Level("t", tokens), padded("w", vectors)]
        self._outer(
            "d W3 = z^T x",
            loops,
            "t",
            part(z, t=half.k_vectors),
            part(x, t=vectors, w=1),
            half.rank,
            vectors,
            d_merged,
            bias=bias,
        )
        if half.which == OUT:
            permuted = self.scratch.take(half.rank * vectors)
            b.shuffle(
                "permute d W3",
                half.rank,
                half.from_features,
                part(d_merged, block=vectors, y=1),
                part(permuted, block=vectors, y=1),
            )
            d_merged = permuted
        n = together(half.rank, half.near)
        self._reduce(
            "d N = d W3 tail^T",
            [Level("k", half.rank // n), Level("w", tail_vectors + 1), padded("j", n * half.near)],
            "tail",
            part(d_merged, k=n * vectors, j=tail_vectors, w=1),
            part(half.gradients["near"], k=n * half.near * half.b_vectors, j=half.b_vectors),
            M.CHECK,
        )
        scalars = {"k": half.near * half.b_vectors, "j": half.b_vectors}
        matrix = {"k": vectors, "j": tail_vectors}
        near = half.cores["near"]
        self._tail_backward(self._d_tail("d tail = N^T d W3", Level("k", half.rank), near, scalars, d_merged, matrix))

    def _d_tail(self, what: str, outer: Level, a: At, a_strides: dict, c: At, c_strides: dict) -> At:
        """d_tail (near_rank, tail_vectors) = sum over the outer loop and j of a^T c.

        Where a row of vectors is shorter than SUM_DISTANCE, several j have separate sums.
        """
        b, half, vectors = self.b, self.half, self.half.tail_vectors
        pieces = together(half.near, vectors)
        result = self.scratch.take(half.near_rank * vectors)
        parts = self.scratch.take(half.near_rank * pieces * vectors) if pieces > 1 else result
        a_strides, c_strides = ({**s, "j": pieces * s["j"], "p": s["j"]} for s in (a_strides, c_strides))
        loops = [outer, Level("j", half.near // pieces), Level("p", pieces), padded("w", vectors, pieces)]
        more = half.near_rank, pieces * vectors, parts
        self._outer(what, loops, outer.name + "j", part(a, **a_strides), part(c, **c_strides, w=1), *more)
        if pieces > 1:
            for n, rows in row_passes(half.near_rank):
                b.columns(
                    "d tail",
                    [Level("p", pieces), padded("r", rows, vectors), Level("w", vectors)],
                    part(parts, ROWS * n * pieces * vectors, p=vectors, r=pieces * vectors, w=1),
                    r1=part(result, ROWS * n * vectors, r=vectors, w=1),
                )
        return result

    def _tail_backward(self, d_tail: At) -> None:
        """d_M = d_tail F^T; d_F = M^T d_tail."""
        b, half = self.b, self.half
        loose = self.scratch.take(half.near_rank * half.block)
        b.shuffle(
            "unpack d tail",
            half.near_rank,
            half.unpacking,
            part(d_tail, block=half.tail_vectors, y=1),
            part(loose, block=half.block, y=1),
        )
        n, row = together(half.near_rank, half.middle), half.middle * half.a_vectors
        self._reduce(
            "d M = d tail F^T",
            [Level("b", half.near_rank // n), Level("f", half.far_vectors + 1), padded("m", n * half.middle)],
            "far",
            part(loose, b=n * half.block, m=half.far_vectors, f=1),
            part(half.gradients["middle"], b=n * row, m=half.a_vectors),
            M.CHECK,
        )
        loops = [Level("b", half.near_rank), padded("m", half.middle, half.far_vectors), Level("f", half.far_vectors)]
        scalars = part(half.cores["middle"], b=row, m=half.a_vectors)
        self._far_backward(loops, ("b",), scalars, part(loose, b=half.block, m=half.far_vectors, f=1))

    def _far_backward(self, loops, depth, scalars: At, stream: At) -> None:
        """d_F = sum of scalars^T stream: an engine sums it in `middle` parts, the vector unit adds them up."""
        b, half = self.b, self.half
        parts = self.scratch.take(half.far_rank * half.block)
        d_far = half.gradients["far"] if half.outer is None else self.scratch.take(half.far_rank * half.far_vectors)
        self._outer("d F, in parts", loops, depth, scalars, stream, half.far_rank, half.block, parts)
        for n, rows in row_passes(half.far_rank):
            b.columns(
                "d F",
                [Level("m", half.middle), padded("a", rows, half.far_vectors), Level("f", half.far_vectors)],
                part(parts, ROWS * n * half.block, m=half.far_vectors, a=half.block, f=1),
                r1=part(d_far, ROWS * n * half.far_vectors, a=half.far_vectors, f=1),
                check=half.outer is None,
            )
        if half.outer is not None:
            self.outer()._tail_backward(d_far)
