"""Estimate what fine-tuning costs on a GPU, from measured profiles; or measure profiles; or check the model on them."""

import argparse
import re
from pathlib import Path

from bttlab.commands import Outcome
from bttlab.errors import BttlabError

EXAMPLES = """examples:
  bttlab cost --model small --gpu H100-SXM --tokens 100M
  bttlab cost --model small,top_k=8,method=lora --gpu A40 --tokens 1.5M --epochs 10 --json
  bttlab cost profile --record mine.json --device cuda --memory 8GiB
  bttlab cost check --profiles mine.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.epilog, parser.formatter_class = EXAMPLES, argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add(
        "action",
        nargs="?",
        choices=["estimate", "profile", "check"],
        default="estimate",
        help="estimate (default); profile: measure this machine; check: held-out errors, the published model's beside",
    )
    add(
        "--model",
        metavar="NAME[,FIELD=N…]",
        help="tiny, small, base, mixtral-8x7b, and changes of it; profile: it alone",
    )
    add("--gpu", metavar="NAME", help="a GPU of the price table")
    add("--tokens", metavar="N", help="tokens of the data set, as 1500000 or 1.5M")
    add("--epochs", type=int, default=1, metavar="N", help="times that the data set is trained on (default: 1)")
    add("--batch", type=int, metavar="N", help="sequences a step (default: as many as fit)")
    add("--prices", type=Path, metavar="FILE", help="table of prices (default: data/gpu_prices.json)")
    add("--profiles", type=Path, metavar="FILE", help="profiles to fit to (default: data/cost/cpu.json)")
    add("--record", type=Path, metavar="FILE", help="profile: the file to add to; what is in it is not measured again")
    add("--device", default="cpu", metavar="cpu|cuda", help="profile: where (default: cpu, one thread)")
    add("--memory", default="128MiB", metavar="SIZE", help="profile: what the largest batch must fit (default: 128MiB)")


def run(options: argparse.Namespace) -> Outcome:
    """Run the command."""
    return {"estimate": _estimate, "profile": _profile, "check": _check}[options.action](options)


def parse_count(text: str) -> int:
    """Return the number that 1500000, 1.5M, 200k or 2B means.

    Raises
    ------
    BttlabError
        If it is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMB]?)", text)
    if match is None:
        raise BttlabError(f"--tokens {text}: give a number, as 1500000, 200k, 1.5M or 2B")
    return int(float(match[1]) * {"": 1, "k": 10**3, "M": 10**6, "B": 10**9}[match[2]])


def _estimate(options: argparse.Namespace) -> Outcome:
    from bttlab.cost.estimate import ASSUMPTIONS, MODEL_VERSION, TRANSFER, Estimator
    from bttlab.cost.models import find_model
    from bttlab.cost.prices import PRICES, find_gpu, read_prices
    from bttlab.cost.profiles import RECORDED, read_profiles

    for name in ("model", "gpu", "tokens"):
        if getattr(options, name) is None:
            raise BttlabError(f"--{name} is missing; see bttlab cost --help")
    if options.epochs < 1:
        raise BttlabError(f"--epochs is {options.epochs}: it must be at least 1")
    config = find_model(options.model)
    gpu = find_gpu(options.gpu, read_prices(options.prices or PRICES))
    estimator = Estimator(read_profiles(options.profiles or RECORDED))
    found = estimator.estimate(config, gpu, parse_count(options.tokens) * options.epochs, options.batch)
    errors = estimator.held_out()

    def band(values: tuple[float, float, float], unit: str) -> dict:
        low, middle, high = values
        return {"low": low, "value": middle, "high": high, "unit": unit, "provenance": "modelled"}

    data = {
        "model_version": MODEL_VERSION,
        "configuration": vars(config) | {"sparsity": config.sparsity, "parameters": config.parameters},
        "gpu": vars(gpu) | {"provenance": "published"},
        "tokens": found.tokens,
        "largest_batch": {"value": found.largest_batch, "unit": "sequences", "provenance": "modelled"},
        "batch": found.batch,
        "throughput": band(found.tokens_per_second, "tokens/s"),
        "time": band(found.hours, "h"),
        "cost": band(found.cost, "USD"),
        "held_out": errors,
        "extrapolated": found.extrapolated,
        "assumptions": list(ASSUMPTIONS),
        "profiled_on": estimator.profiles.machine.name,
    }
    lines = [
        f"{config}; {config.parameters:,} parameters, on {gpu.gpu}",
        f"  largest batch  {found.largest_batch:,} sequences in {gpu.memory_gb:g} GB (modelled; held out: at most "
        f"{errors['largest_batch_grid_steps_most']} steps of the batch grid off); taken: {found.batch:,}",
        _row("throughput", found.tokens_per_second, "{:,.0f}", "tokens/s"),
        _row("time", found.hours, "{:,.3g}", "h") + f" for {found.tokens:,} tokens",
        _row("cost", found.cost, "{:,.3g}", "USD")
        + f" at {gpu.usd_per_hour:g} USD an hour (published: {gpu.provider}, {gpu.date})",
        f"  held-out error of throughput {errors['throughput_median']:.1%} in the median, over "
        f"{errors['configurations']} configurations measured on {estimator.profiles.machine.name};",
        f"  to another device it is carried by an assumption, hence bands wider by a factor of {TRANSFER:g}",
    ]
    if found.extrapolated:
        lines.append("  extrapolated: " + "; ".join(found.extrapolated))
    return Outcome(data, "\n".join(lines))


def _row(name: str, values: tuple[float, float, float], form: str, unit: str) -> str:
    low, middle, high = (form.format(value) for value in values)
    return f"  {name:13}  {middle} {unit} ({low} to {high}; modelled)"


def _profile(options: argparse.Namespace) -> Outcome:
    from datetime import date

    from bttlab.cost.design import configurations
    from bttlab.cost.memory import parse_bytes
    from bttlab.cost.models import find_model
    from bttlab.cost.profiles import measure_profiles

    if options.record is None:
        raise BttlabError("--record is missing: profile writes its measurements to a file; give its name")
    configs = [find_model(options.model)] if options.model else configurations()

    def say(number: int, config) -> None:
        say(f"bttlab: {number + 1} of {len(configs)}: {config}")

    found = measure_profiles(
        configs, options.record, options.device, parse_bytes(options.memory), date.today().isoformat(), say
    )
    data = {"file": str(options.record), "profiles": len(found.profiles), "machine": found.machine.name}
    return Outcome(data, f"{data['profiles']} profiles of {data['machine']} in {options.record} (measured)")


def _check(options: argparse.Namespace) -> Outcome:
    from rich.table import Table

    from bttlab.cost.profiles import RECORDED, read_profiles
    from bttlab.cost.published import compare

    profiles = read_profiles(options.profiles or RECORDED)
    rows = compare(profiles)
    table = Table(
        title=f"Held-out errors, {len(profiles.profiles)} configurations on {profiles.machine.name}",
        caption="measured against the profiles, each configuration left out in turn",
    )
    for name in ("model", "throughput: median", "90 %", "largest batch: within a grid step", "most steps"):
        table.add_column(name, justify="left" if name == "model" else "right")
    for name, errors in rows.items():
        table.add_row(
            name,
            f"{errors['throughput_median']:.1%}",
            f"{errors['throughput_90_percent']:.1%}",
            f"{errors['largest_batch_within_a_step']:.0%}",
            str(errors["largest_batch_steps_most"]),
        )
    return Outcome({"machine": profiles.machine.name, "held_out": rows}, table)
