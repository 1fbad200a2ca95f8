"""overlays/manifest.json: the prebuilt overlays, their content, and the digests by which they are trusted."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from bttlab.card.kernel import OverlayError
from bttlab.util.files import write_file
from bttlab.util.locks import changing
from bttlab.util.places import ROOT

MANIFEST = "manifest.json"
KINDS = ("hw", "emulation")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class OverlayEntry:
    """An overlay of the manifest; OverlayError if a field is invalid."""

    name: str  # name for `load_overlay`; an hw and an emulation overlay may have the same name
    file: str  # path of the .xclbin, relative to the manifest's folder
    kind: str
    platform: str  # the shell it is linked for
    # sha256, sources: digests of the file, and of the sources and flags it was built from
    sha256: str
    sources: str
    kernels: tuple[str, ...]
    images: tuple[str, ...] = ()
    machine: Mapping[str, Any] | None = None  # version and widths of the training processor, from `Machine.to_dict`
    clock_mhz: int | None = None  # kernel clock that an hw overlay was built for
    interfaces: tuple[str, ...] = ()  # UUIDs of the shell interface that an hw overlay needs

    def __post_init__(self) -> None:
        for field in ("kernels", "images", "interfaces"):
            values = getattr(self, field)
            if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
                raise OverlayError(f"overlay {self.name!r}: {field} is not a list of names")
            object.__setattr__(self, field, tuple(values))
        rules = {
            "name": isinstance(self.name, str) and _NAME.fullmatch(self.name),
            "file": isinstance(self.file, str) and self.file.endswith(".xclbin") and _is_inside(self.file),
            "kind": self.kind in KINDS,
            "platform": isinstance(self.platform, str) and self.platform.isprintable(),
            "kernels": all(map(str.isprintable, self.kernels)),
            "images": all(map(str.isprintable, self.images)),
            "sha256": isinstance(self.sha256, str) and _DIGEST.fullmatch(self.sha256),
            "sources": isinstance(self.sources, str) and _DIGEST.fullmatch(self.sources),
            "clock_mhz": self.clock_mhz is None or (type(self.clock_mhz) is int and 0 < self.clock_mhz < 1000),
            "interfaces": all(map(str.isalnum, self.interfaces)),
            "machine": self.machine is None or isinstance(self.machine, dict),
        }
        for field, holds in rules.items():
            if not holds:
                raise OverlayError(f"overlay {self.name!r}: {field} {getattr(self, field)!r} is not allowed")


def overlays_folder() -> Path:
    """Return the folder of the prebuilt overlays: $BTTLAB_OVERLAYS, else overlays/ of the checkout."""
    return Path(os.environ.get("BTTLAB_OVERLAYS") or ROOT / "overlays")


def read_manifest(folder: Path) -> tuple[OverlayEntry, ...]:
    """Return the overlays that a folder's manifest lists; none without a manifest, OverlayError if it is invalid."""
    path = Path(folder) / MANIFEST
    try:
        values = json.loads(path.read_bytes())
        if values.keys() - {"sha256"} != {"overlays"}:  # versions before 0.2 wrote a checksum
            raise OverlayError(f"it has the keys {', '.join(values)}, not overlays alone")
        entries = tuple(OverlayEntry(**row) for row in values["overlays"])
    except FileNotFoundError:
        return ()
    except (OSError, OverlayError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise OverlayError(f"{path} is not a valid manifest ({error}); rebuild it with: make overlays") from None
    keys = [(entry.name, entry.kind, entry.platform) for entry in entries]
    if len(set(keys)) < len(keys):
        raise OverlayError(f"{path} lists an overlay twice; rebuild it with: make overlays")
    return entries


def write_manifest(folder: Path, entries: Iterable[OverlayEntry]) -> None:
    rows = [asdict(entry) for entry in sorted(entries, key=lambda entry: (entry.name, entry.kind))]
    for row in rows:
        if row["kind"] == "emulation":
            del row["clock_mhz"], row["interfaces"]
    write_file(Path(folder) / MANIFEST, json.dumps({"overlays": rows}, indent=1) + "\n")


def add_entries(
    folder: Path, entries: Iterable[OverlayEntry], replaces: Callable[[OverlayEntry, OverlayEntry], bool]
) -> None:
    """Add overlays to a folder's manifest; safe while other processes add overlays.

    `replaces(new, old)` decides which entries are replaced.
    """
    entries = list(entries)
    with changing(folder):
        kept = [old for old in read_manifest(folder) if not any(replaces(new, old) for new in entries)]
        write_manifest(folder, kept + entries)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_file(path: str | Path) -> bytes:
    """Return an overlay's bytes; OverlayError if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OverlayError(f"cannot read {path}: {error.strerror}") from None


def _is_inside(file: str) -> bool:
    path = PurePosixPath(file)
    return not path.is_absolute() and ".." not in path.parts and file.isprintable()
