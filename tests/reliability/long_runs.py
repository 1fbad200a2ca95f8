"""Trainings, overlays and programs in one process, many of them: nothing accumulates."""

import sys
import tempfile
from itertools import product
from pathlib import Path

import numpy as np

from bttlab.card import EmulatedU50, open_trainer
from bttlab.data import load_corpus
from bttlab.model import ModelConfig, Optimizer, initial_parameters
from bttlab.runs import ProgressBar, start_run
from reliability import worker
from reliability.footprint import MOST_GROWTH, Footprint
from reliability.outcome import Outcome
from tiny_runs import settings, write_corpus

from training_processor import some_samples

MODELS = [ModelConfig(encoders=n, linear_rank=rank) for n, rank in product(range(1, 6), range(2, 12))]  # 50
CALLS = 10  # of the kernel with each program
WARM_UP = 5  # trainings, until caches and allocators have what they need


def trial(count: int) -> Outcome:
    """Train `count` runs, then load the overlay and a program of another model `len(MODELS)` times."""
    found = worker.run("long_runs", count)
    tried = (
        f"Runs of `bttlab train` (3 epochs), then the overlay and programs of {len(MODELS)} models (1- to 5-ENC, ranks "
        f"2 to 11), each compiled, loaded and called {CALLS} times, all in one process on one emulated card. After as "
        f"many of each as fill the caches, resident memory grows by less than {MOST_GROWTH} MiB, and no file "
        "descriptor, thread or temporary file stays"
    )
    return Outcome("nothing accumulates", tried, count, found["faults"], found["figures"])


def main(count: int) -> None:
    """Do it, and print what it came to."""
    card, draw = EmulatedU50(), np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as scratch:
        corpus = write_corpus(Path(scratch) / "corpus")
        for number in range(WARM_UP + count):
            if number == WARM_UP:
                before = Footprint.now()
            _train(Path(scratch) / f"run{number}", corpus, card)
        faults = Footprint.now().faults_since(before)
        for number in range(2 * len(MODELS)):
            if number == len(MODELS):
                before = Footprint.now()
            _load_and_call(MODELS[number % len(MODELS)], card, draw)
        worker.report(before, Footprint.now(), faults, {"trainings": count, "programs": len(MODELS)})


def _train(folder: Path, corpus: Path, card: EmulatedU50) -> None:
    """Train a run of 2-ENC."""
    config = ModelConfig(encoders=2)
    run = start_run(folder, settings(corpus, "adamw", config=config), load_corpus(corpus))
    run.train(open_trainer(config, card), card.name, ProgressBar())


def _load_and_call(config: ModelConfig, card: EmulatedU50, draw: np.random.Generator) -> None:
    trainer = open_trainer(config, card)
    trainer.load_parameters(initial_parameters(config, 0))
    for length in draw.integers(2, config.sequence_length + 1, CALLS):
        trainer.train(some_samples(config, [length], seed=int(length)), Optimizer("sgd"), 1e-4)


if __name__ == "__main__":
    main(int(sys.argv[1]))
