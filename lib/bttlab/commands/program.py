"""List the program that trains a model on the processor: instructions, hazards, cycles and unit timeline."""

import argparse
import re
from pathlib import Path
from typing import Any

from bttlab.commands import Outcome, models
from bttlab.util.errors import BttlabError
from bttlab.util.terminal import say

TOLD = 20  # hazards


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    models.add_model(parser)
    models.add_flow(parser)
    add("--batch-size", type=int, default=1, metavar="N", help="samples of an update by SGD (default: 1)")
    add("--tokens", type=int, metavar="T", help="length of the sample that is looked at (default: 13)")
    add("--list", action="store_true", help="list every instruction")
    add("--layer", metavar="NAME", help="list one layer's instructions, and its cycles: encoders.0.query")
    add("--check", action="store_true", help="look for hazards at every length; exit code 1 if there are any")
    add("--gantt", type=Path, metavar="FILE.png", help="draw which unit works when")


def run(options: argparse.Namespace) -> Outcome:
    from bttlab.compiler.instruction import UNIT_NAMES
    from bttlab.compiler.listing import SECTION_NAMES, instruction_line, layer_of
    from bttlab.compiler.machine import M
    from bttlab.compiler.program import Options, compile
    from bttlab.compiler.timing import busy_shares, time_program
    from bttlab.estimate.profile import cycles_by_layer
    from bttlab.model.choices import OPTIMIZERS, TYPICAL_TOKENS
    from bttlab.model.config import Optimizer

    model = models.model_of(options)
    tokens = min(TYPICAL_TOKENS, model.sequence_length) if options.tokens is None else options.tokens
    if not 2 <= tokens <= model.sequence_length:
        raise BttlabError(f"--tokens {tokens}: a sample has 2 to {model.sequence_length} tokens, [CLS] included")
    if options.gantt is not None and options.gantt.suffix != ".png":
        raise BttlabError(f"--gantt {options.gantt}: the picture is a PNG; give a name that ends in .png")
    rule = Optimizer("sgd", batch_size=options.batch_size)
    program = compile(model, Options(options.flow, rule))
    names = list(dict.fromkeys(map(layer_of, program.sample)))
    if options.layer not in (None, *names):
        last = "" if models.is_module(options) else f"; N is 0 to {model.encoders - 1}"
        raise BttlabError(f"--layer {options.layer}: no layer; there are {_told(names)}{last}")

    timing = time_program(program.sample, tokens)
    lengths = sorted({*(n for n in (2, 8, 16, 24, 32, 48, 64) if n <= model.sequence_length), tokens})
    (shares,) = cycles_by_layer(program.sample, [tokens])
    stages = {stage: sum(n for (of, _), n in shares.items() if of == stage) for stage in STAGES}
    units = [sum(i.unit == unit for section in program.sections for i in section) for unit in range(len(UNIT_NAMES))]
    data: dict[str, Any] = {
        "provenance": "modelled",
        "assumptions": assumptions(M),
        "clock_mhz": M.CLOCK_MHZ,
        **model.identity,
        "flow": options.flow,
        "contraction": program.flow,
        "optimizers": [name for name in OPTIMIZERS if program.has_space_for(Optimizer(name))],
        "sections": dict(zip(SECTION_NAMES, map(len, program.sections), strict=True)),
        "instructions": dict(zip(UNIT_NAMES, units, strict=True)),
        "tokens": tokens,
        "batch_size": rule.batch_size,
        "why_no_sums": program.why_no_sums,
        "cycles": {str(n): time_program(program.sample, n).cycles for n in lengths},
        "busy": dict(zip(UNIT_NAMES, busy_shares(program.sample, timing), strict=True)),
        "cycles_by_stage": {stage: cycles for stage, cycles in stages.items() if cycles},
        "cycles_by_layer": [{"stage": s, "layer": layer, "cycles": count} for (s, layer), count in shares.items()],
    }
    if unseen := getattr(model, "unseen", None):
        data["unseen"] = unseen
    if program.sums:
        data["update_cycles"] = rule.batch_size * timing.cycles + time_program(program.flush, tokens).cycles
    if options.layer is not None:
        cycles = {stage: count for (stage, layer), count in shares.items() if layer == options.layer}
        data["layer"] = {"name": options.layer, "cycles_by_stage": cycles}
    if options.list or options.layer is not None:
        data["list"] = {
            name: [instruction_line(n, i) for n, i in enumerate(section) if options.layer in (None, layer_of(i))]
            for name, section in zip(SECTION_NAMES, program.sections, strict=True)
        }
    if options.check:
        data["hazards"] = _check(program, model)
    if options.gantt is not None:
        data["gantt"] = str(_draw(options, program, timing, tokens, model.title))
    return Outcome(data, _text(data, model.title), 1 if data.get("hazards", {}).get("count") else 0)


def assumptions(machine: Any) -> list[str]:
    return [
        f"a clock of {machine.CLOCK_MHZ} MHz, and a loop of interval 1: not synthesised",
        f"results are read {machine.LATENCY} cycles after the step that gives them (LATENCY in config.h)",
        "cycles of the machine's loop for a sample that is trained on, the update of the sample before beside it; "
        "reading its record and writing its result come on top",
    ]


def _told(names: list[str]) -> str:
    """Names of layers in a line: those of all encoders once."""
    return ", ".join(dict.fromkeys(re.sub(r"^encoders\.\d+\.", "encoders.N.", name) for name in sorted(names)))


def _check(program: Any, model: Any) -> dict[str, Any]:
    """Look for hazards of every section, at every length, with and without an update that is pending."""
    from bttlab.compiler.hazards import check_program

    def tell(length: int, count: int) -> None:
        say(f"length {length} of {model.sequence_length}: {count} hazards so far")

    hazards = check_program(program, range(2, model.sequence_length + 1), tell)
    return {"lengths": [2, model.sequence_length], "count": len(hazards), "texts": hazards[:TOLD]}


def _draw(options: argparse.Namespace, program: Any, timing: Any, tokens: int, name: str) -> Path:
    from bttlab.lab.charts import to_png
    from bttlab.lab.gantt import gantt_figure
    from bttlab.util.files import write_file

    title = f"{name}, {options.flow}, {tokens} tokens, {timing.cycles:,} cycles (modelled)"
    write_file(options.gantt, to_png(gantt_figure(program.sample, timing, title), 1.5), "--gantt")
    return options.gantt


def _text(data: dict[str, Any], name: str) -> str:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{name}, {data['contraction']}; a sample of {data['tokens']} tokens",
        caption="modelled, not measured: " + "; ".join(data["assumptions"][:2]),
    )
    table.add_column("")
    table.add_column("", justify="right")

    def rows(title: str, values: list[tuple[str, str]]) -> None:
        table.add_section()
        table.add_row(f"[bold]{title}[/]", "")
        for name, value in values:
            table.add_row(f"  {name}", value)

    rows("instructions by section", [(name, f"{count:,}") for name, count in data["sections"].items()])
    rows(
        "instructions by unit (busy)",
        [(name, f"{count:,} ({data['busy'][name]:.0%})") for name, count in data["instructions"].items()],
    )
    clock = data["clock_mhz"] * 1e3
    rows(
        f"cycles by length (at {data['clock_mhz']} MHz)",
        [(f"{n} tokens", f"{count:,} ({count / clock:.3f} ms)") for n, count in data["cycles"].items()],
    )
    if "update_cycles" in data:
        update = f"{data['batch_size']} samples of {data['tokens']} tokens"
        rows("cycles of an update, in a call of its own", [(update, f"{data['update_cycles']:,}")])
    rows(
        "cycles by stage",
        [(STAGES[name], f"{count:,}") for name, count in data["cycles_by_stage"].items()],
    )
    if "layer" in data:
        cycles = data["layer"]["cycles_by_stage"].items()
        rows(f"{data['layer']['name']}: cycles by stage", [(STAGES[stage], f"{count:,}") for stage, count in cycles])
    layers = sorted(data["cycles_by_layer"], key=lambda row: -row["cycles"])[:12]
    rows(
        "the 12 largest by layer",
        [(f"{STAGES[row['stage']]} {row['layer']}", f"{row['cycles']:,}") for row in layers],
    )
    lines = [line for name, listing in data.get("list", {}).items() if listing for line in (f"{name}:", *listing)]
    # Lines of a listing are not broken, so all is plain text.
    console = Console(force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    lines.append(capture.get().rstrip("\n"))
    if data["optimizers"] == ["sgd"]:
        lines.append("banks have no room for moments: SGD alone trains this model")
    if data["why_no_sums"]:
        lines.append(f"an update of several samples runs sample by sample: {data['why_no_sums']}")
    if "unseen" in data:
        lines.append(f"operations that reached no output in the check of the trace: {', '.join(data['unseen'])}")
    if "gantt" in data:
        lines.append(f"{data['gantt']}: unit timeline")
    if "hazards" in data:
        hazards = data["hazards"]
        low, high = hazards["lengths"]
        lines += [f"hazards at lengths {low} to {high}: {hazards['count']}", *hazards["texts"]]
    return "\n".join(lines)


STAGES = {"FP": "forward", "BP": "backward", "PU": "update"}
