"""What the model of the U50 adds to the record of a training."""

from collections.abc import Callable
from typing import Any

from bttlab.estimate.card import estimate
from bttlab.estimate.constants import modelled
from bttlab.model import PAPER_FLOW, Optimizer
from bttlab.runs.record import RunRecord
from bttlab.util.errors import BttlabError

OnRecord = Callable[[RunRecord], None]  # called before run.json is written; may add to the record


def u50_callback(config, lengths, optimizer: Optimizer, flow: str = PAPER_FLOW) -> OnRecord:
    """Return a callback for `Run.train` that adds what the model of the U50 says of a training to its record.

    It adds nothing if the card does not hold the model.

    Parameters
    ----------
    lengths : ndarray of int, or mapping of int to int
        Real tokens of the training split's samples, or how many there are of each length.
    flow : str
        Order of contraction.
    """
    try:
        estimated = estimate(config, lengths, optimizer.name, flow, batch_size=optimizer.batch_size)
    except BttlabError:
        return lambda record: None

    def on_record(record: RunRecord) -> None:
        record.figures |= card_figures(estimated)
        if "samples" in record.figures and (samples := record.figures["samples"]["value"]) is not None:
            energy: Any = estimated.energy_per_sample.scaled(samples).to_dict()
            record.figures["u50.joules"] = energy

    return on_record


def card_figures(estimated) -> dict[str, Any]:
    """Return the time, energy and memory of an `Estimate` as figures of a run."""
    return {
        "u50.seconds_per_epoch": {"value": estimated.seconds_per_epoch} | modelled("s"),
        "u50.joules_per_epoch": estimated.energy_per_epoch.to_dict(),
        "u50.memory_bytes": {"value": estimated.memory.bytes} | modelled("bytes"),
        "u50.lane_utilisation": {"value": estimated.lane_utilisation} | modelled("1"),
    }
