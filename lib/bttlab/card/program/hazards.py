"""Whether a program does in the machine what it says: every port asked once a cycle, every word read when it is there.

Each step of each instruction is put at its cycle (`timing`), and every word that it reads or writes is listed. The word
that a read is meant to see is what was written last before it in the order of the list. What it gets is written at the
end of a pipeline that is no deeper than LATENCY, but how deep it is, the contract leaves open: so what was written last
LATENCY cycles or more before it, and what was written last in any cycle before it, must both be that word. And what is
left in a word at the end must be what was written last in the order of the list. Nothing here uses the waits that the
compiler worked out.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from bttlab.card.program import banks
from bttlab.card.program.dependencies import STATISTICS_READ, STATISTICS_WRITTEN
from bttlab.card.program.errors import ProgramError
from bttlab.card.program.instruction import (
    ACCUMULATE,
    DRAIN_0,
    ENGINE_1,
    EXPAND,
    MACHINE,
    REDUCE,
    SHUFFLE,
    VECTOR,
    Instruction,
    value_of,
)
from bttlab.card.program.program import Program
from bttlab.card.program.timing import time_program

M = MACHINE
# What is on chip when a sample begins: parameters, gradients that are added to, moments.
LOADED = (*range(banks.IN_CORES, banks.SECOND_MOMENT + 1), M.IN_BANK)
SUMMING = (M.SUM, M.VARIANCE, M.NORM_SUMS, M.COLUMNS, M.MAXIMUM, M.EXPONENT, M.DOT)


class Hazard(NamedTuple):
    """Something that goes wrong.

    Attributes
    ----------
    kind : str
        "port", "early", "late", "order", "unwritten", "sums", "shuffle", "range", "reach" or "stuck".
    memory : str
    cycle : int
    instructions : tuple of int
        In the list.
    text : str
    """

    kind: str
    memory: str
    cycle: int
    instructions: tuple[int, ...]
    text: str


class _Events:
    """Accesses of one memory: parallel arrays, put together at the end."""

    def __init__(self) -> None:
        self.parts: list[tuple[np.ndarray, ...]] = []

    def add(self, key, cycle, instruction, step, writes) -> None:
        count = len(cycle)
        self.parts.append((key, cycle, np.full(count, instruction), step, np.full(count, writes)))

    def arrays(self) -> tuple[np.ndarray, ...]:
        return tuple(np.concatenate(column) for column in zip(*self.parts, strict=True))


def find_hazards(
    instructions: Sequence[Instruction],
    tokens: int,
    slices: np.ndarray,
    updates: bool = True,
    most: int = 20,
    loaded: Container[int] = LOADED,
) -> list[Hazard]:
    """Return what goes wrong when a list of instructions runs.

    Parameters
    ----------
    instructions : sequence of Instruction
        With their waits.
    tokens : int
        The sample's length.
    slices : ndarray of int, shape (4, tokens)
        The offsets of its tokens' slices.
    updates : bool
        Whether an update is pending.
    most : int
        Hazards of a kind and memory that are told.
    loaded : container of int
        Banks whose words are there when the run begins.
    """
    try:
        timing = time_program(instructions, tokens, updates)
    except ProgramError as error:
        return [Hazard("stuck", "", 0, (), str(error))]
    words: dict[str, _Events] = defaultdict(_Events)
    ports: dict[tuple[str, bool], list] = defaultdict(list)
    hazards: list[Hazard] = []
    for i, instruction in enumerate(instructions):
        hazards += [Hazard("reach", "", 0, (i,), f"instruction {i}: {text}") for _, text in instruction.unreached()]
        if timing.end[i] == timing.begin[i]:
            continue
        index, live = instruction.grid(tokens)
        step = np.arange(len(live))
        cycle = timing.begin[i] + step
        for memory, _, key, acts, writes in step_accesses(instruction, index, live, tokens, slices, hazards, i):
            if not acts.any():
                continue
            # Held rows are read by their own engine only, statistics and accumulators used by the vector unit only.
            if memory.startswith("bank") or (memory.startswith("held") and writes):
                ports[memory, writes].append((cycle[acts], np.full(int(acts.sum()), i)))
            if key.ndim == 2:  # rows of a held memory
                rows = key.shape[1]
                words[memory].add(
                    key[acts].reshape(-1), np.repeat(cycle[acts], rows), i, np.repeat(step[acts], rows), writes
                )
            else:
                words[memory].add(key[acts], cycle[acts], i, step[acts], writes)
        acts = live if instruction.unit > ENGINE_1 or instruction.operation != EXPAND else live[:0]
        if instruction.unit <= DRAIN_0 + 1 and len(acts):
            memory = f"sums {instruction.unit % M.ENGINES} {int(bool(instruction.flags & M.SIDE))}"
            ports[memory, False].append((cycle[acts], np.full(int(acts.sum()), i)))
        hazards += _inside(i, instruction, index, live, tokens)
    for (memory, writes), uses in ports.items():
        hazards += _port_hazards(memory, writes, uses)[:most]
    for memory, events in words.items():
        hazards += _word_hazards(memory, events, instructions, loaded)[:most]
    return hazards


def check_program(
    program: Program, lengths: Iterable[int], tell: Callable[[int, int], None] = lambda length, count: None
) -> list[str]:
    """Return what goes wrong in any section of a program, at these lengths.

    Parameters
    ----------
    program : Program
    lengths : iterable of int
    tell : callable
        Is told each length when it is done, and the number of hazards so far.
    """
    texts: list[str] = []
    embedding, random = program.model.embedding, np.random.default_rng(0)
    rows = embedding.rows_1 * embedding.rows_2 * embedding.rows_3
    nothing = np.zeros((M.SLICE_TABLES, 1), int)
    for name, section in (("flush", program.flush), ("clear", program.clear)):
        texts += [f"{name}: {hazard.text}" for hazard in find_hazards(section, 1, nothing)]
    for name, section in (("load", program.load), ("store", program.store)):  # one instruction a run
        texts += [f"{name}: {hazard.text}" for one in section for hazard in find_hazards([one], 1, nothing)]
    runs = (("train", program.sample, True), ("train, nothing pending", program.sample, False))
    for length in lengths:
        ids = random.integers(0, rows, length)
        ids[-1] = ids[0]  # tokens may come twice: what is added to their slices then adds up
        slices = embedding.slices(ids)
        for name, run, updates in (*runs, ("predict", program.forward, False)):
            texts += [f"{name}, {length} tokens: {h.text}" for h in find_hazards(run, length, slices, updates)]
        tell(length, len(texts))
    return texts


def step_accesses(instruction, index, live, tokens, slices, hazards, number):
    """Yield (memory, its operand, key of the word at each step, steps that do it, whether it is written)."""
    unit, operation = instruction.unit, instruction.operation
    fold = _fold(instruction, index, tokens)
    reading, writing = live, live
    if unit == SHUFFLE:
        block = index[instruction.loops[0].name]
        blocks = value_of(instruction.loops[0].bound, tokens)
        inner = np.ones(len(live), bool)
        for loop in instruction.loops[1:]:
            inner &= index[loop.name] < value_of(loop.acting, tokens)
        reading = inner & (block + 1 < blocks)
        last = instruction.loops[-1].name
        writing = (index[last] < value_of(instruction.count, tokens)) & (block > 0)
    for n, writes in [*((n, False) for n in instruction.reads()), *((n, True) for n in instruction.writes())]:
        operand = instruction.operands[n]
        address = key = instruction.addresses(operand, index, slices) & 0xFFFF
        acts = writing if writes else reading
        if unit <= ENGINE_1 and operation == REDUCE:
            acts = live & (fold if writes or n == 3 else ~fold)
        elif writes and unit == VECTOR and operation == M.COLUMNS:
            acts = live & _last(instruction, index, tokens)
        _check_range(hazards, number, operand.memory, address[acts])
        if operand.memory.startswith("held") and writes:
            key = address * M.ROWS + _row(instruction, index)
        elif operand.memory.startswith("held"):
            rows = min(max(value_of(instruction.count, tokens), 0), M.ROWS)
            key = address[:, None] * M.ROWS + np.arange(rows)
        yield operand.memory, n, key, acts, writes
    side = int(bool(instruction.flags & M.SIDE))
    if unit <= ENGINE_1 and operation != EXPAND:
        yield f"sums {unit} {side}", None, instruction.slots(index, tokens), live & ~fold, True
    elif unit in (DRAIN_0, DRAIN_0 + 1):
        yield f"sums {unit - DRAIN_0} {side}", None, instruction.addresses(instruction.operands[0], index), live, False
    elif unit == VECTOR:
        row = (instruction.operands[5].base if 5 in instruction.operands else 0) + instruction.slots(index, tokens)
        for k in STATISTICS_READ.get(operation, ()):
            yield f"statistic {k}", None, row, live, False
        for k in STATISTICS_WRITTEN.get(operation, ()):
            yield f"statistic {k}", None, row, live & _last(instruction, index, tokens), True


def _fold(instruction, index, tokens) -> np.ndarray:
    steps = len(next(iter(index.values())))
    if instruction.unit > ENGINE_1 or instruction.operation != REDUCE:
        return np.zeros(steps, bool)
    name = instruction.depth[0]
    bound = next(value_of(loop.bound, tokens) for loop in instruction.loops if loop.name == name)
    return index[name] == bound - 1


def _last(instruction, index, tokens) -> np.ndarray:
    last = np.ones(len(next(iter(index.values()))), bool)
    for loop in instruction.loops:
        if loop.name in instruction.depth:
            last &= index[loop.name] == value_of(loop.acting, tokens) - 1
    return last


def _row(instruction, index) -> np.ndarray:
    name, base = instruction.row
    return (base + index[name]) & (M.ROWS - 1)


def _check_range(hazards, number, memory, address) -> None:
    depth = M.HELD_DEPTH if memory.startswith("held") else M.banks[int(memory.split()[1])].depth
    if len(address) and address.max() >= depth:
        text = f"instruction {number} reaches word {address.max()} of {memory}, which has {depth}"
        hazards.append(Hazard("range", memory, 0, (number,), text))


def _inside(i, instruction, index, live, tokens):
    """Sums that come round too early, and blocks of the shuffle unit without their gap."""
    if instruction.unit == SHUFFLE:
        *outer, inner = instruction.loops[1:]
        block = math.prod(value_of(loop.bound, tokens) for loop in (*outer, inner))
        words_in = math.prod(value_of(loop.acting, tokens) for loop in (*outer, inner))
        words_out = math.prod(value_of(loop.bound, tokens) for loop in outer) * value_of(instruction.count, tokens)
        if block and block < max(words_in, words_out) + M.SHUFFLE_GAP:
            text = f"instruction {i}: blocks of {block} steps for {words_in} words in and {words_out} out"
            return [Hazard("shuffle", "shuffle", 0, (i,), text)]
        return []
    sums = instruction.unit <= ENGINE_1 and instruction.operation in (ACCUMULATE, REDUCE)
    sums |= instruction.unit == VECTOR and instruction.operation in SUMMING
    if not sums:
        return []
    step = np.flatnonzero(live)
    slot = instruction.slots(index, tokens)[live]
    room = M.SLOTS if instruction.unit <= ENGINE_1 else M.ROW_SLOTS
    if len(slot) and slot.max() >= room:
        text = f"instruction {i} sums in {slot.max() + 1} slots; there are {room}"
        return [Hazard("range", "sums", 0, (i,), text)]
    order = np.lexsort((step, slot))
    same = np.diff(slot[order]) == 0
    distance = np.diff(step[order])[same]
    if len(distance) and distance.min() < M.SUM_DISTANCE:
        text = f"instruction {i} comes back to a sum after {distance.min()} cycles; it takes {M.SUM_DISTANCE}"
        return [Hazard("sums", "sums", 0, (i,), text)]
    return []


def _port_hazards(memory, writes, uses):
    cycle = np.concatenate([c for c, _ in uses])
    who = np.concatenate([n for _, n in uses])
    order = np.argsort(cycle, kind="stable")
    cycle, who = cycle[order], who[order]
    twice = np.flatnonzero(np.diff(cycle) == 0)
    seen, hazards = set(), []
    for k in twice:
        pair = (int(who[k]), int(who[k + 1]))
        if pair not in seen:
            seen.add(pair)
            kind = "store" if writes else "load"
            text = f"cycle {cycle[k]}: instructions {pair[0]} and {pair[1]} both ask for the {kind} of {memory}"
            hazards.append(Hazard("port", memory, int(cycle[k]), pair, text))
    return hazards


def _word_hazards(memory, events: _Events, instructions, loaded):
    key, cycle, who, step, writes = events.arrays()
    reads = ~writes
    in_list = who * (step.max() + 1) + step
    meant = _writers(key, in_list, writes, writes)
    late = _writers(key, np.where(writes, cycle + M.LATENCY, cycle), reads, writes)
    soon = _writers(key, cycle, writes, writes)
    hazards, told = [], set()

    def tell(kind, wrong, text_of):
        for k in wrong[np.argsort(cycle[wrong], kind="stable")]:
            writer = int(who[meant[k]]) if meant[k] >= 0 else -1
            pair = (writer, int(who[k]))
            if (kind, pair) not in told:
                told.add((kind, pair))
                reads_it = (
                    f"instruction {pair[1]} ({' / '.join(instructions[pair[1]].label)}) reads {memory} word {key[k]}"
                )
                text = f"cycle {cycle[k]}: {reads_it} {text_of(k, writer)}"
                hazards.append(Hazard(kind, memory, int(cycle[k]), pair, text))

    def early(k, writer):
        if writer < 0:
            return "after it was overwritten"
        return f"that instruction {writer} writes in cycle {cycle[meant[k]]}: it takes {M.LATENCY} cycles"

    def overwritten(k, writer):
        return f"in which instruction {who[soon[k]]} wrote in cycle {cycle[soon[k]]} what is meant for later"

    tell("early", np.flatnonzero(reads & (meant != late)), early)
    tell("late", np.flatnonzero(reads & (meant == late) & (meant != soon)), overwritten)
    for k, other in _left_behind(key, in_list, cycle, writes):
        pair = (int(who[k]), int(who[other]))
        if ("order", pair) not in told:
            told.add(("order", pair))
            text = (
                f"cycle {cycle[other]}: instruction {pair[1]} writes {memory} word {key[k]} after instruction "
                f"{pair[0]}, whose result is meant to stay (cycle {cycle[k]})"
            )
            hazards.append(Hazard("order", memory, int(cycle[other]), pair, text))
    if not (memory.startswith("bank") and int(memory.split()[1]) in loaded):
        for k in np.flatnonzero(reads & (meant < 0) & (late < 0)):
            n = int(who[k])
            if n not in told:
                told.add(n)
                name = " / ".join(instructions[n].label)
                text = f"instruction {n} ({name}) reads {memory} word {key[k]}, which nobody has written"
                hazards.append(Hazard("unwritten", memory, int(cycle[k]), (n,), text))
    return hazards


def _writers(key, time, after, writes) -> np.ndarray:
    """Return for each event the index of the last write of its word before it in `time`; -1 if there is none.

    `after` breaks ties of time: events for which it is true come after the others.
    """
    order = _order(key, time, after)
    last = np.maximum.accumulate(np.where(writes[order], np.arange(len(order)), -1))
    before = np.concatenate([[-1], last[:-1]])
    sorted_key = key[order]
    begins = np.concatenate([[True], sorted_key[1:] != sorted_key[:-1]])
    first = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    result = np.empty(len(order), np.int64)
    result[order] = np.where(before >= first, order[before], -1)
    return result


def _left_behind(key, in_list, cycle, writes):
    """Yield (write that is a word's last in the list, write that is its last in time) where they are not the same."""
    written = np.flatnonzero(writes)
    if not len(written):
        return
    lasts = []
    for time in (in_list, cycle):
        order = written[_order(key[written], time[written], np.zeros(len(written), bool))]
        lasts.append(order[np.concatenate([key[order][1:] != key[order][:-1], [True]])])
    for k, other in zip(*lasts, strict=True):
        if k != other:
            yield k, other


def _order(key, time, after) -> np.ndarray:
    """Return the order of events by word, then time, then ties: by one integer of all three, which sorts fast."""
    return np.argsort((key.astype(np.int64) * (int(time.max()) + 1) + time) * 2 + after, kind="stable")
