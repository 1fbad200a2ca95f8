"""The card, real or emulated. Importing this package adds the emulated U50, and cards on pyxrt, to PYNQ's devices.

PYNQ also imports it, as a plugin of the entry-point group pynq.lib, before it looks for drivers.
"""

import warnings
from typing import TYPE_CHECKING, Any

from bttlab.card.xrt import check_xrt, why_not_pynq
from bttlab.util.lazy import later

# PYNQ's modules that deliver notebooks and build boards import setuptools, pkg_resources and ipywidgets, which takes
# half a second. PYNQ knows only boards with an Arm processor, and warns on other machines.
with warnings.catch_warnings(), later("pynqutils.build_utils", "pynqutils.setup_utils"):
    check_xrt()
    warnings.simplefilter("ignore")
    import pynq  # noqa: F401

from bttlab.card.card_lock import CardBusyError, release_card
from bttlab.card.device import leave_out_xrt_device, register
from bttlab.card.emulation import EmulatedU50
from bttlab.card.kernel import OverlayError
from bttlab.card.kernel_call import start_kernel
from bttlab.card.opening import open_parallel_trainer, open_trainer
from bttlab.card.overlay import choose_active_device, load_overlay
from bttlab.card.parallel import ParallelTrainer
from bttlab.card.pyxrt_card import PyxrtCard
from bttlab.card.shells import why_unlisted
from bttlab.card.trainer import TrainerDriver
from bttlab.card.training_run import TrainingRun
from bttlab.estimate.facts import U50

if TYPE_CHECKING:
    from bttlab.card.fine_tuning import FineTuned, finetune

if why_not_pynq():
    leave_out_xrt_device()
register(PyxrtCard, EmulatedU50)
choose_active_device()
EmulatedU50.why_unlisted = staticmethod(why_unlisted)


def __getattr__(name: str) -> Any:
    if name in ("FineTuned", "finetune"):  # they need torch, which a card does not
        from bttlab.card import fine_tuning

        return getattr(fine_tuning, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "U50",
    "CardBusyError",
    "EmulatedU50",
    "FineTuned",
    "OverlayError",
    "ParallelTrainer",
    "PyxrtCard",
    "TrainerDriver",
    "TrainingRun",
    "finetune",
    "load_overlay",
    "open_parallel_trainer",
    "open_trainer",
    "release_card",
    "start_kernel",
]
