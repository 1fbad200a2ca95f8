"""The losses of a short run are kept whole; of a long one the last ones and a thinned curve."""

import numpy as np
import pytest

from bttlab.data import epoch_order
from bttlab.lab.charts import smooth
from bttlab.lab.losses import MOST_POINTS, Losses
from bttlab.lab.workload import Workload


def _added(losses: np.ndarray, most: int) -> Losses:
    kept = Losses(len(losses), most)
    for part in np.array_split(losses, np.sort(np.random.default_rng(1).integers(0, len(losses), 300))):
        kept.add(part)
    return kept


def test_of_a_short_run_everything_is_kept():
    losses = np.random.default_rng(0).random(MOST_POINTS, np.float32)
    kept = _added(losses, most=MOST_POINTS)
    counts, thin, means = kept.curve
    np.testing.assert_array_equal(kept.last, losses)
    np.testing.assert_array_equal(counts, np.arange(1, MOST_POINTS + 1))
    np.testing.assert_array_equal(thin, losses)
    np.testing.assert_allclose(means, smooth(losses), rtol=1e-12)


@pytest.mark.parametrize("total", [MOST_POINTS + 1, 70_000, 100_001])
def test_of_a_long_run_the_last_losses_and_points_of_all(total):
    losses = np.random.default_rng(0).random(total, np.float32)
    kept = _added(losses, most=3_000)
    counts, thin, means = kept.curve
    assert kept.count == total and 1_500 <= len(kept.last) <= 3_000
    np.testing.assert_array_equal(kept.last, losses[-len(kept.last) :])
    assert MOST_POINTS / 2 < len(counts) <= MOST_POINTS + 1 and counts[-1] == total
    assert len(set(np.diff(counts[:-1]))) == 1
    np.testing.assert_array_equal(thin, losses[counts - 1])
    np.testing.assert_allclose(means, smooth(losses)[counts - 1], rtol=1e-9)


def test_the_order_in_pieces_is_the_order():
    workload = Workload(None, None, range(7), None, seed=3)
    pieces, first = [], 0
    while first < 20:
        pieces.append(workload.part(first, min(5, 20 - first)))
        first += len(pieces[-1])
    np.testing.assert_array_equal(np.concatenate(pieces), workload.order(20))
    np.testing.assert_array_equal(workload.part(9, 5), epoch_order(7, 3, 1)[2:])
