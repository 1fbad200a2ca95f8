"""LayerNorm and RMSNorm over a token's features: forward, backward, and the recomputed output."""

from dataclasses import dataclass

from bttlab.compiler.builder import LANES, Builder, padded
from bttlab.compiler.instruction import At, Bound, Level
from bttlab.compiler.layout import Block
from bttlab.compiler.machine import machine
from bttlab.compiler.operands import part

M = machine()


@dataclass(frozen=True)
class Norm:
    """y = n scale + shift with n = (x - mean) / std, or n = x / root mean square.

    Attributes
    ----------
    name : str
    tokens : int or Register
    vectors : int
        Vectors of a token.
    kept : At
        Place of n, (tokens, vectors).
    rows : int
        First row of statistics of its tokens; 1 / std stays there for the backward pass.
    scale, shift : Block
        The shift is optional.
    """

    builder: Builder
    name: str
    tokens: Bound
    vectors: int
    kept: At
    rows: int
    scale: Block
    shift: Block | None
    epsilon: float
    centred: bool

    def _matrix(self, where: At) -> At:
        return part(where, t=self.vectors, w=1)

    @property
    def _parameters(self) -> dict[str, At]:
        shift = {} if self.shift is None else {"c": self.shift.where(w=1)}
        return {"b": self.scale.where(w=1)} | shift

    @property
    def _rows(self) -> dict:
        loops = [Level("w", self.vectors), padded("t", self.tokens)]
        return {"loops": loops, "accumulator_loop": "w", "rows": self.rows}

    def forward(self, x: At, residual: At | None, total: At | None, y: At) -> None:
        """Emit total = x + residual and y = norm of total; without a residual, y = norm of x."""
        b, rows, sums = self.builder, self._rows, {"depth": ("w",)} | self._rows
        share = 1 / (self.vectors * LANES)
        b.layer = self.name
        if residual is not None:
            sums_to = {"a": self._matrix(x), "b": self._matrix(residual), "r0": self._matrix(total)}
        else:
            total, sums_to = x, {"a": self._matrix(x)}
        total = self._matrix(total)
        b.vector(M.SUM, "mean" if self.centred else "no mean", **sums_to, immediates=(share * self.centred,), **sums)
        b.vector(M.VARIANCE, "1 / std", a=total, immediates=(share, self.epsilon), **sums)
        results = {"r0": self._matrix(self.kept), "r1": self._matrix(y)}
        b.vector(M.NORMALIZE, "y", a=total, **self._parameters, **results, **rows)

    def recompute(self, y: At) -> None:
        """Emit the output y from the stored n, in the backward pass."""
        self.builder.layer = self.name
        loops = [Level("w", self.vectors), padded("t", self.tokens)]
        operands = {"a": self._matrix(self.kept), "r0": self._matrix(y)} | self._parameters
        self.builder.vector(M.AFFINE, "recompute y", loops, **operands)

    def backward(self, d_y: At, d_x: At, check: bool = False) -> None:
        """Emit d_x = (d - mean(d) - n mean(d n)) / std with d = d_y scale, and the gradients of scale and shift."""
        b, rows = self.builder, self._rows
        b.layer = self.name
        operands = {"a": self._matrix(d_y), "b": self.scale.where(w=1), "c": self._matrix(self.kept)}
        sums, share = {"depth": ("w",)} | rows, (1 / (self.vectors * LANES),)
        b.vector(M.NORM_SUMS, "mean(d), mean(d n)", immediates=share, **operands, **sums)
        if not self.centred:
            b.vector(M.DOT, "no mean(d)", **sums | {"loops": [Level("w", 1), padded("t", self.tokens)]})
        flags = M.CHECK if check else 0
        b.vector(M.NORM_BACK, "d_x", r0=self._matrix(d_x), flags=flags, **operands, **rows)
        loops = [Level("t", self.tokens), padded("w", self.vectors)]
        results = {"r0": self.scale.gradient(w=1)} | ({} if self.shift is None else {"r1": self.shift.gradient(w=1)})
        b.columns("d_scale, d_shift", loops, a=self._matrix(d_y), b=self._matrix(self.kept), **results, check=True)
