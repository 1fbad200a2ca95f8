"""The notebooks as copies to work in, without solutions. `pynq get-notebooks` copies them as they are, with them."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from bttlab.util.errors import BttlabError
from bttlab.util.files import write_new_file
from bttlab.util.places import ROOT

FOLDER = ROOT / "notebooks"
BESIDE = b"](../docs/"  # how links to pages of docs/ begin in a checkout
STUB = "pass  # your answer here"
# The link from a notebook to its page of `make site`, where both are in a checkout.
PAGE_LINK = re.compile(r" · \[executed, after `make site`\]\(\.\./build/site/html/notebooks/[^)]+\)")
__path__ = [str(FOLDER)]


def release(notebook: bytes) -> bytes:
    """Return a notebook as it is handed out: a stub in place of each solution, and no hidden tests.

    nbgrader makes the same of it, with the settings of `bttlab course`.
    """
    content = json.loads(notebook)
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            cell["source"] = "\n".join(_released("".join(cell["source"]).split("\n"))).splitlines(keepends=True)
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def _released(lines: Sequence[str]) -> Iterator[str]:
    inside = False
    for line in lines:
        if marker := re.fullmatch(r"( *)### (BEGIN|END) (SOLUTION|HIDDEN TESTS)", line):
            inside = marker[2] == "BEGIN"
            if inside and marker[3] == "SOLUTION":
                yield marker[1] + STUB
        elif not inside:
            yield line


def copy_notebooks(to: str | os.PathLike, reset: Sequence[str] | None = None) -> dict[str, list[str]]:
    """Copy the notebooks into a folder, which is made if it is not there; what is there already stays as it is.

    `reset` says how the names of notebooks begin that are to be as they come; none: all. What is there in their place
    is kept beside them, as NAME.kept-1.ipynb, NAME.kept-2.ipynb, ... Returns the names that were "copied", those that
    were there as they come ("same"), those that are somebody's work or of another version ("kept"), and the names under
    which work was set "aside".

    Raises BttlabError if no notebook's name begins so, or a file cannot be written; OSError if the folder cannot be
    made.
    """
    to, sources = Path(to), sorted(FOLDER.glob("*.ipynb"))
    for begin in reset or ():
        if not any(source.name.startswith(begin) for source in sources):
            names = ", ".join(source.stem for source in sources)
            raise BttlabError(f"no notebook's name begins with {begin!r}: there are {names}")
    to.mkdir(parents=True, exist_ok=True)
    pages = _pages_for(to)
    names: dict[str, list[str]] = {"copied": [], "same": [], "kept": [], "aside": []}
    for source in sources:
        target, content = to / source.name, release(source.read_bytes()).replace(BESIDE, pages)
        if pages != BESIDE:
            content = PAGE_LINK.sub("", content.decode()).encode()
        if reset is not None and (not reset or source.name.startswith(tuple(reset))) and os.path.lexists(target):
            names["aside"] += _set_aside(target, content)
        names[put(target, content)].append(source.name)
    return names


def _pages_for(to: Path) -> bytes:
    """Return how links to pages of docs/ begin in notebooks of this folder; outside a checkout, copy the pages."""
    docs = ROOT / "docs"
    if (to.parent / "docs").resolve() == docs.resolve():
        return BESIDE
    for page in filter(Path.is_file, docs.rglob("*")):
        target = to / "docs" / page.relative_to(docs)
        target.parent.mkdir(parents=True, exist_ok=True)
        put(target, page.read_bytes())
    return b"](docs/"


def put(target: Path, content: bytes) -> str:
    """Write a new file atomically.

    Returns "copied", "same" (there already) or "kept" (another). Raises BttlabError if it cannot be written.
    """
    try:
        write_new_file(target, content)
        return "copied"
    except FileExistsError:
        return "same" if _is(target, content) else "kept"
    except OSError as error:
        raise BttlabError(
            f"{target} cannot be written ({error.strerror}): nothing of it is there; make room, or name another "
            "folder, and run the same command again"
        ) from None


def _is(target: Path, content: bytes) -> bool:
    return target.is_file() and target.stat().st_size == len(content) and target.read_bytes() == content


def _set_aside(notebook: Path, content: bytes) -> list[str]:
    """Give a notebook that is another the first name that is free, and return it."""
    if _is(notebook, content):
        return []
    asides = (notebook.with_suffix(f".kept-{number}.ipynb") for number in count(1))
    return [notebook.rename(next(aside for aside in asides if not os.path.lexists(aside))).name]
