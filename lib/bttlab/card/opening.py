"""Open a trainer for a model in one call."""

from collections.abc import Mapping, Sequence

from bttlab.card.compiled import Flow, chosen_flow, compiled_program
from bttlab.card.kernel import TRAINER_KERNEL, OverlayError
from bttlab.card.overlay import load_overlay
from bttlab.card.trainer import TrainerDriver
from bttlab.card.waiting import card_errors
from bttlab.model.choices import PAPER_FLOW
from bttlab.model.config import ModelConfig

OVERLAY = "trainer"


def open_trainer(
    config: ModelConfig,
    device="auto",
    shapes: Mapping[str, Sequence[int]] | None = None,
    flow: Flow = PAPER_FLOW,
    trust: bool = False,
    wait: float = 0.0,
    overlay: str = OVERLAY,
    require_card: bool = False,
    lengths: Mapping[int, int] | None = None,
) -> TrainerDriver:
    """Load the overlay of the training processor, then the program of a model.

    Parameters
    ----------
    config : ModelConfig, or ModuleModel of bttlab.compiler.module
    shapes : mapping of str to sequence of int, optional
        Of the parameters, if linear layers have different ranks.
    flow : str or tuple of int
        As for `bttlab.compiler.program.compile_program`.
    device, trust, wait, require_card
        As for `bttlab.card.load_overlay`.
    overlay : str
        Name in the manifest, or path of an .xclbin.
    lengths : mapping of int to int, optional
        For flow "auto": the number of samples of each length of the corpus.

    Returns
    -------
    TrainerDriver
        Without parameters: call `load_parameters` next.

    Raises
    ------
    bttlab.compiler.errors.ProgramError
        If the machine cannot run the model; no card is used then.
    bttlab.card.OverlayError
        If there is no such card, no overlay for it, or the overlay is not the training processor.
    bttlab.card.CardBusyError
        If another process has the card.
    """
    flow = chosen_flow(config, flow, lengths, shapes)
    compiled_program(config, shapes, flow)  # cached for load_program
    loaded = load_overlay(overlay, device, trust, wait, require_card)
    if TRAINER_KERNEL.instance not in loaded.ip_dict:
        raise OverlayError(
            f"overlay {overlay} has {', '.join(loaded.ip_dict) or 'no kernels'}, not {TRAINER_KERNEL.instance}: it is "
            f"not the training processor; use overlay {OVERLAY}"
        )
    with card_errors(loaded.device):
        trainer = getattr(loaded, TRAINER_KERNEL.instance)
    trainer.load_program(config, shapes, flow)
    return trainer
