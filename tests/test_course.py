"""What nbgrader makes of the notebooks: assignments, points and feedback; test_class_in_browser.py hands in."""

import ast
import json
import os
import re
import shutil
import stat
import sys
from pathlib import Path

import nbformat
import pytest

from bttlab.cli import main
from bttlab.teaching.course import make_course, name_submissions, put_back_checks
from bttlab.teaching.notebooks import FOLDER, PAGE_LINK, STUB, release
from two_users import interpreter_of_nobody, run_as_nobody, shared_folder

from conftest import ROOT

pytestmark = pytest.mark.long

NAMES = [path.stem for path in sorted(FOLDER.glob("*.ipynb"))]
LAB = "01_tensor_compression"  # one for all: tests/test_exercises.py has right and wrong answers to every exercise
# What a student writes who has an exercise wrong and leaves another alone.
WRONG = {"01.1": "my_parameters = 2448", "01.3": STUB}


def _notebook(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def _answered(path: Path, answer) -> None:
    """Write into each exercise of a released notebook what `answer` says for its name and sample solution."""
    content = _notebook(path)
    solved = {cell["id"]: "".join(cell["source"]) for cell in _notebook(FOLDER / path.name)["cells"]}
    for cell in content["cells"]:
        mark = cell["metadata"].get("nbgrader", {})
        if mark.get("solution"):
            name = mark["grade_id"].removeprefix("answer-").replace("-", ".")
            text = "".join(cell["source"])
            indent, own = re.search(rf"( *){re.escape(STUB)}", text)[1], answer(name)
            text = solved[cell["id"]] if own is None else text.replace(indent + STUB, indent + own)
            cell["source"] = text.splitlines(keepends=True)
    path.write_text(json.dumps(content), encoding="utf-8")


STUDENTS = {"right": lambda name: None, "half": WRONG.get, "renamed": lambda name: None, "unchecked": lambda name: None}


def _copy_an_answer(path: Path) -> None:
    """Paste an answer cell below itself, as JupyterLab does: the copy has the metadata, and an id of its own."""
    content = _notebook(path)
    cells = content["cells"]
    place = next(i for i, cell in enumerate(cells) if cell["metadata"].get("nbgrader", {}).get("solution"))
    cells.insert(place + 1, cells[place] | {"id": "a-copy"})
    path.write_text(json.dumps(content), encoding="utf-8")


def _without(path: Path, *grade_ids: str) -> None:
    """Delete cells, as a student does who takes their marks as deletable out of the file."""
    content = _notebook(path)
    marks = [cell["metadata"].get("nbgrader", {}).get("grade_id") for cell in content["cells"]]
    content["cells"] = [cell for cell, mark in zip(content["cells"], marks, strict=True) if mark not in grade_ids]
    path.write_text(json.dumps(content), encoding="utf-8")


def _nbgrader(course: Path, command: str, lab: str) -> None:
    """Run one of nbgrader's commands as a lecturer does, in the course's folder."""
    from nbgrader.apps import NbGraderApp

    there = os.getcwd()
    os.chdir(course)
    try:
        NbGraderApp.launch_instance([command, lab])
    except SystemExit as end:
        assert not end.code, f"nbgrader {command} {lab}"
    finally:
        NbGraderApp.clear_instance()
        os.chdir(there)


def _points(course: Path, lab: str) -> dict[str, dict[str, float]]:
    """Of each student, the points of each exercise."""
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course}/gradebook.db") as book:
        return {
            found.student.id: {
                grade.name.removeprefix("check-").replace("-", "."): (grade.score, grade.max_score)
                for notebook in found.notebooks
                for grade in notebook.grades
            }
            for found in book.assignment_submissions(lab)
        }


def _sources(folder: Path) -> list[str]:
    """Return the cells of an assignment, without links to other notebooks, which lie elsewhere in a course."""
    cells = _notebook(folder / f"{folder.name}.ipynb")["cells"]
    return [re.sub(r"\.\./\w+/(\w+\.ipynb)", r"\1", "".join(cell["source"])) for cell in cells]


def _handed_out(lab: str) -> list[str]:
    """Return the cells that `bttlab notebooks` copies, outside a checkout."""
    cells = json.loads(release((FOLDER / f"{lab}.ipynb").read_bytes()))["cells"]
    return [PAGE_LINK.sub("", "".join(cell["source"])) for cell in cells]


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    folder = tmp_path_factory.mktemp("class")
    settings = {  # nbgrader starts `alembic`, which lies beside it
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'lib'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "BTTLAB_QUICK": "1",
        "BTTLAB_RUNS": str(folder / "runs"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        make_course(folder / "course")
        yield folder / "course"


def test_assignments_are_graded(course):
    if not (course / "release" / LAB).exists():
        _nbgrader(course, "generate_assignment", LAB)
    for student, answer in STUDENTS.items():
        submitted = shutil.copytree(course / "release" / LAB, course / "submitted" / student / LAB)
        _answered(submitted / f"{LAB}.ipynb", answer)
    _copy_an_answer(course / "submitted" / "right" / LAB / f"{LAB}.ipynb")
    _without(course / "submitted" / "unchecked" / LAB / f"{LAB}.ipynb", "check-01-2", "check-01-4", "answer-01-4")
    theirs = course / "submitted" / "renamed" / LAB
    (theirs / f"{LAB}.ipynb").rename(theirs / "my lab.ipynb")
    _nbgrader(course, "autograde", LAB)
    points = _points(course, LAB)
    assert set(points) == set(STUDENTS)
    for student in ("right", "renamed"):
        assert points[student]
        for name, (score, most) in points[student].items():
            assert score == most > 0, (student, name)
    assert WRONG.keys() < points["half"].keys()
    # the deleted answer gives no points; each deleted check is put back
    assert {name: score for name, (score, _) in points["unchecked"].items()} == {
        name: 0 if name == "01.4" else most for name, (_, most) in points["unchecked"].items()
    }
    for name, (score, most) in points["half"].items():
        assert score == (0 if name in WRONG else most), name
    assert name_submissions(course) == []  # the copy is there
    (theirs / f"{LAB}.ipynb").rename(theirs / "my other lab.ipynb")
    (theirs / "notes.ipynb").write_text("no notebook")
    (line,) = name_submissions(course)
    assert "my lab.ipynb, my other lab.ipynb have the exercises" in line
    assert not (theirs / f"{LAB}.ipynb").exists()

    _nbgrader(course, "generate_feedback", LAB)
    page = (course / "feedback" / "half" / LAB / f"{LAB}.html").read_text(encoding="utf-8")
    assert "Not yet: " in page and f"(Score: 0.0 / {points['half']['01.1'][1]:.1f})" in page


NOISE = """
import sys as _sys, warnings as _warnings, tqdm as _tqdm
_warnings.warn("<noise>")
print("<noise>", file=_sys.stderr)
list(_tqdm.tqdm(range(3), desc="<noise>"))
"""


# Labs with an exercise whose answer is code that its check runs, one each
WITH_FUNCTIONS = {name for name in NAMES if name[:2] in ("01", "02", "03", "04", "05", "08")}


def _noisy(text: str) -> str:
    """Return an answer whose functions, methods included, warn, print to stderr and show a progress bar."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body[:0] = ast.parse(NOISE).body
    return NOISE + ast.unparse(tree)


def _write_noisy_answers(path: Path) -> None:
    content = _notebook(path)
    solved = {cell["id"]: "".join(cell["source"]) for cell in _notebook(FOLDER / path.name)["cells"]}
    for cell in content["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("solution"):
            cell["source"] = _noisy(solved[cell["id"]])
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("lab", NAMES)
def test_a_right_answer_that_writes_to_stderr_has_full_points(course, lab):
    """Each model answer with a warning, a print and a progress bar; the last cell adds up the same points."""
    if not (course / "release" / lab).exists():
        _nbgrader(course, "generate_assignment", lab)
    submitted = shutil.copytree(course / "release" / lab, course / "submitted" / "noisy" / lab)
    _write_noisy_answers(submitted / f"{lab}.ipynb")
    _nbgrader(course, "autograde", lab)
    points = _points(course, lab)["noisy"]
    assert {name: score for name, (score, _) in points.items()} == {name: most for name, (_, most) in points.items()}
    cells = _notebook(course / "autograded" / "noisy" / lab / f"{lab}.ipynb")["cells"]
    texts = ["".join(out.get("text", "")) for cell in cells for out in cell.get("outputs", ()) if "text" in out]
    total = int(sum(most for _, most in points.values()))
    assert texts[-1] == f"{total} of {total} points\n"
    shown = [text for text in texts if "costs no points" in text]
    assert len(shown) == (lab in WITH_FUNCTIONS) and all(text.count("<noise>") > 2 for text in shown)


def test_every_lab_becomes_what_is_handed_out(course):
    """nbgrader clears the notebooks as `bttlab notebooks` does, and finds nothing wrong with them."""
    for lab in (LAB, NAMES[-1]):  # the exercises of all have one form: test_release.py
        if not (course / "release" / lab).exists():
            _nbgrader(course, "generate_assignment", lab)
        assert _sources(course / "release" / lab) == _handed_out(lab)


def test_a_course_that_is_there_stays(tmp_path, capsys):
    folder = tmp_path / "course"
    assert main(["course", str(folder), "--json"]) == 0
    files = ["nbgrader_config.py", *(f"source/{name}/{name}.ipynb" for name in NAMES)]
    assert json.loads(capsys.readouterr().out) == {"folder": str(folder), "copied": files, "same": [], "kept": []}
    assert (folder / "exchange").stat().st_mode & 0o7777 == 0o1777
    (folder / files[0]).write_text("mine")
    (folder / files[1]).unlink()
    assert main(["course", str(folder)]) == 0
    assert f"kept {folder / files[0]}" in capsys.readouterr().out and (folder / files[0]).read_text() == "mine"
    assert (folder / files[1]).is_file()


def test_a_course_is_closed_to_other_users(tmp_path, capsys):
    """Solutions, hidden tests, submissions, marks: also what nbgrader writes there later, whatever the umask is."""
    before = os.umask(0)
    try:
        with shared_folder() as folder:
            (folder / "empty").mkdir(0o755)
            for course in (folder / "new", folder / "empty"):
                assert main(["course", str(course)]) == 0
                (course / "gradebook.db").write_text("marks")
                (course / "autograded").mkdir()
                assert stat.S_IMODE(course.stat().st_mode) == 0o700
                assert "can enter" not in capsys.readouterr().out
                read = "import os, sys; print([os.access(path, os.R_OK) for path in sys.argv[1:]])"
                names = ("", "gradebook.db", "autograded", f"source/{LAB}/{LAB}.ipynb")
                said = run_as_nobody(read, *(course / name for name in names))
                assert said == "[False, False, False, False]" or not interpreter_of_nobody() or os.geteuid()
            (folder / "new").chmod(0o755)
            assert main(["course", str(folder / "new")]) == 0
            assert f"other users can enter {folder / 'new'}" in capsys.readouterr().out
            assert stat.S_IMODE((folder / "new").stat().st_mode) == 0o755  # an exchange in it may be in use
    finally:
        os.umask(before)


def test_a_deleted_check_is_put_back_where_it_was(tmp_path):
    """Also one without its metadata, at the end of half a notebook, and in a notebook whose cells have no ids."""
    source = FOLDER / f"{LAB}.ipynb"

    def order(notebook):
        marks = [cell["metadata"].get("nbgrader", {}).get("grade_id", "") for cell in notebook.cells]
        return [mark for mark in marks if mark]

    whole = nbformat.read(source, as_version=4)
    assert put_back_checks(whole, source) == [] and whole == nbformat.read(source, as_version=4)
    checks = [mark for mark in order(whole) if mark.startswith("check")]
    (tmp_path / "theirs.ipynb").write_bytes(source.read_bytes())
    _without(tmp_path / "theirs.ipynb", "check-01-2", "check-01-4", "answer-01-4")
    theirs = nbformat.read(tmp_path / "theirs.ipynb", as_version=4)
    assert put_back_checks(theirs, source) == ["check-01-2", "check-01-4"]
    assert order(theirs) == [mark for mark in order(whole) if mark != "answer-01-4"]

    half = nbformat.read(source, as_version=4)
    half.cells[12:] = []
    assert put_back_checks(half, source) == checks == order(half)

    bare = nbformat.read(source, as_version=4)
    for cell in bare.cells:
        cell.metadata.pop("nbgrader", None)
    assert put_back_checks(bare, source) == checks and len(bare.cells) == len(whole.cells)

    old = nbformat.read(source, as_version=4)
    old.nbformat_minor = 4
    old.cells = [cell for cell in old.cells if cell.metadata.get("nbgrader", {}).get("grade_id") != "check-01-2"]
    for cell in old.cells:
        del cell["id"]
    assert put_back_checks(old, source) == ["check-01-2"] and order(old) == order(whole)
    nbformat.validate(old)


def test_the_student_of_a_renamed_notebook_gets_its_feedback(tmp_path):
    """nbgrader hands feedback out by the name of the student's file, and releases all pages of the folder."""
    theirs, pages = (tmp_path / folder / "ada" / LAB for folder in ("submitted", "feedback"))
    for folder in (tmp_path / "source" / LAB, theirs, pages):
        folder.mkdir(parents=True)
    shutil.copyfile(FOLDER / f"{LAB}.ipynb", tmp_path / "source" / LAB / f"{LAB}.ipynb")
    shutil.copyfile(FOLDER / f"{LAB}.ipynb", theirs / "my lab.ipynb")
    (line,) = name_submissions(tmp_path)
    assert line.endswith(f"graded as {LAB}.ipynb, whose exercises it has") and not any(pages.iterdir())
    for marks in ("3 points", "4 points, graded again"):
        page = pages / f"{LAB}.html"
        page.write_text(marks)
        page.chmod(0o444)
        assert name_submissions(tmp_path) == []
        assert (pages / "my lab.html").read_text() == marks
        page.unlink()
    (theirs / "another.ipynb").write_text((FOLDER / f"{LAB}.ipynb").read_text() + " ")
    page.write_text("of the graded one")
    (line,) = name_submissions(tmp_path)
    assert f"{LAB}.ipynb is graded; another.ipynb beside it" in line and not (pages / "another.html").exists()


def test_a_copy_that_is_not_graded_is_named(tmp_path):
    """A student works in a copy, and hands in the untouched notebook beside it: that one is graded."""
    theirs = tmp_path / "submitted" / "ada" / LAB
    for folder in (tmp_path / "source" / LAB, theirs):
        folder.mkdir(parents=True)
        shutil.copyfile(FOLDER / f"{LAB}.ipynb", folder / f"{LAB}.ipynb")
    assert name_submissions(tmp_path) == []
    copy = theirs / f"{LAB}-Copy1.ipynb"
    shutil.copyfile(theirs / f"{LAB}.ipynb", copy)
    assert name_submissions(tmp_path) == []  # the same work
    _without(copy, "check-01-4")
    (line,) = name_submissions(tmp_path)
    assert line == f"{theirs}: {LAB}.ipynb is graded; {LAB}-Copy1.ipynb beside it, with its exercises, is not"
    (theirs / f"{LAB}.ipynb").unlink()
    (line,) = name_submissions(tmp_path)  # a check is missing, and it is known by the others
    assert line == f"{copy}: graded as {LAB}.ipynb, whose exercises it has"
