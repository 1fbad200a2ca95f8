"""The exercises of the notebooks, by name: their rules, their hints, and what nbgrader counts."""

from bttlab.lab.exercises import compression, costs, design, flows, memory, methods, start, training
from bttlab.lab.exercises.check import EXERCISES, NotRight, check, grade
from bttlab.lab.exercises.design import engine_products

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
    "start",
    "training",
]
