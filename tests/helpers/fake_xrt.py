"""A U50 made of pynq's own XrtDevice and a library of ours in place of XRT's (`fake_xrt.cpp`), or of a fake pyxrt."""

import ctypes
import json
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pynq
import pytest

from bttlab.card import EmulatedU50, PyxrtCard
from bttlab.card.image import IMAGES, choose_image
from bttlab.card.manifest import MANIFEST, digest, overlays_folder, read_manifest, write_manifest
from bttlab.card.xclbin import read_xclbin

from build_library import library
from conftest import ROOT

SHELL = "xilinx_u50_gen3x16_xdma_base_5"
PYTHON_FOLDER = ROOT / "tests" / "helpers" / "xrt_python"  # where XRT has pyxrt
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-pthread", "-ldl")


def as_hardware(data: bytes) -> bytes:
    """Return an emulation overlay with the header of one for a card."""
    from pynq._3rdparty.xclbin import axlf

    top = axlf.from_buffer_copy(data)
    top.m_header.m_mode = 0
    return bytes(top) + data[len(bytes(top)) :]


@dataclass(frozen=True)
class FakeXrt:
    """An installation of XRT, and overlays for its card."""

    root: Path
    overlays: Path

    @property
    def environment(self) -> dict[str, str]:
        """Environment in which a process finds it."""
        kernel = str(self.root / "kernel.so")
        return {"XILINX_XRT": str(self.root), "FAKE_XRT_KERNEL": kernel, "BTTLAB_OVERLAYS": str(self.overlays)}

    @property
    def pyxrt_environment(self) -> dict[str, str]:
        """Environment in which a process finds it, and its fake pyxrt."""
        return self.environment | {"PYTHONPATH": str(PYTHON_FOLDER), "BTTLAB_PYXRT": "1"}

    def pyxrt_card(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> PyxrtCard:
        """Return a new card of this process on the fake pyxrt; its node is in `folder`."""
        monkeypatch.setattr(sys, "path", [str(PYTHON_FOLDER), *sys.path])
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("BTTLAB_PYXRT", "1")
        import pyxrt

        pyxrt._cards.clear()
        (card,) = PyxrtCard._probe_()
        self._list(card, monkeypatch, folder)
        return card

    def card(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> pynq.Device:
        """Return a new card of this process, which PYNQ lists before an emulated one; its node is in `folder`."""
        xrt = pytest.importorskip("pynq._3rdparty.xrt", reason="this PYNQ has no device for Alveo cards")
        from pynq.pl_server import xrt_device

        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
        xrt.libc = xrt.libc or ctypes.CDLL(str(self.root / "lib" / "libxrt_core.so"))  # buffers outlive the test
        monkeypatch.setattr(xrt_device, "_xrt_version", (2, 13, 466))
        card = xrt_device.XrtDevice(0)
        self._list(card, monkeypatch, folder)
        return card

    def _list(self, card: pynq.Device, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        for path in (folder / "0000:3b:00.1" / "drm" / "renderD128", folder / "renderD128"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        monkeypatch.setattr("bttlab.card.card_lock.DEVICES", folder)
        monkeypatch.setattr("bttlab.card.shells.PCI_DEVICES", folder)
        monkeypatch.setattr(pynq.Device, "_devices", [card, EmulatedU50()])


def install(folder: Path) -> FakeXrt:
    """Make an installation in a folder, with the committed overlay as one for hardware beside it."""
    root, overlays = folder / "xrt", folder / "overlays"
    (root / "lib").mkdir(parents=True)
    (overlays / "hw").mkdir(parents=True)
    shutil.copy(library(ROOT / "tests" / "helpers" / "fake_xrt.cpp", *FLAGS), root / "lib" / "libxrt_core.so")
    (root / "version.json").write_text(json.dumps({"BUILD_VERSION": "2.13.466"}))
    emulated = (overlays_folder() / "trainer.xclbin").read_bytes()
    images = read_xclbin(emulated).images
    (root / "kernel.so").write_bytes(images[choose_image([image.name for image in IMAGES])])
    shutil.copy(overlays_folder() / "trainer.xclbin", overlays)
    (overlays / "hw" / "trainer.xclbin").write_bytes(as_hardware(emulated))
    (entry,) = (entry for entry in read_manifest(overlays_folder()) if entry.name == "trainer")
    hardware = replace(entry, kind="hw", file="hw/trainer.xclbin", sha256=digest(as_hardware(emulated)), images=())
    write_manifest(overlays, [entry, hardware])
    assert (overlays / MANIFEST).is_file()
    return FakeXrt(root, overlays)
