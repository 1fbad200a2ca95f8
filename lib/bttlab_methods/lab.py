"""The methods lab: tick methods, train with them, and see what each gives and takes."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from typing import Any

import ipywidgets as widgets
import numpy as np
import torch
from IPython.display import display

from bttlab.lab.charts import to_png
from bttlab.lab.dashboard import Dashboard
from bttlab.lab.dashboard_runs import FINISHED, DashboardRun
from bttlab.lab.dashboard_targets import Target
from bttlab.lab.energy_meters import torch_meter
from bttlab.lab.explorer import button, control, row
from bttlab.lab.frame import Frame
from bttlab.lab.picture import FIGURE_CLASS, alert, describe, hidden
from bttlab.lab.workload import Workload
from bttlab.model import predict_in_batches
from bttlab.util.errors import BttlabError
from bttlab.util.quantities import Quantity
from bttlab_methods import DENSE, FAMILIES, Result, Setting, Training, methods, parse, run_methods
from bttlab_methods.lab_figures import draw_results
from bttlab_methods.record import by_methods, mean, peak, read_records, seconds_per_epoch, slot_f1
from bttlab_methods.survey import GROUPS, TECHNIQUES
from bttlab_methods.training import LEARNING_RATE

OnResult = Callable[[Result], None]
BESIDE = DENSE, "tensor"  # what a technique of the survey is trained beside
_FAMILIES = {"display": "grid", "grid_template_columns": "repeat(auto-fill, minmax(min(470px, 100%), 1fr))"}


class MethodRun(DashboardRun):
    """Training with methods, in batches; `name` is the combination as `bttlab_methods.parse` takes it.

    The learning rate is that of dense AdamW; every method's own rate changes in proportion.
    """

    follows_learning_rate = False

    def __init__(self, *common: Any, device: str, on_result: OnResult | None = None):
        super().__init__(*common)
        self._methods, self._on_result = parse(self.name), on_result
        work = self._workload
        self._setting = Setting(work.corpus, work.config, self.total, seed=work.seed, device=device)
        self._training: Training | None = None
        self._due, self._since = self.scored_at, 0.0

    def _train(self) -> None:
        if self._setting.device == "cpu":
            torch.set_num_threads(1)
        factor = self.learning_rate / LEARNING_RATE
        setting = replace(self._setting, rate_factor=factor)
        result = run_methods(setting, self._methods, self._on_batch, self._stop, ("dev",), self._begin)
        self.memory = {"tensors": Quantity(**result.memory["peak"])}
        if self._on_result is not None:
            self._on_result(result)

    def _begin(self, training: Training) -> None:
        self._training = training
        self._since = time.perf_counter()

    def _on_batch(self, losses: np.ndarray) -> None:
        seconds = time.perf_counter() - self._since
        self.meter.advance(self._workload.train[: len(losses)], seconds)
        self._add(losses, seconds)
        if self._due and self.count >= self._due[0]:
            self._due = [count for count in self._due if count > self.count]
            with self._training.aside():
                self._evaluate(partial(predict_in_batches, self._training.model))
        if not self._unpaused.is_set():
            with self._training.aside():
                self._unpaused.wait()
        self._since = time.perf_counter()


def method_target(methods: str, workload: Workload, on_result: OnResult | None = None) -> Target:
    """Return a dashboard's target that trains with methods, on CUDA where there is one.

    The methods are as `bttlab_methods.parse` takes them, the workload is the dense model's; `on_result` is called in
    the run's thread. Raises MethodError if the methods are unknown or do not combine.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parse(methods)

    def make_run(total: int, learning_rate: float) -> DashboardRun:
        common = methods, total, learning_rate, torch_meter(device), workload
        return MethodRun(*common, device=device, on_result=on_result)

    return Target(methods, make_run)


class MethodsLab:
    """Tick boxes of all methods, and a dashboard that trains the dense model of a workload with them."""

    _is_ticking = False

    def __init__(self, workload: Workload, samples: int = 1000):
        self._workload = workload
        self.results: list[Result] = []
        targets = [method_target(DENSE, workload, on_result=self._on_result)]
        # The slider ends at 10,000 samples; a method measures no other memory than its tensors'.
        self.dashboard = Dashboard(targets, samples, LEARNING_RATE, 10_000, name="methods", accounting="tensors")
        self.dashboard.leave_starting_to_others()
        self._boxes = {
            name: widgets.Checkbox(description=name, indent=False, layout={"width": "auto", "margin": "0 14px 0 0"})
            for name, kind in methods().items()
            if kind.processes == 1
        }
        self._groups = {}
        for family in FAMILIES:
            boxes = [box for name, box in self._boxes.items() if methods()[name].family == family]
            if boxes:
                heading = widgets.HTML(f"<b>{family}</b>", layout={"flex": "0 0 170px"})
                self._groups[family] = widgets.HBox([heading, row(*boxes)], layout={"flex": "0 0 auto"})
        about = "a name, a family, or a word of what it changes"
        self._search = control(widgets.Text, "search", "400px", 70, placeholder=about)
        self._search.observe(lambda _: self._find(), "value")
        offered = [("choose, as measured …", ""), *presets(read_records()).items()]
        self._preset = control(widgets.Dropdown, "preset", "640px", 70, options=offered)
        self._preset.observe(lambda _: self._choose(), "value")
        names = [(f"{one.name} ({GROUPS.index(one.group) + 1})", one) for one in TECHNIQUES]  # a typed letter finds it
        self._tip = control(widgets.Dropdown, "survey", "400px", 70, options=[("choose a technique …", ""), *names])
        self._tip.observe(lambda _: self._take_tip(), "value")
        for box in self._boxes.values():
            box.observe(lambda _: self._write(), "value")
        self._text = control(widgets.Text, "together", "560px", 70, value=DENSE, continuous_update=False)
        self._text.observe(lambda _: self._check(), "value")
        self._train = button("Train", "play", self.train)
        beside = f"beside {' and '.join(BESIDE)}"
        self._beside = widgets.Checkbox(description=beside, indent=False, layout={"width": "auto"})
        self._message = widgets.HTML()
        self._picture = widgets.Image(format="png", layout={"display": "none"})
        self._picture.add_class(FIGURE_CLASS)
        self._words = widgets.HTML()
        groups = widgets.Box(list(self._groups.values()), layout=_FAMILIES)
        controls = [row(self._tip, self._preset), row(self._search), groups, row(self._text, self._train, self._beside)]
        self.widget = Frame([*controls, self._message, self.dashboard.widget, self._picture, self._words])
        self._check()

    def _ipython_display_(self) -> None:
        display(self.widget)

    def train(self, text: str | None = None, samples: int | None = None) -> None:
        """Train with what is ticked, or with the methods of a text as `bttlab_methods.parse` takes it.

        If the box says so, dense and tensor come first, unless the figure has runs of theirs like this one.
        """
        if text is not None:
            self._text.value = text
        if not self._check():
            return
        runs, samples = self.dashboard.runs, samples or self.dashboard.samples
        like = samples, self.dashboard.learning_rate, FINISHED
        there = {run.name for run in runs if (run.total, run.learning_rate, run.state) == like}
        first = [name for name in BESIDE if name not in there] if self._beside.value else []
        names = list(dict.fromkeys([*first, self._text.value]))
        for name in names:
            self.dashboard.offer(method_target(name, self._workload, on_result=self._on_result))
        self.dashboard.start_all(names, samples)

    def wait(self) -> None:
        self.dashboard.wait()

    def close(self) -> None:
        self.dashboard.close()
        self.widget.close()

    def _find(self) -> None:
        """Show the boxes of the methods that the search's words are about."""
        words = self._search.value.lower().split()
        for name, box in self._boxes.items():
            method = methods()[name]
            told = f"{name} {method.family} {method.__doc__}".lower()
            box.layout.display = None if all(word in told for word in words) else "none"
        for group in self._groups.values():
            shown = any(box.layout.display != "none" for box in group.children[1].children)
            group.layout.display = None if shown else "none"

    def _choose(self) -> None:
        if self._preset.value:
            self._text.value = self._preset.value

    def _take_tip(self) -> None:
        """Write the row of a technique of the survey, or say why it has none."""
        tip = self._tip.value
        if not tip:  # a list shows no choice whose value is None
            return
        if tip.row and all(method.processes == 1 for method in parse(tip.row)):
            self._text.value, self._beside.value = tip.row, True
            return
        gone = f"{tip.gone} is no longer here; its results are in docs/survey.md" if tip.gone else tip.note
        why = f"it takes several processes: bttlab methods run {tip.row}" if tip.row else gone
        self._message.value = alert(f"{tip.name}: {'it needs a GPU; ' if tip.needs_gpu else ''}{why}")

    def _write(self) -> None:
        """Name in the text what is ticked; parameters that stand there stay."""
        if self._is_ticking:
            return
        there = {part.partition(":")[0]: part for part in self._text.value.split("+")}
        ticked = [there.get(name, name) for name, box in self._boxes.items() if box.value]
        self._text.value = "+".join(ticked) or DENSE

    def _tick(self) -> None:
        """Tick what the text names; a preset that is no longer in the text is not chosen."""
        named = {part.partition(":")[0].strip() for part in self._text.value.split("+")}
        self._is_ticking = True
        for name, box in self._boxes.items():
            box.value = name in named
        self._is_ticking = False
        if self._preset.value != self._text.value:
            self._preset.value = ""

    def _check(self) -> bool:
        """Say what the text means, and whether its methods combine."""
        self._tick()
        try:
            combination = parse(self._text.value)
            method_target(self._text.value, self._workload)
        except BttlabError as error:
            self._message.value = alert(str(error))
            self._train.disabled = True
            return False
        said = "; ".join(
            f"<b>{method.name}</b>: {escape(method.summary())} <i>{method.source}</i>" for method in combination
        )
        said = said or f"<b>{DENSE}</b>: dense model, FP32, AdamW: what the methods are compared with."
        self._message.value = f"<div style='line-height:1.35'>{said}</div>"
        self._train.disabled = False
        return True

    def _on_result(self, result: Result) -> None:
        self.results.append(result)
        figure = draw_results(self.results).figure
        self._picture.value, self._words.value = to_png(figure), hidden(describe(figure))
        self._picture.layout.display = "block"


def presets(records: Mapping[str, Sequence[Result]]) -> dict[str, str]:
    """Return combinations of methods by what they are best at, as measured; records are `read_records`'.

    A method that is in several records stands for its result with the best slot F1.
    """
    groups: dict[str, Sequence[Result]] = {}
    for record in records.values():
        for name, group in by_methods(record).items():
            groups[name] = max(groups.get(name, group), group, key=lambda one: mean(one, slot_f1))

    def averages(value: Callable[[Result], float]) -> dict[str, float]:
        return {name: mean(group, value) for name, group in groups.items()}

    peaks, slots = averages(peak), averages(slot_f1)
    seconds = averages(seconds_per_epoch)
    same = [name for name in groups if peaks[name] <= 1.05 * peaks["tensor"]]
    best = {
        "least memory": min(peaks, key=peaks.get),
        "tensor's memory, best slot F1": max(same, key=slots.get),
        "fastest epoch": min(seconds, key=seconds.get),
        "best slot F1": max(slots, key=slots.get),
    }
    return {
        f"{title}: {name} ({peaks[name] / 1e6:.0f} MB, slot F1 {slots[name]:.0%}, {seconds[name]:.0f} s an epoch)": name
        for title, name in best.items()
    }
