"""Estimate what training takes of an Alveo card: memory, resources, cycles, time, power, energy. All modelled."""

import argparse
from operator import attrgetter
from typing import Any

from bttlab.commands import Outcome, models
from bttlab.commands.receipts import add_receipt, check_receipt, repeatable
from bttlab.data.epoch import EPOCH_SAMPLES
from bttlab.model.choices import OPTIMIZERS
from bttlab.util.terminal import say

CARDS = ("U50", "U55C", "U280", "U250")  # as in bttlab.estimate.facts, which reads files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    models.add_model(parser, models.SEVERAL)
    models.add_flow(parser)
    add("--card", choices=CARDS, default=CARDS[0], help="the card that the machine is for (default: U50)")
    add(
        "--clock",
        type=int,
        nargs="+",
        metavar="MHZ",
        help="clocks of the kernel, up to 300 (default: 200, 300 and 150)",
    )
    add("--optimizer", choices=OPTIMIZERS, default="sgd", help="update rule (default: sgd)")
    add("--batch-size", type=int, default=1, metavar="N", help="samples of an update (default: 1)")
    data = parser.add_mutually_exclusive_group()
    data.add_argument("--data", metavar="NAME|PATH", help="corpus whose training split is an epoch (default: airline)")
    data.add_argument(
        "--tokens", type=int, metavar="T", help=f"instead of a corpus: {EPOCH_SAMPLES:,} samples of T real tokens"
    )
    add_receipt(parser)


def run(options: argparse.Namespace) -> Outcome:
    from bttlab.estimate.card import CLOCKS, estimate
    from bttlab.estimate.constants import MODEL_VERSION, read_data
    from bttlab.estimate.recorded import machine_record

    check_receipt(options)
    clocks = list(dict.fromkeys(options.clock or CLOCKS))
    configs = models.models_of(options, models.SEVERAL)
    name, lengths, configs = _fitted(options, configs)
    how = options.optimizer, options.flow, clocks[0], options.batch_size, options.card
    estimates = [estimate(config, lengths, *how) for config in configs]
    if not machine_record().is_current:
        say(
            "bttlab: note: resources and power are of another source than hls_src/processor has now; "
            "make schedule SCHEDULE=--record makes them again"
        )
    if options.receipt is not None:
        from bttlab.estimate.receipt import receipt_of_estimates

        receipt_of_estimates(name, estimates, repeatable(options.command_line)).write(options.receipt)
    data = {
        "provenance": "modelled",
        "model": MODEL_VERSION,
        "assumptions": ASSUMPTIONS,
        "card": options.card,
        "unknown": estimates[0].unknown,
        "epoch": name,
        "estimates": [estimated.to_dict() | {"at_clocks": _at_clocks(estimated, clocks)} for estimated in estimates],
        "published": read_data("published"),
    }
    return Outcome(data, _text(estimates, clocks, name))


ASSUMPTIONS = [
    "cycles: those of the program's steps, as many as the loop of synthesis takes on a host; interval and "
    "depth are shown by LLVM's analysis (make schedule), nothing is synthesised",
    "resources: the source's operators and memories (data/u50/machine.json) at documented costs; logic and registers "
    "as Yosys counts them in the loop's Verilog (data/u50/synthesis.json); above 200 MHz from machine_300.json and "
    "synthesis_300.json beside them; low and high in the JSON",
    "power: data/u50/power.json and the units' and memories' activity; most constants are engineering estimates, so "
    "energy is a band",
    "cards: machine, schedule, cycles and clock are the same on all four, which are UltraScale+ of speed grade -2; "
    "what each has and its shell leaves: data/cards, with sources",
    "clock: above 200 MHz, the machine is that of the schedule for 300 MHz, whose operators take more cycles; timing "
    "is not closed by any tool, and the overlay is for 200 MHz",
]


def _at_clocks(estimate: Any, clocks: list[int]) -> dict[str, Any]:
    """Time, power and energy at each clock; the first is the estimate's own."""
    names = ("seconds_per_sample", "seconds_per_epoch", "power", "energy_per_sample", "energy_per_epoch")
    return {str(mhz): {name: estimate.at_clock(mhz).to_dict()[name] for name in names} for mhz in clocks}


def _fitted(options: argparse.Namespace, configs: list) -> tuple[str, dict[int, int], list]:
    """Return an epoch in words, its samples by their real tokens, and the models as they train on them."""
    if options.tokens is not None:
        return f"{options.tokens} tokens", {options.tokens: EPOCH_SAMPLES}, configs
    from bttlab.data import epoch_lengths, load_corpus

    corpus = load_corpus(options.data or "airline", "unk")
    lengths = epoch_lengths(corpus, configs[0].sequence_length)
    return f"{corpus.name}, training split", lengths, [models.fitted_to(corpus, options, config) for config in configs]


def _text(estimates: list, clocks: list[int], epoch: str) -> Any:
    from rich.console import Group
    from rich.table import Table

    from bttlab.estimate.card import CLOCK_MHZ, MOST_CLOCK, NOT_CLOSED
    from bttlab.estimate.constants import MODEL_VERSION
    from bttlab.estimate.counts import SHOWN_UNITS, STAGES
    from bttlab.estimate.memory import GROUPS
    from bttlab.estimate.recorded import RESOURCES, TARGET, machine_record

    first = estimates[0]
    record, is_fast = machine_record(first.clock_mhz), max(clocks) > CLOCK_MHZ
    updates = f", {first.batch_size} samples per update" if first.batch_size > 1 else ""
    table = Table(
        title=f"{first.card.short_name}; an epoch is {epoch}: {first.samples:,} samples, {first.optimizer}, "
        f"{first.flow}{updates}",
        caption=f"modelled ({MODEL_VERSION}), not measured; (low to high) from the constants' uncertainty. MB = 10^6 "
        "bytes. Multipliers of the engines: cycles in which a row in use multiplies"
        + (f". Above {CLOCK_MHZ} MHz: {NOT_CLOSED}" if is_fast else ""),
    )
    table.add_column("model")
    for estimated in estimates:
        table.add_column(estimated.model.title, justify="right")

    def row(name: str, text) -> None:
        table.add_row(name, *(text(estimated) for estimated in estimates))

    row("cycles a sample", lambda e: f"{e.work.total / e.samples:,.0f}")
    for stage, name in STAGES.items():
        row(f"  {name}", lambda e, s=stage: f"{e.work.by_stage()[s] / e.samples:,.0f}")
    for unit in SHOWN_UNITS:
        row(f"{unit} busy", lambda e, u=unit: f"{e.work.shares[u]:.0%}")
    row("multipliers of the engines", lambda e: f"{e.lane_utilisation:.0%}")
    row("on the chip, MB", lambda e: f"{e.memory.bytes / 1e6:.2f}")
    for group in GROUPS:
        row(f"  {group}", lambda e, g=group: f"{e.memory.by_group()[g] / 1e6:.2f}")
    row("bytes a sample from the host", lambda e: f"{e.traffic.host_to_hbm:,.0f}")
    row("  from HBM to the chip", lambda e: f"{e.traffic.hbm_to_chip:,.0f}")
    row("  back to HBM, to the host", lambda e: f"{e.traffic.chip_to_hbm:,.0f}")
    for mhz in clocks:
        at = f" at {mhz} MHz"
        row("time a sample, ms," + at, lambda e, c=mhz: f"{1e3 * e.at_clock(c).seconds_per_sample:.3f}")
        row("time an epoch, s," + at, lambda e, c=mhz: f"{e.at_clock(c).seconds_per_epoch:.2f}")
        row("power of the board, W," + at, lambda e, c=mhz: _band(e.at_clock(c), "power.running"))
        row("energy an epoch, J," + at, lambda e, c=mhz: _band(e.at_clock(c), "energy_per_epoch"))
    card, used = first.card, first.resources
    taken = Table(
        title=f"The machine on the {card.name}, whatever the model: interval {record.interval}, depth {record.depth} "
        f"at {record.clock_mhz:g} MHz",
        caption=f"modelled; budget: what the shell leaves to kernels (published, data/cards). Above {TARGET:.0%} of it "
        "routing gets hard, above 100% it does not fit. Logic and registers by Yosys",
    )
    for column in ("", "likely", "low to high", "of the budget", "of the device"):
        taken.add_column(column, justify="right" if column else "left")
    for resource, name in RESOURCES.items():
        band, share = used.total(resource), used.utilisation(resource)
        of_budget = "unknown"
        if share is not None:
            worst = share * band.high / band.value
            over = " (too much)" if share > 1 else f" (up to {worst:.0%}: it may not fit)" if worst > 1 else ""
            of_budget = f"{share:.0%}{over}"
        shown = [f"{band.value:,.0f}", f"{band.low:,.0f} to {band.high:,.0f}", of_budget]
        taken.add_row(name, *shown, f"{used.share_of_device(resource):.0%}")
    facts = [
        f"{card.name}: {card.part}, {card.memory}; platform {card.platform}",
        f"It spans {used.least_slrs} or more of the {card.slrs} SLRs of the device.",
        {True: "It fits what the shell leaves (likely values).", False: "It does not fit.", None: ""}[first.fits],
        *(f"Unknown: {what}." for what in first.unknown),
        *(
            f"{one.model.title}: an update runs sample by sample, {one.why_no_sums}"
            for one in estimates
            if one.why_no_sums
        ),
    ]
    if is_fast and first.clock_mhz <= CLOCK_MHZ:
        faster = first.at_clock(MOST_CLOCK).resources
        tables, share = faster.total("lookup_tables"), faster.utilisation("lookup_tables")
        of_budget = "" if share is None else f", {share:.0%} of the budget"
        facts.append(f"At {MOST_CLOCK} MHz it takes {tables.value:,.0f} LUTs{of_budget}: {NOT_CLOSED}.")
    return Group(table, taken, *filter(None, facts))


def _band(estimate: Any, name: str) -> str:
    """Return a band of an estimate in whole units; "unknown" if the card has no model of power."""
    if not estimate.has_power:
        return "unknown"
    band = attrgetter(name)(estimate)
    low, mid, high = (f"{value:.0f}" for value in (band.low, band.value, band.high))
    return f"{mid} ({low} to {high})"
