"""The Python of README and pages runs as printed; a type checker has nothing against it, or against the notebooks."""

import json
import re
import subprocess
import sys

import pytest

from subprocess_env import environment

from conftest import ROOT

PAGES = {
    path.stem: "\n".join(blocks)
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if (blocks := re.findall(r"^```python\n(.*?)^```$", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE))
}
PACKAGES = ("card", "data", "model", "runs", "tensor")  # of bttlab, without a finding
TYPES = {"pythonVersion": "3.10", "typeCheckingMode": "basic", "extraPaths": [str(ROOT / "lib")]}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_as_printed(page, capsys):
    names = {}
    exec(PAGES[page], names)
    if page == "README":
        first, last = map(float, re.fullmatch(r"loss (\S+) -> (\S+)\n", capsys.readouterr().out).groups())
        assert last < 0.9 * first and names["parameters"].keys()


@pytest.mark.long
def test_the_types_of_pages_notebooks_and_public_packages_are_right(tmp_path):
    """A cell ends with what it shows, two cells may define one name, and a value that one of them measured is there."""
    optional = ("reportOptionalMemberAccess", "reportOptionalSubscript", "reportOptionalOperand")
    allowed = ", ".join(f"{rule}=false" for rule in ("reportUnusedExpression", "reportRedeclaration", *optional))
    notebooks = sorted((ROOT / "notebooks").glob("*.ipynb"))
    for path in notebooks:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        lines = "\n".join(text for text in code if not text.startswith("%%")).split("\n")
        text = "\n".join(line for line in lines if not line.startswith(("%", "!")))
        (tmp_path / f"notebook_{path.stem}.py").write_text(f"# pyright: {allowed}\n{text}")
    for page, text in PAGES.items():
        (tmp_path / f"{page}.py").write_text(text)
    included = [str(tmp_path), *(str(ROOT / "lib" / "bttlab" / name) for name in PACKAGES)]
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(TYPES | {"include": included}))
    command = [sys.executable, "-m", "basedpyright", "--project", tmp_path, "--pythonpath", sys.executable]
    done = subprocess.run([*command, "--outputjson"], env=environment(), capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert len(notebooks) == 9 and len(PAGES) > 2
    assert found["summary"]["filesAnalyzed"] >= 12
    assert [
        f"{one['file']}:{one['range']['start']['line']}: {one['message']}" for one in found["generalDiagnostics"]
    ] == []
