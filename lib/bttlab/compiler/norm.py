"""LayerNorm over a token's features, forward, backward, and its recomputed output."""

from dataclasses import dataclass

from bttlab.compiler.builder import LANES, Builder, padded
from bttlab.compiler.instruction import At, Level, Register
from bttlab.compiler.layout import Layout
from bttlab.compiler.machine import machine
from bttlab.compiler.operands import part

M = machine()
EPSILON = 1e-5


@dataclass(frozen=True)
class Norm:
    """A LayerNorm: y = n scale + shift with n = (x - mean) / std.

    Attributes
    ----------
    vectors : int
        Of a token.
    kept : At
        n, (tokens, vectors).
    rows : int
        First statistic of its tokens; 1 / std stays there for the backward pass.
    """

    builder: Builder
    layout: Layout
    name: str
    tokens: Register
    vectors: int
    kept: At
    rows: int

    def _matrix(self, where: At) -> At:
        return part(where, t=self.vectors, w=1)

    def _parameter(self, kind: str) -> At:
        return part(self.layout.of(f"{self.name}.{kind}").where(), w=1)

    @property
    def _rows(self) -> dict:
        loops = [Level("w", self.vectors), padded("t", self.tokens)]
        return {"loops": loops, "accumulator_loop": "w", "rows": self.rows}

    def forward(self, x: At, residual: At, total: At, y: At) -> None:
        """total = x + residual; y = LayerNorm(total)."""
        b, rows = self.builder, self._rows
        share = 1 / (self.vectors * LANES)
        b.layer = self.name
        more = {"depth": ("w",), **rows}
        b.vector(
            M.SUM,
            "mean",
            a=self._matrix(x),
            b=self._matrix(residual),
            r0=self._matrix(total),
            immediates=(share,),
            **more,
        )
        b.vector(M.VARIANCE, "1 / std", a=self._matrix(total), immediates=(share, EPSILON), **more)
        b.vector(
            M.NORMALIZE,
            "y",
            a=self._matrix(total),
            b=self._parameter("weight"),
            c=self._parameter("bias"),
            r0=self._matrix(self.kept),
            r1=self._matrix(y),
            **rows,
        )

    def recompute(self, y: At) -> None:
        """Recompute the output from the normalized input."""
        self.builder.layer = self.name
        self.builder.vector(
            M.AFFINE,
            "recompute y",
            [Level("w", self.vectors), padded("t", self.tokens)],
            a=self._matrix(self.kept),
            b=self._parameter("weight"),
            c=self._parameter("bias"),
            r0=self._matrix(y),
        )

    def backward(self, d_y: At, d_x: At, check: bool = False) -> None:
        """d_x = (d - mean(d) - n mean(d n)) / std with d = d_y scale; gradients of scale and shift."""
        b, rows = self.builder, self._rows
        b.layer = self.name
        operands = {"a": self._matrix(d_y), "b": self._parameter("weight"), "c": self._matrix(self.kept)}
        b.vector(
            M.NORM_SUMS,
            "mean(d), mean(d n)",
            immediates=(1 / (self.vectors * LANES),),
            depth=("w",),
            **operands,
            **rows,
        )
        flags = M.CHECK if check else 0
        b.vector(M.NORM_BACK, "d_x", r0=self._matrix(d_x), flags=flags, **operands, **rows)
        scale, shift = (self.layout.of(f"{self.name}.{kind}") for kind in ("weight", "bias"))
        b.columns(
            "d_scale, d_shift",
            [Level("t", self.tokens), padded("w", self.vectors)],
            a=self._matrix(d_y),
            b=self._matrix(self.kept),
            r0=scale.gradient(w=1),
            r1=shift.gradient(w=1),
            check=True,
        )
