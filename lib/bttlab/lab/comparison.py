"""Compare training on the U50 with a GPU: memory and energy with bands, energy to a quality, published ratios."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import median
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import StrMethodFormatter

from bttlab.baseline.gpus import Gpu, find_gpu
from bttlab.baseline.receipt import details_of
from bttlab.data import Samples
from bttlab.data.epoch import EPOCH_SAMPLES
from bttlab.estimate.card import estimate
from bttlab.estimate.constants import MODEL_VERSION, read_data
from bttlab.estimate.geometry import capacity_bits
from bttlab.estimate.gpu import batch_figures, model_step
from bttlab.lab.charts import (
    NUMBERS,
    PALETTE,
    draw_band,
    draw_megabytes,
    new_axes,
    samples_end,
    small_style,
    thinned,
)
from bttlab.lab.energy_meters import step_of
from bttlab.lab.picture import Picture, tile
from bttlab.model import ModelConfig, Optimizer
from bttlab.util.errors import BttlabError
from bttlab.util.places import ROOT
from bttlab.util.quantities import Quantity
from bttlab.util.threads import Thread

RECORD = ROOT / "data" / "energy_to_quality.json"
TARGETS = (0.70, 0.80)  # slot F1 on dev
LOOKS = {"card": (PALETTE[0], "o"), "tensor": (PALETTE[1], "s"), "dense": (PALETTE[2], "^")}
BATCHES = (
    "At batch 1 the GPU takes clearly more energy for the same training. For the dense model in batches of 16 it takes "
    "not clearly less than the card (notebook 04)."
)
Ratio = tuple[float, float, float]


def memory_of(config: ModelConfig, optimizer: Optimizer) -> dict[str, Quantity]:
    """Return the bytes that training a model takes on the chip, by the accountings of `dashboard_runs.ACCOUNTINGS`."""
    rule, longest = optimizer.name, config.sequence_length
    memory = estimate(config, [longest], rule, batch_size=optimizer.batch_size).memory
    used = f"the U50 model {MODEL_VERSION}: bytes that the program uses, and the machine's own"
    occupied = f"the U50 model {MODEL_VERSION}: all blocks that the machine occupies, filled or not"
    return {
        "tensors": Quantity(memory.bytes, "bytes", "modelled", used),
        "footprint": Quantity(capacity_bits(memory.blocks) / 8, "bytes", "modelled", occupied),
    }


@dataclass(frozen=True)
class Published:
    """The paper's ratios of an RTX 3090 to the U50: data/u50/published.json."""

    memory: tuple[float, float]  # dense training there over the U50, in bytes: least and most
    energy: float  # tensor training there over the U50, in joules: at most
    source: str

    def __str__(self) -> str:
        low, high = self.memory
        return (
            f"published: RTX 3090 / U50 = {low:g} to {high:g} in memory (dense training), up to {self.energy:g} in "
            f"energy (tensor training); {self.source}"
        )


def published(config) -> Published | None:
    """Return what was published beside a U50 that trains a model; None for other models than the paper's."""
    if not any(config == ModelConfig(encoders=encoders) for encoders in range(2, 7)):
        return None
    paper = read_data("published")["training_paper"]
    facts = paper["facts"]
    memory = facts["memory_reduction"]
    source = paper["source"].split(" (")[0]
    return Published((memory["low"], memory["high"]), facts["energy_reduction"]["high"], source)


@dataclass(frozen=True)
class GpuRatios:
    """Ratios GPU / U50 of one model: low, middle and high, all modelled."""

    encoders: int
    energy: dict[str, Ratio]  # joules of tensor training, by mode ("eager", "graphs")
    memory: Ratio  # bytes: a process of dense training, with context and workspaces, over those used on the chip
    blocks: Ratio  # the same over all block RAM and UltraRAM that the machine occupies, filled or not
    tensors: float  # bytes of that process's tensors alone over those used on the chip
    parameters: float  # dense over tensor


def gpu_over_card(gpu: Gpu, encoders: int, sample: Samples) -> GpuRatios:
    """Compare a GPU with the U50.

    Parameters
    ----------
    gpu : Gpu
        Modelled.
    encoders : int
        Of the paper's model.
    sample : Samples
        One sample, whose length counts.

    Returns
    -------
    GpuRatios
        What the GPU takes over what the card takes.
    """
    config = ModelConfig(encoders=encoders)
    card = estimate(config, lengths={int(sample.lengths[0]): EPOCH_SAMPLES})
    chip, blocks = card.memory.bytes, capacity_bits(card.memory.blocks) / 8
    dense = model_step(gpu, "dense", "graphs", config, sample)
    of_card = card.energy_at_clocks.low, card.energy_at_clocks.value, card.energy_at_clocks.high  # joules of a sample
    sizes = [ModelConfig(encoders=encoders, format=kind).parameters_count for kind in ("dense", "tensor")]
    return GpuRatios(
        encoders,
        {mode: over(model_step(gpu, "btt", mode, config, sample).joules, of_card) for mode in ("eager", "graphs")},
        tuple(held / chip for held in dense.process_bytes),
        tuple(held / blocks for held in dense.process_bytes),
        dense.tensor_bytes / chip,
        sizes[0] / sizes[1],
    )


def over(numerator: Sequence[float], denominator: Sequence[float] | Quantity) -> Ratio:
    """Return the ratio of the middles, between the extremes that the two bands (low, middle, high) allow."""
    if isinstance(denominator, Quantity):
        band: Any = denominator.low, denominator.value, denominator.high
        return over(numerator, band)
    return numerator[0] / denominator[2], numerator[1] / denominator[1], numerator[2] / denominator[0]


def clearly(ratio: Ratio) -> str:
    """Return how a numerator compares with its denominator, by the band of their ratio.

    It is "clearly less" if the whole band is below 1, "clearly more" if it is above 1; else "not clearly less" or "not
    clearly more", by the middle.
    """
    low, middle, high = ratio
    kind = "less" if middle < 1 else "more"
    return f"{'' if high < 1 or low > 1 else 'not '}clearly {kind}"


def ratio_in_words(ratio: Ratio) -> str:
    """Return a ratio with its band, and what `clearly` calls it: "2.7 times (0.23 to 13), not clearly more".

    Parameters
    ----------
    ratio : Ratio
        With a band.

    Returns
    -------
    str
        The words.
    """
    low, middle, high = (f"{value:.2g}" if value < 10 else f"{value:,.0f}" for value in ratio)
    return f"{middle} times ({low} to {high}), {clearly(ratio)}"


@dataclass(frozen=True)
class Contender:
    name: str
    footprint: Ratio  # bytes that the training occupies on its device: low, middle, high
    of_what: str  # the bytes that `footprint` counts
    joules: np.ndarray  # shape (n + 1, 3): after 0 to n samples, low, middle, high


class Savings:
    """Memory and energy of training on the U50 and on a modelled GPU, dense and tensor-compressed, on the same samples.

    The GPU's steps are launched as CUDA graphs, the fastest mode; each counts as a step on a sample of mean length,
    since launches dominate (3 and 32 tokens differ by 2 %).

    Parameters
    ----------
    config : ModelConfig
        The model.
    samples : Samples
        In the order of training.
    gpu : str
        Name or alias in data/gpus.json.
    optimizer : Optimizer, optional
        The update rule of the training, on all of them; by default SGD.

    Raises
    ------
    BttlabError
        If the optimizer makes an update of several samples: the GPU's steps are those of one.
    """

    def __init__(
        self, config: ModelConfig, samples: Samples, gpu: str = "RTX-3090", optimizer: Optimizer | None = None
    ):
        optimizer = optimizer or Optimizer("sgd")
        if optimizer.batch_size != 1:
            raise BttlabError(
                f"batch_size is {optimizer.batch_size}: savings are modelled for an update of each sample; give an "
                "optimizer with batch_size=1"
            )
        self._found: tuple | Exception | None = None
        of_what = config, samples, gpu, optimizer
        self._thread = Thread(target=self._model, args=of_what, name="bttlab-savings", daemon=True)
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether they are modelled, which takes some seconds and goes on in a thread."""
        return self._found is not None

    @property
    def contenders(self) -> list[Contender]:
        """The U50, the GPU with tensor training, the GPU with dense training; waits until they are modelled."""
        self._thread.join()
        if isinstance(self._found, Exception):
            raise self._found
        return self._found[0]

    def _model(self, config: ModelConfig, *of_what: Any) -> None:
        try:
            self._found = self._contenders(config, *of_what), published(config)
        except Exception as error:  # raised where they are asked for
            self._found = error

    @staticmethod
    def _contenders(config: ModelConfig, samples: Samples, gpu: str, optimizer: Optimizer) -> list[Contender]:
        blocks = capacity_bits(estimate(config).memory.blocks) / 8
        steps = np.array([step_of(config, optimizer, int(length))[:3] for length in samples.lengths])
        found = [Contender("U50, tensor", (blocks,) * 3, "on-chip blocks that the machine occupies", _sums(steps))]
        nearest = int(np.abs(samples.lengths - samples.lengths.mean()).argmin())
        for format, kind in (("btt", "tensor"), ("dense", "dense")):
            one = samples[nearest : nearest + 1]
            step = model_step(find_gpu(gpu), format, "graphs", config, one, optimizer.name)
            joules = _sums(np.tile(step.joules, (len(samples), 1)))
            of_what = "process: context, workspace, tensors"
            found.append(Contender(f"{gpu}, {kind}", step.process_bytes, of_what, joules))
        return found

    def ratios(self, count: int) -> list[str]:
        """Return sentences that name numerator, denominator and band of each ratio after `count` samples."""
        card, tensor, dense = self.contenders
        paper = self._found[1]
        low, middle, high = over(dense.footprint, card.footprint)
        limit = f" Published: {paper.memory[0]:g} to {paper.memory[1]:g} x." if paper else ""
        there, here = dense.footprint[1] / 1e6, card.footprint[1] / 1e6
        lines = [
            f"Memory: {middle:.0f} x (band {low:.0f} to {high:.0f}) = {there:,.0f} MB ({dense.name}, {dense.of_what}; "
            f"modelled) / {here:,.1f} MB ({card.name}, {card.of_what}; modelled).{limit}"
        ]
        for gpu in (tensor, dense) if count else ():
            low, middle, high = over(gpu.joules[count], card.joules[count])
            there, here = gpu.joules[count][1], card.joules[count][1]
            limit = f" Published: up to {paper.energy:g} x." if paper and gpu is tensor else ""
            lines.append(
                f"Energy: {middle:.2g} x (band {low:.2g} to {high:.2g}) = {_joules(there)} ({gpu.name}, CUDA graphs; "
                f"modelled) / {_joules(here)} ({card.name}; modelled, {MODEL_VERSION}) after {count:,} samples.{limit}"
            )
        return lines

    def tiles(self, count: int) -> tuple[str, str]:
        """Return the headline ratios as tiles, and a line with bands and formulas on demand, as HTML."""
        card, tensor, dense = self.contenders
        memory = over(dense.footprint, card.footprint)[1]
        sizes = f"{dense.footprint[1] / 1e6:,.0f} MB of a process that trains dense, {card.footprint[1] / 1e6:,.0f} MB"
        shown = [tile(f"{memory:.0f} x", "the memory on a GPU", f"{sizes} of blocks on the U50 (modelled)")]
        if count:
            energy = over(tensor.joules[count], card.joules[count])[1]
            what = f"of the same training at batch 1: {tensor.name}, over the U50 (modelled)"
            shown.append(tile(f"{energy:.2g} x", "the energy on a GPU", what))
        details = "".join(f"<li>{escape(line)}</li>" for line in self.ratios(count))
        return "".join(shown), f"{BATCHES} <details><summary>Bands and formulas</summary><ul>{details}</ul></details>"

    def draw(self, memory: Axes, energy: Axes, count: int) -> None:
        for axes in (memory, energy):
            axes.clear()
        small_style(memory, "Memory occupied (modelled)", "MB ($10^6$ bytes)")
        small_style(energy, "Energy so far, J (modelled)", "samples trained on")
        shown, rows, names = thinned(np.arange(count + 1), 200), [], []
        for contender, colour in zip(self.contenders, itertools.cycle(PALETTE), strict=False):
            low, middle, high = (value / 1e6 for value in contender.footprint)
            label = f"{contender.name}: {middle:,.0f} MB" + (f" ({low:,.0f} to {high:,.0f})" if high > low else "")
            rows.append((label, colour, contender.footprint))
            joules = contender.joules[shown].T
            draw_band(energy, shown, joules, colour, contender.name)
            names.append(f"{contender.name}: {_joules(joules[1, -1])}")
        draw_megabytes(memory, rows)
        energy.set(xlim=(0, samples_end(count)), ylim=(0, None))
        energy.yaxis.set_major_formatter(NUMBERS)
        energy.tick_params("y", labelsize=9)
        energy.legend(energy.lines, names, loc="upper left", fontsize=8, frameon=False)


def _joules(value: float) -> str:
    return f"{value:,.0f} J" if value >= 100 else f"{value:.3g} J"


def _sums(steps: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros((1, 3)), np.cumsum(steps, axis=0)])


@dataclass(frozen=True)
class EnergyToQuality:
    """Samples and energy of a way to train, up to a slot F1."""

    device: str
    format: str
    mode: str  # "eager" or "graphs" on a GPU, "" on the card
    batch: int
    optimizer: str
    learning_rate: float
    samples: list[int]  # to the target, for each seed that reached it (measured)
    seeds: int  # tried
    joules_per_sample: Ratio  # low, middle and high (modelled)

    @property
    def label(self) -> str:
        where = f"{self.device}, {self.mode}" if self.mode else self.device
        return f"{where}: {self.format}, batch {self.batch}"

    @property
    def joules(self) -> tuple[float, float, float]:
        """Low, middle and high: the fewest, the median and the most samples, each with the energy of a sample."""
        counts = min(self.samples), median(self.samples), max(self.samples)
        return tuple(count * each for count, each in zip(counts, self.joules_per_sample, strict=True))

    def over(self, other: "EnergyToQuality") -> Ratio:
        """Return the ratio of the energies with its own band: the same training takes the same samples on both."""
        if self.samples == other.samples:
            return over(self.joules_per_sample, other.joules_per_sample)
        return over(self.joules, other.joules)


def energy_to_quality(gpu: Gpu, samples: Samples, target: float = TARGETS[-1]) -> list[EnergyToQuality]:
    """Return what each way to train on record takes to a slot F1, on the card or on a GPU.

    Parameters
    ----------
    gpu : Gpu
        Modelled.
    samples : Samples
        Of equal length, the number of the largest batch: the energy of a sample is modelled with them.
    target : float
        Slot F1, one of `TARGETS`.

    Returns
    -------
    list of EnergyToQuality
        A row for each way.

    Raises
    ------
    ValueError
        If the target is none of these.
    """
    if target not in TARGETS:
        raise ValueError(f"slot F1 {target} is not on record; take one of {', '.join(map(str, TARGETS))}")
    found = []
    for way in details_of(RECORD)["ways"]:
        kind, batch, optimizer = way["format"], way["batch"], way["optimizer"]
        reached = [seed[str(target)] for seed in way["samples"].values()]
        common = (batch, optimizer, way["learning_rate"], [n for n in reached if n is not None], len(reached))
        if (kind, batch) == ("tensor", 1):
            card = estimate(ModelConfig(), {int(samples.lengths[0]): 1}, optimizer).energy_at_clocks
            found.append(EnergyToQuality("U50", kind, "", *common, (card.low, card.value, card.high)))
        for mode in ("eager", "graphs"):
            baseline = "btt" if kind == "tensor" else kind
            _, joules = batch_figures(gpu, baseline, mode, ModelConfig(), samples[:batch], optimizer)
            found.append(EnergyToQuality(gpu.gpu, kind, mode, *common, joules))
    return found


def draw_energy_to_quality(rows: list[EnergyToQuality], title: str) -> Picture:
    """Draw the energy that each row takes to its quality, with a line between its bounds.

    Parameters
    ----------
    rows : list of EnergyToQuality
        Of `energy_to_quality`.
    title : str
        Of the figure.

    Returns
    -------
    Picture
        In J.
    """
    rows = [row for row in rows if row.samples]
    label = "J (samples measured, energy of a sample modelled; lines: all bounds)"
    axes = new_axes(8.3, 0.42 * len(rows) + 1.1, title, label, "")
    for place, row in enumerate(rows):
        low, middle, high = row.joules
        color, marker = LOOKS["card" if not row.mode else row.format]
        axes.plot([low, high], [place, place], color=color, linewidth=1.5)
        axes.plot(middle, place, marker, color=color)
        axes.annotate(f"{middle:,.0f} J", (middle, place), (0, 5), textcoords="offset points", ha="center", fontsize=9)
    axes.set(xscale="log", ylim=(len(rows) - 0.5, -0.8))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    return Picture(axes.figure, "Energy to a slot F1 of each way to train, with bands.")
