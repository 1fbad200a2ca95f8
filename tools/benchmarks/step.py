"""A training step of the whole model: the overlay on the emulated U50, and PyTorch in several ways.

At batch 1, and with updates of several samples: then a step is a sample's share of an update.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.result import Result, Table, describe_runs, time_ratios, time_rows
from benchmarks.turns import HOW, interleave, second_time, threads_of_torch
from bttlab.model.loop import LARGEST_CHUNK
from bttlab.util.quantities import column_metadata

OURS = "emulated U50"
BATCH = 8
UPDATES = f", updates of {BATCH}"
LEARNING_RATE = 1e-3


def measure(
    corpus: str = "atis",
    encoders: int = 2,
    samples: int = 32,
    repeats: int = LARGEST_CHUNK // 32,
    long_call: int = 320,
    threads: Sequence[int] = (1, 2),
    rounds: int = 9,
) -> Result:
    """Measure training steps by SGD, the same `samples` of the shuffled training split in each turn.

    The card trains on them `repeats` times in a call, by default as large as those of `bttlab train`. Every contender
    does its work twice a turn, and the second time counts: in a training the caches are its own.

    `threads` are those of PyTorch, and of the emulated card, which uses two at most. The card alone also trains on
    `long_call` samples in a call.
    """
    from bttlab.card import EmulatedU50

    rows: list[dict[str, Any]] = []
    ratios: dict[str, dict[str, float]] = {}
    cards = [EmulatedU50() for _ in range(2)]
    contenders, train_long = _contenders(corpus, encoders, samples, repeats, long_call, cards)
    turns = {
        name: _share(second_time(work), repeats if name.startswith(OURS) else 1) for name, work in contenders.items()
    }
    for count in threads:
        for card in cards:
            card.threads = min(count, 2)
        with threads_of_torch(count):
            seconds = interleave(turns, rounds, samples)
            long = {f"{OURS}, {long_call} samples a call": second_time(train_long)}
            seconds |= interleave(long, rounds, long_call)
        rows += time_rows({"threads": count}, seconds)
        ratios |= time_ratios(f"{encoders}-ENC, threads {count}: ", seconds, OURS)
    return Result(
        settings={"data": corpus, "encoders": encoders, "samples": samples, "repeats": repeats, "rounds": rounds},
        figures={
            "time": column_metadata(
                "ms a step",
                "measured",
                f"{HOW}, the second time of a turn; threads of PyTorch and of the emulated card",
            )
        },
        rows=rows,
        ratios=ratios,
        programs=[encoders],
    )


def _share(turn: Callable[[], float], parts: int) -> Callable[[], float]:
    return lambda: turn() / parts


def _contenders(
    corpus: str, encoders: int, samples: int, repeats: int, long_call: int, cards: Sequence[Any]
) -> tuple[dict[str, Callable[[], None]], Callable[[], None]]:
    from benchmarks.peers import IMPLEMENTATIONS, PeerTask
    from bttlab.baseline.step import Task
    from bttlab.card import open_trainer
    from bttlab.data import load_corpus
    from bttlab.lab.workload import Workload
    from bttlab.model import ModelConfig, Optimizer, initial_parameters

    config = ModelConfig(encoders=encoders)
    work = Workload.of(load_corpus(corpus), config)
    order = work.order(long_call)
    train, long = work.train[order[:samples]], work.train[order]
    call = work.train[np.tile(order[:samples], repeats)]
    optimizers = Optimizer("sgd"), Optimizer("sgd", batch_size=BATCH)
    trainers = [
        open_trainer(config, card, optimizer=optimizer) for card, optimizer in zip(cards, optimizers, strict=True)
    ]
    for trainer in trainers:
        trainer.load_parameters(initial_parameters(config, 0))

    def task(flow: str, config: ModelConfig = config) -> Task:
        return Task(config, flow, train, LEARNING_RATE, 0, "cpu")

    tasks = {
        "PyTorch BTT": task("bidirectional"),
        "PyTorch auto": task("auto"),
        "PyTorch right to left": task("right_to_left"),
        "PyTorch dense": task("", ModelConfig(encoders=encoders, format="dense")),
        **{f"tensorly-torch {name}": PeerTask(config, name, train, LEARNING_RATE) for name in IMPLEMENTATIONS},
    }

    def steps(task: Task) -> None:
        for index in range(len(task)):
            task.step(index, task.loss)

    def updates(task: Task) -> None:
        """Train with updates by the mean gradient of BATCH samples, each of its own length."""
        for first in range(0, len(task), BATCH):
            indices = range(first, min(first + BATCH, len(task)))
            samples = (task.sample(task.rows[i], task.lengths[i]) for i in indices)
            losses = [task.loss(*sample) for sample in samples]
            task.update(task.gradients(sum(losses) / len(losses)))

    def on_card(number: int, samples: Any) -> None:
        trainers[number].train(samples, optimizers[number], LEARNING_RATE)

    contenders = {OURS: partial(on_card, 0, call)} | {name: partial(steps, task) for name, task in tasks.items()}
    contenders[OURS + UPDATES] = partial(on_card, 1, call)
    contenders[f"PyTorch BTT{UPDATES}"] = partial(updates, task("bidirectional"))
    return contenders, partial(on_card, 0, long)


def tables(result: dict[str, Any]) -> list[Table]:
    """Return time and ratio of every contender for each number of threads, and what a second thread gains."""
    encoders = result["settings"]["encoders"]
    lines = []
    for row in result["rows"]:
        ratio = result["ratios"].get(f"{encoders}-ENC, threads {row['threads']}: {row['contender']}")
        times = describe_runs(ratio) if ratio else "1"
        lines.append([row["contender"], str(row["threads"]), describe_runs(row["time"]), times])
    headers = ["contender", "threads", "ms a step (measured)", f"times {OURS}"]
    found = [Table(f"One training step, {encoders}-ENC, updates of a sample or of {BATCH}", headers, lines)]
    gains = _of_two_threads(result["rows"])
    if gains:
        title, headers = f"The {OURS} with two threads, by the medians above", ["beside", "times faster (measured)"]
        found.append(Table(title, headers, [[beside, f"{times:.2f}"] for beside, times in gains.items()]))
    return found


def _of_two_threads(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return how many times faster the card is with two threads than with one, and than the fastest other contender."""
    medians = {(row["contender"], row["threads"]): row["time"]["median"] for row in rows}
    ours = [name for name, threads in medians if threads == 2 and name.startswith(OURS)]
    gains = {f"{name}, one thread": medians[name, 1] / medians[name, 2] for name in ours if (name, 1) in medians}
    others = {case: time for case, time in medians.items() if not case[0].startswith(OURS) and UPDATES not in case[0]}
    if ours and others:
        best = min(others, key=lambda case: others[case])
        gains[f"the fastest other contender: {best[0]}, threads {best[1]}"] = others[best] / medians[OURS, 2]
    return gains
