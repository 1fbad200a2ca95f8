"""Count the work of a program for a sample: cycles, steps of the units, accesses of the memories.

All counts follow from the instructions and the sample's length. The loop's cycles equal those of the cycle-accurate
model (`tests/test_program_steps.py`); the cycles outside the loop follow from `hls_src/processor/samples.h`.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import prod

import numpy as np

from bttlab.compiler.instruction import UNIT_NAMES, Instruction, value_of
from bttlab.compiler.machine import M, machine_of, target, targeting
from bttlab.compiler.program import PROGRAMS, Program
from bttlab.estimate.constants import read_data
from bttlab.estimate.profile import Table, cycles_by_layer

OUTSIDE_LOOP = ("IO", "record, result, loss")
LOSS_INTERVAL = 8  # cycles for each word of the loss (samples.h)
# Samples after which FLUSH runs: the most of a sum of gradients. Without sums it ends calls alone; those of training
# have up to LARGEST_CHUNK samples (bttlab.model.loop), and take half a per cent less than is counted here.
SAMPLES_PER_FLUSH = 32
SHOWN_UNITS = tuple(name for name in UNIT_NAMES if not name.startswith("drain"))  # drains follow their engines
STAGES = {"FP": "forward", "BP": "backward", "PU": "update", "IO": "outside the loop"}


@dataclass(frozen=True)
class Work:
    """Work of the machine, for a sample or an epoch."""

    # by stage and layer. A cycle counts for the first instruction that needs it, so an instruction that overlaps
    # completely with earlier ones counts none.
    cycles: Table
    # busy, acting: cycles in which each unit does a step, and those of them in which the step is not idle
    busy: Counter
    acting: Counter
    multiplications: int  # multiplications of the engines: rows in use times lanes, over all acting steps
    # reads, writes: by `Memory`, of each bank, and of each operand buffer with all rows together
    reads: Counter
    writes: Counter

    def __add__(self, other: "Work") -> "Work":
        return Work(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    def times(self, count: float) -> "Work":
        """Return this work multiplied by `count`, rounded to whole cycles."""
        tables = (self.cycles, self.busy, self.acting, self.reads, self.writes)
        cycles, busy, acting, reads, writes = (
            Counter({key: round(count * n) for key, n in table.items()}) for table in tables
        )
        return Work(cycles, busy, acting, round(count * self.multiplications), reads, writes)

    @property
    def total(self) -> int:
        return self.cycles.total()

    @property
    def loop(self) -> int:
        return self.total - self.cycles[OUTSIDE_LOOP]

    @property
    def shares(self) -> dict[str, float]:
        return {unit: self.acting[unit] / self.total for unit in UNIT_NAMES}

    def by_stage(self) -> dict[str, int]:
        cycles = dict.fromkeys(STAGES, 0)
        for (stage, _), count in self.cycles.items():
            cycles[stage] += count
        return cycles


NOTHING = Work(Counter(), Counter(), Counter(), 0, Counter(), Counter())


def works_of(instructions: Sequence[Instruction], lengths: Sequence[int]) -> list[Work]:
    """Return the work of a run of the loop, for each sample length in tokens."""
    tokens = np.array(lengths)
    busy, acting, reads, writes = tables = [defaultdict(lambda: np.zeros_like(tokens)) for _ in range(4)]
    multiplications = np.zeros_like(tokens)
    for i in instructions:
        steps = prod(value_of(loop.active_bound, tokens) for loop in i.loops)
        unit = UNIT_NAMES[i.unit]
        busy[unit] += i.steps(tokens)
        acting[unit] += steps
        if i.unit <= M.ENGINE_1:
            multiplications += steps * value_of(i.count, tokens) * M.LANES
        for operands, counter in ((i.reads(), reads), (i.writes(), writes)):
            for number in operands:
                counter[i.operands[number].memory] += steps
    works = []
    for k, cycles in enumerate(cycles_by_layer(instructions, lengths)):
        counted = [Counter({name: int(counts[k]) for name, counts in table.items()}) for table in tables]
        works.append(Work(cycles, *counted[:2], int(multiplications[k]), *counted[2:]))
    return works


def cycles_outside_loop(tokens: int, token_vectors: int = 0) -> int:
    """Return the cycles of a sample outside the loop: to read its record, compute its loss and write its result.

    `token_vectors`: vectors of each token that come in its record (`Program.token_vectors`).
    """
    record = (M.OFFSET_TABLES + 1) * M.SEQUENCE  # an element a cycle
    prepared = M.OFFSET_TABLES * M.SEQUENCE  # copied to the loop's small memories
    request = request_cycles()
    rows = tokens * token_vectors + request if token_vectors else 0
    return record + tokens + rows + prepared + LOSS_INTERVAL * (tokens - 1) + M.SEQUENCE + 2 * request


def request_cycles() -> int:
    """Return the cycles from a request to HBM to its data, at the clock of `target()`."""
    argument = read_data("latencies")["read"]["argument"]
    return argument["value"] if target() is M else argument["at_300_mhz"]["value"]


@lru_cache(PROGRAMS)
def sample_works(program: Program, samples_per_flush: int = SAMPLES_PER_FLUSH) -> dict[int, Work]:
    """Return the work of training on a sample for each number of real tokens, with its share of the next FLUSH.

    The result is cached.
    """
    return program_works(program, range(1, program.limits.sequence_length + 1), samples_per_flush)


def program_works(
    program: Program, lengths: Sequence[int], samples_per_flush: int = SAMPLES_PER_FLUSH
) -> dict[int, Work]:
    """Return the work of `sample_works` for a program and some lengths.

    `lengths` are numbers of real tokens, [CLS] included.
    """
    with targeting(machine_of(getattr(program, "clock_mhz", M.CLOCK_MHZ))):
        (flush,), samples = works_of(program.flush, [1]), works_of(program.sample, lengths)
        outside = {tokens: cycles_outside_loop(tokens, program.token_vectors) for tokens in lengths}
    share = flush.times(1 / samples_per_flush)
    works = {}
    for tokens, sample in zip(lengths, samples, strict=True):
        work = sample + share
        works[tokens] = replace(work, cycles=work.cycles + Counter({OUTSIDE_LOOP: outside[tokens]}))
    return works


def epoch_work(program: Program, lengths: Mapping[int, int], samples_per_flush: int = SAMPLES_PER_FLUSH) -> Work:
    """Return the work of training for an epoch, of which `lengths` has the number of samples of each length."""
    works = sample_works(program, samples_per_flush)
    return sum((works[tokens].times(count) for tokens, count in lengths.items()), NOTHING)
