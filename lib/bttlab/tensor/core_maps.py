"""Maps of the cores of TT and TTM layers, for their `core_map`: gates on the bonds, and cores in few bits."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bttlab.tensor.shapes import ShapeError, is_positive


class BondGates(nn.Module):
    """A diagonal on each internal bond of a train, initially 1: a `core_map` of `TTLinear`.

    The parameters are `gates`, shapes (r_k,). The diagonals are `speed` times these: Adam moves each by about
    `speed` times the learning rate.

    Parameters
    ----------
    ranks : sequence of int
        Internal ranks r_1, ..., r_(d-1).
    speed : float
        Factor of the gates; a larger one moves the diagonals faster.
    """

    def __init__(self, ranks: Sequence[int], speed: float = 1.0):
        super().__init__()
        self.gates = nn.ParameterList(torch.full((rank,), 1 / speed) for rank in ranks)
        self.speed = speed

    def diagonals(self) -> list[Tensor]:
        """Return the diagonals, shapes (r_k,)."""
        return [self.speed * gate for gate in self.gates]

    def forward(self, cores: Sequence[Tensor]) -> list[Tensor]:
        """Return the cores, each but the last multiplied by the diagonal on its right.

        Raises ShapeError if these have other ranks.
        """
        ranks, sizes = [core.shape[-1] for core in cores[:-1]], [len(gate) for gate in self.gates]
        if ranks != sizes:
            raise ShapeError(f"gates are of ranks {sizes} and the cores of {ranks}: make BondGates({ranks})")
        return [*(core * gate for core, gate in zip(cores[:-1], self.diagonals(), strict=True)), cores[-1]]


class QuantisedCores(nn.Module):
    """Round each core to multiples of a step, as a `core_map` of `TTLinear`.

    With q = 2^(bits - 1) - 1, a core's step is its largest magnitude over q. The gradient ignores the rounding: the
    straight-through estimator (Bengio et al., arXiv 1308.3432).

    Parameters
    ----------
    bits : int
        Bits of an element, from 2 to 24, as many as a float32 has.

    Raises
    ------
    ShapeError
        If the number of bits is not allowed.
    """

    def __init__(self, bits: int):
        super().__init__()
        if not is_positive(bits) or not 2 <= bits <= 24:
            raise ShapeError(f"bits is {bits!r}: it must be an integer from 2 to 24")
        self.bits = bits

    def forward(self, cores: Sequence[Tensor]) -> list[Tensor]:
        return [self.rounded(core) for core in cores]

    def rounded(self, core: Tensor) -> Tensor:
        most = 2 ** (self.bits - 1) - 1
        step = (core.detach().abs().amax() / most).clamp_min(torch.finfo(core.dtype).tiny).reshape(1)
        zero = torch.zeros(1, dtype=torch.int32, device=core.device)
        return torch.fake_quantize_per_tensor_affine(core, step[0], zero[0], -most, most)


def padded(cores: Sequence[Tensor], shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return cores of larger ranks and the same matrix, padded with zeros at the bonds.

    Parameters
    ----------
    cores : sequence of Tensor
        Of a TT or TTM, shapes (r_prev, ..., r_next).
    shapes : sequence of sequence of int
        Shapes to return: the same modes, ranks at least as large.

    Returns
    -------
    list of Tensor
        New cores of these shapes.

    Raises
    ------
    ShapeError
        If modes differ or a rank is smaller.
    """
    larger_cores = []
    for core, shape in zip(cores, shapes, strict=True):
        old, new = tuple(core.shape), tuple(shape)
        if old[1:-1] != new[1:-1] or old[0] > new[0] or old[-1] > new[-1]:
            raise ShapeError(f"a core of shape {old} is not padded to {new}: modes stay, ranks are at least as large")
        larger = core.new_zeros(new)
        larger[tuple(slice(size) for size in core.shape)] = core
        larger_cores.append(larger)
    return larger_cores
