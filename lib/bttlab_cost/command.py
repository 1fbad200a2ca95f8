"""Estimate what fine-tuning costs on a GPU, or check the model on published measurements."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from bttlab.commands import Outcome
from bttlab.util.errors import BttlabError
from bttlab.util.files import check_output
from bttlab.util.terminal import say

SUMMARY = "estimate what fine-tuning costs on a GPU"

EXAMPLES = """examples:
  bttlab cost --model mixtral-8x7b,sequence_length=79 --gpu A40-48GB --batch 8 --tokens 1M
  bttlab cost --model llama-2-7b,method=qlora --gpu H100 --tokens 100M --epochs 3 --json
  bttlab cost --model llama-2-7b,method=full --gpu A100-80GB --gpus 8 --parallel fsdp --tokens 1B
  bttlab cost --model mixtral-8x7b --tokens 100M          every GPU, the cheapest first
  bttlab cost check                                       errors on published measurements"""


ESTIMATED = ("model", "gpu", "tokens", "epochs", "batch", "gpus", "parallel", "link", "prices")  # not of check


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog, parser.formatter_class = EXAMPLES, argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add(
        "action",
        nargs="?",
        choices=["estimate", "check"],
        default="estimate",
        help="estimate (default), or check: errors on published measurements",
    )
    add(
        "--model",
        metavar="NAME|FILE[,FIELD=N…]",
        help="mixtral-8x7b, blackmamba-2.8b, llama-2-7b, tiny, small, base, or a config.json of Hugging Face",
    )
    add("--gpu", metavar="NAME", help="a GPU of data/gpus.json (default: all of them, side by side)")
    add("--tokens", metavar="N", help="tokens of the data set, as 1500000 or 1.5M")
    add("--epochs", type=int, metavar="N", help="times that the data set is trained on (default: 1)")
    add("--batch", type=int, metavar="N", help="sequences per step (default: as many as always fit)")
    add("--gpus", type=int, metavar="N", help="several GPUs of this kind (default: one)")
    add(
        "--parallel",
        metavar="STRATEGY",
        help="how they share the work: ddp, zero1, zero2, zero3, fsdp or tensor (default: fsdp)",
    )
    add(
        "--link",
        metavar="NAME",
        help="their link, of data/links.json (default: NVLink of an A100, H100 or H200 with SXM, else PCIe-4)",
    )
    add("--prices", type=Path, metavar="FILE", help="table of prices (default: data/gpu_prices.json)")
    add("--record", type=Path, metavar="FILE", help="check: write the calibration to this file")


def run(options: argparse.Namespace) -> Outcome:
    unused = ("record",) if options.action == "estimate" else ESTIMATED
    for name in unused:
        if getattr(options, name) is not None:
            raise BttlabError(f"--{name} is not for bttlab cost {options.action}: leave it out")
    return {"estimate": _estimate, "check": _check}[options.action](options)


def parse_count(text: str) -> int:
    """Return the number that 1500000, 1.5M, 200k or 2B means."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMB]?)", text)
    if match is None:
        raise BttlabError(f"--tokens {text}: give a number, as 1500000, 200k, 1.5M or 2B")
    return int(float(match[1]) * {"": 1, "k": 10**3, "M": 10**6, "B": 10**9}[match[2]])


def _estimate(options: argparse.Namespace) -> Outcome:
    from bttlab.baseline.gpus import find_gpu
    from bttlab_cost.estimate import ASSUMPTIONS, MODEL_VERSION, PRICES, Estimator, read_prices
    from bttlab_cost.models import find_model
    from bttlab_cost.parallel import ALONE, Parallel

    for name in ("model", "tokens"):
        if getattr(options, name) is None:
            raise BttlabError(f"--{name} is missing; see bttlab cost --help")
    epochs = 1 if options.epochs is None else options.epochs
    if epochs < 1:
        raise BttlabError(f"--epochs is {epochs}: it must be at least 1")
    config = find_model(options.model)
    estimator = Estimator(prices=read_prices(options.prices or PRICES))
    tokens = parse_count(options.tokens) * epochs
    about = {
        "model_version": MODEL_VERSION,
        "configuration": vars(config) | {"sparsity": config.sparsity, "parameters": config.parameters},
        "tokens": tokens,
        "held_out": {name: vars(errors) for name, errors in estimator.calibration.errors.items()},
        "assumptions": list(ASSUMPTIONS),
    }
    if options.gpus is None and (options.parallel or options.link):
        raise BttlabError("--parallel and --link belong to several GPUs: give their number with --gpus")
    if options.gpu is None:
        if options.gpus is not None:
            raise BttlabError("--gpus is the number of GPUs of one kind: name it with --gpu")
        return _ranking(estimator, config, tokens, options.batch, about)
    gpu = find_gpu(options.gpu)
    parallel = ALONE
    if options.gpus is not None and (options.gpus != 1 or options.parallel or options.link):
        parallel = Parallel.of(options.gpus, options.parallel or "fsdp", gpu, options.link)
    estimate = estimator.estimate(config, gpu, tokens, options.batch, parallel)
    return Outcome(about | _as_data(estimate), _as_text(estimate))


def _as_data(estimate) -> dict:
    def band(values: tuple[float, float, float] | None, unit: str) -> dict | None:
        if values is None:
            return None
        low, middle, high = values
        return {"low": low, "value": middle, "high": high, "unit": unit, "provenance": "modelled"}

    def value(number: float, unit: str) -> dict:
        return {"value": number, "unit": unit, "provenance": "modelled"}

    several = estimate.parallel
    parts = [
        {"stage": stage, "kind": kind, "layer": layer, "seconds": seconds}
        for (stage, kind, layer), seconds in estimate.parts.items()
    ]
    return {
        "gpu": vars(estimate.gpu) | {"provenance": "published"},
        "price": vars(estimate.price) | {"provenance": "published"} if estimate.price else None,
        "largest_batch": band(estimate.largest_batch_band, "sequences"),
        "largest_padded_batch": value(estimate.padded_batch, "sequences"),
        "batch": estimate.batch,
        "memory": band(estimate.peak_bytes, "bytes"),
        "sequences_per_second": band(estimate.sequences_per_second, "sequences/s"),
        "throughput": band(estimate.tokens_per_second, "tokens/s"),
        "time": band(estimate.hours, "h"),
        "cost": band(estimate.cost, "USD"),
        "step": {
            "parts": parts,
            "unit": "s",
            "provenance": "modelled",
            "host_share": value(estimate.host_share, ""),
        },
        "parallel": {
            "gpus": several.gpus,
            "strategy": several.strategy,
            "link": vars(several.link) | {"provenance": "published"},
            "sent_by_each": value(estimate.sent_bytes, "bytes"),
        }
        if several.gpus > 1
        else None,
        "notes": estimate.notes,
    }


def _as_text(estimate) -> str:
    from bttlab_cost.calibration import read_calibration

    config, gpu, price = estimate.config, estimate.gpu, estimate.price
    fits = _row("largest batch", estimate.largest_batch_band, "{:,}", f"sequences of {config.sequence_length} tokens")
    if config.padding != "none":
        fits += f"; {estimate.padded_batch:,} when padded to {config.longest_length}"
    seconds = sum(estimate.parts.values())
    by_layer: dict[str, float] = {}
    for (_, _, layer), value in estimate.parts.items():
        by_layer[layer] = by_layer.get(layer, 0.0) + value
    shares = ", ".join(f"{layer} {value / seconds:.0%}" for layer, value in by_layer.items())
    parallel = estimate.parallel
    number = f"{parallel.gpus} " if parallel.gpus > 1 else ""
    lines = [
        f"{config}; {config.parameters:,} parameters, on {number}{gpu.gpu}",
        f"{fits}; taken: {estimate.batch:,}",
        _row("memory", [one / 2**30 for one in estimate.peak_bytes], "{:,.1f}", "GiB")
        + f" of {gpu.memory_bytes / 2**30:,.1f} GiB",
        f"  a step         {seconds:,.3g} s: {shares} (modelled); {estimate.host_share:.0%} waits for the host",
        _row("throughput", estimate.sequences_per_second, "{:,.3g}", "sequences/s"),
        _row("", estimate.tokens_per_second, "{:,.0f}", "tokens/s"),
        _row("time", estimate.hours, "{:,.3g}", "h") + f" for {estimate.tokens:,} tokens",
    ]
    if parallel.gpus > 1:
        lines[1:1] = [
            f"  GPUs           {parallel.strategy} over {parallel.link.link}, {parallel.link.gb_s:g} GB/s (published)",
            f"                 each sends {estimate.sent_bytes / 1e9:,.3g} GB a step (modelled); batch, memory and "
            "step are those of each",
        ]
    if estimate.cost is None:
        lines.append("  cost           unknown: the table of prices has none for this GPU")
    else:
        lines.append(
            _row("cost", estimate.cost, "{:,.3g}", "USD")
            + f" at {price.usd_per_hour:g} USD an hour and GPU (published: {price.provider}, {price.date})"
        )
    if config.padding == "none":
        lines.append(f"  lengths        every sequence has {config.sequence_length} tokens; no padding")
    else:
        tail = read_calibration().time_of(config).tail
        lines.append(
            f"  lengths        median {config.sequence_length} tokens, assumed tail {tail:.0f}; a batch is padded to "
            f"{config.padded_length(estimate.batch, tail):.0f} on average"
        )
    return "\n".join(lines + [f"  note: {note}" for note in estimate.notes])


def _ranking(estimator, config, tokens: int, batch: int | None, about: dict) -> Outcome:
    """Every GPU that the model fits, the cheapest first, those without a price after them."""
    from rich.table import Table

    from bttlab.baseline.gpus import read_gpus
    from bttlab_cost.configuration import CostError

    estimates, refused = [], []
    for gpu in read_gpus().values():
        try:
            estimates.append(estimator.estimate(config, gpu, tokens, batch))
        except CostError as error:
            refused.append({"gpu": gpu.gpu, "reason": str(error)})
    if not estimates:
        raise CostError(refused[-1]["reason"])
    estimates.sort(key=lambda one: (one.cost is None, one.cost[1] if one.cost else one.hours[1]))
    price = next((one.price for one in estimates if one.price), None)
    caption = f"prices published: {price.provider}, {price.date}" if price else "no prices"
    table = Table(
        title=f"{config}, {tokens:,} tokens", caption=f"modelled; {caption}; {len(refused)} GPUs do not fit it"
    )
    for name in ("GPU", "batch", "sequences/s", "h", "USD", "low to high"):
        table.add_column(name, justify="left" if name == "GPU" else "right")
    for one in estimates:
        cost = ("", "") if one.cost is None else (f"{one.cost[1]:,.3g}", f"{one.cost[0]:,.3g} to {one.cost[2]:,.3g}")
        table.add_row(one.gpu.gpu, str(one.batch), f"{one.sequences_per_second[1]:,.3g}", f"{one.hours[1]:,.3g}", *cost)
    return Outcome(about | {"gpus": [_as_data(one) for one in estimates], "refused": refused}, table)


def _row(name: str, values: Sequence[float], form: str, unit: str) -> str:
    low, middle, high = (form.format(value) for value in values)
    return f"  {name:13}  {middle} {unit} ({low} to {high}; modelled)"


def _check(options: argparse.Namespace) -> Outcome:
    from rich.table import Table

    from bttlab_cost import xia2024
    from bttlab_cost.calibration import errors_of, errors_of_equation_2, modelled_largest_batches
    from bttlab_cost.fitting import calibrate, errors_of_several_gpus, memory_errors

    if options.record is not None:
        check_output(options.record, "--record")
    say("bttlab: fitting, and fitting again without each group of points")
    calibration, groups = calibrate()
    if options.record is not None:
        calibration.write(options.record)
    errors = dict(calibration.errors)
    errors["H100, kept aside"] = errors_of(
        (point, calibration.time) for point in xia2024.throughputs("throughput_h100.csv")
    )
    errors["published equation 2, its own points"] = errors_of_equation_2()
    errors["several GPUs, held out"] = errors_of_several_gpus(calibration)
    memory = memory_errors(calibration.flash_memory)
    batches = [
        {
            "gpu": point.gpu,
            "published": point.largest_batch,
            "modelled": modelled,
            "equation_1": xia2024.equation_1(point),
        }
        for point, modelled in modelled_largest_batches(calibration.memory)
    ]
    table = Table(
        title="Errors of modelled throughput",
        caption="against published measurements (arXiv 2408.04693); largest batches of 512 tokens: "
        + ", ".join("{gpu} {published}, modelled {modelled}, equation 1 {equation_1}".format(**row) for row in batches),
    )
    for name in ("points", "number", "median", "90 %", "bias"):
        table.add_column(name, justify="left" if name == "points" else "right")
    rows = list(errors.items())
    rows += [(f"  without {group}", one) for kind in groups.values() for group, one in kind.items()]
    rows += [(f"  memory, {project}", one) for project, one in memory.items()]
    for name, one in rows:
        table.add_row(name, str(one.points), f"{one.median:.1%}", f"{one.nine_of_ten:.1%}", f"{one.bias:+.1%}")
    data = {
        "coefficients": vars(calibration.time) | vars(calibration.memory),
        "errors": {name: vars(one) for name, one in errors.items()},
        "groups": {kind: {name: vars(one) for name, one in of_kind.items()} for kind, of_kind in groups.items()},
        "memory": {project: vars(one) for project, one in memory.items()},
        "largest_batches": batches,
    }
    return Outcome(data, table)
