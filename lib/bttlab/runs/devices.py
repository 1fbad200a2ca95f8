"""Open a trainer for a model by the name of a device: a card, the emulated card, or PyTorch."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from bttlab.model import PAPER_FLOW, ModelConfig, Optimizer, ReferenceTrainer, Trainer
from bttlab.util.errors import BttlabError
from bttlab.util.plugins import missing_package

if TYPE_CHECKING:
    from bttlab.compiler.module import ModuleModel


@dataclass(frozen=True)
class OpenedTrainer:
    trainer: Trainer
    device: str  # description of the device
    announcement: str  # description of the device and why it was chosen
    # of a card: "overlay", "overlay.sha256" and "program.sha256", and in "unused_cards" the real cards that the
    # emulated one was taken instead of
    provenance: dict[str, str] = field(default_factory=dict)


def open_trainer(
    model: "ModelConfig | ModuleModel",
    device: str,
    trust: bool = False,
    wait: float = 0.0,
    flow: str = PAPER_FLOW,
    overlay: str | None = None,
    optimizer: Optimizer | None = None,
    require_card: bool = False,
    lengths: Mapping[int, int] | None = None,
    cards: int = 1,
) -> OpenedTrainer:
    """Open a trainer on auto, emulated, reference, or the number of one of `pynq.Device.devices`.

    `trust` and `wait` are as for `bttlab.card.load_overlay`. The overlay of a card is the name of one in the manifest,
    or the path of an .xclbin; by default the training processor. `flow` is the order of contraction in the linear
    layers; "auto" on a card takes the number of samples of each length of the corpus from `lengths`. `require_card`
    uses neither the emulated card nor PyTorch. Several `cards` share the samples of an update; the device is auto or
    emulated then.

    Raises BttlabError if pynq is missing, or an overlay is asked for without a card; OverlayError if there is no such
    card, or no overlay for it; CardBusyError if another process holds the card; ProgramError if the card does not hold
    the model, or the state of the optimizer.
    """
    if require_card and device in ("reference", "emulated"):
        raise BttlabError(f"--device {device} is no real card: leave out --require-card, or use --device auto")
    if device == "reference":
        if overlay is not None:
            raise BttlabError(f"--overlay {overlay} is for a card: leave it out with --device reference")
        torch.set_num_threads(1)  # the same bits whatever the number of cores; at batch 1 more do not help
        words = f"the PyTorch reference on the CPU (torch {torch.__version__}, 1 thread)"
        return OpenedTrainer(ReferenceTrainer(model, flow), words, words)
    try:
        from bttlab import card  # looks at XRT's installation before it imports pynq
        from bttlab.card.opening import OVERLAY
        from bttlab.card.overlay import unused_cards

        importlib.import_module("pynq")  # what follows needs it
    except ModuleNotFoundError as error:
        raise BttlabError(
            f"{missing_package(error, f'--device {device}') or error}, or use --device reference"
        ) from None
    overlay = overlay or OVERLAY
    choices = {"flow": flow, "trust": trust, "wait": wait, "overlay": overlay, "lengths": lengths}
    choices |= {"require_card": require_card, "optimizer": optimizer}
    if cards == 1:
        trainer = card.open_trainer(model, device, **choices)
    else:
        trainer = card.open_parallel_trainer(model, cards, device, **choices)
    program: Any = trainer.program  # a model's
    if optimizer is not None:
        program.check_optimizer(optimizer)
    provenance = {
        "overlay": overlay,
        "overlay.sha256": trainer.overlay_sha256,
        "program.sha256": trainer.program.sha256,
    }
    unused = unused_cards(trainer.device) if device == "auto" else []
    if unused:
        provenance["unused_cards"] = ", ".join(unused)
    described, announcement = _words(trainer.device, device, overlay)
    if cards > 1:
        described, announcement = (f"{cards} cards ({words})" for words in (described, announcement))
    if optimizer is not None and (why := program.why_no_sums):
        announcement += (
            f" ({why}: an update of {optimizer.batch_size} samples takes the time of {optimizer.batch_size})"
        )
    return OpenedTrainer(trainer, described, announcement, provenance)


def _words(card, device: str, overlay: str) -> tuple[str, str]:
    """Return the description of a card with an overlay, and the same with the reason for the choice."""
    import pynq

    from bttlab.card import EmulatedU50

    if not isinstance(card, EmulatedU50):
        words = f"{card.name} (card {pynq.Device.devices.index(card)}), overlay {overlay}"
        return words, words
    reason = ""
    if device == "auto":
        real = [real_card.name for real_card in pynq.Device.devices if not isinstance(real_card, EmulatedU50)]
        unlisted = " (NOT the PCIe card, which PYNQ does not list)" if card.why_unlisted() else " (no card found)"
        reason = f" (NOT the real card: no hw overlay {overlay} for {', '.join(real)})" if real else unlisted
    return f"the emulated U50, overlay {overlay}", f"the emulated U50{reason}, overlay {overlay}"
