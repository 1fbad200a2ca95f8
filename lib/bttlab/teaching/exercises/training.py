"""Exercises of notebook 03."""

import inspect
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

import numpy as np

from bttlab.model import LEARNING_RATES, ModelConfig, Optimizer
from bttlab.teaching.exercises.answers import done, near, require_number
from bttlab.teaching.exercises.check import NotDone, exercise, require

BEGINNING = 20  # samples whose losses are computed again: bits of a run that nobody guesses
TAIL = 100
TAUGHT, LOSS = 3, 0.01  # sentences, and what may be lost of slot F1
CLOCKS = {"perf_counter": 1, "perf_counter_ns": 1e9, "monotonic": 1, "monotonic_ns": 1e9, "time": 1, "time_ns": 1e9}


def first_losses(trainer: Any, parameters: Mapping, samples: Any, optimizer: Optimizer, rate: float) -> np.ndarray:
    """Return the first losses of a run on the student's card, and leave its parameters as they were."""
    there = trainer.store_parameters()
    try:
        trainer.load_parameters(parameters)
        return trainer.train(samples[:BEGINNING], optimizer, rate)
    finally:
        trainer.load_parameters(there)


@exercise("03.1", "first_moment and second_moment have one FP32 number a parameter each; the answer is in bytes.")
def moments(answer: Any, config: ModelConfig) -> str:
    """Bytes."""
    require_number(answer, 2 * config.parameters_bytes, 0)
    return "Two more arrays of the size of the parameters: that is why they, too, have to be small."


class _Clockwork:
    """In a trainer's place: its forward pass takes a known time for each sample, by a clock of its own."""

    def __init__(self) -> None:
        self.now, self.is_read = time.perf_counter(), False

    def predict(self, samples: Any) -> None:
        self.now += sum(map(self.seconds, samples.lengths))

    def measured(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function finds that reads this clock wherever it reads one of `CLOCKS`.

        Its notebook may have imported the clock by name. Other threads, which may measure a training, read the clocks
        that there were.
        """
        clocks = {name: self._in_place_of(getattr(time, name), unit) for name, unit in CLOCKS.items()}
        names = getattr(inspect.unwrap(function), "__globals__", {})
        own = list(names.items())  # a notebook's, to which a widget's thread may add some
        imported = {key: clocks[name] for key, value in own for name in CLOCKS if value is getattr(time, name)}
        kept = {key: names[key] for key in imported}  # patch.dict would take all names away for a moment
        with patch.multiple(time, **clocks):
            names.update(imported)
            try:
                return done(function(self, *arguments))
            finally:
                names.update(kept)

    def _in_place_of(self, clock: Callable[[], float], unit: float) -> Callable[[], float]:
        """Return a clock that gives this time to the present thread; a second has `unit` of its units."""
        here = threading.get_ident()

        def read() -> float:
            if threading.get_ident() != here:
                return clock()
            self.is_read = True
            return type(clock())(unit * self.now)

        return read

    @staticmethod
    def seconds(tokens: int) -> float:
        return 1e-3 + 1e-4 * tokens


@exercise(
    "03.2",
    "time trainer.predict(sample[np.zeros(300, int)]) between two time.perf_counter(), and divide by 300.",
)
def time_a_sample(answer: Any, trainer: Any, samples: Any) -> str:
    """seconds(trainer, sample) -> seconds of its forward pass: tried on a stand-in, whose times are known."""
    order = samples.lengths.argsort()
    shortest, longest = samples[int(order[0])], samples[int(order[-1])]
    for sample in (shortest, longest):
        stand_in = _Clockwork()
        expected, found = stand_in.seconds(int(sample.lengths[0])), stand_in.measured(answer, sample)
        require(stand_in.is_read, "your function does not read time.perf_counter(), by which it is tried")
        took = f"a pass over {sample.lengths[0]} tokens that takes {expected:.4f} s"
        require(near(found, expected), f"your function returns {found!r:.30} for {took}")
    long, short = (1e3 * answer(trainer, sample) for sample in (longest, shortest))
    return (
        f"Here {longest.lengths[0]} tokens take {long:.1f} ms, {shortest.lengths[0]} take {short:.1f} ms (measured). "
        "More tokens cost more, but merging the cores costs the same for one as for thirty-two."
    )


@exercise(
    "03.3",
    "trainer.load_parameters(start), then trainer.train(train[order], Optimizer('adamw'), 3e-4): all of its losses.",
)
def adamw(answer: Any, trainer: Any, samples: Any, start: Mapping, sgd: np.ndarray) -> str:
    """The losses of an epoch: those of the first samples are computed again."""
    expected = first_losses(trainer, start, samples, Optimizer("adamw"), LEARNING_RATES["adamw"])
    require(len(answer) == len(samples), f"you gave {len(answer):,} losses; the epoch has {len(samples):,} samples")
    same = np.array_equal(answer[:BEGINNING], expected)
    require(
        same,
        f"the first losses are not those of AdamW at {LEARNING_RATES['adamw']} from `start` in the order train[order]",
    )
    answered, plain = (float(np.mean(losses[-TAIL:])) for losses in (answer, sgd))
    require(np.isfinite(answer).all() and answered < float(np.mean(expected)), f"the losses end at {answered:.2f}")
    return f"The last {TAIL} losses are {answered:.2f} on average, SGD's last of the notebook {plain:.2f} (measured)."


@exercise(
    "03.4",
    "teach.train(steps=8, old=8): more old sentences per step forget less, more steps learn more; Undo, and try again.",
)
def teach_three(answer: Any, trained: Mapping) -> str:
    """The `Teach` widget, after teaching from the parameters `trained`."""
    count = len(answer.taught)
    if not count:
        raise NotDone
    require(count >= TAUGHT, f"you taught {count} sentences; {TAUGHT} are asked for")
    known = {tuple(words) for words in answer.corpus.train.words}
    require(
        not any(tuple(words) in known for words in answer.taught.words),
        "one of them is in the train split: take others",
    )
    wrong = [" ".join(unlearned.words) for unlearned in answer.unlearned()]
    require(not wrong, f"the model does not say what you taught of {wrong[0]!r}" if wrong else "")
    after = answer.dev_scores().slot_f1
    there = answer.trainer.store_parameters()
    try:
        answer.trainer.load_parameters(trained)
        before = answer.dev_scores().slot_f1
    finally:
        answer.trainer.load_parameters(there)
    found = f"slot F1 on dev was {before:.1%} and is {after:.1%}"
    require(before - after < LOSS, f"{found}: you lost {100 * (before - after):.1f} points")
    return f"{found[0].upper()}{found[1:]}, with {count} sentences more (measured)."
