"""Settings and records that check themselves: dataclasses that pydantic reads, whose errors are one line."""

import difflib
import json
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from functools import cache
from numbers import Integral
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from typing_extensions import dataclass_transform

from bttlab.util.errors import BttlabError

# NumPy integers are accepted, and stored as Python's, which JSON can write.
Count = Annotated[int, BeforeValidator(lambda n: int(n) if isinstance(n, Integral) and not isinstance(n, bool) else n)]
CONFIG = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)
Class = TypeVar("Class")


class RecordError(BttlabError):
    """Raised if a record cannot be read."""


@dataclass_transform(frozen_default=True, field_specifiers=(Field,))
def settings(
    error: type[BttlabError], frozen: bool = True, kw_only: bool = False
) -> Callable[[type[Class]], type[Class]]:
    """Make a class a strict pydantic dataclass that knows no other fields and raises `error`.

    `dataclasses.replace`, `fields` and `asdict` work on it; `pydantic.TypeAdapter(cls).json_schema()` is its schema. An
    error that `__post_init__` raises is raised as it is. A field's `title`, if given, is its name in messages.
    """

    def decorate(cls: type[Class]) -> type[Class]:
        cls = dataclass(frozen=frozen, kw_only=kw_only, config=CONFIG)(cls)
        validate = cls.__init__

        def __init__(self, *args: Any, **values: Any) -> None:
            try:
                validate(self, *args, **values)
            except ValidationError as found:
                raise _one_line(found, cls) from None

        cls.__init__, cls._error = __init__, error
        return cls

    return decorate


def from_json(kind: type[Class], text: str | bytes) -> Class:
    """Build settings, a dataclass, or a list of them from JSON, whose lists may stand for tuples.

    The error names the first entry that does not fit. It is that of the class's `settings`, of other classes
    RecordError.
    """
    text = (text if isinstance(text, bytes) else text.encode()).strip() or b"null"
    try:
        return _adapter(kind).validate_json(b"[" + text + b"]")[0]
    except ValidationError as found:
        raise _one_line(found, list[kind]) from None


@cache
def _adapter(kind: Any) -> TypeAdapter:
    return TypeAdapter(list[kind], config=CONFIG)  # pydantic gives classes of their own no configuration


def from_values(kind: type[Class], values: Any) -> Class:
    """Build what `from_json` builds of values as JSON, TOML or YAML have them."""
    try:
        return from_json(kind, json.dumps(values))
    except (TypeError, RecursionError) as error:  # such as a date of TOML
        raise _error_of(kind)(f"{error}: write it as text, in quotes") from None


def _error_of(kind: Any) -> type[BttlabError]:
    return getattr(kind, "_error", RecordError)


def _one_line(found: ValidationError, kind: Any) -> BttlabError:
    errors = found.errors(include_url=False)
    first = next((entry for entry in errors if entry["type"].startswith("unexpected")), errors[0])
    raised, place = first.get("ctx", {}).get("error"), first["loc"]
    if get_origin(kind) is list:  # the one around it of `from_json`
        (kind,), place = get_args(kind), place[1:]
    error, (*parents, name) = _error_of(kind), place or ("it",)
    if isinstance(raised, BttlabError):
        return error(f"{_at(*parents, name)}: {raised}") if parents else raised
    holder = _field_type(kind, parents)
    known = [field.name for field in fields(holder)] if is_dataclass(holder) else []
    if isinstance(name, int) and not parents and known:  # the place of a positional argument
        name = known[name]
    if first["type"].startswith("unexpected"):
        return error(f"{_at(*parents, name)} is not a setting of {holder.__name__}{nearest(str(name), known)}")
    if first["type"].startswith("missing"):
        return error(f"{_at(*parents, name)} is missing")
    title = getattr(holder, "__pydantic_fields__", {}).get(name)
    name = name if parents or title is None else title.title or name
    rule = first["msg"].replace("Input should", "it must").replace("a valid boolean", "true or false")
    if first["type"] == "dataclass_type":
        rule = f"it must be a table with {', '.join(field.name for field in fields(_field_type(kind, place)))}"
    return error(f"{_at(*parents, name)} is {_brief(first['input'])}: {rule}")


def _at(*place: Any) -> str:
    return ".".join(map(str, place))


def _field_type(kind: Any, parents: Iterable[Any]) -> Any:
    """Return the class of the entry that a location leads to."""
    for name in parents:
        hints = get_type_hints(kind) if is_dataclass(kind) else {}
        kind = hints.get(name) or next(reversed(get_args(kind)), None)  # an entry of a list or dict: its last argument
        kind = next((arg for arg in get_args(kind) if is_dataclass(arg) and type(None) in get_args(kind)), kind)
    return kind


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def nearest(key: str, known: Iterable[str]) -> str:
    """Return "; do you mean …?" with the nearest known keys."""
    known = list(known)
    candidates = difflib.get_close_matches(key, known, n=2, cutoff=0.5)
    candidates += sorted(name for name in known if name.split(".")[-1] == key or key in name.split("_"))[:2]
    if candidates:
        return f"; do you mean {' or '.join(dict.fromkeys(candidates))}?"
    return f"; there are: {', '.join(sorted(known))}"
