"""Memory map of training: the words of each bank that a program uses, by purpose."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from bttlab.compiler.access import accesses
from bttlab.compiler.buffers import DEPTHS, MEMORIES, MOMENTS, STATISTICS
from bttlab.compiler.instruction import OPERANDS, Instruction, Memory
from bttlab.compiler.machine import M
from bttlab.compiler.memory.layout import Region
from bttlab.compiler.program import ModelProgram
from bttlab.estimate.constants import modelled
from bttlab.estimate.geometry import Blocks
from bttlab.estimate.recorded import BANKS, OPERAND_BUFFERS, MachineRecord, OnChipMemory
from bttlab.model.config import Optimizer

VECTOR_BYTES = 4 * M.LANES
TEMPORARIES = "temporaries"
GROUPS = (
    "parameters",
    "gradients",
    "optimizer state",
    "activations",
    TEMPORARIES,
    "operand buffers",
    "machine overhead",
)


@dataclass(frozen=True)
class BankUse:
    """A bank or an operand buffer, and the part of it that a program uses."""

    name: str
    kind: str  # "uram", "bram"
    depth: int  # number of words
    groups: dict[str, int]  # number of words that the program uses, by `GROUPS`
    word_vectors: int  # vectors of LANES values in a word: 1 in a bank; one for each row in an operand buffer
    blocks: Blocks

    @property
    def words(self) -> int:
        return sum(self.groups.values())

    @property
    def bytes(self) -> int:
        return self.words * self.word_vectors * VECTOR_BYTES


@dataclass(frozen=True)
class MemoryMap:
    """Memory map of a model's training."""

    banks: tuple[BankUse, ...]
    # the machine's memories for program, tables, sums and queues, which do not depend on the model
    own: tuple[OnChipMemory, ...]

    @property
    def bytes(self) -> int:
        """Bytes that training needs: the words that the program uses, and all of the machine's own memories."""
        return sum(self.by_group().values())

    def by_group(self) -> dict[str, int]:
        sizes = dict.fromkeys(GROUPS, 0)
        for bank in self.banks:
            for group, words in bank.groups.items():
                sizes[group] += words * bank.word_vectors * VECTOR_BYTES
        sizes["machine overhead"] = sum(memory.bytes for memory in self.own)
        return sizes

    @property
    def blocks(self) -> Blocks:
        """FPGA memory blocks of the machine, whether the program uses them or not."""
        blocks = [bank.blocks for bank in self.banks] + [memory.blocks for memory in self.own]
        return sum(blocks, Blocks())

    def to_dict(self) -> dict[str, Any]:
        return {
            "bytes": {"value": self.bytes} | modelled("bytes"),
            "by_group": self.by_group() | modelled("bytes"),
            "banks": [
                {
                    "name": bank.name,
                    "kind": bank.kind,
                    "depth": bank.depth,
                    "words": bank.words,
                    "bytes": bank.bytes,
                    "groups": {group: words for group, words in bank.groups.items() if words},
                    "uram": bank.blocks.uram,
                    "bram36": bank.blocks.bram36,
                }
                | modelled("words of the depth")
                for bank in self.banks
            ],
            "blocks": {"uram": self.blocks.uram, "bram36": self.blocks.bram36} | modelled("blocks"),
        }


def memory_map(program: ModelProgram, record: MachineRecord, optimizer: str) -> MemoryMap:
    """Return the memory map of training by a program, for samples of any length and any tokens.

    Raises ProgramError if the banks have no space for the optimizer's state. Banks for moments that the
    optimizer ("sgd", "momentum", "adamw") does not use count as empty.
    """
    program.check_optimizer(Optimizer(optimizer))
    empty = [Memory.bank(number) for number in MOMENTS[len(Optimizer(optimizer).moments) :]]
    memories = {BANKS.get(memory.name, memory.name): memory for memory in record.memories}
    uses = []
    for place, words in _words_by_group(program).items():
        is_buffer = place.kind == OPERANDS
        memory, engines = memories[OPERAND_BUFFERS if is_buffer else place], M.ENGINES if is_buffer else 1
        uses.append(
            BankUse(
                str(place),
                memory.kind,
                memory.words,
                {} if place in empty else words,
                memory.count // engines,
                Blocks(memory.blocks.bram36 / engines, memory.blocks.uram // engines),
            )
        )
    own = tuple(m for m in record.memories if m.name not in {OPERAND_BUFFERS, *BANKS})
    return MemoryMap(tuple(uses), own)


@lru_cache(256)
def _words_by_group(program: ModelProgram) -> dict[Memory, dict[str, int]]:
    """Return the number of words of each bank and operand buffer that a program uses, by `GROUPS`."""
    owners = regions_of(program)
    counted = {}
    for place, words in touched_words(program).items():
        is_buffer = place.kind == OPERANDS
        counts = Counter({"operand buffers": int(words.sum())}) if is_buffer else _count(words, owners[place])
        counted[place] = {group: counts[group] for group in GROUPS if counts[group]}
    return counted


def _count(words: np.ndarray, owners: list[Region]) -> Counter:
    """Count used words by their owner's group; words without an owner are temporaries."""
    counts: Counter = Counter()
    for region in owners:
        counts[region.purpose] += int(words[region.first : region.first + region.vectors].sum())
    counts[TEMPORARIES] += int(words.sum()) - counts.total()
    return counts


def touched_words(program: ModelProgram, instructions: Sequence[Instruction] | None = None) -> dict[Memory, np.ndarray]:
    """Return which words of each bank and operand buffer a program uses for any sample, as arrays of bool.

    `instructions` are some of the program's, by default all.
    """
    depths = {memory: depth for memory, depth in zip(MEMORIES, DEPTHS, strict=True) if memory != STATISTICS}
    touched = {memory: np.zeros(depth, bool) for memory, depth in depths.items()}
    table, tokens = program.token_table, program.limits.sequence_length
    no_offsets = np.zeros((M.OFFSET_TABLES, tokens), int)
    if instructions is None:
        instructions = [i for section in program.sections for i in section]
    for instruction in instructions:
        indices = instruction.grid(tokens)
        for access in accesses(instruction):
            if access.memory not in touched:
                continue
            words = access.addresses(instruction, indices, tokens, no_offsets)[access.acts(indices, tokens)]
            if (of := access.token_offset) is not None:  # any row of its table
                offsets = np.arange(table.slice_rows[of.table]) * table.slice_vectors[of.table]
                words = np.unique(words)[:, None] + offsets
            touched[access.memory][words] = True
    return touched


def regions_of(program: ModelProgram) -> dict[Memory, list[Region]]:
    """Return each bank's regions: vectors with one purpose, not those of temporaries."""
    regions: dict[Memory, list[Region]] = {Memory.bank(number): [] for number in range(M.BANKS)}
    for region in program.regions:
        regions[Memory.bank(region.bank)].append(region)
    return regions
