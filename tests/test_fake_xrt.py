"""The path to a real card: pynq's XrtDevice, its Overlay, buffers and ERT calls, on a fake XRT."""

import os
import signal
import subprocess
import sys
import time

import pytest

from bttlab.card import (
    CardBusyError,
    OverlayError,
    load_overlay,
    probe,
    sharing,
    shells,
    waiting,
)
from bttlab.card.keeper import NO_ANSWER
from bttlab.card.manifest import read_manifest, write_manifest
from bttlab.card.shells import card_interfaces, pcie_address
from bttlab.card.waiting import CardFailedError
from bttlab.commands import doctor
from bttlab.runs.devices import open_trainer as open_device
from bttlab.util.errors import BttlabError
from card_training import MODEL, opened, state_on_emulated_card, train
from keepers import keeping

from conftest import ROOT
from fake_xrt import SHELL

UUID, OTHER = "862c7020a250293e32036f19956669e5", "f465b0a3ae8c64f619bc150384ace69b"


@pytest.fixture
def trainer(card):
    return opened()


# --- which overlay is for which card


@pytest.mark.parametrize(
    ("shell", "on_card", "needed", "fits"),
    [
        (SHELL, None, UUID, True),  # a driver that lists no UUID
        (SHELL, UUID, UUID, True),
        (SHELL, OTHER, UUID, False),
        (SHELL, OTHER, "", True),
        ("another_name", UUID, UUID, True),
        ("xilinx_u50_gen3x4_xdma_base_2", None, "", False),
    ],
)
def test_an_overlay_is_for_the_card_of_its_interface_else_of_its_name(
    card, xrt, monkeypatch, tmp_path, caplog, shell, on_card, needed, fits
):
    card._info.mName = shell.encode()
    monkeypatch.setattr(shells, "PCI_DEVICES", tmp_path)
    if on_card:
        (tmp_path / pcie_address(card)).mkdir(exist_ok=True)
        (tmp_path / pcie_address(card) / "interface_uuids").write_text(f"{on_card.upper()}\n")
    assert card_interfaces(card) == ({on_card} if on_card else set())
    entries = [vars(entry) | {"interfaces": (needed,) * bool(needed)} for entry in read_manifest(xrt.overlays)]
    for path in xrt.overlays.rglob("*.xclbin"):
        (tmp_path / path.relative_to(xrt.overlays).parent).mkdir(exist_ok=True)
        (tmp_path / path.relative_to(xrt.overlays)).write_bytes(path.read_bytes())
    write_manifest(tmp_path, [type(read_manifest(xrt.overlays)[0])(**entry) for entry in entries])
    monkeypatch.setenv("BTTLAB_OVERLAYS", str(tmp_path))
    assert (load_overlay("trainer").device is card) == fits
    if not fits:
        assert (
            f"WARNING: {shell} is NOT used: the hw overlay is for the U50, shell xilinx_u50_gen3x16_xdma_5"
            in caplog.text
        )
        with pytest.raises(OverlayError, match="leave out --require-card"):
            load_overlay("trainer", require_card=True)


def test_the_doctor_says_which_overlay_is_for_which_card(card):
    checks = list(doctor._examine([doctor._cards]))
    assert [check.status for check in checks] == ["ok", "ok"]
    assert checks[1].detail == f"trainer is for shell xilinx_u50_gen3x16_xdma_5: {SHELL}"
    card._info.mName = b"xilinx_u50_gen3x4_xdma_base_2"
    *_, entry, other = doctor._examine([doctor._cards])
    assert entry.detail.endswith("none here")
    assert other.status == "problem" and other.detail.startswith("no overlay is for xilinx_u50_gen3x4_xdma_base_2")


def test_a_run_says_which_card_it_did_not_use(card):
    card._info.mName = b"xilinx_u50_gen3x4_xdma_base_2"
    opened = open_device(MODEL, "auto")
    assert opened.provenance["unused_cards"] == card.name and "NOT the real card" in opened.announcement
    for device in ("emulated", "reference"):
        assert "unused_cards" not in open_device(MODEL, device).provenance
        with pytest.raises(BttlabError, match="no real card"):
            open_device(MODEL, device, require_card=True)


# --- faults


@pytest.mark.parametrize("answers", [True, False])
def test_a_kernel_that_hangs_on_a_shared_card(card, xrt, monkeypatch, tmp_path, answers):
    """Sharing ends until a reset if the card does not answer the keeper's probe; else the others go on."""
    monkeypatch.setattr(waiting, "LEAST_SECONDS", 0.2)
    monkeypatch.setattr(sharing, "FOLDER", tmp_path)
    path = tmp_path / "bttlab-0000:3b:00.1.shared"
    with keeping(path, (sys.executable, "-c", f"raise SystemExit({0 if answers else NO_ANSWER})")):
        trainer = opened()
        train(trainer)
        monkeypatch.setenv("FAKE_XRT_FAULT", "hang")
        with pytest.raises(CardFailedError, match="has not ended"):
            train(trainer)
        monkeypatch.delenv("FAKE_XRT_FAULT")
        xrt.card(monkeypatch, tmp_path)  # after a reset
        if answers:
            assert train(opened()) == state_on_emulated_card()
        else:
            with pytest.raises(CardBusyError, match=f"kernel of process {os.getpid()} of .* did not end: .*xbutil"):
                opened()
            (check,) = doctor._examine([doctor._shared_cards])
            assert check.status == "problem" and "did not end" in check.detail
    if not answers:
        with keeping(path):  # started again
            assert train(opened()) == state_on_emulated_card()


def test_the_keeper_s_probe_asks_the_card(card, monkeypatch):
    monkeypatch.setattr(waiting, "LEAST_SECONDS", 0.2)
    assert probe.main("0000:3b:00.1") == 0
    monkeypatch.setenv("FAKE_XRT_FAULT", "hang")
    assert probe.main("0000:3b:00.1") == NO_ANSWER


# --- processes that find it by the environment


@pytest.fixture
def environment(xrt, monkeypatch, tiny_airline):
    for name, value in xrt.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BTTLAB_DATA", str(tiny_airline.parent))
    monkeypatch.setenv("BTTLAB_QUICK", "1")


@pytest.mark.long
def test_a_notebook_runs_on_the_card(environment):
    import nbclient
    import nbformat

    folder = ROOT / "notebooks"
    notebook = nbformat.read(folder / "03_train_on_the_u50.ipynb", as_version=4)
    shows = nbformat.v4.new_code_cell("import pynq; print('devices', [type(d).__name__ for d in pynq.Device.devices])")
    checks = nbformat.v4.new_code_cell("from bttlab.lab import check_machine\ncheck_machine()")  # as notebook 00 does
    others = "### BEGIN", "PyTorch CPU", "RecordedRun"  # exercises and what is not the card: test_notebooks.py
    cells = [cell for cell in notebook.cells if not any(part in cell.source for part in others)]
    notebook.cells = [*cells, checks, shows]
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    assert "XrtDevice" in "".join(output.text for output in shows.outputs)  # a line may arrive in several pieces
    assert SHELL in str([cell.get("outputs") for cell in notebook.cells[:-1]])


@pytest.mark.long
def test_a_command_trains_on_the_card_and_ctrl_c_ends_it_when_the_kernel_hangs(environment, tmp_path):
    command = [sys.executable, "-m", "bttlab", "train", "--require-card", "--wait", "60", "--samples"]
    done = subprocess.run([*command, "8", "--out", str(tmp_path / "run")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and f"training on {SHELL} (card 0)" in done.stderr, done.stderr
    hangs = os.environ | {"FAKE_XRT_FAULT": "hang:12"}
    process = subprocess.Popen(
        [*command, "2000", "--out", str(tmp_path / "hung")], env=hangs, stderr=subprocess.PIPE, text=True
    )
    for line in process.stderr:
        if "training on" in line:
            break
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=60)[1]
    assert process.returncode in (2, 128 + signal.SIGINT)  # the latter if the 12th call had not come yet
    if process.returncode == 2:
        assert "xbutil reset --device" in error and "Traceback" not in error
