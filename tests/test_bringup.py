"""`bttlab bringup` on a fake card, sound and with faults; XRT's installation as the doctor sees it."""

import getpass
import json
import os
import re
import socket
import subprocess
import sys

import pynq
import pytest

from bttlab import cli
from bttlab.card import EmulatedU50, load_overlay, shells, waiting
from bttlab.card import xrt as installation
from bttlab.card.manifest import overlays_folder
from bttlab.card.unit_programs import UNITS, unit_programs
from bttlab.card.xrt import xrt_version
from bttlab.commands import bringup_steps, doctor
from bttlab.compiler.machine import M
from bttlab.model import ModelConfig
from bttlab.runs.devices import open_trainer as open_device


def missing_binding(name: str):
    raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def bringup(tmp_path, *more: str) -> tuple[int, dict]:
    record = tmp_path / "record.json"
    code = cli.main(["bringup", "--samples", "3", "--record", str(record), *more])
    return code, json.loads(record.read_text())


def test_each_unit_is_tried_with_each_bank_that_it_reaches():
    tried = list(unit_programs())
    assert {each.unit for each in tried} == set(UNITS)
    ports = {port.name: set(port.banks) - {M.IN_BANK, M.OUT_BANK} for port in M.ports}
    loaded, stored = ports["VECTOR_R0"], ports["VECTOR_A"]
    for unit, sources, results in [
        ("copy", loaded & stored, loaded & stored),
        ("vector", ports["VECTOR_B"] & loaded, set()),
        ("shuffle", ports["SHUFFLE_SOURCE"] & loaded, ports["SHUFFLED"] & stored),
        *((f"engine {n}", ports[f"SCALARS_{n}"] & loaded, ports[f"ENGINE_OUT_{n}"] & stored) for n in range(2)),
        *((f"engine {n}", ports[f"STREAM_{n}"] & loaded, set()) for n in range(2)),
        ("update", ports["UPDATE_P"] | ports["UPDATE_G"] | ports["UPDATE_M"] | ports["UPDATE_V"], set()),
    ]:
        banks = set().union(*(each.banks for each in tried if each.unit == unit))
        assert sources | results <= banks
    assert not any(each.program.hazards() for each in tried)


@pytest.mark.long
def test_a_sound_card_passes_every_step(real_card, tmp_path):
    code, record = bringup(tmp_path)
    assert code == 0 and record["passed"] and len(record["checks"]) == 9
    assert "200 MHz" in record["checks"][2]["detail"]  # the overlay's, which both read before it is loaded
    assert "C just after training (measured)" in record["checks"][-1]["detail"]
    text = json.dumps(record)
    for secret in (socket.gethostname(), getpass.getuser() + "@", str(tmp_path)):
        assert secret not in text


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "step", "detail"),
    [
        ("load", "overlay", "the card's shell is not the overlay's"),
        ("hang", "overlay", "has not ended"),
        ("lost:2", "units", "the card is gone"),
        ("wrong:3", "units", "copy with banks"),
        ("wrong:306", "units", "update, sgd, with banks"),
        ("wrong:354", "one sample", "other bits"),
        ("abort:3", "units", "ended with an error"),
    ],
)
def test_a_fault_ends_it_with_the_likely_cause(real_card, tmp_path, monkeypatch, fault, step, detail):
    monkeypatch.setattr(waiting, "LEAST_SECONDS", 0.3 if fault == "hang" else 60)
    monkeypatch.setenv("FAKE_XRT_FAULT", fault)
    code, record = bringup(tmp_path)
    last = record["checks"][-1]
    assert code == 1 and not record["passed"]
    assert (last["name"], last["status"]) == (step, "problem") and detail in last["detail"] and last["way_out"]


@pytest.mark.parametrize(
    ("vendor", "nodes", "opens", "cause"),
    [
        ("0x8086", [], True, "seated and powered"),
        ("0x10ee", [], True, "xocl is not loaded"),
        ("0x10ee", ["renderD128"], False, "renderD128: join its group"),
        ("0x10ee", ["renderD128"], True, "xbutil examine"),
    ],
)
def test_the_likely_cause_that_xrt_lists_no_card(tmp_path, monkeypatch, vendor, nodes, opens, cause):
    function = tmp_path / "devices" / "0000:3b:00.1"
    function.mkdir(parents=True)
    (function / "vendor").write_text(f"{vendor}\n")
    for node in nodes:
        (tmp_path / node).touch()
    monkeypatch.setattr(shells, "PCI_DEVICES", tmp_path / "devices")
    monkeypatch.setattr(bringup_steps, "NODES", tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: opens)  # root may open all
    assert cause in bringup_steps._why_no_card()


def test_with_pynq_4_the_likely_cause_is_a_missing_binding(xrt, tmp_path, monkeypatch):
    function = tmp_path / "0000:3b:00.1"
    function.mkdir()
    (function / "vendor").write_text("0x10ee\n")
    monkeypatch.setattr(shells, "PCI_DEVICES", tmp_path)
    monkeypatch.setenv("XILINX_XRT", str(xrt.root))
    monkeypatch.setattr(installation, "pynq_version", lambda: "4.0.0")
    monkeypatch.setattr(installation, "import_module", missing_binding)
    cause = bringup_steps._why_no_card()
    assert cause.startswith("PYNQ 4.0.0 lists no Alveo card; XRT's Python binding pyxrt cannot be imported: ")
    assert cause.endswith("; or: pip install 'pynq==3.0.1'") and "\n" not in cause


@pytest.mark.parametrize(
    ("version", "way_out"),
    [
        ("4.0.0", ["source /opt/xilinx/xrt/setup.sh", "pip install 'pynq==3.0.1'"]),
        ("3.0.1", ["source /opt/xilinx/xrt/setup.sh"]),
    ],
)
def test_a_pcie_card_that_pynq_does_not_list_is_named_wherever_the_emulated_card_is_taken(
    tmp_path, monkeypatch, caplog, version, way_out
):
    """From 3.1 on, PYNQ's probe for Alveo cards is empty."""
    function = tmp_path / "0000:3b:00.1"
    function.mkdir()
    (function / "vendor").write_text("0x10ee\n")
    monkeypatch.setattr(shells, "PCI_DEVICES", tmp_path)
    monkeypatch.setattr(shells, "pynq_version", lambda: version)
    monkeypatch.delenv("XILINX_XRT", raising=False)
    doors = {
        "auto": lambda: load_overlay("trainer"),
        "named": lambda: load_overlay("trainer", "emulated"),
        "PYNQ's own": lambda: pynq.Overlay(str(overlays_folder() / "trainer.xclbin"), device=EmulatedU50()),
        "a run": lambda: open_device(ModelConfig(encoders=1), "auto"),
    }
    for door, take in doors.items():
        caplog.clear()
        taken = take()
        lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert len(lines) == 1 and f"PCIe card 0000:3b:00.1, but PYNQ {version} lists none" in lines[0], door
        assert all(part in lines[0] for part in way_out) and "\n" not in lines[0] and "using emulated_u50" in lines[0]
    assert "NOT the PCIe card" in taken.announcement
    check = next(iter(doctor._cards()))
    assert check.status == "problem" and "0000:3b:00.1" in check.detail
    assert all(part in check.way_out for part in way_out)
    (function / "vendor").write_text("0x8086\n")
    caplog.clear()
    load_overlay("trainer")
    assert not caplog.records and next(iter(doctor._cards())).status == "note"


@pytest.mark.parametrize(
    ("files", "message"),
    [([], "there is no .*libxrt_core.so"), (["lib/libxrt_core.so"], "version.json names no BUILD_VERSION")],
)
def test_a_bad_installation_of_xrt_is_one_line(tmp_path, monkeypatch, files, message):
    monkeypatch.setenv("XILINX_XRT", str(tmp_path))
    for name in files:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert xrt_version() is None
    before = dict(os.environ)
    checks = doctor.examine()
    assert dict(os.environ) == before  # the kernel that asked goes on with what it had
    assert (checks[0].name, checks[0].status) == ("xrt", "problem") and re.search(message, checks[0].detail)
    assert {"cards", "overlays"} <= {check.name for check in checks if check.status != "problem"}


@pytest.mark.long
def test_the_doctor_tells_the_cause_of_a_missing_xrt_once(tmp_path):
    command = [sys.executable, "-m", "bttlab", "doctor", "--json"]
    found = subprocess.run(command, env=os.environ | {"XILINX_XRT": str(tmp_path)}, capture_output=True, text=True)
    checks = json.loads(found.stdout)["checks"]
    assert found.returncode == 1 and [check["name"] for check in checks if check["status"] == "problem"] == ["xrt"]
    left_out = [check["name"] for check in checks if check["detail"] == "not examined because of the problem with xrt"]
    assert left_out == ["card class", "overlays", "cards", "shared cards"]


@pytest.mark.long
def test_a_training_without_the_xrt_that_is_named_is_one_line(tmp_path):
    command = [sys.executable, "-m", "bttlab", "train", "--device", "emulated", "--out", str(tmp_path / "run")]
    found = subprocess.run(command, env=os.environ | {"XILINX_XRT": str(tmp_path)}, capture_output=True, text=True)
    assert found.returncode == 2 and "source /opt/xilinx/xrt/setup.sh" in found.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("pynq_version", "version", "warned"),
    [
        ("3.0.1", "2.14.384", False),
        ("3.0.1", "2.16.204", False),
        ("3.0.1", "2.13.1", True),
        ("3.0.1", "2.17.1", True),
        ("4.0.0", "2.17.1", False),
        ("4.0.0", "2.21.21", False),
        ("4.0.0", "2.22.1", True),
        ("4.0.0", "2.13.466", True),
    ],
)
def test_versions_of_xrt_that_pynq_or_pyxrt_is_not_used_with(tmp_path, monkeypatch, pynq_version, version, warned):
    monkeypatch.setattr(installation, "pynq_version", lambda: pynq_version)
    monkeypatch.setenv("XILINX_XRT", str(tmp_path))
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libxrt_core.so").touch()
    (tmp_path / "version.json").write_text(json.dumps({"BUILD_VERSION": version}))
    checks = list(doctor._xrt())
    assert [check.status for check in checks] == ["note"] * warned
    range_ = "XRT 2.14 to 2.16" if pynq_version == "3.0.1" else "XRT 2.13 to 2.21"
    assert all(range_ in check.detail and version in check.detail for check in checks)
