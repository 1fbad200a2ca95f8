"""Makes the environment of `make lab` and `make test`, or a wheelhouse for a machine without a network.

    python tools/environment.py install FOLDER [--wheelhouse DIR] [--keep] [--uv PROGRAM]
    python tools/environment.py wheelhouse DIR

Packages are those of requirements.lock, each of which must have a hash that is there; torch comes by its version alone,
since the index decides which build it is, for the CPU or for CUDA. An environment is either whole or not there: one
that was interrupted is made again, with what pip had already fetched.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK, PROJECT = ROOT / "requirements.lock", ROOT / "pyproject.toml"
PACKAGES = (
    ROOT,
    *sorted(project.parent for project in ROOT.glob("lib/*/pyproject.toml")),
)  # installed as they lie here
MARKER = ".installed"  # in an environment that is whole: with what it was made
NOTE = "wheelhouse.json"  # in a wheelhouse: for what it was made
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
BUILDERS = ("setuptools", "setuptools-scm", "packaging", "typing-extensions", "tomli")
PROXY = "a proxy (HTTPS_PROXY, PIP_INDEX_URL) that answers with a web page"
FAILURES = {  # what pip says, and what that means; the first that fits
    r"No space left|Errno 28": "there is no room on the disk",
    r"DO NOT MATCH THE HASHES": f"a package is not that of requirements.lock: is there {PROXY}?",
    r"CERTIFICATE_VERIFY_FAILED|SSLError": "the index's certificate is not trusted here; a proxy's goes into PIP_CERT",
    r"Content-Type|BadZipFile|invalid wheel|not a zip": f"what answers is no package index: is there {PROXY}?",
    r"ConnectionError|ProxyError|Connection refused|name resolution|Timeout|timed out": "the package index does not "
    "answer (HTTPS_PROXY, PIP_INDEX_URL); where there is no network: make lab WHEELHOUSE=DIR",
    r"No matching distribution|Could not find a version": f"the index lacks a package, or there is {PROXY}",
}


def main() -> int:
    """Run the command line; the exit code is 2 where something is missing, said in one line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    install = commands.add_parser("install")
    install.add_argument("folder", type=Path)
    install.add_argument("--wheelhouse", type=Path, help="take every package from here, and none from a network")
    install.add_argument("--keep", action="store_true", help="an environment of another Python will do")
    install.add_argument(
        "--uv", help="install with this program, uv, instead of pip: faster, but it knows no PIP_ variables"
    )
    commands.add_parser("wheelhouse").add_argument("folder", type=Path)
    options = parser.parse_args()
    try:
        if options.command == "install":
            install_environment(options.folder, options.wheelhouse, options.keep, options.uv)
        else:
            fill_wheelhouse(options.folder)
    except (Failure, OSError) as failure:
        _say(str(failure))
        return 2
    except KeyboardInterrupt:
        _say("interrupted: the next time it starts again, with what has been fetched")
        return 130
    return 0


class Failure(Exception):
    """What went wrong, in one line."""


def install_environment(folder: Path, wheelhouse: Path | None, keep: bool, uv: str | None = None) -> None:
    """Bring an environment up to date; make it again if it is another Python's, or is not whole.

    Raises
    ------
    Failure
        Nothing is left of a new environment that could not be made.
    """
    marker = folder / MARKER
    starts = marker.is_file() and (folder / "bin" / "python").exists()  # its Python may have been removed
    suits = starts and (keep or _python_of(folder) == VERSION)
    if suits and _made(marker).get("pins") == _pins():
        return
    if suits and keep and _python_of(folder) != VERSION:  # brought up to date by the Python that it is of
        command = [str(folder / "bin" / "python"), __file__, *sys.argv[1:]]
        os.execv(command[0], command)
    if wheelhouse is not None:
        _check_wheelhouse(wheelhouse)
        os.environ.update(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheelhouse.resolve()), PIP_CONFIG_FILE=os.devnull)
    if not suits:
        _clear(folder)
    _say(f"installs {len(_packages()) + 1} packages for Python {VERSION} into {folder}: minutes, the first time")
    try:
        if suits:
            marker.unlink()
        else:
            venv.create(folder, with_pip=True, symlinks=True)
        _install(folder / "bin" / "python", uv)
        marker.write_text(json.dumps({"pins": _pins()}), encoding="utf-8")
    except (Failure, OSError, subprocess.CalledProcessError) as error:
        if not suits:
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, Failure):
            raise
        raise Failure(_explain(f"{error} {getattr(error, 'output', '')}")) from None


def _install(python: Path, uv: str | None) -> None:
    alone = ("--no-deps", "--no-build-isolation")
    with tempfile.TemporaryDirectory() as scratch:
        for lock in (_first(scratch), LOCK):
            _pip(python, "install", *alone, "--require-hashes", "--requirement", str(lock), uv=uv)
    _pip(python, "install", _torch(), uv=uv)
    _pip(python, "install", *alone, *(f"--editable={package}" for package in PACKAGES), uv=uv)


def _first(scratch: str) -> Path:
    """Write the part of the lock with which packages are built that have no wheel."""
    first, packages = Path(scratch) / "first.lock", _packages()
    first.write_text("\n".join(packages[name] for name in BUILDERS if name in packages), encoding="utf-8")
    return first


def fill_wheelhouse(folder: Path) -> None:
    """Fetch what `install_environment` takes, for this Python, into a folder.

    Raises
    ------
    Failure
        If a package cannot be had.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / NOTE).is_file():
        raise Failure(f"{folder} has other things in it: a wheelhouse takes a folder of its own")
    (folder / NOTE).unlink(missing_ok=True)
    _say(f"fetches {len(_packages()) + 1} packages for Python {VERSION} into {folder}")
    fetch = ("download", "--dest", str(folder), "--find-links", str(folder))
    with tempfile.TemporaryDirectory() as scratch:
        python = Path(scratch) / "bin" / "python"
        venv.create(scratch, with_pip=True, symlinks=True)
        _pip(python, "install", "--require-hashes", "--no-deps", "--requirement", str(_first(scratch)))
        _pip(python, *fetch, "--require-hashes", "--no-deps", "--no-build-isolation", "--requirement", str(LOCK))
        versions = Path(scratch) / "versions"
        versions.write_text("\n".join(block.split(" \\")[0] for block in _packages().values()), encoding="utf-8")
        _pip(python, *fetch, "--constraint", str(versions), _torch())
    (folder / NOTE).write_text(json.dumps({"python": VERSION, "pins": _pins()}), encoding="utf-8")


def _check_wheelhouse(folder: Path) -> None:
    made = _made(folder / NOTE)
    if not made:
        raise Failure(
            f"{folder} is no wheelhouse, or one whose making was interrupted: make wheelhouse WHEELHOUSE={folder}"
        )
    if made["python"] != VERSION:
        raise Failure(f"{folder} is for Python {made['python']}, not {VERSION}: make … PYTHON=python{made['python']}")
    if made["pins"] != _pins():
        raise Failure(f"{folder} is for another version of BTT Lab: make wheelhouse WHEELHOUSE={folder}")


def _clear(folder: Path) -> None:
    """Remove an environment, and nothing else."""
    if folder.is_symlink() or (folder.exists() and not (folder / "pyvenv.cfg").is_file() and any(folder.iterdir())):
        raise Failure(f"{folder} is no environment of Python's: move it away")
    if folder.exists():
        _say(f"makes {folder} again")
        shutil.rmtree(folder)


def _made(note: Path) -> dict[str, str]:
    try:
        return json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _python_of(folder: Path) -> str:
    match = re.search(r"^version *= *(\d+\.\d+)", (folder / "pyvenv.cfg").read_text(encoding="utf-8"), re.MULTILINE)
    return match[1] if match else ""


def _pins() -> str:
    """Return a digest of what is installed: the lock, and each pyproject.toml but for the settings of tools."""
    projects = [(package / "pyproject.toml").read_text(encoding="utf-8") for package in PACKAGES]
    project = "".join(text.partition("\n[tool.")[0] for text in projects)
    return hashlib.sha256(LOCK.read_bytes() + _torch().encode() + project.encode()).hexdigest()


def _packages() -> dict[str, str]:
    """Return the lock's packages for this Python, each with its hashes, by their names."""
    blocks = re.findall(r"^([\w.-]+)(==.*(?:\n .*)*)", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: name + rest for name, rest in blocks if _is_for_this_python(rest)}


def _is_for_this_python(requirement: str) -> bool:
    marker = re.search(r"; python_full_version (<|>=|==) '3\.(\d+)", requirement)
    if marker is None:
        return True
    minor, bound = sys.version_info[1], int(marker[2])
    return {"<": minor < bound, ">=": minor >= bound, "==": minor == bound}[marker[1]]


def _torch() -> str:
    return re.search(r'"(torch==[^"]+)"', PROJECT.read_text(encoding="utf-8"))[1]


def _pip(python: Path, command: str, *arguments: str, uv: str | None = None) -> None:
    if uv is None:
        line = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", command, "--quiet", *arguments]
    else:
        line = [uv, "pip", command, "--no-config", "--quiet", "--python", str(python), *arguments]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode:
        raise Failure(_explain(done.stdout))


def _explain(output: str) -> str:
    """Return in one line why pip failed: what we know the meaning of, and pip's own last error."""
    errors = [line.strip() for line in output.splitlines() if "error" in line.lower()] or output.split("\n")[-1:]
    for pattern, meaning in FAILURES.items():
        if re.search(pattern, output):
            place = f" ({_room()})" if "no room" in meaning else f" ({errors[-1][:300]})"
            return f"the environment could not be made: {meaning}{place}"
    return f"the environment could not be made: {' '.join(errors[-3:])[:600]}"


def _room() -> str:
    places: Iterable[Path] = (ROOT, Path(tempfile.gettempdir()))
    free = ", ".join(f"{shutil.disk_usage(place).free / 1e9:.1f} GB free in {place}" for place in places)
    return f"{free}; it takes 3 GB with torch for the CPU, 8 GB with torch for CUDA"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
