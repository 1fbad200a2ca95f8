"""Permutations as the shuffle unit runs them: a word in and a word out a cycle, through LANES columns.

The words in and the words out are the two sides of a graph, with an edge for each element. It has no more than LANES
edges
at a node, so LANES colours are enough that no two edges of a node share one (König): the colour is the column that the
element goes through, so a word's elements always lie in different columns.
"""

import numpy as np

from bttlab.card.machine import machine

LANES = machine().LANES


def permutation_entries(permutation: np.ndarray, words_in: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the tables of a permutation.

    Parameters
    ----------
    permutation : ndarray of int, shape (words out, LANES)
        For each element out its element in (word x LANES + lane), or -1 for 0. No element in may be asked for twice.
    words_in : int

    Returns
    -------
    entries in, entries out : list of ndarray of int, shape (LANES,)
        As docs/processor.md says.
    """
    taken = permutation[permutation >= 0]
    if len(np.unique(taken)) != len(taken):
        raise ValueError("a permutation asks twice for one element")
    into = [np.zeros(LANES, np.int64) for _ in range(words_in)]
    out = [np.zeros(LANES, np.int64) for _ in range(len(permutation))]
    for element, (word, lane), column in _coloured(permutation, words_in):
        source, source_lane = divmod(element, LANES)
        # The place of an element in its column is its word out: no column gives two elements to one word.
        into[source][column] = 1 << 15 | word << 4 | source_lane
        out[word][lane] |= 1 << 15 | column
        out[word][column] |= word << 4
    return into, out


def _coloured(permutation: np.ndarray, words_in: int):
    """Yield (element in, (word, lane) out, colour) of a proper edge colouring."""
    # at_in[w][c] and at_out[w][c]: the edge of colour c at a word, or None
    at_in = [[None] * LANES for _ in range(words_in)]
    at_out = [[None] * LANES for _ in range(len(permutation))]
    colour: dict[int, int] = {}
    ends: dict[int, tuple[int, int, int]] = {}  # element: word in, word out, lane out
    for word, lane in np.ndindex(permutation.shape):
        element = int(permutation[word, lane])
        if element < 0:
            continue
        source = element // LANES
        ends[element] = (source, word, lane)
        free_in = next(c for c in range(LANES) if at_in[source][c] is None)
        free_out = next(c for c in range(LANES) if at_out[word][c] is None)
        if free_in != free_out:  # swap the two colours along the path that begins at the word out
            path, node, side, c = [], word, 1, free_in
            while True:
                edge = (at_out if side else at_in)[node][c]
                if edge is None:
                    break
                path.append(edge)
                node = ends[edge][0] if side else ends[edge][1]
                side, c = 1 - side, free_out if c == free_in else free_in
            for edge in path:
                s, w, _ = ends[edge]
                at_in[s][colour[edge]] = at_out[w][colour[edge]] = None
            for edge in path:
                s, w, _ = ends[edge]
                colour[edge] = free_out if colour[edge] == free_in else free_in
                at_in[s][colour[edge]] = at_out[w][colour[edge]] = edge
        colour[element] = free_in
        at_in[source][free_in] = at_out[word][free_in] = element
    for element, c in colour.items():
        _, word, lane = ends[element]
        yield element, (word, lane), c
