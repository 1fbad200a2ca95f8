"""Questions to processes that may end while they are asked."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import psutil

Answer = TypeVar("Answer")


def ask(
    processes: Iterable[psutil.Process], question: Callable[[psutil.Process], Answer]
) -> dict[psutil.Process, Answer]:
    """Return what each process answers, without those that end meanwhile: between a list and the question any may."""
    answers = {}
    for process in processes:
        try:
            answers[process] = question(process)
        except psutil.NoSuchProcess:  # or a zombie
            continue
    return answers
