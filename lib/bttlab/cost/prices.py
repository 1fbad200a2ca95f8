"""The table of GPUs and their prices: data/gpu_prices.json, or one of the user's own."""

import difflib
import json
from dataclasses import dataclass
from pathlib import Path

from bttlab.baseline.storage import RecordError, build
from bttlab.cost.configuration import CostError
from bttlab.data.find import REPOSITORY

PRICES = REPOSITORY / "data" / "gpu_prices.json"


@dataclass(frozen=True)
class Gpu:
    """A row of the table; all of it published.

    Attributes
    ----------
    gpu : str
    memory_gb : float
        10^9 bytes.
    fp32_tflops : float
        Peak of FP32 arithmetic outside tensor cores, 10^12 operations a second.
    usd_per_hour : float
        Of one GPU, on demand.
    provider, source, read_in, date : str
        Who asks this price, their page, the collection it was read in, and its date (ISO 8601).

    Raises
    ------
    CostError
        If a number is not above 0.
    """

    gpu: str
    memory_gb: float
    fp32_tflops: float
    usd_per_hour: float
    provider: str
    source: str
    read_in: str
    date: str

    def __post_init__(self):
        for name in ("memory_gb", "fp32_tflops", "usd_per_hour"):
            if not getattr(self, name) > 0:
                raise CostError(f"{name} of {self.gpu} is {getattr(self, name):g}: it must be above 0; correct it")


def read_prices(path: Path = PRICES) -> dict[str, Gpu]:
    """Return the GPUs of a table by their names.

    Raises
    ------
    CostError
        If it cannot be read, or a row breaks a rule.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["gpus"]
        return {row.gpu: row for row in build(list[Gpu], rows, "gpus")}
    except CostError as error:
        raise CostError(f"{path}: {error}") from None
    except (RecordError, OSError, ValueError, LookupError, TypeError) as error:
        raise CostError(f"{path} is no table of GPU prices ({error}); data/gpu_prices.json shows the form") from None


def find_gpu(name: str, gpus: dict[str, Gpu]) -> Gpu:
    """Return the GPU of that name, whatever its case.

    Raises
    ------
    CostError
        If it is not in the table; the message names the nearest that is.
    """
    by_name = {known.casefold(): gpu for known, gpu in gpus.items()}
    if name.casefold() in by_name:
        return by_name[name.casefold()]
    nearest = max(gpus, key=lambda known: difflib.SequenceMatcher(None, name.casefold(), known.casefold()).ratio())
    raise CostError(f"GPU {name!r} is not in the table of prices: the nearest is {nearest}; take it, or add a row")
