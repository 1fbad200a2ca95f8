"""Compare training on the U50 with a modelled GPU: memory and energy with bands, and their ratios."""

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bttlab.baseline.gpus import find_gpu
from bttlab.baseline.modelled import model_step
from bttlab.card.constants import MODEL_VERSION
from bttlab.data import Samples
from bttlab.estimate.card import estimate
from bttlab.estimate.geometry import capacity_bits
from bttlab.lab.card_model import over, published, step_of
from bttlab.lab.charts import DOTS_PER_INCH, NUMBERS, PALETTE, draw_band, draw_megabytes, style, thinned
from bttlab.model import ModelConfig

PANEL = (3.0, 2.5)  # inches: three fit side by side in a window of 1400 pixels, one in a narrow one


@dataclass(frozen=True)
class Contender:
    """One way to train.

    Attributes
    ----------
    name : str
    footprint : (float, float, float)
        Bytes that the training occupies on its device: low, middle, high.
    of_what : str
        The bytes that `footprint` counts.
    joules : ndarray, shape (n + 1, 3)
        Energy after 0 to n samples: low, middle, high.
    """

    name: str
    footprint: tuple[float, float, float]
    of_what: str
    joules: np.ndarray


class Savings:
    """Memory and energy of training on the U50 and on a modelled GPU, dense and tensor-compressed, on the same samples.

    Parameters
    ----------
    config : ModelConfig
    samples : Samples
        In the order of training.
    gpu : str
        A name of `bttlab.baseline.gpus`. Its steps are launched as CUDA graphs, the fastest mode; each counts as a step
        on a sample of mean length, since launches dominate (3 and 32 tokens differ by 2 %).

    Attributes
    ----------
    contenders : list of Contender
        The U50, the GPU with tensor training, the GPU with dense training; all modelled.
    """

    def __init__(self, config: ModelConfig, samples: Samples, gpu: str = "RTX-3090"):
        blocks = capacity_bits(estimate(config).memory.blocks) / 8
        steps = np.array([step_of(config, "sgd", int(length))[:3] for length in samples.lengths])
        self.contenders = [
            Contender("U50, tensor", (blocks,) * 3, "on-chip blocks that the machine occupies", _sums(steps))
        ]
        nearest = int(np.abs(samples.lengths - samples.lengths.mean()).argmin())
        for format, kind in (("btt", "tensor"), ("dense", "dense")):
            step = model_step(find_gpu(gpu), format, "graphs", config, samples[nearest : nearest + 1])
            joules = _sums(np.tile(step.joules, (len(samples), 1)))
            of_what = "process: context, workspace, tensors"
            self.contenders.append(Contender(f"{gpu}, {kind}", step.process_bytes, of_what, joules))
        self._published = published(config)

    def ratios(self, count: int) -> list[str]:
        """Return sentences that name numerator, denominator and band of each ratio after `count` samples."""
        card, tensor, dense = self.contenders
        paper = self._published
        lines = [
            _memory_ratio(dense, card)
            + (f" Published: {paper.memory[0]:g} to {paper.memory[1]:g} x." if paper else ""),
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

    def draw(self, memory: Axes, energy: Axes, count: int) -> None:
        """Draw the panels of memory and energy after `count` samples."""
        for axes in (memory, energy):
            axes.clear()
        small_style(memory, "Memory occupied (modelled)", "MB ($10^6$ bytes)")
        small_style(energy, "Energy so far, J (modelled)", "samples trained on")
        shown, rows, names = thinned(np.arange(count + 1), 200), [], []
        for contender, colour in zip(self.contenders, PALETTE, strict=False):
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


def panel() -> Figure:
    """Return an empty figure of the size of one panel."""
    figure = Figure(figsize=PANEL, dpi=DOTS_PER_INCH, facecolor="white")
    figure.subplots_adjust(left=0.18, right=0.89, bottom=0.2, top=0.88)
    return figure


def small_style(axes: Axes, title: str, x_label: str) -> None:
    """Style the axes of a panel: a small title, few ticks."""
    style(axes, title, x_label, "")
    axes.set_title(title, loc="left", fontweight="bold", fontsize=9.5)
    axes.locator_params(nbins=4)
    axes.xaxis.set_major_formatter(NUMBERS)


def samples_end(count: int) -> float:
    """Return the end of an axis of samples: where the data end."""
    return max(count, 500)


def _joules(value: float) -> str:
    return f"{value:,.0f} J" if value >= 100 else f"{value:.3g} J"


def _sums(steps: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros((1, 3)), np.cumsum(steps, axis=0)])


def _memory_ratio(gpu: Contender, card: Contender) -> str:
    low, middle, high = over(gpu.footprint, card.footprint)
    return (
        f"Memory: {middle:.0f} x (band {low:.0f} to {high:.0f}) = {gpu.footprint[1] / 1e6:,.0f} MB ({gpu.name}, "
        f"{gpu.of_what}; modelled) / {card.footprint[1] / 1e6:,.1f} MB ({card.name}, {card.of_what}; modelled)."
    )
