"""Training runs: epochs, scores, checkpoints, for any `bttlab.model.Trainer`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "checkpoint": ("Checkpoint", "CheckpointError", "CheckpointStore", "read_checkpoint", "tensors_digest"),
        "progress": ("ProgressBar",),
        "recipe": ("Recipe", "read_recipe", "recipe_names"),
        "run": ("DivergedRun", "Run", "RunResult", "resume_run", "start_run"),
        "schedule": ("LearningRateSchedule",),
        "settings": ("LEARNING_RATES", "CorpusRecord", "RunError", "RunSettings"),
    },
)
