"""Sweeps: many trials of one specification, on this machine's cores or on a Dask cluster."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "executor": ("ClusterError", "open_executor"),
        "spec": ("SpecError", "SweepSpec", "read_spec"),
        "sweep": ("Progress", "Sweep", "SweepError"),
    },
)
