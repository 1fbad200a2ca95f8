"""Records side by side: seconds and joules of an epoch, and memory."""

from collections.abc import Iterable
from dataclasses import dataclass

from bttlab.baseline.record import Record
from bttlab.quantities import Quantity

EPOCH_SAMPLES = 4478  # training utterances of ATIS, and of airline


@dataclass(frozen=True)
class Epoch:
    """Time, energy and memory of an epoch.

    Attributes
    ----------
    seconds, joules, joules_over_idle : Quantity
    """

    seconds: Quantity
    joules: Quantity
    joules_over_idle: Quantity


@dataclass(frozen=True)
class Row:
    """A mode of a record, for a table or a legend.

    Attributes
    ----------
    label : str
    record : Record
    mode : str
    best : bool
        Whether it is the fastest of its record.
    step : Quantity
        Median seconds.
    epoch : Epoch
    memory : Quantity
        The most bytes that tensors held: by the allocator where it keeps statistics, else by counting, in eager mode.
    """

    label: str
    record: Record
    mode: str
    best: bool
    step: Quantity
    epoch: Epoch
    memory: Quantity


def per_epoch(record: Record, samples: int = EPOCH_SAMPLES, mode: str | None = None) -> Epoch:
    """Scale what a step takes to an epoch.

    Parameters
    ----------
    record : Record
    samples : int
        Of an epoch.
    mode : str, optional
        By default the fastest.
    """
    measurement = record.modes[mode or record.best]
    return Epoch(
        _times(measurement.mean, samples, len(measurement.step_seconds)),
        _times(measurement.energy.per_step, samples, measurement.energy.steps),
        _times(measurement.energy.per_step_over_idle, samples, measurement.energy.steps),
    )


def _times(step: Quantity, samples: int, steps: int) -> Quantity:
    if step.value is None:
        return step
    return Quantity.measured(step.value * samples, step.unit, f"mean of {steps} steps x {samples}; {step.how}")


def compare(records: Iterable[Record], samples: int = EPOCH_SAMPLES) -> list[Row]:
    """Return a row for every mode of every record, by encoders, format, device and then time."""
    rows = []
    for record in records:
        for name, measurement in record.modes.items():
            rows.append(
                Row(
                    label=record.label_of(name),
                    record=record,
                    mode=name,
                    best=name == record.best,
                    step=measurement.median,
                    epoch=per_epoch(record, samples, name),
                    memory=record.memory.peak if measurement.allocated.value is None else measurement.allocated,
                )
            )
    return sorted(rows, key=_place)


def _place(row: Row) -> tuple:
    return row.record.config.get("encoders", 0), row.record.format, row.record.machine.name, row.step.value
