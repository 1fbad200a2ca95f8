"""Estimate what the card takes to train each model of data/methods/atis_adapters.json: python tools/adapters.py.

That record is of PyTorch, of a model whose frozen parameters fit the card:
    bttlab methods run full-finetuning NAME… --hidden-size 128 --heads 2 --data atis --budget 2epochs --seeds 0 1 2
    --split test --record data/methods/atis_adapters.json
Here the same modules are traced, so the figures are those of their programs: modelled, AdamW after each sample.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bttlab.baseline.receipt import Receipt, ReceiptQuantity
from bttlab.compiler.trace import trace
from bttlab.data import load_corpus
from bttlab.data.epoch import EPOCH_SAMPLES
from bttlab.estimate.card import Estimate, estimate
from bttlab.estimate.receipt import quantities_of_estimate
from bttlab.model import ModelConfig, config_of
from bttlab.model.choices import TYPICAL_TOKENS
from bttlab.util.terminal import say
from bttlab_methods import Result, Setting, Training, parse
from bttlab_methods.record import ADAPTERS, FOLDER, Results, by_methods

CARD = FOLDER / "atis_adapters_card.json"
TOKENS = TYPICAL_TOKENS  # of every sample of the epoch


def estimate_of(result: Result) -> Estimate:
    """Return the estimate of an epoch of the model that a run trained; what it was pretrained on changes no program."""
    methods = [replace(one, pretraining=1) for one in parse(result.methods)]
    config = config_of(ModelConfig(encoders=result.encoders, format="dense").to_dict() | result.model)
    training = Training(Setting(load_corpus("airline"), config, samples=1), methods)
    return estimate(trace(training.model.eval(), config.sequence_length), {TOKENS: EPOCH_SAMPLES}, "adamw")


def receipt() -> Receipt:
    figures: dict[str, ReceiptQuantity] = {}
    for name, (first, *_) in by_methods(Results.read(ADAPTERS).results).items():
        figures |= {f"{name}.{key}": figure for key, figure in quantities_of_estimate(estimate_of(first)).items()}
    return Receipt("adapters on the U50", ["python", "tools/adapters.py"], figures)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--receipt", type=Path, default=CARD, metavar="FILE", help="where to write (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    receipt().write(options.receipt)
    say(f"{options.receipt} is written; python tools/methods_page.py writes the page")
    return 0


if __name__ == "__main__":
    sys.exit(main())
