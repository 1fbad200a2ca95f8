"""Train the same model with PyTorch on a GPU or CPU and record time, memory and energy."""

import argparse
from functools import partial
from pathlib import Path

from bttlab.commands import Outcome, models
from bttlab.model.choices import LEARNING_RATES
from bttlab.util.errors import BttlabError
from bttlab.util.terminal import one_line

MOST_THREADS = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    formats = "dense; tt: tensor, contracted right to left; btt: tensor, bi-directional"
    add("--format", metavar="dense|tt|btt", help=f"{formats}; not for a module of your own")
    add("--device", metavar="cuda|cpu", help="where to train; CUDA_VISIBLE_DEVICES chooses among GPUs")
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
    for name in ("device",) if models.is_module(options) else ("format", "device"):
        if getattr(options, name) is None:
            raise BttlabError(f"--{name} is missing; see bttlab baseline --help")
    import torch

    from bttlab.baseline import BaselineSetting, Listener, run_baseline
    from bttlab.baseline.run import MODULE
    from bttlab.data import load_corpus
    from bttlab.runs import ProgressBar
    from bttlab.util.files import check_output

    if options.record is not None:
        check_output(Path(options.record), "--record")
    if not 1 <= options.threads <= MOST_THREADS:
        raise BttlabError(f"threads is {options.threads}: it must be from 1 to {MOST_THREADS}; give --threads again")
    torch.set_num_threads(options.threads)
    config = models.fitted_to(load_corpus(options.data), options, models.model_of(options, options.seed))
    format = options.format or MODULE
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
    from bttlab.model import config_of

    machine = record.machine
    lines = [
        f"{record.format}, {config_of(record.config).title}{record.setting}, {record.steps} steps, "
        f"measured on {machine.name} (torch {machine.torch}, {machine.threads} threads)",
        f"an epoch is the {record.corpus.samples:,} training samples of {one_line(record.corpus.name)}; its time and "
        "energy are extrapolated from the mean of the measured steps",
    ]
    steps = record.corpus.samples / record.batch
    for name, mode in sorted(record.modes.items(), key=lambda item: item[1].median.value):
        line = (
            f"{name:15} step {1e3 * mode.median.value:.3f} ms (quartiles {1e3 * mode.lower_quartile.value:.3f} to "
            f"{1e3 * mode.upper_quartile.value:.3f}), epoch {steps * mode.mean.value:.1f} s (extrapolated)"
        )
        joules, over_idle = mode.energy.per_step.value, mode.energy.per_step_over_idle.value
        if joules is not None:
            line += f", {steps * joules:.0f} J, {steps * over_idle:.0f} J over idle (extrapolated)"
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
