"""Baselines: the same model trained with PyTorch on a GPU or a CPU, measured; imports no more than torch and numpy."""

import lazy_loader

from bttlab.util.records import RecordError

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "machine": ("DeviceError",),
        "modes": ("modes_of",),
        "record": ("EPOCH_SAMPLES", "Energy", "Machine", "Measurement", "Memory", "Quantity", "Record", "load_records"),
        "run": ("FORMATS", "BaselineError", "BaselineSetting", "Listener", "run_baseline"),
    },
)
__all__ += ["RecordError"]
