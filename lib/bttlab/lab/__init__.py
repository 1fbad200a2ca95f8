"""Widgets and figures of the notebooks; plugins of the group `bttlab.views` add names to this package."""

import os
import sys
from typing import Any

import lazy_loader

from bttlab.util.errors import BttlabError
from bttlab.util.plugins import missing_package, plugins

try:
    from IPython import get_ipython
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(missing_package(error, "bttlab.lab") or str(error), name=error.name) from None

_own_name, _, _own = lazy_loader.attach_stub(__name__, __file__)
_views = plugins("views")
__all__ = sorted([*_own, *_views])


def _show_in_one_line(shell: Any, kind: type, error: BaseException, traceback: Any, tb_offset: Any = None) -> list[str]:
    """Show an error of the user as its message, as on the command line; the cell still fails."""
    print(f"{kind.__name__}: {error}", file=sys.stderr)
    return [f"{kind.__name__}: {error}"]


if (_shell := get_ipython()) is not None:
    _shell.set_custom_exc((BttlabError,), _show_in_one_line)
    if "OMP_NUM_THREADS" not in os.environ:  # at batch 1 a second thread of PyTorch waits more than it works
        import torch

        torch.set_num_threads(1)


def __getattr__(name: str) -> Any:
    if name not in _views:
        return _own_name(name)
    globals()[name] = _views[name].load()
    return globals()[name]


def __dir__() -> list[str]:
    return __all__
