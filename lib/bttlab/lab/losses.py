"""Losses of a run: the last ones, and a thinned curve of all."""

import numpy as np

from bttlab.lab.charts import SMOOTHING, smooth

MOST_LOSSES = 1 << 20  # kept one by one: 4 MiB
MOST_POINTS = 4096  # of a curve: more than are drawn


class Losses:
    """Losses of a run. One thread adds; others may read meanwhile.

    Parameters
    ----------
    total : int
        Samples that the run will have.
    most : int
        Losses kept unthinned; beyond that the older half is dropped.

    Attributes
    ----------
    count : int
        Losses added.
    """

    def __init__(self, total: int, most: int = MOST_LOSSES):
        self.count = 0
        self._every = 1
        self._kept = 0, np.zeros(min(total, most), np.float32)  # the first one's sample, and room
        self._points = np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(0)
        self._tip = self._points

    @property
    def last(self) -> np.ndarray:
        """The losses that are kept, float32 of shape (n,): all, or the last ones."""
        first, array = self._kept
        return array[: self.count - first]

    @property
    def curve(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Samples so far (int64), the last one's loss (float32) and the mean of the last 100, at evenly spaced samples.

        At every sample while they are few; else at every second, fourth, …, and at the last one.
        """
        return self._tip

    def add(self, losses: np.ndarray) -> None:
        """Append losses."""
        ends = np.arange(self.count + 1, self.count + len(losses) + 1)
        before = self.last[-(SMOOTHING - 1) :]
        means = smooth(np.concatenate([before, losses]))[len(before) :]
        self._lengthen(ends, losses, means)
        self._keep(losses)

    def _keep(self, losses: np.ndarray) -> None:
        first, array = self._kept
        end = self.count + len(losses)
        if end - first <= len(array):
            array[self.count - first : end - first] = losses
        else:
            kept = np.concatenate([self.last, losses])[-(len(array) // 2) :]
            array = np.zeros_like(array)  # a new one: another thread may read the old one
            array[: len(kept)] = kept
            self._kept = end - len(kept), array
        self.count = end

    def _lengthen(self, *new: np.ndarray) -> None:
        points = _joined(self._points, [part[new[0] % self._every == 0] for part in new])
        while len(points[0]) > MOST_POINTS:
            self._every *= 2
            points = tuple(part[points[0] % self._every == 0] for part in points)
        self._points = points
        if len(new[0]) and new[0][-1] % self._every:
            points = _joined(points, [part[-1:] for part in new])
        self._tip = points


def _joined(first, second) -> tuple[np.ndarray, ...]:
    return tuple(np.concatenate(parts) for parts in zip(first, second, strict=True))
