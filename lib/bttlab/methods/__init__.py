"""The methods lab: tensor compression beside the other ways to train with less.

Needs torch alone; single methods use other libraries, which they name.
"""

from bttlab.lazy import names_of

_MODULES = {
    "checkpoint": ("export", "write_checkpoint"),
    "combination": ("DENSE", "check_combination", "describe"),
    "method": ("FAMILIES", "Method", "MethodError"),
    "registry": ("methods", "parse"),
    "run": ("Result", "run_methods"),
    "setting": ("Setting", "samples_of"),
    "training": ("Batch", "Training"),
}
__getattr__ = names_of(globals(), _MODULES)
__all__ = [
    "DENSE",
    "FAMILIES",
    "Batch",
    "Method",
    "MethodError",
    "Result",
    "Setting",
    "Training",
    "check_combination",
    "describe",
    "export",
    "methods",
    "parse",
    "run_methods",
    "samples_of",
    "write_checkpoint",
]
