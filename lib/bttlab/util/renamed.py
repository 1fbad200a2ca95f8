"""Old names of what a module has under another name: they stay for a release, with a FutureWarning."""

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's `__getattr__`, which finds names by what they were before.

    Parameters
    ----------
    module : str
        The module's `__name__`.
    names : mapping of str to str
        New names by their old ones.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} is now {names[name]}", FutureWarning, stacklevel=2)
        return getattr(sys.modules[module], names[name])

    return find
