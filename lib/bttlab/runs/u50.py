"""What the model of the U50 adds to the record of a training."""

import contextlib
from collections.abc import Mapping
from typing import Any

from bttlab.estimate.card import estimate
from bttlab.estimate.constants import modelled
from bttlab.model import PAPER_FLOW, Optimizer
from bttlab.runs.plan import Callback
from bttlab.runs.record import RunRecord
from bttlab.util.errors import BttlabError


class U50Figures(Callback):
    """Adds what the model of the U50 says of a training to its record; nothing if the card does not hold the model.

    The figures are those of one card: with more `cards` nothing is added. `lengths` has the number of samples of each
    length (real tokens) of the training split.
    """

    def __init__(
        self, model: Any, lengths: Mapping[int, int], optimizer: Optimizer, flow: str = PAPER_FLOW, cards: int = 1
    ):
        self._estimate = None
        if cards > 1:
            return
        with contextlib.suppress(BttlabError):
            self._estimate = estimate(model, lengths, optimizer.name, flow, batch_size=optimizer.batch_size)

    def on_record(self, record: RunRecord) -> None:
        if self._estimate is None:
            return
        record.figures |= card_figures(self._estimate)
        if (samples := record.value("samples")) is not None:
            energy: Any = self._estimate.energy_per_sample.scaled(samples).to_dict()
            record.figures["u50.joules"] = energy


def card_figures(estimated) -> dict[str, Any]:
    """Return the time, energy and memory of an `Estimate` as figures of a run."""
    return {
        "u50.seconds_per_epoch": {"value": estimated.seconds_per_epoch} | modelled("s"),
        "u50.joules_per_epoch": estimated.energy_per_epoch.to_dict(),
        "u50.memory_bytes": {"value": estimated.memory.bytes} | modelled("bytes"),
        "u50.lane_utilisation": {"value": estimated.lane_utilisation} | modelled("1"),
    }
