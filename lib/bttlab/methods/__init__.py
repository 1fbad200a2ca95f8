"""The methods lab: tensor compression beside the other ways to train with less.

Needs torch alone; single methods use other libraries, which they name.
"""

from bttlab.methods.export import export, write_checkpoint
from bttlab.methods.method import FAMILIES, Method, MethodError
from bttlab.methods.registry import DENSE, check_combination, describe, methods, parse
from bttlab.methods.run import Result, run_methods
from bttlab.methods.setting import Setting, samples_of
from bttlab.methods.training import Batch, Training

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
