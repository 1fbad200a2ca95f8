"""Energy to a given quality: samples that training took to a slot F1, times the modelled energy of a sample."""

import json
from dataclasses import dataclass
from statistics import median

from matplotlib.ticker import StrMethodFormatter

from bttlab.baseline.gpus import Gpu
from bttlab.baseline.modelled import joules_per_sample
from bttlab.data import Samples
from bttlab.estimate.card import estimate
from bttlab.lab.charts import PALETTE, new_figure, style
from bttlab.lab.picture import Picture
from bttlab.model import ModelConfig
from bttlab.util.places import ROOT

RECORD = ROOT / "data" / "energy_to_quality.json"
TARGETS = (0.70, 0.80)  # slot F1 on dev
LOOKS = {"card": (PALETTE[0], "o"), "tensor": (PALETTE[1], "s"), "dense": (PALETTE[2], "^")}


@dataclass(frozen=True)
class EnergyToQuality:
    """Samples and energy of a way to train, up to a slot F1.

    Attributes
    ----------
    device, format, mode : str
        mode: "eager" or "graphs" on a GPU, "" on the card.
    batch : int
    optimizer : str
    learning_rate : float
    samples : list of int
        To the target, for each seed that reached it (measured).
    seeds : int
        How many were tried.
    joules_per_sample : (float, float, float)
        Low, middle and high (modelled).
    """

    device: str
    format: str
    mode: str
    batch: int
    optimizer: str
    learning_rate: float
    samples: list[int]
    seeds: int
    joules_per_sample: tuple[float, float, float]

    @property
    def label(self) -> str:
        """Label in a figure."""
        where = f"{self.device}, {self.mode}" if self.mode else self.device
        return f"{where}: {self.format}, batch {self.batch}"

    @property
    def joules(self) -> tuple[float, float, float]:
        """Low, middle and high: the fewest, the median and the most samples, each with the energy of a sample."""
        counts = min(self.samples), median(self.samples), max(self.samples)
        return tuple(count * each for count, each in zip(counts, self.joules_per_sample, strict=True))


def energy_to_quality(gpu: Gpu, samples: Samples, target: float = TARGETS[-1]) -> list[EnergyToQuality]:
    """Return what each way to train on record takes to a slot F1, on the card or on a GPU.

    Parameters
    ----------
    gpu : Gpu
    samples : Samples
        Of equal length, as many as the largest batch: what the energy of a sample is modelled with.
    target : float
        One of `TARGETS`.

    Raises
    ------
    ValueError
        If the record has no such target.
    """
    if target not in TARGETS:
        raise ValueError(f"slot F1 {target} is not on record; take one of {', '.join(map(str, TARGETS))}")
    found = []
    for way in json.loads(RECORD.read_text(encoding="utf-8"))["ways"]:
        kind, batch, optimizer = way["format"], way["batch"], way["optimizer"]
        reached = [seed[str(target)] for seed in way["samples"].values()]
        common = (batch, optimizer, way["learning_rate"], [n for n in reached if n is not None], len(reached))
        if (kind, batch) == ("tensor", 1):
            card = estimate(ModelConfig(), {int(samples.lengths[0]): 1}, optimizer).energy_at_clocks
            found.append(EnergyToQuality("U50", kind, "", *common, (card.low, card.value, card.high)))
        for mode in ("eager", "graphs"):
            baseline = "btt" if kind == "tensor" else kind
            joules = joules_per_sample(gpu, baseline, mode, ModelConfig(), samples[:batch], optimizer)
            found.append(EnergyToQuality(gpu.gpu, kind, mode, *common, joules))
    return found


def draw_energy_to_quality(rows: list[EnergyToQuality], title: str) -> Picture:
    """Draw the energy of each way with its band."""
    rows = [row for row in rows if row.samples]
    figure = new_figure(8.3, 0.42 * len(rows) + 1.1)
    axes = figure.subplots()
    style(axes, title, "J (samples measured, energy of a sample modelled; lines: all bounds)", "")
    for place, row in enumerate(rows):
        low, middle, high = row.joules
        color, marker = LOOKS["card" if not row.mode else row.format]
        axes.plot([low, high], [place, place], color=color, linewidth=1.5)
        axes.plot(middle, place, marker, color=color)
        axes.annotate(f"{middle:,.0f} J", (middle, place), (0, 5), textcoords="offset points", ha="center", fontsize=9)
    axes.set(xscale="log", ylim=(len(rows) - 0.5, -0.8))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    return Picture(figure, "Energy to a slot F1 of each way to train, with bands.")
