"""Exercises of notebook 05."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from bttlab.estimate.card import CLOCK_MHZ
from bttlab.lab.design import Design
from bttlab.teaching.exercises.answers import require_number
from bttlab.teaching.exercises.check import exercise, require
from bttlab.util.errors import BttlabError


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
    """The bank that has no room for so many encoders of rank 12."""
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
    """A design."""
    limit = 1.5 * Design(2, 12, "auto").estimate(lengths).energy_per_epoch.value
    joules = answer.estimate(lengths).energy_per_epoch.value
    require(answer.encoders == 4, f"your design has {answer.encoders} encoders, 4 are asked for")
    require(joules < limit, f"your design takes {joules:.0f} J per epoch; fewer than {limit:.0f} J are asked for")
    return (
        f"{joules:.0f} J are under {limit:.0f} J. Another order of contraction changes no parameter; another rank does."
    )


@exercise("05.4", "run the sweep to its end, then take its values of vary, and add one more key.")
def seeds(answer: Any, spec: Any, trials: Sequence) -> str:
    """A sweep's spec."""

    def values(vary: Mapping) -> dict:
        return {name: set(of) for name, of in vary.items()}

    require(trials, "the sweep above has no finished trial: start it, and wait for its end")
    for name in ("name", "fixed", "objective"):
        given, wanted = getattr(answer, name), getattr(spec, name)
        require(given == wanted, f"your {name} is {given!r}, the sweep's {wanted!r}")
    given, wanted = values(answer.vary), {**values(spec.vary), "seed": {0, 1}}
    require(given == wanted, f"you vary {given}; {wanted} are asked for")
    return (
        f"{len(trials)} of {2 * len(trials)} are done: a trial is known by the digest of its configuration. "
        "SweepView(my_spec) runs the rest."
    )
