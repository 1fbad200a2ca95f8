"""One half of a linear layer's tensor train: its cores, how they are merged, and the order of their vectors.

A half has a core `near` the middle rank, one in the `middle` and one at the `far` end; N, M, F with ranks k (middle of
the train), b (between near and middle) and a (between middle and far). Its features are those of (near, middle, far),
in this order: the order of the input's features. The output's half is stored the other way round, the output's far end
first.

How many cores are merged before tokens come decides the order of contraction:

    3  tokens meet W3 = N (M F), rank x features         (the paper's bi-directional flow, both halves)
    2  tokens meet W2 = M F, then N                      (the cheapest order for short sentences)
    1  tokens meet F, then M, then N                     (right to left)
"""

from dataclasses import dataclass, field

import numpy as np

from bttlab.compiler.builder import LANES, vectors_for
from bttlab.compiler.instruction import At

IN, OUT = 0, 1  # halves: the input's and the output's


@dataclass(frozen=True)
class Half:
    """One half of a linear layer.

    Attributes
    ----------
    which : int
        IN or OUT.
    engine : int
        The engine that has it.
    merged : int
        Cores that are merged before tokens come: 1, 2 or 3.
    rank, near_rank, far_rank : int
        k, b, a.
    near, middle, far : int
        Modes.
    cores, gradients : dict of str to At
        Where "near", "middle" and "far" core and their gradients lie: N as (k, near) rows of b, M as (b, middle)
        rows of a, F as (a) rows of `far`. A train of two cores at this end has no "near" core.
    outer : Half, optional
        A train of four cores at this end: the half whose M F, merged for each sample, is this one's F.
    far_modes : tuple of int
        The modes of `outer`, from the middle of the train to its end.
    """

    which: int
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
    outer: "Half | None" = None
    far_modes: tuple[int, ...] = ()

    @property
    def has_near(self) -> bool:
        """Whether there is a core N: else M is at the middle of the train, and k is b."""
        return "near" in self.cores

    @property
    def k_vectors(self) -> int:
        """Vectors of a row of k; more than one where an engine takes the rank in several passes."""
        return vectors_for(self.rank)

    @property
    def b_vectors(self) -> int:
        """Vectors of a row of b."""
        return vectors_for(self.near_rank)

    @property
    def a_vectors(self) -> int:
        """Vectors of a row of a."""
        return vectors_for(self.far_rank)

    @property
    def tail_vectors(self) -> int:
        """Vectors of a row of M F."""
        return vectors_for(self.middle * self.far)

    @property
    def far_vectors(self) -> int:
        """Vectors of a row of F."""
        return vectors_for(self.far)

    @property
    def vectors(self) -> int:
        """Vectors of the features."""
        return self.near * self.tail_vectors

    @property
    def block(self) -> int:
        """Vectors of the features of one index of `near`, each `far` in separate vectors."""
        return self.middle * self.far_vectors

    def buffered(self) -> dict[str, tuple[int, int]]:
        """Return what the engine holds of it: (rows, vectors of a row) by name; ROWS rows lie side by side."""
        parts = {"far": (self.far_rank, self.far_vectors)}
        if self.outer is not None:
            parts["outer"] = (self.outer.far_rank, self.outer.far_vectors)
        if self.merged == 1:
            parts["middle"] = (self.near_rank, self.middle * self.a_vectors)
        else:
            parts["tail"] = (self.near_rank, self.tail_vectors)
        if self.merged == 3:
            parts["merged"] = (self.rank, self.vectors)
        elif self.has_near:
            parts["near"] = (self.rank, self.near * self.b_vectors)
        return parts

    @property
    def buffer_vectors(self) -> int:
        """Vectors of each of the operand buffer's rows that all of it takes."""
        return sum(vectors_for(rows) * vectors for rows, vectors in self.buffered().values())

    # ---- permutations: for each element out its element in ---------------------------------------------------------

    def _features(self) -> np.ndarray:
        """The place of (near, middle, far) among the layer's features."""
        modes = (self.near, self.middle, *(self.far_modes or (self.far,)))
        count = np.arange(self.near * self.middle * self.far)
        features = count.reshape(modes) if self.which == IN else count.reshape(modes[::-1]).transpose()
        return features.reshape(self.near, self.middle, self.far)

    def _loose(self) -> np.ndarray:
        """The place of (near, middle, far) where each `far` has separate vectors."""
        near, middle, far = np.ogrid[: self.near, : self.middle, : self.far]
        return (near * self.middle + middle) * self.far_vectors * LANES + far

    def _through(self, source: np.ndarray, target: np.ndarray, vectors: int) -> np.ndarray:
        result = np.full(vectors * LANES, -1)
        result[target.reshape(-1)] = source.reshape(-1)
        return result.reshape(vectors, LANES)

    @property
    def packing(self) -> np.ndarray:
        """From `middle` rows of loose vectors to whole vectors."""
        return self._through(self._loose()[0], np.arange(self.middle * self.far), self.tail_vectors)

    @property
    def unpacking(self) -> np.ndarray:
        """Back, 0 in the gaps."""
        return self._through(np.arange(self.middle * self.far), self._loose()[0], self.block)

    @property
    def to_features(self) -> np.ndarray:
        """From the half's order to that of the layer's features."""
        source = self._loose() if self.merged == 1 else np.arange(self.vectors * LANES)
        return self._through(source, self._features(), self.vectors)

    @property
    def from_features(self) -> np.ndarray:
        """From the order of the layer's features to the half's."""
        if self.merged == 1:
            return self._through(self._features(), self._loose(), self.near * self.block)
        return self._through(self._features(), np.arange(self.vectors * LANES), self.vectors)

    @property
    def token_vectors(self) -> int:
        """Vectors of a token's features in the half's own order."""
        return self.near * self.block if self.merged == 1 else self.vectors

    @property
    def is_permuted(self) -> bool:
        """True if tokens' features have another order than the layer's, or gaps."""
        return self.merged == 1 or (self.merged == 2 and self.which == OUT)
