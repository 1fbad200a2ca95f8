"""Open a trainer for a model in one call."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bttlab.card.kernel import TRAINER_KERNEL, OverlayError
from bttlab.card.overlay import cards_for, load_overlay
from bttlab.card.parallel import ParallelTrainer
from bttlab.card.trainer import TrainerDriver
from bttlab.card.waiting import card_errors
from bttlab.compiler.program import Flow, Options, compile
from bttlab.model.choices import PAPER_FLOW
from bttlab.model.config import ModelConfig, Optimizer

if TYPE_CHECKING:
    from bttlab.compiler.module import ModuleModel

OVERLAY = "trainer"


def open_parallel_trainer(
    config: "ModelConfig | ModuleModel",
    cards: int,
    device: str = "auto",
    overlay: str = OVERLAY,
    require_card: bool = False,
    **choices: Any,
) -> ParallelTrainer:
    """Open a trainer on several cards, which share the samples of an update.

    With device "auto" they are real cards if there are enough that the overlay is for, else emulated ones; "emulated"
    takes emulated ones. The other arguments, and errors, are those of `open_trainer`; OverlayError if there are fewer
    cards.
    """
    if device not in ("auto", "emulated"):
        raise OverlayError(f"device {device!r} is one card, and {cards} are asked for: choose auto or emulated")
    kinds = (False, True) if device == "auto" else (True,)
    found = {
        is_emulated: cards_for(overlay, is_emulated) for is_emulated in kinds if not (is_emulated and require_card)
    }
    chosen = next((devices for devices in found.values() if len(devices) >= cards), None)
    if chosen is None:
        there = " and ".join(
            f"{len(devices)} {'emulated' if kind else 'real'}" for kind, devices in sorted(found.items())
        )
        raise OverlayError(
            f"{cards} cards are asked for, and overlay {overlay} is for {there}; choose fewer, or set "
            f"BTTLAB_EMULATED_CARDS={cards} for as many emulated ones"
        )
    return ParallelTrainer(
        [open_trainer(config, each, overlay=overlay, require_card=require_card, **choices) for each in chosen[:cards]]
    )


def open_trainer(
    config: "ModelConfig | ModuleModel",
    device="auto",
    flow: Flow = PAPER_FLOW,
    trust: bool = False,
    wait: float = 0.0,
    overlay: str = OVERLAY,
    require_card: bool = False,
    lengths: Mapping[int, int] | None = None,
    optimizer: Optimizer | None = None,
) -> TrainerDriver:
    """Load the overlay of the training processor, by its name in the manifest or its path, then the program of a model.

    Parameters are loaded next, by `load_parameters`. `device`, `trust`, `wait` and `require_card` are as for
    `bttlab.card.load_overlay`, `flow`, `lengths` and `optimizer` as for `bttlab.compiler.program.Options`.

    Raises ProgramError if the machine cannot run the model, before a card is used; OverlayError if there is no such
    card, no overlay for it, or the overlay is not the training processor; CardBusyError if another process has it.
    """
    program = compile(config, Options(flow, optimizer, lengths))
    loaded = load_overlay(overlay, device, trust, wait, require_card)
    if TRAINER_KERNEL.instance not in loaded.ip_dict:
        raise OverlayError(
            f"overlay {overlay} has {', '.join(loaded.ip_dict) or 'no kernels'}, not {TRAINER_KERNEL.instance}: it is "
            f"not the training processor; use overlay {OVERLAY}"
        )
    with card_errors(loaded.device):
        trainer = getattr(loaded, TRAINER_KERNEL.instance)
    trainer.load_program(program)
    return trainer
