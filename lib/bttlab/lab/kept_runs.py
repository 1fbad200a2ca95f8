"""What a dashboard's run on a card leaves behind: a run's folder as `bttlab train` makes one, to be opened again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bttlab.experiments.curves import figures_of, read_metrics, stretches
from bttlab.experiments.index import runs_folder
from bttlab.experiments.keep import entering, flat
from bttlab.experiments.provenance import git_state, versions
from bttlab.experiments.record import COMPLETE, FAILED, STOPPED, RunRecord
from bttlab.figures import measured
from bttlab.lab.workload import Workload
from bttlab.model import Optimizer, Trainer
from bttlab.train import Checkpoint, CheckpointStore, CorpusRecord, RunSettings
from bttlab.train.checkpoint import LATEST
from bttlab.train.metrics_log import MetricsLog

if TYPE_CHECKING:
    from bttlab.lab.runs import TrainerRun

_STATUS = {"finished": COMPLETE, "stopped": STOPPED, "failed": FAILED}


@dataclass(frozen=True)
class Stretch:
    """Training from one evaluation, or a fault, to the next.

    Attributes
    ----------
    end : int
        Samples trained on by then.
    mean_loss : float
    losses : list of float
        Means, as `bttlab.experiments.curves.stretches` gives them.
    """

    end: int
    mean_loss: float
    losses: list[float]

    @classmethod
    def of(cls, end: int, losses: np.ndarray) -> Stretch:
        """Summarise losses, float32 of shape (n,), up to sample `end`."""
        return cls(end, float(np.mean(losses, dtype=np.float64)), stretches(losses))


def keep_dashboard_run(
    run: TrainerRun, state: str, workload: Workload, trainer: Trainer, optimizer: Optimizer
) -> RunRecord:
    """Write a run's checkpoint, metrics and record to a folder among the user's runs, and enter it in the index.

    Parameters
    ----------
    run : TrainerRun
        Has ended in `state`, and trained on one sample at least.
    state : {"finished", "stopped", "failed"}
    workload : Workload
    trainer : Trainer
        Holds the trained parameters.
    optimizer : Optimizer

    Raises
    ------
    bttlab.train.RunError, bttlab.train.CheckpointError, OSError
        If it cannot be written.
    """
    corpus, epoch = workload.corpus, len(workload.train)
    epochs_done, position = divmod(run.count, epoch)
    settings = RunSettings(
        config=workload.config,
        data=str(corpus.folder),
        device="auto",
        optimizer=optimizer,
        learning_rate=run.rates[-1][1],
        seed=workload.seed,
        epochs=-(-run.total // epoch),
    )
    known = CorpusRecord.of(corpus, workload.config)
    configuration = flat(settings) | {"learning_rates": run.rates}
    del configuration["learning_rate" if len(run.rates) > 1 else "learning_rates"]  # no one rate made what came of many
    name = f"dashboard-{corpus.name}-enc{workload.config.encoders}"
    record = RunRecord("training", name, configuration, run.name, begun=run.begun)
    folder = runs_folder() / record.id
    folder.mkdir(parents=True)
    checkpoint = Checkpoint(
        settings,
        known,
        run.name,
        epochs_done,
        run.losses[len(run.losses) - position :],
        run.seconds * position / run.count,
        trainer.store_parameters(),
        trainer.store_optimizer_state(),
    )
    CheckpointStore(folder).save(checkpoint)
    _write_metrics(run, folder)
    record.versions, record.git = versions(), git_state()
    record.corpus, record.checkpoint = {"name": known.name, "sha256": known.sha256}, LATEST
    record.figures = figures_of(read_metrics(folder), run.name)
    record.end(_STATUS[state], run.error)
    entering(workload.config, workload.train.lengths, optimizer.name)(record, folder)
    record.write(folder)
    return record


def _write_metrics(run: TrainerRun, folder: Path) -> None:
    """A line for each stretch."""
    log, how = MetricsLog(folder), f"time.perf_counter on this host, around training on {run.name}"
    scores, begin = dict(run.scores), 0
    for stretch in run.stretches:
        samples = stretch.end - begin
        line = {
            "event": "stretch",
            "samples": samples,
            "mean_loss": stretch.mean_loss,
            "losses": stretch.losses,
            "seconds": measured(run.seconds * samples / run.count, "s", f"{how}, shared out by samples"),
        }
        log.append(line | {"dev": asdict(scores[stretch.end])} if stretch.end in scores else line)
        begin = stretch.end
