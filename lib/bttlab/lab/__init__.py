"""Widgets and figures of the notebooks."""

from bttlab.lab.exercise import check
from bttlab.lab.machine import check_machine
from bttlab.lab.setting import budget, corpus_here
from bttlab.lab.watch import watch

__all__ = ["budget", "check", "check_machine", "corpus_here", "watch"]
