"""Baselines: the same model trained with PyTorch on a GPU or a CPU, measured; imports no more than torch and numpy."""

import lazy_loader

from bttlab.util.records import RecordError

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["RecordError"]
