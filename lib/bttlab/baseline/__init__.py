"""Baselines: the same model trained with PyTorch on a GPU or a CPU, measured; imports no more than torch and numpy."""

from bttlab.baseline.machine import DeviceError
from bttlab.baseline.modes import modes_of
from bttlab.baseline.record import (
    EPOCH_SAMPLES,
    Energy,
    Machine,
    Measurement,
    Memory,
    Quantity,
    Record,
    load_records,
)
from bttlab.baseline.run import FORMATS, BaselineError, BaselineSetting, Listener, run_baseline
from bttlab.records import RecordError, check_writable

__all__ = [
    "EPOCH_SAMPLES",
    "FORMATS",
    "BaselineError",
    "BaselineSetting",
    "DeviceError",
    "Energy",
    "Listener",
    "Machine",
    "Measurement",
    "Memory",
    "Quantity",
    "Record",
    "RecordError",
    "check_writable",
    "load_records",
    "modes_of",
    "run_baseline",
]
