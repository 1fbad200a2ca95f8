"""Sweeps: many trials of one specification, on this machine's cores or on any Dask cluster."""

from bttlab.sweep.cluster import ClusterError, open_cluster
from bttlab.sweep.run import Progress, Sweep, SweepError
from bttlab.sweep.spec import SpecError, SweepSpec, read_spec

__all__ = ["ClusterError", "Progress", "SpecError", "Sweep", "SweepError", "SweepSpec", "open_cluster", "read_spec"]
