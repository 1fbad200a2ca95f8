"""Findings of the doctor."""

from dataclasses import dataclass, field
from typing import Any

OK, NOTE, PROBLEM = "ok", "note", "problem"


@dataclass(frozen=True)
class Check:
    """Finding of the doctor about one thing.

    Attributes
    ----------
    name : str
    status : {"ok", "note", "problem"}
        A note is something that is not here and that one may miss; a problem is broken and needed.
    detail : str
    way_out : str
        What to do about it.
    data : dict
        Details for --json.
    """

    name: str
    status: str
    detail: str
    way_out: str = ""
    data: dict[str, Any] = field(default_factory=dict)
