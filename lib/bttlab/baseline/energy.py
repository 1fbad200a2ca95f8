"""Energy over idle: a GPU's by NVML through zeus, a CPU's by RAPL, else none and the reason."""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from bttlab.baseline.machine import plain
from bttlab.baseline.record import Energy
from bttlab.util.plugins import missing_package
from bttlab.util.quantities import Quantity

POWERCAP = Path("/sys/class/powercap")
IDLE_SECONDS = 3.0
LEAST_SECONDS = 5.0  # NVML's counter moves some ten times a second, and power takes a second or two to settle
TRACE_SECONDS = 0.1  # between two points of a power trace

Aside = Callable[[], contextlib.AbstractContextManager[None]]


class NvmlMeter:
    """A GPU's energy counter, through zeus.

    Parameters
    ----------
    index : int
        Of the GPU, as PyTorch counts.

    Attributes
    ----------
    how : str
        What it is, and what it covers.
    """

    how = "NVML through zeus: the whole board"

    def __init__(self, index: int):
        from zeus.monitor import ZeusMonitor

        self._index = index
        self._monitor = ZeusMonitor(gpu_indices=[index], cpu_indices=[])
        self.watts()  # raises if there is no such GPU

    def begin(self) -> None:
        """Wait for the device and open a window."""
        self._monitor.begin_window("baseline")

    def end(self) -> float:
        """Wait for the device, close the window and return its joules."""
        return sum(self._monitor.end_window("baseline").gpu_energy.values())

    def watts(self) -> float:
        """Return the power now; the driver's average over a second on boards that give no other."""
        gpus = self._monitor.gpus
        try:
            return gpus.get_instant_power_usage(self._index) / 1e3
        except Exception:
            return gpus.get_average_power_usage(self._index) / 1e3


class RaplMeter:
    """The energy counters of all processor packages.

    Parameters
    ----------
    folder : path
        Where the kernel shows them.

    Raises
    ------
    OSError
        If there is none, or they may not be read.
    """

    how = "RAPL: all processor packages, with everything that runs on them"

    def __init__(self, folder: Path = POWERCAP):
        self._zones = [zone for zone in sorted(folder.glob("intel-rapl:*")) if re.fullmatch(r".*:\d+", zone.name)]
        if not self._zones:
            raise FileNotFoundError
        self._ranges = [int((zone / "max_energy_range_uj").read_text()) for zone in self._zones]
        self._last = self._read()
        self._microjoules = 0  # since the meter was made
        self._looked = (time.perf_counter(), 0)  # when watts() last did, and at what count

    def begin(self) -> None:
        """Open a window."""
        self._start = self._count()

    def end(self) -> float:
        """Close it and return its joules."""
        return (self._count() - self._start) / 1e6

    def watts(self) -> float:
        """Return the mean power since the last call."""
        then, before = self._looked
        self._looked = now, count = time.perf_counter(), self._count()
        return (count - before) / 1e6 / (now - then)

    def _count(self) -> int:
        values = self._read()
        for value, last, limit in zip(values, self._last, self._ranges, strict=True):
            self._microjoules += value - last if value >= last else value - last + limit  # the counter wrapped
        self._last = values
        return self._microjoules

    def _read(self) -> list[int]:
        return [int((zone / "energy_uj").read_text()) for zone in self._zones]


Meter = NvmlMeter | RaplMeter  # counts joules, one window at a time


def find_meter(device: torch.device, powercap: Path = POWERCAP) -> tuple[Meter | None, str]:
    """Return the meter of a device, or None and the reason why there is none."""
    try:
        if device.type == "cuda":
            return NvmlMeter(torch.cuda.current_device()), ""
        return RaplMeter(powercap), ""
    except ModuleNotFoundError as error:
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
    meter.begin()
    begin = time.perf_counter()
    time.sleep(seconds)
    elapsed = time.perf_counter() - begin
    return Quantity.measured(meter.end() / elapsed, "W", f"{meter.how}; mean over {seconds:g} s before training")


class PowerTrace:
    """A context in which a thread notes the power, ten times a second.

    Attributes
    ----------
    seconds, watts : list of float
    """

    def __init__(self, meter: Meter):
        self.seconds: list[float] = []
        self.watts: list[float] = []
        self._meter = meter
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="bttlab-power", daemon=True)

    def __enter__(self) -> "PowerTrace":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def _follow(self) -> None:
        begin = time.perf_counter()
        while not self._over.wait(TRACE_SECONDS):
            try:
                watts = self._meter.watts()
            except Exception:  # a meter that fails ends its trace, not the training
                return
            self.seconds.append(round(time.perf_counter() - begin, 3))
            self.watts.append(round(watts, 2))


class EnergyWindow:
    """A context in which a meter counts, but for what is done aside.

    Attributes
    ----------
    joules : float
        Counted, once the context has ended.
    """

    def __init__(self, meter: Meter):
        self.joules = self._seconds = 0.0
        self._meter = meter
        self._begin: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds counted so far."""
        return self._seconds + (time.perf_counter() - self._begin if self._begin is not None else 0.0)

    def __enter__(self) -> "EnergyWindow":
        self._meter.begin()
        self._begin = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        self.joules += self._meter.end()
        self._seconds, self._begin = self.elapsed, None

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

    Parameters
    ----------
    meter : Meter or None
    reason : str
        Why there is no meter.
    idle : Quantity
        Power to take off, in watts.
    timed : callable
        Trains on the samples of the baseline and returns how many those were. Gets what makes a context for work that
        is not to be counted.
    go_on : callable
        Trains on as many again; called until the window is `least_seconds` long. Returns 0 to end it.
    """
    if meter is None:
        none = Quantity.missing("J", reason)
        return Energy(timed(contextlib.nullcontext), none, none, [], [])
    with EnergyWindow(meter) as window, PowerTrace(meter) as trace:
        steps = timed(window.aside)
        while steps and window.elapsed < least_seconds and (more := go_on()):
            steps += more
    joules, elapsed = window.joules, window.elapsed
    if not steps:
        none = Quantity.missing("J", "stopped before the first step")
        return Energy(0, none, none, [], [])
    how = f"{meter.how}; {steps} steps in {elapsed:.1f} s"
    return Energy(
        steps,
        Quantity.measured(joules / steps, "J", how),
        Quantity.measured((joules - idle.value * elapsed) / steps, "J", f"{how}; less {idle.value:.1f} W idle"),
        trace.seconds,
        trace.watts,
    )
