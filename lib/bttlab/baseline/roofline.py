"""Time of work on a GPU: the longest of its arithmetic, its bytes and its launches."""

from dataclasses import dataclass

from bttlab.baseline.gpus import Gpu


@dataclass(frozen=True)
class Reach:
    """Shares of a GPU's published peaks that kernels reach.

    Attributes
    ----------
    arithmetic, bandwidth : float
    """

    arithmetic: float
    bandwidth: float


def longest_seconds(flops: float, moved: float, launches: float, gpu: Gpu, precision: str, reach: Reach) -> float:
    """Return the seconds of some work.

    Parameters
    ----------
    flops, moved : float
        Operations of matrix products, and bytes to and from memory.
    launches : float
        Seconds below which it cannot be: what launching its kernels takes.
    gpu : Gpu
    precision : {"fp32", "bf16"}
    reach : Reach
    """
    arithmetic = flops / (reach.arithmetic * gpu.peak(precision))
    memory = moved / (reach.bandwidth * 1e9 * gpu.bandwidth_gb_s)
    return max(arithmetic, memory, launches)
