"""The search for banks: the farthest free vectors, and contention within any window, compared with plain loops."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bttlab.compiler.instruction import Instruction
from bttlab.compiler.memory.banks import FAR, WINDOW_SHARE, _Space
from bttlab.compiler.program import _lowerings

from training_processor import SMALL

DEPTH = 24
TIMES = st.tuples(st.integers(0, 6), st.integers(0, 2)).map(lambda of: (of[0], of[0] + of[1]))
RANGES = st.tuples(TIMES, st.integers(0, DEPTH - 1), st.integers(4, 12)).map(
    lambda of: (*of[0], of[1], min(of[1] + of[2], DEPTH))
)


def distance(taken, low: int, high: int, first: int, last: int) -> int:
    """Return how many instructions away the nearest use of some vectors is, 0 if it is at the same time."""
    uses = [(begin, end) for begin, end, *vectors in taken if vectors[0] < high and low < vectors[1]]
    return min((max(first - end, begin - last, 0) for begin, end in uses), default=FAR)


@settings(max_examples=500)
@example([(2, 2, low, low + 4) for low in range(0, DEPTH, 4)], 4, (6, 6), False)  # all are equally far
@given(st.lists(RANGES, max_size=12), st.integers(1, 10), TIMES, st.booleans())
def test_no_free_vectors_are_farther_from_their_other_uses(taken, vectors, times, behind):
    space = _Space(0)
    space.depth = DEPTH
    for allocated in taken:
        space.take(allocated)
    found = space.place(vectors, *times, behind)
    distances = [distance(taken, n, n + vectors, *times) for n in range(DEPTH - behind - vectors + 1)]
    if found is None:
        assert not any(distances)
        return
    place, used = found
    farthest = distance(taken, place, place + vectors, *times)
    assert 0 < farthest == times[0] - used
    if farthest < FAR:  # else it may end where the memory does
        assert place == distances.index(max(distances))  # the lowest of the farthest


@pytest.mark.parametrize("windows", [(15000, 10500, 0, 20000), (300, 15000, 2500)])
def test_contention_within_a_window_does_not_depend_on_the_windows_before(windows):
    """It is that of each pair of uses, of memories that different units read, or write, at about the same time."""
    demand = _lowerings(SMALL, "mixed", False).lower(11)._placement._demand
    for window in windows:
        expected = np.zeros((len(demand.index),) * 2)
        for numbers_of in (Instruction.reads, Instruction.writes):
            uses = [
                (demand.begins[i], demand.ends[i], instruction.unit, demand.index[instruction.operands[n].memory])
                for i, instruction in enumerate(demand.instructions)
                for n in numbers_of(instruction)
                if instruction.operands[n].memory in demand.index
            ]
            for (begin, end, unit, row), (later, its_end, its_unit, other) in combinations(uses, 2):
                if unit != its_unit and row != other and later < end + window:
                    shared = min(end, its_end) - later
                    cost = shared if shared > 0 else WINDOW_SHARE * min(end - begin, its_end - later)
                    expected[[row, other], [other, row]] += cost
        assert expected.any()
        assert (demand.contention(window) == expected).all()
    _lowerings.cache_clear()
