"""Find an overlay and a card for it, and load it."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pynq

from bttlab.card.card_lock import lock_card
from bttlab.card.emulation import EmulatedU50
from bttlab.card.kernel import TRAINER_KERNEL, OverlayError
from bttlab.card.manifest import digest, overlays_folder, read_file, read_manifest
from bttlab.card.sharing import shared
from bttlab.card.shells import Card, shell_of, suits
from bttlab.card.waiting import card_errors, check_idle
from bttlab.card.xclbin import read_container
from bttlab.estimate.facts import card_of_platform

logger = logging.getLogger("bttlab.card")


@dataclass(frozen=True)
class OverlayFile:
    """An overlay's file, with the kind of card that it is for, and its shell by platform and UUIDs of the interface."""

    kind: str
    platform: str
    interfaces: tuple[str, ...]
    path: Path

    def suits(self, card: Card) -> bool:
        return self.kind == kind_for(card) and suits(card, self.platform, self.interfaces)


def load_overlay(
    name_or_path: str | Path,
    device: str | int | pynq.Device = "auto",
    trust: bool = False,
    wait: float = 0.0,
    require_card: bool = False,
) -> pynq.Overlay:
    """Load an overlay on a real card if there is an overlay for it, otherwise on the emulated card.

    If a real card is not used, a warning in the log "bttlab.card" (on stderr) names it. This process keeps a card until
    it ends or calls `release_card`.

    Parameters
    ----------
    name_or_path : str or path
        A name in the manifest of `overlays_folder()`, or the path of an .xclbin.
    device : "auto", "emulated", pynq.Device or int
        A number is an index in `pynq.Device.devices`.
    trust : bool
        Load an overlay even if the manifest does not list it. An emulation overlay contains native code, which runs
        with your rights; an hw overlay programs the card.
    wait : float
        Seconds to wait at most for a real card that another process has. It does not apply to a shared card
        (docs/hosts.md).
    require_card : bool
        Refuse an emulated card.

    Returns
    -------
    pynq.Overlay
        The overlay, with a driver for each of its kernels.

    Raises
    ------
    OverlayError
        If there is no such overlay or card, the overlay is not for this card, its file is neither listed in the
        manifest nor trusted, or XRT refuses it.
    CardBusyError
        If another process still has the card after `wait` seconds.
    """
    candidates = [_choose_device(device)] if device not in ("auto", "emulated") else list(pynq.Device.devices)
    if device == "emulated":
        candidates = [card for card in candidates if isinstance(card, EmulatedU50)]
    if require_card:
        candidates = [card for card in candidates if not isinstance(card, EmulatedU50)]
    files = _from_path(Path(name_or_path)) if _is_path(name_or_path) else _from_manifest(str(name_or_path))
    for number, card in enumerate(candidates):
        file = next((file for file in files if file.suits(card)), None)
        if file is None:
            continue
        if trust:
            EmulatedU50.trust(file.path)
        if isinstance(card, EmulatedU50):
            if number and not isinstance(candidates[0], EmulatedU50):
                unused = ", ".join(each.name for each in candidates[:number] if not isinstance(each, EmulatedU50))
                logger.warning("WARNING: %s is NOT used: %s; using %s", unused, mismatch(files), card.name)
            return pynq.Overlay(str(file.path), device=card)
        logger.info("%s on %s", file.path, card.name)
        EmulatedU50.check_trusted(file.path, digest(read_file(file.path)), "programs the card")
        with card_errors(card):
            check_idle(card)
            if getattr(card, "contexts", None):  # with an open context, pynq 3.0.1 fails before its error message
                card.free_bitstream()
            loaded = _on_real_card(card, file.path, str(name_or_path), wait)
            if hasattr(card, "_info"):
                card._info = card.device_info  # pynq does not update the clocks
            return loaded
    cards = ", ".join(card.name for card in candidates) or "none"
    hint = "leave out --require-card" if require_card else "use device='emulated'"
    raise OverlayError(
        f"overlay {name_or_path}: {mismatch(files)}, but the cards to choose from are: {cards}; "
        f"{hint}, or build it for the card from hls_src (docs/vitis.md)"
    )


def cards_for(name_or_path: str | Path, emulated: bool) -> list[Card]:
    """Return the real or the emulated cards that an overlay is for, in PYNQ's order; errors as for `load_overlay`."""
    files = _from_path(Path(name_or_path)) if _is_path(name_or_path) else _from_manifest(str(name_or_path))
    cards = [card for card in pynq.Device.devices if isinstance(card, EmulatedU50) == emulated]
    return [card for card in cards if any(file.suits(card) for file in files)]


def mismatch(files: Sequence[OverlayFile]) -> str:
    """Return a description of the cards that an overlay's files are for."""
    hardware = [file for file in files if file.kind == "hw"]
    if not hardware:
        built = ", ".join(f"{file.kind} on {_card(file)}platform {file.platform}" for file in files)
        return f"the overlay is built for {built}, none is for a card (hw)"
    shells = ", ".join(f"{_card(file)}shell {shell_of(file.platform)} (platform {file.platform})" for file in hardware)
    return f"the hw overlay is for {shells}"


def _card(file: OverlayFile) -> str:
    card = card_of_platform(file.platform)
    return f"the {card}, " if card else ""


def unused_cards(card: Card) -> list[str]:
    """Return the names of the real cards if `card`, the one in use, is emulated; none otherwise."""
    if not isinstance(card, EmulatedU50):
        return []
    return [other.name for other in pynq.Device.devices if not isinstance(other, EmulatedU50)]


def _on_real_card(card: Card, path: Path, name: str, wait: float) -> pynq.Overlay:
    """Lock a card and load an overlay, or load it on a shared card in a time slice."""
    share = shared(card)
    if share is None:
        if kind_for(card) == "hw":
            lock_card(card, wait)
        return pynq.Overlay(str(path), device=card)
    kernels = [entry["type"] for entry in card.get_bitfile_metadata(str(path)).ip_dict.values()]
    if kernels != [TRAINER_KERNEL.vlnv]:
        raise OverlayError(
            f"overlay {name} has other kernels than the training processor's, and {card.name} is shared in time "
            "slices, for the training processor only; ask an administrator for a card that is not shared"
        )
    share.acquire()
    try:
        share.report("loading")
        return pynq.Overlay(str(path), device=card)
    finally:
        share.release()


def choose_active_device() -> None:
    """Make the emulated card PYNQ's active device if there is no hw overlay for a real card and none was chosen.

    A plain `pynq.Overlay("overlays/trainer.xclbin")` then works, also on a host with a card but no hw overlay.
    """
    if "_active_device" in vars(pynq.Device):
        return
    emulated = [card for card in pynq.Device.devices if isinstance(card, EmulatedU50)]
    try:
        built = [entry for entry in read_manifest(overlays_folder()) if entry.kind == "hw"]
    except OverlayError:
        built = []  # `load_overlay` raises it
    real = [card for card in pynq.Device.devices if not isinstance(card, EmulatedU50)]
    if emulated and not any(suits(card, entry.platform, entry.interfaces) for card in real for entry in built):
        pynq.Device.active_device = emulated[0]


def _is_path(name_or_path: str | Path) -> bool:
    text = os.fspath(name_or_path)
    return isinstance(name_or_path, Path) or text.endswith(".xclbin") or os.sep in text


def _from_path(path: Path) -> list[OverlayFile]:
    try:
        container = read_container(read_file(path))
    except OverlayError as error:
        raise OverlayError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    kind = "emulation" if container.mode == "sw_emu" else container.mode
    return [OverlayFile(kind, container.platform, container.interfaces, path)]


def _from_manifest(name: str) -> list[OverlayFile]:
    """Return the overlays with a name, after a check of the digests of hw files.

    The emulated card checks the files of emulation overlays when it loads them.
    """
    folder = overlays_folder()
    entries = read_manifest(folder)
    named = [entry for entry in entries if entry.name == name]
    if not named:
        names = ", ".join(sorted({entry.name for entry in entries})) or "none"
        raise OverlayError(
            f"no overlay {name!r} in {folder}; there are: {names}; give one of them, or a path, or: make overlays"
        )
    for entry in named:
        path = folder / entry.file
        if entry.kind == "hw" and digest(read_file(path)) != entry.sha256:
            raise OverlayError(
                f"{path} is not the file that manifest.json lists; fetch it again, or rebuild it with: make overlays"
            )
    return [OverlayFile(entry.kind, entry.platform, entry.interfaces, folder / entry.file) for entry in named]


def _choose_device(device: str | int | pynq.Device) -> Card:
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


def kind_for(card: Card) -> str:
    if isinstance(card, EmulatedU50):
        return "emulation"
    return "hw_emu" if os.environ.get("XCL_EMULATION_MODE") == "hw_emu" else "hw"
