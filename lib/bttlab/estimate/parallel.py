"""Model updates whose samples several cards share: the time of an update, beside that of one card."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bttlab.compiler.instruction import Instruction
from bttlab.compiler.machine import M, machine_of, targeting
from bttlab.compiler.program import ModelProgram
from bttlab.compiler.timing import time_program
from bttlab.estimate.constants import band, constant, read_data
from bttlab.estimate.counts import SAMPLES_PER_FLUSH, epoch_work, request_cycles
from bttlab.util.quantities import Quantity

VECTOR_BYTES = 4 * M.LANES
ONE = np.array([1])


@dataclass(frozen=True)
class SharedUpdate:
    """Modelled time of an update of `batch_size` samples, in seconds."""

    batch_size: int
    cards: int
    training: Quantity  # of the samples of one card; 0 in the parts below on one card, whose state stays on chip
    exchange: Quantity  # LOAD and STORE of parameters and moments, on each card at the same time
    transfers: Quantity  # of the same over PCIe, and the calls of both
    host: Quantity  # sums of moments and the update, as given

    @property
    def seconds(self) -> Quantity:
        return sum((self.training, self.exchange, self.transfers, self.host), band(0.0, "s"))


def shared_update(
    program: ModelProgram, lengths: Mapping[int, int], batch_size: int, cards: int, host_seconds: float
) -> SharedUpdate:
    """Model an update that cards share, of samples with these lengths on average, at the program's clock.

    `lengths` has the number of samples of each length, in real tokens. `host_seconds` is the time that the host takes
    for an update, from a measurement. On one card nothing is exchanged.
    """
    share = -(-batch_size // cards)
    samples_per_flush = min(share, SAMPLES_PER_FLUSH) if program.sums else SAMPLES_PER_FLUSH
    cycles = epoch_work(program, lengths, samples_per_flush).total / sum(lengths.values())
    hertz = program.clock_mhz * 1e6
    training = band(share * cycles / hertz, "s")
    if cards == 1:
        return SharedUpdate(batch_size, cards, training, *(band(0.0, "s"),) * 3)
    moved = 2 * program.transfer_vectors  # to the card and back
    with targeting(machine_of(program.clock_mhz)):
        exchange = sum(map(_cycles, (program.load, program.store))) + int(time_program(program.clear, ONE).cycles[0])
    data = read_data("host")
    rate, call = constant(data["pcie"]), constant(data["call"])
    size = moved * VECTOR_BYTES
    pcie = band(size / rate.value, "s", size / rate.high, size / rate.low)
    return SharedUpdate(
        batch_size,
        cards,
        training,
        band((exchange + moved) / hertz, "s"),  # the kernel copies a vector a cycle
        pcie + call.scaled(2, "s"),
        band(host_seconds, "s"),
    )


def _cycles(transfers: list[Instruction]) -> int:
    """Return the cycles of transfers, each a run of the loop, with the requests to HBM of each."""
    request = request_cycles()
    return sum(int(time_program([one], ONE).cycles[0]) + request for one in transfers)
