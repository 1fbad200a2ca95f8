"""Record the first losses of training on the emulated U50: python tools/card_losses.py.

They are of the samples, parameters and rate of `data/baselines`, which have PyTorch's. It needs ATIS, and takes two
minutes.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import bttlab
from bttlab.baseline.receipt import SAME, ProgramUsed, Receipt, ReceiptQuantity
from bttlab.baseline.record import FORMATS
from bttlab.baseline.run import training_samples
from bttlab.card import open_trainer
from bttlab.data.samples import epoch_order
from bttlab.model import LEARNING_RATES, ModelConfig, Optimizer, initial_parameters
from bttlab.util.digests import tensors_digest
from bttlab.util.places import ROOT
from bttlab.util.terminal import say

RECEIPT = ROOT / "data" / "receipts" / "card_losses.json"
ENCODERS, STEPS, SEED, CORPUS = (2, 4, 6), 100, 0, "atis"
ON_THE_CARD = {name: flow for name, (kind, flow) in FORMATS.items() if kind == "tensor"}
HOW = "the loss of each step, batch 1, on the emulated U50"


def record(corpus: str = CORPUS, encoders: Sequence[int] = ENCODERS, steps: int = STEPS) -> Receipt:
    """Train by SGD, each model in each order of contraction, and return the losses: the details are lists by model."""
    figures, programs, losses, corpora = {}, [], {}, {}
    for count in encoders:
        config = ModelConfig(encoders=count)
        used, samples = training_samples(corpus, config)
        corpora[used.name] = used.sha256
        samples = samples[epoch_order(len(samples), SEED, 0)[:steps]]
        for name, flow in ON_THE_CARD.items():
            say(f"{count} encoders, {name}")
            trainer = open_trainer(config, "emulated", flow)
            trainer.load_parameters(initial_parameters(config, SEED))
            found = trainer.train(samples, Optimizer("sgd"), LEARNING_RATES["sgd"])
            programs.append(ProgramUsed.of(config, flow, trainer.program.sha256))
            label = f"{count}-ENC, {name}"
            losses[label] = [float(f"{loss:.8g}") for loss in found]
            figures[f"{label}.loss"] = ReceiptQuantity(
                float(found.mean()), "1", "measured", f"mean of {HOW}", tolerance=SAME
            )
    return Receipt(
        title=f"the first {steps} losses on the emulated U50",
        command=["python", "tools/card_losses.py"],
        figures=figures,
        programs=programs,
        corpora=corpora,
        initial=tensors_digest(initial_parameters(ModelConfig(encoders=encoders[0]), SEED)),
        settings={"learning_rate": LEARNING_RATES["sgd"], "optimizer": "sgd", "seed": SEED, "steps": steps, "batch": 1},
        versions={"bttlab": bttlab.__version__},
        dear="two minutes, and ATIS",
        details={"how": HOW, "losses": losses},
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--receipt", type=Path, default=RECEIPT, metavar="FILE", help="where to write; default: %(default)s"
    )
    options = parser.parse_args()
    record().write(options.receipt)
