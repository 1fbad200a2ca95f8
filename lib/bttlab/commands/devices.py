"""What --device means: a trainer for a model, on a card, the emulated card, or in PyTorch."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from bttlab.errors import BttlabError

DEVICE_HELP = (
    "auto: a U50 if there is one and an overlay for it, else the emulated one; emulated; reference: PyTorch on the "
    "CPU; or a number: that one of pynq.Device.devices"
)


class DeviceError(BttlabError):
    """A device that there is not."""


@dataclass(frozen=True)
class OpenedTrainer:
    """A trainer on its device.

    Attributes
    ----------
    trainer : bttlab.model.Trainer
    device : str
        What it trains on, in words.
    announcement : str
        The same, and why it was chosen.
    """

    trainer: object
    device: str
    announcement: str


def device_name(text: str) -> str:
    """Check the argument of --device, for argparse."""
    if text not in ("auto", "emulated", "reference") and not text.isdecimal():
        raise argparse.ArgumentTypeError(
            f"no device {text!r}; choose auto, emulated, reference, or the number of one that bttlab doctor lists"
        )
    return text


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add --trust."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="load the overlay even if it is not the manifest's: its native code runs with your rights",
    )


def add_wait(parser: argparse.ArgumentParser) -> None:
    """Add --wait."""
    parser.add_argument(
        "--wait",
        type=seconds,
        default=0.0,
        metavar="SECONDS",
        help="how long to wait for a card that another process holds (default: not at all)",
    )


def seconds(text: str) -> float:
    """Check a time to wait, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds: give one of at least 0")
    return value


def open_trainer(config, device: str, trust: bool = False, wait: float = 0.0, build: bool = False) -> OpenedTrainer:
    """Open what trains a model.

    Parameters
    ----------
    config : ModelConfig
    device : str
        As `device_name` accepts it.
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
        from bttlab.sweep.trials import has_overlay

        if not has_overlay(config):
            return _open_built(config)
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


def _open_built(config) -> OpenedTrainer:
    from tempfile import TemporaryDirectory

    from bttlab.sweep.overlays import built_overlay
    from bttlab.u50 import load_overlay

    with TemporaryDirectory(prefix="bttlab-overlay-") as folder:
        path = Path(folder) / "train.xclbin"
        path.write_bytes(built_overlay(config))
        overlay = load_overlay(path, "emulated", trust=True)  # it was built here
    words = "the emulated U50, an overlay built for the model"
    return OpenedTrainer(overlay.train_transformer_1, words, words)


def _open_reference(config) -> OpenedTrainer:
    import torch

    from bttlab.model import ReferenceTrainer

    torch.set_num_threads(1)  # the same bits whatever the number of cores; at batch 1 more do not help
    words = f"the PyTorch reference on the CPU (torch {torch.__version__}, 1 thread)"
    return OpenedTrainer(ReferenceTrainer(config), words, words)
