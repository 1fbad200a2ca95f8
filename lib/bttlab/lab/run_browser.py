"""Browse runs: filter them, overlay their curves, load a checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets
import pandas as pd

from bttlab.lab.charts import PALETTE, SMOOTHING, as_label, new_figure, smooth, style
from bttlab.lab.explorer import Explorer, button, control, row
from bttlab.lab.picture import WRAPPED_CLASS
from bttlab.runs import Checkpoint, CheckpointStore, runs_table
from bttlab.runs.metrics import read_curves
from bttlab.runs.module import model_of_run
from bttlab.runs.table import where
from bttlab.util.errors import BttlabError

if TYPE_CHECKING:
    from bttlab.data import Corpus
    from bttlab.model import ModelConfig
    from bttlab.model.module import ModuleConfig

MOST_CURVES = len(PALETTE)  # that can be told apart
SHOWN = 200  # runs in the list
CURVES = {
    "loss": (f"Loss, mean of {SMOOTHING} (measured)", "loss"),
    "frame_accuracy": ("Frame accuracy on the dev split (measured)", "right (%)"),
    "slot_f1": ("Slot F1 on the dev split (measured)", "F1 (%)"),
    "intent_accuracy": ("Intent accuracy on the dev split (measured)", "right (%)"),
}


class RunBrowser(Explorer):
    """The user's runs and their curves. Make one the last line of a cell.

    Parameters
    ----------
    condition : str
        With which it begins, as of pandas.DataFrame.query, such as "linear_rank == 8 and dev.slot_f1 > 0.9".
    """

    def __init__(self, condition: str = "kind == 'training'"):
        self._found: dict[str, Any] = {}
        self.condition = control(widgets.Text, "where", "430px", 70, value=condition, continuous_update=False)
        self.runs = control(widgets.SelectMultiple, "runs", "780px", 70, rows=7)  # of names that the filter finds
        self.runs.add_class(WRAPPED_CLASS)
        again = button("Search again", "refresh", self.search_again, "130px", tooltip="runs that have begun since, too")
        self.curve = control(widgets.Dropdown, "curve", "240px", 70, options=list(CURVES))
        self._applied: str | None = None
        self._note = ""
        figure = new_figure(4.6, 3.6)
        self._axes = figure.subplots()
        super().__init__(figure, controls=[row(self.condition, again, self.curve), self.runs])

    def search_again(self) -> None:
        """Read the folders again: runs may have begun or ended since."""
        self._applied = None
        self.refresh()

    @property
    def chosen(self) -> list[Any]:
        """The rows of `bttlab.runs.runs_table` that are selected."""
        return [self._found[name] for name in self.runs.value]

    def checkpoint(self, corpus: "Corpus | None" = None) -> Checkpoint:
        """Return the checkpoint of the first selected run; the browser says if the last one is damaged.

        Load its parameters into a trainer of `model`.

        Parameters
        ----------
        corpus : Corpus, optional
            What its predictions are to be compared with, or decoded by.

        Returns
        -------
        Checkpoint
            The last one that is sound.

        Raises
        ------
        BttlabError
            If none is selected, it has no checkpoint, or it was trained on another corpus than `corpus`.
        """
        run = self._first()
        checkpoint, warning = CheckpointStore(Path(run["folder"])).load()
        if corpus is not None and not checkpoint.corpus.is_of(corpus):
            raise BttlabError(
                f"{run['name']} was trained on the corpus {checkpoint.corpus.name}, whose labels and words have other "
                f"numbers than those of {corpus.name}: select a run of {corpus.name}, or load the corpus of the run"
            )
        self._tell(warning)
        return checkpoint

    def model(self) -> "ModelConfig | ModuleConfig":
        """Return the model of the first selected run; that of a module of your own runs the copies of its files.

        Raises BttlabError as `checkpoint`, and RunError if a module is not the one that was trained.
        """
        model, note = model_of_run(Path(self._first()["folder"]), self.checkpoint())
        self._tell(note)
        return model

    def _first(self) -> Any:
        if not self.chosen:
            raise BttlabError("no run is selected: click on one in the list")
        return self.chosen[0]

    def _tell(self, note: str | None) -> None:
        if note:
            self._note = note
            self.refresh()

    def _update(self) -> tuple[str, str]:
        if self.condition.value != self._applied or not self._found:
            self._search(self.condition.value)
            self._applied = self.condition.value
        note = self._draw(self.chosen[:MOST_CURVES])
        if len(self.chosen) > MOST_CURVES:
            note = f"{len(self.chosen)} runs are selected; the first {MOST_CURVES} are drawn"
        count = f"{len(self._found):,} run{'s' * (len(self._found) != 1)}"
        return (
            f"{count}, {len(self.chosen)} selected (several: Ctrl-click, or Shift with an arrow key)",
            self._note or note,
        )

    def _search(self, condition: str) -> None:
        table = runs_table()
        self._left_out = list(table.attrs["faults"])
        self._found = {}
        for run in (where(table, condition) if condition.strip() else table).head(SHOWN).to_dict("records"):
            label = _label(run)
            # A copied id is a run, too.
            self._found[f"{label}  {run['folder']}" if label in self._found else label] = run
        kept = [name for name in self.runs.value if name in self._found]
        self.runs.options = list(self._found)
        self.runs.value = kept or list(self._found)[: min(3, len(self._found))]

    def _draw(self, chosen: list[Any]) -> str:
        axes, name = self._axes, self.curve.value
        axes.clear()
        title, label = CURVES[name]
        style(axes, title, "samples trained on", label)
        empty, faults = [], self._left_out[:]
        for colour, run in zip(PALETTE, chosen, strict=False):
            curves = read_curves(Path(run["folder"]))
            x, y = (curves.samples, curves.losses) if name == "loss" else (curves.scored, curves.scores[name])
            faults += [f"{run['name']}: {fault}" for fault in curves.faults]
            if not x:
                empty.append(run["name"])
                continue
            scaled = (
                smooth(y, max(1, int(SMOOTHING * len(x) / x[-1]))) if name == "loss" else [100 * value for value in y]
            )
            mark = "o" if len(x) < 30 else None
            text = f"{run['id'][:6]} {run['name']}"
            axes.plot(x, scaled, color=colour, linewidth=1.4, marker=mark, markersize=4, label=as_label(text[:60]))
        axes.margins(x=0)
        axes.set(xlim=(0, None), ylim=(0, None if axes.dataLim.ymax else 100))
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8, framealpha=0.8, loc="best")
        notes = ([f"no such curve: {', '.join(empty)}"] if empty else []) + faults
        return "; ".join(notes[:3] + ["…"] * (len(notes) > 3))


def _label(run: Any) -> str:
    accuracy = run.get("dev.frame_accuracy")
    score = "" if accuracy is None or pd.isna(accuracy) else f", dev frame accuracy {accuracy:.1%}"
    begun = run["begun"][:16].replace("T", " ")
    return f"{run['id'][:6]}  {begun}  {run['status']:9}  {run['name']}{score}"
