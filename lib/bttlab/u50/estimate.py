"""The accelerator on paper: what a model takes of a U50, and how long and how much energy training takes.

Memory map, resources, cycles and power of one configuration together. Nothing of it is measured, and it says so.
"""

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from typing import Any

from bttlab.errors import BttlabError
from bttlab.model.config import ModelConfig
from bttlab.u50.constants import Band, constant, modelled, read_data
from bttlab.u50.cycles import Table, epoch_cycles, useful_macs
from bttlab.u50.hardware import HardwareConfig
from bttlab.u50.memory_map import OnChipArray, by_binding, by_group, memory_map
from bttlab.u50.power import Power, activity, power
from bttlab.u50.records import result_record, sample_record
from bttlab.u50.resources import RESOURCES, Resources, budget, resources
from bttlab.u50.telemetry import PowerLevels

CLOCK_RANGE = (50, 300)  # MHz: what the shell's clock generator gives kernels
TYPICAL_TOKENS = 13  # ATIS's mean, [CLS] included
LATENCIES = ("add", "mul", "div", "root", "compare", "power")


class EstimateError(BttlabError):
    """A configuration that cannot be built."""


@dataclass(frozen=True)
class Estimate:
    """What the model of the U50 says of one configuration.

    Attributes
    ----------
    model : ModelConfig
    hardware : HardwareConfig
    lengths : mapping of int to int
        Samples of an epoch by their real tokens.
    arrays : tuple of OnChipArray
    resources : Resources
    cycles : mapping of (stage, unit) to int
        Of an epoch.
    power : Power
    optimizer : {"sgd", "momentum", "adamw"}
    """

    model: ModelConfig
    hardware: HardwareConfig
    lengths: Mapping[int, int]
    arrays: tuple[OnChipArray, ...]
    resources: Resources
    cycles: Table
    power: Power
    optimizer: str = "sgd"

    @property
    def samples(self) -> int:
        """Samples of an epoch."""
        return sum(self.lengths.values())

    @property
    def seconds_per_epoch(self) -> float:
        """Modelled time of an epoch on the card."""
        return sum(self.cycles.values()) / (self.hardware.clock_mhz * 1e6)

    @property
    def seconds_per_sample(self) -> float:
        """Modelled time of the mean sample."""
        return self.seconds_per_epoch / self.samples

    @cached_property
    def multiply_accumulates(self) -> int:
        """Useful multiply-accumulates of an epoch."""
        return sum(n * useful_macs(self.model, tokens) for tokens, n in self.lengths.items())

    @property
    def bound_seconds(self) -> float:
        """What an epoch would take if every lane did useful work in every cycle."""
        return self.multiply_accumulates / (self.hardware.multiply_accumulates * self.hardware.clock_mhz * 1e6)

    @property
    def lane_utilisation(self) -> float:
        """Part of the engine's lanes times cycles that is useful work."""
        return self.bound_seconds / self.seconds_per_epoch

    @property
    def energy_per_epoch(self) -> Band:
        """Power of the running board times the modelled time, in joules."""
        return self.power.running.scaled(self.seconds_per_epoch, "J")

    @property
    def energy_per_sample(self) -> Band:
        """The same for the mean sample."""
        return self.energy_per_epoch.scaled(1 / self.samples)

    @property
    def fits(self) -> bool:
        """Whether the card has room for it."""
        return not self.resources.excess

    def to_dict(self) -> dict[str, Any]:
        """Return what --json prints; every figure with its unit and provenance."""
        stages: dict[str, dict[str, int]] = {}
        for (stage, unit), count in self.cycles.items():
            stages.setdefault(stage, {})[unit] = count
        return {
            "model": self.model.to_dict(),
            "hardware": asdict(self.hardware),
            "optimizer": self.optimizer,
            "samples": self.samples,
            "mean_length": sum(tokens * n for tokens, n in self.lengths.items()) / self.samples,
            "fits": self.fits,
            "excess": self.resources.excess,
            "memory": {
                "arrays": [array.to_dict() for array in self.arrays],
                "by_binding": {name: row | modelled("bytes, blocks") for name, row in by_binding(self.arrays).items()},
                "by_group": {name: asdict(found) for name, found in by_group(self.arrays).items()} | modelled("blocks"),
            },
            "resources": self.resources.to_dict(),
            "cycles": {
                "per_epoch": {"value": sum(self.cycles.values())} | modelled("cycles"),
                "by_stage": {stage: sum(found.values()) for stage, found in stages.items()} | modelled("cycles"),
                "by_stage_and_unit": stages | modelled("cycles"),
            },
            "seconds_per_sample": {"value": self.seconds_per_sample} | modelled("s"),
            "seconds_per_epoch": {"value": self.seconds_per_epoch} | modelled("s"),
            "bound_seconds_per_epoch": {"value": self.bound_seconds} | modelled("s"),
            "lane_utilisation": {"value": self.lane_utilisation} | modelled("1"),
            "power": self.power.to_dict(),
            "energy_per_sample": self.energy_per_sample.to_dict(),
            "energy_per_epoch": self.energy_per_epoch.to_dict(),
        }


def estimate(
    model: ModelConfig,
    hardware: HardwareConfig | None = None,
    lengths: Iterable[int] | Mapping[int, int] = (TYPICAL_TOKENS,),
    optimizer: str = "sgd",
) -> Estimate:
    """Return what the model of the U50 says of a configuration, whether or not it fits the card.

    Parameters
    ----------
    model : ModelConfig
        In tensor format with three modes at each end.
    hardware : HardwareConfig, optional
        By default that of hls_src.
    lengths : iterable of int, or mapping of int to int
        Real tokens of each sample of an epoch, [CLS] included; or how many samples there are of each length.
    optimizer : {"sgd", "momentum", "adamw"}

    Raises
    ------
    EstimateError
        If the source cannot be built for it, or a length is none.
    """
    hardware = hardware or HardwareConfig()
    check(model, hardware)
    histogram = dict(lengths) if isinstance(lengths, Mapping) else dict(Counter(map(int, lengths)))
    for tokens, count in histogram.items():
        if not 1 <= tokens <= model.sequence_length or count < 1:
            raise EstimateError(
                f"{count} samples of {tokens} tokens: lengths are 1 to {model.sequence_length}, of at least one sample"
            )
    if not histogram:
        raise EstimateError("no samples: give at least one length")
    samples = sum(histogram.values())
    each = [tokens for tokens, count in histogram.items() for _ in range(count)]
    arrays = tuple(memory_map(model, hardware))
    found = resources(model, hardware, arrays)
    cycles = epoch_cycles(model, hardware, each, optimizer)
    seconds = sum(cycles.values()) / samples / (hardware.clock_mhz * 1e6)
    record_bytes = sample_record(model).itemsize + result_record(model).itemsize
    active = activity(model, hardware, sum(each) / samples, seconds, record_bytes)
    return Estimate(model, hardware, histogram, arrays, found, cycles, power(found, hardware, active), optimizer)


def check(model: ModelConfig, hardware: HardwareConfig) -> None:
    """Check what the source asks of a configuration (static_assert in config.h and shape.h).

    Raises
    ------
    EstimateError
        With the rule that is broken and the nearest configuration that keeps it.
    """
    low, high = CLOCK_RANGE
    if not low <= hardware.clock_mhz <= high:
        nearest = min(max(hardware.clock_mhz, low), high)
        raise EstimateError(
            f"a clock of {hardware.clock_mhz} MHz: the shell gives kernels {low} to {high} MHz; take {nearest}"
        )
    if hardware.accumulate > hardware.engine_slots:
        raise EstimateError(
            f"at {hardware.clock_mhz} MHz a sum is ready after {hardware.accumulate} cycles, but an engine's row keeps "
            f"{hardware.engine_slots} in turn: it could not start a step each cycle; take a lower clock"
        )
    rules = {
        "features of a head": model.hidden_size // model.heads,
        "two modes at the input's end": model.linear_in_modes[1] * model.linear_in_modes[2],
        "two modes at the output's end": model.linear_out_modes[0] * model.linear_out_modes[1],
        "first two column modes": model.embedding_column_modes[0] * model.embedding_column_modes[1],
    }
    for what, size in rules.items():
        if size % hardware.lanes:
            raise EstimateError(f"{size} {what} do not fill words of {hardware.lanes} lanes; choose a multiple of them")


def check_fits(found: Estimate) -> None:
    """Refuse an estimate that the card has no room for.

    Raises
    ------
    EstimateError
        With every resource that is exceeded, by how much, and the nearest configuration that fits.
    """
    if found.fits:
        return
    over = ", ".join(
        f"{RESOURCES[name]} by {excess:,.0f} ({found.resources.total(name).mid:,.0f} of {budget(name):,})"
        for name, excess in found.resources.excess.items()
    )
    fitting = nearest_that_fits(found.model, found.hardware)
    way_out = f"{fitting} would fit" if fitting else "no smaller engine, rank or number of encoders fits either"
    raise EstimateError(
        f"{found.model.encoders} encoders of rank {found.model.linear_rank} with "
        f"{found.hardware.multiply_accumulates} lanes do not fit a U50: over in {over}; {way_out}"
    )


def nearest_that_fits(model: ModelConfig, hardware: HardwareConfig) -> str | None:
    """Return the nearest configuration that fits, as options of the command line: fewer lanes, rank, or encoders."""

    def largest(below: int, build: Callable[[int], tuple[ModelConfig, HardwareConfig]]) -> int:
        # Every resource grows with each of them, so "does not fit" is sorted.
        return bisect.bisect_left(range(1, below), True, key=lambda n: bool(resources(*build(n)).excess))

    if rows := largest(hardware.engine_rows, lambda n: (model, replace(hardware, engine_rows=n))):
        return f"--lanes {rows * hardware.lanes * hardware.engines}"
    if rank := largest(model.linear_rank, lambda n: (replace(model, linear_rank=n), hardware)):
        return f"--rank {rank}"
    if encoders := largest(model.encoders, lambda n: (replace(model, encoders=n), hardware)):
        return f"--encoders {encoders}"
    return None


def at_clock(hardware: HardwareConfig, clock_mhz: int) -> HardwareConfig:
    """Return the hardware at another clock.

    Operators are pipelined as deep as the clock asks: above the clock of hls_src their latencies grow in proportion,
    below it they stay.
    """
    depth = max(1.0, clock_mhz / HardwareConfig().clock_mhz)
    latencies = {name: -int(-getattr(hardware, name) * depth // 1) for name in LATENCIES}
    return replace(hardware, clock_mhz=clock_mhz, **latencies)


def with_lanes(hardware: HardwareConfig, lanes: int) -> HardwareConfig:
    """Return the hardware with so many multiply-accumulate lanes in its engines.

    Raises
    ------
    EstimateError
        If they do not make whole rows of words.
    """
    row = hardware.lanes * hardware.engines
    most = hardware.lanes  # rows: the scalars of a step come in one word
    if lanes % row or not row <= lanes <= most * row:
        below = min(max(lanes // row, 1), most)
        near = " or ".join(str(rows * row) for rows in sorted({below, min(below + (lanes > row), most)}))
        raise EstimateError(
            f"{lanes} lanes: {hardware.engines} engines have 1 to {most} rows of {hardware.lanes} each; take {near}"
        )
    return replace(hardware, engine_rows=lanes // row)


@cache
def power_levels(model: ModelConfig) -> PowerLevels:
    """Return what the sensors of a card with this model's overlay show, for samples of a typical length."""
    found = estimate(model, lengths=[TYPICAL_TOKENS]).power
    alone = PowerLevels.without_overlay()
    efficiency = constant(read_data("power")["constants"]["regulator_efficiency"]).mid

    def vccint(board: float) -> float:
        return alone.idle_vccint + (board - alone.idle) * efficiency

    idle, running = found.loaded.mid, found.running.mid
    return PowerLevels(idle, running, vccint(idle), vccint(running))
