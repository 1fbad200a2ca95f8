"""Measure side by side: contenders take turns on the same work in one run, on one thread."""

import argparse
import os
import platform
from dataclasses import asdict

from bttlab.commands import Outcome
from bttlab.errors import BttlabError

HOW = "time.perf_counter, contenders in turn, median and quartiles over the rounds, one thread"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "what",
        choices=["step", "dashboard"],
        help="step: one training step, overlay against PyTorch; dashboard: training with and without one that redraws",
    )
    parser.add_argument("--data", default="atis", help="corpus, a name or a path (default: atis)")
    parser.add_argument("--encoders", type=int, default=2, metavar="N", help="number of encoders (default: 2)")
    parser.add_argument(
        "--samples", type=int, metavar="N", help="samples a turn (default: 64 for step, 4,478 for dashboard)"
    )
    parser.add_argument("--rounds", type=int, default=9, metavar="N", help="turns that count (default: 9)")


def run(options: argparse.Namespace) -> Outcome:
    """Run the command."""
    from rich.table import Table

    if options.samples is None:
        options.samples = 64 if options.what == "step" else 4_478
    for name in ("samples", "rounds"):
        if getattr(options, name) < 1:
            raise BttlabError(f"--{name} is {getattr(options, name)}: it must be at least 1")

    from bttlab.bench import dashboard_contenders, interleave, ratio, step_contenders, timing
    from bttlab.figures import measured

    choose = step_contenders if options.what == "step" else dashboard_contenders
    contenders = choose(options.data, options.encoders, options.samples)
    seconds = interleave(contenders, options.rounds, options.samples)
    first = next(iter(contenders))
    table = Table(caption=f"{options.encoders}-ENC, {options.data}; measured: {HOW}")
    for title in ("contender", "ms a step", "quartiles", f"times {first}"):
        table.add_column(title, justify="left" if title == "contender" else "right")
    rows = {}
    for name, values in seconds.items():
        spread, times = timing(values), ratio(values, seconds[first])
        milliseconds = {key: 1e3 * value for key, value in asdict(spread).items()}
        quartiles = f"{milliseconds['lower_quartile']:.2f} to {milliseconds['upper_quartile']:.2f}"
        table.add_row(name, f"{milliseconds['median']:.2f}", quartiles, f"{times:.2f}")
        rows[name] = {
            **{key: measured(value, "ms", HOW) for key, value in milliseconds.items()},
            "ratio": measured(times, f"times {first}", "median of the rounds' ratios"),
        }
    data = {
        "benchmark": options.what,
        "data": options.data,
        "encoders": options.encoders,
        "samples": options.samples,
        "rounds": options.rounds,
        "machine": {"processor": _processor(), "load_average": os.getloadavg()[0], "python": platform.python_version()},
        "contenders": rows,
    }
    return Outcome(data, table)


def _processor() -> str:
    """The processor's name, as Linux has it."""
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
