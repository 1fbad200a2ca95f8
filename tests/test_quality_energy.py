"""Energy to a given quality: samples on record, energy of a sample modelled."""

import numpy as np
import pytest

import tiny_baseline
from bttlab.baseline.gpus import find_gpu
from bttlab.estimate.card import estimate
from bttlab.estimate.gpu import batch_figures, model_step
from bttlab.lab import energy_to_quality
from bttlab.lab.comparison import TARGETS
from bttlab.model import ModelConfig

GPU = find_gpu("RTX-3090")


@pytest.fixture(scope="module")
def alike():
    """Sixteen utterances of 13 tokens."""
    samples = tiny_baseline.samples(1000, ModelConfig())
    return samples[np.flatnonzero(samples.lengths == 13)[:16]]


@pytest.mark.parametrize("format", ["dense", "btt"])
def test_a_batch_of_one_is_a_step(alike, format):
    """Two ways to write down the same step: the kernels are nearly the same."""
    seconds, joules = batch_figures(GPU, format, "graphs", ModelConfig(), alike[:1])
    step = model_step(GPU, format, "graphs", ModelConfig(), alike[:1])
    np.testing.assert_allclose(joules, step.joules, rtol=0.12)
    np.testing.assert_allclose(seconds, step.seconds, rtol=0.12)


def test_joules_are_samples_times_joules_a_sample(alike):
    rows = energy_to_quality(GPU, alike, TARGETS[0])
    assert len(rows) == 9 and sum(row.device == "U50" for row in rows) == 1
    for row in rows:
        assert row.joules[1] == pytest.approx(np.median(row.samples) * row.joules_per_sample[1])
        assert row.joules[0] < row.joules[1] < row.joules[2]
    (card,) = (row for row in rows if row.device == "U50")
    assert (card.format, card.batch) == ("tensor", 1)
    band = estimate(ModelConfig(), {13: 1}, card.optimizer).energy_at_clocks
    assert card.joules_per_sample == (band.low, band.value, band.high)
    with pytest.raises(ValueError, match="take one of"):
        energy_to_quality(GPU, alike, 0.5)
