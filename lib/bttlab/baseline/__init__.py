"""Baselines: the same model trained with PyTorch on a GPU or a CPU, measured; imports neither pynq nor widgets."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
