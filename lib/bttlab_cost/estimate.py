"""Estimate of a fine-tuning run on a GPU: batch, memory, throughput, hours and cost, all modelled."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from bttlab.baseline.gpus import Gpu, read_gpus
from bttlab.util.places import ROOT
from bttlab.util.reading import MOST_OF_SETTINGS, parse_json, read_text
from bttlab.util.settings import RecordError, from_values, nearest
from bttlab_cost import xia2024
from bttlab_cost.calibration import read_calibration
from bttlab_cost.configuration import CostError, FineTuning
from bttlab_cost.gpu_step import Parts, host_share
from bttlab_cost.models import find_model
from bttlab_cost.parallel import ALONE, HOST_GB_S, HOST_LINK, REACHED, Parallel
from bttlab_cost.step_memory import RESERVED

PRICES = ROOT / "data" / "gpu_prices.json"
MODEL_VERSION = "cost-6"
UNCHECKED = 1.0  # of a precision that nothing was measured in: twice or half; an assumption

ASSUMPTIONS = (
    "AdamW as PyTorch has it (not with optimizer=adamw-fused or adamw-8bit), kernels as the published runs used them",
    "experts get equal shares of the tokens",
    "full fine-tuning in BF16 is mixed precision: FP32 weights and moments beside BF16 weights (state=bf16: not)",
    "arithmetic, bytes and launches of a kind of work overlap; kinds do not",
    f"{RESERVED / 2**30:.0f} GiB of a GPU are taken before the first tensor",
    "the host that launches kernels is as fast as the one of the published runs",
    f"several GPUs: collectives reach {REACHED[1]:.0%} of a link ({REACHED[0]:.0%} to {REACHED[2]:.0%})",
    f"offloading: {HOST_LINK} between host and GPU, {HOST_GB_S:g} GB/s of the host's memory, nothing overlaps",
    "padding longest: the data set's lengths have the tail that was fitted; hours are tokens over the median length",
)


@dataclass(frozen=True)
class Price:
    """A row of the table of prices, data/gpu_prices.json or one of the user's own; all of it published."""

    gpu: str  # a name of data/gpus.json
    usd_per_hour: Annotated[float, Field(gt=0)]  # of one GPU, on demand
    provider: str
    # source, read_in, date: the provider's page, the collection that lists the price, and its date (ISO 8601)
    source: str
    read_in: str
    date: str


def read_prices(path: Path = PRICES) -> dict[str, Price]:
    """Return the prices of a table by GPU.

    Raises CostError if it cannot be read, a row breaks a rule, or rows are of several providers, so that they do not
    rank GPUs.
    """
    try:
        rows = from_values(list[Price], parse_json(read_text(path, RecordError, most=MOST_OF_SETTINGS))["gpus"])
    except (RecordError, OSError, ValueError, LookupError, TypeError) as error:
        raise CostError(f"{path} is no table of GPU prices ({error}); data/gpu_prices.json shows the form") from None
    providers = sorted({row.provider for row in rows})
    if len(providers) > 1:
        raise CostError(f"{path} has prices of {' and '.join(providers)}: one table ranks one provider's; divide it")
    names = [row.gpu for row in rows]
    for gpu in names:
        if gpu not in read_gpus():
            raise CostError(f"{path}: {gpu!r} is not a name of data/gpus.json{nearest(gpu, read_gpus())}")
        if names.count(gpu) > 1:
            raise CostError(f"{path} has several prices of {gpu}: leave one")
    return {row.gpu: row for row in rows}


@dataclass(frozen=True)
class Estimate:
    """One fine-tuning run on one GPU, or several.

    Of several, `batch`, `largest_batch` and `peak_bytes` are those of each, `sequences_per_second` of all.
    """

    config: FineTuning
    gpu: Gpu
    price: Price | None  # None if the table has none for this GPU
    tokens: int  # trained on in all, epochs counted, padding not
    # low, middle and high of the sequences of the stated length that fit
    largest_batch_band: tuple[int, int, int]
    # sequences that fit when they are padded to the longest that a run meets; as `largest_batch` without padding
    padded_batch: int
    batch: int  # sequences that are taken
    sequences_per_second: tuple[float, float, float]  # low, middle and high
    parts: dict[tuple[str, str, str], float]  # seconds of a step by stage, kind of work and layer
    host_share: float  # for how much of a step the GPU waits for its host
    # low, middle and high of the memory at the peak of a step whose sequences have the expected padding
    peak_bytes: tuple[float, float, float]
    notes: list[str]  # what lies outside of what was measured, or does not always fit
    parallel: Parallel
    sent_bytes: float  # what each GPU sends in a step

    @property
    def largest_batch(self) -> int:
        """Sequences of the stated length that fit."""
        return self.largest_batch_band[1]

    @property
    def tokens_per_second(self) -> tuple[float, float, float]:
        """Low, middle and high; padding not counted."""
        return tuple(self.config.sequence_length * rate for rate in self.sequences_per_second)

    @property
    def hours(self) -> tuple[float, float, float]:
        low, middle, high = self.tokens_per_second
        return tuple(self.tokens / rate / 3600 for rate in (high, middle, low))

    @property
    def cost(self) -> tuple[float, float, float] | None:
        """USD: low, middle and high; None without a price."""
        if self.price is None:
            return None
        return tuple(self.parallel.gpus * hours * self.price.usd_per_hour for hours in self.hours)


class Estimator:
    """The recorded calibration of the model of a GPU step, with a table of prices: the committed one by default."""

    def __init__(self, prices: Mapping[str, Price] | None = None):
        self.calibration = read_calibration()
        self.prices = read_prices() if prices is None else prices

    def largest_batch(self, config: FineTuning, gpu: Gpu, parallel: Parallel = ALONE) -> int:
        """Return how many sequences of the stated length fit a GPU; 0 if none does."""
        return self._fitting(config, gpu, config.sequence_length, parallel)

    def padded_batch(self, config: FineTuning, gpu: Gpu, parallel: Parallel = ALONE) -> int:
        """Return how many sequences fit a GPU when they are padded to the longest that a run meets; 0 if none does."""
        return self._fitting(config, gpu, config.longest_length, parallel)

    def largest_batch_band(self, config: FineTuning, gpu: Gpu, parallel: Parallel = ALONE) -> tuple[int, int, int]:
        """Return low, middle and high of `largest_batch`: at the high, middle and low end of the memory's band."""
        factor = self.memory_factor(config)
        low, middle, high = (
            self._fitting(config, gpu, config.sequence_length, parallel, one) for one in (1 / factor, 1.0, factor)
        )
        return low, middle, high

    def memory_factor(self, config: FineTuning) -> float:
        """Return by which factor, either way, the peak of the memory may be off."""
        fitted = self.calibration
        spread = fitted.flash_memory_spread
        if config.kernels == "eager" and _is_measured(config):
            spread = fitted.memory_spread
        return math.exp(spread) * (1 + UNCHECKED if config.precision == "fp32" else 1)

    def _fitting(self, config: FineTuning, gpu: Gpu, length: int, parallel: Parallel, factor: float = 1.0) -> int:
        footprint = parallel.footprint(config, self.calibration.memory_of(config))
        tokens = footprint.tokens(gpu.memory_bytes, factor)
        return max(0, int(tokens / length))

    def sequences_per_second(
        self, config: FineTuning, gpu: Gpu, batch: int, parallel: Parallel = ALONE
    ) -> tuple[float, float, float]:
        """Return low, middle and high: nine of ten points that were not fitted to lie in such a band."""
        time = self.calibration.time_of(config)
        factor, _ = self._band(config, gpu, host_share(config, gpu, batch, time))
        tokens = batch * config.padded_length(batch, time.tail)
        low, middle, high = parallel.step_seconds(config, gpu, tokens, time)
        together = batch * parallel.sequences
        return together / high / factor, together / middle, together / low * factor

    def estimate(
        self, config: FineTuning, gpu: Gpu, tokens: int, batch: int | None = None, parallel: Parallel = ALONE
    ) -> Estimate:
        """Return what training on `tokens` tokens takes; by default with the largest batch that always fits.

        Raises CostError if batch 1, or the batch asked for, does not fit, or there are no tokens.
        """
        if tokens < 1:
            raise CostError(f"tokens is {tokens}: there must be at least 1 to train on")
        parallel.check(config)
        largest_band = self.largest_batch_band(config, gpu, parallel)
        _, largest, most = largest_band
        footprint = parallel.footprint(config, self.calibration.memory_of(config))
        if most < 1 or (batch is None and largest < 1):
            lighter = {"full": ", lora or qlora", "lora": " or qlora"}.get(config.method, "")
            more = "more GPUs, " if parallel.strategy == "fsdp" else "more GPUs with --parallel fsdp, "
            low, middle, high = (
                value / 2**30 for value in footprint.band(config.sequence_length, self.memory_factor(config))
            )
            tried = "; it may fit: --batch 1 tries" if most >= 1 else ""
            raise CostError(
                f"{config}, {config.parameters:,} parameters: it does not fit {gpu.gpu} at batch 1, what it holds "
                f"between steps alone takes {(footprint.lasting - RESERVED) / 2**30:,.1f}, a step {middle:,.1f} "
                f"({low:,.1f} to {high:,.1f}) of {gpu.memory_bytes / 2**30:,.1f} GiB; "
                f"take a larger GPU, {more}shorter sequences, a smaller model{lighter}{tried}"
            )
        if batch is not None and not 1 <= batch <= most:
            raise CostError(f"batch is {batch}: on {gpu.gpu} it must be from 1 to {most}")
        padded = self.padded_batch(config, gpu, parallel)
        batch = batch or max(1, padded)
        time = self.calibration.time_of(config)
        share = host_share(config, gpu, batch, time)
        notes = []
        if batch > largest:
            notes.append(
                f"a batch of {batch} fits at the low end of the memory's band alone; {largest} fit at its middle"
            )
        elif batch > padded:
            longest = config.longest_length
            notes.append(f"a batch of {batch} padded to {longest} tokens does not fit, {padded} would")
        if share > 0.5:
            notes.append(f"the GPU waits for its host for {share:.0%} of a step: hosts and libraries differ in that")
        taken = batch * config.padded_length(batch, time.tail)
        return Estimate(
            config,
            gpu,
            self.prices.get(gpu.gpu),
            tokens,
            largest_band,
            padded,
            batch,
            self.sequences_per_second(config, gpu, batch, parallel),
            _named_parts(config, parallel.compute_parts(config, gpu, taken, time)),
            share,
            footprint.band(taken, self.memory_factor(config)),
            notes + self._band(config, gpu, share)[1],
            parallel,
            parallel.sent_bytes(config, taken),
        )

    def _band(self, config: FineTuning, gpu: Gpu, share: float) -> tuple[float, list[str]]:
        """Return by how much a throughput may be off either way, and what was not measured.

        `share` is that of a step for which the GPU waits for its host.
        """
        fitted, errors, notes = self.calibration, self.calibration.errors, []
        if config.kernels == "flash":
            factor = fitted.flash_spread.factor(share)
            if config.experts > 1 or config.mixer == "mamba":
                notes.append("with FlashAttention only dense transformers were fitted to")
        else:
            factor = 1 + errors["one model and data set left out"].nine_of_ten
            measured = sorted({point.gpu for point in xia2024.throughputs()})
            if gpu.gpu not in measured:
                factor = max(factor, fitted.spread.factor(share))
                notes.append(f"{gpu.gpu} is none of the GPUs that were fitted to ({', '.join(measured)})")
            if not _is_measured(config):
                factor *= 1 + errors["one model left out"].nine_of_ten
                notes.append(f"the model is none of those that were fitted to ({', '.join(sorted(xia2024.NAMES))})")
        if config.precision == "fp32":
            factor *= 1 + UNCHECKED
            notes.append("no FP32 run was fitted to: twice or half on top, by assumption")
        for name, unchecked in (
            ("with weights in eight bits", config.method == "lora-int8"),
            ("with moments in eight bits", config.optimizer == "adamw-8bit"),
            ("with offloading", config.offload != "none"),
        ):
            if unchecked:
                factor *= 1 + UNCHECKED
                notes.append(f"no run {name} was fitted to: twice or half on top, by assumption")
        return factor, notes


def _named_parts(config: FineTuning, parts: Parts) -> Parts:
    """Return the parts of a step, where a dense model has a feed-forward layer and no experts."""
    if config.experts > 1:
        return parts
    named = {"experts": "feed-forward"}
    return {
        (stage, named.get(kind, kind), named.get(layer, layer)): value for (stage, kind, layer), value in parts.items()
    }


def _is_measured(config: FineTuning) -> bool:
    """Return True if the published runs differ in nothing but length, routing and padding."""
    shapes = {"sequence_length": config.sequence_length, "top_k": config.top_k, "padding": config.padding}
    return any(
        replace(model, **shapes) == config
        for model in map(find_model, xia2024.NAMES.values())
        if config.top_k <= model.experts
    )
