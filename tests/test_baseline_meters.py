"""Meters of a baseline: counted storages against PyTorch's profiler; clocks, allocator, NVML and RAPL with fakes."""

import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.profiler import profile
from torch.testing._internal.two_tensor import TwoTensor

from bttlab.baseline.energy import NvmlMeter, find_meter, idle_power, metered
from bttlab.baseline.memory import (
    CATEGORIES,
    StorageMeter,
    counted_step,
    device_memory,
    replay,
)
from bttlab.baseline.rapl import RaplMeter
from bttlab.baseline.run import FORMATS
from bttlab.baseline.timing import CudaClock
from bttlab.commands.doctor import _energy_meters
from bttlab.util.quantities import Quantity
from tiny_baseline import tiny_task

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("format", FORMATS)
def test_counted_peak_is_that_of_the_profiler(format):
    """PyTorch's profiler hears of every allocation, scratch inside kernels included; it knows no categories."""
    task = tiny_task(format)
    task.step(0, task.loss)
    with profile(profile_memory=True) as profiler:
        task.step(0, task.loss)
    between, peak = _peaks(profiler.profiler.kineto_results.events())
    most, at_peak = counted_step(task)
    counted = sum(at_peak.values()) - at_peak["parameters"] - at_peak["inputs"]
    assert between <= counted <= peak
    assert all(most[name] >= at_peak[name] >= 0 for name in CATEGORIES)


def _peaks(events) -> tuple[int, int]:
    """The most bytes held between operations, and at any time: inside of one, its kernel may take scratch."""
    held = between = peak = ends = 0
    for event in sorted(events, key=lambda event: (event.start_ns(), -event.duration_ns())):
        if event.start_ns() >= ends:
            between = max(between, held)
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
        elif event.name().startswith("aten::"):
            ends = max(ends, event.start_ns() + event.duration_ns())
    return between, peak


def test_storages_that_change_their_size_are_counted_with_the_bytes_that_they_have():
    """`fully_shard` frees what it gathered by `storage.resize_(0)`; kernels resize what they are given as `out`."""
    with StorageMeter() as meter:
        kept = []
        for _ in range(4):
            kept.append(torch.empty(1000))
            kept[-1].untyped_storage().resize_(0)
        kept[0].untyped_storage().resize_(800)
        other = torch.empty(0)
        torch.ones(50, out=other)
        assert meter.alive() == {meter.number(kept[0]), meter.number(other)}
        kept[0].untyped_storage().resize_(0)
    assert sum(replay(meter.events, {})[1].values()) == 4000
    assert sum(size for _, size in meter.events) == 200  # what is left


def test_of_a_tensor_that_is_made_of_others_these_are_counted():
    with StorageMeter() as meter:
        pair = TwoTensor(torch.ones(1000), torch.ones(1000))  # as large as one of its parts, and without bytes
        pair = pair * 2
    assert sum(size for _, size in meter.events) == 2 * 4000
    assert sum(replay(meter.events, {})[1].values()) == 4 * 4000


def test_device_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 1000)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 4096)
    assert [figure.value for figure in device_memory(CUDA)] == [1000, 4096]
    assert all(figure.value is None and "CPU" in figure.how for figure in device_memory(CPU))


def test_cuda_clock_reads_events_after_the_device_is_done(monkeypatch):
    log = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            log.append("record")
            self.at = 2.5 * len(log)

        def elapsed_time(self, other):
            assert log[-1] == "synchronize"
            return other.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("synchronize"))
    clock = CudaClock()
    clock.begin()
    assert clock.read() == []
    log.clear()
    clock.begin()
    clock.mark()
    clock.mark()
    assert clock.read() == [2.5e-3, 2.5e-3] and log == ["record"] * 3 + ["synchronize"]


class FakeMonitor:
    """zeus.monitor.ZeusMonitor as far as it is used: a board that draws 250 W, and 300 W at the moment asked."""

    def __init__(self, gpu_indices, cpu_indices):
        assert cpu_indices == []
        (self.index,) = gpu_indices
        self.gpus = self

    def begin_window(self, key):
        self.begin = time.perf_counter()

    def end_window(self, key):
        return SimpleNamespace(gpu_energy={self.index: 250 * (time.perf_counter() - self.begin)})

    def get_instant_power_usage(self, index):
        return 300_000

    def get_average_power_usage(self, index):
        return 280_000


@pytest.fixture
def zeus(monkeypatch):
    monkeypatch.setitem(sys.modules, "zeus", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "zeus.monitor", SimpleNamespace(ZeusMonitor=FakeMonitor))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


@pytest.fixture
def clock(monkeypatch):
    """A clock that only sleeping moves, so that a busy machine adds nothing."""
    now, sleep = [0.0], time.sleep

    def sleep_and_move(seconds):
        sleep(seconds)
        now[0] += seconds

    monkeypatch.setattr(time, "sleep", sleep_and_move)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])


def test_energy_of_a_gpu(zeus, clock, monkeypatch):
    meter, reason = find_meter(CUDA)
    assert isinstance(meter, NvmlMeter) and reason == "" and meter.watts() == 300
    idle = Quantity.measured(50.0, "W", "fake")

    def steps(aside=None):
        time.sleep(0.15)
        return 10

    found = metered(meter, reason, idle, steps, steps, least_seconds=0.4)
    assert found.steps == 30
    assert found.per_step.value == pytest.approx(250 * 0.45 / 30, rel=0.1)
    assert found.per_step_over_idle.value == pytest.approx(200 * 0.45 / 30, rel=0.1)
    assert "30 steps" in found.per_step.how
    assert idle_power(meter, reason, 0.1).value == pytest.approx(250, rel=0.1)

    def no_instant_power(self, index):
        raise RuntimeError("not supported")

    monkeypatch.setattr(FakeMonitor, "get_instant_power_usage", no_instant_power)
    assert meter.watts() == 280


def test_what_is_done_aside_takes_no_energy(zeus, clock):
    meter, reason = find_meter(CUDA)

    def steps(aside):
        time.sleep(0.1)
        with aside():
            time.sleep(0.5)
        time.sleep(0.1)
        return 10

    found = metered(meter, reason, Quantity.measured(50.0, "W", "fake"), steps, lambda: 0, least_seconds=0)
    assert found.per_step.value == pytest.approx(250 * 0.2 / 10, rel=0.2)
    assert found.per_step_over_idle.value == pytest.approx(200 * 0.2 / 10, rel=0.2)


def test_no_meter(tmp_path, monkeypatch):
    assert find_meter(CPU, tmp_path) == (None, "there are no RAPL counters here")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setitem(sys.modules, "zeus.monitor", None)
    meter, reason = find_meter(CUDA)
    assert meter is None and "needs zeus, which is not installed: pip install 'zeus>=0.16'" in reason
    assert idle_power(None, reason).how == reason
    found = metered(None, reason, Quantity.missing("W", reason), lambda aside: 7, lambda: 1)
    assert found.steps == 7 and found.per_step.value is None and found.per_step.how == reason


def _zone(folder, zone, name, microjoules):
    path = folder / f"intel-rapl:{zone}"
    path.mkdir(exist_ok=True)
    (path / "name").write_text(f"{name}\n")
    (path / "max_energy_range_uj").write_text("1000000\n")
    (path / "energy_uj").write_text(f"{microjoules}\n")


HOSTS = {  # zones as Linux lists them, flat: zone, name, microjoules of a window in which the packages take 0.1 J each
    "laptop": [("0", "package-0", 100_000), ("0:0", "core", 60_000), ("0:1", "uncore", 9_000), ("1", "psys", 330_000)],
    "amd": [("0", "package-0", 100_000), ("0:0", "core", 80_000)],
    "server": [(f"{i}", f"package-{i}", 100_000) for i in (0, 1)] + [(f"{i}:0", "dram", 70_000) for i in (0, 1)],
    "dies": [(f"{i}", f"package-{i // 2}-die-{i % 2}", 100_000) for i in range(4)],
}


@pytest.mark.parametrize(("host", "joules"), [("laptop", 0.1), ("amd", 0.1), ("server", 0.2), ("dies", 0.4)])
def test_rapl_adds_packages_alone_and_names_them(tmp_path, monkeypatch, host, joules):
    for zone, name, _ in HOSTS[host]:
        _zone(tmp_path, zone, name, 950_000)
    meter, reason = find_meter(CPU, tmp_path)
    assert isinstance(meter, RaplMeter) and reason == ""
    meter.begin()
    for zone, name, moved in HOSTS[host]:
        _zone(tmp_path, zone, name, (950_000 + moved) % 1_000_000)  # some wrap
    assert meter.watts() > 0
    assert meter.end() == pytest.approx(joules)
    packages = [name for _, name, _ in HOSTS[host] if name.startswith("package")]
    assert ", ".join(packages) in meter.how and not any(part in meter.how for part in ("core", "psys", "dram,"))
    monkeypatch.setattr("bttlab.baseline.rapl.POWERCAP", tmp_path)
    (check,) = _energy_meters()
    assert meter.how in check.detail and len(check.data["counters"]) == len(packages)


def test_two_readers_of_a_wrapping_counter_count_it_once(tmp_path):
    _zone(tmp_path, 0, "package-0", 900_000)
    meter = RaplMeter(tmp_path)
    read = threading.Event()

    class SlowCounter:
        values = iter(("900000", "100000", "100000"))

        def read_text(self):
            value = next(self.values)
            if value == "900000":
                read.set()
                time.sleep(0.2)  # the counter wraps meanwhile, and the other reader sees it
            return value

    meter.counters = [SlowCounter()]
    trace = threading.Thread(target=meter.joules)
    trace.start()
    read.wait()
    assert meter.joules() == pytest.approx(0.2)
    trace.join()
    assert meter.joules() == pytest.approx(0.2)


def test_a_counter_that_vanishes_ends_the_measurement_and_not_the_training(tmp_path):
    _zone(tmp_path, 0, "package-0", 1)
    meter, reason = find_meter(CPU, tmp_path)

    def steps(aside):
        (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
        with aside():
            pass
        return 10

    idle = Quantity.measured(5.0, "W", "fake")
    found = metered(meter, reason, idle, steps, lambda: 0, least_seconds=0)
    assert found.steps == 10 and found.per_step.value is None and found.per_step_over_idle.value is None
    assert "failed during the measurement (FileNotFoundError" in found.per_step.how
    assert idle_power(meter, reason, 0.01).value is None


def test_rapl_that_may_not_be_read(tmp_path, monkeypatch):
    _zone(tmp_path, 0, "package-0", 1)
    read = Path.read_text

    def refused(self, *arguments):
        if self.name == "energy_uj":
            raise PermissionError
        return read(self, *arguments)

    monkeypatch.setattr(Path, "read_text", refused)
    assert find_meter(CPU, tmp_path) == (None, "RAPL is there but may not be read")
