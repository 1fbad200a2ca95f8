"""Schedule the operators as soon as possible (ASAP), given the values that earlier iterations pass on."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor

import networkx as nx

from bttlab_hardware import latencies
from bttlab_hardware.graph import Graph, Node
from bttlab_hardware.pragmas import Promise

ROUNDS = 40  # of delaying loads and phis until the schedule converges; chains of them need fewer
MAX_INTERVAL = 512


@dataclass(frozen=True)
class Edge:
    """A loop-carried dependence: from a value to its phi, or from a store to a load, `distance` iterations later."""

    source: Node
    target: Node
    distance: int
    name: str


@dataclass(frozen=True)
class Recurrence:
    """A dependence cycle through the loop.

    Attributes
    ----------
    kind : {"memory", "value", "cycle", "exit"}
        "memory" and "value" have one loop-carried dependence, "cycle" has several; "exit" is the loop's condition.
    latency, distance : int
        Cycles, and iterations, from a load or phi to that of a later iteration that receives the result.
    promised : bool
        Whether the distance comes from a pragma.
    place : int or None
        Number of the source location of the result.
    """

    name: str
    kind: str
    latency: int
    distance: int
    promised: bool
    place: int | None

    @property
    def interval(self) -> int:
        return max(1, ceil(self.latency / self.distance))


def is_load(node: Node) -> bool:
    return node.access is not None and node.instruction.opcode == "load"


def is_store(node: Node) -> bool:
    return node.access is not None and node.instruction.opcode == "store"


def edges(graph: Graph, promises: dict[str, Promise]) -> list[Edge]:
    carried = [Edge(source, phi, 1, phi.instruction.name.lstrip("%")) for source, phi in graph.back]
    loads: dict[object, list[Node]] = {}
    for node in graph.nodes:
        if is_load(node):
            loads.setdefault(node.access.memory, []).append(node)
    for store in filter(is_store, graph.nodes):
        memory = store.access.memory
        promise = promises.get(memory.variable)
        distance = promise.distance if promise else 1
        carried += [Edge(store, load, distance, memory.name) for load in loads.get(memory, ())]
    return carried


def orders(graph: Graph) -> list[tuple[Node, Node]]:
    """Return pairs of accesses to one memory in an iteration, at least one of them a store, that must stay in order."""
    before: dict[object, list[Node]] = {}
    ordered = []
    for node in graph.nodes:
        if node.access is None:
            continue
        earlier = before.setdefault(node.access.memory, [])
        ordered += [(other, node) for other in earlier if is_store(other) or is_store(node)]
        earlier.append(node)
    return ordered


class Times:
    """Start and end of every node, in cycles; the fraction is the part of the cycle that chained logic has used."""

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
        self.converged = False
        for _ in range(ROUNDS):
            self._pass()
            too_early = self._too_early(carried, interval)
            if not too_early:
                self.converged = True
                self._delay_loads(carried, interval)
                break
            self._later |= too_early

    def _delay_loads(self, carried: list[Edge], interval: int) -> None:
        """Delay each memory's loads as long as the last results do not become later: loaded vectors take registers."""
        used = {other for node in self._graph.nodes for other in node.inputs}
        loads: dict[str, list[Node]] = {}
        for node in filter(is_load, self._graph.nodes):
            if not node.access.memory.register:
                loads.setdefault(node.access.memory.variable, []).append(node)
        last = {node: end for node, end in self.end.items() if node not in used or node in self._graph.exits}
        place = {node: number for number, node in enumerate(self._graph.nodes)}
        for nodes in loads.values():
            first = min(place[node] for node in nodes)
            while True:
                before = self._later, self.start, self.end
                self._later = self._later | {node: floor(self.start[node]) + 1.0 for node in nodes}
                self.start, self.end = dict(self.start), dict(self.end)
                self._pass(first)
                if any(self.end[node] != end for node, end in last.items()) or self._too_early(carried, interval):
                    self._later, self.start, self.end = before
                    break

    def _pass(self, first: int = 0) -> None:
        """Compute the times of the nodes from position `first` on."""
        start, end, after = self.start, self.end, self._after
        for node in self._graph.nodes[first:]:
            ready = self._later.get(node, 0.0)
            for other in node.inputs:
                if end[other] > ready:
                    ready = end[other]
            for other in after.get(node, ()):
                ready = max(ready, self.available(other) if is_store(other) and is_load(node) else floor(start[other]))
            if node.gates > 1:
                ready = max(ready, _tree([end[other] for other in node.inputs], self._parts[node]))
            start[node], end[node] = _span(ready, self._parts[node], self._cycles[node], node.kind)

    def available(self, source: Node) -> int:
        return _available(source, self.start, self.end)

    def _too_early(self, carried: list[Edge], interval: int) -> dict[Node, float]:
        """Return the nodes that start before the value of an earlier iteration is available, and when it is."""
        later: dict[Node, float] = {}
        for edge in carried:
            least = self.available(edge.source) - interval * edge.distance
            if floor(self.start[edge.target]) < least:
                later[edge.target] = max(later.get(edge.target, 0.0), float(least))
        return later


def _tree(ready: list[float], part: float) -> float:
    """Return the time at which both inputs of the last gate of a tree are available; early inputs are joined first."""
    waiting = sorted(ready)
    while len(waiting) > 2:
        waiting = sorted([*waiting[2:], _span(waiting[1], part, None, "logic")[1]])
    return waiting[-1]


def _span(ready: float, part: float, cycles: int | None, kind: str) -> tuple[float, float]:
    """Return start and end of a node whose inputs are available at `ready`."""
    if kind == "load":  # the memory registers the address at the end of the cycle
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
    """Return the recurrences with one loop-carried dependence, and the slowest of those with several.

    The distances of the variables in `promised` come from pragmas.
    """
    promised = set(promised)
    links = _links(graph, carried, clock)
    alone = [_recurrence(edge, latency, promised) for start, edge, latency in links if start is edge.target]
    return sorted(alone + _longest(links), key=lambda r: (-r.interval, r.kind, -r.latency, r.name))


def _links(graph: Graph, carried: list[Edge], clock: latencies.Clock) -> list[tuple[Node, Edge, int]]:
    """Return, for pairs of a dependence's target and a dependence that it reaches, the latency between the two.

    A triple (target, edge, cycles): `cycles` after the target starts, the target of `edge` may start. Only pairs within
    a strongly connected component are returned.
    """
    parts = {node: clock.part(node.delay) for node in graph.nodes}
    cycles = {node: node.cycles for node in graph.nodes}
    components = strongly_connected(graph, carried)
    members: dict[int, list[Node]] = {}
    inside: dict[int, list[Edge]] = {}
    for node in graph.nodes:
        if node in components:
            members.setdefault(components[node], []).append(node)
    for edge in carried:
        if components.get(edge.source) == components.get(edge.target) is not None:
            inside.setdefault(components[edge.source], []).append(edge)
    links = []
    for component, all_edges in inside.items():
        for target in dict.fromkeys(edge.target for edge in all_edges):
            start, end, begun = {target: 0.0}, {}, False
            for node in members[component]:
                if node is target:
                    begun = True
                    _, end[node] = _span(0.0, parts[node], cycles[node], node.kind)
                elif begun:
                    ready = [end[other] for other in node.inputs if other in end]
                    if ready:
                        least = _tree(ready, parts[node]) if node.gates > 1 else max(ready)
                        start[node], end[node] = _span(least, parts[node], cycles[node], node.kind)
            links += [(target, edge, _available(edge.source, start, end)) for edge in all_edges if edge.source in end]
    return links


def _available(source: Node, start: dict[Node, float], end: dict[Node, float]) -> int:
    """Return the first cycle in which a node's value can be used, a stored one by a load."""
    if not is_store(source):
        return ceil(end[source])
    if source.access.memory.register:
        return ceil(start[source])
    return floor(start[source]) + latencies.write_cycles()


def _longest(links: list[tuple[Node, Edge, int]]) -> list[Recurrence]:
    """Return the slowest recurrence with several loop-carried dependences, if it needs an interval above 1.

    Bisection over the interval; `_positive_cycle` tests one by the algorithm of Bellman and Ford.
    """
    enough, slowest = 1, _positive_cycle(links, 1)
    if slowest:
        low, enough = 1, MAX_INTERVAL  # `low` is too short an interval, `enough` is long enough
        while enough - low > 1:
            middle = (low + enough) // 2
            found = _positive_cycle(links, middle)
            low, enough, slowest = (middle, enough, found) if found else (low, middle, slowest)
    if len(slowest) < 2:  # recurrences with one dependence are listed already
        return []
    name = " -> ".join(dict.fromkeys(edge.name for _, edge, _ in slowest))
    latency, distance = sum(w for *_, w in slowest), sum(edge.distance for _, edge, _ in slowest)
    return [Recurrence(name, "cycle", latency, distance, False, slowest[-1][1].source.instruction.line)]


def _positive_cycle(links: list[tuple[Node, Edge, int]], interval: int) -> list[tuple[Node, Edge, int]]:
    """Return a dependence cycle with a latency above its distance times the interval; empty if there is none."""
    late: dict[Node, int] = {}
    came: dict[Node, tuple[Node, Edge, int]] = {}
    while True:
        converged = True
        for link in links:
            start, edge, latency = link
            value = late.get(start, 0) + latency - interval * edge.distance
            if value > late.get(edge.target, 0):
                late[edge.target], came[edge.target], converged = value, link, False
        steps = nx.DiGraph([(start, target) for target, (start, *_) in came.items()])
        with contextlib.suppress(nx.NetworkXNoCycle):
            return [came[target] for _, target in nx.find_cycle(steps)]
        if converged:
            return []


def _recurrence(edge: Edge, latency: int, promised: set[str]) -> Recurrence:
    memory = edge.source.access.memory if is_store(edge.source) else None
    known = memory is not None and memory.variable in promised
    kind = "value" if memory is None else "memory"
    return Recurrence(edge.name, kind, latency, edge.distance, known, edge.source.instruction.line)


def strongly_connected(graph: Graph, carried: list[Edge]) -> dict[Node, int]:
    """Return the number of the strongly connected component of each node that is on a cycle."""
    edges = [(other, node) for node in graph.nodes for other in node.inputs]
    following = nx.DiGraph([*edges, *((edge.source, edge.target) for edge in carried)])
    return {
        node: number
        for number, members in enumerate(nx.strongly_connected_components(following))
        for node in members
        if len(members) > 1 or following.has_edge(node, node)
    }
