"""Find the machine's loop in the source, schedule it, and check it against the rules of HLS."""

import re
from dataclasses import dataclass
from math import ceil, floor
from pathlib import Path

from bttlab.util.errors import BttlabError
from bttlab_hardware import latencies, solve, violations
from bttlab_hardware.compile import CompiledSource, compile_source
from bttlab_hardware.graph import Graph, callee
from bttlab_hardware.ir import Function, Module, read_module
from bttlab_hardware.loops import Body, Loop, natural_loops
from bttlab_hardware.memories import Memories, Memory, Port, ports
from bttlab_hardware.places import Place, SourceLocations
from bttlab_hardware.pragmas import Pragma, Promise, promises, read_pragmas
from bttlab_hardware.violations import Violation

CLOCK_MHZ = 200
# Distances between a store and a load of one address that are guaranteed, by the constant of config.h that defines them
# (docs/processor.md). The check of programs guarantees that a result is read LATENCY steps later at the earliest, and
# that an accumulator is updated again SUM_DISTANCE steps later.
GUARANTEED_DISTANCES = {
    "LATENCY": ("bank_", "operand_buffer", "statistic"),
    "SUM_DISTANCE": ("sums", "accumulator", "largest", "largest_place"),
    # The loop's own code guarantees these: the size of the ring of counts, and the delay until a unit reads its queue.
    "COUNTED_CYCLES": ("ended_before", "begun_before"),
    "QUEUE_DISTANCE": ("queue",),
}


@dataclass(frozen=True)
class MemorySpan:
    """Latency from an iteration's first load of a memory to its last store there, which begin in these cycles.

    `depth` are the cycles from the load to the first load that sees the stored value.
    """

    memory: Memory
    load: int
    store: int
    depth: int


@dataclass(frozen=True)
class Schedule:
    """Result of the analysis of the source.

    Attributes
    ----------
    interval, stages : int
        Cycles between iterations, and from an iteration's first operator to its last.
    depth : int
        Cycles from a load to the first load that sees a result computed from it: the largest `MemorySpan.depth` of
        memories with a DEPENDENCE distance of LATENCY.
    promised : dict of str to Promise
        DEPENDENCE distance of each variable.
    """

    place: str
    clock_mhz: float
    interval: int
    stages: int
    depth: int
    ports: list[Port]
    spans: list[MemorySpan]
    recurrences: list[solve.Recurrence]
    violations: list[Violation]
    graph: Graph
    times: solve.Times
    places: SourceLocations
    memories: Memories
    promised: dict[str, Promise]
    constants: dict[str, int]


def analyse(
    unit: Path, guaranteed: dict[str, tuple[str, ...]] = GUARANTEED_DISTANCES, clock_mhz: int | None = None
) -> Schedule:
    """Analyse the loop of a source: the largest of its function `run`, at a clock, by default the source's own.

    `guaranteed` has prefixes of the memories' names by the constants of config.h that are their guaranteed distances.
    """
    source = compile_source(unit, clock_mhz)
    module = read_module(source.module)
    places = SourceLocations(module.metadata)
    function = next(function for function in module.functions if function.name == source.root)
    loops = natural_loops(function)
    if not loops:
        raise BttlabError("the source has no loop: code that is fully unrolled has no schedule")
    loop = max(loops, key=lambda loop: sum(len(function.blocks[block]) for block in loop.blocks))
    chain, end = places.loop_range(_loop_number(loop, function))
    return _schedule(source, module, places, function, loops, loop, chain[-1], end, guaranteed)


def _schedule(
    source: CompiledSource,
    module: Module,
    places: SourceLocations,
    function: Function,
    loops: list[Loop],
    loop: Loop,
    place: Place,
    end: int,
    guaranteed: dict[str, tuple[str, ...]],
) -> Schedule:
    pragmas = read_pragmas(source.preprocessed)
    inside = [p for p in pragmas if Path(p.file).name == Path(place.file).name and place.line <= p.line <= end]
    promised = promises(inside, source.constants)
    inner = [other for other in loops if other.blocks < loop.blocks]
    body = Body(function, loop, [other.header for other in inner])
    wrong = violations.of_pragmas(pragmas, source.preprocessed)
    wrong += [v for f in module.functions for v in violations.of_pointers(f, places)]
    wrong += [
        Violation("loop", f"a loop is left inside the body at {_start(other, function, places)}") for other in inner
    ]
    memories = Memories(module, pragmas)
    accesses, unresolved = violations.accesses_of(
        [i for block in body.order for i in function.blocks[block]], memories, places
    )
    wrong += unresolved
    if source.call_paths > 1:
        wrong.append(
            Violation(
                "copies", f"{source.call_paths} call paths lead to the loop at {place}: HLS may build a copy for each"
            )
        )
    used_ports = ports(accesses)
    wrong += violations.of_ports(used_ports, accesses, places)
    wrong += violations.of_promises(inside, used_ports)
    delays = _delays(module, places, pragmas, source.constants)
    marked = _mark_delays(function, delays)
    wrong += violations.of_loop(inside, [p for p in pragmas if p not in inside], marked, source.constants)
    clock = latencies.Clock(source.constants.get("CLOCK_MHZ", CLOCK_MHZ))
    graph = Graph(function, body, dict(accesses), clock.mhz)
    wrong += violations.of_operators(graph, places)
    carried = solve.edges(graph, promised)
    recurrences = solve.recurrences(graph, carried, clock, promised)
    interval = max([1, *(port.interval for port in used_ports), *(recurrence.interval for recurrence in recurrences)])
    times = solve.Times(graph, carried, clock, interval)
    if not times.converged:
        wrong.append(Violation("recurrence", f"no schedule with {interval} cycles between iterations was found"))
    recurrences += _exits(graph, times)
    interval = max(interval, *(recurrence.interval for recurrence in recurrences)) if recurrences else interval
    wrong += [_too_slow(recurrence, places) for recurrence in recurrences if recurrence.interval > 1]
    spans = _spans(graph, times)
    wrong += _of_promises(promised, source.constants, guaranteed)
    latency = source.constants.get("LATENCY")
    far = {v for v, p in promised.items() if p.distance == latency}
    guarded = [span.depth for span in spans if span.memory.variable in far]
    return Schedule(
        str(place),
        clock.mhz,
        interval,
        ceil(max(times.end.values(), default=0)) + 1,
        max(guarded, default=0),
        used_ports,
        spans,
        recurrences,
        list(dict.fromkeys(wrong)),
        graph,
        times,
        places,
        memories,
        promised,
        source.constants,
    )


def _delays(
    module: Module, places: SourceLocations, pragmas: list[Pragma], constants: dict[str, int]
) -> dict[str, tuple[int, Pragma]]:
    """Return latency and pragma of each delay block: a function, not inlined, that returns its argument.

    A pragma may name the first argument of a template: `delay<2, int>` takes 2 cycles.
    """
    latency_of = {}
    for function in module.functions:
        if not _returns_argument(function):
            continue
        end = next(iter(function.blocks.values()))[-1]
        place = places.chain(end.line)[-1]
        inside = [
            p for p in pragmas if Path(p.file).name == Path(place.file).name and place.start <= p.line <= place.line
        ]
        own = any(p.name == "INLINE" and p.says("off") for p in inside) and any(p.name == "PIPELINE" for p in inside)
        for pragma in (p for p in inside if own and p.name == "LATENCY"):
            least, most = pragma.values.get("min"), pragma.values.get("max")
            if least == most is not None:
                argument = re.search(r"<(\d+)", place.function)
                cycles = least if least.isdigit() else argument[1] if argument else constants[least]
                latency_of[function.name] = int(cycles), pragma
    return latency_of


def _returns_argument(function: Function) -> bool:
    """Return True if a function only stores its argument in a volatile variable and returns that variable."""
    if len(function.blocks) > 1:
        return False
    (block,) = function.blocks.values()
    instructions = [i for i in block if not callee(i).startswith("llvm.lifetime")]
    opcodes = [i.opcode for i in instructions]
    if opcodes != ["alloca", "store", "load", "ret"]:
        return False
    variable, store, load, end = instructions
    kept = all("volatile" in i.text.split() and i.operands[-1] is variable for i in (store, load))
    return kept and store.operands[0].kind == "argument" and end.operands[0] is load


def _mark_delays(function: Function, delays: dict[str, tuple[int, Pragma]]) -> int:
    """Replace calls of delay blocks by `delay` instructions; return the number of pragmas that these follow."""
    called = set()
    for instruction in (i for block in function.blocks.values() for i in block):
        if (name := callee(instruction)) in delays:
            instruction.opcode = "delay"
            instruction.delay, pragma = delays[name]
            del instruction.operands[1:]
            called.add(pragma.place)
    return len(called)


def _loop_number(loop: Loop, function: Function) -> int | None:
    return next((i.loop for latch in loop.latches for i in function.blocks[latch] if i.loop is not None), None)


def _start(loop: Loop, function: Function, places: SourceLocations) -> str:
    chain, _ = places.loop_range(_loop_number(loop, function))
    return str(chain[-1]) if chain else "an unknown line"


def _exits(graph: Graph, times: solve.Times) -> list[solve.Recurrence]:
    """Return a recurrence for each exit condition: the next iteration starts when the condition is known."""
    name = "whether there is a next iteration"
    return [
        solve.Recurrence(name, "exit", max(1, ceil(times.end[node])), 1, False, node.instruction.line)
        for node in graph.exits
    ]


def _too_slow(recurrence: solve.Recurrence, places: SourceLocations) -> Violation:
    what = {
        "memory": "from a load to the load that sees the result",
        "value": "from one iteration to the next",
        "cycle": "for the dependence cycle",
        "exit": "until it is known",
    }
    distance = f"{recurrence.distance} iterations" if recurrence.distance > 1 else "one iteration"
    promise = "the pragma promises" if recurrence.promised else "the distance is"
    return Violation(
        "exit" if recurrence.kind == "exit" else "recurrence",
        f"{recurrence.name}: {recurrence.latency} cycles {what[recurrence.kind]}, {promise} {distance} "
        f"(at {places.text(recurrence.place)})",
    )


def _spans(graph: Graph, times: solve.Times) -> list[MemorySpan]:
    loads: dict[Memory, list[int]] = {}
    stores: dict[Memory, list[int]] = {}
    for node in graph.nodes:
        if solve.is_load(node):
            loads.setdefault(node.access.memory, []).append(floor(times.start[node]))
        elif solve.is_store(node):
            stores.setdefault(node.access.memory, []).append(times.available(node))
    both = [memory for memory in loads if memory in stores and not memory.register]
    spans = [
        MemorySpan(m, min(loads[m]), max(stores[m]) - latencies.write_cycles(), max(stores[m]) - min(loads[m]))
        for m in both
    ]
    return sorted(spans, key=lambda span: (-span.depth, span.memory.name))


def _of_promises(
    promised: dict[str, Promise], constants: dict[str, int], guaranteed: dict[str, tuple[str, ...]]
) -> list[Violation]:
    """Return the DEPENDENCE distances that nothing guarantees."""
    broken = []
    for variable, promise in promised.items():
        names = [n for n, prefixes in guaranteed.items() if n in constants and variable.startswith(prefixes)]
        least, name = min(((constants[n], n) for n in names), default=(0, ""))
        if promise.distance > least:
            rule = f"programs guarantee {name} = {least}" if name else "no rule of programs guarantees that"
            broken.append(Violation("promise", f"{variable}: a distance of {promise.distance} is promised, {rule}"))
    return broken
