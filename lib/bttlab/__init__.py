"""BTT Lab: tensor-compressed training of transformers on an AMD Alveo U50, card or emulated."""

import lazy_loader

from bttlab.util.caches import use_private_caches

__version__ = "0.2.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

use_private_caches()
