"""The card, real or emulated: importing this lists the emulated U50 among PYNQ's devices.

PYNQ imports it too, as a plug-in of the group pynq.lib, before it looks for drivers.
"""

import warnings

from bttlab.lazy import later

# What PYNQ delivers notebooks and builds boards with imports setuptools, pkg_resources and ipywidgets, and takes half a
# second. PYNQ knows boards with an Arm processor only, and warns of others.
with warnings.catch_warnings(), later("pynqutils.build_utils", "pynqutils.setup_utils"):
    warnings.simplefilter("ignore")
    import pynq  # noqa: F401

from bttlab.card.trainer import Trainer
from bttlab.u50.card_lock import CardBusyError
from bttlab.u50.emulation import EmulatedU50, register
from bttlab.u50.facts import U50
from bttlab.u50.kernel import OverlayError
from bttlab.u50.overlay import choose_active_device, load_overlay, release_card
from bttlab.u50.training_run import TrainingRun

register()
choose_active_device()

__all__ = [
    "U50",
    "CardBusyError",
    "EmulatedU50",
    "OverlayError",
    "Trainer",
    "TrainingRun",
    "load_overlay",
    "release_card",
]
