"""Estimate what training takes of a U50: on-chip memory, resources, cycles, time, power and energy. All modelled."""

import argparse
import re
from typing import Any

from bttlab.commands import Outcome
from bttlab.errors import BttlabError

SAMPLES = 4478  # of ATIS's training split
MOST_SAMPLES = 10**7
LENGTHS_HELP = (
    f"instead of a corpus: the mean of {SAMPLES:,} samples' real tokens, as 13 or 12.5, or a histogram of them, as "
    "8:1000 13:2500"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    add("--encoders", type=int, nargs="+", default=[2, 4, 6], metavar="N", help="encoder blocks (default: 2 4 6)")
    add("--vocabulary", type=int, metavar="N", help="tokens that the table has room for (default: 1000)")
    add("--rank", type=int, metavar="R", help="rank of the linear layers (default: 12)")
    add("--lanes", type=int, metavar="N", help="multiply-accumulate lanes of all engines (default: as in hls_src)")
    add("--clock", type=int, metavar="MHZ", help="clock of the kernel (default: as in hls_src)")
    add("--optimizer", choices=("sgd", "momentum", "adamw"), default="sgd", help="update rule (default: sgd)")
    data = parser.add_mutually_exclusive_group()
    data.add_argument("--data", metavar="NAME|PATH", help="corpus whose training split is an epoch (default: airline)")
    data.add_argument("--lengths", nargs="+", metavar="MEAN|L:N", help=LENGTHS_HELP)


def run(options: argparse.Namespace) -> Outcome:
    """Run the command."""
    from bttlab.experiments.keep import keep_estimate
    from bttlab.model import ModelConfig, Optimizer

    try:
        from bttlab.u50.constants import MODEL_VERSION, read_data
        from bttlab.u50.estimate import at_clock, check_fits, estimate, with_lanes
        from bttlab.u50.hardware import HardwareConfig
    except ModuleNotFoundError as error:
        raise BttlabError(
            f"the U50's model needs {error.name}, which is not installed; install it with: pip install 'bttlab[lab]'"
        ) from None

    hardware = HardwareConfig()
    if options.lanes is not None:
        hardware = with_lanes(hardware, options.lanes)
    if options.clock is not None:
        hardware = at_clock(hardware, options.clock)
    rank = {} if options.rank is None else {"linear_rank": options.rank}
    models = [ModelConfig(encoders=encoders, **rank) for encoders in options.encoders]
    if options.vocabulary is not None:
        models = [model.with_vocabulary(options.vocabulary) for model in models]
    name, lengths = _lengths(options, models[0])
    found = [estimate(model, hardware, lengths, options.optimizer) for model in models]
    for one in found:
        check_fits(one)
    for one in found:
        keep_estimate(one, {"name": name}, MODEL_VERSION)
    data = {
        "provenance": "modelled",
        "model": MODEL_VERSION,
        "assumptions": ASSUMPTIONS,
        "epoch": name,
        "estimates": [
            {"optimizer_state_bytes": len(Optimizer(options.optimizer).moments) * one.model.parameters_bytes}
            | one.to_dict()
            for one in found
        ],
        "published": read_data("published"),
    }
    return Outcome(data, _table(found, name))


ASSUMPTIONS = [
    "cycles: trip count x II + depth of every loop, argued in hls_src; not synthesised",
    "resources: documented costs of the operators the source instantiates, each unit once; low and high in the JSON",
    "power: data/u50/power.json; most constants are engineering estimates, so energy is a band",
]


def _lengths(options: argparse.Namespace, model: Any) -> tuple[str, dict[int, int]]:
    """What an epoch is, in words, and its samples by their real tokens."""
    if options.lengths:
        return " ".join(options.lengths), parse_lengths(options.lengths)
    from collections import Counter

    from bttlab.data import Vocabulary, encode, load_corpus

    corpus = load_corpus(options.data or "airline", "unk")
    vocabulary = Vocabulary.from_sentences(corpus.train.words, model.vocabulary_size)
    samples = encode(corpus.train, vocabulary, corpus, model)
    return f"{corpus.name}, training split", dict(Counter(samples.lengths.tolist()))


def parse_lengths(words: list[str]) -> dict[int, int]:
    """Return the histogram that --lengths means.

    Raises
    ------
    BttlabError
        If it is neither a mean nor a histogram.
    """
    if len(words) == 1 and re.fullmatch(r"\d+(\.\d+)?", words[0]):
        mean = float(words[0])
        longer = round((mean - int(mean)) * SAMPLES)
        histogram = {int(mean): SAMPLES - longer, int(mean) + 1: longer}
        return {length: count for length, count in histogram.items() if count}
    histogram: dict[int, int] = {}
    for word in words:
        match = re.fullmatch(r"(\d+):(\d+)", word)
        if match is None or not 0 < int(match[2]) <= MOST_SAMPLES:
            raise BttlabError(
                f"--lengths {word}: give one mean, as 13, or pairs LENGTH:SAMPLES, as 8:1000 13:2500, of up to "
                f"{MOST_SAMPLES:,} samples"
            )
        histogram[int(match[1])] = histogram.get(int(match[1]), 0) + int(match[2])
    return histogram


def _table(found: list, epoch: str) -> Any:
    from rich.table import Table

    from bttlab.u50.constants import MODEL_VERSION
    from bttlab.u50.resources import RESOURCES, TARGET

    first = found[0]
    table = Table(
        title=f"{first.hardware.multiply_accumulates} lanes at {first.hardware.clock_mhz} MHz; an epoch is {epoch}: "
        f"{first.samples:,} samples, {first.optimizer}",
        caption=f"modelled ({MODEL_VERSION}), not measured; (low to high) from the constants' uncertainty. Parts are "
        f"of what the shell leaves to kernels; above {TARGET:.0%} routing gets hard",
    )
    table.add_column("encoders")
    for one in found:
        table.add_column(str(one.model.encoders), justify="right")

    def row(name: str, text) -> None:
        table.add_row(name, *(text(one) for one in found))

    for resource, name in RESOURCES.items():
        row(name, lambda e, r=resource: f"{e.resources.total(r).mid:,.0f} ({e.resources.utilisation(r):.0%})")
    row("cycles a sample", lambda e: f"{sum(e.cycles.values()) / e.samples:,.0f}")
    for stage, name in STAGES.items():
        row(f"  {name}", lambda e, s=stage: f"{_of_stage(e, s) / e.samples:,.0f}")
    row("time a sample, ms", lambda e: f"{1e3 * e.seconds_per_sample:.3f}")
    row("time an epoch, s", lambda e: f"{e.seconds_per_epoch:.2f}")
    row("  bound: all lanes always busy", lambda e: f"{e.bound_seconds:.2f}")
    row("lanes' time well spent", lambda e: f"{e.lane_utilisation:.0%}")
    row("power of the board, W", lambda e: _band(e.power.running, "{:.0f}"))
    row("energy a sample, mJ", lambda e: _band(e.energy_per_sample.scaled(1e3), "{:.1f}"))
    row("energy an epoch, J", lambda e: _band(e.energy_per_epoch, "{:.0f}"))
    return table


STAGES = {"FP": "forward", "BP": "backward", "PU": "update", "IO": "HBM"}


def _of_stage(found: Any, stage: str) -> int:
    return sum(count for (of, _), count in found.cycles.items() if of == stage)


def _band(band: Any, form: str) -> str:
    low, mid, high = (form.format(value) for value in (band.low, band.mid, band.high))
    return f"{mid} ({low} to {high})"
