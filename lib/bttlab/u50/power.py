"""Power of the board from resources, clock and activity.

The board's idle power was read on a card (published); what a loaded overlay adds is clocking, and what a running kernel
adds is the switching of its operators and memories at their activity. Every constant stands in data/u50/power.json with
its source and band. The bands are wide: few of the constants have been measured on a U50. They are carried through to
the result, all low ones and all high ones together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bttlab.estimate.geometry import URAM_BITS
from bttlab.model.config import ModelConfig
from bttlab.u50.constants import Band, constant, read_data
from bttlab.u50.cycles import useful_macs
from bttlab.u50.hardware import HardwareConfig
from bttlab.u50.operators import Unit, units
from bttlab.u50.resources import Resources
from bttlab.u50.work import element_operations

PICO = 1e-12
BOUNDS = ("low", "mid", "high")
WORDS_OF_A_STEP = 2  # an engine's step reads the word that streams past; as much again is fetched, held and stored
WORDS_OF_AN_ELEMENT = 3  # an element-wise operation reads two operands and writes a result, each a word for all lanes


@dataclass(frozen=True)
class Activity:
    """What the kernel does in a second of training.

    Attributes
    ----------
    units : mapping of str to float
        Part of its slots (lanes over II) that each unit fills with useful work.
    uram_accesses, bram_accesses : float
        Reads and writes of 72 bits a second.
    hbm_bits : float
        A second.
    """

    units: Mapping[str, float]
    uram_accesses: float
    bram_accesses: float
    hbm_bits: float


@dataclass(frozen=True)
class Power:
    """Power of the board in watts, from its 12 V.

    Attributes
    ----------
    components : mapping of str to Band
        "board, idle", "clocking", and while the kernel runs "operators", "memories", "HBM transfers".
    """

    components: Mapping[str, Band]

    @property
    def running(self) -> Band:
        """While the kernel runs."""
        return sum(self.components.values(), NOTHING)

    @property
    def loaded(self) -> Band:
        """With the overlay on the card, between two calls."""
        return self.components["board, idle"] + self.components["clocking"]

    def to_dict(self) -> dict[str, Any]:
        """Return what --json prints."""
        return {
            "running": self.running.to_dict(),
            "between_calls": self.loaded.to_dict(),
            "components": {name: band.to_dict() for name, band in self.components.items()},
        }


NOTHING = Band(0.0, 0.0, 0.0, "W")


def activity(
    model: ModelConfig, hardware: HardwareConfig, tokens: float, seconds: float, record_bytes: int
) -> Activity:
    """Return how busy the units are.

    Parameters
    ----------
    model : ModelConfig
    hardware : HardwareConfig
    tokens : float
        Real tokens of the mean sample.
    seconds : float
        Of that sample's training step.
    record_bytes : int
        What goes over HBM for it, in and out.
    """
    length = max(1, round(tokens))
    contraction = useful_macs(model, length)
    work = {"contraction": contraction, **element_operations(model, length)}
    cycles = seconds * hardware.clock_mhz * 1e6
    filled = {unit.name: _filled(unit, work, cycles) for unit in units(hardware)}
    accesses = -(-32 * hardware.lanes // URAM_BITS)  # of a word
    steps = contraction / (hardware.lanes * hardware.engine_rows)
    elements = sum(work.values()) - contraction
    words = steps * WORDS_OF_A_STEP + elements / hardware.lanes * WORDS_OF_AN_ELEMENT
    each = words * accesses / 2  # half of them in UltraRAM
    return Activity(filled, each / seconds, each / seconds, 8 * record_bytes / seconds)


def _filled(unit: Unit, work: Mapping[str, int], cycles: float) -> float:
    return min(1.0, work[unit.work] * unit.interval / (unit.lanes * cycles)) if unit.work else 0.0


def power(resources: Resources, hardware: HardwareConfig, activity: Activity) -> Power:
    """Return the board's power for a kernel of such resources, clock and activity."""
    by_bound = [_components(resources, hardware, activity, bound) for bound in BOUNDS]
    return Power({name: Band(*(found[name] for found in by_bound), "W") for name in by_bound[0]})


def _components(resources: Resources, hardware: HardwareConfig, activity: Activity, bound: str) -> dict[str, float]:
    c = {name: getattr(constant(entry), bound) for name, entry in read_data("power")["constants"].items()}
    hertz = hardware.clock_mhz * 1e6
    flip_flops = getattr(resources.total("flip_flops"), bound)
    clocking = c["clock_tree"] * 1e-3 * hardware.clock_mhz + c["flip_flop_clock"] * PICO * flip_flops * hertz
    engine = max(activity.units.values(), default=0.0)  # what ports and memory control follow
    operators = 0.0
    for part in resources.parts:
        active = activity.units.get(part.name, engine)
        switching = active + c["on_chip_idle"] * (1 - active)
        cycle = (
            getattr(part.dsps, bound) * c["dsp_cycle"]
            + getattr(part.lookup_tables, bound) * c["lookup_table_cycle"]
            + getattr(part.flip_flops, bound) * c["flip_flop_cycle"]
        )
        operators += cycle * PICO * hertz * switching
    memories = (activity.uram_accesses * c["uram_access"] + activity.bram_accesses * c["bram36_access"]) * PICO
    # A block that is not read or written is clocked all the same.
    for resource, access in (("uram", "uram_access"), ("bram36", "bram36_access")):
        blocks = getattr(resources.total(resource), bound)
        memories += c["on_chip_idle"] * blocks * c[access] * PICO * hertz
    # From the chip's rails to the board's 12 V, with the leakage that a hotter chip adds.
    to_board = (1 + c["static_per_dynamic"]) / c["regulator_efficiency"]
    return {
        "board, idle": c["idle_board"],
        "clocking": clocking * to_board,
        "operators": operators * to_board,
        "memories": memories * to_board,
        "HBM transfers": activity.hbm_bits * c["hbm_bit"] * PICO * to_board,
    }
