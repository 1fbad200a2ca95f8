"""Settings that check themselves: frozen pydantic dataclasses whose errors are one line."""

from collections.abc import Callable
from numbers import Integral
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass
from typing_extensions import dataclass_transform

from bttlab.util.errors import BttlabError
from bttlab.util.records import nearest

# NumPy integers are accepted, and stored as Python's, which JSON can write.
Count = Annotated[int, BeforeValidator(lambda n: int(n) if isinstance(n, Integral) and not isinstance(n, bool) else n)]


Settings = TypeVar("Settings")


@dataclass_transform(frozen_default=True, field_specifiers=(Field,))
def settings(error: type[BttlabError]) -> Callable[[type[Settings]], type[Settings]]:
    """Make a class a frozen, strict pydantic dataclass that knows no other fields and raises `error`.

    `dataclasses.replace`, `fields` and `asdict` work on it; `pydantic.TypeAdapter(cls).json_schema()` is its schema. An
    error that `__post_init__` raises is raised as it is. A field's `title`, if given, is its name in messages.
    """

    def decorate(cls: type[Settings]) -> type[Settings]:
        cls = dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True))(cls)
        validate = cls.__init__

        def __init__(self, *args: Any, **values: Any) -> None:
            try:
                validate(self, *args, **values)
            except ValidationError as found:
                raise _one_line(found, cls, error) from None

        cls.__init__ = __init__
        return cls

    return decorate


def _one_line(found: ValidationError, cls: type, error: type[BttlabError]) -> BttlabError:
    first, known = found.errors()[0], cls.__pydantic_fields__
    if isinstance(own := first.get("ctx", {}).get("error"), BttlabError):
        return own
    name, *inner = first["loc"]
    name = list(known)[name] if isinstance(name, int) else name  # the place of a positional argument
    if first["type"] == "unexpected_keyword_argument":
        return error(f"{name} is not a setting of {cls.__name__}{nearest(name, known)}")
    if first["type"] == "missing_argument":
        return error(f"{name} is missing")
    name = ".".join(map(str, [known[name].title or name, *inner]))
    return error(f"{name} is {first['input']!r}: {first['msg'].replace('Input should', 'it must')}")
