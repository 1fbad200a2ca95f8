"""Sweeps: many trials of one specification, on this machine's cores or on any Dask cluster."""

from bttlab.lazy import names_of

_MODULES = {
    "cluster": ("ClusterError", "open_cluster"),
    "run": ("Progress", "Sweep", "SweepError"),
    "spec": ("SpecError", "SweepSpec", "read_spec"),
}
__getattr__ = names_of(globals(), _MODULES)
__all__ = ["ClusterError", "Progress", "SpecError", "Sweep", "SweepError", "SweepSpec", "open_cluster", "read_spec"]
