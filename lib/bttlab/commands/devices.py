"""--device, --trust and --wait, which several commands take."""

import argparse

DEVICE_HELP = (
    "auto: a U50 if there is one and an overlay for it, else the emulated one; emulated; reference: PyTorch on the "
    "CPU; or a number: that one of pynq.Device.devices"
)
OVERLAY_HELP = "trainer: the training processor, with the model's program (default: the overlay built for the model)"


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
