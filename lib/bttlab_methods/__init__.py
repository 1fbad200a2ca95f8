"""The methods lab: tensor compression beside the other ways to train with less.

Needs torch alone; single methods use other libraries, which they name.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "checkpoint": ("export", "write_checkpoint"),
        "method": ("FAMILIES", "Method"),
        "registry": ("load_plugin", "methods", "parse"),
        "run": ("Result", "run_methods"),
        "setting": ("MethodError", "Setting", "samples_of"),
        "training": ("DENSE", "Batch", "Training", "check_combination", "describe"),
    },
)
