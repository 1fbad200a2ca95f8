"""A film of a training step: which words of the card's memories are in use in each cycle, for what, and who works.

A word is *alive* from the step that writes it to the last step that reads this value; what a sample reads before it
writes it was there before, and is alive again at the sample's end. A word is *touched* from its first access on:
addresses are fixed, so the words touched in a whole step are what `bttlab.estimate.memory` counts.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from bttlab.compiler.access import accesses
from bttlab.compiler.buffers import GRADIENT_OF, MOMENTS
from bttlab.compiler.instruction import OPERANDS, UNIT_NAMES, Memory
from bttlab.compiler.machine import M, machine_of, targeting
from bttlab.compiler.memory.layout import Region
from bttlab.compiler.program import ModelProgram
from bttlab.compiler.timing import Timing, time_program
from bttlab.estimate.memory import GROUPS, TEMPORARIES, VECTOR_BYTES, BankUse, memory_map, regions_of, touched_words
from bttlab.estimate.recorded import machine_record
from bttlab.model import Optimizer
from bttlab.util.errors import BttlabError

_BUFFERS = "operand buffers"
_RESIDENT = ("parameters", "gradients", "optimizer state")


@dataclass(frozen=True)
class Tensor:
    """A tensor in a memory: the words of it that are alive."""

    name: str  # of a parameter, or layer and result of the instruction that wrote it
    group: str  # one of `bttlab.estimate.memory.GROUPS`
    bytes: int


@dataclass(frozen=True)
class Frame:
    """The card's memories in one cycle, by their names."""

    cycle: int
    tensors: dict[str, list[Tensor]]  # alive, the largest first
    touched: dict[str, int]  # bytes touched in this step until now, or resident
    working: dict[str, str]  # unit -> stage, layer and product of the instruction that it executes

    def bytes(self, memory: str) -> dict[str, int]:
        """Return the bytes alive in a memory, by group."""
        sizes: dict[str, int] = defaultdict(int)
        for tensor in self.tensors[memory]:
            sizes[tensor.group] += tensor.bytes
        return dict(sizes)

    @property
    def alive(self) -> int:
        return sum(tensor.bytes for tensors in self.tensors.values() for tensor in tensors)


@dataclass(frozen=True, eq=False)
class Film:
    """All cycles of a sample's loop, under a program, for one number of tokens ([CLS] included).

    Raises BttlabError if the program takes fewer than `tokens` tokens.
    """

    program: ModelProgram
    tokens: int
    optimizer: str = "sgd"
    timing: Timing = field(init=False)

    def __post_init__(self) -> None:
        most = self.program.limits.sequence_length
        if not 1 <= self.tokens <= most:
            raise BttlabError(f"{self.tokens} tokens: the program takes 1 to {most}")
        with targeting(machine_of(self.program.clock_mhz)):
            object.__setattr__(self, "timing", time_program(self.program.sample, self.tokens))

    @property
    def cycles(self) -> int:
        return int(self.timing.cycles)

    # --- what is asked of it

    def frame(self, cycle: int) -> Frame:
        """Return the frame of a cycle, 0 to `cycles` - 1."""
        lives = self._lives
        alive = (lives["begin"] <= cycle) & (cycle < lives["end"])
        numbers, counts = np.unique(lives["tensor"][alive], return_counts=True)
        sizes: dict[tuple[Memory, str, str], int] = defaultdict(int)
        for number, count in zip(numbers, counts, strict=True):
            sizes[self._tensors[number]] += int(count) * self._word_bytes[self._tensors[number][0]]
        tensors: dict[str, list[Tensor]] = {str(memory): [] for memory in self._memories}
        for (memory, name, group), size in sorted(sizes.items(), key=lambda item: -item[1]):
            tensors[str(memory)].append(Tensor(name, group, size))
        touched = {
            str(memory): int((self._first[memory] <= cycle).sum()) * self._word_bytes[memory]
            for memory in self._memories
        }
        working = {}
        for instruction, begin, end in zip(self.program.sample, self.timing.begin, self.timing.end, strict=True):
            if begin <= cycle < end:
                working[UNIT_NAMES[instruction.unit]] = ", ".join(filter(None, instruction.label))
        return Frame(cycle, tensors, touched, working)

    def alive(self, cycles: np.ndarray) -> dict[str, np.ndarray]:
        """Return the bytes alive in each of some cycles, by group; groups without any are left out."""
        lives, sizes = self._lives, {}
        groups = np.array([GROUPS.index(group) for _, _, group in self._tensors])[lives["tensor"]]
        weights = np.array([self._word_bytes[memory] for memory, _, _ in self._tensors])[lives["tensor"]]
        for number, group in enumerate(GROUPS):
            chosen = groups == number
            if not chosen.any():
                continue
            changes = np.zeros(self.cycles + 1)
            np.add.at(changes, np.minimum(lives["begin"][chosen], self.cycles), weights[chosen])
            np.add.at(changes, np.minimum(lives["end"][chosen], self.cycles), -weights[chosen])
            sizes[group] = np.cumsum(changes)[cycles].astype(int)
        return sizes

    def touched(self, cycles: np.ndarray) -> np.ndarray:
        """Return the bytes touched until each of some cycles, in all memories."""
        changes = np.zeros(self.cycles + 1)
        for memory, first in self._first.items():
            np.add.at(changes, first[first < self.cycles], self._word_bytes[memory])
        return np.cumsum(changes)[cycles].astype(int)

    @cached_property
    def peak(self) -> int:
        """The first cycle in which the most bytes are alive."""
        return int(np.argmax(sum(self.alive(np.arange(self.cycles)).values())))

    @property
    def most_touched(self) -> int:
        """The bytes of banks and operand buffers that any sample touches, as `bttlab.estimate.memory` counts them."""
        return sum(bank.bytes for bank in self._banks.values())

    # --- how it is made

    @cached_property
    def _banks(self) -> dict[str, BankUse]:
        found = memory_map(self.program, machine_record(), self.optimizer)
        return {bank.name: bank for bank in found.banks}

    @property
    def _memories(self) -> list[Memory]:
        return list(self._first)

    @cached_property
    def _word_bytes(self) -> dict[Memory, int]:
        return {memory: self._banks[str(memory)].word_vectors * VECTOR_BYTES for memory in self._first}

    @cached_property
    def _accesses(self) -> dict[Memory, np.ndarray]:
        """Every access of the sample by memory: word, cycle, whether it writes, number of its instruction; sorted."""
        found: dict[Memory, list[np.ndarray]] = defaultdict(list)
        offsets = np.zeros((M.OFFSET_TABLES, self.tokens), int)
        for number, (instruction, begin) in enumerate(zip(self.program.sample, self.timing.begin, strict=True)):
            indices = instruction.grid(self.tokens)
            for access in accesses(instruction):
                acts = access.acts(indices, self.tokens)
                words = access.addresses(instruction, indices, self.tokens, offsets)[acts]
                steps = np.arange(len(acts))[acts]
                about = np.empty((len(words), 4), np.int64)
                about[:, 0], about[:, 1], about[:, 2], about[:, 3] = words, begin + steps, access.writes, number
                found[access.memory].append(about)
        ordered = {}
        for memory, parts in found.items():
            rows = np.concatenate(parts)
            ordered[memory] = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
        return ordered

    @cached_property
    def _first(self) -> dict[Memory, np.ndarray]:
        """Of each word of a bank or operand buffer the cycle of its first access; 0 of what is resident."""
        never, first = np.iinfo(np.int64).max, {}
        sample = {id(instruction) for instruction in self.program.sample}
        outside = touched_words(
            self.program, [i for part in self.program.sections for i in part if id(i) not in sample]
        )
        tables = touched_words(self.program, [i for i in self.program.sample if _has_token_offset(i)])
        unused = [Memory.bank(number) for number in MOMENTS[len(Optimizer(self.optimizer).moments) :]]
        for memory, words in outside.items():
            if memory in unused:
                continue
            first[memory] = np.full(len(words), never)
            rows = self._accesses.get(memory)
            if rows is not None:
                starts = np.flatnonzero(np.diff(rows[:, 0], prepend=-1))
                first[memory][rows[starts, 0]] = rows[starts, 1]
            first[memory][words | (tables[memory] & self._is_resident(memory, len(words)))] = 0
        return first

    def _is_resident(self, memory: Memory, depth: int) -> np.ndarray:
        words = np.zeros(depth, bool)
        for region in self._regions.get(memory, ()):
            if region.purpose in _RESIDENT:
                words[region.first : region.first + region.vectors] = True
        return words

    @cached_property
    def _made(self) -> tuple[np.ndarray, list[tuple[Memory, str, str]]]:
        """The lives of all words as a table, and the tensors by the numbers in it."""
        tensors: list[tuple[Memory, str, str]] = []
        tables, writers = [], len(self.program.sample) + 1
        for memory, first in self._first.items():
            rows = self._accesses.get(memory)
            lives = _lives(rows, self.cycles) if rows is not None else np.zeros((0, 4), np.int64)
            names, owner, group = self._owners_of_words(memory, len(first))
            resident = np.flatnonzero(self._is_resident(memory, len(first)) & (first == 0))
            rest = np.setdiff1d(resident, lives[:, 0])
            always = np.column_stack(
                [rest, np.zeros_like(rest), np.full_like(rest, self.cycles), np.full_like(rest, -1)]
            )
            lives = np.concatenate([lives, always])
            table = np.empty(len(lives), [("begin", np.int64), ("end", np.int64), ("tensor", np.int64)])
            table["begin"], table["end"] = lives[:, 1], lives[:, 2]
            word, writer = lives[:, 0], np.where(owner[lives[:, 0]] < 0, lives[:, 3], -1)
            codes = ((owner[word] + 1) * len(GROUPS) + group[word]) * writers + writer + 1
            found, place = np.unique(codes, return_inverse=True)
            table["tensor"] = len(tensors) + place
            for code in found.tolist():
                rest, by = divmod(code, writers)
                whose, kind = divmod(rest, len(GROUPS))
                name = names[whose - 1] if whose else self._name_of(by - 1) if by else TEMPORARIES
                tensors.append((memory, name, GROUPS[kind]))
            tables.append(table)
        return np.concatenate(tables), tensors

    @property
    def _lives(self) -> np.ndarray:
        return self._made[0]

    @property
    def _tensors(self) -> list[tuple[Memory, str, str]]:
        return self._made[1]

    @cached_property
    def _regions(self) -> dict[Memory, list[Region]]:
        return regions_of(self.program)

    def _owners_of_words(self, memory: Memory, words: int) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Return names of tensors with words of their own, their numbers by word (else -1), and each word's group."""
        names: list[str] = []
        owner = np.full(words, -1)
        groups = np.full(words, GROUPS.index(_BUFFERS if memory.kind == OPERANDS else TEMPORARIES))
        for region in self._regions.get(memory, ()):
            place = slice(region.first, region.first + region.vectors)
            groups[place] = GROUPS.index(region.purpose)
            if region.purpose == "optimizer state":
                owner[place] = len(names)
                names.append(region.purpose)
        for block in self.program.layout.blocks:
            for bank, name in ((block.bank, block.name), (GRADIENT_OF[block.bank], f"gradient of {block.name}")):
                if Memory.bank(bank) == memory:
                    owner[block.base : block.base + block.vectors] = len(names)
                    names.append(name)
        return names, owner, groups

    def _name_of(self, writer: int) -> str:
        _, layer, text = self.program.sample[writer].label
        return ": ".join(filter(None, (layer, text.partition(" = ")[0])))


def _has_token_offset(instruction) -> bool:
    return any(access.token_offset is not None for access in accesses(instruction))


def _lives(rows: np.ndarray, cycles: int) -> np.ndarray:
    """Return the lives of words: word, begin, end, and the instruction that wrote it (-1: before this sample).

    `rows` are sorted accesses: word, cycle, whether it writes, instruction; in a cycle reads come first. A word that is
    read before it is written has a value from the sample before; its last value is the next sample's.
    """
    word, cycle, writes, number = rows.T
    begins_word = np.diff(word, prepend=-1) != 0
    starts = np.flatnonzero(begins_word | (writes == 1))  # a value begins: with a write, or with a word's first read
    ends = np.append(starts[1:], len(rows))
    last = ends - 1  # last access of each value, which is a read, unless it is the write alone
    is_old = writes[starts] == 0
    begin = np.where(is_old, 0, cycle[starts])
    end = cycle[last] + 1
    of_word = np.cumsum(begins_word[starts]) - 1
    first_of_word = np.flatnonzero(begins_word[starts])
    wraps = is_old[first_of_word][of_word]
    is_last = np.append(word[starts][1:] != word[starts][:-1], True)
    end = np.where(wraps & is_last, cycles, end)
    return np.column_stack([word[starts], begin, end, np.where(is_old, -1, number[starts])])
