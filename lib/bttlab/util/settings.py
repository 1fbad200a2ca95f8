"""Settings and records that check themselves: pydantic dataclasses whose errors are one line."""

import json
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from numbers import Integral
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from typing_extensions import dataclass_transform

from bttlab.util.errors import BttlabError
from bttlab.util.records import nearest

# NumPy integers are accepted, and stored as Python's, which JSON can write.
Count = Annotated[int, BeforeValidator(lambda n: int(n) if isinstance(n, Integral) and not isinstance(n, bool) else n)]
CONFIG = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)
Class = TypeVar("Class")


@dataclass_transform(frozen_default=True, field_specifiers=(Field,))
def settings(error: type[BttlabError], frozen: bool = True) -> Callable[[type[Class]], type[Class]]:
    """Make a class a strict pydantic dataclass that knows no other fields and raises `error`.

    `dataclasses.replace`, `fields` and `asdict` work on it; `pydantic.TypeAdapter(cls).json_schema()` is its schema. An
    error that `__post_init__` raises is raised as it is. A field's `title`, if given, is its name in messages.
    """

    def decorate(cls: type[Class]) -> type[Class]:
        cls = dataclass(frozen=frozen, config=CONFIG)(cls)
        validate = cls.__init__

        def __init__(self, *args: Any, **values: Any) -> None:
            try:
                validate(self, *args, **values)
            except ValidationError as found:
                raise _one_line(found, cls, error) from None

        cls.__init__, cls._adapter, cls._error = __init__, None, error
        return cls

    return decorate


def from_json(cls: type[Class], text: str | bytes) -> Class:
    """Build settings of a JSON text, whose lists may stand for tuples; errors are those of the class."""
    if cls.__dict__.get("_adapter") is None:
        cls._adapter = TypeAdapter(cls)
    try:
        return cls._adapter.validate_json(text)
    except ValidationError as found:
        raise _one_line(found, cls, cls._error) from None


def from_values(cls: type[Class], values: Any) -> Class:
    """Build settings of a table as JSON, TOML or YAML have it; errors are those of the class."""
    try:
        return from_json(cls, json.dumps(values))
    except (TypeError, RecursionError) as error:  # such as a date of TOML
        raise cls._error(f"{error}: write it as text, in quotes") from None


def _one_line(found: ValidationError, cls: type, error: type[BttlabError]) -> BttlabError:
    errors = found.errors(include_url=False)
    first = next((one for one in errors if one["type"] == "unexpected_keyword_argument"), errors[0])
    own = first.get("ctx", {}).get("error")
    *parents, name = first["loc"] or ("it",)
    if isinstance(own, BttlabError):
        return error(f"{_at(parents, name)}: {own}") if parents else own
    holder = _field_type(cls, parents)
    known = [field.name for field in fields(holder)] if is_dataclass(holder) else []
    if isinstance(name, int) and not parents:  # the place of a positional argument
        name = known[name]
    if first["type"] == "unexpected_keyword_argument":
        return error(f"{_at(parents, name)} is not a setting of {holder.__name__}{nearest(str(name), known)}")
    if first["type"] in ("missing_argument", "missing", "missing_keyword_only_argument"):
        return error(f"{_at(parents, name)} is missing")
    title = getattr(holder, "__pydantic_fields__", {}).get(name)
    name = name if parents or title is None else title.title or name
    return error(f"{_at(parents, name)} is {_brief(first['input'])}: {first['msg'].replace('Input should', 'it must')}")


def _at(parents: Iterable[Any], name: Any) -> str:
    return ".".join(map(str, (*parents, name)))


def _field_type(cls: Any, parents: Iterable[Any]) -> Any:
    """Return the class of the field that a location leads to."""
    for name in parents:
        hints = get_type_hints(cls) if is_dataclass(cls) else {}
        kinds = [hints.get(name), *get_args(hints.get(name))]
        cls = next((kind for kind in kinds if is_dataclass(kind)), None)
    return cls


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
