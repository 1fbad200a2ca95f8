"""Specification of a sweep: a YAML file, checked before anything starts."""

import math
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from bttlab.runs.scores import SCORES
from bttlab.util.errors import BttlabError
from bttlab.util.renamed import renamed
from bttlab.util.settings import from_values, nearest, settings
from bttlab.util.yaml_files import read_yaml

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"FIGURES": "METRICS"})

MOST_TRIALS = 10_000
OBJECTIVES = {"training": ("dev.frame_accuracy", True), "estimate": ("u50.joules_per_epoch", False)}
_MODELLED = ("u50.seconds_per_epoch", "u50.joules_per_epoch", "u50.memory_bytes", "u50.lane_utilisation")
METRICS = {  # what a complete trial has, one of which is the objective
    "training": (
        *(f"{split}.{score}" for split in ("dev", "test") for score in SCORES),
        *("loss", "seconds", "samples", "u50.joules", *_MODELLED),
    ),
    "estimate": _MODELLED,
}


class SpecError(BttlabError, ValueError):
    """Raised if a specification breaks a rule."""


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise SpecError(f"it is {value}: it must be a finite number")
    return value


def _in_15_digits(value: Any) -> Any:
    """Return a value, or the values in it, with the digits of a float that are as they were written.

    0.1 + 0.2 is 0.30000000000000004: one trial with 0.3.
    """
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.15g}")
    return [_in_15_digits(item) for item in value] if isinstance(value, list) else value


def _fixed(values: Any) -> Any:
    return {key: _in_15_digits(value) for key, value in values.items()} if isinstance(values, Mapping) else values


Bound = Annotated[int | float, BeforeValidator(_finite)]


@settings(SpecError)
class Range:
    """Range of numbers to draw from; the type of the key says whether they are integers."""

    low: Bound  # bounds, inclusive
    high: Bound
    log: bool = False  # whether to draw uniformly in the logarithm

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise SpecError(f"low {self.low!r}, high {self.high!r}: low must be below high")
        if self.log and self.low <= 0:
            raise SpecError(f"low {self.low!r} with log: it must be above 0")


def _values(values: Any) -> Any:
    if isinstance(values, Mapping):
        for bound in ("low", "high"):
            try:
                _finite(values.get(bound))  # JSON, by which settings are read, has no NaN
            except SpecError as error:
                raise SpecError(f"{bound}: {error}") from None
        return from_values(Range, values)
    if isinstance(values, Range):
        return values
    if isinstance(values, list) and values:
        return _in_15_digits(values)
    raise SpecError(f"it is {values!r}: give a list of values, or low and high")


Values = Annotated[list[Any] | Range, BeforeValidator(_values)]


@settings(SpecError)
class SweepSpec:
    """Specification of a sweep.

    Parameters
    ----------
    name : str
        Of the sweep, and of its folder.
    vary : dict of str to list or Range
        Keys of the configuration, and the values to try.
    fixed : dict
        Keys that are the same for all trials.
    kind : {"training", "estimate"}
        Whether a trial trains, or estimates time and energy on the U50.
    search : {"grid", "random", "optuna"}
        Every combination; `trials` drawn independently; or `trials` proposed by Optuna's TPE from those before.
    trials : int, optional
        Number of trials of a random or Optuna search.
    seed : int
        Of these searches.
    objective : str, optional
        The figure by which trials are compared; by default the dev split's frame accuracy, or energy per epoch.
    maximize : bool, optional
        Whether more of it is better; needed for another objective than the default.
    pruner : {"none", "median"}
        "median" ends a trial that is worse, after an epoch, than the median of those before: Optuna's MedianPruner.

    Raises
    ------
    SpecError
        If a value breaks a rule.
    """

    name: str
    vary: dict[str, Values]
    fixed: Annotated[dict[str, Any], BeforeValidator(_fixed)] = field(default_factory=dict)
    kind: Literal["training", "estimate"] = "training"
    search: Literal["grid", "random", "optuna"] = "grid"
    trials: int | None = Field(default=None, ge=1, le=MOST_TRIALS)
    seed: int = Field(default=0, ge=0, lt=2**32)
    objective: str | None = None
    maximize: bool | None = None
    pruner: Literal["none", "median"] = "none"

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise SpecError(f"name is {self.name!r}: it must be text that can be a folder's name")
        if not self.vary:
            raise SpecError("vary is empty: name at least one key of the configuration, and the values to try")
        for key, values in self.vary.items():
            if self.search == "grid" and isinstance(values, Range):
                raise SpecError(f"vary: {key} has low and high: a grid takes a list; or take search: random")
        if twice := sorted(set(self.vary) & set(self.fixed)):
            raise SpecError(f"{twice[0]} is under vary and under fixed; leave it in one of them")
        if self.search == "grid" and self.trials is not None:
            raise SpecError("trials is for search: random or optuna; a grid has as many as vary has combinations")
        if self.search != "grid" and self.trials is None:
            raise SpecError(f"trials is missing: say how many trials search: {self.search} makes")
        name, maximize = OBJECTIVES[self.kind]
        objective = self.objective or name
        if objective not in METRICS[self.kind]:
            hint = nearest(objective, METRICS[self.kind])
            raise SpecError(f"objective is {objective!r}, a figure that no {self.kind} has{hint}")
        if self.maximize is None and objective != name:
            raise SpecError(f"objective is {objective}: say with maximize: true or false what is better")
        if self.pruner != "none" and not (self.kind == "training" and (objective == "loss" or objective[:4] == "dev.")):
            raise SpecError(
                f"pruner: {objective} is not known after each epoch; choose loss or a score of dev as objective"
            )
        object.__setattr__(self, "objective", objective)
        object.__setattr__(self, "maximize", maximize if self.maximize is None else self.maximize)


def read_spec(path: str | Path) -> SweepSpec:
    """Read a specification; its paths, of modules, corpora and recipes, are relative to the file's folder.

    Parameters
    ----------
    path : path
        A YAML file.

    Returns
    -------
    SweepSpec
        What it specifies.

    Raises
    ------
    BttlabError
        If it cannot be read, or is not YAML; the message names the file.
    SpecError
        If it breaks a rule.
    """
    path = Path(path)
    try:
        spec = spec_of(read_yaml(path), path.stem)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
    fixed, vary = dict(spec.fixed), dict(spec.vary)
    for key in ("model", "data", "recipe"):
        if key in fixed:
            fixed[key] = _absolute(key, fixed[key], path.parent)
        if isinstance(values := vary.get(key), list):
            vary[key] = [_absolute(key, value, path.parent) for value in values]
    return replace(spec, fixed=fixed, vary=vary)


def _absolute(key: str, value: Any, folder: Path) -> Any:
    """Return the path of a module, a corpus or a recipe as an absolute one; the name of a corpus or recipe as it is."""
    if not isinstance(value, str):
        return value
    path = folder / Path(value).expanduser()
    is_path = key == "model" or "/" in value or (path.is_dir() if key == "data" else path.suffix == ".toml")
    return str(path.resolve()) if is_path else value


def spec_of(values: Any, name: str) -> SweepSpec:
    """Build a specification from a table; `name` is the default name.

    Raises SpecError if a key is unknown or a value breaks a rule.
    """
    if not isinstance(values, Mapping) or "vary" not in values:
        raise SpecError("a sweep is a table with at least the key vary: the keys of the configuration to vary")
    return from_values(SweepSpec, {"name": name, **values})
