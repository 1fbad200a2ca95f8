"""The U50 as a training processor: its machine, the programs that it runs, and how they are checked."""

import bttlab.u50  # noqa: F401 - first: PYNQ's plug-in, which imports the driver from here
from bttlab.card.opening import open_trainer
from bttlab.card.trainer import Trainer

__all__ = ["Trainer", "open_trainer"]
