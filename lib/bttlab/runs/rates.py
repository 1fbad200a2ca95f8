"""Learning rates of a run that was resumed with others, or whose schedule was over another number of epochs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bttlab.runs.scores import counted
from bttlab.runs.settings import LearningRateSchedule, RunSettings

RATES, EPOCHS = "learning_rates", "schedule.epochs"  # keys of a configuration
Changes = list[tuple[int, float]]  # samples trained on before a value came into force, and the value; the first has 0


@dataclass
class RateHistory:
    """Peak learning rates of a run, and the epochs that its schedule is over, each from a number of samples on.

    Attributes
    ----------
    schedule : LearningRateSchedule
        Of the run.
    rates : list of (int, float)
        Samples trained on before each peak, and the peak.
    epochs : list of (int, int)
        Samples trained on before each number of epochs, and the number.
    """

    schedule: LearningRateSchedule
    rates: Changes
    epochs: Changes

    @classmethod
    def of(cls, before: RunSettings, configuration: Mapping[str, Any]) -> "RateHistory":
        """Return the history up to a checkpoint with the settings `before`; `configuration` is that of run.json."""
        rates = _changes(configuration.get(RATES)) or [(0, before.learning_rate)]
        epochs = _changes(configuration.get(EPOCHS)) or [(0, before.epochs)]
        return cls(before.schedule, rates, epochs)

    def change(self, count: int, settings: RunSettings) -> None:
        """Let the rate and the epochs of settings apply after `count` samples."""
        self.rates = _changed(self.rates, count, settings.learning_rate)
        self.epochs = _changed(self.epochs, count, settings.epochs)

    def at(self, step: int, epoch_samples: int) -> float:
        """Return the learning rate of a step, a number from 0; `epoch_samples` are the samples of an epoch."""
        (peak, epochs) = (next(value for since, value in reversed(each) if since <= step) for each in self.values)
        return float(self.schedule.rates(peak, step, round(epochs) * epoch_samples))

    @property
    def values(self) -> tuple[Changes, Changes]:
        return self.rates, self.epochs

    def to_configuration(self, count: int, is_running: bool) -> dict[str, Any]:
        """Return the entries of run.json after `count` samples.

        Several rates are `learning_rates`, a single one is `learning_rate`. `schedule.epochs` is there if the schedule
        was over several numbers of epochs, of which the rates depend. Changes that no sample was trained with are left
        out, unless the run goes on.
        """
        rates, epochs = ([change for change in each if is_running or change[0] < max(count, 1)] for each in self.values)
        entries: dict[str, Any] = {RATES: rates} if len(rates) > 1 else {"learning_rate": rates[0][1]}
        return entries | ({EPOCHS: epochs} if len(epochs) > 1 and self.schedule.depends_on_epochs else {})


def _changed(changes: Changes, count: int, value: float) -> Changes:
    kept = [change for change in changes if change[0] < count]
    return kept if kept and kept[-1][1] == value else [*kept, (count, value)]


def _changes(value: Any) -> Changes:
    """Return the changes in an entry of run.json; none if it has another form."""
    try:
        changes = [(int(since), number) for since, number in value]
    except (TypeError, ValueError):
        return []
    numbers = all(isinstance(number, int | float) and not isinstance(number, bool) for _, number in changes)
    ascending = [since for since, _ in changes] == sorted({since for since, _ in changes})
    return changes if numbers and ascending and changes and changes[0][0] == 0 else []


def note_of_schedule(before: RunSettings, now: RunSettings, count: int, epoch_samples: int) -> str:
    """Return words for the user if a run goes on after `count` samples under another schedule; else an empty string."""
    if before.epochs == now.epochs or not now.schedule.depends_on_epochs or not count:
        return ""
    was = before.schedule.rates(before.learning_rate, count - 1, before.epochs * epoch_samples)
    rate = now.schedule.rates(now.learning_rate, count, now.epochs * epoch_samples)
    return (
        f"the schedule of the learning rate was over {counted(before.epochs, 'epoch')}, and is over {now.epochs} from "
        f"here on: the rate changes from {float(was):.3g} to {float(rate):.3g}. A run that had "
        f"{counted(now.epochs, 'epoch')} from its start has other rates and parameters; run.json records the change"
    )
