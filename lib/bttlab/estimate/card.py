"""Training on a U50, on paper: cycles, memory, resources, power and energy of a model's program. All modelled."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from bttlab.card.compiled import PROGRAMS, Flow
from bttlab.card.constants import modelled
from bttlab.card.telemetry import PowerLevels
from bttlab.compiler.instruction import MACHINE
from bttlab.compiler.program import Program
from bttlab.errors import BttlabError
from bttlab.estimate.memory import MemoryMap, memory_map
from bttlab.estimate.power import Power, power
from bttlab.estimate.recorded import machine_record
from bttlab.estimate.resources import Resources, resources
from bttlab.estimate.work import STAGES, Work, epoch_work, program_works
from bttlab.model.config import PAPER_FLOW, ModelConfig, Optimizer
from bttlab.quantities import Quantity

CLOCK_MHZ = MACHINE.CLOCK_MHZ  # that the schedule was made for
CLOCKS = (CLOCK_MHZ, 150)  # that are shown side by side: what is aimed at, and what routes with less of a fight
LEAST_CLOCK = 50  # MHz: what the shell's clock generator gives kernels
TYPICAL_TOKENS = 13  # ATIS's mean, [CLS] included
MULTIPLIERS = MACHINE.ENGINES * MACHINE.ROWS * MACHINE.LANES  # of the engines


class EstimateError(BttlabError):
    """A question that has no answer."""


@dataclass(frozen=True)
class Estimate:
    """Estimate of training a model on the U50.

    Attributes
    ----------
    model : ModelConfig
    flow : str or tuple of int
        Order of contraction.
    optimizer : {"sgd", "momentum", "adamw"}
    lengths : mapping of int to int
        Samples of an epoch by their real tokens.
    clock_mhz : float
    work : Work
        Of an epoch.
    memory : MemoryMap
    resources : Resources
        Of the machine, the same for all models.
    """

    model: ModelConfig
    flow: Flow
    optimizer: str
    lengths: Mapping[int, int]
    clock_mhz: float
    work: Work
    memory: MemoryMap
    resources: Resources

    @property
    def samples(self) -> int:
        """Samples of an epoch."""
        return sum(self.lengths.values())

    @property
    def seconds_per_epoch(self) -> float:
        """Modelled time of an epoch on the card."""
        return self.work.total / (self.clock_mhz * 1e6)

    @property
    def seconds_per_sample(self) -> float:
        """Modelled time of the mean sample."""
        return self.seconds_per_epoch / self.samples

    @property
    def lane_utilisation(self) -> float:
        """Part of the engines' multipliers times cycles that steps of the program use; padding of words counts."""
        return self.work.multiplications / (MULTIPLIERS * self.work.total)

    @cached_property
    def power(self) -> Power:
        """Power of the board."""
        return power(machine_record(), self.resources, self.work, self.samples, self.clock_mhz)

    @property
    def energy_per_epoch(self) -> Quantity:
        """Power of the running board times the modelled time, in joules."""
        return self.power.running.scaled(self.seconds_per_epoch, "J")

    @property
    def energy_per_sample(self) -> Quantity:
        """The same for the mean sample."""
        return self.energy_per_epoch.scaled(1 / self.samples)

    @property
    def energy_at_clocks(self) -> Quantity:
        """The same with a high end that holds at the slower of `CLOCKS`, too: the machine has not been routed."""
        slower = self.at_clock(min(self.clock_mhz, *CLOCKS)).energy_per_sample
        energy = self.energy_per_sample
        return replace(energy, high=max(energy.high, slower.high))

    @property
    def fits(self) -> bool:
        """True if the card has room for the machine; its program shows that the machine holds the model."""
        return not self.resources.excess

    def with_optimizer(self, optimizer: str) -> "Estimate":
        """Return the same with another update rule: the same cycles, as its unit takes a word a cycle with each."""
        memory = memory_map(self.model, machine_record(), optimizer, self.flow)
        return replace(self, optimizer=Optimizer(optimizer).name, memory=memory)

    def at_clock(self, clock_mhz: float) -> "Estimate":
        """Return the same at another clock: the same cycles, as the pipeline stays as deep.

        Raises
        ------
        EstimateError
            If the shell does not give it, or the schedule was not made for it.
        """
        if not LEAST_CLOCK <= clock_mhz <= CLOCK_MHZ:
            nearest = min(max(clock_mhz, LEAST_CLOCK), CLOCK_MHZ)
            raise EstimateError(
                f"a clock of {clock_mhz:g} MHz: the shell gives {LEAST_CLOCK} or more, and the schedule is made for "
                f"{CLOCK_MHZ}; take {nearest:g}"
            )
        return replace(self, clock_mhz=clock_mhz)

    def to_dict(self) -> dict[str, Any]:
        """Return what --json prints; every figure with its unit and provenance."""
        layers: dict[str, dict[str, int]] = {stage: {} for stage in STAGES}
        for (stage, layer), count in self.work.cycles.items():
            layers[stage][layer] = count
        record = machine_record()
        return {
            "model": self.model.to_dict(),
            "flow": self.flow,
            "machine": dict(MACHINE.constants),
            "clock_mhz": self.clock_mhz,
            "optimizer": self.optimizer,
            "samples": self.samples,
            "mean_length": sum(tokens * n for tokens, n in self.lengths.items()) / self.samples,
            "fits": self.fits,
            "excess": self.resources.excess,
            "schedule": {
                "interval": record.interval,
                "depth": record.depth,
                "violations": record.violations,
                "sources": record.sources,
                "of_this_source": record.is_current,
            },
            "memory": self.memory.to_dict(),
            "optimizer_state_bytes": len(Optimizer(self.optimizer).moments) * self.model.parameters_bytes,
            "resources": self.resources.to_dict(),
            "cycles": {
                "per_epoch": {"value": self.work.total} | modelled("cycles"),
                "of_the_loop": {"value": self.work.loop} | modelled("cycles"),
                "by_stage": self.work.by_stage() | modelled("cycles"),
                "by_stage_and_layer": layers | modelled("cycles"),
            },
            "busy": self.work.shares | modelled("part of all cycles in which a step acts"),
            "seconds_per_sample": {"value": self.seconds_per_sample} | modelled("s"),
            "seconds_per_epoch": {"value": self.seconds_per_epoch} | modelled("s"),
            "lane_utilisation": {"value": self.lane_utilisation} | modelled("1"),
            "power": self.power.to_dict(),
            "energy_per_sample": self.energy_per_sample.to_dict(),
            "energy_per_epoch": self.energy_per_epoch.to_dict(),
        }


def estimate(
    model: ModelConfig,
    lengths: Iterable[int] | Mapping[int, int] = (TYPICAL_TOKENS,),
    optimizer: str = "sgd",
    flow: Flow = PAPER_FLOW,
    clock_mhz: float = CLOCK_MHZ,
) -> Estimate:
    """Return what training a model takes.

    Parameters
    ----------
    model : ModelConfig
    lengths : iterable of int, or mapping of int to int
        Real tokens of each sample of an epoch, [CLS] included; or how many samples there are of each length.
    optimizer : {"sgd", "momentum", "adamw"}
    flow : str or tuple of int
        As for `bttlab.compiler.program.compile_program`.
    clock_mhz : float

    Raises
    ------
    bttlab.compiler.errors.ProgramError
        If the machine does not hold the model; the line names the bank.
    EstimateError
        If a length or the clock is none.
    """
    histogram = dict(lengths) if isinstance(lengths, Mapping) else dict(Counter(map(int, lengths)))
    for tokens, count in histogram.items():
        if not 1 <= tokens <= model.sequence_length or count < 1:
            raise EstimateError(
                f"{count} samples of {tokens} tokens: lengths are 1 to {model.sequence_length}, of at least one sample"
            )
    if not histogram:
        raise EstimateError("no samples: give at least one length")
    record = machine_record()
    at_full_clock = Estimate(
        model,
        flow,
        Optimizer(optimizer).name,
        histogram,
        CLOCK_MHZ,
        epoch_work(model, histogram, flow),
        memory_map(model, record, optimizer, flow),
        resources(record),
    )
    return at_full_clock.at_clock(clock_mhz)


@lru_cache(PROGRAMS)
def power_levels(program: Program) -> PowerLevels:
    """Return what the sensors of a card show that runs a program, for samples of a typical length; the last are kept.

    Parameters
    ----------
    program : Program
    """
    record, tokens = machine_record(), min(TYPICAL_TOKENS, program.model.config.sequence_length)
    return power(record, resources(record), program_works(program, [tokens])[tokens], 1, CLOCK_MHZ).levels
