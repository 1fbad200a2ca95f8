"""Ask for known vulnerabilities of every locked package, of Python and of Node: python tools/audit.py PIP_AUDIT

Exit codes: 0 none is known; 1 some are; 3 *unknown*: of a package, or of all of them, nothing could be asked.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ("requirements.lock", "requirements-torch.lock"), ("requirements-pynq4.lock",)  # of environments that differ
PROXY = ROOT / "classroom" / "proxy"
UNKNOWN = 3


def python_findings(output: str) -> tuple[list[str], list[str]]:
    """Return a line for each vulnerability in pip-audit's JSON, and the packages of which nothing is known."""
    found, unknown = [], []
    for package in json.loads(output)["dependencies"]:
        name = f"{package['name']} {package.get('version', '')}".strip()
        if "skip_reason" in package:
            unknown.append(f"{name} ({package['skip_reason']})")
        for each in package.get("vulns", ()):
            fixed = ", ".join(each["fix_versions"]) or "none"
            found.append(f"{name}: {each['id']}; fixed in {fixed}")
    return found, unknown


def node_findings(output: str) -> tuple[list[str], list[str]]:
    """Return a line for each vulnerability in the JSON of `npm audit`, and why nothing is known, if so."""
    report = json.loads(output)
    if "vulnerabilities" not in report:
        reason = report.get("error", {}).get("summary") or report.get("message") or "no answer"
        return [], [f"packages of classroom/proxy ({reason})"]
    rows = report["vulnerabilities"].items()
    return [f"{name} {row['range']}: {row['severity']}" for name, row in rows], []


def audited(command: Sequence[str], folder: Path, findings, what: str) -> tuple[list[str], list[str]]:
    """Run a command that prints JSON; return its findings, or that nothing is known of what it was asked about."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        return findings(done.stdout)
    except (OSError, ValueError, KeyError) as error:
        said = done.stderr.strip().splitlines()[-1:] if not isinstance(error, OSError) else [str(error)]
        return [], [f"{what} ({''.join(said) or 'no answer'})"]


def main(pip_audit: str) -> int:
    found, unknown = [], []
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            (["npm", "audit", "--json", "--package-lock-only"], PROXY, node_findings, "packages of classroom/proxy")
        ]
        for number, names in enumerate(LOCKS):
            locked = Path(folder) / f"requirements{number}.txt"
            parts = [[ROOT / "tools" / "locked", ROOT / name, "--but", "torch+cpu"] for name in names]
            locked.write_bytes(b"".join(subprocess.run(part, capture_output=True, check=True).stdout for part in parts))
            audit = [os.path.abspath(pip_audit), "--progress-spinner", "off", "--format", "json"]
            audit += ["--disable-pip", "--require-hashes", "--requirement", str(locked)]
            jobs.append((audit, ROOT, python_findings, "packages of Python"))
        for job in jobs:
            more_found, more_unknown = audited(*job)
            found += more_found
            unknown += more_unknown
    found, unknown = list(dict.fromkeys(found)), list(dict.fromkeys(unknown))
    for line in found:
        print(f"vulnerable: {line}")
    for line in unknown:
        print(f"unknown: {line}")
    print(
        f"{len(found)} known vulnerabilities, {len(unknown)} unknown: " + ("not clean" if found or unknown else "clean")
    )
    return 1 if found else UNKNOWN if unknown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
