"""Sensitivity of the initiation interval to latencies one cycle longer than the schedule assumes."""

from bttlab_hardware import latencies, solve
from bttlab_hardware.analyse import Schedule

MEMORIES = ("uram", "bram", "lutram")


def sensitivity(schedule: Schedule) -> dict[str, int]:
    """Return the initiation interval with one more cycle of each operator, and of a load of each kind of memory.

    Parameters
    ----------
    schedule : Schedule
    """
    return {name: _interval(schedule, name) for name in (*latencies.read_latencies()["cycles"], *MEMORIES)}


def _interval(schedule: Schedule, name: str) -> int:
    clock = latencies.Clock(schedule.clock_mhz)
    with latencies.one_more(name):
        carried = solve.edges(schedule.graph, schedule.promised)
        found = solve.recurrences(schedule.graph, carried, clock, schedule.promised)
    return max([schedule.interval, *(recurrence.interval for recurrence in found)])
