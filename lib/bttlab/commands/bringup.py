"""Check a card step by step: XRT, shell, memory, each unit, samples, speed, power. For a card's first hour.

Each step compares the card with the emulated one, which runs the same source, with the paper's smallest model. It ends
at the first step that fails.
"""

import argparse
import platform
from dataclasses import asdict
from pathlib import Path

from bttlab.commands import PROBLEM, Outcome, devices
from bttlab.util.errors import BttlabError
from bttlab.util.files import check_output, write_file
from bttlab.util.quantities import to_json
from bttlab.util.terminal import say

RECORD = "bringup.json"
SAMPLES = 1_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", default="auto", metavar="N", help="number of the card (default: the first real one)"
    )
    parser.add_argument("--overlay", default="trainer", metavar="NAME|FILE", help="overlay to load (default: trainer)")
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
    check_output(options.record, "--record")
    model, samples = _samples(options.samples)
    bringup = Bringup(options.device, options.overlay, model, samples, options.trust)
    checks = []
    for check in bringup.steps():
        say(check)
        checks.append(check)
    failed = checks[-1].status == PROBLEM
    data = {"passed": not failed, "software": software(), "checks": [asdict(check) for check in checks]}
    write_file(options.record, to_json(data, indent=1) + "\n")
    last = f"step {checks[-1].name!r} failed" if failed else "all steps passed"
    text = f"{last}; record for a report (no host name, no user): {options.record}"
    return Outcome(data | {"record": str(options.record)}, text, int(failed))


def _samples(count: int) -> tuple:
    """Return the paper's smallest model, and `count` samples of the airline corpus, repeated if it has fewer."""
    import numpy as np

    from bttlab.data import Vocabulary, encode, load_corpus
    from bttlab.model import ModelConfig

    model, corpus = ModelConfig(encoders=2), load_corpus("airline")
    samples = encode(corpus.train, Vocabulary.from_sentences(corpus.train.words, model.vocabulary_size), corpus, model)
    return model, samples[np.arange(count) % len(samples)]


def software() -> dict[str, str]:
    """Return the versions that a report needs; neither host nor user."""
    from bttlab.card.xrt import xrt_version
    from bttlab.runs.record import versions

    return versions() | {"kernel": platform.release(), "xrt": xrt_version() or "none"}
