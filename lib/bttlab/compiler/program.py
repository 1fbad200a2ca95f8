"""Compile models to programs: `compile(model, Options(...))`."""

import functools
import hashlib
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bttlab.compiler.buffers import MOMENTS
from bttlab.compiler.builder import Builder
from bttlab.compiler.errors import SMALLER_MODEL, DoesNotFit, ProgramError, with_space
from bttlab.compiler.graph import Graph, graph_of_config
from bttlab.compiler.image import Tables, packed, tables_of_image
from bttlab.compiler.instruction import Instruction, Level, Memory, at
from bttlab.compiler.lowering import Lowering, Lowerings
from bttlab.compiler.machine import M, machine_of, target, targeting
from bttlab.compiler.memory.banks import WINDOW
from bttlab.compiler.memory.layout import Block, Layout, Region, TokenTable
from bttlab.compiler.plan.tt_layer import Flow as Flow
from bttlab.compiler.schedule.dependencies import data_waits, set_waits
from bttlab.compiler.schedule.order import OrderSearch, bound
from bttlab.compiler.space import what_fits
from bttlab.compiler.stored import decoded, decoded_layout, encoded, encoded_layout, key_of, read_entry, write_entry
from bttlab.compiler.timing import time_program
from bttlab.model.choices import IGNORED, PAPER_FLOW, TYPICAL_TOKENS
from bttlab.model.config import ModelConfig, Optimizer
from bttlab.model.module import ModuleConfig
from bttlab.util.collection import without_collection

if TYPE_CHECKING:
    from bttlab.compiler.module import ModuleModel

LANES = M.LANES
Choice = tuple[Flow, int]  # a flow, and a window of the bank search
NO_OFFSETS = (0,) * M.OFFSET_TABLES
CANDIDATES = ("bidirectional", "mixed", (2, 2))  # of flow "auto"; other merges were never the fastest of those tried
WINDOWS = (10500, 12500, 14000)  # of bank searches that "auto" tries, too: programs differ by one or two per cent
# "auto" compares bounds, then drafts, then programs; those that are at most NEAR times the least go on. Flows by the
# bounds of a model with one encoder, the rest by drafts before the search for an order, and after a short one of
# DRAFT_EFFORT instructions (`order.EFFORT`). Windows by drafts before the search: the given one, unless others are
# faster by more than BETTER, and at most MOST_WINDOWS in all. The search makes a draft shorter by 0 to 7 %, and which
# window is the fastest depends on it; of 20 models tried none takes more than 0.5 % more cycles for what is left out.
NEAR_BOUND, NEAR_FLOW, DRAFT_EFFORT = 1.05, 1.04, 2000
NEAR_WINDOW, BETTER, MOST_WINDOWS = 1.0125, 0.0025, 3
# Length of the sample for which the order is optimized: ATIS's median, [CLS] included, as half of the samples are no
# longer. Costs are of the mean, TYPICAL_TOKENS, since they add up.
ORDER_TOKENS = 11
PROGRAMS = 32  # size of the cache in memory: a sweep uses its models several times
STORED = ("limits", "transfer_vectors", "regions", "has_order", "sums")  # in the cache on disk as they are


class Limits(NamedTuple):
    """Largest sizes of a sample.

    Attributes
    ----------
    sequence_length : int
        Tokens.
    intents, slots : int
        Numbers of labels.
    """

    sequence_length: int
    intents: int = 1
    slots: int = 1


class Range(NamedTuple):
    """Vectors of a bank that LOAD or STORE moves.

    Attributes
    ----------
    bank : int
        Number of the bank.
    base : int
        The first vector.
    vectors : int
        Number of vectors.
    name : str
        What they are, for labels.
    """

    bank: int
    base: int
    vectors: int
    name: str = ""


@dataclass(frozen=True, eq=False)
class Program:
    """A program for the processor; it does not change.

    Attributes
    ----------
    tables : Tables
        Functions and permutations that its instructions use.
    limits : Limits
        Largest sizes of a sample.
    forward, backward, flush, load, store, clear : list of Instruction
        Its sections (docs/processor.md).
    transfer_vectors : int
        Vectors of LOAD and of STORE.
    """

    tables: Tables
    limits: Limits
    forward: list[Instruction]
    backward: list[Instruction]
    flush: list[Instruction]
    load: list[Instruction]
    store: list[Instruction]
    clear: list[Instruction]
    transfer_vectors: int

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

    @property
    def token_vectors(self) -> int:
        """Vectors of each token in a sample's record; 0 if the table of tokens is on chip."""
        return 0

    @property
    def has_sums(self) -> bool:
        """Whether gradients are summed over samples, until FLUSH."""
        return False

    @functools.cached_property
    def image(self) -> np.ndarray:
        """The program as LOAD_PROGRAM reads it, int32 of shape (vectors, 16).

        Raise `ProgramError` if it needs more registers or constants than the machine has.
        """
        image = packed(self.sections, self.tables, self.limits, self.offset_span, self.token_vectors, self.has_sums)
        image.flags.writeable = False
        return image

    @functools.cached_property
    def sha256(self) -> str:
        """Digest of the image."""
        return hashlib.sha256(self.image.tobytes()).hexdigest()

    @functools.cached_property
    def most_cycles(self) -> int:
        """Modelled cycles of a sample of the greatest length, for the time limit of a kernel."""
        tokens = np.array([M.SEQUENCE])
        return sum(int(time_program(part, tokens, True).cycles[0]) for part in (self.sample, self.flush) if part)


@dataclass(frozen=True, eq=False)
class ModelProgram(Program):
    """The program that trains a model.

    Attributes
    ----------
    config : ModelConfig or ModuleConfig
        The model that was compiled.
    layout : Layout
        Its parameters in the banks.
    token_table : TokenTable
        The embedding's table; samples come with its token offsets.
    regions : tuple of Region
        Vectors of the banks with one purpose, not those of temporaries.
    flow : str, tuple of int or Order
        Order of contraction; the one that was chosen if it was to be "auto".
    window : int
        Of the bank search; the one that was chosen if the flow was to be "auto".
    has_order : bool
        Whether a layer has an order of contraction.
    sums : bool
        Whether gradients are summed over samples: FLUSH then ends each update.
    why_no_sums : str
        Why it does not sum the gradients of an update of several samples; empty if it does, or need not.
    clock_mhz : int
        Clock of the machine that it is for, in MHz.
    """

    config: "ModelConfig | ModuleConfig"
    layout: Layout
    token_table: TokenTable
    regions: tuple[Region, ...]
    flow: Flow
    window: int
    has_order: bool
    sums: bool
    why_no_sums: str = ""
    clock_mhz: int = M.CLOCK_MHZ

    @functools.cached_property
    def image(self) -> np.ndarray:
        """As of `Program`, with the digest of the machine that it is for."""
        with targeting(machine_of(self.clock_mhz)):
            return super().image

    @functools.cached_property
    def most_cycles(self) -> int:
        """As of `Program`, on the machine that it is for."""
        with targeting(machine_of(self.clock_mhz)):
            return super().most_cycles

    @property
    def offset_span(self) -> tuple[int, ...]:
        """Largest token offset of each table, in vectors."""
        return self.token_table.offset_span

    @property
    def token_vectors(self) -> int:
        """Vectors of each token in a sample's record; 0 if the table of tokens is on chip."""
        return self.layout.token_vectors

    @property
    def has_sums(self) -> bool:
        """Whether gradients are summed over samples, until FLUSH."""
        return self.sums

    def has_space_for(self, optimizer: Optimizer) -> bool:
        return self.layout.has_moments or not optimizer.moments

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Check that the banks have space for an optimizer's state.

        Raise `ProgramError` if they do not; the message names the bank.
        """
        if not self.has_space_for(optimizer):
            bank, vectors = MOMENTS[0], self.layout.vectors
            graph = getattr(self.config, "graph", None) or graph_of_config(self.config)
            fits = what_fits(graph, self.flow, self.sums, M.banks[bank].depth)
            raise DoesNotFit(
                f"the moments of {optimizer.name} take {vectors} vectors of bank {bank}, which has "
                f"{M.banks[bank].depth}",
                with_space(f"sgd, or {SMALLER_MODEL}", fits),
            )

    @property
    def program(self) -> "ModelProgram":
        """The program itself, as in version 0.2, where an image had a program."""
        warnings.warn("a program has an image itself: leave out .program", FutureWarning, stacklevel=2)
        return self


@dataclass(frozen=True)
class Options:
    """How a model is compiled.

    Parameters
    ----------
    flow : {"bidirectional", "right_to_left", "mixed", "auto"}, tuple of int, or Order
        "bidirectional" is the paper's. "mixed" merges all cores of an end in the forward pass, and two of the input's
        in the backward pass. "auto" is the fastest (modelled) of `CANDIDATES`. Two numbers are those of the cores to
        merge at each end; an order is that of the contraction of every linear layer.
    optimizer : Optimizer, optional
        What the program is to train by. An update of several samples takes a program that sums gradients if the banks
        have space for the sums. AdamW takes none, since it squares the gradient of each sample.
    lengths : mapping of int to int, optional
        Number of samples of each length in tokens that "auto" is to suit; by default one of 13 tokens.
    sums : bool, optional
        Whether gradients of merged cores are summed over the samples of an update, and the gradients of the cores
        follow from the sums once per update, in FLUSH; by default as the optimizer asks.
    window : int
        Of the bank search (`banks.Assignment`); "auto" tries several.
    clock_mhz : int
        Clock of the machine in MHz, one of `bttlab.compiler.machine.CLOCKS`; the overlay takes programs for 200 MHz.
    """

    flow: Flow = PAPER_FLOW
    optimizer: Optimizer | None = None
    lengths: Mapping[int, int] | None = None
    sums: bool | None = None
    window: int = WINDOW
    clock_mhz: int = M.CLOCK_MHZ


def compile(model: "ModelConfig | ModuleModel", options: Options | None = None) -> ModelProgram:
    """Return the program that trains a model, from a cache of the last ones in memory or, of a configuration, on disk.

    Parameters
    ----------
    model : ModelConfig or ModuleModel
        A configuration, or what `bttlab.trace` returns for a PyTorch module.
    options : Options, optional
        By default those of `Options()`.

    Returns
    -------
    ModelProgram
        The program, and the places of the model's parameters in the banks.

    Raises
    ------
    ProgramError
        If the model does not fit the machine; the message names the bank. If the module has changed since its trace.
    """
    options = options or Options()
    if isinstance(model, ModuleConfig):
        model.check_unchanged()
    with targeting(machine_of(options.clock_mhz)):
        return _of_options(model, options)


def _of_options(model: "ModelConfig | ModuleModel", options: Options) -> ModelProgram:
    optimizer, why = options.optimizer, ""
    if options.sums is not None:
        return _of_flow(model, options, options.sums)
    if optimizer is not None and optimizer.batch_size > 1:
        if not optimizer.sums_gradients:
            why = "AdamW squares the gradient of each sample"
        else:
            try:
                program = _of_flow(model, options, True)
                if program.sums:
                    return program
                why = "no gradient follows from sums in this order of contraction"
            except ProgramError as error:
                why = f"the sums of gradients do not fit: {error}"
    return _of_flow(model, options, False, why)


def _of_flow(model: "ModelConfig | ModuleModel", options: Options, sums: bool, why_no_sums: str = "") -> ModelProgram:
    """Return the program of a flow; for "auto" of the one that `_fastest` chooses."""

    def compiled(flow: Flow, window: int) -> ModelProgram:
        found = _compiled(model, flow, window, sums, why_no_sums, options.clock_mhz)
        if isinstance(found, ProgramError):
            raise found.with_traceback(None)
        return found

    def kept(flow: Flow, window: int) -> ModelProgram:
        with without_collection():
            _keep(model, flow, window, sums)
            for cache in (_draft, _lowerings):  # nobody else asks for these; a collection would visit all objects
                cache.cache_clear()
        return compiled(flow, window)

    if options.flow != "auto":
        return kept(options.flow, options.window)
    batch_size = options.optimizer.batch_size if options.optimizer is not None else 1
    lengths = tuple(sorted((options.lengths or {}).items()))
    key = _key(model, "auto", options.window, sums, [CANDIDATES, WINDOWS, batch_size, lengths])
    if (entry := read_entry(key)) is not None:
        return kept(CANDIDATES[entry[0]["candidate"]], entry[0]["window"])
    with without_collection():
        flow, window = _fastest(model, options.window, sums, batch_size, lengths, options.clock_mhz)
        write_entry(key, {"candidate": CANDIDATES.index(flow), "window": window})
        return kept(flow, window)


@functools.lru_cache(PROGRAMS)
def _fastest(
    model: "ModelConfig | ModuleModel",
    window: int,
    sums: bool,
    batch_size: int,
    lengths: tuple[tuple[int, int], ...],
    clock_mhz: int,
) -> Choice:
    """Return the flow and the window of the bank search whose program has the least modelled time.

    The search for an order of instructions takes much of the time of a compilation. Bounds and drafts leave few
    programs to compare: first `CANDIDATES` with one window, then the fastest flow with each of `WINDOWS`.

    `lengths`: pairs of a length and the number of samples that have it; none is one sample of `TYPICAL_TOKENS`.
    """
    counts = dict(lengths) or {min(TYPICAL_TOKENS, model.sequence_length): 1}
    tokens, samples = np.array(list(counts)), np.array(list(counts.values()))

    def cycles_of(sample: list[Instruction], flush: list[Instruction]) -> float:
        if len(counts) == 1:  # a number takes less time than an array of one
            cycles = int(time_program(sample, int(tokens[0])).cycles) * int(samples[0])
        else:
            cycles = int(time_program(sample, tokens).cycles @ samples)
        return cycles + (int(time_program(flush, 1).cycles) if flush else 0) * int(samples.sum()) / batch_size

    known: dict[tuple[Choice, int | None], float] = {}

    def drafts(choices: Iterable[Choice], effort: int | None) -> dict[Choice, float]:
        """Return the cycles of the choices' drafts, with a search of `effort`, but of those that have none."""
        cycles = {}
        for choice in choices:
            try:
                if (choice, effort) not in known:
                    known[choice, effort] = cycles_of(*_draft(model, *choice, sums, clock_mhz).ordered(effort))
                cycles[choice] = known[choice, effort]
            except ProgramError:  # this flow does not fit, or this search finds no banks
                continue
        return cycles

    mean = int(tokens @ samples) // int(samples.sum())
    candidates = [flow for flow in CANDIDATES if _least_count(model, flow, sums) <= M.PROGRAM_DEPTH]
    bounds = {flow: _bound(model, flow, sums, mean, batch_size) for flow in candidates}
    if not candidates or None in bounds.values():
        return CANDIDATES[0], window
    near = _nearest(bounds, NEAR_BOUND)
    windows: list[Choice] = []
    for tried in (near, [flow for flow in candidates if flow not in near]):
        flows = [(flow, window) for flow in tried]
        for effort, margin in ((0, NEAR_FLOW), (DRAFT_EFFORT, 1.0)):
            if len(flows) > 1:
                flows = _nearest(drafts(flows, effort), margin)
        if flows:
            flow, _ = flows[0]
            cycles = drafts(((flow, each) for each in (window, *WINDOWS)), 0)
            if (flow, window) in cycles:
                cycles[flow, window] *= 1 - BETTER
            windows = sorted(_nearest(cycles, NEAR_WINDOW), key=cycles.__getitem__)[:MOST_WINDOWS]
        if windows:
            break
    else:
        return CANDIDATES[0], window  # its error says why
    # A draft that becomes no program takes too many registers. Those of other flows may take fewer.
    for choices in (windows, [(each, window) for each in CANDIDATES]):
        cycles = drafts(choices, None) if len(choices) > 1 else dict.fromkeys(choices, 0.0)
        for choice in sorted(cycles, key=cycles.__getitem__):
            if isinstance(_compiled(model, *choice, sums, "", clock_mhz), ModelProgram):
                return choice
    return CANDIDATES[0], window


def _nearest(cycles: Mapping[Any, float], near: float) -> list:
    """Return the keys whose cycles are at most `near` times the least."""
    return [key for key in cycles if cycles[key] <= near * min(cycles.values())]


def _bound(model: "ModelConfig | ModuleModel", flow: Flow, sums: bool, tokens: int, batch_size: int) -> float | None:
    """Return cycles that no program of a flow is below, of the model with one encoder if it has several alike.

    They are infinite if the flow has no program; None if there is no order of contraction to choose.
    """
    try:
        lowered = _lowerings(_with_one_encoder(model), flow, sums).unplaced()
    except ProgramError:
        return math.inf
    if lowered.order is None:
        return None
    span = lowered.embedding.token_table.offset_span
    cycles = bound([lowered.forward, lowered.backward], span, tokens)
    return cycles + bound([lowered.collect], span, 1) / batch_size


def _least_count(model: "ModelConfig | ModuleModel", flow: Flow, sums: bool) -> int:
    """Return a number of instructions that no program of a flow is below; 0 if encoders are not alike."""
    one = _with_one_encoder(model)
    if one is model:
        return 0
    try:
        return _lowerings(one, flow, sums).unplaced().least_count("encoders.0.", model.encoders)
    except ProgramError:
        return 0


def _with_one_encoder(model: "ModelConfig | ModuleModel") -> "ModelConfig | ModuleModel":
    """Return the model with one encoder if it has several alike, or the model itself."""
    several_alike = isinstance(model, ModelConfig) and not model.ranks and model.encoders > 1
    return replace(model, encoders=1) if several_alike else model


@functools.lru_cache(len(CANDIDATES) + len(WINDOWS))
def _draft(model: "ModelConfig | ModuleModel", flow: Flow, window: int, sums: bool, clock_mhz: int) -> "_Draft":
    """Return a draft for `target()`, whose clock is `clock_mhz`: the cache knows it by that."""
    return _Draft(_emitted(model, flow, window, sums))


@functools.lru_cache(PROGRAMS)
def _compiled(
    model: "ModelConfig | ModuleModel", flow: Flow, window: int, sums: bool, why_no_sums: str, clock_mhz: int
) -> ModelProgram | ProgramError:
    """Return the program of a flow and a window, with its image, or the error why there is none."""
    if why_no_sums:
        found = _compiled(model, flow, window, sums, "", clock_mhz)
        return found if isinstance(found, ProgramError) else replace(found, why_no_sums=why_no_sums)
    if (stored := _stored(model, flow, window, sums)) is not None:
        return stored
    try:
        with without_collection():
            program = _draft(model, flow, window, sums, clock_mhz).scheduled()
            _ = program.image  # it may need too many registers
    except ProgramError as error:
        return ProgramError(str(error))  # without its traceback, which has the compiler's objects
    return program


def _key(model, flow: Flow, window: int, sums: bool, *choices: Any) -> str | None:
    """Return the name of a program in the cache on disk; None for a traced module, which only its code describes."""
    return (
        key_of(model.to_dict(), flow, window, sums, target().CLOCK_MHZ, *choices)
        if isinstance(model, ModelConfig)
        else None
    )


def _keep(model, flow: Flow, window: int, sums: bool) -> None:
    """Write a program, or the error why there is none, to the cache on disk."""
    found = _compiled(model, flow, window, sums, "", target().CLOCK_MHZ)
    key = _key(model, flow, window, sums)
    if isinstance(found, ProgramError):
        write_entry(key, {"error": str(found)})
    elif key is not None and (layout := encoded_layout(found.layout)) is not None:
        values = {name: getattr(found, name) for name in STORED}
        values |= {"layout": layout, "token_table": astuple(found.token_table)}
        values["sections"] = [encoded(section) for section in found.sections]
        write_entry(key, values, found.image.tobytes())


def _stored(model, flow: Flow, window: int, sums: bool) -> ModelProgram | ProgramError | None:
    """Return what `_keep` wrote; None if there is nothing."""
    entry = read_entry(_key(model, flow, window, sums))
    if entry is None:
        return None
    values = entry[0]
    if "error" in values:
        return ProgramError(values["error"])
    image = np.frombuffer(entry[1], np.int32).reshape(-1, LANES)  # read-only
    sections = [decoded(section) for section in values["sections"]]
    limits, regions = Limits(*values["limits"]), tuple(Region(*region) for region in values["regions"])
    token_table, layout = TokenTable(*map(tuple, values["token_table"])), decoded_layout(values["layout"])
    rest = flow, window, values["has_order"], values["sums"]
    parts = tables_of_image(image), limits, *sections, values["transfer_vectors"]
    program = ModelProgram(*parts, model, layout, token_table, regions, *rest, clock_mhz=target().CLOCK_MHZ)
    vars(program)["image"] = image
    return program


@functools.lru_cache(len(CANDIDATES))
def _lowerings(model: "ModelConfig | ModuleModel", flow: Flow, sums: bool) -> Lowerings:
    graph = graph_of_config(model) if isinstance(model, ModelConfig) else getattr(model, "graph", None)
    if not isinstance(graph, Graph):
        what = f"a ModelConfig or a traced module, not {type(model).__name__}"
        raise ProgramError(f"a program is that of {what}; trace(module, sequence_length) makes one of a PyTorch module")
    return Lowerings(graph, flow, sums)


def _emitted(model: "ModelConfig | ModuleModel", flow: Flow, window: int, sums: bool) -> ModelProgram:
    """Return a model's program before scheduling: in the order of the mathematics, without waits."""
    lowered = _lowerings(model, flow, sums).lower(ORDER_TOKENS, window)
    updates, clears = lowered.emit_updates(), lowered.emit_clears()  # sections are copied when they are ordered
    flush, forward = [*lowered.collect, *updates, *clears], [*updates, *lowered.forward]
    if lowered.collect:  # a sample that does not end its update changes no parameter
        forward = [*lowered.emit_updates(is_early=False), *lowered.forward, *lowered.emit_updates(is_early=True)]
    clear, ranges, layout = [*_clears(lowered), *clears], _ranges(lowered), lowered.layout.placed
    program = ModelProgram(
        tables_of(lowered.builder),
        Limits(model.sequence_length, model.intents, model.slots + (model.ignore_index == IGNORED)),
        forward,
        lowered.backward,
        flush,
        transfers(ranges, into=True),
        transfers(ranges, into=False),
        clear,
        sum(r.vectors for r in ranges),
        model,
        layout,
        lowered.embedding.token_table,
        tuple(lowered.regions()),
        flow,
        window,
        lowered.order is not None,
        bool(lowered.collect),
        clock_mhz=target().CLOCK_MHZ,
    )
    count, most = sum(map(len, program.sections)), M.PROGRAM_DEPTH
    if count > most:
        raise DoesNotFit(f"the program has {count} instructions, the machine takes {most}", "fewer encoders")
    return program


class _Draft:
    """A program before scheduling, and the search for the order of its instructions, which goes on where it stopped."""

    def __init__(self, emitted: ModelProgram):
        self.emitted, spans = emitted, emitted.offset_span
        self._sample = OrderSearch([emitted.forward, emitted.backward], spans, ORDER_TOKENS)
        self._flush = OrderSearch([emitted.flush], spans, ORDER_TOKENS) if emitted.sums else None

    def ordered(self, effort: int | None = None) -> tuple[list[Instruction], list[Instruction]]:
        """Return the instructions of a sample, and those of FLUSH if it has more than updates, in order.

        `effort`: of the search for the order (`OrderSearch.ordered`).
        """
        forward, backward = self._sample.ordered(effort)
        return forward + backward, self._flush.ordered(effort)[0] if self._flush else []

    def scheduled(self) -> ModelProgram:
        """Return the program with its instructions in an order that keeps units busy, and with their waits."""
        forward, backward = self._sample.ordered()
        flush = self._flush.ordered()[0] if self._flush else self._in_list_order(self.emitted.flush)
        clear = self._in_list_order(self.emitted.clear)
        return replace(self.emitted, forward=forward, backward=backward, flush=flush, clear=clear)

    def _in_list_order(self, instructions: list[Instruction]) -> list[Instruction]:
        instructions = [instruction.copy() for instruction in instructions]
        set_waits(instructions, data_waits(instructions, self.emitted.offset_span))
        return instructions


def tables_of(builder: Builder) -> Tables:
    """Return the tables that a builder's instructions use.

    Parameters
    ----------
    builder : Builder
        Of a program.

    Returns
    -------
    Tables
        Of functions and of permutations.
    """
    return Tables(builder.functions, builder.entry_in, builder.entry_out)


def _ranges(model: Lowering) -> list[Range]:
    """Return the transfers of parameters, and of first and second moments.

    If the banks have no space for the moments, nothing reads them: their transfers use wrapped addresses.
    """
    ranges: list[Range] = []
    for block in model.layout.blocks:
        bank, base, vectors, _ = ranges[-1] if ranges else Range(-1, 0, 0)
        if (block.bank, block.base) == (bank, base + vectors):  # adjacent blocks share a transfer
            ranges[-1] = Range(bank, base, vectors + block.vectors)
        else:
            ranges.append(Range(block.bank, block.base, block.vectors))
    return ranges + [Range(bank, 0, model.layout.finished.vectors) for bank in MOMENTS]


def transfers(ranges: Iterable[Range | Block], into: bool) -> list[Instruction]:
    """Return the instructions that move vectors between the banks and HBM.

    Parameters
    ----------
    ranges : iterable of Range or Block
        What is moved, in order.
    into : bool
        True for LOAD, which copies from IN_BANK; False for STORE, which copies to OUT_BANK.

    Returns
    -------
    list of Instruction
        Of the section.
    """
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


def compile_program(
    model: "ModelConfig | ModuleModel", flow: Flow = "bidirectional", sums: bool = False, window: int = WINDOW
) -> ModelProgram:
    """Return the program that trains a model: as `compile`, by its name in version 0.2.

    Parameters
    ----------
    model : ModelConfig or ModuleModel
        As for `compile`.
    flow, sums, window : optional
        As for `Options`.

    Returns
    -------
    ModelProgram
        As of `compile`.
    """
    warnings.warn("compile_program(model, flow) is now compile(model, Options(flow))", FutureWarning, stacklevel=2)
    return compile(model, Options(flow, sums=sums, window=window))
