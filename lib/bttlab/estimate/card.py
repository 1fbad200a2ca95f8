"""Estimate training on an Alveo card: modelled cycles, memory, resources, power and energy of a model's program."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from bttlab.compiler.machine import CLOCKS as SCHEDULED
from bttlab.compiler.machine import M, machine_of
from bttlab.compiler.program import PROGRAMS, Flow, Options, Program, compile
from bttlab.estimate.constants import modelled
from bttlab.estimate.counts import SAMPLES_PER_FLUSH, STAGES, Work, epoch_work, program_works
from bttlab.estimate.facts import U50, CardFacts, read_card
from bttlab.estimate.memory import MemoryMap, memory_map
from bttlab.estimate.power import Power, PowerLevels, power
from bttlab.estimate.recorded import machine_record
from bttlab.estimate.resources import Resources, resources
from bttlab.estimate.traffic import Traffic
from bttlab.model.choices import PAPER_FLOW, TYPICAL_TOKENS
from bttlab.model.config import ModelConfig, Optimizer
from bttlab.util.errors import BttlabError
from bttlab.util.quantities import Quantity

if TYPE_CHECKING:
    from bttlab.compiler.module import ModuleModel

CLOCK_MHZ = M.CLOCK_MHZ  # of the overlay
MOST_CLOCK = SCHEDULED[-1]  # MHz: of the fastest schedule
CLOCKS = (CLOCK_MHZ, MOST_CLOCK, 150)  # MHz, to compare: the overlay's, the fastest, and one at which routing is easier
LEAST_CLOCK = 50  # MHz: the lowest clock that the shell gives to kernels
NOT_CLOSED = f"modelled at {MOST_CLOCK} MHz, timing not closed by any tool"
MULTIPLIERS = M.ENGINES * M.ROWS * M.LANES  # of the engines


@dataclass(frozen=True)
class Estimate:
    """Estimate of training a model on a card: modelled.

    Attributes
    ----------
    model : ModelConfig or ModuleModel
        The model.
    flow : str, tuple of int or Order
        Order of contraction.
    optimizer : {"sgd", "momentum", "adamw"}
        Update rule.
    batch_size : int
        Samples of an update.
    lengths : mapping of int to int
        Number of samples of an epoch by their number of real tokens.
    clock_mhz : float
        Of the kernel.
    work : Work
        Cycles and operations of an epoch.
    memory : MemoryMap
        Bytes of the banks by purpose.
    traffic : Traffic
        Bytes of a sample on average.
    resources : Resources
        Of the machine, the same for all models.
    why_no_sums : str
        Why an update of several samples runs sample by sample; empty if it does not.
    """

    model: ModelConfig
    flow: Flow
    optimizer: str
    batch_size: int
    lengths: Mapping[int, int]
    clock_mhz: float
    work: Work
    memory: MemoryMap
    traffic: Traffic
    resources: Resources
    why_no_sums: str = ""

    @property
    def card(self) -> CardFacts:
        return self.resources.card

    @property
    def samples(self) -> int:
        return sum(self.lengths.values())

    @property
    def seconds_per_epoch(self) -> float:
        """Modelled time of an epoch on the card, in seconds."""
        return self.work.total / (self.clock_mhz * 1e6)

    @property
    def seconds_per_sample(self) -> float:
        """Modelled time of a sample on average, in seconds."""
        return self.seconds_per_epoch / self.samples

    @property
    def lane_utilisation(self) -> float:
        """Utilisation of the engines' multipliers over all cycles, from 0 to 1; padding of vectors counts as used."""
        return self.work.multiplications / (MULTIPLIERS * self.work.total)

    @property
    def has_power(self) -> bool:
        """True on the U50: the constants of power are of no other card."""
        return self.card == U50

    @cached_property
    def power(self) -> Power:
        """Power of the board; BttlabError unless `has_power`."""
        if not self.has_power:
            raise BttlabError(
                f"power and energy on the {self.card.name} are unknown: the constants of data/u50/power.json are the "
                "U50's; estimate with card U50"
            )
        return power(machine_record(self.clock_mhz), self.resources, self.work, self.samples, self.clock_mhz)

    @property
    def energy_per_epoch(self) -> Quantity:
        """Power of the running board times the modelled time, in joules."""
        return self.power.running.scaled(self.seconds_per_epoch, "J")

    @property
    def energy_per_sample(self) -> Quantity:
        return self.energy_per_epoch.scaled(1 / self.samples)

    @property
    def energy_at_clocks(self) -> Quantity:
        """Energy of a sample with an upper bound that includes the slower of `CLOCKS`: the machine is not routed."""
        slower = self.at_clock(min(self.clock_mhz, *CLOCKS)).energy_per_sample
        energy = self.energy_per_sample
        return replace(energy, high=max(energy.high, slower.high))

    @property
    def fits(self) -> bool | None:
        """Whether the card has the resources for the machine; None if that is unknown.

        The model fits the machine, as it has a program.
        """
        return self.resources.fits

    def on_card(self, card: str) -> "Estimate":
        """Return the estimate for another card: the same machine, and so the same cycles, at the same clock.

        BttlabError if there are no facts of the card (`bttlab.estimate.facts.NAMES`).
        """
        return replace(self, resources=resources(machine_record(self.clock_mhz), read_card(card)))

    def at_clock(self, clock_mhz: float) -> "Estimate":
        """Return the estimate for another clock.

        The cycles stay within a schedule, whose pipeline keeps its depth. Above `CLOCK_MHZ` they are those of the
        schedule for `MOST_CLOCK`, whose pipeline is deeper.

        Raises BttlabError if the clock is lower than the shell's lowest or higher than the fastest schedule's.
        """
        scheduled = scheduled_clock(clock_mhz)
        if scheduled == scheduled_clock(self.clock_mhz):
            return replace(self, clock_mhz=clock_mhz)
        how = self.optimizer, self.flow, clock_mhz, self.batch_size, self.card.short_name
        return estimate(self.model, self.lengths, *how)

    @property
    def unknown(self) -> list[str]:
        """What the estimate cannot say of this card, and why."""
        card, found = self.card, []
        if card.budget is None:
            found.append(f"whether it fits: what the shell of the {card.short_name} leaves to kernels is unknown")
        if not self.has_power:
            found.append("power and energy: the constants of data/u50/power.json are the U50's")
        if card.board_watts is None:
            found.append("the limit of the board's power: no source was found")
        if not card.hbm_banks:
            found.append("cycles outside the loop on DDR4, which are counted as on HBM")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the output of --json: every figure with its unit and provenance."""
        layers: dict[str, dict[str, int]] = {stage: {} for stage in STAGES}
        for (stage, layer), count in self.work.cycles.items():
            layers[stage][layer] = count
        record, rule = machine_record(self.clock_mhz), Optimizer(self.optimizer, batch_size=self.batch_size)
        return {
            "model": self.model.to_dict(),
            "flow": self.flow,
            "machine": dict(machine_of(scheduled_clock(self.clock_mhz)).constants),
            "clock_mhz": self.clock_mhz,
            "card": asdict(self.card) | {"unknown": self.unknown},
            "optimizer": self.optimizer,
            "batch_size": self.batch_size,
            "samples": self.samples,
            "mean_length": sum(tokens * n for tokens, n in self.lengths.items()) / self.samples,
            "fits": self.fits,
            "excess": self.resources.excess,
            "why_no_sums": self.why_no_sums,
            "schedule": {
                "clock_mhz": record.clock_mhz,
                "interval": record.interval,
                "depth": record.depth,
                "violations": record.violations,
                "sources": record.sources,
                "of_this_source": record.is_current,
            },
            "memory": self.memory.to_dict(),
            "optimizer_state_bytes": len(rule.moments) * self.model.parameters_bytes,
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
            "bytes_per_sample": self.traffic.to_dict() | modelled("bytes"),
            "lane_utilisation": {"value": self.lane_utilisation} | modelled("1"),
            "power": self.power.to_dict() if self.has_power else None,
            "energy_per_sample": self.energy_per_sample.to_dict() if self.has_power else None,
            "energy_per_epoch": self.energy_per_epoch.to_dict() if self.has_power else None,
        }


def scheduled_clock(clock_mhz: float) -> int:
    """Return the clock of the schedule that the machine has at a clock: the slowest of at least that.

    Parameters
    ----------
    clock_mhz : float
        Clock of the kernel in MHz.

    Returns
    -------
    int
        One of `bttlab.compiler.machine.CLOCKS`, in MHz.

    Raises
    ------
    BttlabError
        If the clock is lower than the shell's lowest or higher than the fastest schedule's.
    """
    if not LEAST_CLOCK <= clock_mhz <= MOST_CLOCK:
        nearest = min(max(clock_mhz, LEAST_CLOCK), MOST_CLOCK)
        raise BttlabError(
            f"a clock of {clock_mhz:g} MHz: the shell gives {LEAST_CLOCK} or more, and the fastest schedule is for "
            f"{MOST_CLOCK}; use {nearest:g}"
        )
    return min(clock for clock in SCHEDULED if clock >= clock_mhz)


def estimate(
    model: "ModelConfig | ModuleModel",
    lengths: Iterable[int] | Mapping[int, int] = (TYPICAL_TOKENS,),
    optimizer: str = "sgd",
    flow: Flow = PAPER_FLOW,
    clock_mhz: float = CLOCK_MHZ,
    batch_size: int = 1,
    card: str = "U50",
) -> Estimate:
    """Estimate cycles, memory, resources, power and energy of training a model.

    Parameters
    ----------
    model : ModelConfig or ModuleModel
        The model to train.
    lengths : iterable or mapping of int
        Number of real tokens of each sample of an epoch, [CLS] included, or the number of samples of each length.
    optimizer : str
        One of `bttlab.model.OPTIMIZERS`.
    flow : optional
        As for `bttlab.compiler.program.Options`.
    clock_mhz : float
        Clock of the machine in MHz.
    batch_size : int
        Samples of an update.
    card : str
        One of `bttlab.estimate.facts.NAMES`.

    Returns
    -------
    Estimate
        All of them modelled.

    Raises
    ------
    ProgramError
        If the machine cannot run the model; the message names the bank.
    BttlabError
        If a length, the clock or the card is invalid.
    """
    facts = read_card(card)
    histogram = dict(lengths) if isinstance(lengths, Mapping) else dict(Counter(map(int, lengths)))
    for tokens, count in histogram.items():
        if not 1 <= tokens <= model.sequence_length or count < 1:
            raise BttlabError(
                f"{count} samples of {tokens} tokens: lengths are 1 to {model.sequence_length}, of at least one sample"
            )
    if not histogram:
        raise BttlabError("no samples: give at least one length")
    record, rule = machine_record(clock_mhz), Optimizer(optimizer, batch_size=batch_size)
    program = compile(model, Options(flow, rule, histogram, clock_mhz=scheduled_clock(clock_mhz)))
    samples_per_flush = min(batch_size, SAMPLES_PER_FLUSH) if program.sums else SAMPLES_PER_FLUSH
    return Estimate(
        model,
        flow,
        rule.name,
        batch_size,
        histogram,
        clock_mhz,
        epoch_work(program, histogram, samples_per_flush),
        memory_map(program, record, rule.rule),
        Traffic.mean(histogram, program.token_vectors, program.limits.sequence_length),
        resources(record, facts),
        program.why_no_sums,
    )


@lru_cache(PROGRAMS)
def power_levels(program: Program) -> PowerLevels:
    """Return the power of a card that runs a program, for samples of a typical length. The result is cached."""
    record, tokens = machine_record(), min(TYPICAL_TOKENS, program.limits.sequence_length)
    return power(record, resources(record), program_works(program, [tokens])[tokens], 1, CLOCK_MHZ).levels
