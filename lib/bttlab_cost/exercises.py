"""Exercises of notebook 07, and `check`, which knows them once this is imported."""

from dataclasses import replace
from typing import Any

from bttlab.baseline.gpus import find_gpu
from bttlab.teaching.exercises.answers import is_whole, require_number
from bttlab.teaching.exercises.check import check, exercise, require

__all__ = ["check"]


@exercise("07.1", "print rate(batch) / rate(17) for batch from 1 on.")
def half_speed(answer: Any, estimator: Any, query: Any) -> str:
    require(is_whole(answer), f"you gave {answer!r}, which is not a batch size")
    asked = int(answer)

    def share(batch: int) -> float:
        of, all_ = (estimator.sequences_per_second(query, find_gpu("H100-80GB"), n)[1] for n in (batch, 17))
        return of / all_

    found = f"batch {asked} reaches {share(asked):.1%} of the throughput at 17"
    require(share(asked) >= 0.5, found)
    require(asked == 1 or share(asked - 1) < 0.5, f"{found}; a smaller one reaches half, too")
    return "Below it the GPU waits for its host."


@exercise("07.2", "divide largest(2) by largest(8), and keep three digits.")
def smaller_batch(answer: Any, estimator: Any, mixtral: Any) -> str:
    two, eight = (estimator.largest_batch(replace(mixtral, top_k=k), find_gpu("A100-80GB")) for k in (2, 8))
    require_number(answer, two / eight, 5e-3)
    return "Not four: the hidden states between blocks and the mixer do not care about the router."


@exercise("07.3", "compare cost_on(name) for all names in estimator.prices; the answer is (name, dollars).")
def cheapest(answer: Any, estimator: Any, llama: Any) -> str:
    """(GPU, dollars)."""
    gpu, dollars = answer
    costs = {name: estimator.estimate(llama, find_gpu(name), 10**8).cost[1] for name in estimator.prices}
    best = min(costs, key=costs.get)
    name = gpu.strip()
    require(name in costs, f"{name!r} is no GPU with a price: {', '.join(costs)}")
    require(name == best, f"{name} takes {costs[name]:,.0f} dollars; another takes less")
    require_number(dollars, costs[best], 5e-3)
    return "What counts is speed for money."
