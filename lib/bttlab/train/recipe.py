"""Recipes: training settings in a TOML file. The package has some in train/recipes."""

import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from bttlab.data import Augmentation
from bttlab.errors import BttlabError
from bttlab.files import read_toml
from bttlab.model import Optimizer
from bttlab.train.schedule import LearningRateSchedule
from bttlab.train.settings import PLAIN_INPUT, PLAIN_SCHEDULE, RunError

RECIPES = Path(__file__).parent / "recipes"
_TABLES = {"optimizer": Optimizer, "schedule": LearningRateSchedule, "augmentation": Augmentation}


@dataclass(frozen=True)
class Recipe:
    """Training settings: the fields of `RunSettings` of the same names."""

    epochs: int
    learning_rate: float
    optimizer: Optimizer
    schedule: LearningRateSchedule = PLAIN_SCHEDULE
    augmentation: Augmentation = PLAIN_INPUT
    word_classes: bool = False
    label_smoothing: float = 0.0
    decode_tags: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.learning_rate, bool) or not isinstance(self.learning_rate, int | float):
            raise RunError(f"learning_rate is {self.learning_rate!r}: it must be a number")

    def settings(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def read_recipe(name_or_path: str | os.PathLike) -> Recipe:
    """Read a recipe.

    Parameters
    ----------
    name_or_path : str or path
        The name of one in `RECIPES`, or a .toml file.

    Raises
    ------
    RunError
        If there is none, it is no TOML, or a key is unknown or missing.
    bttlab.errors.BttlabError
        If a value breaks its rule.
    """
    path = Path(name_or_path).expanduser()
    if path.suffix != ".toml" and len(path.parts) == 1:
        path = RECIPES / f"{name_or_path}.toml"
    try:
        values = read_toml(path)
    except OSError as error:
        names = ", ".join(recipe_names())
        raise RunError(
            f"no recipe {os.fspath(name_or_path)!r} ({path}: {error.strerror}); choose one of {names}, or give the "
            "path of a .toml file"
        ) from None
    except (ValueError, RecursionError) as error:  # no UTF-8, or no TOML
        raise RunError(f"recipe {path} is no TOML: {error}") from None
    for table, kind in _TABLES.items():
        if table in values:
            values[table] = _built(kind, values[table], path, table)
    return _built(Recipe, values, path)


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with the package."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def _built(kind: type, values: Any, path: Path, table: str = "") -> Any:
    """Build a dataclass from a table of a recipe."""
    where = f"recipe {path}" + (f", [{table}]" if table else "")
    if not isinstance(values, Mapping):
        raise RunError(f"{where}: it is {values!r}, it must be a table of keys and values")
    known = {field.name: field.default is MISSING for field in fields(kind)}
    for key in values:
        if key not in known:
            near = get_close_matches(key, known, 1, 0)
            raise RunError(f"{where}: unknown key {key!r}; did you mean {near[0]!r}? There are: {', '.join(known)}")
    missing = [key for key, needed in known.items() if needed and key not in values]
    if missing:
        raise RunError(f"{where}: the key {missing[0]!r} is missing; write it into the file")
    try:
        return kind(**values)
    except (BttlabError, TypeError) as error:
        raise RunError(f"{where}: {error}") from None
