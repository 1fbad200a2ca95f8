"""Write the modelled tables of README and docs/, and the worked example of a program: python tools/card_pages.py."""

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import receipt_tables
from pages import BENCHMARKS, filled, markdown

from bttlab.baseline import Record, load_records
from bttlab.baseline.gpus import GpuError, find_gpu
from bttlab.baseline.receipt import Receipt, details_of
from bttlab.compiler.listing import instruction_line
from bttlab.compiler.machine import CLOCKS as SCHEDULED
from bttlab.compiler.machine import M
from bttlab.compiler.program import compile
from bttlab.data import Samples
from bttlab.data.epoch import EPOCH_SAMPLES
from bttlab.estimate.card import CLOCKS, MOST_CLOCK, NOT_CLOSED, Estimate, estimate
from bttlab.estimate.constants import MODEL_VERSION, read_data
from bttlab.estimate.counts import SHOWN_UNITS, STAGES
from bttlab.estimate.facts import NAMES, U50
from bttlab.estimate.gpu import batch_figures, model_step
from bttlab.estimate.memory import GROUPS
from bttlab.estimate.receipt import digest_of_lengths, program_of, quantities_of_estimate
from bttlab.estimate.recorded import RECORD, RESOURCES, TARGET, machine_record
from bttlab.estimate.resources import budget, resources
from bttlab.estimate.synthesis import (
    AMD,
    IN_LUTS,
    LEVEL_CLOCKS,
    LEVEL_NS,
    UNITS,
    levels_at,
    synthesised,
    with_amd_cores,
    with_own_cores,
    with_packed_multipliers,
)
from bttlab.lab import energy_to_quality, gpu_over_card
from bttlab.lab.comparison import TARGETS, over, ratio_in_words
from bttlab.model import FLOW_TITLES, ModelConfig
from bttlab.model.choices import TYPICAL_TOKENS
from bttlab.util.files import write_file
from bttlab.util.places import ROOT

ENCODERS = (2, 4, 6)
RECEIPT = "data/receipts/pages.json"  # of the tables below
PAGES = {
    "README.md": ("results", "scores", "race"),
    "docs/accelerator.md": (
        "epochs",
        "stages",
        "memory",
        "resources",
        "cards",
        "synthesis",
        "luts",
        "levels",
        "latencies",
    ),
    "docs/processor.md": ("example",),
    "docs/energy.md": ("power", "energy", "measured", "over-card", "ratios", "quality", "races"),
}
GPU = "RTX-3090"
BASELINES = ROOT / "data" / "baselines"
BATCH = 16  # the largest in the records
UPDATE = 8  # samples of an update in the table of epochs
BATCHED = f"bidirectional, {UPDATE} samples per update"
SHOWN_LUTS = 5000  # modules with fewer are only in data/u50/synthesis.json
CORE_WATTS = (5, 8, 12)  # a server's core under load: docs/energy.md


def tables(lengths: Mapping[int, int], alike: Samples, core_seconds: float) -> dict[str, str]:
    """Return all tables.

    `lengths` is the number of samples of an epoch by length, `alike` a batch of samples of equal length for the
    comparison of a GPU with the card, and `core_seconds` the time of a sample with 2 encoders on the emulated card with
    one thread.
    """
    flows = {flow: [estimate(ModelConfig(encoders=n), lengths, flow=flow) for n in ENCODERS] for flow in FLOW_TITLES}
    paper = flows["bidirectional"]
    batched = [estimate(ModelConfig(encoders=n), lengths, batch_size=UPDATE) for n in ENCODERS]
    quality, sentence = _quality(alike)
    return {
        "results": f"{_results(paper)}\n{sentence}",
        "epochs": _epochs(flows | {BATCHED: batched}),
        "stages": _stages(paper),
        "memory": _memory(paper),
        "resources": _resources(paper[0]),
        "cards": _cards(paper[0]),
        "synthesis": _synthesis(),
        "luts": _lookup_tables(),
        "levels": _levels(),
        "latencies": _latencies(),
        "power": _power(paper),
        "energy": _energy(paper, core_seconds),
        "measured": measured(BASELINES),
        "over-card": receipt_tables.over_card(paper[0]),
        "scores": receipt_tables.scores(),
        "race": receipt_tables.race(),
        "races": receipt_tables.races(),
        "ratios": _ratios(alike[:1]),
        "quality": quality,
        "example": _example("encoders.0.query"),
    }


def utterances() -> dict[int, int]:
    """Return the number of ATIS's utterances by tokens."""
    return {int(tokens): count for tokens, count in read_data("atis_lengths")["utterances_by_tokens"].items()}


def write(folder: Path) -> None:
    lengths = utterances()
    mean = sum(tokens * count for tokens, count in lengths.items()) / sum(lengths.values())
    alike = samples_of(min(lengths, key=lambda tokens: abs(tokens - mean)))
    texts = tables(lengths, alike, recorded_core_seconds(folder / "docs" / BENCHMARKS))
    write_receipt(folder, lengths)
    for page, names in PAGES.items():
        text = (folder / page).read_text(encoding="utf-8")
        write_file(folder / page, filled(text, {name: texts[name] for name in names}, page))


def recorded_core_seconds(benchmarks: Path) -> float:
    """Return the recorded time of a sample with 2 encoders on the emulated card with one thread."""
    steps = details_of(benchmarks)["benchmarks"]["step"]["rows"]
    core = next(row for row in steps if (row["threads"], row["contender"]) == (1, "emulated U50"))
    return core["time"]["median"] / 1e3


def receipt_of(lengths: Mapping[int, int]) -> Receipt:
    """Return the receipt of the tables: their programs and figures."""
    figures, programs = {}, []
    for flow in ("bidirectional", "right_to_left"):
        for encoders in ENCODERS:
            one = estimate(ModelConfig(encoders=encoders), lengths, flow=flow)
            named = quantities_of_estimate(one).items()
            figures |= {f"{encoders}-ENC, {flow}.{name}": figure for name, figure in named}
            programs.append(program_of(one))
    return Receipt(
        title="modelled tables of README and docs",
        command=["python", "tools/card_pages.py"],
        figures=figures,
        programs=programs,
        corpora={"data/u50/atis_lengths.json": digest_of_lengths(lengths)},
        versions={"U50 model": MODEL_VERSION},
    )


def write_receipt(folder: Path, lengths: Mapping[int, int]) -> None:
    """Write the receipt of the tables. One that is equal stays as it is."""
    made, path = receipt_of(lengths), folder / RECEIPT
    if path.is_file() and not (kept := Receipt.read(path)).differences(made) and not made.differences(kept):
        return
    made.write(path)


def _example(layer: str) -> str:
    """Return the instructions of a layer's forward pass, without their waits."""
    lines = []
    for number, instruction in enumerate(compile(ModelConfig(encoders=2)).forward):
        if instruction.label[:2] == ("FP", layer):
            head, loops, *rest = instruction_line(number, instruction).replace(f"FP {layer}: ", "").split(" | ")
            lines += [
                f"{head} | {loops}",
                f"       {' | '.join(part for part in rest if not part.startswith('after '))}",
            ]
    return "\n".join(["```", *lines, "```", ""])


def samples_of(length: int) -> Samples:
    """Return a batch of samples of a length: a step's time depends on nothing else."""
    words = np.zeros((BATCH, ModelConfig().sequence_length), np.int32)
    return Samples(words, np.full(BATCH, length, np.int32), words[:, 0], words)


def _columns(first: str = "") -> list[str]:
    return [first, *(f"{n}-ENC" for n in ENCODERS)]


def _results(estimates: Sequence[Estimate]) -> str:
    rows = []
    for one in estimates:
        dense, tensor = (replace(one.model, format=kind).parameters_bytes / 1e6 for kind in ("dense", "tensor"))
        seconds = (f"{one.at_clock(clock).seconds_per_epoch:.2f} s" for clock in SCHEDULED)
        joules = f"{_band(one.energy_per_epoch, 0).replace(' (', ' J (')}"
        rows.append([str(one.model.encoders), f"{dense:.1f}", f"{tensor:.2f}", *seconds, joules])
    clocks = (f"U50, epoch at {clock} MHz (modelled)" for clock in SCHEDULED)
    headers = ["encoders", "dense, MB", "tensor, MB", *clocks, f"energy at {CLOCKS[0]} MHz (modelled)"]
    return f"{markdown(headers, rows)}\n{NOT_CLOSED[0].upper()}{NOT_CLOSED[1:]}.\n"


def _epochs(flows: Mapping[str, Sequence[Estimate]]) -> str:
    rows = [
        [
            f"{flow.replace('_', ' ')}, {clock} MHz",
            *(f"{one.at_clock(clock).seconds_per_epoch:.2f}" for one in estimates),
        ]
        for clock in SCHEDULED
        for flow, estimates in flows.items()
    ]
    return markdown(_columns("seconds per epoch (modelled)"), rows)


def _stages(estimates: Sequence[Estimate]) -> str:
    rows = [
        [name, *(f"{one.work.by_stage()[stage] / one.samples:,.0f}" for one in estimates)]
        for stage, name in STAGES.items()
    ]
    rows.append(["all", *(f"{one.work.total / one.samples:,.0f}" for one in estimates)])
    for unit in SHOWN_UNITS:
        rows.append([f"{unit} busy", *(f"{one.work.shares[unit]:.0%}" for one in estimates)])
    rows.append(["multipliers of the engines", *(f"{one.lane_utilisation:.0%}" for one in estimates)])
    return markdown(_columns("cycles per sample"), rows)


def _memory(estimates: Sequence[Estimate]) -> str:
    groups = [one.memory.by_group() for one in estimates]
    rows = [[name, *(f"{group[name] / 1e6:.2f}" for group in groups)] for name in GROUPS]
    rows.append(["all", *(f"{one.memory.bytes / 1e6:.2f}" for one in estimates)])
    return markdown(_columns("MB (SGD)"), rows)


def _resources(estimate: Estimate) -> str:
    rows, fast = [], estimate.at_clock(MOST_CLOCK).resources
    for resource, name in RESOURCES.items():
        band, share = estimate.resources.total(resource), estimate.resources.utilisation(resource)
        parts = ", ".join(f"{part} {value.value:,.0f}" for part, value in estimate.resources.parts[resource].items())
        row = [f"{band.value:,.0f}", f"{band.low:,.0f} to {band.high:,.0f}", f"{share:.0%}"]
        rows.append([name, *row, f"{fast.total(resource).value:,.0f}, {fast.utilisation(resource):.0%}", parts])
    return markdown(["", "likely", "low to high", "of the budget", f"at {MOST_CLOCK} MHz", "parts"], rows)


def _cards(estimate: Estimate) -> str:
    """Return the table of the machine on each card: shares of the shell's budget, where that is known."""
    rows = []
    for name in NAMES:
        one = estimate.on_card(name)
        used, card = one.resources, one.card
        shares = {resource: used.utilisation(resource) for resource in RESOURCES}
        shown = ("unknown" if share is None else f"{share:.0%}" for share in shares.values())
        fits = {True: "yes", False: "no", None: "unknown"}[one.fits]
        device = f"{used.share_of_device('lookup_tables'):.0%}"
        rows.append([name, card.memory, f"{used.least_slrs} of {card.slrs}", *shown, device, fits])
    names = [f"{name} of the budget" if name == "LUTs" else name for name in RESOURCES.values()]
    return markdown(["card", "memory", "SLRs", *names, "LUTs of the device", "fits (likely)"], rows)


def _synthesis() -> str:
    """Return the table of Yosys' counts: the large modules, and the totals of the loop."""
    kinds = {
        **{"in_luts": "LUTs", "flip_flops": "flip-flops", "dsps": "DSPs"},
        **{"bram36": "BRAM36", "uram": "UltraRAM"},
    }
    modules = synthesised()
    totals = {
        "the loop, with AMD's operators": with_amd_cores(modules),
        "the loop, with our cores": with_own_cores(modules),
        "the same, multipliers packed as in the 7 series": with_own_cores(with_packed_multipliers(modules)),
    }
    budget = dict(U50.budget or {})
    budget["in_luts"] = budget.pop("lookup_tables")
    rows = []
    for name, one in (modules | totals).items():
        counts = one | Counter(in_luts=sum(one[kind] for kind in IN_LUTS))
        if counts["in_luts"] < SHOWN_LUTS:
            continue
        levels = f"{one['levels']}, {one['levels'] * LEVEL_NS:.1f} ns" if name in modules else ""
        rows.append([name, *(f"{counts[kind]:,.0f}" if counts[kind] else "" for kind in kinds), levels])
        if name in totals:
            rows.append(["of the budget", *(f"{counts[kind] / budget[kind]:.0%}" for kind in kinds), ""])
    return markdown(["Yosys, UltraScale+", *kinds.values(), "levels"], rows)


def _lookup_tables() -> str:
    """Return the table of the LUTs of each unit of the loop, with AMD's operators, and the sentence on the switches."""
    costs, modules = read_data("operators")["operators"], synthesised()
    rows = []
    for name in UNITS:
        one = modules[name]
        operators = sum(one[core] * costs[operator]["lookup_tables"]["value"] for core, operator in AMD.items())
        parts = [operators, *(one[kind] for kind in IN_LUTS)]
        rows.append((sum(parts), [name, *(f"{part:,.0f}" if part else "" for part in (sum(parts), *parts))]))
    headers = ["unit", "LUTs", "AMD's operators", "logic", "shift registers", "rings", "LUT RAM"]
    links = {stores: sum(len(port.banks) for port in M.ports if port.stores == stores) for stores in (False, True)}
    each = modules["ports"]["packed_tables"] / sum(links.values())
    over = {
        clock: resources(machine_record(clock)).total("lookup_tables").value - TARGET * budget("lookup_tables")
        for clock in SCHEDULED
    }
    sentences = (
        f"At {clock} MHz the machine takes {abs(more):,.0f} LUTs {'more' if more > 0 else 'less'} than {TARGET:.0%} of "
        f"the budget, as many as {abs(more) / each:.0f} links."
        for clock, more in over.items()
    )
    sentence = (
        f"The switches of the ports have {links[False]} links for loads and {links[True]} for stores. A link costs "
        f"{each:.0f} LUTs of logic on average.\n" + "\n".join(sentences)
    )
    return f"{markdown(headers, [row for _, row in sorted(rows, reverse=True)])}\n{sentence}\n"


def _levels() -> str:
    """Return the table of each module's levels of logic in the schedule for each clock, beside those that fit."""
    found = {clock: synthesised(clock) for clock in LEVEL_CLOCKS}
    rows = []
    for name in sorted(found[LEVEL_CLOCKS[-1]], key=lambda name: -found[LEVEL_CLOCKS[-1]][name]["levels"]):
        row = [name]
        for clock, modules in found.items():
            levels = modules[name]["levels"]
            fits = "fits" if levels <= levels_at(clock) else "too deep"
            row.append(f"{levels}, {levels * LEVEL_NS:.1f} ns, {fits}")
        rows.append(row)
    return markdown(
        ["module", *(f"levels at {clock} MHz (at most {levels_at(clock)})" for clock in LEVEL_CLOCKS)], rows
    )


def _latencies() -> str:
    """Return the table of the initiation interval if one latency is a cycle longer."""
    intervals = json.loads(RECORD.read_text(encoding="utf-8"))["interval_with_one_cycle_more"]
    cycles, read = (read_data("latencies")[kind] for kind in ("cycles", "read"))
    names: dict[int, list[str]] = {}
    for name, interval in intervals.items():
        label = f"load from {name}" if name in read else name
        names.setdefault(interval, []).append(f"{label} ({(cycles | read)[name]['value']})")
    rows = [[str(interval), ", ".join(names[interval])] for interval in sorted(names, reverse=True)]
    return markdown(["interval", "with one cycle more of"], rows)


def _power(estimates: Sequence[Estimate]) -> str:
    shown = estimates[0], estimates[-1]
    names = list(estimates[0].power.components)
    rows = [[name, *(_band(one.power.components[name], 2) for one in shown)] for name in names]
    rows.append(["all, while the kernel runs", *(_band(one.power.running, 1) for one in shown)])
    rows.append(["all, between two calls", *(_band(one.power.loaded, 1) for one in shown)])
    return markdown([f"W at {CLOCKS[0]} MHz", *(f"{one.model.encoders}-ENC" for one in shown)], rows)


def _energy(estimates: Sequence[Estimate], core_seconds: float) -> str:
    rows = []
    for mhz in CLOCKS:
        at = [one.at_clock(mhz) for one in estimates]
        name = f"U50, {mhz} MHz" if mhz <= CLOCKS[0] else f"U50, {NOT_CLOSED}"
        rows.append([name, *(_band(one.energy_per_epoch, 0) for one in at)])
    low, mid, high = core_joules(core_seconds, estimates[0].samples)
    rows.append([core_name(core_seconds), f"{mid:.0f} ({low:.0f} to {high:.0f})", "", ""])
    card = estimates[0].energy_per_epoch
    ratio = ratio_in_words(over((low, mid, high), (card.low, card.value, card.high)))
    return f"{markdown(_columns('J per epoch'), rows)}\nOver the U50 at {CLOCKS[0]} MHz a core takes {ratio}.\n"


def core_name(core_seconds: float) -> str:
    return f"a CPU core, {core_seconds * 1e3:.2f} ms per sample (measured)"


def core_joules(core_seconds: float, samples: int) -> tuple[float, ...]:
    """Return the low, middle and high energy of an epoch on one core, in J."""
    return tuple(watts * core_seconds * samples for watts in CORE_WATTS)


def measured(folder: Path, kind: str = "cuda") -> str:
    """Return the table of FP32 training on GPUs as recorded, of the smallest model, beside the model of the step."""
    records = [one for one in load_records(folder) if (one.machine.kind, one.machine.precision) == (kind, "highest")]
    if not records:
        return "No GPU has been measured here. `tools/gpu_record.py` records one in eight minutes.\n"
    least = min(record.config["encoders"] for record in records)
    shown = [record for record in records if record.config["encoders"] == least]
    headers = ["GPU, training, batch", "mode", "ms per sample", "modelled", "mJ per sample", "modelled"]
    return markdown(headers, [_measured(record, mode) for record in shown for mode in record.modes])


def _measured(record: Record, mode: str) -> list[str]:
    done = record.modes[mode]
    texts = [
        "" if each.value is None else _milli(each.value / record.batch) for each in (done.median, done.energy.per_step)
    ]
    try:
        gpu = find_gpu(record.machine.name)
    except GpuError:
        modelled = ["", ""]
    else:
        config, samples = ModelConfig(**record.config), samples_of(TYPICAL_TOKENS)[: record.batch]
        bands = batch_figures(gpu, record.format, mode, config, samples)
        modelled = ["{1} ({0} to {2})".format(*map(_milli, band)) for band in bands]
    name = f"{record.machine.name}, {record.format}, {record.batch}"
    return [name, mode, texts[0], modelled[0], texts[1], modelled[1]]


def _milli(value: float) -> str:
    return f"{1e3 * value:,.0f}" if value >= 0.1 else f"{1e3 * value:.3g}"


def _ratios(sample: Samples) -> str:
    gpu = find_gpu(GPU)
    ratios = [gpu_over_card(gpu, n, sample) for n in ENCODERS]
    joules = {
        format: [EPOCH_SAMPLES * value for value in model_step(gpu, format, "graphs", ModelConfig(), sample).joules]
        for format in ("dense", "btt")
    }

    def text(ratio: Sequence[float], digits: int = 0) -> str:
        low, mid, high = ratio
        return f"{mid:.{0 if mid > 9 else 1}f} ({low:.{digits}f} to {high:.0f})"

    rows = [
        ["energy per epoch, tensor training (BTT), eager", *(text(r.energy["eager"], 1) for r in ratios), "up to 3.6"],
        ["the same in CUDA graphs", *(text(r.energy["graphs"], 1) for r in ratios), "up to 3.6"],
        [
            "memory: GPU process of dense training over bytes in use on the chip",
            *(text(r.memory) for r in ratios),
            "30 to 51",
        ],
        ["the same over all memory blocks of the machine", *(text(r.blocks) for r in ratios), ""],
        ["memory: tensors of dense training over bytes in use on the chip", *(f"{r.tensors:.1f}" for r in ratios), ""],
        ["parameters, dense over tensor", *(f"{r.parameters:.1f}" for r in ratios), ""],
    ]
    for format, name in (("dense", "dense"), ("btt", "BTT")):
        low, mid, high = joules[format]
        rows.append([f"{GPU}, {name} in graphs, J per epoch", f"{mid:,.0f} ({low:,.0f} to {high:,.0f})", "", "", ""])
    return markdown([*_columns(f"{GPU} over U50"), "published"], rows)


def _quality(alike: Samples) -> tuple[str, str]:
    """Return the table of energy.md with what follows from it, and the README's sentences about it."""
    target = TARGETS[-1]
    found = energy_to_quality(find_gpu(GPU), alike, target)
    rows: dict[str, list[str]] = {}
    for one in found:
        missing = f"; {one.seeds - len(one.samples)} seeds never" if len(one.samples) < one.seeds else ""
        samples = f"{np.median(one.samples):,.0f} ({min(one.samples):,} to {max(one.samples):,}){missing}"
        name = f"{one.device}: {one.format}, batch {one.batch}"
        row = rows.setdefault(name, [name, f"{one.optimizer}, {one.learning_rate:g}", samples])
        row.append("{1:,.0f} ({0:,.0f} to {2:,.0f})".format(*one.joules))
    headers = ["", "optimizer, rate", f"samples to {target:.0%}", "J (on a GPU: eager)", "J, CUDA graphs"]
    table = markdown(headers, [row + [""] * (len(headers) - len(row)) for row in rows.values()])
    card, named = next(row for row in found if not row.mode), {row.label: row for row in found}
    gpu, low_high = GPU.replace("-", " "), "{0:.0f} to {2:.0f}".format(*card.joules)

    def times(what: str, mode: str) -> str:
        return ratio_in_words(named[f"{GPU}, {mode}: {what}"].over(card))

    whats = {
        "the same tensor training": "tensor, batch 1",
        "dense training": "dense, batch 1",
        f"tensor training in batches of {BATCH}": f"tensor, batch {BATCH}",
        f"dense training in batches of {BATCH}": f"dense, batch {BATCH}",
    }
    listed = [
        f"- {name}: {times(what, 'eager')} (eager); {times(what, 'graphs')} (CUDA graphs);"
        for name, what in whats.items()
    ]
    ratios = f"The {gpu}'s energy over the U50's:\n\n" + "\n".join(listed).removesuffix(";") + "."
    one_of = {name: what for name, what in whats.items() if what != f"tensor, batch {BATCH}"}
    shown = [f"- {name} takes {times(what, 'graphs')};" for name, what in one_of.items()]
    shown[-1] = f"- **{shown[-1].removeprefix('- ').removesuffix(';')}**."
    sentence = "\n".join(
        [
            f"Training until slot F1 on the dev split is {100 * target:.0f} % costs the U50 {card.joules[1]:.0f} J",
            f"({low_high}). On an {gpu} with CUDA graphs, over that energy,",
            "",
            *shown,
            "",
            "A difference is *clear* if the whole band of the ratio is on one side of 1. What the card saves is",
            "memory, and energy at batch size 1. All of this is modelled ([energy](docs/energy.md)).",
        ]
    )
    return f"{table}\n{ratios}\n", f"{sentence}\n"


def _band(band, digits: int) -> str:
    return f"{band.value:.{digits}f} ({band.low:.{digits}f} to {band.high:.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--receipt", type=Path, metavar="FILE", help="write the receipt of the tables there alone")
    options = parser.parse_args()
    if options.receipt is not None:
        return receipt_of(utterances()).write(options.receipt)
    write(ROOT)


if __name__ == "__main__":
    main()
