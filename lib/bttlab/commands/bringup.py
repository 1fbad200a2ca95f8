"""Check a card step by step: XRT, shell, memory, each unit, samples, speed, power. For a card's first hour.

Each step compares the card with the emulated one, which runs the same source, with any model and corpus. The first step
that fails ends it.
"""

import argparse
import platform
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import bttlab
from bttlab.commands import PROBLEM, Outcome, devices, models
from bttlab.util.errors import BttlabError
from bttlab.util.files import write_file
from bttlab.util.quantities import to_json
from bttlab.util.terminal import say

RECORD = "bringup.json"
SAMPLES = 1_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", default="auto", metavar="N", help="number of the card (default: the first real one)"
    )
    parser.add_argument("--overlay", default="trainer", metavar="NAME|FILE", help="overlay to load (default: trainer)")
    models.add_model(parser)
    parser.add_argument(
        "--data", default="airline", metavar="NAME|PATH", help="corpus: atis, snips, airline, or a folder"
    )
    devices.add_trust(parser)
    parser.add_argument(
        "--samples", type=int, default=SAMPLES, metavar="N", help=f"of the long run (default: {SAMPLES})"
    )
    parser.add_argument(
        "--record", type=Path, default=Path(RECORD), metavar="FILE", help=f"where the record goes (default: {RECORD})"
    )


def run(options: argparse.Namespace) -> Outcome:
    from bttlab.commands.bringup_steps import Bringup

    if options.samples < 1:
        raise BttlabError(f"--samples {options.samples}: give 1 at least")
    model, samples = _samples(options)
    bringup = Bringup(options.device, options.overlay, model, samples, options.trust)
    checks = []
    for check in bringup.steps():
        say(f"{check.status:8} {check.name}: {check.detail}")
        if check.way_out:
            say(f"{'':8}   -> {check.way_out}")
        checks.append(check)
    failed = checks[-1].status == PROBLEM
    data = {"passed": not failed, "software": software(), "checks": [asdict(check) for check in checks]}
    write_file(options.record, to_json(data, indent=1) + "\n")
    last = f"step {checks[-1].name!r} failed" if failed else "all steps passed"
    text = f"{last}; record for a report (no host name, no user): {options.record}"
    return Outcome(data | {"record": str(options.record)}, text, int(failed))


def _samples(options: argparse.Namespace) -> tuple:
    """Return the model, with room for all words, and as many samples as asked for, over and over."""
    import numpy as np

    from bttlab.data import Vocabulary, encode, load_corpus

    model, corpus = models.model_or_module(options), load_corpus(options.data, "unk")
    is_module = models.is_module(options)
    vocabulary = Vocabulary.from_sentences(corpus.train.words, model.vocabulary_size if is_module else None)
    if not is_module and not models.has_vocabulary(options) and len(vocabulary) > model.vocabulary_size:
        model = model.with_vocabulary(len(vocabulary))
    samples = encode(corpus.train, vocabulary, corpus, model)
    return model, samples[np.arange(options.samples) % len(samples)]


def software() -> dict[str, str]:
    """Return the versions that a report needs; neither host nor user."""
    from bttlab.card.xrt import xrt_version

    versions = {name: metadata.version(name) for name in ("pynq", "numpy", "torch")}
    own = {"bttlab": bttlab.__version__, "python": platform.python_version(), "kernel": platform.release()}
    return own | versions | {"xrt": xrt_version() or "none"}
