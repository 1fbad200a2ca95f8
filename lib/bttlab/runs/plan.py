"""When a run scores the dev split and ends; what it reports, and asks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bttlab.data import Samples
from bttlab.runs.record import RunRecord


@dataclass(frozen=True)
class EvaluationPlan:
    """When a run scores the dev split; the test split is scored at the end.

    Parameters
    ----------
    counts : sequence of int
        Numbers of samples, ascending; the last one ends the run. By default after each epoch.
    utterances : int, optional
        Of the dev split to score; by default all.
    """

    counts: Sequence[int] = ()
    utterances: int | None = None

    @property
    def event(self) -> str:
        """Name of the lines of metrics.jsonl."""
        return "segment" if self.counts else "epoch"

    def next_stop(self, count: int, epoch_end: int) -> int:
        """Return the number of samples up to which to train next, after `count` of them."""
        return min([epoch_end, *(later for later in self.counts if later > count)])

    def is_over(self, count: int) -> bool:
        """Return whether the run ends after `count` samples, before its last epoch does."""
        return bool(self.counts) and count >= self.counts[-1]


class Callback:
    """Hooks that a run calls from its thread. The default does nothing."""

    def before(self, count: int) -> None:
        """Called before the next samples, after `count` of them; may wait, raise StopRequested or another error."""

    def next_rate(self, learning_rate: float) -> float:
        """Return the learning rate of the next samples."""
        return learning_rate

    def trained(self, samples: Samples, losses: np.ndarray, seconds: float) -> None:
        """Called with the samples just trained on, their losses, and the time."""

    def evaluation_begins(self, count: int) -> None:
        """Called after `count` samples, before the dev split is scored."""

    def evaluated(self, count: int, scores: dict[str, Any]) -> None:
        """Called after `count` samples with the dev split's scores from `bttlab.runs.evaluation.scores_of`."""

    def on_record(self, record: RunRecord) -> None:
        """Called before run.json is written; may add to the record."""
