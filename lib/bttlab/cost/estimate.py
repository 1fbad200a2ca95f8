"""What a fine-tuning run takes on a GPU of the price table: batch, throughput, hours and cost, all modelled."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from bttlab.cost.configuration import CostError, FineTuning
from bttlab.cost.fit import CostModel
from bttlab.cost.prices import Gpu
from bttlab.cost.profiles import Profiles

MODEL_VERSION = "cost-1"
RESERVED = 2**30  # bytes of a GPU that context and libraries take before the first tensor; an assumption
TRANSFER = 2.0  # by how much a throughput carried to another device may be off either way; an assumption

ASSUMPTIONS = (
    "FP32 throughout, AdamW, no recomputation, no quantisation, one device, sequences of full length",
    "bytes do not depend on the device: what a step needs beside the parameters transfers as it was fitted; "
    f"{RESERVED / 2**30:.0f} GiB of a GPU are taken before the first tensor",
    "terms that the host pays (step, layers, calls, optimizer tensors) transfer as they are; all others shrink with "
    "the published FP32 peak of the GPU over the FP32 matrix product measured on the profiled machine",
    f"nothing of that transfer is checked by a measurement here, hence a factor of {TRANSFER:g} on top of the held-out "
    "error",
)


@dataclass(frozen=True)
class Estimate:
    """One fine-tuning run on one GPU.

    Attributes
    ----------
    config : FineTuning
    gpu : Gpu
    tokens : int
        Trained on in all, epochs counted.
    largest_batch, batch : int
        Sequences that fit, and that are taken.
    tokens_per_second : (float, float, float)
        Low, middle and high.
    extrapolated : list of str
        What lies outside of what was measured.
    """

    config: FineTuning
    gpu: Gpu
    tokens: int
    largest_batch: int
    batch: int
    tokens_per_second: tuple[float, float, float]
    extrapolated: list[str]

    @property
    def hours(self) -> tuple[float, float, float]:
        """Low, middle and high."""
        low, middle, high = self.tokens_per_second
        return tuple(self.tokens / rate / 3600 for rate in (high, middle, low))

    @property
    def cost(self) -> tuple[float, float, float]:
        """USD: low, middle and high."""
        return tuple(hours * self.gpu.usd_per_hour for hours in self.hours)


class Estimator:
    """A fitted model together with the machine its profiles come from.

    Parameters
    ----------
    profiles : Profiles

    Raises
    ------
    CostError
        If they are too few to fit to.
    """

    def __init__(self, profiles: Profiles):
        self.profiles = profiles
        self.model = CostModel(profiles.profiles, profiles.budget_bytes)

    def speed(self, gpu: Gpu) -> float:
        """Return how many times as fast as the profiled machine a GPU is taken to compute."""
        return 1e12 * gpu.fp32_tflops / self.profiles.matmul_flops

    def largest_batch(self, config: FineTuning, gpu: Gpu) -> int:
        """Return the largest batch that fits a GPU; 0 if none does."""
        return self.model.largest_batch(config, int(1e9 * gpu.memory_gb) - RESERVED)

    def tokens_per_second(self, config: FineTuning, gpu: Gpu, batch: int) -> tuple[float, float, float]:
        """Return low, middle and high: the held-out error that 9 of 10 points stay under, times `TRANSFER`."""
        middle = self.model.tokens_per_second(config, batch, self.speed(gpu))
        factor = (1 + float(np.quantile(self.model.held_out.throughput_errors, 0.9))) * TRANSFER
        return middle / factor, middle, middle * factor

    def estimate(self, config: FineTuning, gpu: Gpu, tokens: int, batch: int | None = None) -> Estimate:
        """Return what training on `tokens` tokens takes; by default with the largest batch that fits.

        Raises
        ------
        CostError
            If batch 1, or the batch asked for, does not fit, or there are no tokens.
        """
        if tokens < 1:
            raise CostError(f"tokens is {tokens}: there must be at least 1 to train on")
        largest = self.largest_batch(config, gpu)
        if largest < 1:
            raise CostError(
                f"{config}: it does not fit {gpu.gpu} at batch 1, parameters and optimizer alone take "
                f"{config.state_bytes / 1e9:,.1f} of {gpu.memory_gb:g} GB; take a larger GPU, shorter sequences, a "
                "smaller model or lora"
            )
        if batch is not None and not 1 <= batch <= largest:
            raise CostError(f"batch is {batch}: on {gpu.gpu} it must be from 1 to {largest}")
        batch = batch or largest
        rates = self.tokens_per_second(config, gpu, batch)
        return Estimate(config, gpu, tokens, largest, batch, rates, self._extrapolated(config, batch))

    def _extrapolated(self, config: FineTuning, batch: int) -> list[str]:
        measured = self.model.profiles
        found = []
        for name in (field.name for field in fields(FineTuning)):
            known, value = {getattr(profile.config, name) for profile in measured}, getattr(config, name)
            if isinstance(value, str):
                outside, seen = value not in known, " or ".join(sorted(known))
            else:
                outside, seen = not min(known) <= value <= max(known), f"{min(known)} to {max(known)}"
            # The rank of adapters that are not there means nothing.
            if outside and not (name == "lora_rank" and config.method == "full"):
                found.append(f"{name} {value} (measured: {seen})")
        tokens = batch * config.sequence_length
        most = max(batch * profile.config.sequence_length for profile in measured for batch in profile.batches)
        if tokens > most:
            found.append(f"{tokens:,} tokens a step (measured: up to {most:,})")
        return found

    def held_out(self) -> dict[str, Any]:
        """Return the held-out errors as JSON-ready values, measured against the profiles."""
        errors, steps = self.model.held_out.throughput_errors, self.model.held_out.batch_steps
        return {
            "configurations": len(self.model.profiles),
            "throughput_median": float(np.median(errors)),
            "throughput_90_percent": float(np.quantile(errors, 0.9)),
            "largest_batch_grid_steps_most": int(steps.max()),
            "largest_batch_grid_steps_mean": float(steps.mean()),
            "how": "each configuration left out in turn, on the profiled machine",
        }
