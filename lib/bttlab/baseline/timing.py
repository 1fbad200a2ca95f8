"""Clocks for steps, and the loop that they time."""

import math
import time
from collections.abc import Callable
from threading import Event

import numpy as np
import torch

from bttlab.baseline.modes import Stepper
from bttlab.baseline.step import Task
from bttlab.model import NumericalFault
from bttlab.model.loop import train_segments

OnStep = Callable[[int, float, float], None]


class HostClock:
    """Times steps that are over when they return."""

    chunk = 1  # steps between two readings
    how = "time.perf_counter around each step"

    def begin(self) -> None:
        self._marks = [time.perf_counter()]

    def mark(self) -> None:
        self._marks.append(time.perf_counter())

    def read(self) -> list[float]:
        """Return the seconds of each step since `begin`."""
        return np.diff(self._marks).tolist()


class CudaClock:
    """Times steps on the device itself, which runs behind the host: waiting after each would slow it down."""

    chunk = 25
    how = "CUDA events after each step, the device synchronised every 25 steps"

    def begin(self) -> None:
        """Start the first step of a chunk; the device has nothing to do then."""
        self._events = []
        self.mark()

    def mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def read(self) -> list[float]:
        """Wait for the device and return the seconds of each step since `begin`."""
        torch.cuda.synchronize()
        pairs = zip(self._events, self._events[1:], strict=False)
        return [before.elapsed_time(after) / 1e3 for before, after in pairs]  # it gives milliseconds


def clock_of(device: torch.device) -> HostClock | CudaClock:
    return CudaClock() if device.type == "cuda" else HostClock()


def timed_steps(
    task: Task,
    step: Stepper,
    clock: HostClock | CudaClock,
    on_step: OnStep | None,
    stop: Event,
    between: Callable[[int], None] = lambda taken: None,
) -> tuple[list[float], list[float]]:
    """Train on all samples of a task; return seconds and losses of each step.

    `step` is from `prepare`. `on_step` gets step, loss and seconds; `between` gets the number of steps taken, between
    two readings of the clock. What they take is in no step's time. `stop` ends the training after the current step.
    Raises NumericalFault if a loss is not finite.
    """
    seconds: list[float] = []
    losses: list[float] = []

    def take(first: int) -> list[float]:
        clock.begin()
        for index in range(first, min(first + clock.chunk, len(task))):
            step(index)
            clock.mark()
            if stop.is_set():
                break
        seconds.extend(clock.read())
        return task.losses[first : len(seconds)].tolist()

    def taken(first: int, new: list[float], _: float) -> None:
        losses.extend(new)
        for index in range(first, len(losses)):
            if not math.isfinite(losses[index]):
                raise NumericalFault("loss", index, np.array(losses[:index], np.float32), task.learning_rate)
            if on_step is not None:
                on_step(index, losses[index], seconds[index])
        between(len(seconds))

    train_segments(range(0, len(task), clock.chunk), take, taken, lambda: not stop.is_set())
    return seconds, losses
