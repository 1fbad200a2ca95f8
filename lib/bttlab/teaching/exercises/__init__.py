"""The exercises of the notebooks, by name: their rules, their hints, and what nbgrader counts."""

from bttlab.teaching.exercises import compression, costs, design, flows, memory, methods, own_model, start, training
from bttlab.teaching.exercises.check import EXERCISES, NotRight, check, grade, show_points
from bttlab.teaching.exercises.design import engine_products

__all__ = [
    "EXERCISES",
    "NotRight",
    "check",
    "compression",
    "costs",
    "design",
    "engine_products",
    "flows",
    "grade",
    "memory",
    "methods",
    "own_model",
    "show_points",
    "start",
    "training",
]
