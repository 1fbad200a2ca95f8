"""Natural loops, and the control dependences of the blocks of a loop's body."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from bttlab_hardware.ir import Function


@dataclass(frozen=True)
class Loop:
    """A natural loop; its latches are the blocks with an edge back to the header."""

    header: str
    blocks: frozenset[str]
    latches: tuple[str, ...]


def dominators(entry: str, successors: dict[str, list[str]]) -> dict[str, str]:
    """Return the immediate dominator of each block; the entry's is itself."""
    import networkx as nx  # imported here: the lab imports this package without using it

    return {**nx.immediate_dominators(nx.DiGraph(successors), entry), entry: entry}


def reverse_post_order(entry: str, successors: dict[str, list[str]]) -> list[str]:
    """Return the blocks in reverse post-order: each before its successors, except along back edges."""
    import networkx as nx

    return list(nx.dfs_postorder_nodes(nx.DiGraph(successors), entry))[::-1]


def reversed_edges(edges: dict[str, list[str]]) -> dict[str, list[str]]:
    backward: dict[str, list[str]] = {block: [] for block in edges}
    for block, others in edges.items():
        for other in others:
            backward[other].append(block)
    return backward


def natural_loops(function: Function) -> list[Loop]:
    """Return a function's natural loops; loops with the same header are one."""
    entry = next(iter(function.blocks))
    successors = {block: function.successors(block) for block in function.blocks}
    order = reverse_post_order(entry, successors)
    successors = {block: successors[block] for block in order}
    predecessors = reversed_edges(successors)
    above = dominators(entry, successors)
    number = {block: i for i, block in enumerate(order)}
    latches: dict[str, list[str]] = {}
    for block in order:
        for other in successors[block]:
            if number[other] <= number[block] and _dominates(other, block, above):
                latches.setdefault(other, []).append(block)
    loops = []
    for header, ends in latches.items():
        inside, stack = {header}, list(ends)
        while stack:
            block = stack.pop()
            if block not in inside:
                inside.add(block)
                stack.extend(predecessors[block])
        loops.append(Loop(header, frozenset(inside), tuple(ends)))
    return loops


def _dominates(a: str, b: str, above: dict[str, str]) -> bool:
    while b != a and above[b] != b:
        b = above[b]
    return a == b


class Body:
    """The body of a loop as an acyclic graph: without the back edges to its header, nor to those of inner loops."""

    def __init__(self, function: Function, loop: Loop, inner: Iterable[str] = ()) -> None:
        self.header = loop.header
        back = {loop.header, *inner}
        order = reverse_post_order(loop.header, {b: function.successors(b) for b in function.blocks})
        number = {block: i for i, block in enumerate(order)}
        self.order = [block for block in order if block in loop.blocks]
        self.successors = {
            block: [
                other
                for other in function.successors(block)
                if other in loop.blocks and not (other in back and number[other] <= number[block])
            ]
            for block in self.order
        }
        self.order = reverse_post_order(loop.header, self.successors)
        self._number = {block: i for i, block in enumerate(self.order)}
        self.predecessors = reversed_edges({block: self.successors[block] for block in self.order})
        self.above = dominators(loop.header, self.successors)
        # All edges that leave the loop or go back to its header lead to a common end, for post-dominators.
        self.exits = [
            b for b in self.order if len(function.successors(b)) != len(self.successors[b]) or not self.successors[b]
        ]
        end = ""
        with_end = {b: self.successors[b] + ([end] if b in self.exits else []) for b in self.order} | {end: []}
        self._below = dominators(end, reversed_edges(with_end))

    def region(self, block: str) -> list[str]:
        """Return the blocks on all paths from a block's immediate dominator to it, in reverse order of the body."""
        top = self.above[block]
        region, stack = set(), list(self.predecessors[block])
        while stack:
            one = stack.pop()
            if one not in region:
                region.add(one)
                if one != top:
                    stack.extend(self.predecessors[one])
        return sorted(region, key=self._number.__getitem__, reverse=True)

    def controllers(self, block: str) -> list[str]:
        """Return the blocks that a block is control-dependent on: their branches decide whether it is reached."""
        return self._controllers.get(block, [])

    @cached_property
    def _controllers(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for block in self.order:
            if len(self.successors[block]) + (block in self.exits) >= 2:
                for other in self.successors[block]:
                    while other and other != self._below[block]:
                        found.setdefault(other, []).append(block)
                        other = self._below[other]
        return found

    def deciders(self, block: str) -> list[str]:
        """Return the blocks whose branches decide by which predecessor a block is reached from its dominator."""
        reach: dict[str, frozenset[str]] = {}
        deciding = []
        for one in self.region(block):
            ways = frozenset()
            for other in self.successors[one]:
                ways |= frozenset([one]) if other == block else reach.get(other, frozenset())
            reach[one] = ways
            if len(ways) > 1:
                deciding.append(one)
        return deciding


def whole_body(function: Function) -> Body:
    """Return all blocks of a function as an acyclic graph, without the back edges of its loops."""
    everything = Loop(next(iter(function.blocks)), frozenset(function.blocks), ())
    return Body(function, everything, [loop.header for loop in natural_loops(function)])
