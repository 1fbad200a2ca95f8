"""Overlays loaded and kernels called many times over: nothing accumulates."""

import sys

import numpy as np

from bttlab.model import Optimizer, initial_parameters
from bttlab.u50 import EmulatedU50, load_overlay
from reliability import worker
from reliability.footprint import MOST_GROWTH, Footprint
from reliability.outcome import Outcome

OVERLAYS = ("train_enc2", "train_enc6")
CALLS = 10  # after each load
WARM_UP = 10  # loads, until caches and allocators have what they need


def trial(count: int) -> Outcome:
    """Call kernels `count` times, and load an overlay for every ten calls."""
    found = worker.run("long_runs", count)
    tried = (
        f"{' and '.join(OVERLAYS)} loaded in turn on one emulated card, and after each load {CALLS} kernel calls that "
        f"train on one sample, all in one process: after the first {WARM_UP} loads resident memory grows by less than "
        f"{MOST_GROWTH} MiB, and no file descriptor, thread or temporary file stays"
    )
    return Outcome("nothing accumulates", tried, count, found["faults"], found["figures"])


def main(count: int) -> None:
    """Do it, and print what it came to."""
    card, draw = EmulatedU50(), np.random.default_rng(0)

    def load_and_call(number: int) -> None:
        trainer = load_overlay(OVERLAYS[number % 2], card).train_transformer_1
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
