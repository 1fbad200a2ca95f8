"""What a survey of efficient training names, and where each is here: data/methods/survey.json."""

import json
from dataclasses import dataclass

from bttlab.util.places import ROOT


@dataclass(frozen=True)
class Technique:
    """A technique that the survey names, in one of `GROUPS`."""

    name: str
    group: str
    row: str = ""  # combination of methods that has it, as `bttlab_methods.parse` takes it
    gone: str = ""  # method of an earlier version: its results are in data/methods/gone.json
    note: str = ""  # on what it would pay where this model is too small; without a row, why there is none
    needs_gpu: bool = False


_READ = json.loads((ROOT / "data" / "methods" / "survey.json").read_text(encoding="utf-8"))["groups"]
GROUPS = tuple(section["group"] for section in _READ)
TECHNIQUES = tuple(Technique(group=section["group"], **one) for section in _READ for one in section["techniques"])
