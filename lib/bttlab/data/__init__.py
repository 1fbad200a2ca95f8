"""Find, read and encode corpora. Scores are in :mod:`bttlab.data.metrics`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
