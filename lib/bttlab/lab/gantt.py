"""Draw the unit timeline of a program."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import StrMethodFormatter

from bttlab.compiler.instruction import UNIT_NAMES, Instruction
from bttlab.compiler.listing import part_of
from bttlab.compiler.timing import Timing, busy_shares
from bttlab.lab.charts import PALETTE, legend_below, new_figure, style

STAGES = {"FP": "forward", "BP": "backward", "PU": "update of the sample before"}
COLOURS = dict(zip(STAGES, PALETTE, strict=False))
HEIGHT = 0.8  # of a bar, of 1 from lane to lane


def gantt_figure(instructions: Sequence[Instruction], timing: Timing, title: str) -> Figure:
    """Draw the timeline of the units and of the parts of the model."""
    parts = sorted({part_of(i) for i in instructions}, key=_place_of)
    figure = new_figure(13, 2.4 + 0.36 * (len(UNIT_NAMES) + len(parts)))
    units, models = figure.subplots(2, 1, sharex=True, height_ratios=(len(UNIT_NAMES), len(parts)))
    shares = busy_shares(instructions, timing)
    lanes = [f"{name} ({share:.0%})" for name, share in zip(UNIT_NAMES, shares, strict=True)]
    # A thin line of paper between bars of one colour, unless they are too short for one.
    looks = {"look_of": lambda i: (COLOURS[i.label[0]], ""), "line_width": 0.15}
    draw_lanes(units, instructions, timing, lanes, lambda i: i.unit, **looks)
    draw_lanes(models, instructions, timing, parts, lambda i: parts.index(part_of(i)), **looks)
    style(units, f"{title}: units, and the part of the cycles in which they work", "", "")
    style(models, "the same by part of the model", "cycle (modelled)", "")
    models.set_xlim(0, timing.cycles)
    stages = {i.label[0] for i in instructions}
    legend_below(
        figure, marks=[Patch(color=COLOURS[stage], label=STAGES[stage]) for stage in STAGES if stage in stages]
    )
    return figure


def draw_lanes(
    axes: Axes,
    instructions: Sequence[Instruction],
    timing: Timing,
    lanes: Sequence[str],
    lane_of: Callable[[Instruction], int],
    look_of: Callable[[Instruction], tuple[str, str]],
    line_width: float,
) -> None:
    """Draw a bar for each instruction that does steps.

    Lanes are named from the top. `look_of` returns an instruction's colour and hatch; `line_width` is that of the line
    of paper around a bar, in points.
    """
    bars = defaultdict(list)
    for i, begin, end in zip(instructions, timing.begin, timing.end, strict=True):
        if end > begin:
            bars[(lane_of(i), *look_of(i))].append((begin, end - begin))
    for (lane, colour, hatch), places in bars.items():
        place = lane - HEIGHT / 2, HEIGHT
        axes.broken_barh(places, place, facecolor=colour, hatch=hatch, edgecolor="white", linewidth=line_width)
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _place_of(part: str) -> tuple[int, int]:
    if part.startswith("encoder"):
        return 1, int(part.split()[1])
    return (0, 0) if part == "embedding" else (2, 0)
