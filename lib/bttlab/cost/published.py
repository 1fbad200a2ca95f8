"""The published model of throughput and largest batch, to compare ours with.

Xia et al., "Understanding the Performance and Estimating the Cost of LLM Fine-Tuning", arXiv 2408.04693: equation 1
(§V-A) is Max_BSZ = floor(C0 (GPU_mem - model_mem) / (seq_len ((1 - C1) + C1 sparsity))), equation 2 (§V-B) is
Throughput = C2 log(batch_size / (sparsity C3)) + C4, in sequences a second. Coefficients belong to one model (equation
1), or to one model and data set (equation 2), so they are fitted to profiles that differ in sparsity and batch alone.

As printed, C3 and C4 of equation 2 cannot both be told from measurements, log C3 being a constant. The text reads it
otherwise: C4 is the throughput at batch size one, where the logarithm is zero, which holds for
log(batch_size^(1 / (sparsity C3))); there C2 and C3 cannot be told apart. C3 is 1 here, which leaves the curves of
either reading as they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from scipy import optimize

from bttlab.cost.configuration import FineTuning
from bttlab.cost.fit import CostModel, HeldOut, Predictor, held_out
from bttlab.cost.profiles import Profile, Profiles

READINGS = {
    "published": lambda batch, sparsity: np.log(batch / sparsity),
    "published, sparsity in the exponent": lambda batch, sparsity: np.log(batch) / sparsity,
}


def fit_published(profiles: Sequence[Profile], budget: int, reading: str = "published") -> Predictor:
    """Fit the published model to profiles of one model; see `bttlab.cost.fit.held_out` for what it returns.

    `reading` is that of equation 2, one of `READINGS`.
    """
    return _throughput(profiles, READINGS[reading]), _largest_batch(profiles, budget)


def compare(profiles: Profiles) -> dict[str, dict[str, float]]:
    """Return held-out errors of our model and the published one, each configuration left out in turn.

    Ours is fitted to all other configurations, the published one to those that differ from the one left out in
    sparsity alone.

    Raises
    ------
    CostError
        If the profiles are too few to fit to.
    """
    ours = CostModel(profiles.profiles, profiles.budget_bytes)
    families: dict[FineTuning, list[Profile]] = {}
    for profile in ours.profiles:
        families.setdefault(family(profile.config), []).append(profile)
    # Two coefficients of equation 1 are fitted to the others of a family.
    enough = [members for members in families.values() if len(members) > 2]
    errors = {"ours": _errors([ours.held_out])}
    for reading in READINGS:
        fit = partial(fit_published, budget=profiles.budget_bytes, reading=reading)
        errors[reading] = _errors([held_out(members, fit) for members in enough])
    return errors


def _errors(left_out: Sequence[HeldOut]) -> dict[str, float]:
    throughput = np.concatenate([one.throughput_errors for one in left_out])
    steps = np.concatenate([one.batch_steps for one in left_out])
    return {
        "configurations": len(steps),
        "throughput_median": float(np.median(throughput)),
        "throughput_90_percent": float(np.quantile(throughput, 0.9)),
        "largest_batch_within_a_step": float(np.mean(steps <= 1)),
        "largest_batch_steps_most": int(steps.max()),
    }


def family(config: FineTuning) -> FineTuning:
    """Return what configurations that differ in sparsity alone have in common."""
    return replace(config, top_k=1)


def _throughput(profiles: Sequence[Profile], logarithm: Callable[[float, float], float]):
    rows = [
        (logarithm(batch, profile.config.sparsity), rate / profile.config.sequence_length)
        for profile in profiles
        for batch, rate in zip(profile.batches, profile.tokens_per_second, strict=True)
    ]
    logs, rates = np.array(rows).T
    # As everywhere here, what counts is the relative error.
    (c2, c4), *_ = np.linalg.lstsq(
        np.stack([logs, np.ones_like(logs)], axis=1) / rates[:, None], np.ones_like(rates), rcond=None
    )

    def predict(config: FineTuning, batch: int) -> float:
        return config.sequence_length * (c2 * logarithm(batch, config.sparsity) + c4)

    return predict


def _largest_batch(profiles: Sequence[Profile], budget: int):
    def real(config: FineTuning, c0: float, c1: float) -> float:
        model = 4 * (config.parameters + config.adapters)
        return c0 * (budget - model) / (config.sequence_length * ((1 - c1) + c1 * config.sparsity))

    def errors(coefficients: np.ndarray) -> list[float]:
        c0, c1 = np.exp(coefficients[0]), coefficients[1]
        return [real(p.config, c0, c1) / (p.largest_batch + 0.5) - 1 for p in profiles]

    start = np.log(np.median([(p.largest_batch + 0.5) / real(p.config, 1.0, 0.5) for p in profiles]))
    fitted = optimize.least_squares(errors, [start, 0.5], bounds=([-np.inf, 0.0], [np.inf, 0.99])).x
    return lambda config: int(real(config, np.exp(fitted[0]), fitted[1]))
