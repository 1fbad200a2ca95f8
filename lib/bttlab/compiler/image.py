"""The image of a program in HBM, as LOAD_PROGRAM reads it: pack it, and check it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.functions import Functions
from bttlab.compiler.instruction import Bound, Instruction, Register, encode
from bttlab.compiler.machine import M, target

LANES = M.LANES


@dataclass(frozen=True, eq=False)
class PackedFunctions:
    """The functions of a program as its image has them."""

    descriptions: np.ndarray
    tables: np.ndarray

    def packed(self) -> tuple[np.ndarray, np.ndarray]:
        """Return what `Functions.packed` returned for the image."""
        return self.descriptions, self.tables


@dataclass(frozen=True, eq=False)
class Tables:
    """The tables of functions and of permutations that the instructions of a program use."""

    functions: Functions | PackedFunctions
    entry_in: Sequence[np.ndarray]
    entry_out: Sequence[np.ndarray]


def packed(
    sections: Sequence[Sequence[Instruction]],
    tables: Tables,
    limits: Sequence[int],
    offset_span: Sequence[int],
    token_vectors: int = 0,
    sums: bool = False,
) -> np.ndarray:
    """Return a program as LOAD_PROGRAM reads it, int32 of shape (vectors, 16).

    `token_vectors`: vectors of each token that come in a sample's record; 0 if the table is on chip. `sums`: whether
    FLUSH follows each sample whose record says so.

    Raise `ProgramError` if it needs more registers or constants than the machine has.
    """
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

    instructions = [i for section in sections for i in section]
    fields = np.stack([encode(i, bound_code, immediate_code) for i in instructions])
    places, first = [], 0
    for section in sections:
        places += [first, len(section)]
        first += len(section)
    header = np.zeros((2, LANES), np.int32)
    header[0, : 4 + len(places)] = [
        M.MAGIC,
        M.VERSION + (M.WITH_ROWS if token_vectors else 0) + (M.WITH_SUMS if sums else 0),
        target().digest,
        len(instructions),
        *places,
    ]
    most = [span + 1 for span in offset_span]
    header[1, : 3 + len(most)] = [*limits, *most]
    header[1, 8] = token_vectors
    descriptions, function_tables = tables.functions.packed()
    shuffles = np.zeros((M.SHUFFLE_ENTRIES, 2, LANES), np.uint16)
    for n, (into, out) in enumerate(zip(tables.entry_in, tables.entry_out, strict=True)):
        shuffles[n] = into, out
    register_table, constant_table = np.zeros((M.REGISTERS, 4), np.int32), np.zeros(M.CONSTANTS, np.float32)
    register_table[: len(registers)], constant_table[: len(constants)] = np.reshape(registers, (-1, 4)), constants
    parts = header, register_table, constant_table, descriptions, function_tables, shuffles, fields
    image = np.concatenate([np.ascontiguousarray(part).view(np.int32).reshape(-1, LANES) for part in parts])
    image[1, 7] = checksum(image)
    return image


def tables_of_image(image: np.ndarray) -> Tables:
    """Return the tables of a program's image: `packed` makes the same image of them."""
    values = image.reshape(-1)[2 * LANES + 4 * M.REGISTERS + M.CONSTANTS :]
    descriptions, tables, entries = np.split(
        values[: 8 * M.FUNCTIONS + 3 * M.FUNCTION_ENTRIES + M.SHUFFLE_ENTRIES * LANES],
        np.cumsum([8 * M.FUNCTIONS, 3 * M.FUNCTION_ENTRIES]),
    )
    functions = PackedFunctions(
        descriptions.reshape(M.FUNCTIONS, 8), tables.view(np.float32).reshape(3, M.FUNCTION_ENTRIES)
    )
    entry_in, entry_out = entries.view(np.uint16).reshape(M.SHUFFLE_ENTRIES, 2, LANES).swapaxes(0, 1)
    return Tables(functions, entry_in, entry_out)


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


def check_image(image: np.ndarray) -> None:
    """Raise ProgramError unless an image is undamaged and made for this package's machine."""
    if image.dtype != np.int32 or image.ndim != 2 or image.shape[1] != M.LANES or len(image) < 2:
        raise ProgramError(
            f"the program is {image.dtype} of shape {image.shape}, not int32 vectors of {M.LANES} integers; "
            "compile it again"
        )
    magic, version, digest, instructions = (int(value) for value in image[0, :4])
    if magic != M.MAGIC:
        raise ProgramError(f"the program begins with {magic:#x}, not with {M.MAGIC:#x}; compile it again")
    if not 0 <= version - M.VERSION < M.FEATURES:
        raise ProgramError(
            f"the program is of version {version}, the machine on the card of version {M.VERSION}; compile it again"
        )
    if digest != M.digest:
        raise ProgramError(
            f"the program is for a machine of other widths ({digest:08x}, on the card {M.digest:08x}); compile it again"
        )
    if int(np.sum(image, dtype=np.int64)) % (1 << 32) or not 0 < instructions <= M.PROGRAM_DEPTH:
        raise ProgramError("the program was damaged: its numbers do not add up to 0; compile it again")
