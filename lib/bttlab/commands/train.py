"""Train a tensor transformer for intents and slots, or a module of your own, on a corpus; or continue a run."""

import argparse
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bttlab.commands import Outcome, devices, models
from bttlab.commands.receipts import add_receipt, check_receipt, repeatable
from bttlab.model.choices import LEARNING_RATES, OPTIMIZERS
from bttlab.runs.scores import counted, scores_in_words
from bttlab.util.collection import paused_at_start
from bttlab.util.errors import BttlabError
from bttlab.util.terminal import one_line, say

DEFAULTS = {"data": "airline", "device": "auto"}
RECIPES = Path(__file__).parents[1] / "runs" / "recipes"  # as in runs.recipe, which imports torch
OPTIONS = (
    *models.OPTIONS,
    *("data", "recipe", "epochs", "samples", "optimizer", "batch_size", "learning_rate", "seed"),
    *("flow", "device", "cards", "overlay", "unknown_labels", "keep"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments; none has a default here, so that a resumed run keeps its own."""
    add = parser.add_argument
    models.add_model(parser)
    add("--data", metavar="NAME|PATH", help="corpus: atis, snips, airline, or a folder (default: airline)")
    add(
        "--recipe",
        metavar="NAME|FILE",
        help=f"{', '.join(sorted(path.stem for path in RECIPES.glob('*.toml')))} or a .toml file; --epochs, "
        "--optimizer, --batch-size, --lr come before it (default: none)",
    )
    add("--epochs", type=int, metavar="N", help="epochs in all, those of a resumed run included (default: 1)")
    add("--samples", type=int, metavar="N", help="the first N samples of each epoch's order (default: all)")
    add("--optimizer", choices=OPTIMIZERS, help="update rule (default: sgd)")
    add("--batch-size", type=int, metavar="N", help="samples of an update (default: 1)")
    add(
        "--lr",
        type=float,
        metavar="X",
        dest="learning_rate",
        help=f"learning rate (default: {', '.join(f'{name} {rate:g}' for name, rate in LEARNING_RATES.items())})",
    )
    add("--seed", type=int, metavar="N", help="of initial parameters and sample order (default: 0)")
    devices.add_device(parser, "auto")
    add(
        "--cards",
        type=int,
        metavar="N",
        help="cards that share the samples of an update, with --batch-size N or more (default: 1)",
    )
    models.add_flow(parser, None)
    devices.add_overlay(parser, "trainer")
    add(
        "--unknown-labels",
        choices=("error", "unk"),
        help="training utterances with a label that is in no label list: refuse, or take as UNK (default: error)",
    )
    add("--keep", choices=("last", "best"), help="best: keep the epoch with the best dev scores, too (default: last)")
    add("--out", type=Path, metavar="DIR", help="the run's folder (default: runs/DATA-MODEL-DATE-TIME-XXXX)")
    add(
        "--resume",
        nargs="?",
        const=True,
        metavar="DIR",
        help="continue the run in DIR, or in --out; epochs, learning rate, device and the corpus's place may change",
    )
    add_receipt(parser)


def run(options: argparse.Namespace) -> Outcome:
    with paused_at_start() as started:
        return _train(options, started)


def _train(options: argparse.Namespace, started: Callable[[], None]) -> Outcome:
    from bttlab.runs import ProgressBar
    from bttlab.runs.table import add_to_index
    from bttlab.runs.u50 import U50Figures

    check_receipt(options)
    given = {name: getattr(options, name) for name in OPTIONS if getattr(options, name) is not None}
    training = _resumed(options, given) if options.resume else _new(options, given)
    progress = ProgressBar()
    for note in training.notes:
        progress.note(f"note: {note}")
    settings = training.settings
    if training.is_recorded() and (finished := training.finished()):
        progress.note(
            f"nothing is left of the run in {training.folder}: {counted(settings.epochs, 'epoch')} trained and tested; "
            "train more with a larger --epochs"
        )
        training.settings = replace(settings, learning_rate=training.checkpoint.settings.learning_rate)
        return _outcome(training, training.checkpoint.device, finished)
    opened = training.open_trainer(options.trust, options.wait, options.require_card)
    figures = U50Figures(training.model, training.lengths, settings.optimizer, settings.flow, settings.cards)
    progress.note(f"training on {opened.announcement}; run folder {training.folder}")
    try:
        add_to_index(training.folder)
    except OSError as error:
        say(f"bttlab: note: bttlab runs list will not show the run: {error.filename}: {error.strerror}")
    started()
    result = training.train(opened.trainer, opened.device, progress, opened.provenance, callback=figures)
    if options.receipt is not None:
        from bttlab.runs.receipt import receipt_of_run

        if result.test is None:
            raise BttlabError(f"{options.receipt} is not written: the run is not complete")
        receipt_of_run(training, opened, result, repeatable(options.command_line)).write(options.receipt)
    return _outcome(training, opened.device, result)


def _new(options: argparse.Namespace, given: dict):
    from bttlab.data import load_corpus
    from bttlab.runs import start_run
    from bttlab.runs.folder import check_free
    from bttlab.runs.recipe import settings_of
    from bttlab.runs.settings import fitted_to

    module = models.module_of(options, options.seed or 0) if models.is_module(options) else None
    if options.out is not None:
        check_free(options.out, module)  # before anything slow
    values = DEFAULTS | {name: value for name, value in given.items() if name not in models.OPTIONS}
    values["data"] = _absolute(values["data"])
    config = models.model_of(options) if module is None else module.config
    settings = settings_of(values, config)
    corpus = load_corpus(settings.data, settings.unknown_labels)
    settings = fitted_to(corpus, settings, grows=not models.has_vocabulary(options))
    folder = options.out or _default_folder(f"{corpus.name}-{config.slug}")
    return start_run(folder, settings, corpus, model=module)


def _resumed(options: argparse.Namespace, given: dict):
    from bttlab.runs import resume_run

    if options.resume is True and options.out is None:
        raise BttlabError("--resume needs the folder of a run: bttlab train --resume DIR")
    folder = options.out if options.resume is True else Path(options.resume)
    if options.out not in (None, folder):
        raise BttlabError(f"--resume {folder} and --out {options.out} name two folders; leave --out out")
    if "data" in given:
        given["data"] = _absolute(given["data"])
    given |= {name: getattr(options, name) for name in ("model", "task") if getattr(options, name) is not None}
    return resume_run(folder, given, options.trust)


def _absolute(data: str) -> str:
    """Return a corpus's absolute path, or its name."""
    path = Path(data).expanduser()
    return str(path.resolve()) if os.sep in data or path.is_dir() else data


def _default_folder(name: str) -> Path:
    """Return a name that no other process takes, however many begin in the same second."""
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def _outcome(training, device: str, result) -> Outcome:
    from bttlab.runs.metrics import METRICS_FILE
    from bttlab.runs.record import LATEST

    settings = training.settings
    data = {
        "status": "complete" if result.signal is None else "interrupted",
        "run": str(training.folder),
        "checkpoint": str(training.folder / LATEST),
        "metrics": str(training.folder / METRICS_FILE),
        "device": device,
        "corpus": {"name": training.corpus_record.name, "sha256": training.corpus_record.sha256},
        **settings.config.identity,
        "parameters": settings.config.parameters_count,
        "recipe": settings.recipe,
        "optimizer": settings.optimizer.name,
        "batch_size": settings.optimizer.batch_size,
        "cards": settings.cards,
        "learning_rate": settings.learning_rate,
        "seed": settings.seed,
        "epochs": settings.epochs,
        "epochs_done": result.epochs_done,
        "position": result.position,
        "last_epoch": result.epoch,
        "test": result.test,
        "parameters_sha256": result.parameters_sha256,
    }
    lines = [f"parameters SHA-256 {result.parameters_sha256}", f"run folder {training.folder}"]
    if result.test:
        lines.insert(0, f"test after {counted(result.epochs_done, 'epoch')}: {scores_in_words(result.test)}")
    return Outcome(data, "\n".join(map(one_line, lines)), 0 if result.signal is None else 128 + result.signal)
