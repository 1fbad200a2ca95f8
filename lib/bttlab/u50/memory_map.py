"""Every on-chip array of the kernel: its size, banks, ports, and the blocks it occupies.

The arrays, their sizes and bindings are those of `hls_src`: a test compiles the source and compares its static arrays
with this map, and the storage pragmas with the bindings. A word is LANES values of FP32, 512 bits.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

from bttlab.estimate.geometry import Blocks, blocks, capacity_bits
from bttlab.model.config import LINEARS, ModelConfig
from bttlab.u50.constants import modelled
from bttlab.u50.hardware import HardwareConfig
from bttlab.u50.records import LANES, ParameterMemory, unit_of_update, words_for

WORD_BITS = 32 * LANES
GROUPS = (
    "parameters",
    "gradients",
    "optimizer state",
    "merged cores",
    "activations",
    "scratch",
    "engine",
)
PORTS, WRITING_PORTS = 2, {"ram_2p": 1, "ram_t2p": 2}  # of a bank, of block RAM and UltraRAM alike
BINDINGS = ("uram", "bram", "lutram", "registers")


@dataclass(frozen=True)
class Access:
    """What one pipelined loop asks of an array.

    Attributes
    ----------
    loop : str
        As function: label.
    reads, writes : int
        Words an iteration, of the bank that it asks most of.
    interval : int
        Cycles between two iterations (II).
    """

    loop: str
    reads: int
    writes: int
    interval: int = 1


@dataclass(frozen=True)
class OnChipArray:
    """An array that lives on the FPGA.

    Attributes
    ----------
    name : str
        As in the source; static arrays of a function as function::array.
    group : str
        One of `GROUPS`.
    words : int
        Elements, each `width` bits.
    width : int
        Bits of an element.
    banks : int
        Memories it is partitioned into; each rounds up to whole blocks.
    binding : {"uram", "bram", "lutram", "registers"}
    accesses : tuple of Access
        Of the loops that ask most of it.
    kind : {"ram_2p", "ram_t2p"}
        What its two ports may do: one read and the other read or write, or each read or write.
    static : bool
        Whether it is a static array of the source, which the compiler lays out in memory; the rest are locals that
        become registers or LUT RAM.
    """

    name: str
    group: str
    words: int
    width: int
    banks: int
    binding: str
    accesses: tuple[Access, ...] = ()
    kind: str = "ram_2p"
    static: bool = True

    @property
    def bytes(self) -> int:
        """Size of its contents."""
        return self.words * self.width // 8

    @property
    def blocks(self) -> Blocks:
        """What its banks take."""
        return blocks(self.binding, self.width, ceil(self.words / self.banks)).times(self.banks)

    @property
    def filled(self) -> float:
        """Part of its BRAM or UltraRAM that its contents fill; 1 for those in LUTs and registers."""
        capacity = capacity_bits(self.blocks)
        return self.words * self.width / capacity if capacity else 1.0

    @property
    def overload(self) -> Access | None:
        """The access that asks for more words a cycle than its ports can give, if there is one."""
        for access in self.accesses:
            writing = WRITING_PORTS[self.kind] * access.interval
            if access.writes > writing or access.reads + access.writes > PORTS * access.interval:
                return access
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return what --json prints."""
        own = ("name", "group", "words", "width", "banks", "kind", "binding", "bytes", "filled")
        return {name: getattr(self, name) for name in own} | asdict(self.blocks) | modelled("blocks")


def memory_map(model: ModelConfig, hardware: HardwareConfig) -> list[OnChipArray]:
    """Return every on-chip array of the kernel built for a model.

    Parameters
    ----------
    model : ModelConfig
        In tensor format with three modes at each end.
    hardware : HardwareConfig
    """
    return [*_state(model), *_kept(model, hardware), *_scratch(model), *_engine(model, hardware)]


# What the loops ask of a memory. Two engines side by side may read the same one (tt_linear.h, attention.h); each engine
# reads its operands from, and writes its result to, memories of their own.
_ENGINE = Access("engine: Steps_Pipeline", 1, 1)
_ENGINES = Access("engine: Steps_Pipeline", 2, 0)
_UPDATE = (Access("update_words: Adamw_Pipeline", 1, 1), Access("is_beyond: Beyond_Pipeline", 2, 0))


def _state(model: ModelConfig) -> list[OnChipArray]:
    """Parameters and what training keeps of them. The same cores of all layers share a memory: one fills no block."""
    scale = Access("layer_norm_forward: Scale_Pipeline", 2, 0)  # scale and shift of a feature
    norm = Access("layer_norm_backward: Parameters_Pipeline", 2, 2, interval=2)  # their gradients
    found, moments = [], Counter()
    for member, words in ParameterMemory(model).memories.items():
        moments[unit_of_update(member)] += words
        # From five encoders on UltraRAM alone would be too full; block RAM has room.
        small = member in ("word_1", "word_3")
        binding = "bram" if small or (member == "word_2" and model.encoders > 4) else "uram"
        for name in ("parameters", "gradients"):
            two_ports = name == "parameters" and not small
            accesses = [*_UPDATE, _ENGINE]
            if two_ports:
                accesses.append(_ENGINES)
            if member == "rest":
                accesses.append(scale if name == "parameters" else norm)
            kind = "ram_t2p" if two_ports else "ram_2p"
            found.append(OnChipArray(f"{name}.{member}", name, words, WORD_BITS, 1, binding, tuple(accesses), kind))
    for name in ("first_moment", "second_moment"):
        for unit, words in moments.items():
            found.append(OnChipArray(f"{name}.{unit}", "optimizer state", words, WORD_BITS, 1, "uram", _UPDATE))
    return [*found, OnChipArray("step_count", "optimizer state", 1, 32, 1, "registers")]


def _kept(model: ModelConfig, hardware: HardwareConfig) -> list[OnChipArray]:
    """What the forward pass keeps for the backward pass."""
    n, encoders = _Shape(model), model.encoders
    merged_slots = min(n.linears, hardware.merged_layers)
    one, both = _ENGINE, _ENGINES

    def merged(name: str, words: int, binding: str, kind: str = "ram_2p") -> OnChipArray:
        accesses = (one, both) if kind == "ram_t2p" else (one,)
        return OnChipArray(name, "merged cores", words, WORD_BITS, 1, binding, accesses, kind)

    def activation(name: str, words: int, binding: str, kind: str = "ram_2p", banks: int = 1) -> OnChipArray:
        accesses = (one, both) if kind == "ram_t2p" else (one,)
        return OnChipArray(name, "activations", words, WORD_BITS, banks, binding, accesses, kind)

    def scalars(name: str, values: int) -> OnChipArray:
        return OnChipArray(name, "activations", values, 32, 1, "bram")

    gelu = Access("gelu_forward: Gelu_Pipeline", 0, 2, hardware.lanes // hardware.function_lanes)
    norms = Access("layer_norm_backward: Parameters_Pipeline", 2, 0, 2)  # this one's and that of an earlier one
    feed_forward = activation("feed_forward_kept", 4 * encoders * n.matrix, "uram", "ram_t2p")
    return [
        merged("merged_out", merged_slots * n.rank * n.hidden, "uram"),
        merged("merged_in", merged_slots * n.rank * n.hidden, "uram"),
        merged("tail_out", merged_slots * n.rank * n.out_tail, "bram"),
        merged("tail_in", merged_slots * n.rank * n.in_tail, "bram"),
        merged("bottleneck", n.linears * n.tokens * words_for(n.rank), "bram", "ram_t2p"),
        activation("attention_kept", 4 * encoders * n.matrix, "uram", "ram_t2p"),
        replace(feed_forward, accesses=(*feed_forward.accesses, gelu, norms)),
        activation("attention", encoders * model.heads * n.tokens * n.sequence, "bram", "ram_t2p"),
        activation("embedding_tail", 2 * ((n.tokens + 1) // 2) * n.embedding_tail, "uram", "ram_t2p", banks=2),
        activation("embedding_normalized", n.matrix, "bram"),
        activation("pooled_intent", n.hidden, "bram"),
        activation("pooled_slots", n.matrix, "bram"),
        activation("intent_logits", words_for(model.intents), "bram"),
        activation("slot_logits", n.tokens * words_for(model.slots), "bram"),
        scalars("embedding_inverse_std", n.tokens),
        scalars("attention_inverse_std", encoders * n.tokens),
        scalars("feed_forward_inverse_std", encoders * n.tokens),
    ]


def _scratch(model: ModelConfig) -> list[OnChipArray]:
    """Intermediate results of one layer, overwritten by the next."""
    n = _Shape(model)

    def scratch(name: str, words: int) -> OnChipArray:
        return OnChipArray(name, "scratch", words, WORD_BITS, 1, "bram", (_ENGINE, _ENGINES))

    largest = Access("softmax: Maximum_Pipeline", 1, 1, 4)
    rows_in_turn = Access("scores_backward: Rows_Pipeline", n.sequence, n.sequence, n.sequence)

    def facts(function: str) -> OnChipArray:
        rows = max(model.heads * n.tokens, n.tokens)  # maximum, argument and sum of a row
        return OnChipArray(f"{function}::facts", "scratch", rows, 96, 1, "bram", (largest,))

    # Two instances, one for each direction; a row is written while the one before is read.
    turn = Access("turn_banked: Words_Pipeline", 1, 1)
    turned = OnChipArray("turn_banked::buffer", "scratch", 4 * model.hidden_size, 32, 4 * LANES, "lutram", (turn,))

    def norm(name: str) -> OnChipArray:
        sums = Access("layer_norm_forward: Mean_Pipeline", 1, 1)
        return OnChipArray(name, "scratch", n.tokens, WORD_BITS, 1, "lutram", (sums,), static=False)

    scores = scratch("attention_backward::d_scores", model.heads * n.tokens * n.sequence)
    cores = n.rank * n.hidden
    # One instance of the merging functions an end: the first engine has the input's, the second the output's.
    halves = (model.linear_out_modes[::-1], model.linear_in_modes)
    c1, c2, c3 = model.embedding_column_modes
    return [
        *(scratch(f"encoder_backward::{name}", n.matrix) for name in ("d_inner", "d_sum")),
        *(scratch(f"encoder_backward::{name}", n.matrix) for name in ("d_queries", "d_keys", "d_values")),
        *(scratch(name, n.matrix) for name in ("hidden", "attended", "inner")),
        scratch("backward::d_hidden", n.matrix),
        scratch("head_backward::d_pooled", n.matrix),
        scratch("word_row::padded", c1 * c2 * words_for(c3)),
        scratch("word_backward::d_tail", n.embedding_tail),
        replace(scores, accesses=(*scores.accesses, rows_in_turn)),
        scratch("reversed", cores),
        scratch("tt_linear_backward::d_z", n.tokens * words_for(n.rank)),
        *(scratch(f"tt_linear_backward::{name}", cores) for name in ("d_merged_out", "d_merged_in", "d_reversed")),
        scratch("merge_forward::padded", sum(n.rank * m * words_for(f) for _, m, f in halves)),
        scratch("merge_backward::d_padded", sum(n.rank * m * words_for(f) for _, m, f in halves)),
        scratch("merge_backward::d_tail", sum(n.rank * (m * f // LANES) for _, m, f in halves)),
        *map(facts, ("attention_forward", "loss_forward")),
        turned,
        *(norm(f"layer_norm_forward::{name}") for name in ("sum", "mean")),
        *(norm(f"layer_norm_backward::{name}") for name in ("sum", "projection", "mean", "slope")),
    ]


def _engine(model: ModelConfig, hardware: HardwareConfig) -> list[OnChipArray]:
    """What the engines hold beside their lanes, in LUT RAM: a bank for each row, twice, as tiles overlap."""
    n, rows, engines = _Shape(model), hardware.engine_rows, hardware.engines

    def held(name: str, words: int, binding: str = "lutram", sides: int = 2, static: bool = True) -> OnChipArray:
        banks = engines * sides * rows
        return OnChipArray(
            f"engine::{name}", "engine", banks * words, WORD_BITS, banks, binding, (_ENGINE,), static=static
        )

    folded = OnChipArray(
        *("engine::folded", "engine", engines * rows * hardware.engine_chunk, WORD_BITS, engines, "lutram", (_ENGINE,)),
        static=False,
    )
    return [
        held("held_rows", hardware.engine_chunk),
        held("sums", hardware.engine_slots),
        held("scalar_rows", max(-(-n.tokens // rows), 3) * words_for(n.depth)),
        folded,
        held("lines", 1, "registers", sides=1, static=False),
        held("full_lines", 2, sides=1, static=False),
    ]


def total_blocks(arrays: Iterable[OnChipArray]) -> Blocks:
    """Return what arrays take together."""
    return sum((array.blocks for array in arrays), Blocks())


def by_group(arrays: Iterable[OnChipArray]) -> dict[str, Blocks]:
    """Return what each group takes, in the order of `GROUPS`."""
    arrays = list(arrays)
    return {group: total_blocks(array for array in arrays if array.group == group) for group in GROUPS}


def by_binding(arrays: Iterable[OnChipArray]) -> dict[str, dict[str, float]]:
    """Return bytes, blocks and the filled part of them for each kind of memory."""
    table = {}
    arrays = list(arrays)
    for binding in BINDINGS:
        chosen = [array for array in arrays if array.binding == binding]
        found, size = total_blocks(chosen), sum(array.bytes for array in chosen)
        capacity = capacity_bits(found) / 8
        count = {"uram": found.uram, "bram": found.bram36, "lutram": found.lookup_tables, "registers": found.flip_flops}
        table[binding] = {"bytes": size, "blocks": count[binding], "filled": size / capacity if capacity else 1.0}
    return table


class _Shape:
    """The sizes of shape.h and memory.h, in words where nothing else is said."""

    def __init__(self, model: ModelConfig) -> None:
        c1, c2, _ = model.embedding_column_modes
        self.tokens, self.sequence = model.sequence_length, words_for(model.sequence_length)
        self.hidden, self.rank = words_for(model.hidden_size), model.linear_rank
        self.matrix = self.tokens * self.hidden
        self.linears = len(LINEARS) * model.encoders + 2
        (o1, o2, o3), (i1, i2, i3) = model.linear_out_modes, model.linear_in_modes
        self.out_tail, self.in_tail = o2 * o1 // LANES, i2 * i3 // LANES
        self.embedding_tail = c1 * c2 * words_for(model.embedding_rank)
        self.depth = max(  # MAX_DEPTH, in values
            *(self.tokens, model.embedding_rank, model.intents, model.slots, c1 * c2),
            self.rank * max(i1, i2, o2, o3),
        )
