"""Train the same model with PyTorch on a GPU or CPU, measure time, memory and energy, and record them."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from bttlab.commands import Outcome
from bttlab.terminal import say

MOST_THREADS = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    formats = "dense; tt: tensor, contracted right to left; btt: tensor, bi-directional"
    add("--format", required=True, metavar="dense|tt|btt", help=formats)
    add("--device", required=True, metavar="cuda|cpu", help="where to train; CUDA_VISIBLE_DEVICES chooses among GPUs")
    add("--encoders", type=int, default=2, metavar="N", help="encoder blocks (default: 2)")
    add("--data", default="airline", metavar="NAME|PATH", help="corpus: atis, snips, airline, or a folder")
    add("--steps", type=int, default=500, metavar="N", help="steps to measure, a sample each (default: 500)")
    add("--warmup", type=int, default=20, metavar="N", help="steps before them, undone afterwards (default: 20)")
    add("--seed", type=int, default=0, metavar="N", help="of initial parameters and sample order (default: 0)")
    add("--lr", type=float, metavar="X", dest="learning_rate", help="learning rate of SGD (default: 4e-3)")
    add("--threads", type=int, default=1, metavar="N", help="threads of PyTorch on the CPU (default: 1)")
    add(
        "--modes", nargs="+", metavar="MODE", help="eager, compile and, on a GPU, graphs, compile+graphs (default: all)"
    )
    add("--record", type=Path, metavar="FILE", help="write the record to this file")


def run(options: argparse.Namespace) -> Outcome:
    """Run the command."""
    import torch

    from bttlab.baseline import BaselineError, check_writable, run_baseline
    from bttlab.baseline.run import LEARNING_RATE
    from bttlab.experiments.keep import keep_baseline
    from bttlab.model import ModelConfig

    if options.record is not None:
        check_writable(options.record)
    if not 1 <= options.threads <= MOST_THREADS:
        raise BaselineError(f"threads is {options.threads}: it must be from 1 to {MOST_THREADS}; give --threads anew")
    torch.set_num_threads(options.threads)
    with _progress(options.steps) as (on_step, on_mode):
        record = run_baseline(
            options.format,
            options.device,
            ModelConfig(encoders=options.encoders),
            options.data,
            options.steps,
            options.warmup,
            options.seed,
            LEARNING_RATE if options.learning_rate is None else options.learning_rate,
            options.modes,
            on_step,
            on_mode,
        )
    if options.record is not None:
        record.write(options.record)
    keep_baseline(record, options.record.stem if options.record else "")
    return Outcome(record.to_dict(), _text(record))


@contextlib.contextmanager
def _progress(steps: int) -> Iterator[tuple[Callable, Callable]]:
    """Callbacks that show modes and, where tqdm is installed, steps, on stderr."""
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        tqdm = None
    bar = None

    def on_mode(name: str) -> None:
        nonlocal bar
        if tqdm is None:
            say(f"bttlab: {name}")
            return
        if bar is not None:
            bar.close()
        bar = tqdm(total=steps, desc=name, unit=" steps", file=sys.stderr, mininterval=1.0, leave=True)

    def on_step(step: int, loss: float, seconds: float) -> None:
        if bar is not None:
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            bar.update()

    try:
        yield on_step, on_mode
    finally:
        if bar is not None:
            bar.close()


def _text(record) -> str:
    from bttlab.baseline import compare

    machine = record.machine
    lines = [
        f"{record.format}, {record.config['encoders']} encoders, {record.steps} steps, all measured on {machine.name} "
        f"(torch {machine.torch}, {machine.threads} threads)"
    ]
    for row in compare([record]):
        mode = record.modes[row.mode]
        line = (
            f"{row.mode:15} step {1e3 * row.step.value:.3f} ms (quartiles {1e3 * mode.lower_quartile.value:.3f} to "
            f"{1e3 * mode.upper_quartile.value:.3f}), epoch {row.epoch.seconds.value:.1f} s"
        )
        if row.epoch.joules.value is not None:
            line += f", {row.epoch.joules.value:.0f} J, {row.epoch.joules_over_idle.value:.0f} J over idle"
        lines.append(line + (" <- best" if row.best else ""))
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
