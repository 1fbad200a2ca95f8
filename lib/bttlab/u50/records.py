"""What the training kernel reads and writes: parameters as words, sample records, results.

The same layouts stand in `hls_src/memory.h` (parameters) and `hls_src/samples.h` (records). A word is `LANES` values of
32 bits; rows of a matrix start at a word and are filled up with zeros.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from bttlab.model.config import LINEARS, ModelConfig

LANES = 16  # hls_src/config.h
MAX_SAMPLES = 1 << 16  # of one kernel call, hls_src/samples.h

DESCRIBE, LOAD, STORE, TRAIN, PREDICT, PROFILE = range(6)
OPTIMIZER_NUMBERS = {"sgd": 0, "momentum": 1, "adamw": 2}
STATUS = (
    "NOT_REACHED",
    "DONE",
    "BAD_LENGTH",
    "BAD_TOKEN",
    "BAD_INTENT",
    "BAD_SLOT",
    "BAD_LEARNING_RATE",
    "BAD_OPTIMIZER",
    "LOSS_NOT_FINITE",
    "STATE_NOT_FINITE",
    "GRADIENT_NOT_FINITE",
    "UPDATE_NOT_FINITE",
)

# What DESCRIBE writes, in order; PARAMETER_WORDS follows.
SHAPE_FIELDS = (
    ("encoders", 1),
    ("sequence_length", 1),
    ("hidden_size", 1),
    ("heads", 1),
    ("vocabulary_size", 1),
    ("intents", 1),
    ("slots", 1),
    ("linear_out_modes", 3),
    ("linear_in_modes", 3),
    ("linear_rank", 1),
    ("embedding_row_modes", 3),
    ("embedding_column_modes", 3),
    ("embedding_rank", 1),
)
DESCRIPTION_LENGTH = 2 * LANES

# What PROFILE writes: 64-bit counters, stage by stage (hls_src/cycles.h).
STAGES = ("FP", "BP", "PU", "IO")
UNITS = (
    *LINEARS,
    "pooler",
    "embedding",
    "attention",
    "norm",
    "gelu",
    "head",
    "loss",
    "update",
    "transfer",
)
PROFILE_LENGTH = -(-2 * len(STAGES) * len(UNITS) // LANES) * LANES


def words_for(elements: int) -> int:
    """Return how many words hold so many elements."""
    return -(-elements // LANES)


def sample_record(config: ModelConfig) -> np.dtype:
    """Return the record of a sample, a whole number of words."""
    tokens = words_for(config.sequence_length) * LANES
    return np.dtype(
        [
            ("tokens", "<i4"),
            ("intent", "<i4"),
            ("learning_rate", "<f4"),
            ("label_smoothing", "<f4"),
            ("unused", "<i4", LANES - 4),
            ("token_ids", "<i4", tokens),
            ("slots", "<i4", tokens),
        ]
    )


def result_record(config: ModelConfig) -> np.dtype:
    """Return the record of a sample's result, a whole number of words."""
    return np.dtype(
        [
            ("status", "<i4"),
            ("intent", "<i4"),
            ("loss", "<f4"),
            ("intent_loss", "<f4"),
            ("slot_loss", "<f4"),
            ("unused", "<i4", LANES - 5),
            ("slots", "<i4", words_for(config.sequence_length) * LANES),
        ]
    )


# The cores of a linear layer in the order of a half, and the order of each one's axes (hls_src/half.h). The output half
# is held end first, each core with its ranks swapped, the far core without.
OUT_CORES = {2: (2, 1, 0), 1: (2, 1, 0), 0: (2, 0, 1)}
IN_CORES = {3: (0, 1, 2), 4: (0, 1, 2), 5: (0, 2, 1)}


@dataclass(frozen=True)
class Block:
    """Where one parameter tensor lies in the kernel's parameter memory.

    Its axes are put in the order `axes`, then read as `rows` rows of `columns` elements, each row `row_words` words.
    """

    name: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    columns: int
    offset: int

    @property
    def words(self) -> int:
        """Size in words."""
        return int(np.prod(self.shape)) // self.columns * words_for(self.columns)

    def write(self, memory: np.ndarray, value: np.ndarray) -> None:
        """Put a tensor of `shape` into the parameter memory, shape (words, LANES)."""
        rows = np.ascontiguousarray(value.transpose(self.axes)).reshape(-1, self.columns)
        self._rows(memory)[:, : self.columns] = rows

    def read(self, memory: np.ndarray) -> np.ndarray:
        """Return a copy of the tensor, float32 of `shape`."""
        moved = tuple(self.shape[axis] for axis in self.axes)
        rows = self._rows(memory)[:, : self.columns].reshape(moved)
        return np.array(rows.transpose(np.argsort(self.axes)), order="C")

    def _rows(self, memory: np.ndarray) -> np.ndarray:
        return memory[self.offset : self.offset + self.words].reshape(-1, words_for(self.columns) * LANES)


def _tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield (name, order of the axes) in the order of hls_src/memory.h; the last axis lies along the lanes."""

    linears = [f"encoders.{i}.{part}" for i in range(config.encoders) for part in LINEARS]
    linears += ["intent_pooler", "slot_pooler"]
    norms = [f"encoders.{i}.{part}_norm" for i in range(config.encoders) for part in ("attention", "feed_forward")]
    for half in (OUT_CORES, IN_CORES):
        for name in linears:
            for number, axes in half.items():
                yield f"{name}.cores.{number}", axes
    yield "embedding.word.cores.0", (1, 0, 2, 3)  # row, column, rank
    yield "embedding.word.cores.1", (1, 0, 2, 3)  # row, rank, column, rank
    yield "embedding.word.cores.2", (1, 3, 2, 0)  # row, column, rank
    for head in ("intent_head", "slot_head"):
        yield f"{head}.weight", (0, 1)
        yield f"{head}.bias", (0,)
    yield "embedding.position.weight", (0, 1)
    for norm in ["embedding.norm", *norms]:
        yield f"{norm}.weight", (0,)
        yield f"{norm}.bias", (0,)
    for name in linears:
        yield f"{name}.bias", (0,)


def _memory_of(name: str) -> str:
    """Return the memory on chip that a tensor lies in."""
    layer, _, core = name.rpartition(".cores.")
    if layer == "embedding.word":
        return f"word_{int(core) + 1}"
    if layer:
        return "out_cores" if int(core) < 3 else "in_cores"
    return "rest"


def unit_of_update(memory: str) -> str:
    """Return which unit of the update has a memory of parameters; its name is that of the unit's moments."""
    return "cores" if memory in ("out_cores", "in_cores", "word_2") else "rest"


class ParameterMemory:
    """The kernel's parameter memory: where each tensor lies, and the copy in and out.

    Parameters
    ----------
    config : ModelConfig
        A model of format "tensor" with three modes at each end, as the kernel is built for.
    """

    def __init__(self, config: ModelConfig):
        shapes = config.parameter_shapes()
        self.blocks: list[Block] = []
        offset = 0
        for name, axes in _tensors(config):
            shape = shapes[name]
            block = Block(name, shape, axes, shape[axes[-1]], offset)
            self.blocks.append(block)
            offset += block.words
        self.words = offset

    @property
    def memories(self) -> dict[str, int]:
        """Words of each of the memories that hold the parameters on chip (`Tensors` of hls_src/memory.h)."""
        sizes = dict.fromkeys(("out_cores", "in_cores", "word_1", "word_2", "word_3", "rest"), 0)
        for block in self.blocks:
            sizes[_memory_of(block.name)] += block.words
        return sizes

    def pack(self, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the tensors as words, float32 of shape (words, LANES)."""
        memory = np.zeros((self.words, LANES), np.float32)
        for block in self.blocks:
            block.write(memory, tensors[block.name])
        return memory

    def unpack(self, memory: np.ndarray) -> dict[str, np.ndarray]:
        """Return the tensors that `pack` was given."""
        return {block.name: block.read(memory) for block in self.blocks}
