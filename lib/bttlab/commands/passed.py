"""Remember that the self-check has passed, so that `make lab` trains again only where something has changed."""

import hashlib
from importlib import metadata
from pathlib import Path

FILE = "self-check"


def passed_before() -> bool:
    """Return whether the self-check has passed with these overlays and packages."""
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
    """Return what the self-check depends on: the overlays, this version, torch's and NumPy's."""
    from bttlab.card.manifest import MANIFEST, overlays_folder

    manifest = overlays_folder() / MANIFEST
    versions = [f"{name} {metadata.version(name)}" for name in ("bttlab", "torch", "numpy")]
    known = manifest.read_bytes() if manifest.exists() else b""
    return hashlib.sha256(known + "\n".join(versions).encode()).hexdigest()
