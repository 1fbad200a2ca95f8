"""Options --device, --overlay, --trust, --wait and --require-card of several commands."""

import argparse
import contextlib
import os
from pathlib import Path
from typing import Any

from bttlab.util.terminal import say

DEVICE_HELP = (
    "auto: a U50 if there is one with a hw overlay, else the emulated one; emulated; reference: PyTorch on the "
    "CPU; or a number: that one of pynq.Device.devices"
)
OVERLAY_HELP = "overlay of the card: a name in overlays/manifest.json, or an .xclbin of your own"


def device_name(text: str) -> str:
    """Check the argument of --device, for argparse."""
    if text not in ("auto", "emulated", "reference") and not text.isdecimal():
        raise argparse.ArgumentTypeError(
            f"no device {text!r}; choose auto, emulated, reference, or the number of one that bttlab doctor lists"
        )
    return text


def add_overlay(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--overlay", type=overlay_name, metavar="NAME|FILE", help=f"{OVERLAY_HELP} (default: {default})"
    )


def overlay_name(text: str) -> str:
    """Return the argument of --overlay with an absolute path, for argparse."""
    path = Path(text).expanduser()
    return str(path.resolve()) if os.sep in text or path.suffix == ".xclbin" else text


def seconds(text: str) -> float:
    """Read the argument of --wait, for argparse."""
    with contextlib.suppress(ValueError):
        if (value := float(text)) >= 0:
            return value
    raise argparse.ArgumentTypeError(f"{text!r}: give seconds, 0 or more")


def add_trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust",
        action="store_true",
        help="load an overlay that is not the manifest's, or run a run's model.py that no training of yours put "
        "there: code that runs with your rights",
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add --run and --best."""
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", dest="folder", help="the run's folder")
    parser.add_argument(
        "--best", action="store_true", help="take the epoch with the best dev scores, of a run with --keep best"
    )


def add_device(parser: argparse.ArgumentParser, default: str) -> None:
    """Add --device, --trust, --wait and --require-card."""
    parser.add_argument("--device", type=device_name, metavar="DEVICE", help=f"{DEVICE_HELP} (default: {default})")
    add_trust(parser)
    parser.add_argument(
        "--wait",
        type=seconds,
        default=0.0,
        metavar="SECONDS",
        help="how long to wait for a card that another process holds (default: not at all)",
    )
    parser.add_argument(
        "--require-card", action="store_true", help="end with an error where no real card can be used, see doctor"
    )


def load_checkpoint(options: argparse.Namespace) -> Any:
    """Return the checkpoint of a run that a command names; print why, if it is not the latest."""
    from bttlab.runs import CheckpointStore

    checkpoint, warning = CheckpointStore(options.folder).load(options.best)
    if warning:
        say(f"bttlab: note: {warning}")
    return checkpoint


def open_checkpoint(options: argparse.Namespace, checkpoint: Any, device: str) -> Any:
    """Return the opened trainer of a run's model, with the checkpoint's parameters."""
    from bttlab.runs.devices import open_trainer
    from bttlab.runs.module import model_of_run
    from bttlab.runs.run import check_model

    settings = checkpoint.settings
    model, note = model_of_run(options.folder, checkpoint, options.trust)
    if note:
        say(f"bttlab: note: {note}")
    overlay = getattr(options, "overlay", None)
    opened = open_trainer(
        model, device, options.trust, options.wait, settings.flow, overlay, require_card=options.require_card
    )
    check_model(opened.trainer, settings.config)
    opened.trainer.load_parameters(checkpoint.parameters)
    return opened
