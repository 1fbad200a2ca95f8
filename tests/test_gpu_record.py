"""tools/gpu_record.py, dry on the CPU: what it writes is what the baselines and the cost model read; NVML by a fake."""

import ctypes
import json
from types import SimpleNamespace

import gpu_record
import pytest
import torch
from card_pages import measured

from bttlab.baseline import load_records
from bttlab.baseline.energy import find_meter
from bttlab.util.settings import from_json
from bttlab_cost.others import Project


def test_a_dry_run_writes_what_others_read(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_record, "PRECISIONS", {"fp32": "highest"})
    assert gpu_record.main(["--out", str(tmp_path), "--dry-run"]) == 0
    records = load_records(tmp_path / "baselines")
    assert [record.format for record in records] == ["btt", "dense", "tt"]
    rows = json.loads((tmp_path / "baselines" / "batches" / "cpu.json").read_text())
    assert {row["format"] for row in rows} == {"dense", "tt", "btt"} and all(row["batch"] == 16 for row in rows)
    assert all(row["seconds"]["provenance"] == "measured" and row["seconds"]["value"] > 0 for row in rows)
    about = json.loads((tmp_path / "about.json").read_text())
    assert about["left_out"] == [] and about["dry_run"] and about["machine"]["torch"] == torch.__version__
    (path,) = (tmp_path / "cost").iterdir()
    project = from_json(Project, path.read_text())
    (point,) = project.throughputs
    lines = measured(tmp_path / "baselines", "cpu").splitlines()[2:]
    assert len(lines) == len(records) + len(rows) and measured(tmp_path / "baselines").startswith("No GPU")
    milliseconds = f"{1e3 * rows[0]['seconds']['value'] / 16:.3f}"
    (line,) = (line for line in lines if f"| 1-ENC, {rows[0]['format']} | 16 | FP32 | eager |" in line)
    assert f"| {milliseconds} |" in line
    assert 1.2e9 < point.config.parameters < 1.3e9 and not project.fitted


def test_what_does_not_fit_the_minutes_is_named(tmp_path):
    assert gpu_record.main(["--out", str(tmp_path), "--dry-run", "--minutes", "0"]) == 0
    about = json.loads((tmp_path / "about.json").read_text())
    assert len(about["left_out"]) == 13 and "LoRA step" in about["left_out"][3]


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
