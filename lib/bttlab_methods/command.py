"""List the ways to train with less, or train with some of them and compare."""

import argparse
import sys
from collections import deque
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bttlab.commands import Outcome, add_actions, models
from bttlab.util.errors import BttlabError
from bttlab.util.terminal import result as print_result
from bttlab.util.terminal import say

if TYPE_CHECKING:
    from bttlab.model import ModelConfig

SUMMARY = "list the ways to train with less; train and compare"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    summaries = {
        "list": "name every method, what it changes, its parameters and its source",
        "run": "train with methods, one run after the other, and compare",
    }
    actions = add_actions(parser, summaries)
    for action in actions.values():
        further = "Python file with further methods"
        action.add_argument("--plugin", type=Path, action="append", default=[], metavar="FILE", help=further)
    add = actions["run"].add_argument
    named = "a run each: a method, with parameters as galore:rank=16,every=50; several joined by + act together; "
    add("names", nargs="+", metavar="NAME", help=f"{named}dense is none")
    add("--data", default="airline", metavar="NAME|PATH", help="corpus: atis, snips, airline, or a folder")
    add("--budget", default="1epoch", metavar="N", help="samples of a run, as 2000, or epochs, as 2epochs (1epoch)")
    models.add_model(actions["run"])
    add("--batch", type=int, default=8, metavar="N", help="utterances of a step (default: 8)")
    add("--seeds", type=int, nargs="+", default=[0], metavar="N", help="a run for each (default: 0)")
    scored = "to score; choose on dev, report on test (default: dev)"
    add("--split", choices=("dev", "test"), default="dev", help=scored)
    add("--device", default="cpu", metavar="cpu|cuda", help="where to train (default: cpu)")
    add("--threads", type=int, default=1, metavar="N", help="threads of PyTorch on the CPU (default: 1)")
    record = "add the results to this file; runs of the same corpus that are in it are not repeated"
    add("--record", type=Path, metavar="FILE", help=record)
    checkpoint = "of one run: leave the trained model there, for bttlab eval --run DIR and bttlab train --resume DIR"
    add("--checkpoint", type=Path, metavar="DIR", help=checkpoint)


def run(options: argparse.Namespace) -> Outcome:
    from bttlab_methods.registry import load_plugin

    for path in options.plugin:
        load_plugin(path)
    return _list() if options.action == "list" else _run(options)


def _list() -> Outcome:
    from bttlab_methods import methods

    lines, data = [], []
    for name, kind in methods().items():
        facts = {"name": name, "family": kind.family, "summary": kind.summary(), "parameters": kind.parameters()}
        parameters = ", ".join(f"{key}={value}" for key, value in facts["parameters"].items())
        if not data or data[-1]["family"] != kind.family:
            lines += ["", kind.family.upper()]
        lines += [f"{name:24} {facts['summary']}", f"{'':24} {kind.source}"]
        lines += [f"{'':24} parameters: {parameters}"] if parameters else []
        data.append(facts | {"source": kind.source, "changes": sorted(kind.changes)})
    return Outcome({"methods": data}, "\n".join(lines[1:]))


def _model(options: argparse.Namespace) -> "ModelConfig":
    """Return the model that the options name, dense: methods change it."""
    from bttlab.model import ModelConfig
    from bttlab_methods import MethodError

    if models.is_module(options):
        raise MethodError(
            f"--model {options.model}: methods change the encoder model's parts, which a module of your own does not "
            "name; give sizes, as --hidden-size 384, or a .toml file"
        )
    model = models.model_of(options)
    for name in ("linear_rank", "embedding_rank", "ranks"):
        if getattr(model, name) != getattr(ModelConfig, name):
            raise MethodError(
                f"the model's {name} is {getattr(model, name)}: methods begin with the dense model; give ranks to the "
                "method, as tensor:rank=6,embedding_rank=15"
            )
    return replace(model, format="dense")


def _run(options: argparse.Namespace) -> Outcome:
    import torch

    from bttlab.baseline.machine import open_device
    from bttlab.data import load_corpus
    from bttlab.runs.folder import check_free
    from bttlab.runs.progress import ProgressBar
    from bttlab.util.files import check_output
    from bttlab_methods import MethodError, Setting, combination_name, parse, run_methods, samples_of, write_checkpoint
    from bttlab_methods.record import Results, comparison
    from bttlab_methods.training import changed

    if options.threads < 1:
        raise MethodError(f"threads is {options.threads}: it must be at least 1; pass --threads 1")
    if options.checkpoint is not None and len(options.names) * len(options.seeds) > 1:
        raise MethodError(
            f"--checkpoint {options.checkpoint} is the place of one run, not of "
            f"{len(options.names) * len(options.seeds)}; give one name and one seed"
        )
    torch.set_num_threads(options.threads)
    open_device(options.device)
    combinations = [parse(name) for name in options.names]
    for values in (options.seeds, list(map(combination_name, combinations))):
        if repeated := [value for value in values if values.count(value) > 1]:
            raise MethodError(f"{repeated[0]} is given twice: it would be one run, counted as two; leave it out once")
    corpus = load_corpus(options.data)
    model = models.fitted_to(corpus, options, _model(options))
    samples = samples_of(options.budget, len(corpus.train))
    settings = [Setting(corpus, model, samples, options.batch, seed, options.device) for seed in options.seeds]
    for combination in combinations:  # all that can be refused is, before anything is written or trained
        changed(settings[0], combination)
    if options.checkpoint is not None:
        check_free(options.checkpoint)
    if options.record is not None:
        check_output(Path(options.record), "--record")
    models.say_encoding(corpus, model, ("train", options.split))
    results, bar = Results.read(options.record), ProgressBar()
    asked, trainings, splits = [], deque(maxlen=1), ("dev", "test")[: 1 + (options.split == "test")]
    for setting in settings:
        for combination in combinations:
            result = results.find(combination_name(combination), setting, options.split)
            if result is None and results.is_undigested(combination_name(combination), setting):
                say(
                    f"bttlab: note: {options.record} has {combination_name(combination)}, seed {setting.seed}, without "
                    "the SHA-256 of its corpus: it is run again, and replaced"
                )
            if result is None or options.checkpoint:
                bar.begin(f"{combination_name(combination)}, seed {setting.seed}", setting.samples)
                again = run_methods(setting, combination, bar.advance, None, splits, trainings.append)
                bar.end()
                if result is None:
                    results.add(again)
                result = again
            asked.append(result)
    text = comparison(asked, options.split)
    if options.checkpoint is not None:
        try:
            write_checkpoint(trainings[0], options.checkpoint)
        except BttlabError:  # what was trained for is not lost
            print_result(text, sys.stderr)
            raise
    return Outcome({"results": [asdict(result) for result in asked]}, text)
