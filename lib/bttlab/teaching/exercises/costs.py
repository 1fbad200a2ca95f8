"""Exercises of notebook 07."""

from dataclasses import replace
from typing import Any

from bttlab.baseline.gpus import find_gpu
from bttlab.teaching.exercises.answers import is_whole, near, require_number
from bttlab.teaching.exercises.check import exercise


@exercise("07.1", "print rate(batch) / rate(17) for batch from 1 on.")
def half_speed(answer: Any, estimator: Any, query: Any) -> str | bool:
    """A batch size."""
    gpu = find_gpu("H100-80GB")

    def enough(batch: int) -> bool:
        rates = (estimator.sequences_per_second(query, gpu, n)[1] for n in (batch, 17))
        return next(rates) >= next(rates) / 2

    return (
        is_whole(answer)
        and enough(answer)
        and (answer == 1 or not enough(answer - 1))
        and "Below it the GPU waits for its host."
    )


@exercise("07.2", "divide largest(2) by largest(8), and keep three digits.")
def smaller_batch(answer: Any, estimator: Any, mixtral: Any) -> str | bool:
    """A ratio."""
    two, eight = (estimator.largest_batch(replace(mixtral, top_k=k), find_gpu("A40-48GB")) for k in (2, 8))
    require_number(answer, two / eight, 5e-3)
    return "Not four: the hidden state between blocks and the logits do not care about the router."


@exercise("07.3", "compare cost_on(name) for all names in estimator.prices; the answer is (name, dollars).")
def cheapest(answer: Any, estimator: Any, llama: Any) -> str | bool:
    """(GPU, dollars)."""
    gpu, dollars = answer
    costs = {name: estimator.estimate(llama, find_gpu(name), 10**8).cost[1] for name in estimator.prices}
    best = min(costs, key=costs.get)
    return gpu.strip() == best and near(dollars, costs[best], 5e-3) and "What counts is speed for money."
