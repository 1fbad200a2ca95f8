"""The table of GPUs, data/gpus.json: what a model of a step must know of one. All of it published."""

import difflib
import json
from dataclasses import dataclass
from functools import cache, reduce

import numpy as np
from numpy.typing import ArrayLike

from bttlab.util.errors import BttlabError
from bttlab.util.places import ROOT
from bttlab.util.settings import from_values

GPUS = ROOT / "data" / "gpus.json"
OVERLAP = 4  # exponent of the norm of times that overlap


class GpuError(BttlabError):
    """A GPU that the table does not have, or a table that is none."""


@dataclass(frozen=True)
class Gpu:
    gpu: str
    aliases: list[str]  # other names it goes by
    # peak of matrix products in BF16 on tensor cores, dense, sums in FP32, 10^12 operations a second
    bf16_tflops: float
    fp32_tflops: float  # peak of FP32 arithmetic outside tensor cores, 10^12 operations a second
    bandwidth_gb_s: float  # of the memory, 10^9 bytes a second
    memory_mib: int  # memory that programs see, 2^20 bytes
    # idle_w, board_w: power without work, a typical reading of nvidia-smi, and the board's limit, W
    idle_w: float
    board_w: float
    source: str
    # power with clocks up and nothing running: low, middle and high of published readings, W
    awake_w: list[float] | None = None

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib * 2**20

    def peak(self, precision: str) -> float:
        """Return the peak of matrix products in a precision, operations a second."""
        return 1e12 * (self.bf16_tflops if precision == "bf16" else self.fp32_tflops)


@cache
def read_gpus() -> dict[str, Gpu]:
    """Return the GPUs of the table by their names."""
    rows = json.loads(GPUS.read_text(encoding="utf-8"))["gpus"]
    return {row.gpu: row for row in from_values(list[Gpu], rows)}


def find_gpu(name: str) -> Gpu:
    """Return the GPU of that name or alias, whatever its case.

    Raises GpuError if it is not in the table; the message names the nearest that is.
    """
    by_name = {known.casefold(): gpu for gpu in read_gpus().values() for known in (gpu.gpu, *gpu.aliases)}
    if name.casefold() in by_name:
        return by_name[name.casefold()]
    nearest = difflib.get_close_matches(name.casefold(), by_name, n=1, cutoff=0.0)[0]
    raise GpuError(
        f"GPU {name!r} is not in the table of GPUs: the nearest is {by_name[nearest].gpu}; take it, or add a row to "
        "data/gpus.json"
    )


def overlapped(*times: ArrayLike) -> ArrayLike:
    """Return the time of work that overlaps on a GPU, of any shape: the 4-norm, the longest unless two are close."""
    longest = reduce(np.maximum, times)
    return longest * sum((time / longest) ** OVERLAP for time in times) ** (1 / OVERLAP)
