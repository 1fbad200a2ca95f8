"""Check a program for hazards: each port serves one request a cycle, and no vector is read too early or too late.

The check assigns each step of each instruction its cycle (`timing`) and lists every vector that it reads or writes. A
read must return the value of the last write before it in program order. The pipeline is at most LATENCY deep, and the
contract does not say how deep. So the last write at least LATENCY cycles before the read, and the last write in any
earlier cycle, must both be that write. At the end each vector must have the value of its last write in program order.
The check derives dependences from these accesses alone; of the compiler's waits it uses only the times that follow from
them.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bttlab.compiler.access import accesses, adds_up, asks_in_fold
from bttlab.compiler.buffers import DEPTHS, GRADIENT_OF, MEMORIES
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.instruction import BANK, OPERANDS, SUMS, Instruction, Memory, value_of
from bttlab.compiler.machine import M, machine_of, target, targeting
from bttlab.compiler.program import ModelProgram
from bttlab.compiler.timing import time_program


class Hazard(NamedTuple):
    kind: str  # "port", "early", "late", "order", "unwritten", "sums", "shuffle", "range", "reach" or "stuck"
    memory: Memory | None
    cycle: int
    instructions: tuple[int, ...]  # numbers of the instructions in the list
    text: str


def find_hazards(
    instructions: Sequence[Instruction],
    tokens: int,
    token_offsets: np.ndarray,
    updates: bool = True,
    most: int = 20,
    loaded: Mapping[Memory, np.ndarray] | None = None,
) -> list[Hazard]:
    """Return the hazards of a run of a list of instructions.

    `token_offsets`: offsets of its tokens; of shape (4, tokens).
    `most`: largest number of hazards to report for each kind and memory.
    `loaded`: which vectors of each bank have a value when the run begins; by default none.
    """
    try:
        timing = time_program(instructions, tokens, updates)
    except ProgramError as error:
        return [Hazard("stuck", None, 0, (), str(error))]
    # Accesses to each memory, as arrays: key, cycle, step, instruction, whether they write; and uses of each port.
    vectors: dict[Memory, list[tuple[np.ndarray, ...]]] = defaultdict(list)
    ports: dict[tuple[Memory, bool], list[tuple[np.ndarray, ...]]] = defaultdict(list)
    hazards: list[Hazard] = []
    for i, instruction in enumerate(instructions):
        hazards += [Hazard("reach", None, 0, (i,), f"instruction {i}: {text}") for _, text in instruction.unreached()]
        if timing.end[i] == timing.begin[i]:
            continue
        indices = instruction.grid(tokens)
        active = instruction.active(indices, tokens)
        step = np.arange(len(active))
        cycle = timing.begin[i] + step
        for access in accesses(instruction):
            memory, acts = access.memory, access.acts(indices, tokens)
            if memory.kind == SUMS:  # a fold reads them, too
                ports[memory, False].append((cycle[active], np.full(int(active.sum()), i)))
            if not acts.any():
                continue
            asks = active if asks_in_fold(instruction, access.operand) else acts
            addresses = access.addresses(instruction, indices, tokens, token_offsets)
            key = addresses[acts]
            if access.operand is not None:
                depth = DEPTHS[MEMORIES.index(memory)]
                if (last := addresses[asks].max()) >= depth:
                    text = f"instruction {i} accesses vector {last} of {memory}, which has {depth}"
                    hazards.append(Hazard("range", memory, 0, (i,), text))
            # Only its own engine reads an operand buffer; only the vector unit uses statistics and its accumulators.
            if memory.kind == BANK or (memory.kind == OPERANDS and access.writes):
                ports[memory, access.writes].append((cycle[asks], np.full(int(asks.sum()), i)))
            repeats = 1
            if memory.kind == OPERANDS and access.writes:
                name, base = instruction.row
                row = indices[[loop.name for loop in instruction.loops].index(name)][acts]
                key = key * M.ROWS + (base + row & M.ROWS - 1)
            elif memory.kind == OPERANDS:
                repeats = min(max(value_of(instruction.count, tokens), 0), M.ROWS)
                key = (key[:, None] * M.ROWS + np.arange(repeats)).reshape(-1)
            of_instruction, writes = np.full(len(key), i), np.full(len(key), access.writes)
            times = (np.repeat(of[acts], repeats) for of in (cycle, step))
            vectors[memory].append((key, *times, of_instruction, writes))
        hazards += _instruction_hazards(i, instruction, indices, active, tokens)
    for (memory, writes), uses in ports.items():
        hazards += _port_hazards(memory, writes, *map(np.concatenate, zip(*uses, strict=True)))[:most]
    for memory, of_memory in vectors.items():
        events = map(np.concatenate, zip(*of_memory, strict=True))
        hazards += _vector_hazards(memory, instructions, (loaded or {}).get(memory), *events)[:most]
    return hazards


def written_vectors(instructions: Iterable[Instruction], tokens=1, token_offsets=None) -> dict[Memory, np.ndarray]:
    """Return which vectors the instructions write: an array of bool for each bank."""
    written = {Memory.bank(n): np.zeros(of.depth, bool) for n, of in enumerate(M.banks)}
    for instruction in instructions:
        indices = instruction.grid(tokens)
        for access in accesses(instruction):
            if access.writes and access.memory in written:
                key = access.addresses(instruction, indices, tokens, token_offsets)[access.acts(indices, tokens)]
                written[access.memory][key[key < len(written[access.memory])]] = True
    return written


def loaded_vectors(program: ModelProgram, updates: bool) -> dict[Memory, np.ndarray]:
    """Return which vectors have a value when a sample begins: those of LOAD and CLEAR, and gradients of an update."""
    loaded = written_vectors([*program.load, *program.clear])
    if updates:  # gradients of the shortest sample: longer ones write more
        offsets = program.token_table.token_offsets(np.zeros(2, int))
        for memory, written in written_vectors(program.backward, 2, offsets).items():
            loaded[memory] |= written
    return loaded


def _rows_in_record(program: ModelProgram, tokens: int) -> dict[Memory, np.ndarray]:
    """Return which vectors of IN_BANK have a value when a sample begins: rows of its tokens that came in its record."""
    return {Memory.bank(M.IN_BANK): np.arange(M.banks[M.IN_BANK].depth) < tokens * program.token_vectors}


def unchecked_gradients(program: ModelProgram) -> list[str]:
    """Return an error message for each instruction that writes a parameter's gradient without the CHECK flag."""
    texts, parameters = [], [block for block in program.layout.blocks if block.buffer.is_parameter]
    for i, instruction in enumerate(program.sample):
        if instruction.unit == M.UPDATE or instruction.flags & M.CHECK:
            continue
        for access in accesses(instruction):
            low, high = access.interval(program.offset_span)
            for block in parameters if access.writes else ():
                is_written = low < block.base + block.vectors and block.base < high
                if access.memory == Memory.bank(GRADIENT_OF[block.bank]) and is_written:
                    label = " / ".join(instruction.label)
                    texts.append(f"instruction {i} ({label}) writes the gradient of {block.name} without CHECK")
    return texts


def token_id_sets(rows: int, stride: int, length: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Return sets of token ids for a check: random ones with a repetition, and extreme cases.

    `rows`, `stride`: rows of the embedding, and the distance between ids that differ in the first digit alone.
    """
    ids = random.integers(0, rows, length)
    ids[-1] = ids[0]  # two tokens add to the same slices
    steps = np.arange(length)
    return {
        "random": ids,
        "all equal": np.full(length, rows - 1),
        "adjacent": steps % rows,
        "largest stride": np.where(steps % 2, rows - 1, steps * stride % rows),
    }


def check_program(
    program: ModelProgram, lengths: Iterable[int], report: Callable[[int, int], None] = lambda length, count: None
) -> list[str]:
    """Return the hazards in all sections of a program, for samples of the given lengths.

    `report`: called after each length, with the length and the number of hazards up to then.
    """
    with targeting(machine_of(program.clock_mhz)):
        return _check_program(program, lengths, report)


def _check_program(program: ModelProgram, lengths: Iterable[int], report: Callable[[int, int], None]) -> list[str]:
    texts = unchecked_gradients(program)
    table, random = program.token_table, np.random.default_rng(0)
    nothing = np.zeros((M.OFFSET_TABLES, 1), int)
    fresh, pending = (loaded_vectors(program, updates) for updates in (False, True))
    filled = fresh | {Memory.bank(M.IN_BANK): np.ones(M.banks[M.IN_BANK].depth, bool)}
    runs = [("flush", program.flush, pending), ("clear", program.clear, {})]
    runs += [("load", [transfer], filled) for transfer in program.load]  # one instruction a run
    runs += [("store", [transfer], fresh) for transfer in program.store]
    for name, run, loaded in runs:
        texts += [f"{name}: {hazard.text}" for hazard in find_hazards(run, 1, nothing, loaded=loaded)]
    for length in lengths:
        for kind, ids in token_id_sets(table.rows, table.stride, length, random).items():
            sample = [("train", program.sample, True)]
            if kind == "random":
                sample += [("train, nothing pending", program.sample, False), ("predict", program.forward, False)]
            for name, run, updates in sample:
                loaded = (pending if updates else fresh) | _rows_in_record(program, length)
                found = find_hazards(run, length, table.token_offsets(ids), updates, loaded=loaded)
                texts += [f"{name}, {length} tokens, {kind} ids: {hazard.text}" for hazard in found]
        report(length, len(texts))
    return texts


def _instruction_hazards(
    i: int, instruction: Instruction, indices: list[np.ndarray], active: np.ndarray, tokens: int
) -> list[Hazard]:
    """Return the hazards within an instruction: sums updated again too soon, and shuffle blocks with too few steps."""
    if instruction.unit == M.SHUFFLE:
        *outer, inner = instruction.loops[1:]
        block = math.prod(value_of(loop.bound, tokens) for loop in (*outer, inner))
        vectors_in = math.prod(value_of(loop.active_bound, tokens) for loop in (*outer, inner))
        vectors_out = math.prod(value_of(loop.bound, tokens) for loop in outer) * value_of(instruction.count, tokens)
        if block and block < max(vectors_in, vectors_out):
            text = f"instruction {i}: blocks have {block} steps for {vectors_in} vectors in and {vectors_out} out"
            return [Hazard("shuffle", None, 0, (i,), text)]
        return []
    if not adds_up(instruction):
        return []
    step = np.flatnonzero(active)
    accumulator = instruction.accumulators(indices, tokens)[active]
    if len(accumulator) and accumulator.max() >= instruction.accumulator_count:
        text = f"instruction {i} uses {accumulator.max() + 1} accumulators; there are {instruction.accumulator_count}"
        return [Hazard("range", None, 0, (i,), text)]
    order = np.lexsort((step, accumulator))
    same = np.diff(accumulator[order]) == 0
    distance = np.diff(step[order])[same]
    if len(distance) and distance.min() < M.SUM_DISTANCE:
        text = (
            f"instruction {i} updates an accumulator again after {distance.min()} cycles; the least is {M.SUM_DISTANCE}"
        )
        return [Hazard("sums", None, 0, (i,), text)]
    return []


def _port_hazards(memory, writes, cycle, instruction_of) -> list[Hazard]:
    order, kind = np.argsort(cycle, kind="stable"), "store" if writes else "load"
    found: dict[tuple[int, int], Hazard] = {}
    for k in np.flatnonzero(np.diff(cycle[order]) == 0):
        first, second = (int(instruction_of[n]) for n in order[k : k + 2])
        at = int(cycle[order[k]])
        text = f"cycle {at}: instructions {first} and {second} both use the {kind} port of {memory}"
        found.setdefault((first, second), Hazard("port", memory, at, (first, second), text))
    return list(found.values())


def _vector_hazards(memory, instructions, loaded, key, cycle, step, instruction_of, writes) -> list[Hazard]:
    """Return reads that get a wrong value, vectors that end with a wrong value, and reads of unwritten vectors."""
    reads = ~writes
    # The write that each read must see; the last one that it sees in the deepest pipeline, and in the shortest.
    in_list = instruction_of * (step.max() + 1) + step
    expected = _writers(key, in_list, writes, writes)
    complete = _writers(key, np.where(writes, cycle + target().LATENCY, cycle), reads, writes)
    latest = _writers(key, cycle, writes, writes)
    found: dict[tuple, Hazard] = {}  # the first of each kind and pair of instructions

    def add(kind: str, k: int, numbers: tuple[int, ...], text: str) -> None:
        found.setdefault((kind, numbers), Hazard(kind, memory, int(cycle[k]), numbers, text))

    def read(k: int) -> str:
        n = int(instruction_of[k])
        return f"instruction {n} ({' / '.join(instructions[n].label)}) reads {memory} vector {key[k]}"

    is_early = expected != complete
    for kind, wrong in (("early", reads & is_early), ("late", reads & ~is_early & (expected != latest))):
        for k in sorted(np.flatnonzero(wrong), key=cycle.__getitem__):
            writer = int(instruction_of[expected[k]]) if expected[k] >= 0 else -1
            if kind == "late":
                when = f"overwrote it in cycle {cycle[latest[k]]}"
                why = f"too late: instruction {instruction_of[latest[k]]}, later in the list, {when}"
            elif writer < 0:
                why = "after it was overwritten"
            else:
                when = f"writes it in cycle {cycle[expected[k]]}, which takes {target().LATENCY} cycles"
                why = f"too early: instruction {writer} {when}"
            add(kind, k, (writer, int(instruction_of[k])), f"cycle {cycle[k]}: {read(k)} {why}")
    for k, overwriting in _reordered_writes(key, in_list, cycle, writes):
        first, second = int(instruction_of[k]), int(instruction_of[overwriting])
        final = f"the final result of instruction {first} (cycle {cycle[k]})"
        text = f"cycle {cycle[overwriting]}: instruction {second} overwrites {memory} vector {key[k]}, {final}"
        add("order", overwriting, (first, second), text)
    is_loaded = np.zeros(int(key.max()) + 1, bool)
    if loaded is not None:
        is_loaded[: len(loaded)] = loaded[: len(is_loaded)]
    for k in np.flatnonzero(reads & (expected < 0) & (complete < 0) & ~is_loaded[key]):
        add("unwritten", k, (int(instruction_of[k]),), f"{read(k)}, which nothing has written")
    return list(found.values())


def _writers(key, time, after, writes) -> np.ndarray:
    """Return, for each event, the index of the last write to its vector before it in `time`; -1 if there is none.

    `after` breaks ties in time: events for which it is true come after the others.
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


def _reordered_writes(key, in_list, cycle, writes):
    """Yield (a vector's last write in the list, its last write in time) where the two differ."""
    written = np.flatnonzero(writes)
    if not len(written):
        return
    lasts = []
    for time in (in_list, cycle):
        order = written[_order(key[written], time[written], np.zeros(len(written), bool))]
        lasts.append(order[np.concatenate([key[order][1:] != key[order][:-1], [True]])])
    for k, overwriting in zip(*lasts, strict=True):
        if k != overwriting:
            yield k, overwriting


def _order(key, time, after) -> np.ndarray:
    """Return the order of events by vector, time and tie-breaker, combined into one integer for speed."""
    return np.argsort((key.astype(np.int64) * (int(time.max()) + 1) + time) * 2 + after, kind="stable")
