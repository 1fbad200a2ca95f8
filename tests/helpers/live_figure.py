"""What the dashboard's figure should show, as a number: the browser works it out from what it shows."""

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg

from bttlab.lab import Dashboard
from bttlab.lab.dashboard_figure import DashboardFigure


def fresh(board: Dashboard) -> int:
    """The digest of a new drawing of a dashboard's runs."""
    drawn = DashboardFigure()
    drawn.update(board.runs)
    canvas = FigureCanvasAgg(drawn.figure)
    canvas.draw()
    return digest(np.asarray(canvas.buffer_rgba()).view(np.uint32))


def digest(pixels: np.ndarray) -> int:
    """FNV-1a over uint32 pixels."""
    value = 2166136261
    for pixel in pixels.ravel().tolist():
        value = (value ^ pixel) * 16777619 & 0xFFFFFFFF
    return value
