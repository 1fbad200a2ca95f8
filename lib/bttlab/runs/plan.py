"""When a run scores the dev split and ends; what it reports, and asks."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bttlab.data import Samples
from bttlab.runs.record import RunRecord


class EvaluationPlan:
    """Score the dev split after each epoch, and the test split at the end."""

    event = "epoch"  # name of the lines of metrics.jsonl
    scores_test = True  # at the end of the last epoch
    utterances: int | None = None  # of the dev split to score; None for all

    def next_stop(self, count: int, epoch_end: int) -> int:
        """Return the number of samples up to which to train next, after `count` of them."""
        return epoch_end

    def scores_dev(self, count: int) -> bool:
        """Return whether to score the dev split after `count` samples, at a stop of `next_stop`."""
        return True

    def is_over(self, count: int) -> bool:
        """Return whether the run ends after `count` samples, before its last epoch does."""
        return False


class EvaluationsAt(EvaluationPlan):
    """Score the dev split after some numbers of samples, ascending; the last of them ends the run."""

    event = "stretch"
    scores_test = False

    def __init__(self, counts: Sequence[int], utterances: int | None = None):
        self.counts, self.utterances = tuple(counts), utterances

    def next_stop(self, count: int, epoch_end: int) -> int:
        return min([epoch_end, *(later for later in self.counts if later > count)])

    def scores_dev(self, count: int) -> bool:
        return count in self.counts

    def is_over(self, count: int) -> bool:
        return count >= self.counts[-1]


class Callback:
    """What a run reports and asks, in its thread. The base class lets it train as its settings say."""

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
