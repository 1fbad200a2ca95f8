"""Draw signals that were recorded while the kernel's Verilog ran, beside the modelled timeline of its program."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from bttlab.card.constants import read_data
from bttlab.card.layer import layer_program
from bttlab.compiler.instruction import UNIT_NAMES
from bttlab.compiler.layer import LayerProgram, LayerShape
from bttlab.compiler.timing import time_program
from bttlab.lab.charts import new_figure
from bttlab.lab.cycle_figures import COLOURS, HATCH, kind_of
from bttlab.lab.gantt import draw_lanes
from bttlab.lab.picture import Picture

HIGH = 0.6  # of a signal that is 1, of 1 from signal to signal


def draw_signals(window: tuple[int, int] = (2950, 3900)) -> Picture:
    """Draw what each unit does (modelled), and its `busy` and `ends` as they were recorded in Verilator.

    Parameters
    ----------
    window : (int, int)
        Cycles that the lower figure shows.
    """
    record = read_data("signals")
    shape = LayerShape(*(tuple(sizes) for sizes in record["layer"].values()))
    program = layer_program(shape, record["tokens"], record["flow"])
    units = [n for n, name in enumerate(UNIT_NAMES) if record["signals"][name]["ends"]]
    figure = new_figure(8.3, 6.8)
    whole, zoomed = figure.subplots(2, 1)
    _draw(whole, program, record, units, (0, record["cycles"]), ("busy",))
    _draw(zoomed, program, record, units, window, ("busy", "ends"))
    of = f"{record['flow'].replace('bidirectional', 'bi-directional')}, {record['tokens']} tokens"
    whole.set_title(
        f"{of}: instructions (modelled), signals ({record['tool']})", loc="left", fontsize=10, weight="bold"
    )
    zoomed.set_title(f"cycles {window[0]:,} to {window[1]:,}", loc="left", fontsize=10, fontweight="bold")
    zoomed.set_xlabel("cycle")
    names = ", ".join(UNIT_NAMES[n] for n in units)
    return Picture(
        figure, f"When the units ({names}) work by the model, and when the signal busy of each is 1 in Verilog."
    )


def _draw(
    axes: Axes,
    program: LayerProgram,
    record: dict[str, Any],
    units: Sequence[int],
    window: tuple[int, int],
    signals: Sequence[str],
) -> None:
    """Draw a lane for each unit's instructions, and one below it for each of its signals."""
    lanes = 1 + len(signals)
    labels = [text for unit in units for text in (UNIT_NAMES[unit], *signals)]
    timing = time_program(program.forward, program.tokens, False)
    look = {"look_of": lambda i: (COLOURS[kind_of(program, i)], HATCH[i.label[0]]), "line_width": 0.5}
    draw_lanes(axes, program.forward, timing, labels, lambda i: lanes * units.index(i.unit), **look)
    for place, unit in enumerate(units):
        for n, name in enumerate(signals, 1):
            levels = levels_of(record["signals"][UNIT_NAMES[unit]], name, record["cycles"])
            cycles = np.arange(*window)
            base = lanes * place + n + HIGH / 2
            axes.step(cycles, base - HIGH * levels[slice(*window)], where="post", color="black", linewidth=0.8)
    axes.set_xlim(*window)
    axes.tick_params(axis="y", labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def levels_of(signals: dict[str, list[int]], name: str, cycles: int) -> np.ndarray:
    """Return a recorded signal in each cycle, 0 or 1.

    Parameters
    ----------
    signals : dict of str to list of int
        Of a unit: cycles in which `busy` changes, and in which `ends` is 1.
    name : {"busy", "ends"}
    cycles : int
    """
    levels = np.zeros(cycles, int)
    levels[signals[name]] = 1
    return np.cumsum(levels) % 2 if name == "busy" else levels
