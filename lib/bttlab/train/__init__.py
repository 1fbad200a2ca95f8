"""The run loop: epochs, scores, checkpoints; for whatever trains (`bttlab.model.Trainer`)."""

from bttlab.train.checkpoint import Checkpoint, CheckpointError, CheckpointStore, read_checkpoint, tensors_digest
from bttlab.train.progress import ProgressBar
from bttlab.train.recipe import Recipe, read_recipe, recipe_names
from bttlab.train.run import DivergedRun, Run, RunResult, resume_run, start_run
from bttlab.train.schedule import Schedule
from bttlab.train.settings import LEARNING_RATES, CorpusRecord, RunError, RunSettings

__all__ = [
    "LEARNING_RATES",
    "Checkpoint",
    "CheckpointError",
    "CheckpointStore",
    "CorpusRecord",
    "DivergedRun",
    "ProgressBar",
    "Recipe",
    "Run",
    "RunError",
    "RunResult",
    "RunSettings",
    "Schedule",
    "read_checkpoint",
    "read_recipe",
    "recipe_names",
    "resume_run",
    "start_run",
    "tensors_digest",
]
