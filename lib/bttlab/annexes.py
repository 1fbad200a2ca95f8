"""What the rooms below find of those above them: by the entry points of the installed package, never by an import.

The groups are bttlab.commands (modules of `bttlab NAME`), bttlab.views (names of `bttlab.lab`), bttlab.benches (modules
of `bttlab bench NAME`) and bttlab.power (what models a card's power). docs/house.md has the rooms.
"""

import functools
from importlib.metadata import EntryPoint, entry_points


@functools.cache
def brought(kind: str) -> dict[str, EntryPoint]:
    """Return what annexes bring of a kind, such as "views", by name; `load` of each gives it."""
    return {point.name: point for point in entry_points(group=f"bttlab.{kind}")}
