"""Notebooks as they are handed out: without solutions, and nobody's work is lost."""

import json
import re

import pytest

from bttlab.cli import main
from bttlab.teaching.notebooks import FOLDER, STUB, copy_notebooks, release
from bttlab.util.errors import BttlabError

from conftest import ROOT

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def _cells(content: bytes) -> dict[str, dict]:
    return {cell["id"]: {**cell, "source": "".join(cell["source"])} for cell in json.loads(content)["cells"]}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_nbgraders_source(path):
    """Each exercise is a cell to answer in and a locked cell that checks it, worth points, with hidden tests."""
    cells = list(_cells(path.read_bytes()).values())
    marked = [(k, cell["metadata"]["nbgrader"]) for k, cell in enumerate(cells) if cell["metadata"].get("nbgrader")]
    ids = [mark["grade_id"] for _, mark in marked]
    number, count = path.stem[:2], len(marked) // 2
    assert ids == [f"{what}-{number}-{k}" for k in range(1, count + 1) for what in ("answer", "check")]
    for k, mark in marked:
        source, before = cells[k]["source"], cells[k - 1]["source"]
        name = mark["grade_id"].split("-", 1)[1].replace("-", ".")
        assert mark["solution"] is (not mark["grade"]) and mark["locked"] is mark["grade"] and not mark["task"]
        if mark["solution"]:
            assert source.count("### BEGIN SOLUTION\n") == 1 == source.count("### END SOLUTION")
            assert f"**{name[-1]}.**" in before
        else:
            hidden, visible = source.split("\n### END HIDDEN TESTS\n")
            assert hidden.startswith(f'### BEGIN HIDDEN TESTS\nfrom bttlab.lab import grade\n\ngrade("{name}", ')
            assert visible == hidden.split("\n")[-1].replace("grade(", "check(") and mark["points"] > 0
    assert sum("\ncheck(" in cell["source"] for cell in cells) == count


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_handed_out_has_no_solution(path):
    source, released = _cells(path.read_bytes()), _cells(release(path.read_bytes()))
    assert list(source) == list(released)
    for name, cell in released.items():
        text = cell["source"]
        assert "SOLUTION" not in text and "HIDDEN" not in text and "grade(" not in text
        kind = cell["metadata"].get("nbgrader", {})
        if kind.get("solution"):
            assert text.count(STUB) == 1
        elif not kind:
            assert cell == source[name]
        if cell["cell_type"] == "code":
            compile("\n".join(line for line in text.split("\n") if not line.startswith("%")), name, "exec")


def test_a_reset_keeps_what_was_there(tmp_path, capsys):
    folder, name = tmp_path / "mine", NOTEBOOKS[3].name
    copy_notebooks(folder)
    fresh = (folder / name).read_bytes()
    for work in ("first", "second"):
        (folder / name).write_text(work)
        (folder / NOTEBOOKS[4].name).write_text("another's")
        assert main(["notebooks", str(folder), "--reset", "03", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["copied"] == [name] and said["kept"] == [NOTEBOOKS[4].name]
        assert len(said["same"]) == len(NOTEBOOKS) - 2
    assert (folder / name).read_bytes() == fresh
    stem = NOTEBOOKS[3].stem
    assert [(folder / f"{stem}.kept-{k}.ipynb").read_text() for k in (1, 2)] == ["first", "second"]
    assert copy_notebooks(folder, reset=())["aside"] == [f"{NOTEBOOKS[4].stem}.kept-1.ipynb"]
    assert copy_notebooks(folder)["same"] == [path.name for path in NOTEBOOKS]


@pytest.mark.parametrize("folder", ["mine", "checkout/mine"])
def test_links_of_a_copied_notebook_lead_to_the_pages(folder, tmp_path):
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "docs").symlink_to(ROOT / "docs")  # as in a checkout
    copy_notebooks(tmp_path / folder)
    links = {
        (path.parent / link)
        for path in (tmp_path / folder).glob("*.ipynb")
        for link in re.findall(r"\]\(([\w./]+/[\w./]+)[)#]", path.read_text(encoding="utf-8"))
    }
    made = {link for link in links if "build/site/html" in str(link)}  # by `make site`, in a checkout alone
    assert {link.stem for link in made} == ({path.stem for path in NOTEBOOKS} if "checkout" in folder else set())
    links -= made
    assert len(links) > 5 and [link for link in links if not link.is_file()] == []


def test_no_notebook_of_that_name(tmp_path):
    with pytest.raises(BttlabError, match=r"begins with '9': there are 00_start_here, 01_"):
        copy_notebooks(tmp_path / "new", reset=["9"])
    assert not (tmp_path / "new").exists()
