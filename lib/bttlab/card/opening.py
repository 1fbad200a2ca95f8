"""A trainer for a model, in one call."""

from collections.abc import Mapping, Sequence

from bttlab.card.compiled import PAPER_FLOW, Flow, compiled_program
from bttlab.card.trainer import Trainer
from bttlab.model.config import ModelConfig
from bttlab.u50.overlay import load_overlay

OVERLAY = "trainer"


def open_trainer(
    config: ModelConfig,
    device="auto",
    shapes: Mapping[str, Sequence[int]] | None = None,
    flow: Flow = PAPER_FLOW,
    trust: bool = False,
    wait: float = 0.0,
) -> Trainer:
    """Load the overlay of the training processor, and on it the program of a model.

    Parameters
    ----------
    config : ModelConfig
    shapes : mapping of str to sequence of int, optional
        Of the parameters, where linear layers have ranks of their own.
    flow : str or tuple of int
        As for `bttlab.card.program.program.compile_program`.
    device, trust, wait
        As for `bttlab.u50.load_overlay`.

    Returns
    -------
    Trainer
        Its parameters are still to be loaded.

    Raises
    ------
    bttlab.card.program.errors.ProgramError
        If the machine does not hold the model; no card is touched then.
    bttlab.u50.OverlayError
        If there is no such card, or no overlay for it.
    bttlab.u50.CardBusyError
        If another process holds the card.
    """
    compiled_program(config, shapes, flow)  # kept for load_program
    trainer = load_overlay(OVERLAY, device, trust, wait).trainer_1
    trainer.load_program(config, shapes, flow)
    return trainer
