"""The methods lab: tensor compression beside the other ways to train with less.

Needs torch alone; single methods use other libraries, which they name.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
