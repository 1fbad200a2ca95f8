"""Bytes that a sample moves: between the host and the card's HBM, and between HBM and the chip.

They follow from the formats of records and results (`hls_src/processor/samples.h`) and from the buffers that the driver
synchronises. The emulated card counts the same (`EmulatedU50.traffic`). Parameters stay on chip from call to call, so
they move in LOAD and STORE alone.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from typing_extensions import Self

from bttlab.compiler.machine import M

VECTOR_BYTES = 4 * M.LANES
SEQUENCE_VECTORS = M.SEQUENCE // M.LANES
RECORD_BYTES = VECTOR_BYTES * (1 + (M.OFFSET_TABLES + 1) * SEQUENCE_VECTORS)
RESULT_BYTES = VECTOR_BYTES * (1 + SEQUENCE_VECTORS)


class Traffic(NamedTuple):
    """Bytes that move in each direction."""

    host_to_hbm: float
    hbm_to_host: float
    hbm_to_chip: float
    chip_to_hbm: float

    @classmethod
    def mean(cls, lengths: Mapping[int, int], token_vectors: int, sequence_length: int) -> Self:
        """Return the bytes of a sample on average; `lengths` has the number of samples of each length in tokens."""
        count = sum(lengths.values())
        parts = [(sample_traffic(tokens, token_vectors, sequence_length), n) for tokens, n in lengths.items()]
        return cls(*(sum(part[i] * n for part, n in parts) / count for i in range(len(cls._fields))))

    def minus(self, other: Self) -> Self:
        return type(self)(*(a - b for a, b in zip(self, other, strict=True)))

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()


# Of a FLUSH, which adds its cycles to the head of the result of the sample before it.
FLUSH = Traffic(0, 0, VECTOR_BYTES, VECTOR_BYTES)


def sample_traffic(tokens: int, token_vectors: int, sequence_length: int) -> Traffic:
    """Return the bytes of a sample in training or prediction.

    `token_vectors`: vectors of each token that come in its record (`Program.token_vectors`). A record has space for
    `sequence_length` tokens; the chip reads the rows of the sample's alone. Results are sent to the card, too: cleared.
    """
    record = RECORD_BYTES + VECTOR_BYTES * sequence_length * token_vectors
    read = RECORD_BYTES + VECTOR_BYTES * tokens * token_vectors
    return Traffic(record + RESULT_BYTES, RESULT_BYTES, read, RESULT_BYTES)
