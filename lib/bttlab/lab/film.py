"""A film of a training step: each bank of the card in each cycle, and PyTorch's storages over the same step."""

import functools
from dataclasses import replace
from html import escape

import ipywidgets as widgets
import numpy as np

from bttlab.baseline.memory import step_timeline
from bttlab.baseline.record import load_records
from bttlab.baseline.step import Task
from bttlab.compiler.instruction import UNIT_NAMES
from bttlab.compiler.program import Options, compile
from bttlab.data import Samples
from bttlab.estimate.film import Film, Frame
from bttlab.estimate.memory import GROUPS
from bttlab.lab.charts import new_figure, style
from bttlab.lab.explorer import Explorer, button, control, row, slider
from bttlab.lab.memory_figures import COLOURS
from bttlab.model import FLOW_TITLES, LEARNING_RATES, PAPER_FLOW, ModelConfig
from bttlab.util.places import ROOT

POINTS = 800  # of the curve over the cycles
ENGINES = UNIT_NAMES[:2]
_SMALL = {"fontsize": 8}
_NAME = 22  # letters of a tensor's name in the figure
_PASSES = {"FP": "forward", "BP": "backward", "PU": "update"}


class StepFilm(Explorer):
    """Move through the cycles of one sample's training and see what is in each bank. Make one the last line of a cell.

    Parameters
    ----------
    samples : Samples
        Of a corpus.
    config : ModelConfig, optional
        By default the paper's.
    tokens : int
        Of the sample that is shown, [CLS] included; another length is taken if no sample has this one.
    """

    def __init__(self, samples: Samples, config: ModelConfig | None = None, tokens: int = 13):
        self._samples, self._config = samples, config or ModelConfig()
        self._film_of = functools.lru_cache(8)(self._make_film)
        self._torch_of = functools.lru_cache(8)(self._measure)
        self._seen: dict[str, str] = {}  # by flow, its peak
        self.film: Film | None = None
        self.frame: Frame | None = None
        flows = [(title, flow) for flow, title in FLOW_TITLES.items()]
        self.flow = control(widgets.Dropdown, "flow", options=flows, value=PAPER_FLOW)
        self.beside = control(widgets.Dropdown, "PyTorch", options=["tensor", "dense"])
        self.tokens = slider(tokens, 2, self._config.sequence_length, "tokens")
        self.cycle = slider(0, 0, 1, "cycle", "508px")
        self.cycle.readout_format = ",d"
        moves = (
            ("", "fast-backward", lambda: self._go(0), "to the first cycle"),
            ("", "step-backward", lambda: self._step(-1), "to the product before"),
            ("", "step-forward", lambda: self._step(1), "to the next product of an engine"),
            ("Peak", "arrow-up", lambda: self._go(self.film.peak), "to the cycle with the most bytes alive"),
        )
        buttons = [button(name, icon, act, "80px" if name else "45px", tooltip=tip) for name, icon, act, tip in moves]
        banks, curves = new_figure(4.15, 5.4), new_figure(4.15, 5.4)
        self._banks, (self._alive, self._torch) = banks.subplots(), curves.subplots(2, 1, height_ratios=(1.2, 1))
        controls = [row(self.flow, self.tokens, self.beside), row(self.cycle, *buttons)]
        super().__init__(banks, curves, controls=controls)

    def _make_film(self, flow: str, tokens: int) -> Film:
        return Film(compile(self._config, Options(flow)), tokens)

    def _measure(self, kind: str, flow: str, tokens: int) -> tuple[dict[str, np.ndarray], int]:
        """Return the storages of a step in PyTorch on the sample that is nearest in length, and its tokens."""
        sample = self._samples[int(np.abs(self._samples.lengths - tokens).argmin())]
        config = replace(self._config, format=kind)
        task = Task(config, flow, sample, LEARNING_RATES["sgd"], 0, "cpu")
        task.step(0, task.loss)
        return step_timeline(task), int(sample.lengths[0])

    def _go(self, cycle: int) -> None:
        self.cycle.value = cycle

    def _step(self, direction: int) -> None:
        """Move to the begin of an engine's product, the next one or the one before."""
        film = self.film
        pairs = zip(film.program.sample, film.timing.begin, strict=True)
        begins = sorted({int(begin) for i, begin in pairs if UNIT_NAMES[i.unit] in ENGINES})
        here = np.searchsorted(begins, self.cycle.value, "right" if direction > 0 else "left")
        self._go(begins[int(np.clip(here if direction > 0 else here - 1, 0, len(begins) - 1))])

    def _update(self) -> tuple[str, str]:
        self.film = film = self._film_of(self.flow.value, self.tokens.value)
        if self.cycle.max != film.cycles - 1:
            with self.cycle.hold_trait_notifications():
                self.cycle.value = min(self.cycle.value, film.cycles - 1)
                self.cycle.max = film.cycles - 1
        self.frame = frame = film.frame(self.cycle.value)
        most = film.frame(film.peak).alive
        title = FLOW_TITLES[self.flow.value]
        peak = f"{most / 1e6:.2f} MB in cycle {film.peak:,}"
        self._seen[f"{title}, {film.tokens} tokens"] = peak
        self._draw_banks(frame)
        self._draw_alive(frame)
        self._draw_torch()
        return self._results_of(frame), ""

    def _results_of(self, frame: Frame) -> str:
        works = [f"{unit}: <b>{escape(_in_words(frame.working.get(unit, 'idle')))}</b>" for unit in ENGINES]
        end = self.film.touched(np.array([self.film.cycles - 1]))[0]
        sizes = frame.alive, sum(frame.touched.values()), end, self.film.most_touched
        alive, touched, end, most = (f"{size / 1e6:.2f} MB" for size in sizes)
        peaks = "; ".join(f"{name}: {peak}" for name, peak in self._seen.items())
        return (
            f"cycle {frame.cycle:,} of {self.film.cycles:,} ({frame.cycle / self.film.cycles:.0%}); "
            f"{'; '.join(works)}<br><b>{alive}</b> are alive, <b>{touched}</b> have been touched; {end} by the end of "
            f"this step, {most} by any sample, as <code>estimate</code> counts (modelled)<br>"
            f"most alive: {escape(peaks)}"
        )

    def _draw_banks(self, frame: Frame) -> None:
        axes = self._banks
        axes.clear()
        style(axes, f"Banks in cycle {frame.cycle:,} (modelled)", "kB, outlined: touched so far", "")
        end = self.film.frame(self.film.cycles - 1).touched  # rows and scale are the same in all frames
        names = [name for name, size in end.items() if size]
        most = max(end.values()) / 1e3
        for place, name in enumerate(names):
            left = 0.0
            sizes = frame.bytes(name)
            for group in GROUPS:
                if size := sizes.get(group, 0) / 1e3:
                    axes.barh(place, size, left=left, color=COLOURS[group], height=0.75)
                    left += size
            axes.barh(place, frame.touched[name] / 1e3, color="none", edgecolor="0.3", linewidth=0.7, height=0.75)
            if frame.tensors[name]:
                short = _short(frame.tensors[name][0].name)
                axes.text(frame.touched[name] / 1e3 + 0.02 * most, place, short, va="center", **_SMALL)
        axes.set_yticks(range(len(names)), names, **_SMALL)
        axes.set(ylim=(len(names) - 0.4, -0.6), xlim=(0, 1.95 * most))
        axes.grid(visible=False, axis="y")

    def _draw_alive(self, frame: Frame) -> None:
        axes, film = self._alive, self.film
        axes.clear()
        style(axes, "The card over the step (modelled)", "cycle", "MB alive")
        cycles = np.unique(np.append(np.linspace(0, film.cycles - 1, POINTS).astype(int), film.peak))
        parts = film.alive(cycles)
        colours = [COLOURS[group] for group in parts]
        axes.stackplot(cycles, [values / 1e6 for values in parts.values()], labels=list(parts), colors=colours)
        axes.plot(cycles, film.touched(cycles) / 1e6, color="0.2", linestyle="--", linewidth=1, label="touched")
        top = 1.3 * float(film.touched(cycles[-1:])[0]) / 1e6
        axes.axvline(frame.cycle, ymax=0.8, color="black", linewidth=1.2)
        axes.plot(film.peak, sum(values[cycles == film.peak][0] for values in parts.values()) / 1e6, "kv", markersize=5)
        axes.set(xlim=(0, film.cycles), ylim=(0, top))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.locator_params("x", nbins=4)
        axes.legend(fontsize=7, ncols=3, loc="upper left", frameon=False)

    def _draw_torch(self) -> None:
        kind = self.beside.value
        flow = kind if kind == "dense" else self.flow.value
        timeline, tokens = self._torch_of(kind, flow, self.tokens.value)
        axes = self._torch
        axes.clear()
        of_what = kind if flow in (kind, PAPER_FLOW) else f"{kind}, {FLOW_TITLES[flow]}"
        style(axes, f"PyTorch, {of_what}, {tokens} tokens (measured)", "storages made and freed", "MB")
        colours = [COLOURS[name.replace("_", " ")] for name in timeline]
        events = np.arange(len(next(iter(timeline.values()))))
        axes.stackplot(events, [values / 1e6 for values in timeline.values()], colors=colours)
        top = max(sum(timeline.values())) / 1e6
        for label, size in _recorded(flow, self._config):
            axes.axhline(size / 1e6, color="0.2", linestyle=":", linewidth=1.2)
            axes.text(0, size / 1e6, f" {label}: {size / 1e6:,.1f} MB", va="bottom", **_SMALL)
            top = max(top, size / 1e6)
        axes.set(xlim=(0, events[-1]), ylim=(0, 1.2 * top))


@functools.lru_cache
def _recorded(flow: str, config: ModelConfig) -> list[tuple[str, float]]:
    """Return what the H100's record of a step of 32 tokens has: tensors at the peak, and the allocator's most.

    Records are of the paper's models, dense and bi-directional: there is nothing for another one.
    """
    label, encoders = {"dense": "dense", PAPER_FLOW: "btt"}.get(flow), config.encoders
    if label is None or config != ModelConfig(encoders=encoders):
        return []
    found = []
    for record in load_records(ROOT / "data" / "baselines"):
        if record.config["encoders"] != encoders or record.setting or not record.label_of().startswith(f"{label}, "):
            continue
        if "H100" in record.label_of():
            found.append(("H100, 32 tokens, tensors", record.memory.peak.value))
            if record.measurement.allocated.value is not None:
                found.append(("H100, allocator", record.measurement.allocated.value))
    return found


def _short(tensor: str) -> str:
    """Return a tensor's name, shortened for the figure."""
    for word, stead in (("gradient of ", "d "), ("encoders.", "enc "), ("embedding.", "emb "), ("attention", "att")):
        tensor = tensor.replace(word, stead)
    return tensor if len(tensor) <= _NAME else f"{tensor[: _NAME - 1]}…"


def _in_words(work: str) -> str:
    stage, _, rest = work.partition(", ")
    return f"{_PASSES[stage]}, {rest}" if stage in _PASSES else work
