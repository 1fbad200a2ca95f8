"""Train the same model with PyTorch on a GPU or CPU and record time, memory and energy; or model them for a GPU."""

import argparse
from functools import partial
from pathlib import Path

from bttlab.commands import Outcome, models
from bttlab.model.choices import LEARNING_RATES
from bttlab.util.errors import BttlabError

MOST_THREADS = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    formats = "dense; tt: tensor, contracted right to left; btt: tensor, bi-directional"
    add(
        "--format",
        metavar="dense|tt|btt",
        help=f"{formats}; with --modelled by default all; not for a module of your own",
    )
    add("--device", metavar="cuda|cpu", help="where to train; CUDA_VISIBLE_DEVICES chooses among GPUs")
    add("--modelled", action="store_true", help="train nothing: model a step on --gpu, eager and in CUDA graphs")
    add("--gpu", metavar="NAME", help="with --modelled: a GPU of data/gpus.json, as RTX-3090")
    models.add_model(parser)
    add("--data", default="airline", metavar="NAME|PATH", help="corpus: atis, snips, airline, or a folder")
    add("--steps", type=int, default=500, metavar="N", help="steps to measure (default: 500)")
    add("--batch", type=int, default=1, metavar="N", help="samples per step, all of one length (default: 1)")
    add("--warmup", type=int, default=20, metavar="N", help="steps before them, undone afterwards (default: 20)")
    add("--seed", type=int, default=0, metavar="N", help="of initial parameters and sample order (default: 0)")
    rate = LEARNING_RATES["sgd"]
    add("--lr", type=float, default=rate, metavar="X", dest="learning_rate", help=f"of SGD (default: {rate:g})")
    add("--threads", type=int, default=1, metavar="N", help="threads of PyTorch on the CPU (default: 1)")
    add("--modes", nargs="+", metavar="MODE", help="eager and, on a GPU, graphs (default: all)")
    add("--record", type=Path, metavar="FILE", help="write the record to this file")


def run(options: argparse.Namespace) -> Outcome:
    if options.modelled or options.gpu is not None:
        return _modelled(options)
    for name in ("device",) if models.is_module(options) else ("format", "device"):
        if getattr(options, name) is None:
            raise BttlabError(f"--{name} is missing; see bttlab baseline --help")
    return _measured(options)


def _modelled(options: argparse.Namespace) -> Outcome:
    from rich.table import Table

    from bttlab.baseline.gpus import find_gpu
    from bttlab.baseline.modes import EXECUTION_MODES
    from bttlab.baseline.run import FORMATS
    from bttlab.data import load_corpus
    from bttlab.data.epoch import EPOCH_SAMPLES
    from bttlab.estimate.gpu import model_step, typical_sample

    for name, value in (("--modelled", options.modelled), ("--gpu", options.gpu)):
        if not value:
            raise BttlabError(f"{name} is missing: --gpu NAME --modelled go together")
    for name, unset in {"device": None, "record": None, "modes": None, "batch": 1}.items():
        if getattr(options, name) != unset:
            raise BttlabError(f"--{name} belongs to a measured baseline: leave it out with --modelled")
    gpu, config, format = find_gpu(options.gpu), *_model(options)
    sample = typical_sample(load_corpus(options.data), config)
    steps = [
        model_step(gpu, format, mode, config, sample)
        for format in ([format] if format else FORMATS)
        for mode in EXECUTION_MODES
    ]
    table = Table(
        title=f"{gpu.gpu}, {config.title}, an utterance of {steps[0].tokens} tokens",
        caption=f"modelled, not measured; low to high. An epoch is {EPOCH_SAMPLES:,} such steps",
    )
    for name in ("format", "mode", "kernels", "ms a step", "W", "s an epoch", "J an epoch", "MB held"):
        table.add_column(name, justify="left" if name in ("format", "mode") else "right")
    for one in steps:
        table.add_row(
            one.format,
            one.mode,
            str(one.kernels),
            _band(one.seconds, 1e3),
            _band(one.watts),
            f"{EPOCH_SAMPLES * one.seconds[1]:.3g}",
            _band(one.joules, EPOCH_SAMPLES),
            f"{one.process_bytes[1] / 1e6:,.0f}",
        )
    return Outcome({"gpu": vars(gpu), "steps": [one.to_dict() for one in steps]}, table)


def _model(options: argparse.Namespace) -> tuple:
    """Return the model and the name of its baseline, if that is one."""
    from bttlab.baseline.run import MODULE

    if not models.is_module(options):
        return models.model_of(options), options.format
    return models.module_of(options, options.seed), options.format or MODULE


def _band(values: tuple[float, float, float], scale: float = 1.0) -> str:
    scaled = [scale * value for value in values]
    low, middle, high = (f"{value:,.0f}" if value >= 100 else f"{value:.2g}" for value in scaled)
    return f"{middle} ({low} to {high})"


def _measured(options: argparse.Namespace) -> Outcome:
    import torch

    from bttlab.baseline import BaselineError, BaselineSetting, Listener, run_baseline
    from bttlab.runs import ProgressBar
    from bttlab.util.files import check_output

    if options.record is not None:
        check_output(Path(options.record), "--record")
    if not 1 <= options.threads <= MOST_THREADS:
        raise BaselineError(f"threads is {options.threads}: it must be from 1 to {MOST_THREADS}; give --threads again")
    torch.set_num_threads(options.threads)
    config, format = _model(options)
    names = ("device", "data", "steps", "warmup", "seed", "learning_rate", "modes", "batch")
    setting = BaselineSetting(format, config=config, **{name: getattr(options, name) for name in names})
    progress = ProgressBar()
    try:
        on_mode = partial(progress.begin, total=options.steps)
        record = run_baseline(setting, Listener(lambda step, loss, seconds: progress.advance([loss]), on_mode))
    finally:
        progress.end()
    if options.record is not None:
        record.write(options.record)
    return Outcome(record.to_dict(), _text(record))


def _text(record) -> str:
    from bttlab.data.epoch import EPOCH_SAMPLES
    from bttlab.model import config_of

    machine = record.machine
    lines = [
        f"{record.format}, {config_of(record.config).title}{record.setting}, {record.steps} steps, "
        f"all measured on {machine.name} (torch {machine.torch}, {machine.threads} threads)"
    ]
    steps = EPOCH_SAMPLES / record.batch
    for name, mode in sorted(record.modes.items(), key=lambda item: item[1].median.value):
        line = (
            f"{name:15} step {1e3 * mode.median.value:.3f} ms (quartiles {1e3 * mode.lower_quartile.value:.3f} to "
            f"{1e3 * mode.upper_quartile.value:.3f}), epoch {steps * mode.mean.value:.1f} s"
        )
        joules, over_idle = mode.energy.per_step.value, mode.energy.per_step_over_idle.value
        if joules is not None:
            line += f", {steps * joules:.0f} J, {steps * over_idle:.0f} J over idle"
        lines.append(line + (" <- best" if name == record.best else ""))
    lines += [f"{name:15} skipped: {reason}" for name, reason in record.skipped.items()]
    shares = ", ".join(
        f"{name.replace('_', ' ')} {share.at_peak.value / 1e6:.2f}" for name, share in record.memory.categories.items()
    )
    lines.append(f"memory at the peak of an eager step, {record.memory.peak.value / 1e6:.2f} MB: {shares}")
    if record.measurement.reserved.value is not None:
        lines.append(f"reserved in mode {record.best}: {record.measurement.reserved.value / 1e6:.2f} MB")
    if record.measurement.energy.per_step.value is None:
        lines.append(f"no energy: {record.measurement.energy.per_step.how}")
    return "\n".join(lines)
