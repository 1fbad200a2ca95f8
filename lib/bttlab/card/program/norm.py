"""LayerNorm over a token's features, forward and backward, and what the backward pass makes anew."""

from dataclasses import dataclass

from bttlab.card.machine import machine
from bttlab.card.program import banks
from bttlab.card.program.builder import LANES, Builder, padded
from bttlab.card.program.instruction import At, Loop, Register, at
from bttlab.card.program.layout import Layout
from bttlab.card.program.moving import part

M = machine()
EPSILON = 1e-5


@dataclass(frozen=True)
class Norm:
    """A LayerNorm: y = n scale + shift with n = (x - mean) / std.

    Attributes
    ----------
    builder : Builder
    layout : Layout
    name : str
    tokens : Register
    words : int
        Of a token.
    kept : At
        n, (tokens, words).
    rows : int
        First statistic of its tokens; 1 / std stays there for the backward pass.
    """

    builder: Builder
    layout: Layout
    name: str
    tokens: Register
    words: int
    kept: At
    rows: int

    def _matrix(self, where: At) -> At:
        return part(where, t=self.words, w=1)

    def _parameter(self, kind: str) -> At:
        return part(self.layout.of(f"{self.name}.{kind}").where(), w=1)

    @property
    def _rows(self) -> dict:
        loops = [Loop("w", self.words), padded("t", self.tokens)]
        return {"loops": loops, "slot_loop": "w", "rows": self.rows}

    def forward(self, x: At, residual: At, total: At, y: At) -> None:
        """total = x + residual; y = LayerNorm(total)."""
        b, rows = self.builder, self._rows
        share = 1 / (self.words * LANES)
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

    def again(self, y: At) -> None:
        """Make the output anew from what is kept."""
        self.builder.layer = self.name
        self.builder.vector(
            M.AFFINE,
            "y anew",
            [Loop("w", self.words), padded("t", self.tokens)],
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
            M.NORM_SUMS, "mean(d), mean(d n)", immediates=(1 / (self.words * LANES),), depth=("w",), **operands, **rows
        )
        flags = M.CHECK if check else 0
        b.vector(M.NORM_BACK, "d_x", r0=self._matrix(d_x), flags=flags, **operands, **rows)
        scale, shift = (self.layout.of(f"{self.name}.{kind}") for kind in ("weight", "bias"))
        b.vector(
            M.COLUMNS,
            "d_scale, d_shift",
            [Loop("t", self.tokens), padded("w", self.words)],
            a=self._matrix(d_y),
            b=self._matrix(self.kept),
            r0=at(f"bank {scale.bank + banks.GRADIENT}", scale.base, w=1),
            r1=at(f"bank {shift.bank + banks.GRADIENT}", shift.base, w=1),
            depth=("t",),
            slot_loop="t",
            flags=M.CHECK,
        )
