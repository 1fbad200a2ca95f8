"""Find methods by name, those of plugins among them, and read combinations of them."""

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import ModuleType

from bttlab.util.plugins import plugins
from bttlab.util.terminal import say
from bttlab_methods import library
from bttlab_methods.method import FAMILIES, Method
from bttlab_methods.setting import MethodError
from bttlab_methods.survey import TECHNIQUES
from bttlab_methods.training import DENSE, check_combination

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
GONE = {technique.gone for technique in TECHNIQUES if technique.gone}
_from_files: dict[str, type[Method]] = {}


def methods() -> dict[str, type[Method]]:
    """Return every method by its name, in the order of the families.

    Methods are the classes of `bttlab_methods.library`, of the entry points of the group `bttlab.methods` (a module or
    a class each), and of `load_plugin`. A plugin that is broken is left out with a warning.
    """
    classes = _installed() | _from_files
    return dict(sorted(classes.items(), key=lambda item: (FAMILIES.index(item[1].family), item[0])))


@cache
def _installed() -> dict[str, type[Method]]:
    names = [f"{library.__name__}.{module.name}" for module in pkgutil.iter_modules(library.__path__)]
    known = {kind.name: kind for name in names for kind in _methods_of(importlib.import_module(name))}
    for name, point in plugins("methods").items():
        try:
            found = point.load()
            _add(known, _methods_of(found) if isinstance(found, ModuleType) else [found])
        except Exception as error:  # whatever a plugin does, the other methods stay
            _warn(f"the plugin {name} ({point.value})", error)
    return known


def load_plugin(path: Path) -> None:
    """Add the methods of a Python file; a file that is broken adds none, with a warning."""
    try:
        name = f"bttlab_plugin_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None:
            raise MethodError("it must be a Python file, *.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        found = _methods_of(module)
        if not found:
            raise MethodError("it has no subclass of bttlab_methods.Method with a name")
        _add(_installed() | _from_files, found)
        _from_files.update({kind.name: kind for kind in found})
    except Exception as error:
        _warn(f"the plugin {path}", error)


def _methods_of(module: ModuleType) -> list[type[Method]]:
    classes = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Method)]
    return [kind for kind in classes if "name" in vars(kind) and kind.__module__ == module.__name__]


def _add(known: dict[str, type[Method]], found: Iterable[type[Method]]) -> None:
    """Add methods after a check of what lists and combinations read of them."""
    for kind in found:
        if not (isinstance(kind, type) and issubclass(kind, Method)):
            raise MethodError(f"{kind!r} is no subclass of bttlab_methods.Method")
        if kind.name in known:
            raise MethodError(f"there is a method {kind.name!r} already; choose another name")
        if kind.family not in FAMILIES:
            raise MethodError(f"family of {kind.name} is {kind.family!r}: it must be one of {', '.join(FAMILIES)}")
        if not (isinstance(kind.changes, frozenset) and isinstance(kind.source, str)):
            raise MethodError(f"{kind.name} needs a source (a str) and changes (a frozenset of str)")
        kind.parameters(), kind.summary(), kind()  # a dataclass with defaults and a docstring
    known.update({kind.name: kind for kind in found})


def _warn(plugin: str, error: Exception) -> None:
    reason = (str(error).splitlines() or [""])[0]
    say(f"bttlab: warning: {plugin} is left out: {type(error).__name__}: {reason}")


def parse(text: str) -> tuple[Method, ...]:
    """Return the methods of a combination.

    Its text joins names by "+", each with parameters if wanted, as "tensor+galore:rank=16,every=50"; "dense" is none.
    Raises MethodError if a name or parameter is unknown, a value has the wrong kind or breaks the method's rule, or the
    methods do not combine.
    """
    combination = tuple(_one(part) for part in map(str.strip, text.split("+")) if part != DENSE)
    check_combination(combination)
    return combination


def _one(text: str) -> Method:
    name, _, given = text.partition(":")
    known = methods()
    if not name:
        raise MethodError("a method has no name: join names by +, as in tensor+lion; dense is none of them")
    if name not in known:
        if name in GONE:
            raise MethodError(
                f"method {name!r} is no longer here; its results, of version 0.1.0, are in docs/survey.md"
            )
        near = get_close_matches(name, known, 1, 0)[0]
        raise MethodError(f"method {name!r}: there is none; did you mean {near!r}? bttlab methods list names all")
    kind = known[name]
    values = {}
    for part in given.split(",") if given else ():
        key, _, value = part.partition("=")
        if key not in kind.parameters():
            names = ", ".join(kind.parameters()) or "none"
            raise MethodError(f"method {name}: parameter {key!r}: there is none; it has {names}")
        values[key] = _value(name, key, value, kind.parameters()[key])
    return kind(**values)


def _value(name: str, key: str, text: str, default):
    kind = type(default)
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text)
    except (KeyError, ValueError):
        raise MethodError(f"method {name}: {key} is {text!r}: it must be {_KINDS[kind]}, such as {default}") from None
