"""Overlays and programs loaded and kernels called many times over: nothing accumulates."""

import sys

import numpy as np

from bttlab.card import EmulatedU50, open_trainer
from bttlab.model import ModelConfig, Optimizer, initial_parameters
from reliability import worker
from reliability.footprint import MOST_GROWTH, Footprint
from reliability.outcome import Outcome

ENCODERS = (2, 6)  # of the two models
CALLS = 10  # after each load
WARM_UP = 10  # loads, until caches and allocators have what they need


def trial(count: int) -> Outcome:
    """Call kernels `count` times, and load an overlay for every ten calls."""
    found = worker.run("long_runs", count)
    tried = (
        "The overlay and the programs of 2-ENC and 6-ENC loaded in turn on one emulated card, and after each load "
        f"{CALLS} kernel calls that train on one sample, all in one process: after the first {WARM_UP} loads resident "
        f"memory grows by less than {MOST_GROWTH} MiB, and no file descriptor, thread or temporary file stays"
    )
    return Outcome("nothing accumulates", tried, count, found["faults"], found["figures"])


def main(count: int) -> None:
    """Do it, and print what it came to."""
    card, draw = EmulatedU50(), np.random.default_rng(0)

    def load_and_call(number: int) -> None:
        trainer = open_trainer(ModelConfig(encoders=ENCODERS[number % 2]), card)
        trainer.load_parameters(initial_parameters(trainer.config, 0))
        for _ in range(CALLS):
            trainer.train(worker.random_samples(trainer.config, 1, draw), Optimizer("adamw"), 1e-4)

    for number in range(WARM_UP):
        load_and_call(number)
    before = Footprint.now()
    loads = -(-count // CALLS)
    for number in range(loads):
        load_and_call(number)
    worker.report(before, Footprint.now(), [], {"overlay loads": loads, "kernel calls": loads * CALLS})


if __name__ == "__main__":
    main(int(sys.argv[1]))
