"""What a training sample makes the kernel do, from shapes alone: multiply-accumulates and element-wise operations.

It is the useful work, without padding of words or tiles: over the lanes and the clock it gives the bound that no
schedule can beat.
"""

from bttlab.model.config import LINEARS, ModelConfig
from bttlab.tensor.cost import flow_cost, lookup_cost

FLOW = "bidirectional"  # the accelerator's (tt_linear.h)


def multiply_accumulates(model: ModelConfig, tokens: int) -> dict[str, int]:
    """Return the multiply-accumulates of one training sample by part, forward and backward pass together.

    Parameters
    ----------
    model : ModelConfig
        In tensor format with three modes at each end.
    tokens : int
        Real tokens, [CLS] included.
    """
    words = tokens - 1

    def linear(rows: int) -> int:
        return (
            flow_cost(FLOW, rows, model.linear_out_modes, model.linear_in_modes, model.linear_rank).macs if rows else 0
        )

    embedding = (model.embedding_row_modes, model.embedding_column_modes, model.embedding_rank)
    return {
        "linear": len(LINEARS) * model.encoders * linear(tokens) + linear(1) + linear(words),
        # Two products forward; backward the gradients of both operands of each.
        "attention": 3 * model.encoders * 2 * tokens * tokens * model.hidden_size,
        "embedding": lookup_cost(tokens, *embedding).macs,
        "heads": 3 * (model.intents + words * model.slots) * model.hidden_size,
    }


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
