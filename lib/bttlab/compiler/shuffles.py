"""Routing of permutations through the shuffle unit: a vector in and a vector out a cycle, through LANES columns.

The vectors in and the vectors out are the two sides of a bipartite graph, with an edge for each element. A node has at
most LANES edges, so the edges can be coloured with LANES colours such that no two edges of a node have the same colour
(König). The colour is the column that the element goes through, so all elements of a vector are in different columns.
"""

from functools import lru_cache

import numpy as np

from bttlab.compiler.machine import M

LANES = M.LANES


def identity(vectors: int) -> np.ndarray:
    return np.arange(vectors * LANES).reshape(vectors, LANES)


def permutation_entries(permutation: np.ndarray, vectors_in: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the tables of a permutation, from a cache: programs use the same permutations.

    `permutation`, of shape (vectors out, LANES): for each element out its element in (vector x LANES + lane), or -1 for
    0. No element in may be used twice. The tables are entries in and entries out, a row of LANES for each vector
    (docs/processor.md).
    """
    return _entries(permutation.astype(np.int64).tobytes(), vectors_in)


@lru_cache(256)
def _entries(elements: bytes, vectors_in: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    permutation = np.frombuffer(elements, np.int64).reshape(-1, LANES)
    taken = permutation[permutation >= 0]
    if len(np.unique(taken)) != len(taken):
        raise ValueError("a permutation uses an element in twice")
    into = [np.zeros(LANES, np.int64) for _ in range(vectors_in)]
    out = [np.zeros(LANES, np.int64) for _ in range(len(permutation))]
    for element, (vector, lane), column in _coloured(permutation, vectors_in):
        source, source_lane = divmod(element, LANES)
        # An element's place in its column is its vector out: a vector out takes one element of each column.
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
            path, node, is_out, c = [], vector, 1, free_in
            while True:
                edge = (at_out if is_out else at_in)[node][c]
                if edge is None:
                    break
                path.append(edge)
                node = ends[edge][0] if is_out else ends[edge][1]
                is_out, c = 1 - is_out, free_out if c == free_in else free_in
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
