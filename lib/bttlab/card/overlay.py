"""Finding an overlay and a card for it."""

import functools
import logging
import os
from pathlib import Path

import pynq

from bttlab.card.card_lock import CardLock, card_name
from bttlab.card.emulation import EmulatedU50
from bttlab.card.kernel import TRAINER_KERNEL, OverlayError
from bttlab.card.manifest import OverlayEntry, digest, overlays_folder, read_file, read_manifest
from bttlab.card.slices import line_for, overlay_key
from bttlab.card.xclbin import read_container

logger = logging.getLogger("bttlab.card")


def load_overlay(
    name_or_path: str | Path, device: str | int | pynq.Device = "auto", trust: bool = False, wait: float = 0.0
) -> pynq.Overlay:
    """Load an overlay on a card: a real one if there is one and an overlay for it, else the emulated one.

    Which card it is stands in the log "bttlab.card" and in the overlay's `device.name`.

    Parameters
    ----------
    name_or_path : str or path
        A name from the manifest of `overlays_folder()`, or the path of an .xclbin.
    device : "auto", "emulated", int or pynq.Device
        Where to load it; an integer is an index into `pynq.Device.devices`.
    trust : bool
        Load an emulation overlay as it is, whatever the manifest says: it holds native code, which runs with your
        rights.
    wait : float
        Seconds to wait at most for a real card that another process holds. This process keeps it to its end, or to
        `release_card`; emulated cards are each process's own. For a shared card (docs/hosts.md) nobody waits here.

    Returns
    -------
    pynq.Overlay

    Raises
    ------
    OverlayError
        If there is no such overlay or card, the overlay is not for this card, or its file is not the manifest's and
        not trusted.
    CardBusyError
        If another process holds the card all the while.
    """
    candidates = [_choose_device(device)] if device not in ("auto", "emulated") else list(pynq.Device.devices)
    if device == "emulated":
        candidates = [card for card in candidates if isinstance(card, EmulatedU50)]
    files = _from_path(Path(name_or_path)) if _is_path(name_or_path) else _from_manifest(str(name_or_path))
    for card in candidates:
        path = files.get((_kind(card), _platform(card)))
        if path is not None:
            if not isinstance(card, EmulatedU50):  # which says so itself
                logger.info("%s on %s", path, card.name)
                return _on_real_card(card, path, str(name_or_path), wait)
            if trust:
                EmulatedU50.trust(path)
            return pynq.Overlay(str(path), device=card)
    built = ", ".join(f"{kind} on {platform}" for kind, platform in files)
    cards = ", ".join(card.name for card in candidates) or "none"
    raise OverlayError(
        f"overlay {name_or_path} is built for {built}, but the cards to choose from are: {cards}; "
        "use device='emulated', or build it for the card from hls_src"
    )


def _on_real_card(card: pynq.Device, path: Path, name: str, wait: float) -> pynq.Overlay:
    """Load an overlay on a card that is this process's; or, if the card is shared, when it is its turn."""
    line = line_for(card)
    if line is None:
        _lock_of(card).acquire(name, wait)
        return pynq.Overlay(str(path), device=card)
    kernels = [entry["type"] for entry in card.get_bitfile_metadata(str(path)).ip_dict.values()]
    if kernels != [TRAINER_KERNEL.vlnv]:
        raise OverlayError(
            f"overlay {name} has other kernels than the training processor, and {card.name} is shared, slice by slice, "
            "by those who train on that; ask an administrator for a card of your own"
        )
    key = overlay_key(path)
    line.take(key)
    try:
        loaded = pynq.Overlay(str(path), device=card)
        line.loaded(key)
        return loaded
    finally:
        line.leave()


def release_card(card: pynq.Device) -> None:
    """Let other processes have a real card; its overlay is not to be used any more."""
    _lock_of(card).release()


def _lock_of(card: pynq.Device) -> CardLock:
    """The lock of a real card."""
    return _process_lock(card_name(card))


@functools.cache
def _process_lock(card: str) -> CardLock:
    """This process's one lock of a card, whichever of PYNQ's objects stand for it."""
    return CardLock(card)


def choose_active_device() -> None:
    """Make the emulated card PYNQ's active device if no real card has an overlay here and none was chosen before.

    So a plain `pynq.Overlay("overlays/trainer.xclbin")` works as it is, also beside a card without hw overlays.
    """
    if "_active_device" in vars(pynq.Device):
        return
    emulated = [card for card in pynq.Device.devices if isinstance(card, EmulatedU50)]
    cards = {_platform(card) for card in pynq.Device.devices if not isinstance(card, EmulatedU50)}
    try:
        built = {entry.platform for entry in read_manifest(overlays_folder()) if entry.kind == "hw"}
    except OverlayError:
        built = set()  # said where an overlay is loaded
    if emulated and not cards & built:
        pynq.Device.active_device = emulated[0]


def _is_path(name_or_path: str | Path) -> bool:
    text = os.fspath(name_or_path)
    return isinstance(name_or_path, Path) or text.endswith(".xclbin") or os.sep in text


def _from_path(path: Path) -> dict[tuple[str, str], Path]:
    """(kind, platform) -> path, of the one kind and platform that the file is for."""
    try:
        container = read_container(read_file(path))
    except OverlayError as error:
        raise OverlayError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    return {("emulation" if container.mode == "sw_emu" else container.mode, container.platform): path}


def _from_manifest(name: str) -> dict[tuple[str, str], Path]:
    """(kind, platform) -> path, of the overlays with a name; an hw file is known to be the manifest's.

    Files for emulation are checked by the card, where they are loaded.
    """
    folder = overlays_folder()
    entries = read_manifest(folder)
    named = [entry for entry in entries if entry.name == name]
    if not named:
        names = ", ".join(sorted({entry.name for entry in entries})) or "none"
        raise OverlayError(
            f"no overlay {name!r} in {folder}; there are: {names}; give one of them, or a path, or: make overlays"
        )
    return {(entry.kind, entry.platform): _listed_file(folder, entry) for entry in named}


def _listed_file(folder: Path, entry: OverlayEntry) -> Path:
    path = folder / entry.file
    if entry.kind == "hw" and digest(read_file(path)) != entry.sha256:
        raise OverlayError(
            f"{path} is not the file that manifest.json lists; fetch it again, or rebuild it with: make overlays"
        )
    return path


def _choose_device(device: str | int | pynq.Device) -> pynq.Device:
    if isinstance(device, pynq.Device):
        return device
    devices = pynq.Device.devices
    try:
        index = int(device)
        if not 0 <= index < len(devices):
            raise ValueError
    except (TypeError, ValueError):
        names = ", ".join(f"{number} {card.name}" for number, card in enumerate(devices)) or "none"
        raise OverlayError(f"no card {device!r}; choose auto, emulated, or the number of one of: {names}") from None
    return devices[index]


def _kind(card: pynq.Device) -> str:
    return "emulation" if isinstance(card, EmulatedU50) else "hw"


def _platform(card: pynq.Device) -> str:
    return card.platform if isinstance(card, EmulatedU50) else card.name
