"""The configurations whose profiles the model of the cost is fitted to."""

import random

from bttlab.cost.configuration import FineTuning

# layers, hidden, experts, expert_hidden, method, sequence lengths; every one with top 1, top 2 and dense routing
_FAMILIES = (
    (2, 64, 4, 128, "full", (32,)),
    (2, 128, 8, 256, "full", (32, 64)),
    (4, 64, 8, 128, "lora", (64, 128)),
    (4, 128, 4, 256, "lora", (32, 64)),
    (3, 96, 8, 192, "full", (128,)),
    (2, 192, 4, 384, "full", (64,)),
    (3, 160, 4, 320, "lora", (128,)),
    (6, 64, 4, 128, "full", (64,)),
    (2, 128, 8, 256, "lora", (128,)),
    (3, 96, 8, 192, "lora", (32,)),
)


def configurations() -> list[FineTuning]:
    """Return them in an order that has no trend, so that a drift of the machine is none of a size."""
    all_of_them = [
        FineTuning(layers, hidden, 4, experts, top_k, inner, length, method)
        for layers, hidden, experts, inner, method, lengths in _FAMILIES
        for length in lengths
        for top_k in (1, 2, experts)
    ]
    random.Random(0).shuffle(all_of_them)
    return all_of_them
