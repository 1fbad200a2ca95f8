"""Every on-chip array of the kernel: its size, banks, ports, and the blocks it occupies.

The arrays, their sizes and bindings are those of `hls_src`: a test compiles the source and compares its static arrays
with this map, and the storage pragmas with the bindings. A word is LANES values of FP32, 512 bits.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from bttlab.model.config import LINEARS, ModelConfig
from bttlab.u50.constants import modelled
from bttlab.u50.geometry import Blocks, blocks, capacity_bits
from bttlab.u50.hardware import HardwareConfig
from bttlab.u50.records import LANES, ParameterMemory, words_for

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
    ports : int
        Of each bank: 2, of which one writes (ram_2p); the other, or both, read.
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
    ports: int = 2
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
            if access.writes > access.interval or access.reads + access.writes > self.ports * access.interval:
                return access
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return what --json prints."""
        own = ("name", "group", "words", "width", "banks", "ports", "binding", "bytes", "filled")
        return {name: getattr(self, name) for name in own} | asdict(self.blocks) | modelled("blocks")


def memory_map(model: ModelConfig, hardware: HardwareConfig) -> list[OnChipArray]:
    """Return every on-chip array of the kernel built for a model.

    Parameters
    ----------
    model : ModelConfig
        In tensor format with three modes at each end.
    hardware : HardwareConfig
    """
    return [*_state(model, hardware), *_kept(model), *_scratch(model), *_engine(model, hardware)]


def _state(model: ModelConfig, hardware: HardwareConfig) -> list[OnChipArray]:
    """Parameters and what training keeps of them: a memory each for all tensors together, as a core fills no block."""
    words = ParameterMemory(model).words
    update = Access("update: Adamw_Pipeline", 1, 1)
    scale = Access("layer_norm_forward: Scale_Pipeline", 2, 0)  # scale and shift
    norm = Access("layer_norm_backward: Sums_Pipeline", 2, 2, hardware.accumulate)
    return [
        OnChipArray("parameters", "parameters", words, WORD_BITS, 1, "uram", (update, scale)),
        OnChipArray("gradients", "gradients", words, WORD_BITS, 1, "uram", (norm,)),
        OnChipArray("first_moment", "optimizer state", words, WORD_BITS, 1, "uram", (update,)),
        OnChipArray("second_moment", "optimizer state", words, WORD_BITS, 1, "uram", (update,)),
        OnChipArray("step_count", "optimizer state", 1, 32, 1, "registers"),
    ]


def _kept(model: ModelConfig) -> list[OnChipArray]:
    """What the forward pass keeps for the backward pass."""
    n, encoders = _Shape(model), model.encoders
    read, write = Access("contract_outer: Words_Pipeline", 1, 0), Access("contract_outer: Store_Pipeline", 0, 1)

    def merged(name: str, words: int, binding: str) -> OnChipArray:
        return OnChipArray(name, "merged cores", n.linears * words, WORD_BITS, 1, binding, (read, write))

    def activation(name: str, words: int, binding: str = "uram") -> OnChipArray:
        return OnChipArray(name, "activations", words, WORD_BITS, 1, binding, (read, write))

    def scalars(name: str, values: int) -> OnChipArray:
        return OnChipArray(name, "activations", values, 32, 1, "bram")

    matrices = (
        *("queries", "keys", "values", "context", "attended", "attention_normalized"),
        *("first_out", "activated", "feed_forward_normalized"),
    )
    return [
        merged("merged_out", n.rank * n.hidden, "uram"),
        merged("merged_in", n.rank * n.hidden, "uram"),
        merged("tail_out", n.rank * n.out_tail, "bram"),
        merged("tail_in", n.rank * n.in_tail, "bram"),
        merged("bottleneck", n.tokens * words_for(n.rank), "bram"),
        activation("hidden", (encoders + 1) * n.matrix),
        *(activation(name, encoders * n.matrix) for name in matrices),
        activation("attention", encoders * model.heads * n.tokens * n.sequence, "bram"),
        activation("embedding_tail", n.tokens * n.embedding_tail),
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

    write = Access("contract_outer: Store_Pipeline", 0, 1)

    def scratch(name: str, words: int) -> OnChipArray:
        return OnChipArray(name, "scratch", words, WORD_BITS, 1, "bram", (write,))

    cores = n.rank * n.hidden
    halves = {model.linear_out_modes[::-1], model.linear_in_modes}  # the source is instantiated once for equal halves
    return [
        *(scratch(f"encoder_backward::{name}", n.matrix) for name in ("d_residual", "d_inner")),
        *(scratch(f"encoder_backward::{name}", n.matrix) for name in ("d_queries", "d_keys", "d_values")),
        scratch("backward::d_hidden", n.matrix),
        scratch("encoder_forward::residual", n.matrix),
        scratch("head_backward::d_pooled", n.matrix),
        scratch("embedding_forward::sum", n.matrix),
        scratch("embedding_forward::turned", n.embedding_turned),
        scratch("embedding_backward::d_tail", n.embedding_tail),
        scratch("attention_backward::d_p", n.tokens * n.sequence),
        scratch("tt_linear_forward::reversed", cores),
        scratch("tt_linear_backward::d_z", n.tokens * words_for(n.rank)),
        scratch("tt_linear_backward::d_merged", cores),
        scratch("tt_linear_backward::d_reversed", cores),
        scratch("merge_forward::padded", sum(n.rank * m * words_for(f) for _, m, f in halves)),
        scratch("merge_backward::d_padded", sum(n.rank * m * words_for(f) for _, m, f in halves)),
        scratch("merge_backward::d_tail", sum(n.rank * words_for(m * f) for _, m, f in halves)),
    ]


def _engine(model: ModelConfig, hardware: HardwareConfig) -> list[OnChipArray]:
    """The operands and results that the engine holds beside its lanes: a bank a row, read and written every cycle."""
    n, rows, slots = _Shape(model), hardware.engine_rows, hardware.engine_slots
    outer_stage, inner_stage = (
        Access("contract_outer: Stage_Pipeline", 0, 1),
        Access("contract_inner: Stage_Pipeline", 0, 1),
    )
    outer, inner = Access("contract_outer: Words_Pipeline", 1, 0), Access("contract_inner: Columns_Pipeline", 1, 0)
    outer_sum, inner_sum = (
        Access("contract_outer: Words_Pipeline", 1, 1),
        Access("contract_inner: Columns_Pipeline", 1, 1),
    )
    keep = Access("contract_inner: Keep_Pipeline", 0, 1)
    return [
        OnChipArray("contract_outer::staged", "engine", n.depth * rows, 32, rows, "bram", (outer_stage, outer)),
        OnChipArray("contract_inner::staged", "engine", n.hidden * rows, WORD_BITS, rows, "bram", (inner_stage, inner)),
        OnChipArray(
            "contract_outer::sum", "engine", slots * rows, WORD_BITS, rows, "lutram", (outer_sum,), static=False
        ),
        OnChipArray("contract_inner::sum", "engine", LANES * rows, WORD_BITS, rows, "lutram", (keep,), static=False),
        OnChipArray(
            "contract_inner::tile", "engine", slots * rows, WORD_BITS, rows, "lutram", (inner_sum,), static=False
        ),
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
        c1, c2, c3 = model.embedding_column_modes
        self.tokens, self.sequence = model.sequence_length, words_for(model.sequence_length)
        self.hidden, self.rank = words_for(model.hidden_size), model.linear_rank
        self.matrix = self.tokens * self.hidden
        self.linears = len(LINEARS) * model.encoders + 2
        (o1, o2, o3), (i1, i2, i3) = model.linear_out_modes, model.linear_in_modes
        self.out_tail, self.in_tail = o2 * o1 // LANES, i2 * i3 // LANES
        self.embedding_tail = c1 * c2 * words_for(model.embedding_rank)
        self.embedding_turned = c3 * c1 * c2 // LANES
        self.depth = max(  # MAX_DEPTH, in values
            *(self.tokens, model.embedding_rank, model.intents, model.slots, c1 * c2),
            self.rank * max(i1, i2, o2, o3),
        )
