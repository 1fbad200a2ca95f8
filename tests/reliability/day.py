"""A day of training at the rate of its events: what its metrics file and its dashboard come to."""

import os
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from bttlab.data import Vocabulary, encode, load_corpus
from bttlab.data.metrics import score
from bttlab.lab import Dashboard, Workload, dashboard_runs
from bttlab.lab.energy_meters import ModelledMeter
from bttlab.model import ModelConfig, Optimizer, loop
from bttlab.runs.curves import read_curves, stretches
from bttlab.runs.metrics import MetricsLog, figures_of, read_metrics
from bttlab.util.quantities import measured
from fake_trainer import PretendTrainer, pretend_target
from reliability import worker
from reliability.footprint import MOST_GROWTH, Footprint
from reliability.outcome import Outcome

RATE = 1_500  # samples/s: 2 encoders on the U50 by its model
WARM_UP = 2_000  # seconds of simulated training: until curves have all the points that they keep
LOOKS = 10  # at the memory
MOST_LINE = 4096  # bytes of metrics.jsonl for an epoch


def trial(count: int) -> Outcome:
    """Simulate `count` seconds of training."""
    found = worker.run("day", count)
    tried = (
        f"Training on the airline corpus for {count:,} s, its results made up, as many of them as a U50 gives at "
        f"{RATE:,} samples/s (modelled): each epoch's line through the log of `bttlab train`, and the file read back; "
        f"then the same samples as one run of a dashboard, a piece for every {loop.CHUNK_SECONDS:g} s, drawn and kept "
        f"as any run on a card is. No line of the file is longer than {MOST_LINE:,} bytes, resident memory grows by "
        f"less than {MOST_GROWTH} MiB under the dashboard after {WARM_UP:,} s, and nothing else stays"
    )
    return Outcome("a run of a day", tried, count, found["faults"], found["figures"])


def write_and_read(folder: Path, workload: Workload, epochs: int, faults: list[str]) -> dict[str, object]:
    """Write the metrics of a run of many epochs line by line, and read them as its users do."""
    log, trainer, how = MetricsLog(folder), PretendTrainer(0), "time.perf_counter on this host"
    dev = asdict(score(workload.corpus, workload.dev_split, trainer.predict(workload.dev)))
    size = 0
    for epoch in range(1, epochs + 1):
        losses = trainer.train(workload.train, Optimizer(), [1e-3])
        record = {
            "event": "epoch",
            "epoch": epoch,
            "samples": len(losses),
            "mean_loss": float(np.mean(losses, dtype=np.float64)),
            "losses": stretches(losses),
            "dev": dev,
            "optimizer": "sgd",
            "learning_rate": 1e-3,
            "seconds": measured(len(losses) / RATE, "s", how),
            "samples_per_second": measured(RATE, "1/s", how),
            "device": "none",
        }
        log.append(record)
        size, before = log.path.stat().st_size, size
        if size - before > MOST_LINE:
            faults.append(f"epoch {epoch}: a line of {size - before} bytes")
    figures = {"epochs": epochs, "metrics.jsonl": measured(size / 2**20, "MiB", "size of the file")}
    for what, read in (
        ("to go on from it", lambda: log.rewind(epochs)),
        ("to read its curves", lambda: read_curves(folder)),
        ("to read its figures", lambda: figures_of(read_metrics(folder), "none")),
    ):
        begin = time.perf_counter()
        read()
        figures[what] = measured(time.perf_counter() - begin, "s", "time.perf_counter")
    return figures


def dashboard(workload: Workload, seconds: int) -> Dashboard:
    """Return a dashboard for runs of up to so long."""
    loop.LARGEST_CHUNK = int(RATE * loop.CHUNK_SECONDS)  # as many as there would be in that time
    target = pretend_target(workload, PretendTrainer(0), "a day", ModelledMeter(workload.config))
    return Dashboard([target], most_samples=seconds * RATE)


def simulate(board: Dashboard, seconds: int, warm_up: int) -> list[Footprint]:
    """Let it train for so long; returns what the process holds after the warm-up, and after each tenth."""
    board.start(samples=seconds * RATE)
    run, looks = board.runs[-1], []
    for second in (warm_up, *(seconds * look / LOOKS for look in range(1, LOOKS + 1))):
        while run.active and run.count < second * RATE:
            time.sleep(0.01)
        looks.append(Footprint.now())
    board.wait()
    return looks


def main(seconds: int) -> None:
    """Do it, and print what it came to."""
    os.environ["BTTLAB_RUNS"] = tempfile.mkdtemp()
    corpus, config = load_corpus("airline"), ModelConfig()
    workload = Workload.of(corpus, config)
    vocabulary = Vocabulary.from_sentences(corpus.train.words, config.vocabulary_size)
    whole = replace(workload, dev=encode(corpus.dev, vocabulary, corpus, config))  # bttlab train scores all of it
    warm_up, faults = min(WARM_UP, seconds // LOOKS), []
    board = dashboard(workload, seconds)
    simulate(board, warm_up, 0)  # all that a first figure loads is there then
    board.clear()
    before, *looks = simulate(board, seconds, warm_up)
    (run,), memory = board.runs, [look.memory for look in looks]
    if run.state != dashboard_runs.FINISHED or run.error:
        faults.append(f"the run is {run.state}: {run.error}")
    figures = {"samples": run.count, "losses kept": len(run.losses), "points of the history": len(run.history)}
    figures[f"resident memory after every {seconds / LOOKS:g} s"] = measured(memory, "MiB", "/proc/self/statm")
    after = Footprint.now()
    board.close()
    with tempfile.TemporaryDirectory() as folder:
        epochs = max(1, seconds * RATE // len(workload.train))
        figures |= write_and_read(Path(folder), whole, epochs, faults)
    worker.report(before, after, faults, figures)


if __name__ == "__main__":
    main(int(sys.argv[1]))
