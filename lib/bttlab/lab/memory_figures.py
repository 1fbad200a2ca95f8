"""Draw the memory of training: modelled on the U50, measured in PyTorch."""

from collections.abc import Mapping, Sequence

from bttlab.baseline.record import Memory
from bttlab.estimate.card import Estimate
from bttlab.estimate.memory import VECTOR_BYTES
from bttlab.lab.charts import PALETTE, draw_parts, legend_below, new_axes
from bttlab.lab.picture import Picture

# A colour for each kind of byte, the same on the chip and in PyTorch.
COLOURS = {
    "parameters": PALETTE[0],
    "gradients": PALETTE[1],
    "optimizer state": PALETTE[2],
    "activations": PALETTE[5],
    "operand buffers": PALETTE[3],
    "temporaries": "0.6",
    "machine overhead": "0.8",
    "inputs": "0.8",
}


def chip_bytes(estimate: Estimate) -> dict[str, int]:
    """Return the modelled bytes on chip of each group of buffers that has any.

    Parameters
    ----------
    estimate : Estimate
        Of `bttlab.estimate.card.estimate`.

    Returns
    -------
    dict of str to int
        Bytes by group.
    """
    return {group: size for group, size in estimate.memory.by_group().items() if size}


def torch_bytes(memory: Memory) -> dict[str, int]:
    """Return the bytes of a PyTorch step by category, at the step's peak.

    Parameters
    ----------
    memory : Memory
        Of a baseline's record.

    Returns
    -------
    dict of str to int
        Bytes by category.
    """
    return {name.replace("_", " "): int(share.at_peak.value) for name, share in memory.categories.items()}


def draw_bytes(rows: Mapping[str, Mapping[str, float]], title: str) -> Picture:
    """Draw stacked bars, a row for each name, in megabytes.

    Parameters
    ----------
    rows : mapping of str to mapping of str to float
        Bytes by category, by the row's name.
    title : str
        Of the figure.

    Returns
    -------
    Picture
        Bars.
    """
    axes = new_axes(8.3, 1.2 + 0.55 * len(rows), title, "MB ($10^6$ bytes)", "")
    for row, parts in enumerate(rows.values()):
        end = draw_parts(
            axes, row, [(name, size / 1e6, COLOURS.get(name, "0.9")) for name, size in parts.items() if size]
        )
        axes.text(end, row, f" {end:,.1f}", va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    legend_below(axes.figure)
    return Picture(axes.figure, "Stacked bars of memory by what it is for.")


def draw_banks(estimate: Estimate) -> Picture:
    """Draw the size of each bank and the bytes that a program uses of it, by purpose.

    Parameters
    ----------
    estimate : Estimate
        Of `bttlab.estimate.card.estimate`.

    Returns
    -------
    Picture
        Bars.
    """
    banks = estimate.memory.banks
    title = f"Bytes of each bank in use, {estimate.model.encoders} encoders, {estimate.optimizer} (modelled)"
    axes = new_axes(8.3, 1.4 + 0.23 * len(banks), title, "MB ($10^6$ bytes)", "")
    rooms = [bank.depth * bank.word_vectors * VECTOR_BYTES / 1e6 for bank in banks]
    for row, (bank, room) in enumerate(zip(banks, rooms, strict=True)):
        parts = [(group, room * words / bank.depth, COLOURS[group]) for group, words in bank.groups.items()]
        draw_parts(axes, row, parts, 0.7)
        axes.barh(row, room, color="none", edgecolor="0.3", linewidth=0.8, height=0.7)
        blocks = f"{bank.blocks.uram} UltraRAM" if bank.kind == "uram" else f"{bank.blocks.bram36:g} BRAM36"
        axes.text(room + 0.01 * max(rooms), row, f"{bank.words / bank.depth:.0%} of {blocks}", va="center", fontsize=8)
    axes.set_yticks(range(len(banks)), [bank.name for bank in banks], fontsize=8)
    axes.set_ylim(len(banks) - 0.4, -0.6)
    axes.set_xlim(0, 1.28 * max(rooms))
    kinds = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    axes.legend(kinds.values(), kinds, loc="lower right", fontsize=8)
    filled = "; ".join(f"{bank.name} {bank.words / bank.depth:.0%}" for bank in banks)
    return Picture(axes.figure, f"Share of each bank that a program uses: {filled}.")


def draw_energy(estimates: Mapping[str, Estimate]) -> Picture:
    """Draw the energy of an epoch by its parts, with the band that the constants' uncertainty gives the sum.

    Parameters
    ----------
    estimates : mapping of str to Estimate
        By the bars' names.

    Returns
    -------
    Picture
        Bars.
    """
    title = "Energy of an epoch (modelled; the line is the band of the sum)"
    axes = new_axes(8.3, 1.3 + 0.5 * len(estimates), title, "energy (J)", "")
    names: Sequence[str] = tuple(next(iter(estimates.values())).power.components)
    for row, estimate in enumerate(estimates.values()):
        watts, seconds = estimate.power.components, estimate.seconds_per_epoch
        parts = zip(names, ("0.75", *PALETTE), strict=True)
        joules = [(name, watts[name].value * seconds, colour) for name, colour in parts if watts[name].value]
        draw_parts(axes, row, joules, 0.55)
        band = estimate.energy_per_epoch
        axes.plot([band.low, band.high], [row, row], color="0.15", linewidth=1.5, marker="|", markersize=9)
    axes.set_yticks(range(len(estimates)), estimates)
    axes.invert_yaxis()
    legend_below(axes.figure)
    bands = (
        f"{name} {estimate.energy_per_epoch.low:,.0f} to {estimate.energy_per_epoch.high:,.0f} J"
        for name, estimate in estimates.items()
    )
    return Picture(axes.figure, f"The energy of an epoch by its parts; the sum's band: {'; '.join(bands)}.")
