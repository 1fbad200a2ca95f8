"""Specification of a sweep: a YAML file, checked before anything starts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from bttlab.runs.curves import SCORES
from bttlab.util.errors import BttlabError
from bttlab.util.files import read_regular
from bttlab.util.json_files import JsonError, check_tree
from bttlab.util.records import nearest

LARGEST = 1 << 17  # bytes of a specification
MOST_VALUES, LONGEST_PLAIN = 20_000, 1000  # values in it, and characters of one without quotes
MOST_INTEGER = 1 << 63
KINDS = ("training", "estimate")
SEARCHES = ("grid", "random", "optuna")
OBJECTIVES = {"training": ("dev.frame_accuracy", True), "estimate": ("u50.joules_per_epoch", False)}
_MODELLED = ("u50.seconds_per_epoch", "u50.joules_per_epoch", "u50.memory_bytes", "u50.lane_utilisation")
FIGURES = {  # what a complete trial has, one of which is the objective
    "training": (
        *(f"{split}.{score}" for split in ("dev", "test") for score in SCORES),
        *("loss", "seconds", "samples", "u50.joules", *_MODELLED),
    ),
    "estimate": _MODELLED,
}
MOST_TRIALS = 100_000


class SpecError(BttlabError):
    """Raised if a specification breaks a rule."""


@dataclass(frozen=True)
class Range:
    """Range of numbers to draw from."""

    low: float  # bounds, inclusive; two integers give integers
    high: float
    log: bool = False  # whether to draw uniformly in the logarithm

    def __post_init__(self) -> None:
        numbers = [value for value in (self.low, self.high) if type(value) in (int, float) and math.isfinite(value)]
        if len(numbers) < 2 or not self.low < self.high or not isinstance(self.log, bool):
            raise SpecError(f"low {self.low!r}, high {self.high!r}, log {self.log!r}: low is a number below high")
        if self.log and self.low <= 0:
            raise SpecError(f"low {self.low!r} with log: it must be above 0")

    @property
    def integer(self) -> bool:
        """True if whole numbers are drawn."""
        return isinstance(self.low, int) and isinstance(self.high, int)


@dataclass(frozen=True)
class SweepSpec:
    """Specification of a sweep.

    Parameters
    ----------
    name : str
        Also of its folder.
    vary : mapping of str to list or Range
        Keys of the configuration, and the values to try.
    fixed : mapping of str to value
        Keys that are the same for all trials.
    kind : {"training", "estimate"}
        Whether a trial trains, or estimates time and energy on the U50.
    search : {"grid", "random", "optuna"}
        Every combination; `trials` drawn independently; or `trials` proposed by Optuna from those before.
    trials : int, optional
        Of a random or Optuna search.
    seed : int
        Of these.
    objective : str, optional
        The figure by which trials are compared; by default the dev split's frame accuracy, or energy an epoch.
    maximize : bool, optional
        Whether more of it is better.
    resources : mapping of str to number
        What a trial takes of its Dask worker, besides what its device takes.
    chunk_seconds : float
        Training between two checkpoints that come back: what a worker that dies costs at most.

    Raises
    ------
    SpecError
        If a value breaks a rule.
    """

    name: str
    vary: Mapping[str, Any]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "training"
    search: str = "grid"
    trials: int | None = None
    seed: int = 0
    objective: str | None = None
    maximize: bool | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    chunk_seconds: float = 15.0

    def __post_init__(self) -> None:
        for name, choices in (("kind", KINDS), ("search", SEARCHES)):
            if getattr(self, name) not in choices:
                raise SpecError(f"{name} is {getattr(self, name)!r}: choose one of {', '.join(choices)}")
        if not isinstance(self.name, str) or not self.name or "/" in self.name or self.name.startswith("."):
            raise SpecError(f"name is {self.name!r}: it must be text that can be a folder's name")
        for name in ("vary", "fixed", "resources"):
            if not isinstance(getattr(self, name), Mapping):
                raise SpecError(f"{name} is {getattr(self, name)!r}: it must be a table of keys and values")
        twice = sorted(set(self.vary) & set(self.fixed))
        if twice:
            raise SpecError(f"{twice[0]} stands under vary and under fixed; leave it in one of them")
        object.__setattr__(self, "vary", {key: self._values(key, values) for key, values in self.vary.items()})
        if not self.vary:
            raise SpecError("vary is empty: name at least one key of the configuration, and the values to try")
        whole = {"seed": 0} | ({} if self.search == "grid" else {"trials": 1})
        for name, least in whole.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= (MOST_TRIALS if name == "trials" else value):
                raise SpecError(f"{name} is {value!r}: it must be an integer of at least {least}")
        if self.search == "grid" and self.trials is not None:
            raise SpecError("trials is for search: random or optuna; a grid has as many as vary has combinations")
        if type(self.chunk_seconds) not in (int, float) or not 0 < self.chunk_seconds < math.inf:
            raise SpecError(f"chunk_seconds is {self.chunk_seconds!r}: it must be above 0")
        for name, amount in self.resources.items():
            if type(amount) not in (int, float) or not 0 < amount < math.inf:
                raise SpecError(f"resources: {name} is {amount!r}: it must be a number above 0")
        objective, maximize = OBJECTIVES[self.kind]
        if self.objective is None:
            object.__setattr__(self, "objective", objective)
        elif self.objective not in FIGURES[self.kind]:
            way_out = nearest(str(self.objective), FIGURES[self.kind])
            raise SpecError(f"objective is {self.objective!r}, a figure that no {self.kind} has{way_out}")
        elif self.maximize is None and self.objective != objective:
            raise SpecError(f"objective is {self.objective}: say with maximize: true or false what is better")
        if self.maximize is None:
            object.__setattr__(self, "maximize", maximize)

    def _values(self, key: str, values: Any) -> list | Range:
        if isinstance(values, Range):
            interval = values
        elif isinstance(values, Mapping):
            unknown = sorted(set(values) - {"low", "high", "log"})
            if unknown or not {"low", "high"} <= set(values):
                raise SpecError(f"vary: {key} is {dict(values)!r}: give a list, or low, high and, if you like, log")
            try:
                interval = Range(**values)
            except SpecError as error:
                raise SpecError(f"vary: {key}: {error}") from None
        elif isinstance(values, list) and values:
            return values
        else:
            raise SpecError(f"vary: {key} is {values!r}: give a list of values, or low and high")
        if self.search == "grid":
            raise SpecError(f"vary: {key} has low and high: a grid takes a list of values; or take search: random")
        return interval


class _PlainLoader(yaml.SafeLoader):
    """Loader that refuses aliases, which can grow a few bytes to gigabytes, and long plain values."""

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias (*name): write the value again in its place")
        return super().compose_node(parent, index)

    def compose_scalar_node(self, anchor):
        node = super().compose_scalar_node(anchor)
        if node.style is None and len(node.value) > LONGEST_PLAIN:
            raise yaml.YAMLError(f"a value of {len(node.value):,} characters without quotes")
        return node


def read_spec(path: str | Path) -> SweepSpec:
    """Read a specification.

    Raises
    ------
    SpecError
        If it cannot be read, is no YAML, or breaks a rule; the message names the file.
    """
    path = Path(path)
    try:
        data = read_regular(path, LARGEST)
        if sum(data.count(mark) for mark in (b",", b"[", b"{", b"\n")) > MOST_VALUES:  # parsing takes seconds
            raise JsonError(f"it has more than {MOST_VALUES:,} values")
        values = _PlainLoader(data).get_single_data()
        check_tree(values, MOST_VALUES, MOST_INTEGER)
    except OSError as error:
        raise SpecError(f"{path} cannot be read ({error.strerror}); give the file of a sweep") from None
    except (yaml.YAMLError, RecursionError, ValueError, JsonError) as error:
        raise SpecError(f"{path} is no YAML of a sweep: {' '.join(str(error).split())}") from None
    try:
        return _with_paths(spec_of(values, path.stem), path.parent)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None


def _with_paths(spec: SweepSpec, folder: Path) -> SweepSpec:
    """Return a specification whose modules, FILE.py:CLASS, are relative to its file's folder no more."""

    def absolute(model: Any) -> Any:
        return str((folder / model).resolve()) if isinstance(model, str) else model

    fixed, vary = dict(spec.fixed), dict(spec.vary)
    if "model" in fixed:
        fixed["model"] = absolute(fixed["model"])
    if isinstance(vary.get("model"), list):
        vary["model"] = [absolute(model) for model in vary["model"]]
    return replace(spec, fixed=fixed, vary=vary)


def spec_of(values: Any, name: str) -> SweepSpec:
    """Build a specification from a table; `name` is the default name.

    Raises
    ------
    SpecError
        If a key is unknown or a value breaks a rule.
    """
    if not isinstance(values, Mapping) or "vary" not in values:
        raise SpecError("a sweep is a table with at least the key vary: the keys of the configuration to vary")
    known = [one.name for one in fields(SweepSpec)]
    for key in values:
        if key not in known:
            raise SpecError(f"unknown key {key!r}{nearest(str(key), known)}")
    return SweepSpec(**{"name": name, **values})
