"""A compiled program: its sections and its image in HBM; compile models to programs."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bttlab.compiler.banks import WINDOW
from bttlab.compiler.buffers import MOMENTS
from bttlab.compiler.builder import Builder
from bttlab.compiler.dependencies import data_waits, set_waits
from bttlab.compiler.errors import SMALLER_MODEL, DoesNotFit, ProgramError
from bttlab.compiler.graph import Graph, graph_of_config
from bttlab.compiler.instruction import Bound, Instruction, Level, Memory, Register, at, encode
from bttlab.compiler.layout import Block
from bttlab.compiler.lowering import Lowering, lower
from bttlab.compiler.machine import M
from bttlab.compiler.order import ordered
from bttlab.compiler.timing import time_program
from bttlab.compiler.tt_layer import Flow as Flow
from bttlab.model.config import ModelConfig, Optimizer

if TYPE_CHECKING:
    from bttlab.compiler.module import ModuleModel

LANES = M.LANES
TYPICAL_TOKENS = 13  # ATIS's mean, rounded up
NO_OFFSETS = (0,) * M.OFFSET_TABLES
CANDIDATES = ("bidirectional", "mixed", (2, 2))  # of flow "auto"; other merges were never the fastest of those tried
WINDOWS = (10500, 12500, 14000)  # of bank searches that "auto" tries, too: programs differ by one or two per cent
ORDER_TOKENS = 11  # length of the sample for which the order is optimized: ATIS's median, [CLS] included


class Limits(NamedTuple):
    sequence_length: int
    intents: int = 1
    slots: int = 1


class Transfer(NamedTuple):
    """Vectors that LOAD or STORE moves."""

    name: str  # what they are, for labels
    bank: int
    base: int
    vectors: int


@dataclass(eq=False)
class Program:
    builder: Builder  # its tables of functions and permutations
    limits: Limits
    forward: list[Instruction]
    backward: list[Instruction]
    flush: list[Instruction]
    load: list[Instruction]
    store: list[Instruction]
    clear: list[Instruction]
    transfer_vectors: int  # vectors of LOAD and of STORE

    @property
    def sections(self) -> tuple[list[Instruction], ...]:
        """The sections in the order of isa.h."""
        return self.forward, self.backward, self.flush, self.load, self.store, self.clear

    @property
    def sample(self) -> list[Instruction]:
        return self.forward + self.backward

    @property
    def offset_span(self) -> tuple[int, ...]:
        """Largest token offset of each table, in vectors."""
        return NO_OFFSETS

    def image(self) -> np.ndarray:
        """Return the program as LOAD_PROGRAM reads it, int32 of shape (vectors, 16)."""
        registers: list[Register] = []
        constants: list[float] = []

        def bound_code(bound: Bound) -> int:
            if not isinstance(bound, Register):
                return bound
            return 1 << 15 | _number(registers, bound, M.REGISTERS, "registers: choose a shorter sequence")

        def immediate_code(immediate: float | tuple[str, int]) -> int:
            if isinstance(immediate, tuple):
                return 1 << 15 | immediate[1]
            return _number(constants, float(np.float32(immediate)), M.CONSTANTS, "constants")

        instructions = [i for section in self.sections for i in section]
        fields = np.stack([encode(i, bound_code, immediate_code) for i in instructions])
        sections, first = [], 0
        for section in self.sections:
            sections += [first, len(section)]
            first += len(section)
        header = np.zeros((2, LANES), np.int32)
        header[0, : 4 + len(sections)] = [M.MAGIC, M.VERSION, M.digest, len(instructions), *sections]
        limits = [span + 1 for span in self.offset_span]
        header[1, : 3 + len(limits)] = [*self.limits, *limits]
        descriptions, tables = self.builder.functions.packed()
        shuffles = np.zeros((M.SHUFFLE_ENTRIES, 2, LANES), np.uint16)
        for n, (into, out) in enumerate(zip(self.builder.entry_in, self.builder.entry_out, strict=True)):
            shuffles[n] = into, out
        register_table, constant_table = np.zeros((M.REGISTERS, 4), np.int32), np.zeros(M.CONSTANTS, np.float32)
        register_table[: len(registers)], constant_table[: len(constants)] = np.reshape(registers, (-1, 4)), constants
        parts = header, register_table, constant_table, descriptions, tables, shuffles, fields
        image = np.concatenate([np.ascontiguousarray(part).view(np.int32).reshape(-1, LANES) for part in parts])
        image[1, 7] = checksum(image)
        return image


@dataclass(eq=False)
class ModelProgram(Program):
    model: Lowering

    @property
    def sums(self) -> bool:
        """True if gradients are summed over samples: a call then has samples of one update at most."""
        return bool(self.model.collect)

    @property
    def offset_span(self) -> tuple[int, ...]:
        """Largest token offset of each table, in vectors."""
        return self.model.embedding.offset_span

    def has_space_for(self, optimizer: Optimizer) -> bool:
        return self.model.has_moments or not optimizer.moments

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Check that the banks have space for an optimizer's state.

        Raise `ProgramError` if they do not; the message names the bank.
        """
        if not self.has_space_for(optimizer):
            bank, vectors = MOMENTS[0], self.model.layout.vectors
            raise ProgramError(
                f"the moments of {optimizer.name} take {vectors} vectors of bank {bank}, which has "
                f"{M.banks[bank].depth}: choose sgd, or {SMALLER_MODEL}"
            )


def checksum(image: np.ndarray) -> int:
    """Return the integer that makes all integers of an image add up to 0 modulo 2^32."""
    total = -int(np.sum(image, dtype=np.int64)) % (1 << 32)
    return total - (1 << 32) if total >> 31 else total


def _number(items: list, item: Any, most: int, what: str) -> int:
    """Return the number of a register or a constant, in the order of first use."""
    if item not in items:
        if len(items) == most:
            raise ProgramError(f"the program needs more than the machine's {most} {what}")
        items.append(item)
    return items.index(item)


def compile_program(
    model: "ModelConfig | ModuleModel",
    flow: Flow = "bidirectional",
    sums: bool = False,
    window: int = WINDOW,
) -> ModelProgram:
    """Return the program that trains a model.

    `model`: a configuration, or a PyTorch module (`bttlab.compiler.trace.trace`).
    `flow`: "bidirectional", the paper's; "right_to_left"; "mixed", which merges all cores of an end in the forward pass
    and two of the input's in the backward pass; "auto", the fastest of `CANDIDATES` for 13 tokens; the number of cores
    to merge at each end; or the order of contraction of every linear layer.
    `sums`: whether gradients of merged cores are summed over the samples of an update, and the gradients of the cores
    follow from the sums once per update, in FLUSH.
    `window`: of the bank search (`banks.Assignment`); "auto" tries several.

    Raise `ProgramError` if the model does not fit the machine; the message names the bank.
    """
    if flow == "auto":
        return fastest(lambda flow, window: compile_program(model, flow, sums, window))
    graph = graph_of_config(model) if isinstance(model, ModelConfig) else getattr(model, "graph", None)
    if not isinstance(graph, Graph):
        what = f"a ModelConfig or a traced module, not {type(model).__name__}"
        raise ProgramError(f"a program is that of {what}; trace(module, sequence_length) makes one of a PyTorch module")
    lowered = lower(graph, flow, ORDER_TOKENS, sums, window)
    lowered.config = model
    program = _as_emitted(lowered)
    spans = program.offset_span
    program.forward, program.backward = ordered([program.forward, program.backward], spans, ORDER_TOKENS)
    if program.sums:
        (program.flush,) = ordered([program.flush], spans, ORDER_TOKENS)
    for section in (program.clear,) if program.sums else (program.flush, program.clear):
        set_waits(section, data_waits(section, spans))
    return program


def fastest(
    compiled: Callable[[Flow, int], ModelProgram], lengths: Mapping[int, int] | None = None, batch_size: int = 1
) -> ModelProgram:
    """Return the program of least modelled time: of `CANDIDATES`, and of the bank searches with each of `WINDOWS`.

    `compiled`: returns the program of a flow and a window.
    `lengths`: number of samples of each length; by default one of 13 tokens.
    """
    programs, errors = [], []
    for flow in CANDIDATES:
        try:
            programs.append(compiled(flow, WINDOW))
        except ProgramError as error:
            errors.append(error)
        if programs and programs[0].model.order is None:  # no layer has an order to choose
            return programs[0]
    if not programs:
        raise errors[0]
    lengths = lengths or {min(TYPICAL_TOKENS, programs[0].limits.sequence_length): 1}
    tokens, counts = np.array(list(lengths)), np.array(list(lengths.values()))

    def cycles(program: ModelProgram) -> float:
        flush = int(time_program(program.flush, 1).cycles) if program.sums else 0
        return int(time_program(program.sample, tokens).cycles @ counts) + flush * int(counts.sum()) / batch_size

    best = min(programs, key=cycles)
    for window in WINDOWS:
        try:
            best = min(best, compiled(best.model.flow, window), key=cycles)
        except ProgramError:  # this search finds no banks
            continue
    return best


def _as_emitted(model: Lowering) -> ModelProgram:
    """Return a model's program before scheduling: in the order of the mathematics, without waits."""
    flush = [*model.collect, *model.emit_updates(), *model.emit_clears()]
    forward = [*model.emit_updates(), *model.forward]
    if model.collect:  # a sample that does not end its update changes no parameter
        forward = [*model.emit_updates(is_early=False), *model.forward, *model.emit_updates(is_early=True)]
    clear = [*_clears(model), *model.emit_clears()]
    ranges, config = _ranges(model), model.config
    moved = (transfers(ranges, into=True), transfers(ranges, into=False), clear, sum(r.vectors for r in ranges))
    limits = Limits(config.sequence_length, config.intents, config.slots)
    sections = forward, model.backward, flush
    program = ModelProgram(model.builder, limits, *sections, *moved, model)
    count, most = sum(map(len, program.sections)), M.PROGRAM_DEPTH
    if count > most:
        raise DoesNotFit(f"the program has {count} instructions, the machine takes {most}", "fewer encoders")
    return program


def _ranges(model: Lowering) -> list[Transfer]:
    """Return the transfers of parameters, and of first and second moments.

    If the banks have no space for the moments, nothing reads them: their transfers use wrapped addresses.
    """
    ranges: list[Transfer] = []
    for block in model.layout.blocks:
        name, bank, base, vectors = ranges[-1] if ranges else Transfer("", -1, 0, 0)
        if (block.bank, block.base) == (bank, base + vectors):  # adjacent blocks share a transfer
            ranges[-1] = Transfer(name, bank, base, vectors + block.vectors)
        else:
            ranges.append(Transfer("", block.bank, block.base, block.vectors))
    return ranges + [Transfer("", bank, 0, model.layout.vectors) for bank in MOMENTS]


def transfers(ranges: Iterable[Transfer | Block], into: bool) -> list[Instruction]:
    """Return the instructions of LOAD, which copy from IN_BANK, or of STORE, which copy to OUT_BANK."""
    b = Builder()
    b.stage, b.layer = "IO", "transfer"
    for each in ranges:
        for first in range(0, each.vectors, M.TRANSFER_VECTORS):
            # The outermost loop counts the vectors: the kernel reads there how many it copies from HBM.
            loops = [Level("w", min(each.vectors - first, M.TRANSFER_VECTORS)), *(Level(name, 1) for name in "abc")]
            chip = at(Memory.bank(each.bank), (each.base + first) % M.banks[each.bank].depth, w=1)
            outside = at(Memory.bank(M.IN_BANK if into else M.OUT_BANK), 0, w=1)
            source, result = (outside, chip) if into else (chip, outside)
            b.vector(M.COPY, f"{'load' if into else 'store'} {each.name}".rstrip(), loops, source, r0=result)
    return b.instructions


def _clears(model: Lowering) -> list[Instruction]:
    b = Builder()
    b.stage, b.layer = "IO", "clear"
    for block in model.layout.blocks:
        if block.buffer.is_accumulated:
            b.vector(M.COPY, "clear", [Level("w", block.vectors)], r0=block.gradient(w=1))
    return b.instructions
