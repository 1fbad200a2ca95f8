"""When each operator starts: as soon as possible, and so that what comes round the loop is there in time."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor

from bttlab.estimate.schedule import latencies
from bttlab.estimate.schedule.graph import Graph, Node
from bttlab.estimate.schedule.pragmas import Promise

ROUNDS = 400  # of moving loads and phis to later; more than any chain of them needs that has an end
MOST_INTERVAL = 512


@dataclass(frozen=True)
class Edge:
    """What one iteration gives to a later one.

    Attributes
    ----------
    source, target : Node
        A value and the phi that takes it, or a store and a load of one memory.
    distance : int
        Iterations between them.
    name : str
    """

    source: Node
    target: Node
    distance: int
    name: str


@dataclass(frozen=True)
class Recurrence:
    """A circle through the loop.

    Attributes
    ----------
    name : str
        The memory, or the value.
    kind : {"memory", "value", "exit"}
    latency : int
        Cycles from the load, or the phi, to the load or phi of a later iteration that gets what was made of it.
    distance : int
        Iterations between the two.
    promised : bool
        The distance is a pragma's.
    place : int or None
        Number of the location of what is stored.
    """

    name: str
    kind: str
    latency: int
    distance: int
    promised: bool
    place: int | None

    @property
    def interval(self) -> int:
        """Cycles between iterations that the circle asks for."""
        return max(1, ceil(self.latency / self.distance))


def is_load(node: Node) -> bool:
    """Return whether a node reads a memory or a register."""
    return node.access is not None and node.instruction.opcode == "load"


def is_store(node: Node) -> bool:
    """Return whether a node writes one."""
    return node.access is not None and node.instruction.opcode == "store"


def edges(graph: Graph, promises: dict[str, Promise]) -> list[Edge]:
    """Return what goes from one iteration to later ones."""
    found = [Edge(source, phi, 1, phi.instruction.name.lstrip("%")) for source, phi in graph.back]
    loads: dict[object, list[Node]] = {}
    for node in graph.nodes:
        if is_load(node):
            loads.setdefault(node.access.memory, []).append(node)
    for store in filter(is_store, graph.nodes):
        memory = store.access.memory
        promise = promises.get(memory.variable)
        if promise and promise.distance is None:
            continue
        distance = promise.distance if promise else 1
        found += [Edge(store, load, distance, memory.name) for load in loads.get(memory, ())]
    return found


def orders(graph: Graph) -> list[tuple[Node, Node]]:
    """Return pairs of one iteration's accesses to one memory, at least one of them a store, that keep their order."""
    before: dict[object, list[Node]] = {}
    found = []
    for node in graph.nodes:
        if node.access is None:
            continue
        earlier = before.setdefault(node.access.memory, [])
        found += [(other, node) for other in earlier if is_store(other) or is_store(node)]
        earlier.append(node)
    return found


class Times:
    """Start and end of every node, in cycles; the part behind the point is how much of the cycle is filled.

    Parameters
    ----------
    graph : Graph
    carried : list of Edge
    clock : latencies.Clock
    interval : int
    """

    def __init__(self, graph: Graph, carried: list[Edge], clock: latencies.Clock, interval: int) -> None:
        self._graph, self._clock = graph, clock
        self._later: dict[Node, float] = {}
        self._parts = {node: clock.part(node.delay) for node in graph.nodes}
        self._cycles = {node: node.cycles for node in graph.nodes}
        self._after: dict[Node, list[Node]] = {}
        for first, second in orders(graph):
            self._after.setdefault(second, []).append(first)
        self.start: dict[Node, float] = {}
        self.end: dict[Node, float] = {}
        self.settled = False
        for _ in range(ROUNDS):
            self._pass()
            if not self._move(carried, interval):
                self.settled = True
                break

    def _pass(self) -> None:
        start, end, after = self.start, self.end, self._after
        for node in self._graph.nodes:
            ready = self._later.get(node, 0.0)
            for other in node.inputs:
                if end[other] > ready:
                    ready = end[other]
            for other in after.get(node, ()):
                ready = max(ready, self.visible(other) if is_store(other) and is_load(node) else floor(start[other]))
            start[node], end[node] = _span(ready, self._parts[node], self._cycles[node], node.kind)

    def visible(self, store: Node) -> int:
        """Return the first cycle in which a load sees what was stored."""
        if store.access.memory.register:
            return ceil(self.start[store])
        return floor(self.start[store]) + latencies.write_cycles()

    def _move(self, carried: list[Edge], interval: int) -> bool:
        moved = False
        for edge in carried:
            there = self.visible(edge.source) if is_store(edge.source) else ceil(self.end[edge.source])
            least = there - interval * edge.distance
            if floor(self.start[edge.target]) < least:
                self._later[edge.target], moved = float(least), True
        return moved


def _span(ready: float, part: float, cycles: int | None, kind: str) -> tuple[float, float]:
    """Start and end of a node that could start at `ready`."""
    if kind == "load":  # the address is taken at the end of its cycle
        return ready, float(floor(ready) + max(1, cycles)) if cycles else ready
    if cycles is not None:  # operands are registered first
        start = float(ceil(ready))
        return start, start + cycles
    if part == 0.0:
        return ready, ready
    whole = floor(ready)
    if part >= 1.0:
        start = float(ceil(ready))
        return start, start + ceil(part)
    if ready - whole + part > 1.0:
        return float(whole + 1), whole + 1 + part
    return ready, ready + part


def recurrences(graph: Graph, carried: list[Edge], clock: latencies.Clock, promised: Iterable[str]) -> list[Recurrence]:
    """Return the circles that each edge closes, the longest way through the body taken."""
    promised, found = set(promised), []
    parts = {node: clock.part(node.delay) for node in graph.nodes}
    cycles = {node: node.cycles for node in graph.nodes}
    number = {node: i for i, node in enumerate(graph.nodes)}
    components = strongly_connected(graph, carried)
    by_target: dict[Node, list[Edge]] = {}
    for edge in carried:
        if components.get(edge.source) == components.get(edge.target) is not None:
            by_target.setdefault(edge.target, []).append(edge)
    members: dict[int, list[Node]] = {}
    for node, component in components.items():
        members.setdefault(component, []).append(node)
    for component in members.values():
        component.sort(key=number.__getitem__)
    for target, all_edges in by_target.items():
        end: dict[Node, float] = {}
        _, end[target] = _span(0.0, parts[target], cycles[target], target.kind)
        start = {target: 0.0}
        for node in members[components[target]]:
            ready = [end[other] for other in node.inputs if other in end]
            if ready and number[node] > number[target]:
                start[node], end[node] = _span(max(ready), parts[node], cycles[node], node.kind)
        for edge in all_edges:
            if edge.source in end:
                found.append(_recurrence(edge, start, end, promised))
    return sorted(found, key=lambda r: (-r.interval, r.kind, -r.latency, r.name))


def _recurrence(edge: Edge, start: dict, end: dict, promised: set[str]) -> Recurrence:
    if is_store(edge.source):
        memory = edge.source.access.memory
        there = ceil(start[edge.source]) if memory.register else floor(start[edge.source]) + latencies.write_cycles()
        kind, known = "memory", memory.variable in promised
    else:
        there, kind, known = ceil(end[edge.source]), "value", False
    return Recurrence(edge.name, kind, there, edge.distance, known, edge.source.instruction.line)


def strongly_connected(graph: Graph, carried: list[Edge]) -> dict[Node, int]:
    """Return the number of the circle of circles that each node is part of; nodes outside are left out (Tarjan)."""
    following: dict[Node, list[Node]] = {node: [] for node in graph.nodes}
    for node in graph.nodes:
        for other in node.inputs:
            following[other].append(node)
    for edge in carried:
        following[edge.source].append(edge.target)
    index: dict[Node, int] = {}
    low: dict[Node, int] = {}
    waiting: list[Node] = []
    inside: set[Node] = set()
    found: dict[Node, int] = {}
    for root in graph.nodes:
        if root in index:
            continue
        stack = [(root, iter(following[root]))]
        index[root] = low[root] = len(index)
        waiting.append(root)
        inside.add(root)
        while stack:
            node, rest = stack[-1]
            for other in rest:
                if other not in index:
                    index[other] = low[other] = len(index)
                    waiting.append(other)
                    inside.add(other)
                    stack.append((other, iter(following[other])))
                    break
                if other in inside:
                    low[node] = min(low[node], index[other])
            else:
                stack.pop()
                if stack:
                    low[stack[-1][0]] = min(low[stack[-1][0]], low[node])
                if low[node] == index[node]:
                    members = []
                    while not members or members[-1] is not node:
                        members.append(waiting.pop())
                        inside.discard(members[-1])
                    if len(members) > 1 or node in following[node]:
                        found.update((member, index[node]) for member in members)
    return found
