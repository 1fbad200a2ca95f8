"""Recipes: training settings in a TOML file. The package has some in train/recipes."""

import os
from dataclasses import dataclass
from pathlib import Path

from bttlab.data import Augmentation
from bttlab.files import read_toml
from bttlab.model import Optimizer
from bttlab.records import RecordError, build
from bttlab.train.schedule import LearningRateSchedule
from bttlab.train.settings import PLAIN_INPUT, PLAIN_SCHEDULE, RunError

RECIPES = Path(__file__).parent / "recipes"


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


def read_recipe(name_or_path: str | os.PathLike) -> Recipe:
    """Read a recipe.

    Parameters
    ----------
    name_or_path : str or path
        The name of one in `RECIPES`, or a .toml file.

    Raises
    ------
    RunError
        If there is none, it is no TOML, a key is unknown or missing, or a value breaks its rule.
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
    try:
        return build(Recipe, values, "")
    except RecordError as error:
        raise RunError(f"recipe {path}: {error}") from None


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with the package."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))
