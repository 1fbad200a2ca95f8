"""Holds the locked packages against a file of published advisories, where no advisory service can be asked.

    python tools/audit.py all.zip

The file is what the OSV database exports for PyPI, https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip: one
JSON record an advisory, in the schema https://ossf.github.io/osv-schema. It holds PyPI's own advisories and GitHub's.
"""

import argparse
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[1]
LARGEST = 16 << 20  # bytes of a record: the longest are some 100 kB


class Failure(Exception):
    """Files that nothing can be learnt from."""


def locked_packages(root: Path = ROOT) -> list[tuple[str, Version]]:
    """Return name and version of every package of requirements.lock, and torch's, which pyproject.toml alone has."""
    lines = (root / "requirements.lock").read_text(encoding="utf-8")
    torch = re.search(r'"(torch==[^"]+)"', (root / "pyproject.toml").read_text(encoding="utf-8"))
    pins = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", f"{lines}\n{torch[1] if torch else ''}", re.MULTILINE)
    return sorted({(canonicalize_name(name), Version(version)) for name, version in pins})


def advisories(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of an export that were not withdrawn."""
    with zipfile.ZipFile(path) as export:
        for member in export.infolist():
            if member.filename.endswith(".json"):
                if member.file_size > LARGEST:
                    raise Failure(
                        f"{path}: {member.filename} has {member.file_size} bytes; an advisory has at most {LARGEST}"
                    )
                record = json.loads(export.read(member))
                if not record.get("withdrawn"):
                    yield record


def is_affected(version: Version, affected: dict[str, Any]) -> bool:
    """Tell whether a version is one that an advisory names, or lies in a range of it (OSV schema, "Evaluation")."""
    return str(version) in affected.get("versions", ()) or any(
        _in_range(version, span["events"]) for span in affected.get("ranges", ()) if span["type"] == "ECOSYSTEM"
    )


def _in_range(version: Version, events: list[dict[str, str]]) -> bool:
    inside = False
    for kind, bound in sorted(((kind, bound) for event in events for kind, bound in event.items()), key=_order):
        if kind == "introduced" and (bound == "0" or version >= Version(bound)):
            inside = True
        elif (kind == "fixed" and version >= Version(bound)) or (kind == "last_affected" and version > Version(bound)):
            inside = False
    return inside


def _order(event: tuple[str, str]) -> tuple[Version, int]:
    kind, bound = event
    return Version(bound), kind == "introduced"


def audit(path: Path, root: Path = ROOT) -> tuple[list[str], int, str]:
    """Return a line for every locked package that an advisory affects, the number of advisories, and the newest's day.

    Raises
    ------
    Failure
        If the file is none of advisories for PyPI.
    """
    packages: dict[str, list[Version]] = {}
    for name, version in locked_packages(root):
        packages.setdefault(name, []).append(version)
    lines, count, newest = [], 0, ""
    try:
        for record in advisories(path):
            count, newest = count + 1, max(newest, record.get("modified", "")[:10])
            for affected in record.get("affected", ()):
                package = affected.get("package", {})
                if package.get("ecosystem") == "PyPI":
                    for version in packages.get(canonicalize_name(package["name"]), ()):
                        if is_affected(version, affected):
                            lines.append(
                                f"{package['name']} {version}: {record['id']} {record.get('summary', '')}".strip()
                            )
    except (zipfile.BadZipFile, OSError, KeyError, TypeError, AttributeError, ValueError, InvalidVersion) as error:
        raise Failure(f"{path} is no export of advisories ({error}); take PyPI/all.zip of osv.dev") from None
    if not count:
        raise Failure(f"{path} has no advisories; take PyPI/all.zip of osv.dev")
    return sorted(set(lines)), count, newest


def main() -> int:
    """Run the command line: exit code 1 where a locked package has an advisory, 2 where the file says nothing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("advisories", type=Path, help="all.zip of osv.dev, for PyPI")
    try:
        lines, count, newest = audit(parser.parse_args().advisories)
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 2
    print("\n".join([*lines, f"{len(lines)} advisories for locked packages, of {count}, the newest of {newest}"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
