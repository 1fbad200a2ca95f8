"""One training step of the whole model at batch 1: the overlay on the emulated U50, and PyTorch in several ways."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks.result import Result, Table, describe_runs, time_ratios, time_rows
from benchmarks.turns import HOW, interleave, threads_of_torch
from bttlab.util.quantities import column_metadata

OURS = "emulated U50"
LEARNING_RATE = 1e-3


def measure(
    corpus: str = "atis", encoders: int = 2, samples: int = 16, threads: Sequence[int] = (1, 2), rounds: int = 9
) -> Result:
    """Measure training steps by SGD, the same `samples` of the shuffled training split in each turn.

    `threads` are those of PyTorch, and of the emulated card, which uses two at most.
    """
    from bttlab.card import EmulatedU50

    rows: list[dict[str, Any]] = []
    ratios: dict[str, dict[str, float]] = {}
    card = EmulatedU50()
    contenders = _contenders(corpus, encoders, samples, card)
    for count in threads:
        card.threads = min(count, 2)
        with threads_of_torch(count):
            seconds = interleave(contenders, rounds, samples)
        rows += time_rows({"threads": count}, seconds)
        ratios |= time_ratios(f"{encoders}-ENC, threads {count}: ", seconds, OURS)
    return Result(
        settings={"data": corpus, "encoders": encoders, "samples": samples, "rounds": rounds},
        figures={
            "time": column_metadata("ms a step", "measured", f"{HOW}; threads of PyTorch and of the emulated card")
        },
        rows=rows,
        ratios=ratios,
        programs=[encoders],
    )


def _contenders(corpus: str, encoders: int, samples: int, card: Any) -> dict[str, Callable[[], None]]:
    from benchmarks.peers import IMPLEMENTATIONS, PeerTask
    from bttlab.baseline.step import Task
    from bttlab.card import open_trainer
    from bttlab.data import load_corpus
    from bttlab.lab.workload import Workload
    from bttlab.model import ModelConfig, Optimizer, initial_parameters

    config = ModelConfig(encoders=encoders)
    work = Workload.of(load_corpus(corpus), config)
    train = work.train[work.order(samples)]
    trainer = open_trainer(config, card)
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

    def on_card() -> None:
        trainer.train(train, Optimizer("sgd"), LEARNING_RATE)

    return {OURS: on_card} | {name: partial(steps, task) for name, task in tasks.items()}


def tables(result: dict[str, Any]) -> list[Table]:
    """Return time and ratio of every contender for each number of threads."""
    lines = []
    for row in result["rows"]:
        case = f"{result['settings']['encoders']}-ENC, threads {row['threads']}: {row['contender']}"
        ratio = result["ratios"].get(case)
        times = describe_runs(ratio) if ratio else "1"
        lines.append([row["contender"], str(row["threads"]), describe_runs(row["time"]), times])
    headers = ["contender", "threads", "ms a step (measured)", f"times {OURS}"]
    return [Table(f"One training step, {result['settings']['encoders']}-ENC, batch 1", headers, lines)]
