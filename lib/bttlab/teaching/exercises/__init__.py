"""The exercises of the notebooks, by name: their rules, their hints, and what nbgrader counts.

Those of notebooks 06 and 07 are in `bttlab_methods.exercises` and `bttlab_cost.exercises`.
"""

from bttlab.teaching.exercises import compression, design, flows, memory, own_model, start, training
from bttlab.teaching.exercises.check import EXERCISES, NotRight, check, grade, show_points
from bttlab.teaching.exercises.design import engine_products

__all__ = [
    "EXERCISES",
    "NotRight",
    "check",
    "compression",
    "design",
    "engine_products",
    "flows",
    "grade",
    "memory",
    "own_model",
    "show_points",
    "start",
    "training",
]
