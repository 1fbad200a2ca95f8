"""Train the same samples on two devices; compare their results and cycles."""

import argparse
from typing import Any

from bttlab.commands import Outcome, devices, models

DEVICE_HELP = "u50, emulated, or the number of a device that bttlab doctor lists; twice, the second is the reference"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    add("--device", action="append", required=True, metavar="DEVICE", dest="devices", help=DEVICE_HELP)
    models.add_model(parser)
    add("--data", default="airline", metavar="NAME|PATH", help="corpus: atis, snips, airline, or a folder")
    add("--samples", type=int, default=100, metavar="N", help="training samples (default: 100)")
    add("--optimizer", choices=("sgd", "momentum", "adamw"), default="sgd", help="update rule (default: sgd)")
    add("--lr", type=float, default=None, metavar="X", dest="learning_rate", help="learning rate (default: train's)")
    add("--seed", type=int, default=0, metavar="N", help="of initial parameters and sample order (default: 0)")
    devices.add_trust(parser)


def run(options: argparse.Namespace) -> Outcome:
    """Run the command."""
    from bttlab.card.compare import CompareError, compare
    from bttlab.data import Vocabulary, encode, epoch_order, load_corpus
    from bttlab.model import Optimizer
    from bttlab.train import LEARNING_RATES

    if options.samples < 1:
        raise CompareError(f"{options.samples} samples: compare at least one")
    model, optimizer = models.model_of(options), Optimizer(options.optimizer)
    corpus = load_corpus(options.data, "unk")
    vocabulary = Vocabulary.from_sentences(corpus.train.words, None)
    if options.vocabulary is None and len(vocabulary) > model.vocabulary_size:  # as train has it: room for all words
        model = model.with_vocabulary(len(vocabulary))
    order = epoch_order(len(corpus.train), options.seed, 0)[: options.samples]
    samples = encode(corpus.train, vocabulary, corpus, model)[order]
    rate = LEARNING_RATES[optimizer.name] if options.learning_rate is None else options.learning_rate
    comparison = compare(model, options.devices, samples, optimizer, rate, options.seed, options.trust)
    data = {"corpus": corpus.name, "optimizer": optimizer.name, "learning_rate": rate} | comparison.to_dict()
    return Outcome(data, describe(comparison))


def describe(comparison: Any) -> str:
    """Return the comparison for people."""
    first, reference = comparison.runs
    losses, samples = comparison.losses, comparison.losses.size
    lines = [f"{first.name} against {reference.name}, {samples:,} samples"]
    if comparison.identical:
        lines.append(f"the same bits: all losses and all {len(comparison.parameters)} parameter tensors")
    else:
        apart = [parameter for parameter in comparison.parameters if parameter.different]
        since = "" if comparison.first_different is None else f", from sample {comparison.first_different} on"
        lines.append(
            f"losses: {losses.different} differ{since}; largest difference {losses.largest:.3g}, relative "
            f"{losses.relative:.3g}"
        )
        lines.append(f"parameters: {len(apart)} of {len(comparison.parameters)} tensors differ; the worst:")
        worst = sorted(apart, key=lambda parameter: -parameter.relative)[:5]
        lines += [f"  {p.name}: relative {p.relative:.3g}, {p.different:,} of {p.size:,} elements" for p in worst]
    for run in comparison.runs:
        cycles = run.cycles
        lines.append(
            f"{run.name}: {run.seconds:.4g} s (measured{', on this computer' * run.emulated}), {cycles['value']:,.0f} "
            f"cycles ({cycles['provenance']}, {cycles['how']}), "
            f"{cycles['value'] / comparison.modelled_cycles - 1:+.2%} of the program's"
        )
    lines.append(f"the program: {comparison.modelled_cycles:,.0f} cycles (modelled)")
    return "\n".join(lines)
