"""Exercises of notebook 05."""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from math import ceil
from typing import Any

from bttlab.estimate.card import CLOCK_MHZ
from bttlab.lab.design_explorer import Design
from bttlab.teaching.exercises.answers import MODES, RANK, called, require_number
from bttlab.teaching.exercises.check import exercise, require
from bttlab.tensor import flow_cost
from bttlab.util.errors import BttlabError

LANES = 256  # multipliers of an engine
Products = Mapping[str, tuple[int, Sequence[str]]]  # result -> (cycles, what it multiplies)


def engine_products(flow: str, tokens: int) -> Products:
    """Return a 768 x 768 layer's forward products, in an order in which they can be computed.

    Parameters
    ----------
    flow : str
        One of `bttlab.tensor.FLOWS`.
    tokens : int
        Number of rows of x.

    Returns
    -------
    dict of str to tuple
        By a product's result: its cycles on an engine that is never idle, and the tensors that it multiplies.
    """
    steps = flow_cost(flow, tokens, *MODES, RANK).forward.steps
    names = (re.findall(r"\w+", step.name) for step in steps)
    return {result: (ceil(step.macs / LANES), reads) for (result, *reads), step in zip(names, steps, strict=True)}


@exercise("05.1", "{c: Design(clock_mhz=c).estimate(LENGTHS).energy_per_epoch.value for c in range(50, 201, 50)}")
def joules_by_clock(answer: Any, lengths: Mapping) -> str:
    """{MHz: joules}."""
    clocks = range(50, CLOCK_MHZ + 1, 50)
    require(set(answer) == set(clocks), f"your clocks are {sorted(answer)}; {list(clocks)} are asked for")
    for clock in clocks:
        joules = Design(clock_mhz=clock).estimate(lengths).energy_per_epoch.value
        require_number(answer[clock], joules, 5e-3, f" at {clock} MHz")
    return "The board's idle power is paid by the second, so it pays to be fast."


@cache
def _full_bank(encoders: int) -> int | None:
    """Return the number of the bank too small for `encoders` encoders of rank 12; None if they fit."""
    try:
        Design(encoders, 12).estimate({13: 1})
    except BttlabError as error:
        return int(re.search(r"of bank (\d+)", str(error))[1])
    return None


@exercise("05.2", "move the encoders' slider until the line names a bank; the answer is (encoders, bank).")
def most_encoders(answer: Any) -> str:
    """(encoders, bank)."""
    encoders, bank = answer
    require(_full_bank(encoders) is None, f"{encoders} encoders do not fit")
    full = _full_bank(encoders + 1)
    require(full is not None, f"{encoders + 1} encoders fit, too")
    bank = str(bank).removeprefix("bank ")
    require(bank == str(full), f"it is not bank {bank} that has no room for {encoders + 1} encoders")
    return "Depth is bounded by the banks that hold parameters."


@exercise(
    "05.3", "try Design(4, rank, flow) with small ranks; 1.5 times the joules of Design(2, 12, 'auto') are the limit."
)
def thrifty(answer: Any, lengths: Mapping) -> str:
    limit = 1.5 * Design(2, 12, "auto").estimate(lengths).energy_per_epoch.value
    joules = answer.estimate(lengths).energy_per_epoch.value
    require(answer.encoders == 4, f"your design has {answer.encoders} encoders, 4 are asked for")
    free = {name: getattr(answer, name) for name in ("encoders", "rank", "flow", "feed_forward")}
    alike = replace(Design(), **free)
    require(answer == alike, f"your design is {answer}; rank and flow are yours to choose, so make it {alike}")
    require(joules < limit, f"your design takes {joules:.0f} J per epoch; fewer than {limit:.0f} J are asked for")
    return (
        f"{joules:.0f} J are under {limit:.0f} J. Another order of contraction changes no parameter; another rank does."
    )


@exercise("05.4", "run the sweep to its end, then take its values of vary, and add one more key.")
def seeds(answer: Any, spec: Any, trials: Sequence) -> str:
    def values(vary: Mapping) -> dict:
        return {name: sorted(of, key=repr) for name, of in vary.items()}

    require(trials, "the sweep above has no finished trial: start it, and wait for its end")
    for name in (field.name for field in fields(spec) if field.name != "vary"):
        mine, theirs = getattr(answer, name), getattr(spec, name)
        require(mine == theirs, f"your {name} is {mine!r}, the sweep's {theirs!r}")
    given, wanted = values(answer.vary), {**values(spec.vary), "seed": [0, 1]}
    require(given == wanted, f"you vary {given}; {wanted} are asked for")
    return (
        f"{len(trials)} of {2 * len(trials)} are done: a trial is known by the digest of its configuration. "
        "SweepView(my_spec) runs the rest."
    )


def _scheduled(products: Products) -> dict[str, tuple[int, int]]:
    """Each product as early as it can, on the engine that can take it first."""
    free, ends, schedule = [0, 0], {}, {}
    for result, (cycles, reads) in products.items():
        ready = max((ends[name] for name in reads if name in ends), default=0)
        engine = min((0, 1), key=lambda number: max(free[number], ready))
        start = max(free[engine], ready)
        free[engine] = ends[result] = start + cycles
        schedule[result] = engine, start
    return schedule


def _require_schedules(schedule: Callable, cases: Sequence[Products]) -> None:
    """Raise `Wrong` unless all is done as early as by the rule, nothing too early, nothing beside another.

    Where both engines can begin a product equally early, the rule leaves the choice, on which later products depend.
    """
    for products in cases:
        best = max(start + products[result][0] for result, (_, start) in _scheduled(products).items())
        planned = called(schedule, products)
        require(set(planned) == set(products), f"you schedule {sorted(planned)}; the products are {sorted(products)}")
        ends = {result: start + products[result][0] for result, (_, start) in planned.items()}
        for result, (engine, start) in planned.items():
            before = [ends[name] for name in products[result][1] if name in products]
            beside_it = [r for r in planned if r != result and planned[r][0] == engine and planned[r][1] < ends[result]]
            require(engine in (0, 1), f"{result} is on engine {engine!r}; there are 0 and 1")
            ready = max(before, default=0)
            require(start >= ready, f"{result} begins at {start}; what it reads is ready at {ready}")
            beside = next((r for r in beside_it if ends[r] > start), None)
            require(beside is None, f"{result} begins at {start} on engine {engine}, where {beside} still runs")
        late = _late(products, planned) if max(ends.values()) > best else ""
        require(not late, f"your schedule takes {max(ends.values()):,} cycles; {best:,} are enough: {late}")


def _late(products: Products, planned: Mapping[str, tuple[int, int]]) -> str:
    """Return which product begins later than it can on an engine that is free, after those before it; "" if none."""
    free, ends = [0, 0], {}
    for result, (cycles, reads) in products.items():
        engine, start = planned[result]
        earliest = max(min(free), *(ends[name] for name in reads if name in ends), 0)
        if start > earliest:
            return f"{result} begins at {start} and could at {earliest}"
        ends[result] = start + cycles
        free[engine] = max(free[engine], ends[result])
    return ""


def _random_products(seed: int) -> Products:
    chance = random.Random(seed)
    names = [f"t{k}" for k in range(12)]
    return {
        name: (chance.randrange(1, 50), chance.sample([*names[:k], "x"], min(2, k + 1))) for k, name in enumerate(names)
    }


@exercise(
    "05.5",
    "keep when each engine is free and when each product ends; a start is the later of both, and at least 0.",
    hidden=lambda schedule: _require_schedules(
        schedule, [*map(_random_products, range(20)), *(engine_products("right_to_left", t) for t in (1, 32))]
    ),
)
def two_engines(answer: Any) -> str:
    """schedule(products) -> {result: (engine, start)}."""
    products = engine_products("bidirectional", 13)
    _require_schedules(answer, [products])
    both = max(start + products[result][0] for result, (_, start) in called(answer, products).items())
    alone = sum(cycles for cycles, _ in products.values())
    return f"{both:,} cycles on two engines, {alone:,} on one: the chain from the tokens to y is as long as it is."
