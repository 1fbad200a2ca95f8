"""The methods lab: tick methods, train with them, and see what each gives and takes."""

from html import escape

import ipywidgets as widgets
from IPython.display import display

from bttlab.errors import BttlabError
from bttlab.lab.charts import to_png
from bttlab.lab.dashboard import Dashboard
from bttlab.lab.method_figures import results_figure
from bttlab.lab.method_runs import method_target
from bttlab.lab.workload import Workload
from bttlab.methods import DENSE, FAMILIES, Result, methods, parse
from bttlab.methods.training import LEARNING_RATE

_ROW = {"flex_flow": "row wrap"}


class MethodsLab:
    """Tick boxes of all methods, and a dashboard that trains with them.

    Parameters
    ----------
    workload : Workload
        Of the dense model.
    samples : int
        Budget of a run, to begin with.
    most_samples : int
        Where its slider ends.

    Attributes
    ----------
    dashboard : Dashboard
    results : list of Result
        Of the runs that have ended.
    """

    def __init__(self, workload: Workload, samples: int = 1000, most_samples: int = 10_000):
        self._workload = workload
        self.results: list[Result] = []
        self.dashboard = Dashboard(
            [method_target(DENSE, workload, on_result=self._on_result)],
            samples,
            LEARNING_RATE,
            most_samples,
            name="methods",
        )
        wide = {"width": "auto", "min_width": "158px"}
        self._boxes = {name: widgets.Checkbox(description=name, indent=False, layout=wide) for name in methods()}
        groups = []
        for family in FAMILIES:
            boxes = [box for name, box in self._boxes.items() if methods()[name].family == family]
            if boxes:
                heading = widgets.HTML(f"<b>{family}</b>", layout={"flex": "0 0 165px"})
                groups.append(widgets.HBox([heading, widgets.HBox(boxes, layout=_ROW)]))
        for box in self._boxes.values():
            box.observe(lambda _: self._write(), "value")
        self._text = widgets.Text(
            DENSE, description="together", continuous_update=False, style={"description_width": "70px"}
        )
        self._text.layout.width = "560px"
        self._text.observe(lambda _: self._check(), "value")
        self._train = widgets.Button(description="Train", icon="play", layout={"width": "105px"})
        self._train.on_click(lambda _: self.train())
        self._message = widgets.HTML()
        self._picture = widgets.Image(format="png", layout={"display": "none"})
        self.widget = widgets.VBox(
            [*groups, widgets.HBox([self._text, self._train]), self._message, self.dashboard.widget, self._picture]
        )
        self._check()

    def _ipython_display_(self) -> None:
        display(self.widget)

    def train(self, text: str | None = None, samples: int | None = None) -> None:
        """Train with what is ticked, or with the methods of a text as `bttlab.methods.parse` takes it."""
        if text is not None:
            self._text.value = text
        if self._check():
            self.dashboard.offer(method_target(self._text.value, self._workload, on_result=self._on_result))
            self.dashboard.start(self._text.value, samples)

    def wait(self) -> None:
        """Let the cell wait until the run has ended; interrupting the kernel stops the run."""
        self.dashboard.wait()

    def close(self) -> None:
        """Stop what is running and take the widgets off the page."""
        self.dashboard.close()
        self.widget.close()

    def _write(self) -> None:
        """Name in the text what is ticked; parameters that stand there stay."""
        there = {part.partition(":")[0]: part for part in self._text.value.split("+")}
        ticked = [there.get(name, name) for name, box in self._boxes.items() if box.value]
        self._text.value = "+".join(ticked) or DENSE

    def _check(self) -> bool:
        """Say what the text means, and whether its methods combine."""
        try:
            found = parse(self._text.value)
            method_target(self._text.value, self._workload)
        except BttlabError as error:
            self._message.value = f"<span role='alert'><b>{escape(str(error))}</b></span>"
            self._train.disabled = True
            return False
        said = "; ".join(f"<b>{method.name}</b>: {escape(method.summary())} <i>{method.source}</i>" for method in found)
        self._message.value = said or f"<b>{DENSE}</b>: dense model, FP32, AdamW: what the methods are compared with."
        self._train.disabled = False
        return True

    def _on_result(self, result: Result) -> None:
        self.results.append(result)
        self._picture.value = to_png(results_figure(self.results))
        self._picture.layout.display = "block"
