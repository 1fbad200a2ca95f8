"""Browse runs: filter them, overlay their curves, load a checkpoint."""

import ipywidgets as widgets

from bttlab.lab.charts import PALETTE, as_label, new_figure, style
from bttlab.lab.explorer import Explorer, row
from bttlab.runs import Checkpoint, CheckpointStore, Filter, RunIndex
from bttlab.runs.curves import read_curves
from bttlab.runs.index import FoundRun, RunIndexError, every_index
from bttlab.util.errors import BttlabError
from bttlab.util.terminal import printable

MOST_CURVES = len(PALETTE)  # that can be told apart
SHOWN = 200  # runs in the list
CURVES = {
    "loss": ("Mean loss of a stretch (measured)", "loss"),
    "frame_accuracy": ("Frame accuracy on the dev split (measured)", "right (%)"),
    "slot_f1": ("Slot F1 on the dev split (measured)", "F1 (%)"),
    "intent_accuracy": ("Intent accuracy on the dev split (measured)", "right (%)"),
}


class RunBrowser(Explorer):
    """Runs of this checkout or of all the user's, and their curves. Make one the last line of a cell.

    Parameters
    ----------
    conditions : str
        To begin with, such as "kind=training linear_rank=8"; blanks between them.
    """

    def __init__(self, conditions: str = "kind!=estimate"):
        self.everywhere = widgets.Checkbox(description="other checkouts' runs, too", indent=False)
        self._found: dict[str, FoundRun] = {}
        wide = {"description_width": "70px"}
        self.conditions = widgets.Text(
            conditions, description="where", continuous_update=False, style=wide, layout={"width": "430px"}
        )
        self.runs = widgets.SelectMultiple(
            description="runs", rows=7, style=wide, layout={"width": "780px", "max_width": "100%"}
        )  # of names, as long as the filter finds
        self.curve = widgets.Dropdown(options=list(CURVES), description="curve", style=wide, layout={"width": "240px"})
        self._applied: tuple[str, bool] | None = None
        figure = new_figure(4.6, 3.6)
        self._axes = figure.subplots()
        super().__init__(figure, controls=[row(self.conditions, self.curve, self.everywhere), self.runs])

    @property
    def chosen(self) -> list[FoundRun]:
        """The runs that are selected."""
        return [self._found[name] for name in self.runs.value]

    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint of the first selected run.

        Raises
        ------
        bttlab.util.errors.BttlabError
            If none is selected, or it has no checkpoint.
        """
        if not self.chosen:
            raise BttlabError("no run is selected: click on one in the list")
        return CheckpointStore(self.chosen[0].folder).load()[0]

    def _update(self) -> tuple[str, str]:
        asked = self.conditions.value, self.everywhere.value
        if asked != self._applied or not self._found:
            self._search(*asked)
            self._applied = asked
        chosen = self.chosen[:MOST_CURVES]
        note = self._draw(chosen)
        if len(self.chosen) > MOST_CURVES:
            note = f"{len(self.chosen)} runs are selected; the first {MOST_CURVES} are drawn"
        return f"{len(self._found):,} runs, {len(self.chosen)} selected (Ctrl-click for several)", note

    def _search(self, conditions: str, everywhere: bool) -> None:
        asked, runs, faults, self._left_out = Filter(conditions.split(), limit=SHOWN), [], [], []
        indexes = every_index() if everywhere else [RunIndex()]
        for index in indexes:
            try:
                runs += index.find(asked)
                self._left_out += index.faults
            except RunIndexError as error:  # such as: no run of that checkout has the key
                faults.append(error)
        if len(faults) == len(indexes):
            raise faults[0]
        runs.sort(key=lambda run: run.record.begun, reverse=True)
        self._found = {}
        for run in runs[:SHOWN]:
            label = _label(run)
            self._found[f"{label}  {run.folder}" if label in self._found else label] = run  # a copied id is a run, too
        kept = [name for name in self.runs.value if name in self._found]
        self.runs.options = list(self._found)
        self.runs.value = kept or list(self._found)[: min(3, len(self._found))]

    def _draw(self, chosen: list[FoundRun]) -> str:
        axes, name = self._axes, self.curve.value
        axes.clear()
        title, label = CURVES[name]
        style(axes, title, "samples trained on", label)
        empty, faults = [], self._left_out[:]
        for colour, run in zip(PALETTE, chosen, strict=False):
            curves = read_curves(run.folder)
            x, y = (curves.samples, curves.losses) if name == "loss" else (curves.scored, curves.scores[name])
            faults += [f"{run.record.name}: {fault}" for fault in curves.faults]
            if not x:
                empty.append(run.record.name)
                continue
            scaled = y if name == "loss" else [100 * value for value in y]
            mark = "o" if len(x) < 30 else None
            text = f"{run.record.id[:6]} {run.record.name}"
            axes.plot(x, scaled, color=colour, linewidth=1.4, marker=mark, markersize=4, label=as_label(text[:60]))
        axes.margins(x=0)
        axes.set(xlim=(0, None), ylim=(0, None))
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8, framealpha=0.8)
        notes = ([f"no such curve: {', '.join(empty)}"] if empty else []) + faults
        return printable("; ".join(notes[:3] + ["…"] * (len(notes) > 3)))


def _label(run: FoundRun) -> str:
    record = run.record
    accuracy = record.value("dev.frame_accuracy")
    score = f", dev frame accuracy {accuracy:.1%}" if isinstance(accuracy, int | float) else ""
    begun = record.begun[:16].replace("T", " ")
    return printable(f"{record.id[:6]}  {begun}  {record.status:9}  {record.name}{score}")
