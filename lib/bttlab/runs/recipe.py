"""Recipes: training settings in a TOML file. The package has some in runs/recipes."""

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from bttlab.data import Augmentation
from bttlab.model import LEARNING_RATES, OPTIMIZERS, ModelConfig, ModuleConfig, Optimizer
from bttlab.runs.settings import MODEL_KEYS, LearningRateSchedule, Recipe, RunError, RunSettings
from bttlab.util.errors import BttlabError
from bttlab.util.reading import read_toml
from bttlab.util.settings import from_values

RECIPES = Path(__file__).parent / "recipes"
TABLES = {"schedule": LearningRateSchedule, "augmentation": Augmentation}
OPTIMIZER_KEYS = [setting.name for setting in fields(Optimizer) if setting.name != "name"]


def read_recipe(name_or_path: str | os.PathLike) -> Recipe:
    """Read a recipe.

    Parameters
    ----------
    name_or_path : str or path
        Name of one in `RECIPES`, or a .toml file.

    Returns
    -------
    Recipe
        Its settings.

    Raises
    ------
    RunError
        If it does not exist or is not TOML, a key is unknown or missing, or a value breaks its rule.
    """
    path = Path(name_or_path).expanduser()
    if path.suffix != ".toml" and len(path.parts) == 1:
        path = RECIPES / f"{name_or_path}.toml"
    if not path.exists():
        names = ", ".join(recipe_names())
        raise RunError(
            f"no recipe {os.fspath(name_or_path)!r} ({path}); choose one of {names}, or give the path of a .toml file"
        )
    try:
        values = read_toml(path)
        recipe = from_values(Recipe, values)
        _check_used(recipe.optimizer.name, values["optimizer"])
        return recipe
    except BttlabError as error:
        raise RunError(f"recipe {path}: {error}") from None


def _check_used(name: str, constants: Mapping[str, Any]) -> None:
    """Raise RunError if a constant is not of the optimizer's rule."""
    known = OPTIMIZERS[name].constants  # pyright: ignore[reportArgumentType]
    for key in constants:
        if key not in ("name", "batch_size", *known):
            raise RunError(f"optimizer.{key} is no constant of {name}, which has {', '.join(known) or 'none'}")


def recipe_names() -> list[str]:
    """Return the names of the recipes that the package has, in alphabetical order.

    Returns
    -------
    list of str
        For `read_recipe`.
    """
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def settings_of(values: Mapping[str, Any], config: ModelConfig | ModuleConfig | None = None) -> RunSettings:
    """Return the settings of a flat configuration, completed from its recipe and the defaults.

    The keys are fields of `RunSettings`, of them "optimizer" by name; fields of `Optimizer`; and those of nested
    settings with a point, such as "schedule.warm_up". They come before those of the recipe, and another optimizer than
    the recipe's has its own default learning rate. The model is by default the one of the configuration's sizes.

    Raises BttlabError if a value breaks a rule.
    """
    values = dict(values)
    recipe = dict(vars(read_recipe(values["recipe"]))) if values.get("recipe") is not None else {}
    base = recipe.get("optimizer", Optimizer())
    name = values.pop("optimizer", base.name)
    given = {key: values.pop(key) for key in OPTIMIZER_KEYS if key in values}
    optimizer = replace(base, **given) if name == base.name else Optimizer(name, **given)
    if not recipe or name != base.name:
        recipe |= {"learning_rate": LEARNING_RATES.get(name)}
    config = config or ModelConfig.of_sizes({key: values.pop(key) for key in MODEL_KEYS if key in values})
    built = {"optimizer": optimizer, "config": config}
    for table, kind in TABLES.items():
        parts = {part.name: values.pop(key) for part in fields(kind) if (key := f"{table}.{part.name}") in values}
        built[table] = replace(recipe.get(table, kind()), **parts)
    return RunSettings(**recipe | values | built)


def flat(run: RunSettings) -> dict[str, Any]:
    """Return a run's settings in one level, as `settings_of` takes them."""
    values = run.to_dict()
    optimizer, config = values.pop("optimizer"), values.pop("config")
    name = optimizer.pop("name")
    config.pop("shapes", None)  # of a module's parameters: the checkpoint has them
    configuration = (
        config | {"optimizer": name} | {key: optimizer[key] for key in (*OPTIMIZERS[name].constants, "batch_size")}
    )
    for key, value in values.items():
        parts = {f"{key}.{part}": item for part, item in value.items()} if isinstance(value, dict) else {key: value}
        configuration |= parts
    return configuration
