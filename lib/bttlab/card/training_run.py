"""Training that goes on beside the caller: what a driver's `start` returns."""

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from bttlab.model import NumericalFault, Optimizer
from bttlab.model.loop import chunks, train_pieces
from bttlab.threads import Thread

if TYPE_CHECKING:
    from bttlab.card.trainer import Trainer


class TrainingRun:
    """Training that goes on beside the caller, chunk by chunk; a thread of its own ends with it.

    Attributes
    ----------
    total : int
        Number of samples.
    """

    def __init__(self, trainer: "Trainer", samples, optimizer: Optimizer, rates: np.ndarray):
        self.total = len(samples)
        self._losses: list[np.ndarray] = []
        self._stop = threading.Event()
        self._error: Exception | None = None
        lock = trainer._exclusively()
        lock.acquire()
        self._thread = Thread(target=self._train, args=(trainer, lock, samples, optimizer, rates), name="bttlab-train")
        self._thread.start()

    def _train(self, trainer: "Trainer", lock: threading.Lock, samples, optimizer: Optimizer, rates) -> None:
        try:
            train_pieces(
                chunks(0, len(samples)),
                lambda part: trainer._train(samples[part], rates[part], optimizer),
                lambda part, losses, seconds: self._losses.append(losses),
                lambda: not self._stop.is_set(),
            )
        except NumericalFault as fault:
            self._error = fault.at(len(self.losses), self.losses)
        except Exception as error:  # raised where the caller waits
            self._error = error
        finally:
            lock.release()

    @property
    def losses(self) -> np.ndarray:
        """Losses so far, float32."""
        return np.concatenate([np.zeros(0, np.float32), *self._losses])

    @property
    def done(self) -> bool:
        """Whether training has ended: all samples done, stopped, or failed."""
        return not self._thread.is_alive()

    @property
    def progress(self) -> float:
        """Part of the samples that are trained on, 0 to 1."""
        return sum(map(len, tuple(self._losses))) / self.total if self.total else 1.0

    def stop(self) -> None:
        """Stop at the next chunk's end, within a quarter second."""
        self._stop.set()

    def wait(self, timeout: float | None = None) -> np.ndarray:
        """Wait for the end and return the losses; Ctrl-C stops the training first.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; `done` tells whether that was enough.

        Raises
        ------
        NumericalFault
            As `bttlab.card.Trainer.train`.
        """
        try:
            self._thread.join(timeout)
        except KeyboardInterrupt:
            self.stop()
            self._thread.join()
            raise
        if self.done and self._error:
            raise self._error
        return self.losses


def wait_to_the_end(handle: Any) -> None:
    """Wait for a kernel call, also through a KeyboardInterrupt, raised then: half a call would leave half a result."""
    interrupt = None
    while True:
        try:
            handle.wait()
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt:
        raise interrupt
