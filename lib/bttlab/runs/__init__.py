"""Training runs: settings, epochs, scores, checkpoints, their records and a table of them; sweeps."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
