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

    Parameters
    ----------
    config : ModelConfig or ModuleModel
        As for `open_trainer`.
    cards : int
        The number of cards.
    device : {"auto", "emulated"}
        "auto" takes real cards if there are enough that the overlay is for, else emulated ones.
    overlay, require_card, **choices : optional
        As for `open_trainer`.

    Returns
    -------
    ParallelTrainer
        A trainer with the drivers of all cards.

    Raises
    ------
    OverlayError
        If there are fewer cards, and where `open_trainer` raises it, as it does its other errors.
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

    Parameters are loaded next, by `load_parameters`.

    Parameters
    ----------
    config : ModelConfig or ModuleModel
        The model: a configuration, or what `bttlab.trace` returns for a module.
    device : optional
        As for `bttlab.card.load_overlay`.
    flow : optional
        As for `bttlab.compiler.program.Options`.
    trust, wait : optional
        As for `bttlab.card.load_overlay`.
    overlay : str
        The overlay's name in the manifest, or the path of its .xclbin.
    require_card : bool
        As for `bttlab.card.load_overlay`.
    lengths, optimizer : optional
        As for `bttlab.compiler.program.Options`.

    Returns
    -------
    TrainerDriver
        The driver of the training processor, with the model's program loaded.

    Raises
    ------
    ProgramError
        If the machine cannot run the model; no card has been used then.
    OverlayError
        If there is no such card, no overlay for it, or the overlay is not the training processor.
    CardBusyError
        If another process has the card.
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
