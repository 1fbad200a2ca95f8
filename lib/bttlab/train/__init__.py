"""Training runs: epochs, scores, checkpoints, for any `bttlab.model.Trainer`."""

from bttlab.train.checkpoint import Checkpoint, CheckpointError, CheckpointStore, read_checkpoint, tensors_digest
from bttlab.train.progress import ProgressBar
from bttlab.train.recipe import Recipe, read_recipe, recipe_names
from bttlab.train.run import DivergedRun, Run, RunResult, resume_run, start_run
from bttlab.train.schedule import LearningRateSchedule
from bttlab.train.settings import LEARNING_RATES, CorpusRecord, RunError, RunSettings

__all__ = [
    "LEARNING_RATES",
    "Checkpoint",
    "CheckpointError",
    "CheckpointStore",
    "CorpusRecord",
    "DivergedRun",
    "LearningRateSchedule",
    "ProgressBar",
    "Recipe",
    "Run",
    "RunError",
    "RunResult",
    "RunSettings",
    "read_checkpoint",
    "read_recipe",
    "recipe_names",
    "resume_run",
    "start_run",
    "tensors_digest",
]
