"""Draw the program of one layer: unit timeline, and cycles over tokens."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from bttlab.card.layer import layer_program
from bttlab.compiler.instruction import UNIT_NAMES, Instruction
from bttlab.compiler.layer import LayerProgram
from bttlab.compiler.machine import M
from bttlab.compiler.timing import intervals_of, time_program
from bttlab.lab.charts import legend_below, new_figure
from bttlab.lab.flow_figures import COLOURS_BY_NAME, OTHER_COLOURS
from bttlab.lab.gantt import draw_lanes
from bttlab.lab.picture import Picture

KINDS = ("engines, with tokens", "engines, cores alone", "re-ordering and moving", "row operations")
COLOURS = dict(zip(KINDS, ("#56B4E9", "#E69F00", "#CC79A7", "#F0E442"), strict=True))  # no colour of a flow
HATCH = {"FP": "", "BP": "////"}
WAITING = "waiting for results"
NAMED = 0.015  # of the figure's width: what a letter of a bar's name takes


def kind_of(program: LayerProgram, instruction: Instruction) -> str:
    """Return what an instruction of a layer's program does, one of `KINDS`."""
    if instruction.unit <= M.ENGINE_1:
        return KINDS[0] if program.has_tokens(instruction) else KINDS[1]
    return KINDS[2] if instruction.is_drain or instruction.unit == M.SHUFFLE else KINDS[3]


def draw_schedule(programs: Mapping[str, LayerProgram]) -> Picture:
    """Draw unit timelines, a panel for each program, over the same cycles (modelled).

    Parameters
    ----------
    programs : mapping of str to LayerProgram
        By the panels' titles.

    Returns
    -------
    Picture
        The timelines.
    """
    units = [n for n in range(len(UNIT_NAMES)) if any(i.unit == n for p in programs.values() for i in p.forward)]
    figure = new_figure(8.3, 0.7 + 2.1 * len(programs))
    panels = figure.subplots(len(programs), 1, sharex=True, squeeze=False)
    timings = {name: time_program(program.forward, program.tokens, False) for name, program in programs.items()}
    most = max(timing.cycles for timing in timings.values())
    for axes, (name, program) in zip(panels[:, 0], programs.items(), strict=True):
        _draw_units(axes, program, timings[name], units, most)
        title = f"{name}: {timings[name].cycles:,} cycles, {program.tokens} tokens (modelled)"
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    panels[-1, 0].set(xlabel="cycle", xlim=(0, most))
    marks = [Patch(facecolor=colour, label=kind) for kind, colour in COLOURS.items()]
    marks.append(Patch(facecolor="white", edgecolor="black", hatch=HATCH["BP"], label="backward pass"))
    legend_below(figure, 3, marks)
    names = ", ".join(UNIT_NAMES[n] for n in units)
    return Picture(figure, f"Which of the units ({names}) works when, a panel a program.")


def _draw_units(axes: Axes, program: LayerProgram, timing, units: Sequence[int], most: int) -> None:
    def look_of(instruction):
        return COLOURS[kind_of(program, instruction)], HATCH[instruction.label[0]]

    lanes = [UNIT_NAMES[unit] for unit in units]
    draw_lanes(axes, program.forward, timing, lanes, lambda i: units.index(i.unit), look_of, 0.5)
    axes.tick_params(axis="y", labelsize=8)
    for instruction, begin, end in zip(program.forward, timing.begin, timing.end, strict=True):
        name = instruction.label[2].split(" = ")[0]
        if instruction.unit <= M.ENGINE_1 and end - begin > NAMED * (1 + len(name)) * most:
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.85}
            place = (begin + end) / 2, units.index(instruction.unit)
            axes.text(*place, name, ha="center", va="center", fontsize=7, bbox=box, clip_on=True)
    axes.spines[["top", "right"]].set_visible(False)


def cycles_by_kind(program: LayerProgram) -> dict[str, int]:
    """Return a program's cycles by kind, together all; where several units work, the first of `KINDS` counts."""
    timing = time_program(program.forward, program.tokens, False)
    cycles = dict.fromkeys((*KINDS, WAITING), 0)
    for count, working in intervals_of(program.forward, timing, lambda i: kind_of(program, i)):
        cycles[next((kind for kind in KINDS if working[kind]), WAITING)] += count
    return cycles


def draw_cycles(tokens: Sequence[int], layer: Any, flows: Mapping[str, Any]) -> Picture:
    """Draw the modelled cycles of both passes over tokens: all flows in one panel, then each by what they are spent on.

    Parameters
    ----------
    tokens : sequence of int
        On the axis.
    layer : TTLinear
        The layer.
    flows : mapping of str to flow
        As for `bttlab.card.layer.layer_program`, by the panels' titles.

    Returns
    -------
    Picture
        A panel more than flows.
    """
    figure = new_figure(8.3, 3.4)
    together, *panels = figure.subplots(1, 1 + len(flows), sharey=True)
    said = []
    kinds = (*KINDS, WAITING)
    colours = [*COLOURS.values(), "0.8"]
    markers, others = itertools.cycle(("o-", "s--", "^-.", "D:")), itertools.cycle(OTHER_COLOURS)
    for axes, (name, flow) in zip(panels, flows.items(), strict=True):
        counts = [cycles_by_kind(layer_program(layer, t, flow)) for t in tokens]
        rows = [[count[kind] / 1e3 for count in counts] for kind in kinds]
        first, last = (sum(count.values()) for count in (counts[0], counts[-1]))
        said.append(f"{name} from {first:,} at {tokens[0]} to {last:,} at {tokens[-1]}")
        totals = [sum(count.values()) / 1e3 for count in counts]
        colour = COLOURS_BY_NAME.get(name) or next(others)
        together.plot(tokens, totals, next(markers), color=colour, label=name, markersize=4)
        axes.stackplot(tokens, rows, labels=kinds, colors=colours)
        axes.set_title(name)
    together.set_title("all")
    for axes in (together, *panels):
        axes.set(xlabel="tokens", xlim=(tokens[0], tokens[-1]), ylim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    together.set_ylabel("thousand cycles (modelled)")
    legend_below(figure, 4)
    return Picture(figure, f"Modelled cycles of both passes over tokens, by what they are spent on: {'; '.join(said)}.")
