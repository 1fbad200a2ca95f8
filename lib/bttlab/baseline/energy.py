"""Measure energy above idle: NVML through zeus for GPUs, RAPL for CPUs. Without a meter the result has the reason."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from bttlab.baseline.machine import plain
from bttlab.baseline.nvml import NvmlCounter
from bttlab.baseline.rapl import POWERCAP, RaplMeter
from bttlab.baseline.record import Energy
from bttlab.util.plugins import missing_package
from bttlab.util.quantities import Quantity

IDLE_SECONDS = 3.0
LEAST_SECONDS = 5.0  # NVML's counter moves some ten times a second, and power takes a second or two to settle

Aside = Callable[[], contextlib.AbstractContextManager[None]]


class NvmlMeter:
    """The energy counter of the GPU with PyTorch's index `index`, through zeus."""

    how = "NVML through zeus: the whole board"

    def __init__(self, index: int):
        from zeus.monitor import ZeusMonitor

        self._index = index
        self._monitor = ZeusMonitor(gpu_indices=[index], cpu_indices=[])
        self.watts()  # raises if there is no such GPU

    def begin(self) -> None:
        self._monitor.begin_window("baseline")

    def end(self) -> float:
        return sum(self._monitor.end_window("baseline").gpu_energy.values())

    def watts(self) -> float:
        """Return the power now; the driver's average over a second on boards that give no other."""
        gpus = self._monitor.gpus
        try:
            return gpus.get_instant_power_usage(self._index) / 1e3
        except Exception:
            return gpus.get_average_power_usage(self._index) / 1e3


Meter = NvmlMeter | NvmlCounter | RaplMeter  # counts joules, one window at a time


def find_meter(device: torch.device, powercap: Path = POWERCAP) -> tuple[Meter | None, str]:
    """Return the meter of a device, or None and the reason why there is none."""
    try:
        if device.type == "cuda":
            return NvmlMeter(torch.cuda.current_device()), ""
        return RaplMeter(powercap), ""
    except ModuleNotFoundError as error:  # without zeus
        try:
            return NvmlCounter(torch.cuda.current_device()), ""
        except OSError:
            return None, missing_package(error, "the meter") or str(error)
    except FileNotFoundError:
        return None, "there are no RAPL counters here"
    except PermissionError:
        return None, "RAPL is there but may not be read"
    except Exception as error:  # zeus and NVML have many of their own
        return None, plain(error)


def idle_power(meter: Meter | None, reason: str, seconds: float = IDLE_SECONDS) -> Quantity:
    """Measure the power while nothing runs, in watts."""
    if meter is None:
        return Quantity.missing("W", reason)
    with EnergyWindow(meter) as window:
        time.sleep(seconds)
    how = f"{meter.how}; mean over {seconds:g} s before training"
    return window.quantity(lambda joules: joules / window.elapsed, "W", how)


class EnergyWindow:
    """A context in which a meter counts, except for work done in `aside`.

    A meter that fails (a counter vanishes, a driver is reloaded) ends the measurement, not the training.
    """

    def __init__(self, meter: Meter):
        self._joules = self._seconds = 0.0
        self._meter = meter
        self._begin: float | None = None
        self._failure = ""

    @property
    def elapsed(self) -> float:
        return self._seconds + (time.perf_counter() - self._begin if self._begin is not None else 0.0)

    def quantity(self, of: Callable[[float], float], unit: str, how: str) -> Quantity:
        """Return `of` the joules counted as measured, or missing with the reason if the meter failed."""
        if self._failure:
            return Quantity.missing(unit, f"the meter failed during the measurement ({self._failure})")
        return Quantity.measured(of(self._joules), unit, how)

    def __enter__(self) -> "EnergyWindow":
        self._call(self._meter.begin)
        self._begin = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        self._joules += self._call(self._meter.end) or 0.0
        self._seconds, self._begin = self.elapsed, None

    def _call(self, method: Callable[[], float | None]) -> float | None:
        try:
            return None if self._failure else method()
        except Exception as error:  # OSError of a counter; zeus and NVML have many of their own
            self._failure = plain(error)
            return None

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """A context that is not counted."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()


def metered(
    meter: Meter | None,
    reason: str,
    idle: Quantity,
    timed: Callable[[Aside], int],
    go_on: Callable[[], int],
    least_seconds: float = LEAST_SECONDS,
) -> Energy:
    """Train within an energy window.

    Without a meter `reason` says why. The idle power, in watts, is subtracted. `timed` trains on the samples of the
    baseline and returns their number; it gets `EnergyWindow.aside`. `go_on` trains on as many again, until the window
    is `least_seconds` long, and returns 0 to end it.
    """
    if meter is None:
        none = Quantity.missing("J", reason)
        return Energy(timed(contextlib.nullcontext), none, none)
    with EnergyWindow(meter) as window:
        steps = timed(window.aside)
        while steps and window.elapsed < least_seconds and (more := go_on()):
            steps += more
    elapsed = window.elapsed
    if not steps:
        none = Quantity.missing("J", "stopped before the first step")
        return Energy(0, none, none)
    how = f"{meter.how}; {steps} steps in {elapsed:.1f} s"
    per_step = window.quantity(lambda joules: joules / steps, "J", how)
    over_idle = Quantity.missing("J", per_step.how if per_step.value is None else idle.how)
    if per_step.value is not None and idle.value is not None:
        value = per_step.value - idle.value * elapsed / steps
        over_idle = Quantity.measured(value, "J", f"{how}; less {idle.value:.1f} W idle")
    return Energy(steps, per_step, over_idle)
