"""Finding methods by name, with their parameters, and telling which combine."""

import importlib
import pkgutil
from difflib import get_close_matches
from functools import cache

from bttlab.methods import library
from bttlab.methods.combination import DENSE, check_combination
from bttlab.methods.method import FAMILIES, Method, MethodError

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}


@cache
def methods() -> dict[str, type[Method]]:
    """Return every method by its name: all that the modules of `bttlab.methods.library` define, by family."""
    classes: dict[str, type[Method]] = {}
    for module in pkgutil.iter_modules(library.__path__):
        for value in vars(importlib.import_module(f"{library.__name__}.{module.name}")).values():
            if isinstance(value, type) and issubclass(value, Method) and "name" in vars(value):
                classes[value.name] = value
    return dict(sorted(classes.items(), key=lambda item: (FAMILIES.index(item[1].family), item[0])))


def parse(text: str) -> tuple[Method, ...]:
    """Return the methods of a combination.

    Parameters
    ----------
    text : str
        Names joined by "+", each with parameters if wanted: "tensor+lion", "galore:rank=16,every=50". "dense" is none.

    Raises
    ------
    MethodError
        If a name or parameter is unknown, a value has the wrong kind or breaks the method's rule, or the methods do not
        combine.
    """
    combination = tuple(_one(part) for part in text.split("+") if part != DENSE)
    check_combination(combination)
    return combination


def _one(text: str) -> Method:
    name, _, given = text.partition(":")
    known = methods()
    if name not in known:
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
