"""Power of the board, modelled from the machine's resources, its clock and the utilisation of its units and memories.

The board's idle power was read on a card (published). An overlay adds the power of its clocks and of HBM; a running
kernel adds the switching of its operators and memories. Every constant is in data/u50/power.json with source and band.
The bands are wide, because few of the constants have been measured on a U50. The low end of the result uses all low
ends together, the high end all high ends. No estimate is below the measured idle power.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bttlab.compiler.instruction import Memory
from bttlab.compiler.machine import M
from bttlab.estimate.constants import band, constant, read_data
from bttlab.estimate.counts import Work
from bttlab.estimate.geometry import URAM_BITS, URAM_WORDS
from bttlab.estimate.recorded import BANKS, OPERAND_BUFFERS, MachineRecord, OnChipMemory
from bttlab.estimate.resources import Resources
from bttlab.util.quantities import Quantity

PICO = 1e-12
BOUNDS = ("value", "low", "high")
NOTHING = band(0.0, "W")
IDLE, HBM_ON, CLOCKING = "board, idle", "HBM, on", "clocks"
RECORD_BYTES = 4 * ((M.OFFSET_TABLES + 1) * M.SEQUENCE + M.LANES)  # of a sample, in and out
RESULT_BYTES = 4 * (M.SEQUENCE + M.LANES)
# Units of the memories that are neither banks nor operand buffers. They are read in the cycles in which the unit acts.
OWNERS = {"statistic": "vector", "lane_table": "vector", "shuffle_fields": "shuffle"}


@dataclass(frozen=True)
class PowerLevels:
    """Power of the board in watts, and of its VCCINT rail, between kernel calls and within one."""

    idle: float
    running: float
    idle_vccint: float
    running_vccint: float

    @classmethod
    def without_overlay(cls) -> "PowerLevels":
        """Return the levels of a card with only its shell, which were measured on a card (data/u50/power.json)."""
        idle, vccint = (constant(read_data("power")["constants"][name]).value for name in ("idle_board", "idle_vccint"))
        return cls(idle, idle, vccint, vccint)


@dataclass(frozen=True)
class Power:
    """Power that the board takes from 12 V, in watts."""

    # "board, idle", "HBM, on" and "clocks" while the overlay is on the card; while the kernel runs also "engines",
    # "other operators", "switches and registers", "memories" and "HBM transfers"
    components: Mapping[str, Quantity]

    @property
    def running(self) -> Quantity:
        return sum(self.components.values(), NOTHING)

    @property
    def loaded(self) -> Quantity:
        """Power with the overlay on the card, between two calls."""
        return sum((self.components[name] for name in (IDLE, HBM_ON, CLOCKING)), NOTHING)

    @property
    def levels(self) -> PowerLevels:
        """Power that the card's sensors show between calls and within one, without the bands."""
        alone = PowerLevels.without_overlay()
        efficiency = constant(read_data("power")["constants"]["regulator_efficiency"]).value
        idle, running = self.loaded.value, self.running.value
        rails = (alone.idle_vccint + (board - alone.idle) * efficiency for board in (idle, running))
        return PowerLevels(idle, running, *rails)

    def to_dict(self) -> dict[str, Any]:
        return {
            "running": self.running.to_dict(),
            "between_calls": self.loaded.to_dict(),
            "components": {name: watts.to_dict() for name, watts in self.components.items()},
        }


def power(record: MachineRecord, resources: Resources, work: Work, samples: int, clock_mhz: float) -> Power:
    """Return the board's power while a program runs that takes `work` for an epoch of `samples`."""
    seconds = work.total / (clock_mhz * 1e6)
    hbm_bits = 8 * samples * (RECORD_BYTES + RESULT_BYTES) / seconds
    by_bound = [_components(record, resources, work, hbm_bits, clock_mhz, bound) for bound in BOUNDS]
    return Power(
        {name: band(middle, "W", by_bound[1][name], by_bound[2][name]) for name, middle in by_bound[0].items()}
    )


def _components(
    record: MachineRecord, resources: Resources, work: Work, hbm_bits: float, clock_mhz: float, bound: str
) -> dict[str, float]:
    c = {name: getattr(constant(entry), bound) for name, entry in read_data("power")["constants"].items()}
    hertz, shares = clock_mhz * 1e6, work.shares

    def switching(active: float) -> float:
        return active + c["on_chip_idle"] * (1 - active)

    def cycle(dsps: float, lookup_tables: float, flip_flops: float) -> float:
        """Return the energy of a cycle in which all these resources are active, in joules."""
        each = ((dsps, "dsp_cycle"), (lookup_tables, "lookup_table_cycle"), (flip_flops, "flip_flop_cycle"))
        return PICO * sum(count * c[name] for count, name in each)

    engines = other = 0.0
    for unit in record.units:
        used = [
            getattr(resources.parts[name].get("operators", NOTHING), bound) * record.share_of(unit, name)
            for name in ("dsps", "lookup_tables", "flip_flops")
        ]
        watts = cycle(*used) * hertz * switching(shares.get(unit, 1.0))
        if unit.startswith("engine"):
            engines += watts
        else:
            other += watts
    # All units use the switches, shift registers and LUT RAM; they switch as often as the engines.
    paths = [
        sum(getattr(used, bound) for part, used in resources.parts[name].items() if part != "operators")
        for name in ("dsps", "lookup_tables", "flip_flops")
    ]
    switches = cycle(*paths) * hertz * switching((shares["engine 0"] + shares["engine 1"]) / 2)

    memories = 0.0
    for memory in record.memories:
        if memory.kind != "lutram":
            memories += hertz * PICO * _energy(memory, work, c)

    flip_flops = getattr(resources.total("flip_flops"), bound)
    clocks = c["clock_tree"] * 1e-3 * clock_mhz + c["flip_flop_clock"] * PICO * flip_flops * hertz
    # From the chip's rails to the board's 12 V, including the additional leakage of a hotter chip.
    to_board = (1 + c["static_per_dynamic"]) / c["regulator_efficiency"]
    on_chip = {
        CLOCKING: clocks,
        "engines": engines,
        "other operators": other,
        "switches and registers": switches,
        "memories": memories,
        "HBM transfers": hbm_bits * c["hbm_bit"] * PICO,
    }
    return {IDLE: c["idle_board"], HBM_ON: c["hbm_on"]} | {name: watts * to_board for name, watts in on_chip.items()}


def _energy(memory: OnChipMemory, work: Work, c: Mapping[str, float]) -> float:
    """Return the energy of a cycle in the blocks of identical memories, in picojoules.

    The source loads from every port in every cycle, also if no instruction needs it, so a block's port is always
    enabled. In a cascade of UltraRAMs one block is enabled (UG440, cascade group). If no instruction needs the load, it
    reads word 0 each time: clock, decoder and bit lines switch, the outputs do not.
    """
    if memory.kind == "uram":
        enabled, access = memory.count * -(-memory.bits // URAM_BITS), c["uram_access"]
        assert memory.words >= URAM_WORDS or memory.blocks.uram == enabled
    else:
        enabled, access = memory.blocks.bram36, c["bram36_access"]
    loaded, stored = _activity(memory, work)
    loads = memory.loads * (loaded + c["enabled_idle"] * (1 - loaded))
    return enabled * access * (loads + memory.stores * stored)


def _activity(memory: OnChipMemory, work: Work) -> tuple[float, float]:
    """Return the parts of all cycles in which instructions read, and write, each of identical memories."""
    if (bank := BANKS.get(memory.name)) is not None:
        return work.reads[bank] / work.total, work.writes[bank] / work.total
    if memory.name == OPERAND_BUFFERS:  # a load reads all rows of an engine, a store writes one row
        reads, writes = (
            sum(table[Memory.operand_buffer(e)] for e in range(M.ENGINES)) for table in (work.reads, work.writes)
        )
        return reads / (M.ENGINES * work.total), writes / (memory.count * work.total)
    share = work.shares.get(OWNERS.get(memory.name, ""), 0.0)
    return share, share if memory.name == "statistic" else 0.0
