"""Imports that wait until a name is first asked for: torch takes longer than all else together."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from typing import Any


def names_of(package: dict[str, Any], modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a package's `__getattr__`.

    Parameters
    ----------
    package : dict
        The package's globals; a name is put there once its module is imported.
    modules : mapping
        Names by the package's modules that define them.
    """
    places = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        package[name] = getattr(import_module(f"{package['__name__']}.{places[name]}"), name)
        return package[name]

    return get


@contextmanager
def later(*names: str) -> Iterator[None]:
    """Let modules that others import in here be loaded when something of them is first asked for."""
    finder = _Later(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Later:
    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in self._names else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec
