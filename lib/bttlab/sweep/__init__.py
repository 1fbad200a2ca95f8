"""Sweeps: many trials of one specification, on this machine's cores or on any Dask cluster."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "cluster": ("ClusterError", "open_cluster"),
        "run": ("Progress", "Sweep", "SweepError"),
        "spec": ("SpecError", "SweepSpec", "read_spec"),
    },
)
