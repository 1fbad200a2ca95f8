"""What a device's name means: a trainer for a model, on a card, the emulated card, or in PyTorch."""

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from bttlab.errors import BttlabError
from bttlab.model import ModelConfig, ReferenceTrainer, Trainer


class DeviceError(BttlabError):
    """A device that there is not."""


@dataclass(frozen=True)
class OpenedTrainer:
    """A trainer on its device.

    Attributes
    ----------
    trainer : Trainer
    device : str
        What it trains on, in words.
    announcement : str
        The same, and why it was chosen.
    provenance : dict of str to str
        Digests of what it runs: "overlay.sha256" and "program.sha256"; of the training processor only.
    """

    trainer: Trainer
    device: str
    announcement: str
    provenance: dict[str, str] = field(default_factory=dict)


def open_trainer(
    config: ModelConfig,
    device: str,
    trust: bool = False,
    wait: float = 0.0,
    build: bool = False,
    overlay: str | None = None,
) -> OpenedTrainer:
    """Open what trains a model.

    Parameters
    ----------
    config : ModelConfig
    device : str
        auto, emulated, reference, or the number of one of `pynq.Device.devices`.
    trust, wait
        As for `bttlab.u50.load_overlay`.
    build : bool
        Whether to build an overlay for the emulated card if the model has none.
    overlay : {"trainer"}, optional
        The training processor, with the model's program; by default the overlay that is built for the model.

    Raises
    ------
    DeviceError
        If the device needs pynq, which is not installed, or is no card and an overlay is asked for.
    bttlab.card.program.errors.ProgramError
        If the training processor does not hold the model.
    bttlab.u50.OverlayError
        If there is no such card, or no overlay for the model.
    bttlab.u50.CardBusyError
        If another process holds the card.
    """
    if device == "reference":
        if overlay is not None:
            raise DeviceError(f"--overlay {overlay} is for a card: leave it out with --device reference")
        return _open_reference(config)
    try:
        import pynq  # noqa: F401 - what follows needs it

        from bttlab.u50 import load_overlay, overlay_for
    except ModuleNotFoundError as error:
        raise DeviceError(
            f"--device {device} needs {error.name}, which is not installed; install it with: pip install "
            "'bttlab[lab]', or use --device reference"
        ) from None
    if overlay is not None:
        return _open_processor(config, device, trust, wait)
    if build:
        from bttlab.train.overlays import built_overlay, has_overlay

        if not has_overlay(config):
            return open_built(built_overlay(config))
    name = overlay_for(config)
    loaded = load_overlay(name, device, trust, wait)
    return OpenedTrainer(loaded.train_transformer_1, *_words(loaded.device, device, name))


def _open_processor(config: ModelConfig, device: str, trust: bool, wait: float) -> OpenedTrainer:
    """Open the training processor with a model's program."""
    from bttlab import card
    from bttlab.card.opening import OVERLAY

    trainer = card.open_trainer(config, device, trust=trust, wait=wait)
    provenance = {"overlay.sha256": trainer.overlay_sha256, "program.sha256": trainer.program.sha256}
    return OpenedTrainer(trainer, *_words(trainer.device, device, OVERLAY), provenance)


def _words(card, device: str, overlay: str) -> tuple[str, str]:
    """A card with an overlay in words, and the same with why it was chosen."""
    import pynq

    from bttlab.u50 import EmulatedU50

    if not isinstance(card, EmulatedU50):
        words = f"{card.name} (card {pynq.Device.devices.index(card)}), overlay {overlay}"
        return words, words
    reason = ""
    if device == "auto":
        real = [other.name for other in pynq.Device.devices if not isinstance(other, EmulatedU50)]
        reason = f" (no hw overlay {overlay} for {', '.join(real)})" if real else " (no card found)"
    return f"the emulated U50, overlay {overlay}", f"the emulated U50{reason}, overlay {overlay}"


def open_built(overlay: bytes) -> OpenedTrainer:
    """Open the emulated card with an overlay that was built for a model.

    Parameters
    ----------
    overlay : bytes
        An .xclbin from `bttlab.train.overlays.built_overlay`, here or in a process that is trusted: it holds code.
    """
    from bttlab.u50 import load_overlay

    with TemporaryDirectory(prefix="bttlab-overlay-") as folder:
        path = Path(folder) / "train.xclbin"
        path.write_bytes(overlay)
        loaded = load_overlay(path, "emulated", trust=True)
    words = "the emulated U50, an overlay built for the model"
    return OpenedTrainer(loaded.train_transformer_1, words, words)


def _open_reference(config: ModelConfig) -> OpenedTrainer:
    torch.set_num_threads(1)  # the same bits whatever the number of cores; at batch 1 more do not help
    words = f"the PyTorch reference on the CPU (torch {torch.__version__}, 1 thread)"
    return OpenedTrainer(ReferenceTrainer(config), words, words)
