"""How far FP32 of one processor may be from that of another, or from exact arithmetic, by the number of operations."""

from bttlab.model import ModelConfig

UNIT = 2.0**-24  # of FP32, to nearest: Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 2.2
LAYERS = (
    10  # of an encoder, one behind the other: q, scores, weighted sums, output, two of the feed-forward block, norms
)
WAYS = 3  # forward, and twice backward: by the inputs and by the cores


def rounding(config: ModelConfig, largest: float = 1.0) -> float:
    """Return a bound of a gradient's error where no entry of it, nor of a factor on its way, is above `largest`.

    A sum of n products has the relative error n u / (1 - n u), whatever its order (Higham, section 3.1). Errors of
    factors add up along the longest way through the model.
    """
    cores = len(config.linear_out_modes) + len(config.linear_in_modes)
    longest = max(config.hidden_size, config.sequence_length)  # terms of a sum
    terms = WAYS * (config.encoders * (LAYERS + cores) + 2) * longest
    return largest * terms * UNIT / (1 - terms * UNIT)
