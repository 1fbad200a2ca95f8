"""End bad trials early: a worker reports each epoch to Optuna's study in the sweep's folder, and asks it."""

from dataclasses import dataclass
from pathlib import Path

STUDY_FILE = "optuna.log"


@dataclass(frozen=True)
class StudyTrial:
    """Where a trial is in the study of its sweep."""

    study: str  # name
    number: int
    objective: str  # "loss", or "dev." and the name of a score

    def value(self, scores: dict[str, float], loss: float) -> float | None:
        """Return the objective after an epoch."""
        return loss if self.objective == "loss" else scores.get(self.objective.removeprefix("dev."))

    def reason_to_end(self, folder: Path, epoch: int, value: float) -> str:
        """Report the objective after an epoch, from 1 on; return why the trial should end, or an empty string."""
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        storage = JournalStorage(JournalFileBackend(str(folder / STUDY_FILE)))
        study = optuna.load_study(study_name=self.study, storage=storage, pruner=optuna.pruners.MedianPruner())
        trial = optuna.Trial(study, study.trials[self.number]._trial_id)
        trial.report(value, epoch)
        if not trial.should_prune():
            return ""
        return f"{self.objective} {value:.4g} after epoch {epoch} is worse than the median of earlier trials"
