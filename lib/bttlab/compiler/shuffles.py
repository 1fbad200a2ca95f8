"""Permutations as the shuffle unit runs them: a vector in and a vector out a cycle, through LANES columns.

The vectors in and the vectors out are the two pongs of a graph, with an edge for each element. It has no more than
LANES edges at a node, so LANES colours are enough that no two edges of a node share one (König): the colour is the
column that the element goes through, so a vector's elements always lie in different columns.
"""

from functools import lru_cache

import numpy as np

from bttlab.compiler.machine import machine

LANES = machine().LANES


def permutation_entries(permutation: np.ndarray, vectors_in: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the tables of a permutation, from a cache of those that were asked for last: programs have them in common.

    Parameters
    ----------
    permutation : ndarray of int, shape (vectors out, LANES)
        For each element out its element in (vector x LANES + lane), or -1 for 0. No element in may be asked for twice.

    Returns
    -------
    entries in, entries out : list of ndarray of int, shape (LANES,)
        As docs/processor.md says.
    """
    return _entries(permutation.astype(np.int64).tobytes(), vectors_in)


@lru_cache(256)
def _entries(elements: bytes, vectors_in: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    permutation = np.frombuffer(elements, np.int64).reshape(-1, LANES)
    taken = permutation[permutation >= 0]
    if len(np.unique(taken)) != len(taken):
        raise ValueError("a permutation asks twice for one element")
    into = [np.zeros(LANES, np.int64) for _ in range(vectors_in)]
    out = [np.zeros(LANES, np.int64) for _ in range(len(permutation))]
    for element, (vector, lane), column in _coloured(permutation, vectors_in):
        source, source_lane = divmod(element, LANES)
        # The place of an element in its column is its vector out: no column gives two elements to one vector.
        into[source][column] = 1 << 15 | vector << 4 | source_lane
        out[vector][lane] |= 1 << 15 | column
        out[vector][column] |= vector << 4
    return into, out


def _coloured(permutation: np.ndarray, vectors_in: int):
    """Yield (element in, (vector, lane) out, colour) of a proper edge colouring."""
    # at_in[w][c] and at_out[w][c]: the edge of colour c at a vector, or None
    at_in = [[None] * LANES for _ in range(vectors_in)]
    at_out = [[None] * LANES for _ in range(len(permutation))]
    colour: dict[int, int] = {}
    ends: dict[int, tuple[int, int, int]] = {}  # element: vector in, vector out, lane out
    for vector, lane in np.ndindex(permutation.shape):
        element = int(permutation[vector, lane])
        if element < 0:
            continue
        source = element // LANES
        ends[element] = (source, vector, lane)
        free_in = next(c for c in range(LANES) if at_in[source][c] is None)
        free_out = next(c for c in range(LANES) if at_out[vector][c] is None)
        if free_in != free_out:  # swap the two colours along the path that begins at the vector out
            path, node, pong, c = [], vector, 1, free_in
            while True:
                edge = (at_out if pong else at_in)[node][c]
                if edge is None:
                    break
                path.append(edge)
                node = ends[edge][0] if pong else ends[edge][1]
                pong, c = 1 - pong, free_out if c == free_in else free_in
            for edge in path:
                s, w, _ = ends[edge]
                at_in[s][colour[edge]] = at_out[w][colour[edge]] = None
            for edge in path:
                s, w, _ = ends[edge]
                colour[edge] = free_out if colour[edge] == free_in else free_in
                at_in[s][colour[edge]] = at_out[w][colour[edge]] = edge
        colour[element] = free_in
        at_in[source][free_in] = at_out[vector][free_in] = element
    for element, c in colour.items():
        _, vector, lane = ends[element]
        yield element, (vector, lane), c
