"""What a training sample makes the element-wise units do, from shapes alone.

It is the useful work, without padding of words, as `bttlab.u50.cycles.useful_macs` is for the engines.
"""

from bttlab.model.config import LINEARS, ModelConfig


def element_operations(model: ModelConfig, tokens: int) -> dict[str, int]:
    """Return how many values each element-wise unit makes for one training sample.

    Parameters
    ----------
    model : ModelConfig
    tokens : int
        Real tokens, [CLS] included.
    """
    matrix, encoders = tokens * model.hidden_size, model.encoders
    probabilities = encoders * model.heads * tokens * tokens
    return {
        "bias": (len(LINEARS) * encoders + 1) * matrix * 2,
        "residual": 2 * encoders * matrix,
        "layer_norm_forward": (2 * encoders + 1) * matrix,
        "layer_norm_backward": (2 * encoders + 1) * matrix,
        "gelu_forward": encoders * matrix,
        "gelu_backward": encoders * matrix,
        "tanh_forward": matrix,
        "tanh_backward": matrix,
        "softmax_forward": probabilities + model.intents + (tokens - 1) * model.slots,
        "softmax_backward": probabilities,
        "update": model.parameters_count,
    }
