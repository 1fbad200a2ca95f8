"""The table of prices: data/gpu_prices.json, or one of the user's own."""

import json
from dataclasses import dataclass
from pathlib import Path

from bttlab.places import ROOT
from bttlab.records import RecordError, build
from bttlab_cost.configuration import CostError

PRICES = ROOT / "data" / "gpu_prices.json"


@dataclass(frozen=True)
class Price:
    """A row of the table; all of it published.

    Attributes
    ----------
    gpu : str
        A name of data/gpus.json.
    usd_per_hour : float
        Of one GPU, on demand.
    provider, source, read_in, date : str
        The provider, its page, the collection that lists the price, and its date (ISO 8601).

    Raises
    ------
    CostError
        If the price is not above 0.
    """

    gpu: str
    usd_per_hour: float
    provider: str
    source: str
    read_in: str
    date: str

    def __post_init__(self):
        if not self.usd_per_hour > 0:
            raise CostError(f"usd_per_hour of {self.gpu} is {self.usd_per_hour:g}: it must be above 0; correct it")


def read_prices(path: Path = PRICES) -> dict[str, Price]:
    """Return the prices of a table by GPU.

    Raises
    ------
    CostError
        If it cannot be read, a row breaks a rule, or rows are of several providers, so that they do not rank GPUs.
    """
    try:
        rows = build(list[Price], json.loads(path.read_text(encoding="utf-8"))["gpus"], "gpus")
    except CostError as error:
        raise CostError(f"{path}: {error}") from None
    except (RecordError, OSError, ValueError, LookupError, TypeError) as error:
        raise CostError(f"{path} is no table of GPU prices ({error}); data/gpu_prices.json shows the form") from None
    providers = sorted({row.provider for row in rows})
    if len(providers) > 1:
        raise CostError(f"{path} has prices of {' and '.join(providers)}: one table ranks one provider's; divide it")
    return {row.gpu: row for row in rows}
