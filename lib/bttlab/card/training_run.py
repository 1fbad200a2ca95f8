"""Training in a background thread."""

import threading
from collections.abc import Callable

import numpy as np

from bttlab.model import NumericalFault
from bttlab.model.loop import chunks, train_segments
from bttlab.util.errors import BttlabError
from bttlab.util.threads import Thread

STOP_SECONDS = 1.0


class TrainingRun:
    """Training in a background thread, chunk by chunk.

    `begin` may be interrupted at any moment: `stop` then ends the run, with its thread or without one.

    Parameters
    ----------
    total : int
        Number of samples.
    train : callable
        Trains on a slice of the samples and returns their losses, float32, (n,).
    lock : threading.Lock
        Locked while it trains.
    update : tuple of int
        Samples of an update, and samples that the training has had before.
    """

    def __init__(
        self, total: int, train: Callable[[slice], np.ndarray], lock: threading.Lock, update: tuple[int, int] = (1, 0)
    ):
        self.total, self._update = total, update
        self._losses: list[np.ndarray] = []
        self._stop = threading.Event()
        self._error: Exception | None = None
        self.seconds = 0.0  # of training so far
        self.done = False  # complete, stopped, or failed
        self._begun = threading.Lock()  # taken by the thread, or by `stop` before the thread
        self._thread = Thread(target=self._train, args=(train, lock), name="bttlab-train")

    def begin(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:
            self.done = True
            raise BttlabError(f"the host has no thread for the training ({error}); raise ulimit -u") from None

    def _train(self, train: Callable[[slice], np.ndarray], lock: threading.Lock) -> None:
        if not self._begun.acquire(blocking=False):
            return
        try:
            with lock:
                segments = chunks(0, self.total, *self._update)
                train_segments(segments, train, self._add, lambda: not self._stop.is_set())
        except NumericalFault as fault:
            self._error = fault.at(len(self.losses), self.losses)
        except Exception as error:  # raised where the caller waits
            self._error = error
        finally:
            self.done = True

    def _add(self, part: slice, losses: np.ndarray, seconds: float) -> None:
        self.seconds += seconds
        self._losses.append(losses)

    @property
    def losses(self) -> np.ndarray:
        """Losses of the samples trained on, float32."""
        return np.concatenate([np.zeros(0, np.float32), *self._losses])

    @property
    def progress(self) -> float:
        """Fraction of the samples trained on, 0 to 1."""
        return sum(map(len, tuple(self._losses))) / self.total if self.total else 1.0

    def stop(self) -> None:
        """Stop at the end of the current chunk, within a quarter second."""
        self._stop.set()
        if self._begun.acquire(blocking=False):
            self.done = True

    def join(self) -> None:
        if not self.done:
            self._thread.join()

    def wait(self, timeout: float | None = None) -> np.ndarray:
        """Wait for the end, at most `timeout` seconds, and return the losses; Ctrl-C stops the training first.

        Errors are those of `bttlab.card.TrainerDriver.train`.
        """
        try:
            self._thread.join(timeout)
        except KeyboardInterrupt:
            self.stop()
            self._thread.join(STOP_SECONDS)  # with a hung kernel, the thread ends later, at the kernel's time limit
            raise
        if self.done and self._error:
            raise self._error
        return self.losses
