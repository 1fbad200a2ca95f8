"""Training runs: settings, epochs, scores, checkpoints, their records and a table of them; sweeps."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "checkpoint": ("Checkpoint", "CheckpointError", "CheckpointStore", "read_checkpoint", "tensors_digest"),
        "plan": ("Callback", "Control", "EvaluationPlan", "EvaluationsAt"),
        "progress": ("ProgressBar",),
        "recipe": ("Recipe", "read_recipe", "recipe_names"),
        "record": ("RUN_FILE", "RunRecord", "read_run"),
        "run": ("DivergedRun", "Run", "RunResult", "resume_run", "start_run"),
        "schedule": ("LearningRateSchedule",),
        "settings": ("CorpusRecord", "RunError", "RunSettings"),
        "table": ("find_run", "remember", "runs_folder", "runs_table"),
    },
)
