"""Pictures of tensors: a train of cores."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from bttlab.lab.charts import PALETTE

_SMALL = 8.5


def draw_train(axes: Axes, shapes: Sequence[tuple[int, int, int]], outputs: int) -> None:
    """Draw a TT: a square for each core, its area in proportion to the elements; bonds with their ranks, modes below.

    Parameters
    ----------
    axes : Axes
        Cleared first.
    shapes : sequence of (r_prev, n, r_next)
    outputs : int
        How many of the cores carry output modes.
    """
    axes.clear()
    axes.set_axis_off()
    axes.set(xlim=(-0.6, len(shapes) - 0.4), ylim=(-1.05, 0.75), aspect="equal", anchor="C")
    most = max(a * n * b for a, n, b in shapes)
    for k, (before, n, after) in enumerate(shapes):
        if k + 1 < len(shapes):
            axes.plot([k, k + 1], [0, 0], color="0.55", linewidth=1 + after**0.5 / 2, zorder=1, solid_capstyle="butt")
            axes.text(k + 0.5, 0.5, f"rank {after}", ha="center", fontsize=_SMALL, color="0.3")
        side = 0.12 + 0.58 * (before * n * after / most) ** 0.5
        colour = PALETTE[0] if k < outputs else PALETTE[1]
        axes.plot([k, k], [0, -0.6], color=colour, linewidth=2, zorder=1)
        axes.add_patch(Rectangle((k - side / 2, -side / 2), side, side, color=colour, zorder=2))
        mode = f"{'output' if k < outputs else 'input'} mode {n}"
        axes.text(k, -0.72, mode, ha="center", fontsize=_SMALL, color=colour)
        axes.text(k, -0.95, f"{before} x {n} x {after}", ha="center", fontsize=_SMALL, color="0.3")
        axes.text(k, 0.5, f"$G_{k + 1}$", ha="center", fontsize=11)
