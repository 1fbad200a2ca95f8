"""Check modes and ranks, and compute the shapes of the cores."""

import math
from collections.abc import Iterable, Sequence
from numbers import Integral

from bttlab.util.errors import BttlabError

MOST_UNEQUAL = 1.5  # sum of a table's factors over that of equal modes: above it the table is padded


class ShapeError(BttlabError, ValueError):
    """Modes, ranks or the shape of an input do not fit the format."""


def check_modes(name: str, modes: Iterable[int], size: int | None = None) -> tuple[int, ...]:
    """Check modes and return them as a tuple of integers.

    Parameters
    ----------
    name : str
        Of the modes in errors, such as "out_modes".
    modes : iterable of int
        The factors.
    size : int, optional
        Their product; by default any.

    Returns
    -------
    tuple of int
        The modes.

    Raises
    ------
    ShapeError
        If a mode is not an integer of at least 1, there are none, or their product is not `size`.
    """
    modes = tuple(modes) if isinstance(modes, Iterable) else (modes,)
    if not modes or not all(is_positive(mode) for mode in modes):
        raise ShapeError(f"{name} are {modes}: modes are integers of at least 1; give at least one")
    modes = tuple(int(mode) for mode in modes)
    if size is not None and math.prod(modes) != size:
        product = " x ".join(map(str, modes))
        raise ShapeError(
            f"{name} {modes}: {product} = {math.prod(modes)}, not {size}; choose modes whose product is {size}"
        )
    return modes


def balanced_modes(size: int) -> tuple[int, int, int]:
    """Return three modes that differ by at most 1, with the smallest product that is at least `size`.

    Raises ShapeError if the size is not an integer of at least 1.
    """
    if not is_positive(size):
        raise ShapeError(f"size is {size!r}: it must be an integer of at least 1")
    root = 1
    while (root + 1) ** 3 <= size:
        root += 1
    candidates = [(root,) * 3, (root + 1, root, root), (root + 1, root + 1, root), (root + 1,) * 3]
    return next(modes for modes in candidates if math.prod(modes) >= size)


def check_row_modes(modes: Iterable[int], size: int) -> tuple[int, ...]:
    """Check the row modes of a table of `size` rows and return them as a tuple of integers.

    Their product is the number of rows, or larger if no mode can be smaller: a table of 30,522 rows takes (32, 30, 32).

    Raises ShapeError if a mode is not an integer of at least 1, there are none, or their product does not fit.
    """
    modes = check_modes("row_modes", modes)
    product = math.prod(modes)
    if product < size or any(mode > 1 and product // mode * (mode - 1) >= size for mode in modes):
        rule = "too few" if product < size else "more than the table needs: a mode can be smaller"
        raise ShapeError(
            f"row_modes {modes}: {' x '.join(map(str, modes))} = {product} rows for a table of {size}, {rule}; "
            f"choose {table_modes(size, len(modes))}"
        )
    return modes


def table_modes(rows: int, count: int) -> tuple[int, ...]:
    """Return at most `count` row modes for a table, in descending order.

    They are the factors of `choose_modes` if these are about equal; else the table is padded: modes that differ by at
    most 1, with the smallest product that is at least `rows`. A core has a slice for each value of its mode, so that
    factors such as 5087, 3 and 2 take many more parameters.
    """
    exact = choose_modes(rows, count)
    root = max(1, math.floor(rows ** (1 / count) + 1e-9))
    padded = next(
        modes
        for larger in range(count + 1)
        if math.prod(modes := (*[root + 1] * larger, *[root] * (count - larger))) >= rows
    )
    return exact if sum(exact) + count - len(exact) <= MOST_UNEQUAL * sum(padded) else padded


def factors(size: int) -> tuple[int, int, int]:
    """Return the three factors of a number with the smallest sum, the largest first."""
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    triples = [(size // (b * c), b, c) for c in divisors for b in divisors if b >= c and size % (b * c) == 0]
    return min((t for t in triples if t[0] >= t[1]), key=sum)


def full_ranks(rank: int | Sequence[int], modes: int) -> tuple[int, ...]:
    """Return all ranks (1, r_1, ..., r_(modes-1), 1) of a train.

    Parameters
    ----------
    rank : int or sequence of int
        Every internal rank, or all of them in order.
    modes : int
        Number of cores.

    Returns
    -------
    tuple of int
        `modes` + 1 ranks.

    Raises
    ------
    ShapeError
        If a rank is not an integer of at least 1, or their number does not fit.
    """
    ranks = tuple(rank) if isinstance(rank, Iterable) else (rank,) * (modes - 1)
    if not all(is_positive(value) for value in ranks) or not (isinstance(rank, Iterable) or is_positive(rank)):
        raise ShapeError(f"rank is {rank}: ranks are integers of at least 1")
    if len(ranks) != modes - 1:
        raise ShapeError(
            f"rank {ranks} has {len(ranks)} entries: {modes} cores have {modes - 1} internal ranks; "
            f"give {modes - 1} or one integer for all"
        )
    return (1, *(int(value) for value in ranks), 1)


def tt_shapes(out_modes: Sequence[int], in_modes: Sequence[int], rank: int | Sequence[int]) -> list[tuple[int, ...]]:
    """Return the shapes of the cores of a TT matrix, output modes first.

    Parameters
    ----------
    out_modes, in_modes : sequence of int
        Factorisations of the numbers of rows and columns.
    rank : int or sequence of int
        Every internal rank, or all of them in order.

    Returns
    -------
    list of tuple of int
        Shapes (r_prev, n, r_next).

    Raises
    ------
    ShapeError
        If modes or ranks are not allowed.
    """
    modes = (*check_modes("out_modes", out_modes), *check_modes("in_modes", in_modes))
    ranks = full_ranks(rank, len(modes))
    return [(ranks[k], mode, ranks[k + 1]) for k, mode in enumerate(modes)]


def ttm_shapes(
    row_modes: Sequence[int], column_modes: Sequence[int], rank: int | Sequence[int]
) -> list[tuple[int, ...]]:
    """Return the shapes of the cores of a TTM matrix.

    Parameters
    ----------
    row_modes, column_modes : sequence of int
        Factorisations of the numbers of rows and columns, as many modes of each.
    rank : int or sequence of int
        Every internal rank, or all of them in order.

    Returns
    -------
    list of tuple of int
        Shapes (r_prev, row mode, column mode, r_next).

    Raises
    ------
    ShapeError
        If modes or ranks are not allowed.
    """
    row_modes, column_modes = check_modes("row_modes", row_modes), check_modes("column_modes", column_modes)
    if len(row_modes) != len(column_modes):
        raise ShapeError(
            f"row_modes {row_modes} and column_modes {column_modes} differ in number: each core of a TTM has one mode "
            "of each; pad the shorter with 1"
        )
    ranks = full_ranks(rank, len(row_modes))
    return [(ranks[k], m, n, ranks[k + 1]) for k, (m, n) in enumerate(zip(row_modes, column_modes, strict=True))]


def check_cores(shapes: Sequence[Sequence[int]], order: int) -> None:
    """Check that cores with `order` dimensions form one tensor train.

    Raises ShapeError if there is no core, one has another number of dimensions, ranks do not match or the outer ranks
    are not 1.
    """
    shapes = [tuple(shape) for shape in shapes]
    if not shapes or any(len(shape) != order for shape in shapes):
        raise ShapeError(f"core shapes are {shapes}: expected at least one core, each of {order} dimensions")
    ranks = [shapes[0][0], *(shape[-1] for shape in shapes)]
    for k, shape in enumerate(shapes):
        if shape[0] != ranks[k]:
            raise ShapeError(
                f"core {k} has shape {shape} but the previous core ends with rank {ranks[k]}: "
                "consecutive cores must have matching ranks"
            )
    if ranks[0] != 1 or ranks[-1] != 1:
        raise ShapeError(f"outer ranks are {ranks[0]} and {ranks[-1]}: both must be 1; reshape the outer cores")


def is_positive(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def choose_modes(size: int, count: int) -> tuple[int, ...]:
    """Return factors of a size, as equal as its prime factors allow, in descending order.

    Parameters
    ----------
    size : int
        The product.
    count : int
        Most factors. A size with fewer prime factors has fewer.

    Returns
    -------
    tuple of int
        The factors.
    """
    primes, rest, divisor = [], size, 2
    while rest > 1:
        divisor = divisor if divisor * divisor <= rest else rest
        while rest % divisor == 0:
            primes.append(divisor)
            rest //= divisor
        divisor += 1
    factors = [1] * min(count, max(1, len(primes)))
    for prime in reversed(primes):
        factors[factors.index(min(factors))] *= prime
    return tuple(sorted(factors, reverse=True))
