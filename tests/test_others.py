"""The tables of other people's packages: of their records, and what packages that are here still do."""

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import nearest
import others
import pytest

from conftest import ROOT


def record(probe: str) -> dict:
    return json.loads((others.RECORDS / f"{probe}.json").read_text(encoding="utf-8"))


def test_the_tables_are_of_their_records(tmp_path):
    (tmp_path / "docs").mkdir()
    pages = {probe.page for probe in others.PROBES.values()}
    for page in pages:
        (tmp_path / page).write_bytes((ROOT / page).read_bytes())
    others.write(tmp_path)
    nearest.write(tmp_path)
    for page in pages:
        assert (ROOT / page).read_text() == (tmp_path / page).read_text(), f"{page}: python tools/others.py"


@pytest.mark.parametrize("probe", others.PROBES)
def test_each_row_is_of_a_pinned_version(probe):
    pinned = dict(requirement.split("==") for requirement in others.PROBES[probe].requirements)
    source = (others.SOURCES / f"{probe}.py").read_text(encoding="utf-8")
    rows = record(probe)["rows"]
    assert len({row["row"] for row in rows}) == len(rows) == source.count("\n@row(")
    for row in rows:
        found = row["version"].partition("+")[0].replace("-", ".post")  # thop's own version is 0.1.1-2209072238
        assert found == pinned[row["package"]], row["row"]


def here(package: str, wanted: str) -> bool:
    try:
        return version(package).partition("+")[0] == wanted.partition("+")[0]
    except PackageNotFoundError:
        return False


@pytest.mark.long
@pytest.mark.parametrize("probe", ["tensor_words", "counters", "converters"])
def test_packages_that_are_here_do_what_is_on_record(probe):
    """The rows of packages of this environment in the version on record, measured again."""
    kept = [row for row in record(probe)["rows"] if here(row["package"], row["version"])]
    packages = {row["package"] for row in kept}
    assert packages
    code = (
        f"import json, {probe}, probe; print(json.dumps(probe.rows(frozenset({packages})), default=lambda n: n.item()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=others.SOURCES, capture_output=True, text=True, check=True)
    again = json.loads(done.stdout.splitlines()[-1])
    assert len(again) == len(kept) > 0
    for before, after in zip(kept, again, strict=True):
        for key, value in before.items():
            if key == "version":
                continue
            wanted = pytest.approx(value, rel=1e-3, abs=1e-12) if isinstance(value, float) else value
            assert after[key] == wanted, f"{before['row']}: {key}"
