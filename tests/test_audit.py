"""The audit without a network: which locked versions a file of advisories affects."""

import json
import subprocess
import sys
import zipfile

import pytest

from bttlab.places import ROOT

pytestmark = pytest.mark.long

AUDIT = ROOT / "tools" / "audit.py"


def advisory(name, identifier="PYSEC-1", **affected):
    package = {"ecosystem": "PyPI", "name": name}
    return {"id": identifier, "modified": "2026-11-01T00:00:00Z", "affected": [{"package": package} | affected]}


def events(*pairs):
    return {"ranges": [{"type": "ECOSYSTEM", "events": [{kind: bound} for kind, bound in pairs]}]}


def run(tmp_path, *records):
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w") as export:
        for number, record in enumerate(records):
            export.writestr(f"{number}.json", json.dumps(record))
    return subprocess.run([sys.executable, AUDIT, path], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("affected", "hit"),
    [
        (events(("introduced", "0"), ("fixed", "3.0.1")), False),
        (events(("introduced", "0"), ("fixed", "3.0.2")), True),
        (events(("introduced", "0"), ("last_affected", "3.0.1")), True),
        (events(("introduced", "0"), ("last_affected", "3.0.0")), False),
        (events(("introduced", "3.0.2")), False),
        (events(("introduced", "1.0"), ("fixed", "2.0"), ("introduced", "3.0"), ("fixed", "4.0")), True),
        (events(("introduced", "3.0"), ("fixed", "4.0"), ("introduced", "1.0"), ("fixed", "2.0")), True),
        ({"versions": ["3.0.0", "3.0.1"]}, True),
        ({"versions": ["3.0.0"]}, False),
        ({"ranges": [{"type": "GIT", "events": [{"introduced": "0"}]}]}, False),
    ],
)
def test_a_version_is_held_against_ranges_and_lists(tmp_path, affected, hit):
    done = run(
        tmp_path, advisory("PYNQ", **affected), advisory("nobody-needs-this", "PYSEC-2", **events(("introduced", "0")))
    )
    assert done.returncode == hit and ("PYNQ 3.0.1: PYSEC-1" in done.stdout) == hit
    assert f"{int(hit)} advisories for locked packages, of 2, the newest of 2026-11-01" in done.stdout


def test_torch_is_asked_about_though_no_lock_has_it(tmp_path):
    assert "torch 2.13.0: PYSEC-1" in run(tmp_path, advisory("torch", **events(("introduced", "0")))).stdout


def test_what_was_withdrawn_or_is_of_another_index_counts_for_nothing(tmp_path):
    withdrawn = advisory("pynq", **events(("introduced", "0"))) | {"withdrawn": "2026-01-01T00:00:00Z"}
    other = advisory("pynq", "NPM-1", **events(("introduced", "0")))
    other["affected"][0]["package"]["ecosystem"] = "npm"
    assert run(tmp_path, withdrawn, other).returncode == 0


def test_a_file_that_says_nothing_is_refused_in_one_line(tmp_path):
    empty = run(tmp_path)
    torn = tmp_path / "torn.zip"
    torn.write_bytes(b"PK")
    for done in (empty, subprocess.run([sys.executable, AUDIT, torn], capture_output=True, text=True)):
        assert done.returncode == 2 and "take PyPI/all.zip of osv.dev" in done.stderr and done.stderr.count("\n") == 1
