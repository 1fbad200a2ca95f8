"""Ten processes that train on one shared emulated card, against one that has a card of its own, in turns."""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.result import Result, Table, rounded
from benchmarks.turns import spread
from bttlab.card import EmulatedU50, open_trainer
from bttlab.card.card_lock import emulated_name, file_name
from bttlab.card.sharing import FOLDER_VARIABLE, KeeperClient
from bttlab.data import Vocabulary, encode, epoch_order, load_corpus
from bttlab.keeper import SLICE_SECONDS, serving
from bttlab.model import ModelConfig, Optimizer, initial_parameters
from bttlab.runs import tensors_digest
from bttlab.util.errors import BttlabError
from bttlab.util.processes import safe_path
from bttlab.util.quantities import column_metadata, in_digits

CARD = emulated_name(0)
STEP = 32  # samples a call, as a run and the dashboard train
ADAMW, RATE = Optimizer("adamw"), 1e-4
SETTLED_SECONDS = 5.0  # before one is killed and one is stopped
ALONE, SHARED, DISTURBED = "one alone", "all on one card", "all, one killed, one stopped"


@dataclass(frozen=True)
class Turn:
    """Samples of a process in a turn of the benchmark, and each wait for a slice in seconds."""

    samples: int
    waits: Sequence[float]


def measure(
    corpus: str = "atis", encoders: int = 2, rounds: int = 3, processes: int = 10, seconds: float = 20.0
) -> Result:
    """Let one process train on its own card, then all others on a shared one, in turns; then disturb them.

    Parameters
    ----------
    corpus : str
        Name or path.
    encoders, rounds : int
    processes : int
        That share a card.
    seconds : float
        Of a turn of theirs; the one alone has half as long. One of the processes is stopped for so long in the end.

    Raises
    ------
    BttlabError
        If one of them does not have the parameters of the same training alone.
    """
    with (
        TemporaryDirectory(prefix="bttlab-bench-") as folder,
        serving(Path(folder) / file_name(CARD, "shared")) as keeper,
        safe_path(),
    ):
        workers = [_Worker(n, folder if n else None, corpus, encoders) for n in range(1 + processes)]
        try:
            for worker in workers:
                worker.answer()
            alone, shared = workers[0], workers[1:]
            rates: dict[str, list[float]] = {ALONE: [], SHARED: []}
            turns: list[list[Turn]] = []
            for _ in range(rounds):
                rates[ALONE].append(_train([alone], seconds / 2)[0])
                rate, turn = _train(shared, seconds)
                rates[SHARED].append(rate)
                turns.append(turn)
            rate, disturbed = _disturb(shared, KeeperClient(CARD, keeper), seconds)
            equal = sum(worker.ask("check") for worker in shared[1:])
        finally:
            for worker in workers:
                worker.end()
    if equal != processes - 1:
        raise BttlabError(f"{processes - 1 - equal} processes have other parameters than the same training alone")
    ratio = np.array(rates[SHARED]) / np.array(rates[ALONE])
    counts = [sum(turn.samples for turn in each) for each in zip(*turns, strict=True)]
    rows = [
        {"contender": ALONE, "rate": float(np.median(rates[ALONE]))},
        {"contender": SHARED, "rate": float(np.median(rates[SHARED])), "ratio": float(np.median(ratio))}
        | {"jain": jain(counts), "wait": _longest([turn for each in turns for turn in each], processes)},
        {"contender": DISTURBED, "rate": rate, "jain": jain([turn.samples for turn in disturbed])}
        | {"wait": _longest(disturbed, processes)},
    ]
    clock = "time.perf_counter on this host"
    return Result(
        settings={"data": corpus, "encoders": encoders, "processes": processes, "rounds": rounds, "seconds": seconds},
        figures={
            "rate": column_metadata("1/s", "measured", f"{clock}, samples of all processes, median of the rounds"),
            "ratio": column_metadata(
                "1", "measured", "that rate over the rate of one alone just before, median of the rounds"
            ),
            "jain": column_metadata(
                "1", "measured", "Jain's index of the samples of each; of the undisturbed in the last row"
            ),
            "wait": column_metadata(
                "1", "measured", f"{clock}, longest wait for a slice over {processes} x {SLICE_SECONDS} s"
            ),
        },
        rows=rows,
        ratios={SHARED: rounded(spread(ratio))},
        notes=[f"{equal} of {equal} processes have the parameters of the same training alone, to the bit (measured)"],
    )


def jain(values: Sequence[float]) -> float:
    """Return Jain's fairness index: 1 where all have the same, 1 / n where one has all."""
    shares = np.asarray(values, float)
    return float(shares.sum() ** 2 / (len(shares) * (shares**2).sum()))


def _longest(turns: Sequence[Turn], processes: int) -> float:
    return max(max(turn.waits) for turn in turns) / (processes * SLICE_SECONDS)


def _train(workers: "Sequence[_Worker]", seconds: float) -> tuple[float, list[Turn]]:
    """Let workers train at once; returns the samples a second of all, and what each did."""
    begin = time.perf_counter()
    for worker in workers:
        worker.pipe.send(seconds)
    turns = [worker.answer() for worker in workers]
    return sum(turn.samples for turn in turns) / (time.perf_counter() - begin), turns


def _disturb(workers: "Sequence[_Worker]", keeper: KeeperClient, seconds: float) -> tuple[float, list[Turn]]:
    """Kill one worker and stop the next for a while, each in its slice; returns what the others did meanwhile."""
    for worker in workers:
        worker.pipe.send(seconds + 2 * SETTLED_SECONDS)
    begin = time.perf_counter()
    time.sleep(SETTLED_SECONDS)
    for worker, with_signal in zip(workers, (signal.SIGKILL, signal.SIGSTOP), strict=False):
        while not any(waiting.has_card and waiting.process == worker.process.pid for waiting in keeper.queue()):
            time.sleep(0.001)
        os.kill(worker.process.pid, with_signal)
    time.sleep(seconds)
    os.kill(workers[1].process.pid, signal.SIGCONT)
    workers[1].answer()
    turns = [worker.answer() for worker in workers[2:]]
    return sum(turn.samples for turn in turns) / (time.perf_counter() - begin), turns


class _Worker:
    """A process that trains when it is column_metadata to."""

    def __init__(self, number: int, folder: str | None, corpus: str, encoders: int):
        context = get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, number, folder, corpus, encoders), daemon=True)
        self.process.start()
        theirs.close()

    def answer(self) -> Any:
        """Return what it says next."""
        try:
            return self.pipe.recv()
        except EOFError:
            raise BttlabError("a process of the bench has ended early; its error stands above") from None

    def ask(self, what: Any) -> Any:
        """Tell it something and return its answer."""
        self.pipe.send(what)
        return self.answer()

    def end(self) -> None:
        """End it."""
        self.process.kill()
        self.process.join()


def _work(pipe: Connection, number: int, folder: str | None, corpus: str, encoders: int) -> None:
    """Train for as many seconds as asked for, then compare the parameters: the work of a process."""
    os.environ.pop(FOLDER_VARIABLE, None)
    if folder is not None:
        os.environ[FOLDER_VARIABLE] = folder
    waits = _timed()
    config = ModelConfig(encoders=encoders)
    data = load_corpus(corpus)
    samples = encode(data.train, Vocabulary.from_sentences(data.train.words, config.vocabulary_size), data, config)
    samples = samples[epoch_order(len(samples), 0, 0)]

    def train(trainer, first: int) -> int:
        first %= len(samples)
        return len(trainer.train(samples[first : first + STEP], ADAMW, RATE))

    trainer, done = open_trainer(config, "emulated"), 0
    trainer.load_parameters(initial_parameters(config, number))
    train(trainer, 0)  # the first call finds the pace
    trainer.load_parameters(initial_parameters(config, number))
    pipe.send("ready")
    while (asked := pipe.recv()) != "check":
        before, end = done, time.perf_counter() + asked
        waits[:] = [0.0]
        while time.perf_counter() < end:
            done += train(trainer, done)
        pipe.send(Turn(done - before, list(waits)))
    again, count = open_trainer(config, EmulatedU50()), 0  # a card that nobody shares
    again.load_parameters(initial_parameters(config, number))
    while count < done:
        count += train(again, count)
    states = [each.store_parameters() | each.store_optimizer_state() for each in (trainer, again)]
    pipe.send(tensors_digest(states[0]) == tensors_digest(states[1]))
    pipe.recv()


def _timed() -> list[float]:
    """Record how long each wait for a time slice takes."""
    waits, acquire = [], KeeperClient.acquire

    def timed(client: KeeperClient, overlay: str):
        begin = time.perf_counter()
        try:
            return acquire(client, overlay)
        finally:
            waits.append(time.perf_counter() - begin)

    KeeperClient.acquire = timed
    return waits


def tables(result: dict[str, Any]) -> list[Table]:
    """Return rate, fairness and waits."""
    columns = {"rate": in_digits, "ratio": "{:.3f}".format, "jain": "{:.4f}".format, "wait": "{:.2f}".format}
    settings = result["settings"]
    slices = f"longest wait / ({settings['processes']} x {SLICE_SECONDS} s)"
    headers = ["", "samples/s", "over one alone", "Jain's index", slices]
    rows = [
        [row["contender"], *(show(row[name]) if name in row else "" for name, show in columns.items())]
        for row in result["rows"]
    ]
    return [Table(f"{settings['processes']} processes on one shared emulated card (measured)", headers, rows)]
