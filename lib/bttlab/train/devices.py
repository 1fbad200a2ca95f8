"""What a device's name means: a trainer for a model, on a card, the emulated card, or in PyTorch."""

from dataclasses import dataclass
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
    """

    trainer: Trainer
    device: str
    announcement: str


def open_trainer(
    config: ModelConfig, device: str, trust: bool = False, wait: float = 0.0, build: bool = False
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

    Raises
    ------
    DeviceError
        If the device needs pynq, which is not installed.
    bttlab.u50.OverlayError
        If there is no such card, or no overlay for the model.
    bttlab.u50.CardBusyError
        If another process holds the card.
    """
    if device == "reference":
        return _open_reference(config)
    try:
        import pynq

        from bttlab.u50 import EmulatedU50, load_overlay, overlay_for
    except ModuleNotFoundError as error:
        raise DeviceError(
            f"--device {device} needs {error.name}, which is not installed; install it with: pip install "
            "'bttlab[lab]', or use --device reference"
        ) from None
    if build:
        from bttlab.train.overlays import built_overlay, has_overlay

        if not has_overlay(config):
            return open_built(built_overlay(config))
    name = overlay_for(config)
    overlay = load_overlay(name, device, trust, wait)
    card = overlay.device
    if not isinstance(card, EmulatedU50):
        words = f"{card.name} (card {pynq.Device.devices.index(card)}), overlay {name}"
        return OpenedTrainer(overlay.train_transformer_1, words, words)
    reason = ""
    if device == "auto":
        real = [other.name for other in pynq.Device.devices if not isinstance(other, EmulatedU50)]
        reason = f" (no hw overlay {name} for {', '.join(real)})" if real else " (no card found)"
    return OpenedTrainer(
        overlay.train_transformer_1, f"the emulated U50, overlay {name}", f"the emulated U50{reason}, overlay {name}"
    )


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
