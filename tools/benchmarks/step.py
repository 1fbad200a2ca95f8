"""A training step of the whole model: the overlay on the emulated U50, and PyTorch in several ways.

At batch 1, and with updates of several samples: then a step is a sample's share of an update.
"""

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.result import Result, Table, describe_runs, rounded, spread, time_ratios, time_rows
from benchmarks.turns import HOW, interleave, second_time, threads_of_torch
from bttlab.model.loop import LARGEST_CHUNK
from bttlab.util.quantities import column_metadata

OURS = "emulated U50"
BATCH = 8
UPDATES = f", updates of {BATCH}"
LEARNING_RATE = 1e-3
TWO_THREADS = "two threads: "  # of ratios beside them
TWO_PROCESSES = "two processes, one thread each"


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

    What a second thread gains is measured apart: the card with one thread takes turns with two threads, and with the
    fastest of the others. In turns, too, two processes train at the same time: they send each other nothing, and show
    what the host's two cores give.
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
    if 2 in threads:
        best = _fastest_other(rows)
        works = {name: turns[name] for name in (OURS, OURS + UPDATES)} | long
        gains = _of_two_threads(works, best, turns[best[0]], cards, rounds)
        share = partial(_rate_of_two_processes, turns[OURS], cards, (corpus, encoders, samples, repeats, long_call))
        ratios |= {f"{encoders}-ENC, {TWO_THREADS}{name}": rounded(spread(of)) for name, of in gains.items()}
        ratios[f"{encoders}-ENC, {TWO_PROCESSES}"] = rounded(spread(share(rounds)))
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
    gains = [
        [name.partition(TWO_THREADS)[2], describe_runs(times)]
        for name, times in result["ratios"].items()
        if TWO_THREADS in name
    ]
    if gains:
        host = result["ratios"][f"{encoders}-ENC, {TWO_PROCESSES}"]
        title, headers = f"The {OURS} with two threads, in turns", ["beside", "times faster (measured)"]
        found.append(Table(title, headers, gains))
        title, headers = (
            "The host, in turns with these",
            ["beside one process with one thread", "times its samples (measured)"],
        )
        found.append(Table(title, headers, [[TWO_PROCESSES, describe_runs(host)]]))
    return found


def _fastest_other(rows: Sequence[Mapping[str, Any]]) -> tuple[str, int]:
    """Return the contender besides the card with the least time a step, and its threads; with updates of one sample."""
    others = {
        (row["contender"], row["threads"]): row["time"]["median"]
        for row in rows
        if not row["contender"].startswith(OURS) and UPDATES not in row["contender"]
    }
    return min(others, key=lambda case: others[case])


def _of_two_threads(
    works: Mapping[str, Callable[[], float]],
    best: tuple[str, int],
    other: Callable[[], float],
    cards: Sequence[Any],
    rounds: int,
) -> dict[str, np.ndarray]:
    """Return how many times faster two threads of the card are, shape (rounds,), by what they are beside.

    `works`: of the card, by name; each returns its seconds.
    `best`, `other`: the fastest of the others with its number of threads, and its work.
    """

    def with_threads(work: Callable[[], float], count: int) -> float:
        for card in cards:
            card.threads = count
        return work()

    def by_other() -> float:
        with threads_of_torch(best[1]):
            return other()

    turns = {(name, count): partial(with_threads, work, count) for name, work in works.items() for count in (1, 2)}
    seconds = interleave({str(case): turn for case, turn in turns.items()} | {best[0]: by_other}, rounds)
    gains = {f"{name}, one thread": seconds[str((name, 1))] / seconds[str((name, 2))] for name in works}
    gains[f"the fastest other contender: {best[0]}, threads {best[1]}"] = seconds[best[0]] / seconds[str((OURS, 2))]
    return gains


def _rate_of_two_processes(
    turn: Callable[[], float], cards: Sequence[Any], workload: tuple[Any, ...], rounds: int
) -> np.ndarray:
    """Return how many times the samples of one process two processes train on at the same time, shape (rounds,)."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    other = context.Process(target=_train_when_asked, args=(there, workload), daemon=True)
    other.start()
    for card in cards:
        card.threads = 1
    rates = []
    try:
        here.recv()  # it is ready
        for number in range(rounds + 1):
            alone = turn()
            here.send(True)
            own = turn()
            if number:
                rates.append(alone / own + alone / here.recv())
            else:
                here.recv()
        here.send(False)
    finally:
        other.join(10)
        other.kill()
    return np.array(rates)


def _train_when_asked(pipe: Any, workload: tuple[Any, ...]) -> None:
    """In another process: answer each request with the seconds that a turn of the card took, with one thread."""
    from bttlab.card import EmulatedU50

    corpus, encoders, samples, repeats, long_call = workload
    cards = [EmulatedU50() for _ in range(2)]
    for card in cards:
        card.threads = 1
    contenders, _ = _contenders(corpus, encoders, samples, repeats, long_call, cards)
    turn = _share(second_time(contenders[OURS]), repeats)
    turn()
    pipe.send(True)
    while pipe.recv():
        pipe.send(turn())
