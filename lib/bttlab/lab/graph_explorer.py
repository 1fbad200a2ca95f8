"""A model's graph: choose an operation, see its instructions, its cycles, and its line of the module's file."""

from functools import lru_cache
from html import escape

import ipywidgets as widgets
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import MouseEvent
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Curve

from bttlab.compiler.graph import Graph, graph_of_config
from bttlab.compiler.instruction import Bound, Instruction
from bttlab.compiler.listing import instruction_line
from bttlab.compiler.module import ModuleModel
from bttlab.compiler.program import ModelProgram, Options, compile
from bttlab.compiler.timing import Timing, time_program
from bttlab.estimate.profile import cycles_by_instruction
from bttlab.lab.charts import PALETTE, new_figure, style
from bttlab.lab.explorer import Explorer, control, row, slider
from bttlab.lab.gantt import COLOURS, STAGES
from bttlab.model import FLOW_TITLES, PAPER_FLOW, ModelConfig
from bttlab.model.choices import TYPICAL_TOKENS

ROWS = 32  # of the figure; of a longer graph, those near the operation that is chosen
NAME = 30  # letters of a name in the figure
WIDTH, ROW_HEIGHT, HEAD_HEIGHT = 4.65, 0.185, 1.05  # inches; ipympl's canvas, and with it the mouse, up to 4.7
PASSES = {"FP": "forward", "BP": "backward", "PU": "update"}
_SMALL = {"fontsize": 7.5}
Table = dict[tuple[int | None, str], int]  # cycles by operation and pass


class GraphExplorer(Explorer):
    """Choose an operation of a model's graph in the list, or click it in the figure where `%matplotlib widget` is on.

    Cycles are modelled, of a sample with an update pending: a cycle counts for the first instruction of the program
    that needs it, so that the operations' cycles add up to the sample's.

    Parameters
    ----------
    model : ModelConfig or ModuleModel
        A configuration, or what `bttlab.trace` returns of a PyTorch module: the lines of its file are those of the
        innermost function outside of PyTorch that ran when the operation was recorded.
    flow : str
        Order of contraction.
    tokens : int
        Of the sample.
    """

    def __init__(self, model: ModuleModel | ModelConfig, flow: str = PAPER_FLOW, tokens: int = TYPICAL_TOKENS):
        self.model = model
        self.graph: Graph = graph_of_config(model) if isinstance(model, ModelConfig) else model.graph
        self.program: ModelProgram = compile(model, Options(flow))
        self._cycles_of = lru_cache(64)(self._make_cycles)
        self._producer = {op.output: number for number, op in enumerate(self.graph.operations)}
        names = [f"{op.name} ({op.kind})" for op in self.graph.operations]  # a typed letter finds one
        options = list(zip(names, range(len(names)), strict=True))
        self.operation = control(widgets.Select, "operation", "455px", options=options, rows=7)
        flows = [(title, flow) for flow, title in FLOW_TITLES.items()]
        self.flow = control(widgets.Dropdown, "flow", options=flows, value=flow)
        self.tokens = slider(min(tokens, model.sequence_length), 2, model.sequence_length, "tokens")
        self._listing = widgets.HTML(layout={"flex": "1 1 380px", "min_width": "0"})
        self._rows = min(len(names), ROWS)
        figure = new_figure(WIDTH, HEAD_HEIGHT + ROW_HEIGHT * self._rows)
        self._axes, self._bars = figure.subplots(1, 2, sharey=True, width_ratios=(1.9, 1))
        self.operation.value = int(np.argmax([self.cycles(number) for number in range(len(names))]))
        controls = [row(self.operation, widgets.VBox([self.flow, self.tokens]))]
        super().__init__(figure, controls=controls, beside=self._listing)
        figure.canvas.mpl_connect("button_press_event", self._click)

    def instructions(self, number: int) -> list[tuple[int, Instruction]]:
        """Return the instructions of an operation in the program of a sample, with their numbers there."""
        return [(n, i) for n, i in enumerate(self.program.sample) if i.node == number]

    def cycles(self, number: int) -> int:
        """Return the cycles of a sample that count for an operation."""
        table = self._cycles_of(self.flow.value, self.tokens.value)[2]
        return sum(count for (node, _), count in table.items() if node == number)

    def _make_cycles(self, flow: str, tokens: int) -> tuple[Timing, np.ndarray, Table]:
        """Return the times of a sample's instructions, the cycles that count for each, and their sums."""
        sample = compile(self.model, Options(flow)).sample
        cycles = cycles_by_instruction(sample, [tokens])[:, 0]
        table: Table = {}
        for instruction, count in zip(sample, cycles.tolist(), strict=True):
            key = instruction.node, instruction.label[0]
            table[key] = table.get(key, 0) + count
        return time_program(sample, tokens), cycles, table

    def _click(self, event: MouseEvent) -> None:
        """Choose the operation whose row is clicked."""
        if event.inaxes in (self._axes, self._bars) and event.ydata is not None:
            number = round(event.ydata)
            if 0 <= number < len(self.graph.operations):
                self.operation.value = number

    def _update(self) -> tuple[str, str]:
        self.program = compile(self.model, Options(self.flow.value))
        timing, cycles, table = self._cycles_of(self.flow.value, self.tokens.value)
        number, operations = self.operation.value, self.graph.operations
        first = max(0, min(number - self._rows // 2, len(operations) - self._rows))
        shown = range(first, first + self._rows)
        self._draw_graph(shown)
        self._draw_bars(shown, table)
        for axes in (self._axes, self._bars):
            axes.set_ylim(shown[-1] + 0.6, first - 0.6)
        self._listing.value = self._list(number, timing, cycles)
        total, own = int(cycles.sum()), self.cycles(number)
        rest = total - sum(self.cycles(n) for n in range(len(operations)))
        results = (
            f"<b>{escape(operations[number].name)}</b>: {len(self.instructions(number))} of {len(self.program.sample)} "
            f"instructions, <b>{own:,}</b> of {total:,} cycles ({own / total:.1%}, modelled); "
            f"{rest} cycles are of no operation"
        )
        return results, ""

    def _draw_graph(self, shown: range) -> None:
        axes, operations = self._axes, self.graph.operations
        axes.clear()
        axes.set_axis_off()
        of = f"{shown[0] + 1} to {shown[-1] + 1} of " if len(shown) < len(operations) else ""
        axes.set_title(f"Operations: {of}{len(operations)}", loc="left", fontweight="bold", fontsize=10)
        for number in range(len(operations)):
            for producer in self._inputs(number):
                if number in shown or producer in shown:
                    self._draw_edge(axes, producer, number)
        for number in shown:
            is_chosen = number == self.operation.value
            axes.plot(0, number, "o", color=PALETTE[4] if is_chosen else "0.55", markersize=7 if is_chosen else 4.5)
            weight = "bold" if is_chosen else "normal"
            axes.text(0.5, number, _short(operations[number].name), va="center", fontweight=weight, **_SMALL)
        axes.set_xlim(-2.6, 9)

    def _inputs(self, number: int) -> list[int]:
        """Return the operations that compute what an operation reads."""
        makers = (self._producer.get(matrix.base or matrix) for matrix in self.graph.operations[number].inputs)
        return sorted({maker for maker in makers if maker is not None})

    def _draw_edge(self, axes: Axes, start: int, end: int) -> None:
        """Draw a line from an operation to one that reads its output: beside the rows between, in an arc."""
        chosen = self.operation.value
        colour = PALETTE[0] if end == chosen else PALETTE[1] if start == chosen else "0.75"
        bend = 0.0 if end - start == 1 else -min(0.45 * (end - start) ** 0.75 + 0.25, 2.4)
        points = [(0, start), (bend * 4 / 3, start + 0.1), (bend * 4 / 3, end - 0.1), (0, end)]
        curve = Curve(points, [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4])
        hot = chosen in (start, end)
        axes.add_patch(
            PathPatch(curve, fill=False, edgecolor=colour, linewidth=1.8 if hot else 0.9, zorder=2 if hot else 1)
        )

    def _draw_bars(self, shown: range, table: Table) -> None:
        axes = self._bars
        axes.clear()
        style(axes, "", "cycles (modelled)", "")
        left = np.zeros(len(shown))
        for stage, colour in COLOURS.items():
            counts = np.array([table.get((number, stage), 0) for number in shown])
            axes.barh(list(shown), counts, left=left, color=colour, height=0.7, label=PASSES[stage])
            left += counts
        every = [sum(table.get((n, stage), 0) for stage in STAGES) for n in range(len(self.graph.operations))]
        axes.set_xlim(0, 1.05 * max(every))  # the same in all windows
        axes.axhspan(self.operation.value - 0.5, self.operation.value + 0.5, color=PALETTE[4], alpha=0.2, linewidth=0)
        axes.set_yticks(list(shown), [self.graph.operations[number].name for number in shown])
        axes.tick_params(axis="y", left=False, labelleft=False)
        axes.tick_params(axis="x", labelsize=7.5)
        axes.locator_params(axis="x", nbins=3)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.xaxis.label.set_size(8)
        axes.grid(visible=False, axis="y")
        axes.legend(fontsize=7, ncols=1, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)

    def _list(self, number: int, timing: Timing, cycles: np.ndarray) -> str:
        """Return the operation's line of the file, and its instructions with their cycles, as HTML."""
        op, line = self.graph.operations[number], self.graph.operations[number].output.line
        where = "" if isinstance(self.model, ModelConfig) else "<br>of no file that Python knows"
        where = where if line is None else f"<br>{escape(str(line))}"
        source = f"<pre style='margin:2px 0'>{escape(line.text)}</pre>" if line is not None and line.text else ""
        parts = [
            f"<b>{escape(op.name)}</b>, {escape(op.kind)}: {_shape(op.output.tokens, op.output.features)} from "
            f"{escape(', '.join(matrix.name for matrix in op.inputs) or 'the token ids')}{where}{source}"
        ]
        found = self.instructions(number)
        for stage, name in PASSES.items():
            lines = [(n, i) for n, i in found if i.label[0] == stage]
            if lines:
                own = int(sum(cycles[n] for n, _ in lines))
                parts.append(f"<b>{name}</b>: {_count(len(lines), 'instruction')}, {own:,} cycles (modelled)")
                parts += (_line(n, i, timing.begin[n], timing.end[n], int(cycles[n])) for n, i in lines)
        if not found:
            parts.append(f"no instruction of its own: {self._why_none(number)}")
        words = f"Instructions of {op.name} at {self.tokens.value} tokens"
        look = "max-height:560px;overflow:auto;line-height:1.35;font-size:12px"
        body = "".join(f"<div>{part}</div>" for part in parts)
        return f"<div tabindex='0' role='region' aria-label='{escape(words)}' style='{look}'>{body}</div>"

    def _why_none(self, number: int) -> str:
        output = self.graph.operations[number].output
        readers = ", ".join(op.name for op in self.graph.users(output))
        return f"the instructions of {escape(readers)} compute it" if readers else "the program does not need it"

    def _below(self) -> str:
        return self._listing.value


def _line(number: int, instruction: Instruction, begin: int, end: int, cycles: int) -> str:
    text = escape(instruction_line(number, instruction))
    when = f"cycles {begin:,} to {end:,}, +{cycles:,}"
    look = "font-family:monospace;font-size:11px;padding-left:2em;text-indent:-2em;overflow-wrap:anywhere"
    return f"<div style='{look}'>{text} | <b>{when}</b></div>"


def _shape(tokens: Bound, features: int) -> str:
    return f"({tokens if isinstance(tokens, int) else 'T'}, {features})"


def _count(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _short(name: str) -> str:
    """Return a name without its first parts, if it is too long for the figure."""
    short = name
    while len(short) > NAME and "." in short:
        short = short.partition(".")[2]
    return short[:NAME] if short == name else f"…{short[: NAME - 1]}"
