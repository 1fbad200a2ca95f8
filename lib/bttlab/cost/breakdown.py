"""Where the time of a step goes, by stage and by layer, and which experts the tokens go to."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from bttlab.cost.training import Run, clock_of, parts_of

STAGES = ("forward", "backward", "optimizer")
LAYERS = ("attention", "router", "experts", "norm", "other")


def time_breakdown(run: Run, batch: int, steps: int) -> dict[str, dict[str, float]]:
    """Time the stages of some steps and, within forward and backward pass, the layers.

    The clocks of the layers take time themselves; they are read only here, never where throughput is measured.

    Parameters
    ----------
    run : Run
        Trained on by one step more, to warm up.
    batch : int
        Sequences.
    steps : int

    Returns
    -------
    dict of str to dict of str to float
        Seconds a step: stage to layer to seconds, medians over the steps. The optimizer has one layer, "all"; "other"
        is what the layers leave of a pass: embedding, output, loss and the sums in between.
    """
    clock = clock_of(run.device)
    tokens = run.batch(batch)
    run.step(tokens)
    rows = []
    with _layer_clocks(run, clock) as spent:
        for _ in range(steps):
            spent.clear()
            run.optimizer.zero_grad()
            marks = [clock.read()]
            loss = run.forward(tokens)
            marks.append(clock.read())
            loss.backward()
            marks.append(clock.read())
            run.optimizer.step()
            marks.append(clock.read())
            rows.append(_row(np.diff(marks), spent))
    return {
        stage: {layer: float(np.median([row[stage][layer] for row in rows])) for layer in rows[0][stage]}
        for stage in STAGES
    }


def _row(seconds: np.ndarray, spent: dict[tuple[str, str], float]) -> dict[str, dict[str, float]]:
    row: dict[str, dict[str, float]] = {"optimizer": {"all": seconds[2]}}
    for stage, total in zip(("forward", "backward"), seconds[:2], strict=True):
        row[stage] = {layer: spent.get((stage, layer), 0.0) for layer in LAYERS[:-1]}
        row[stage]["other"] = total - sum(row[stage].values())
    return row


@contextmanager
def _layer_clocks(run: Run, clock) -> Iterator[dict[tuple[str, str], float]]:
    """Hooks that add up seconds by stage and layer."""
    spent: dict[tuple[str, str], float] = {}
    handles = []
    for layer, modules in parts_of(run.model).items():
        for module in modules:
            for stage, before, after in (
                ("forward", module.register_forward_pre_hook, module.register_forward_hook),
                ("backward", module.register_full_backward_pre_hook, module.register_full_backward_hook),
            ):
                begin, end = _stopwatch(spent, (stage, layer), clock)
                handles += [before(begin), after(end)]
    try:
        yield spent
    finally:
        for handle in handles:
            handle.remove()


def _stopwatch(spent: dict, key: tuple[str, str], clock):
    started = 0.0

    def begin(*_) -> None:
        nonlocal started
        started = clock.read()

    def end(*_) -> None:
        spent[key] = spent.get(key, 0.0) + clock.read() - started

    return begin, end


def expert_load(run: Run, batch: int, steps: int, parts: int) -> tuple[np.ndarray, list[float]]:
    """Train, and count the tokens that go to each expert.

    Parameters
    ----------
    run : Run
    batch, steps : int
        Sequences a step, and steps.
    parts : int
        Stretches of equal length that the steps are divided into; it divides `steps`.

    Returns
    -------
    load : ndarray, shape (parts, layers, experts)
        Share of a layer's tokens that go to an expert, mean over a stretch; a layer's shares sum to 1.
    losses : list of float
        Of each step.
    """
    routers = parts_of(run.model)["router"]
    counts = torch.zeros(steps, len(routers), run.config.experts, dtype=torch.int64)
    step = 0

    def count(layer: int):
        def hook(module, inputs, outputs) -> None:
            chosen = outputs[-1].flatten().cpu()
            counts[step, layer] = torch.bincount(chosen, minlength=run.config.experts)

        return hook

    handles = [router.register_forward_hook(count(layer)) for layer, router in enumerate(routers)]
    losses = []
    try:
        for step in range(steps):  # noqa: B007 (the hooks read it)
            losses.append(run.step(run.batch(batch)))
    finally:
        for handle in handles:
            handle.remove()
    of_parts = counts.unflatten(0, (parts, -1)).sum(1).double()
    return (of_parts / of_parts.sum(-1, keepdim=True)).numpy(), losses
