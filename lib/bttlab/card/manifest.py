"""overlays/manifest.json: the prebuilt overlays, their content, and the digests by which they are trusted."""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from bttlab.card.kernel import OverlayError
from bttlab.util.errors import BttlabError
from bttlab.util.files import write_file
from bttlab.util.locks import changing
from bttlab.util.places import ROOT
from bttlab.util.reading import MOST_OF_SETTINGS, parse_json, read_bytes
from bttlab.util.settings import from_values, settings

MANIFEST = "manifest.json"


Text = Annotated[str, Field(pattern=r"^[^\p{C}]*$")]  # printable
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@settings(OverlayError)
class OverlayEntry:
    """An overlay of the manifest; OverlayError if a field is invalid."""

    # name for `load_overlay`; an hw and an emulation overlay may have the same name
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    # path of the .xclbin in the manifest's folder
    file: Annotated[str, Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)*\.xclbin$")]
    kind: Literal["hw", "emulation"]
    platform: Text  # the shell it is linked for
    sha256: Digest  # of the file
    sources: Digest  # of the sources and flags it was built from
    kernels: tuple[Text, ...]
    images: tuple[Text, ...] = ()
    machine: dict[str, Any] | None = None  # version and widths of the training processor, from `Machine.to_dict`
    clock_mhz: Annotated[int, Field(gt=0, lt=1000)] | None = None  # kernel clock that an hw overlay was built for
    # UUIDs of the shell interface that an hw overlay needs
    interfaces: tuple[Annotated[str, Field(pattern="^[A-Za-z0-9]*$")], ...] = ()


def overlays_folder() -> Path:
    """Return the folder of the prebuilt overlays: $BTTLAB_OVERLAYS, else overlays/ of the checkout."""
    return Path(os.environ.get("BTTLAB_OVERLAYS") or ROOT / "overlays")


def read_manifest(folder: Path) -> tuple[OverlayEntry, ...]:
    """Return the overlays that a folder's manifest lists; none without a manifest, OverlayError if it is invalid."""
    path = Path(folder) / MANIFEST
    try:
        return tuple(from_values(list[OverlayEntry], parse_json(read_bytes(path, MOST_OF_SETTINGS))["overlays"]))
    except FileNotFoundError:
        return ()
    except (OSError, BttlabError, ValueError, TypeError, KeyError) as error:
        raise OverlayError(f"{path} is not a valid manifest ({error}); rebuild it with: make overlays") from None


def write_manifest(folder: Path, entries: Iterable[OverlayEntry]) -> None:
    rows = [asdict(entry) for entry in sorted(entries, key=lambda entry: (entry.name, entry.kind))]
    for row in rows:
        if row["kind"] == "emulation":
            del row["clock_mhz"], row["interfaces"]
    write_file(Path(folder) / MANIFEST, json.dumps({"overlays": rows}, indent=1) + "\n")


def add_entry(folder: Path, entry: OverlayEntry) -> None:
    """Add an overlay to a folder's manifest in place of that of the same file; other processes may do so, too."""
    with changing(folder):
        write_manifest(folder, [*(old for old in read_manifest(folder) if old.file != entry.file), entry])


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_file(path: str | Path) -> bytes:
    """Return an overlay's bytes; OverlayError if it cannot be read."""
    try:
        return read_bytes(path)
    except OSError as error:
        raise OverlayError(f"cannot read {path}: {error.strerror}") from None
