"""Meters of a baseline: counted storages against PyTorch's profiler; clocks, allocator, NVML and RAPL with fakes."""

import sys
import time
from types import SimpleNamespace

import pytest
import torch
from torch.profiler import profile

from bttlab.baseline.energy import NvmlMeter, RaplMeter, find_meter, idle_power, metered
from bttlab.baseline.memory import (
    CATEGORIES,
    counted_step,
    device_memory,
    measure_memory,
    stage_statistics,
)
from bttlab.baseline.run import FORMATS
from bttlab.baseline.timing import CudaClock
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
    held, peak = 0, 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    most, at_peak = counted_step(task)
    counted = sum(at_peak.values()) - at_peak["parameters"] - at_peak["inputs"]
    scratch = 600 if format == "dense" else 0  # the gradient of a dense embedding sorts its token ids
    assert peak - scratch <= counted <= peak
    assert all(most[name] >= at_peak[name] >= 0 for name in CATEGORIES)


@pytest.mark.parametrize("format", FORMATS)
def test_memory_by_category(format):
    task = tiny_task(format)
    memory = measure_memory(task)
    parameters = task.model.config.parameters_bytes
    assert memory.categories["parameters"].at_peak.value == parameters
    assert memory.categories["gradients"].most.value == pytest.approx(parameters, rel=0.02)  # views share storages
    assert memory.categories["optimizer_state"].most.value == 0
    assert memory.categories["activations"].most.value > 0
    assert sum(share.at_peak.value for share in memory.categories.values()) == memory.peak.value
    assert memory.tokens == task.lengths[0] and memory.peak.provenance == "measured"
    assert memory.workspace.value is None and memory.stages == {}


class FakeStatistics:
    """An allocator that gives every stage 100 bytes, 30 of them for a while only."""

    def __init__(self):
        self.held, self.peak, self.calls = 1000, 1000, []

    def reset_peak_memory_stats(self):
        self.calls.append("reset")
        self.peak = self.held

    def synchronize(self):
        self.calls.append("synchronize")
        self.peak = self.held + 100
        self.held += 70

    def memory_allocated(self):
        return self.held

    def max_memory_allocated(self):
        return self.peak

    def max_memory_reserved(self):
        return 4096

    def mem_get_info(self):
        return 10_000, 30_000


def test_stages_read_the_allocator_between_them(monkeypatch):
    task, statistics = tiny_task("btt"), FakeStatistics()
    monkeypatch.setattr(torch, "cuda", statistics)
    read = stage_statistics(task)
    assert read == {"forward": (1070, 1100), "backward": (1140, 1170), "update": (1210, 1240)}
    assert statistics.calls == ["reset", *["synchronize", "reset"] * 3]


def test_device_memory(monkeypatch):
    monkeypatch.setattr(torch, "cuda", FakeStatistics())
    allocated, reserved, device = device_memory(CUDA)
    assert (allocated.value, reserved.value, device.value) == (1000, 4096, 20_000)
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
    assert found.trace_watts and set(found.trace_watts) == {300} and "30 steps" in found.per_step.how
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
    assert meter is None and reason.endswith("needs zeus, which is not installed: pip install 'bttlab[gpu]'")
    assert idle_power(None, reason).how == reason
    found = metered(None, reason, Quantity.missing("W", reason), lambda aside: 7, lambda: 1)
    assert found.steps == 7 and found.per_step.value is None and found.per_step.how == reason


def _zone(folder, number, microjoules):
    zone = folder / f"intel-rapl:{number}"
    zone.mkdir(exist_ok=True)
    (zone / "max_energy_range_uj").write_text("1000000\n")
    (zone / "energy_uj").write_text(f"{microjoules}\n")


def test_rapl_adds_packages_and_wraps(tmp_path):
    _zone(tmp_path, 0, 900_000)
    _zone(tmp_path, 1, 100_000)
    _zone(tmp_path, "0:0", 5)  # a part of package 0
    meter, reason = find_meter(CPU, tmp_path)
    assert isinstance(meter, RaplMeter) and reason == ""
    meter.begin()
    _zone(tmp_path, 0, 100_000)  # over the end of its range
    assert meter.watts() > 0
    _zone(tmp_path, 1, 400_000)
    assert meter.end() == pytest.approx(0.5)


def test_rapl_that_may_not_be_read(tmp_path, monkeypatch):
    _zone(tmp_path, 0, 1)

    def refused(self):
        raise PermissionError

    monkeypatch.setattr(RaplMeter, "_read", refused)
    assert find_meter(CPU, tmp_path) == (None, "RAPL is there but may not be read")
