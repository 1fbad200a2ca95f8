"""Records of runs, and an index to find them."""

from bttlab.experiments.index import Filter, RunIndex, runs_folder
from bttlab.experiments.record import RUN_FILE, RunRecord, read_run

__all__ = ["RUN_FILE", "Filter", "RunIndex", "RunRecord", "read_run", "runs_folder"]
