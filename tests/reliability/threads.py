"""Threads with a card each that start and stop training at random: no deadlock, nothing stays."""

import faulthandler
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from bttlab.card import EmulatedU50, OverlayError, open_trainer
from bttlab.model import ModelConfig, Optimizer, initial_parameters
from bttlab.quantities import measured
from reliability import worker
from reliability.footprint import MOST_GROWTH, Footprint
from reliability.outcome import Outcome

from training_processor import some_samples

ENCODERS = (2, 4)  # of the two models
SAMPLES = 96  # of a training run: three chunks
LOAD_EVERY = 10  # starts
END_WITHIN = 60  # seconds, for a run that was asked to stop, on however busy a machine
LOOKS = 10  # at the memory while it goes on


def trial(count: int) -> Outcome:
    """Let two threads do so for `count` seconds."""
    found = worker.run("threads", count, timeout=count + 10 * END_WITHIN)
    tried = (
        f"2-ENC and 4-ENC on emulated cards of their own, a thread for each, in one process: after one load "
        f"each, for {count} s training on {SAMPLES} samples started, and stopped after a random time or left to its "
        f"end, a second start refused meanwhile, the overlay loaded again for every {LOAD_EVERY} starts: every run "
        f"ends, resident memory grows by less than {MOST_GROWTH} MiB, and no file descriptor, thread or temporary "
        "file stays"
    )
    return Outcome("no deadlock", tried, found["figures"].get("starts", 0), found["faults"], found["figures"])


class User:
    """A thread's work, and how often it did what."""

    def __init__(self, encoders: int, seed: int):
        self.config, self.card, self.draw = ModelConfig(encoders=encoders), EmulatedU50(), np.random.default_rng(seed)
        self.starts = self.stops = self.refusals = 0
        self.faults: list[str] = []

    def work(self, goes_on: Callable[[], bool]) -> None:
        """Load the overlay, start and stop; again and again."""
        try:
            while goes_on():
                trainer = open_trainer(self.config, self.card)
                trainer.load_parameters(initial_parameters(self.config, 0))
                for _ in range(LOAD_EVERY):
                    self._start_and_stop(trainer)
        except Exception as error:  # reported, whatever it is
            self.faults.append(f"{self.config.encoders}-ENC, start {self.starts}: {type(error).__name__}: {error}")

    def _start_and_stop(self, trainer) -> None:
        lengths = self.draw.integers(2, trainer.config.sequence_length + 1, SAMPLES)
        samples = some_samples(trainer.config, lengths, seed=self.starts)
        run = trainer.start(samples, Optimizer("sgd"), 1e-4)
        self.starts += 1
        if self.draw.random() < 0.2:
            self._start_again(trainer, samples)
        if self.draw.random() < 0.8:
            time.sleep(self.draw.uniform(0, 0.2))
            run.stop()
            self.stops += 1
        losses = run.wait(END_WITHIN)
        if not run.done:
            raise TimeoutError(f"training has not ended after {END_WITHIN} s")
        if not np.isfinite(losses).all():
            raise ValueError("a loss is not finite")

    def _start_again(self, trainer, samples) -> None:
        try:
            trainer.start(samples, Optimizer("sgd"), 1e-4).wait(END_WITHIN)
        except OverlayError:  # unless the first had ended by then
            self.refusals += 1


def _started(users: list[User], goes_on: Callable[[User], bool]) -> list[threading.Thread]:
    """A thread for each user, started."""
    threads = [threading.Thread(target=user.work, args=(partial(goes_on, user),)) for user in users]
    for thread in threads:
        thread.start()
    return threads


def main(seconds: int) -> None:
    """Do it, and print what it came to."""
    faulthandler.dump_traceback_later(seconds + 5 * END_WITHIN, exit=True)
    users = [User(encoders, seed) for seed, encoders in enumerate(ENCODERS)]
    warming = _started(users, lambda user: user.starts == 0)  # at once: memory is the most when all of them train
    for thread in warming:
        thread.join()
    for user in users:
        user.starts = user.stops = user.refusals = 0
    before, end = Footprint.now(), time.monotonic() + seconds
    threads, memory = _started(users, lambda user: time.monotonic() < end), []
    for look in range(1, LOOKS + 1):
        time.sleep(max(0.0, end - seconds * (1 - look / LOOKS) - time.monotonic()))
        memory.append(Footprint.now().memory)
    for thread in threads:
        thread.join()
    figures = {name: sum(getattr(user, name) for user in users) for name in ("starts", "stops", "refusals")}
    figures[f"resident memory after every {seconds / LOOKS:g} s"] = measured(memory, "MiB", "/proc/self/statm")
    worker.report(before, Footprint.now(), [fault for user in users for fault in user.faults], figures)


if __name__ == "__main__":
    main(int(sys.argv[1]))
