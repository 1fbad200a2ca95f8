"""Records: JSON that is read into checked dataclasses."""

import difflib
import types
import typing
from collections.abc import Iterable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from bttlab.util.errors import BttlabError


class RecordError(BttlabError):
    """Raised if a record cannot be read."""


def build(kind: Any, value: Any, where: str) -> Any:
    """Build a value of a type annotation from JSON.

    Parameters
    ----------
    kind : type
        A dataclass, of which entries with a default may be missing, dict[str, X], list[X], X | None, Any or a plain
        type.
    where : str
        The entry's name; "" for the whole.

    Raises
    ------
    RecordError
        Names the first entry that does not fit.
    """
    if is_dataclass(kind):
        _expect(isinstance(value, dict), where, "an object", value)
        built = value if hasattr(kind, "__pydantic_fields__") else _fields(kind, value, where)
        try:
            return kind(**built)
        except BttlabError as error:
            raise RecordError(f"{where or 'the record'}: {error}") from None
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:  # X | None
        return None if value is None else build(arguments[0], value, where)
    if origin is dict:
        _expect(isinstance(value, dict), where, "an object", value)
        return {key: build(arguments[1], item, _path(where, key)) for key, item in value.items()}
    if origin is list:
        _expect(isinstance(value, list), where, "a list", value)
        return [build(arguments[0], item, _path(where, str(i))) for i, item in enumerate(value)]
    if kind is Any:
        return value
    allowed = (int, float) if kind is float else kind
    _expect(isinstance(value, allowed) and isinstance(value, bool) == (kind is bool), where, kind.__name__, value)
    return value


def _fields(kind: type, value: dict[str, Any], where: str) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    needed = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    if unknown := set(value) - set(hints):
        raise RecordError(f"{_path(where, min(unknown))} is unknown{nearest(min(unknown), hints)}")
    if missing := needed - set(value):
        raise RecordError(f"{_path(where, min(missing))} is missing")
    return {name: build(hints[name], item, _path(where, name)) for name, item in value.items()}


def nearest(key: str, known: Iterable[str]) -> str:
    """Return "; do you mean …?" with the nearest known keys."""
    candidates = difflib.get_close_matches(key, known, n=2, cutoff=0.5)
    candidates += sorted(name for name in known if name.split(".")[-1] == key or key in name.split("_"))[:2]
    if candidates:
        return f"; do you mean {' or '.join(dict.fromkeys(candidates))}?"
    return f"; there are: {', '.join(sorted(known))}"


def _expect(holds: bool, where: str, rule: str, value: Any) -> None:
    if not holds:
        raise RecordError(f"{where or 'the record'} is {str(value)[:40]!r}, it must be {rule}")


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
