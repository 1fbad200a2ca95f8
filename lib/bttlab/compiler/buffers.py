"""Buffers: vectors of a bank that a program allocates by name and size."""

from dataclasses import dataclass

from bttlab.compiler.instruction import Bound


@dataclass(eq=False)
class Buffer:
    """Vectors of a bank.

    Attributes
    ----------
    number : int
        Number in the program: before the assignment an operand in it has the memory "matrix N", one in the gradient of
        a parameter "gradient N".
    is_parameter : bool
        Whether it is a parameter: it is never overwritten by other buffers, and has a gradient.
    is_accumulated : bool
        Whether instructions add to its gradient; the update clears it.
    is_persistent : bool
        Whether it keeps its vectors for the whole program.
    rows : int or Register
        Number of rows that are in use; its vectors are divided evenly among the largest number of rows.
    bank, base : int, optional
        Bank and first vector; known after the assignment.
    """

    name: str
    vectors: int
    number: int = -1
    is_parameter: bool = False
    is_accumulated: bool = False
    is_persistent: bool = False
    rows: Bound = 1
    bank: int | None = None
    base: int = 0
