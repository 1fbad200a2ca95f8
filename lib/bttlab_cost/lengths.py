"""Lengths of the sequences of a data set, and the padding of a batch to its longest.

Beyond their shortest the lengths are taken to be exponential: the longest of B sequences is expected to lie
tail (H_B - ln 2) tokens above the median, H_B = 1 + 1/2 + … + 1/B. The tail, in tokens, is a fitted coefficient of the
model (`bttlab_cost.calibration`); one tail serves both data sets of Xia et al. (arXiv 2408.04693), whose medians are 79
and 174 tokens. No sequence is longer than `CUTOFF` tokens or `LONGEST` medians, a rule of thumb that was read off the
largest batches that they ran on an A40.
"""

import math

import numpy as np

from bttlab_cost.configuration import FineTuning

CUTOFF = 1024  # tokens; cutoff_len of the published runs
LONGEST = 7  # medians
_CUT = 16.0  # exponent of a smooth minimum: without a kink the fit has one optimum


def longest_length(config: FineTuning) -> int:
    """Return the tokens of the longest sequence that a run meets."""
    if config.padding == "none":
        return config.sequence_length
    return max(config.sequence_length, min(CUTOFF, LONGEST * config.sequence_length))


def padded_length(config: FineTuning, batch: int, tail: float | np.ndarray) -> float | np.ndarray:
    """Return the expected tokens of each sequence of a batch with its padding; it has the shape of `tail`.

    Parameters
    ----------
    config : FineTuning
    batch : int
        Sequences.
    tail : float or ndarray
        Mean excess of the lengths over their shortest, tokens.
    """
    longest = longest_length(config)
    if longest == config.sequence_length:  # no padding, or none is longer
        return longest + 0.0 * tail
    harmonic = math.fsum(1 / place for place in range(1, batch + 1))
    expected = config.sequence_length + tail * (harmonic - math.log(2))
    return (longest**-_CUT + expected**-_CUT) ** (-1 / _CUT)
