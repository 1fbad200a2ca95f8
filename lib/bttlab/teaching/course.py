"""A course for nbgrader: its settings, and an assignment for each notebook."""

import filecmp
import json
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any

from bttlab.teaching.notebooks import FOLDER, PAGE_LINK, STUB, put
from bttlab.util.files import write_file

COURSE = "bttlab"
SECONDS = 600  # that a cell may take while nbgrader grades; all of a notebook takes a minute or two
SETTINGS = f'''\
"""Settings of every `nbgrader` command in this folder. docs/teaching.md shows the steps from here to feedback."""

import os

from bttlab.teaching.course import name_submissions, put_back_checks
from nbgrader.preprocessors import CheckCellMetadata, ClearOutput, DeduplicateIds, OverwriteCells, OverwriteKernelspec
from nbgrader.preprocessors import NbGraderPreprocessor


class ForgetCopies(DeduplicateIds):
    """A copied answer cell becomes an ordinary one: nbgrader leaves metadata there that its own check refuses."""

    def preprocess_cell(self, cell, resources, cell_index):
        cell, resources = super().preprocess_cell(cell, resources, cell_index)
        if not cell.metadata.get("nbgrader", True):
            del cell.metadata["nbgrader"]
        return cell, resources


class PutBackChecks(NbGraderPreprocessor):
    """A check cell that a student has deleted is put back: nbgrader gives 0 points for it, whatever the answer is."""

    def preprocess(self, nb, resources):
        lab, name = resources["nbgrader"]["assignment"], resources["nbgrader"]["notebook"]
        for check in put_back_checks(nb, os.path.join(here, "source", lab, name + ".ipynb")):
            self.log.warning("%s: %s was missing, and is put back", resources["nbgrader"]["student"], check)
        return nb, resources


c = get_config()  # noqa: F821
here = os.path.dirname(os.path.abspath(__file__))
for line in name_submissions(here):
    print(line)

c.CourseDirectory.root = here
c.CourseDirectory.course_id = "{COURSE}"
# Students hand in there: it has mode 1777, and is not in this folder, which only you can enter. The one that is here
# serves to try a course alone.
c.Exchange.root = os.environ.get("BTTLAB_EXCHANGE", os.path.join(here, "exchange"))
c.ClearSolutions.code_stub = {{"python": "{STUB}"}}
c.Execute.timeout = {SECONDS}
c.Autograde.sanitize_preprocessors = [
    *(ClearOutput, ForgetCopies, PutBackChecks, OverwriteKernelspec, OverwriteCells, CheckCellMetadata),
]
'''
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_LINK = re.compile(r"\]\(((\d\d_\w+)\.ipynb)\)")


def make_course(to: str | os.PathLike) -> dict[str, list[str]]:
    """Make an nbgrader course: nbgrader_config.py, source/NAME/NAME.ipynb of each notebook, and an exchange.

    The folder is made if it is not there; a new or empty one gets mode 0700, since marks, submissions and hidden tests
    will be in it. Files that are there stay as they are. Returns the files that were "copied", those that were there
    ("same"), and those that a lecturer has changed ("kept"). Raises OSError if a folder cannot be made; BttlabError if
    a file cannot be written.
    """
    to = Path(to)
    to.mkdir(0o700, parents=True, exist_ok=True)
    if not any(to.iterdir()):
        to.chmod(0o700)
    files = {"nbgrader_config.py": SETTINGS}
    for notebook in sorted(FOLDER.glob("*.ipynb")):
        # a link to another notebook leads to its assignment
        text = _LINK.sub(r"](../\2/\1)", PAGE_LINK.sub("", notebook.read_text(encoding="utf-8")))
        files[f"source/{notebook.stem}/{notebook.name}"] = text
    names: dict[str, list[str]] = {"copied": [], "same": [], "kept": []}
    for name, text in files.items():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        names[put(to / name, text.encode())].append(name)
    exchange = to / "exchange"
    if not exchange.exists():
        exchange.mkdir()
        exchange.chmod(0o1777)
    return names


def name_submissions(course: str | os.PathLike) -> list[str]:
    """Give submitted notebooks that students have renamed the names of their assignments, found by their cells' ids.

    nbgrader knows a notebook by its file's name alone: a renamed one gets no points. It is copied beside the student's
    own file. So is its feedback later, which nbgrader hands out by the name of the student's file. Returns a line for
    each copy, for each assignment that several files could be, and for each file beside the assignment's that has its
    exercises, too, and is not graded.
    """
    course, lines = Path(course), []
    for source in sorted(course.glob("source/*/*.ipynb")):
        wanted = _exercises(source)
        for folder in sorted(course.glob(f"submitted/*/{source.parent.name}")):
            place = folder / source.name
            known = {other.name for other in source.parent.glob("*.ipynb")}
            found = [path for path in sorted(folder.glob("*.ipynb")) if path.name not in known]
            found = [path for path in found if wanted & _exercises(path)]
            names = ", ".join(path.name for path in found)
            if place.exists():
                same = [path for path in found if filecmp.cmp(path, place, shallow=False)]
                for path in same:
                    _name_feedback(course / "feedback" / folder.parent.name / folder.name, source.stem, path.stem)
                if others := ", ".join(path.name for path in found if path not in same):
                    lines.append(f"{folder}: {place.name} is graded; {others} beside it, with its exercises, is not")
            elif len(found) == 1:
                shutil.copyfile(found[0], place)
                lines.append(f"{found[0]}: graded as {place.name}, whose exercises it has")
            elif found:
                lines.append(f"{folder}: {names} have the exercises of {place.name}; rename the one to grade")
    return lines


def _name_feedback(folder: Path, lab: str, theirs: str) -> None:
    """Put a notebook's feedback, if there is any, beside itself with the name of the student's file."""
    page = folder / f"{lab}.html"
    if page.exists():
        write_file(folder / f"{theirs}.html", page.read_bytes())


def put_back_checks(notebook: Any, source: str | os.PathLike) -> list[str]:
    """Put graded cells that a student has deleted back into a submission, each behind the cell that it follows.

    Parameters
    ----------
    notebook : nbformat.NotebookNode
        The submission, which is changed.
    source : path
        The assignment's notebook in `source/`.

    Returns
    -------
    list of str
        The ids of the cells, such as "check-01-4".
    """
    import nbformat

    back, place, cells = [], 0, notebook.cells
    for cell in nbformat.read(source, as_version=4).cells:
        found = next((n for n, one in enumerate(cells) if _names(one) & _names(cell)), None)
        if _mark(cell).get("grade") and (found is None or not _mark(cells[found]).get("grade")):
            back.append(_mark(cell)["grade_id"])
            if notebook.nbformat_minor < 5:  # its cells have no ids
                cell.pop("id", None)
            if found is None:
                cells.insert(place, cell)
                found = place
            cells[found] = cell  # of one that is there the metadata are missing
        if found is not None:
            place = found + 1
    return back


def _names(cell: Any) -> set[str]:
    """Return the ids of a cell: Jupyter's and nbgrader's, as far as it has them."""
    return {cell.get("id"), _mark(cell).get("grade_id")} - {None}


def _mark(cell: Any) -> dict[str, Any]:
    """Return what nbgrader has in a cell's metadata."""
    return cell["metadata"].get("nbgrader", {})


def _exercises(path: Path) -> set[str]:
    """Return the ids of a notebook's graded cells; none of a file that is not a notebook."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return {_mark(cell)["grade_id"] for cell in cells if _mark(cell).get("grade")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()


def is_open(course: Path) -> bool:
    """Return whether others can enter a course's folder."""
    return bool(course.stat().st_mode & _OTHERS)
