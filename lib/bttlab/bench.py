"""Side-by-side measurements: contenders take turns on the same work in one process, so that a busy machine hits all."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np


@dataclass(frozen=True)
class Timing:
    """Seconds per piece of work of one contender, over the rounds.

    Attributes
    ----------
    median, lower_quartile, upper_quartile : float
        In seconds.
    """

    median: float
    lower_quartile: float
    upper_quartile: float


def interleave(contenders: Mapping[str, Callable[[], float | None]], rounds: int, pieces: int) -> dict[str, np.ndarray]:
    """Let contenders take turns and measure each turn.

    Parameters
    ----------
    contenders : mapping of str to callable
        Each does `pieces` pieces of work a turn; the first turn of each is not counted. One that also tidies up returns
        the seconds that the work took.
    rounds : int
        Turns that count.
    pieces : int

    Returns
    -------
    dict of str to ndarray, shape (rounds,)
        Seconds per piece, measured by time.perf_counter.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, work in contenders.items():
            start = time.perf_counter()
            spent = work()
            if turn:
                seconds[name].append((time.perf_counter() - start if spent is None else spent) / pieces)
    return {name: np.array(values) for name, values in seconds.items()}


def timing(seconds: np.ndarray) -> Timing:
    """Return median and quartiles of the rounds."""
    lower, median, upper = np.percentile(seconds, [25, 50, 75])
    return Timing(float(median), float(lower), float(upper))


def ratio(seconds: np.ndarray, baseline: np.ndarray) -> float:
    """Return how many times as long `seconds` are as `baseline`: the median of the rounds' ratios."""
    return float(np.median(seconds / baseline))


def step_contenders(corpus: str, encoders: int, samples: int) -> dict[str, Callable[[], None]]:
    """Return what trains one step a sample: the overlay on the emulated U50, and PyTorch in three ways, on one thread.

    Parameters
    ----------
    corpus : str
        Name or path.
    encoders : int
    samples : int
        Of the shuffled training split, the same for all; SGD at 1e-3.
    """
    import torch

    from bttlab.data import Vocabulary, encode, epoch_order, load_corpus
    from bttlab.model import ModelConfig, Optimizer, ReferenceTrainer, Trainer, initial_parameters
    from bttlab.u50 import EmulatedU50, load_overlay

    torch.set_num_threads(1)
    config = ModelConfig(encoders=encoders)
    data = load_corpus(corpus)
    vocabulary = Vocabulary.from_sentences(data.train.words, config.vocabulary_size)
    train = encode(data.train, vocabulary, data, config)
    train = train[epoch_order(len(train), 0, 0)[:samples]]
    overlay = load_overlay(f"train_enc{encoders}", EmulatedU50()).train_transformer_1
    overlay.load_parameters(initial_parameters(config, 0))
    trainers = {
        "emulated U50": overlay,
        "PyTorch BTT": ReferenceTrainer(config),
        "PyTorch right-to-left": ReferenceTrainer(config, flow="right_to_left"),
        "PyTorch dense": ReferenceTrainer(ModelConfig(encoders=encoders, format="dense")),
    }

    def work(trainer: Trainer) -> None:
        trainer.train(train, Optimizer("sgd"), 1e-3)

    return {name: partial(work, trainer) for name, trainer in trainers.items()}


def dashboard_contenders(corpus: str, encoders: int, samples: int) -> dict[str, Callable[[], float]]:
    """Return the same training on the emulated U50 without a dashboard and under one that redraws all the while.

    Parameters
    ----------
    corpus, encoders, samples
        As for `step_contenders`.
    """
    from bttlab.data import load_corpus
    from bttlab.lab import Dashboard, Workload, card_target
    from bttlab.lab.runs import Run
    from bttlab.model import ModelConfig
    from bttlab.u50 import EmulatedU50, load_overlay

    overlay = load_overlay(f"train_enc{encoders}", EmulatedU50())
    target = card_target(overlay, Workload.of(load_corpus(corpus), ModelConfig(encoders=encoders)))

    def train(start: Callable[[], Run], finish: Callable[[], None]) -> float:
        run = start()
        run.join()
        finish()
        return run.count / run.rate  # seconds in training steps; the dev split is scored in between

    def plain() -> Run:
        run = target.make_run(samples, 1e-3)
        run.start()
        return run

    board = Dashboard([target], name="bench")

    def watched() -> Run:
        board.clear()
        board.start(target.name, samples)
        return board.runs[-1]

    return {
        "without a dashboard": lambda: train(plain, lambda: None),
        "with a dashboard": lambda: train(watched, board.wait),
    }
