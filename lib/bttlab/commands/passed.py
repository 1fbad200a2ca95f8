"""Remembers that the self-check has passed, so that `make lab` trains again only where something has changed."""

import hashlib
import sysconfig
from importlib import metadata
from pathlib import Path

FILE = "self-check"
PROCESSOR = ("vendor_id", "model name", "stepping", "microcode", "flags")  # of /proc/cpuinfo


def passed_before() -> bool:
    """Return whether the self-check has passed with these overlays, this processor and these packages."""
    try:
        return _file().read_text() == _what_counts()
    except OSError:
        return False


def remember() -> None:
    """Remember that it has passed; where that cannot be kept it will run again."""
    try:
        _file().parent.mkdir(parents=True, exist_ok=True)
        _file().write_text(_what_counts())
    except OSError:
        pass


def _file() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("bttlab") / FILE


def _what_counts() -> str:
    from bttlab.card.manifest import MANIFEST, overlays_folder

    manifest = overlays_folder() / MANIFEST
    installed = metadata.distributions(path=[sysconfig.get_path("purelib")])  # sys.path grows: setuptools adds copies
    packages = sorted(f"{package.name} {package.version}" for package in installed)
    parts = [manifest.read_bytes() if manifest.exists() else b"", _processor().encode(), "\n".join(packages).encode()]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def _processor() -> str:
    first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    return "\n".join(line for line in first.splitlines() if line.partition("\t")[0].strip() in PROCESSOR)
