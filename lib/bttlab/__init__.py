"""BTT Lab: tensor-compressed training of transformers on an AMD Alveo U50, card or emulated."""

import lazy_loader

from bttlab.util.caches import use_private_caches

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    """Load a package or name of the stub when it is first used, and the version from what is installed."""
    if name == "__version__":
        from importlib.metadata import version  # takes longer to import than all else here

        return version("bttlab")
    return _load(name)


use_private_caches()
