"""tools/gpu_record.py, dry on the CPU: what it writes is what the baselines and the cost model read; NVML by a fake."""

import ctypes
import itertools
import json
import shutil
from types import SimpleNamespace

import gpu_record
import gpu_techniques
import numpy as np
import pytest
import torch
from card_pages import BASELINES, samples_of

from bttlab.baseline import load_records
from bttlab.baseline.energy import find_meter
from bttlab.baseline.gpus import find_gpu
from bttlab.baseline.run import FORMATS
from bttlab.estimate.gpu import batch_figures
from bttlab.lab import RecordedRun
from bttlab.model import ModelConfig
from bttlab.model.choices import TYPICAL_TOKENS
from bttlab_cost import others


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu_record")
    precision = torch.get_float32_matmul_precision()
    assert gpu_record.main(["--out", str(folder), "--dry-run"]) == 0
    torch.set_float32_matmul_precision(precision)
    return folder


@pytest.mark.long
def test_a_dry_run_writes_every_setting(written):
    records = load_records(written / "baselines")
    settings = {(record.format, record.batch, record.machine.precision) for record in records}
    assert settings == set(itertools.product(("btt", "dense", "tt"), (1, 16), ("highest", "high")))
    about = json.loads((written / "about.json").read_text())
    assert about["left_out"] == [] and about["dry_run"] and about["machine"]["torch"] == torch.__version__


@pytest.mark.long
def test_techniques_that_need_a_gpu_are_timed_beside_what_they_replace_or_say_why_not(written):
    found = json.loads((written / "techniques.json").read_text())
    assert set(found) == set(gpu_techniques.TECHNIQUES)
    for name in ("FlashAttention", "offloading to NVMe"):  # which a CPU has, too
        assert [step["seconds"]["provenance"] for step in found[name]["steps"]] == ["measured"] * 2, found[name]
        assert all(step["seconds"]["value"] > 0 for step in found[name]["steps"]) and not found[name]["left_out"]
    for name in ("2:4 sparsity", "FP8"):  # without a GPU, or without torchao
        assert len(found[name]["steps"]) == 1 and "Error: " in found[name]["left_out"]


def test_the_steps_compute_what_they_replace(tmp_path):
    torch.manual_seed(0)
    weight = torch.randn(8, 16)
    sparse = gpu_techniques.two_of_four(weight)
    for row, whole in zip(sparse.reshape(-1, 4), weight.reshape(-1, 4), strict=True):
        kept = sorted(range(4), key=lambda place: -abs(whole[place]))[:2]
        assert all(row[place] == (whole[place] if place in kept else 0) for place in range(4))
    updates, sizes = [], []
    for _, update in gpu_techniques.nvme(torch.device("cpu"), tmp_path):
        update()
        updates.append(update)
        sizes.append(sum(path.stat().st_size for path in tmp_path.rglob("moment*")))
    in_memory, in_files = (update.__self__.param_groups[0]["params"][0] for update in updates)
    assert torch.equal(in_memory, in_files) and in_memory.abs().sum() > 0
    assert sizes == [0, 2 * 4 * in_memory.numel()] and not list(tmp_path.iterdir())


def test_the_modelled_energy_of_an_h100_holds_what_was_measured():
    """The records of batches of 16 gave the model no constant."""
    records = [one for one in load_records(BASELINES) if one.machine.kind == "cuda" and one.config["encoders"] == 2]
    shown = [one for one in records if one.machine.precision == "highest"]
    assert {(one.format, one.batch) for one in shown} == set(itertools.product(FORMATS, (1, 16)))
    for record in shown:
        gpu, samples = find_gpu(record.machine.name), samples_of(TYPICAL_TOKENS)[: record.batch]
        for mode, done in record.modes.items():
            _, (low, _, high) = batch_figures(gpu, record.format, mode, ModelConfig(), samples)
            assert low < done.energy.per_step.value / record.batch < high, (record.label_of(mode), low, high)


@pytest.mark.long
def test_the_dashboard_takes_the_records(written):
    for record in load_records(written / "baselines"):
        run, done = RecordedRun(record), record.measurement
        assert run.count == record.batch * len(done.losses)
        assert run.losses[-1] == np.float32(done.losses[-1]) and run.seconds == pytest.approx(sum(done.step_seconds))
        assert ("batch 16" in run.name) == (record.batch == 16)


@pytest.mark.long
def test_the_cost_models_held_out_projects_take_the_lora_step(written, tmp_path, monkeypatch):
    (path,) = (written / "cost").iterdir()
    for one in (path, others.FOLDER / "models.json"):
        shutil.copy(one, tmp_path)
    monkeypatch.setattr(others, "FOLDER", tmp_path)
    (project,) = others.projects.__wrapped__()
    (point,) = project.throughputs
    assert 1.2e9 < point.config.parameters < 1.3e9 and not project.fitted
    (run,) = project.runs
    assert point.sequences_per_second == pytest.approx(run.batch / run.seconds)


class FakeNvml:
    """A board that draws 250 W and has counted 1,000 J, and 500 J more each time that it is asked."""

    millijoules = 1_000_000

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid, device):
        assert uuid == b"GPU-1234"
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, device, value):
        value._obj.value = self.millijoules
        self.millijoules += 500_000
        return 0

    def nvmlDeviceGetPowerUsage(self, device, value):
        value._obj.value = 250_000
        return 0


def test_nvml_without_zeus(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "zeus.monitor", None)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeNvml())
    cuda = {"current_device": lambda: 0, "synchronize": lambda: None}
    cuda["get_device_properties"] = lambda index: SimpleNamespace(uuid="1234")
    for name, function in cuda.items():
        monkeypatch.setattr(torch.cuda, name, function)
    meter, reason = find_meter(torch.device("cuda"))
    meter.begin()
    assert meter.end() == pytest.approx(500) and meter.watts() == 250 and reason == ""
    monkeypatch.setattr(FakeNvml, "nvmlInit_v2", lambda self: 9)
    assert find_meter(torch.device("cuda"))[0] is None
