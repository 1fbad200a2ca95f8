"""Where training's bytes lie: on the U50's chip by the model's memory map, in PyTorch by measurement."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from bttlab.baseline.record import Memory
from bttlab.lab.charts import PALETTE, style
from bttlab.u50.estimate import Estimate
from bttlab.u50.memory_map import by_group

# A colour for each kind of byte, the same on the chip and in PyTorch.
COLOURS = {
    "parameters": PALETTE[0],
    "gradients": PALETTE[1],
    "optimizer state": PALETTE[2],
    "activations": PALETTE[5],
    "merged cores": PALETTE[3],
    "scratch": "0.6",
    "temporaries": "0.6",
    "engine": "0.8",
    "inputs": "0.8",
}


def chip_bytes(estimate: Estimate) -> dict[str, int]:
    """Return the bytes of the on-chip arrays by group."""
    found: dict[str, int] = {}
    for array in estimate.arrays:
        found[array.group] = found.get(array.group, 0) + array.bytes
    return found


def torch_bytes(memory: Memory) -> dict[str, int]:
    """Return the bytes of a PyTorch step by category, at the step's peak."""
    return {name.replace("_", " "): int(share.at_peak.value) for name, share in memory.categories.items()}


def draw_bytes(rows: Mapping[str, Mapping[str, float]], title: str) -> None:
    """Draw stacked bars, a row for each name, in megabytes.

    Parameters
    ----------
    rows : mapping of str to mapping of str to float
        Bytes by category.
    title : str
        Says where the numbers come from.
    """
    _, axes = plt.subplots(figsize=(8.3, 0.9 + 0.55 * len(rows)), layout="constrained")
    style(axes, title, "MB ($10^6$ bytes)", "")
    seen: dict[str, None] = {}
    for row, parts in enumerate(rows.values()):
        start = 0.0
        for name, size in parts.items():
            colour = COLOURS.get(name, "0.9")
            axes.barh(row, size / 1e6, left=start, color=colour, label=None if name in seen else name, height=0.6)
            seen[name] = None
            start += size / 1e6
        axes.text(start, row, f" {start:,.1f}", va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.legend(fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.28), frameon=False)


def draw_blocks(estimates: Mapping[str, Estimate], limits: Mapping[str, int]) -> None:
    """Draw how many blocks of BRAM and UltraRAM each group takes, with the card's limits.

    Parameters
    ----------
    estimates : mapping of str to Estimate
    limits : mapping of str to int
        "bram36" and "uram": what the shell leaves to kernels.
    """
    size = (8.3, 1.8 + 0.45 * len(estimates))
    figure, panels = plt.subplots(1, 2, figsize=size, layout="constrained", sharey=True)
    for axes, (resource, title) in zip(panels, (("bram36", "BRAM36"), ("uram", "UltraRAM")), strict=True):
        style(axes, f"{title} blocks (modelled)", "blocks", "")
        for row, found in enumerate(estimates.values()):
            parts = {name: getattr(blocks, resource) for name, blocks in by_group(found.arrays).items()}
            parts["HBM ports"] = found.resources.total(resource).mid - sum(parts.values())
            _stack(axes, row, parts)
        axes.axvline(limits[resource], color="0.2", linestyle="--", label="limit" if resource == "bram36" else None)
        axes.text(limits[resource], -0.45, "limit ", ha="right", fontsize=8)
    panels[0].set_yticks(range(len(estimates)), estimates)
    panels[0].invert_yaxis()
    bars = {bar.get_label(): bar for axes in panels for bar in axes.containers}
    figure.legend(bars.values(), bars, fontsize=8, ncols=6, loc="outside lower center", frameon=False)


def _stack(axes: Axes, row: int, parts: Mapping[str, float]) -> None:
    start = 0.0
    for name, size in parts.items():
        axes.barh(row, size, left=start, color=COLOURS.get(name, "0.9"), height=0.6, label=name)
        start += size
    label = axes.text(start, row, f" {start:,.0f} ", va="center", fontsize=9)
    label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})  # a limit's line may pass behind it


def draw_energy(estimates: Mapping[str, Estimate]) -> None:
    """Draw the energy of an epoch by its parts, with the band that the constants' uncertainty gives the sum."""
    _, axes = plt.subplots(figsize=(8.3, 1.3 + 0.5 * len(estimates)), layout="constrained")
    style(axes, "Energy of an epoch (modelled; the line is the band of the sum)", "energy (J)", "")
    names: Sequence[str] = tuple(next(iter(estimates.values())).power.components)
    for row, found in enumerate(estimates.values()):
        start = 0.0
        for name, colour in zip(names, PALETTE, strict=False):
            joules = found.power.components[name].mid * found.seconds_per_epoch
            axes.barh(row, joules, left=start, color=colour, height=0.55, label=name if row == 0 else None)
            start += joules
        band = found.energy_per_epoch
        axes.plot([band.low, band.high], [row, row], color="0.15", linewidth=1.5, marker="|", markersize=9)
    axes.set_yticks(range(len(estimates)), estimates)
    axes.invert_yaxis()
    axes.legend(fontsize=8, ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.25), frameon=False)
