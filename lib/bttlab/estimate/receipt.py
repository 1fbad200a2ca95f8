"""The receipt of estimates: what a model's program takes on a card, modelled."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import bttlab
from bttlab.baseline.receipt import SAME, ProgramUsed, Receipt, ReceiptQuantity
from bttlab.compiler.program import Options, compile
from bttlab.estimate.card import Estimate
from bttlab.estimate.constants import MODEL_VERSION
from bttlab.model import ModelConfig, Optimizer


def receipt_of_estimates(epoch: str, estimates: Sequence[Estimate], command: Sequence[str]) -> Receipt:
    """Return the receipt of the estimates of models for an epoch."""
    figures: dict[str, ReceiptQuantity] = {}
    for one in estimates:
        figures |= {f"{one.model.encoders}-ENC.{name}": figure for name, figure in quantities_of_estimate(one).items()}
    first = estimates[0]
    return Receipt(
        title=f"{first.card.short_name}, {epoch}, {first.optimizer}, {first.flow}",
        command=list(command),
        figures=figures,
        programs=[program for one in estimates if (program := program_of(one)) is not None],
        corpora={epoch: digest_of_lengths(first.lengths)},
        settings={"optimizer": first.optimizer, "batch_size": first.batch_size, "clock_mhz": first.clock_mhz},
        versions={"bttlab": bttlab.__version__, "U50 model": MODEL_VERSION},
    )


def quantities_of_estimate(one: Estimate) -> dict[str, ReceiptQuantity]:
    """Return cycles, time, memory, and on the U50 energy of an epoch; all modelled, so a repetition is equal."""
    how = f"the U50 model {MODEL_VERSION}"
    figures = {
        "cycles": ReceiptQuantity(float(one.work.total), "cycles", "modelled", how, tolerance=SAME),
        "seconds": ReceiptQuantity(one.seconds_per_epoch, "s", "modelled", how, tolerance=SAME),
        "bytes": ReceiptQuantity(float(one.memory.bytes), "bytes", "modelled", how, tolerance=SAME),
    }
    if one.has_power:
        energy = one.energy_per_epoch
        figures["joules"] = ReceiptQuantity(energy.value, "J", "modelled", how, energy.low, energy.high, SAME)
    return figures


def program_of(one: Estimate) -> ProgramUsed | None:
    """Return the program that an estimate is of; None of a module, or of a flow that the lengths choose."""
    if not isinstance(one.model, ModelConfig) or not isinstance(one.flow, str) or one.flow == "auto":
        return None
    program = compile(one.model, Options(one.flow, Optimizer(one.optimizer, batch_size=one.batch_size)))
    return ProgramUsed.of(one.model, one.flow, program.sha256, program.sums)


def digest_of_lengths(lengths: Any) -> str:
    """Return the SHA-256 of the number of samples of each length."""
    return hashlib.sha256(json.dumps(sorted(lengths.items())).encode()).hexdigest()
