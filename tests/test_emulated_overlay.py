"""Choice of overlay and card, and refusals."""

import json
import logging
from pathlib import Path
from xml.etree import ElementTree

import pynq
import pytest
from pynq.pl_server.xclbin_parser import XclBin

from bttlab.card import U50, EmulatedU50, load_overlay
from bttlab.card import image as images
from bttlab.card.kernel import OverlayError
from bttlab.card.manifest import OverlayEntry, digest, read_manifest, write_manifest
from bttlab.card.overlay import choose_active_device
from bttlab.card.xclbin import EmulationOverlay, pack_xclbin, read_container
from bttlab.estimate.facts import read_card
from bttlab.util.errors import BttlabError

from emulated_kernels import SPIN, VADD, container, image
from fake_xrt import as_hardware


class RealCard(pynq.Device):
    """Stands for a card behind XRT: it takes any overlay and remembers it."""

    def __init__(self, name):
        super().__init__(name)
        self.name, self.loaded = name, None

    def get_bitfile_metadata(self, bitfile_name):
        return XclBin(bitfile_name)

    def download(self, bitstream, parser=None):
        self.loaded = Path(bitstream.bitfile_name).read_bytes()
        self.post_download(bitstream, parser)


def entry(name: str, file: str, kind: str, data: bytes) -> OverlayEntry:
    return OverlayEntry(name, file, kind, U50.platform, digest(data), digest(b""), ("vadd", "spin"))


@pytest.fixture
def overlays(tmp_path, monkeypatch):
    """A folder of overlays: `both` for emulation and for the card, `only` for emulation, `card` for the card."""
    monkeypatch.setenv("BTTLAB_OVERLAYS", str(tmp_path))
    monkeypatch.setattr(EmulatedU50, "_trusted", set())
    data = container()
    (tmp_path / "hw").mkdir()
    entries = []
    for name in ("both", "only"):
        (tmp_path / f"{name}.xclbin").write_bytes(data)
        entries.append(entry(name, f"{name}.xclbin", "emulation", data))
    for name in ("both", "card"):
        (tmp_path / "hw" / f"{name}.xclbin").write_bytes(as_hardware(data))
        entries.append(entry(name, f"hw/{name}.xclbin", "hw", as_hardware(data)))
    write_manifest(tmp_path, entries)
    return tmp_path


@pytest.fixture
def devices(monkeypatch, tmp_path):
    """Another make of card, a U50, and two emulated ones, in PYNQ's order; with locks of their own."""
    cards = [RealCard("xilinx_u250"), RealCard(U50.platform), EmulatedU50(), EmulatedU50()]
    monkeypatch.setattr(pynq.Device, "_devices", cards, raising=False)
    return cards


@pytest.mark.parametrize(
    ("name", "device", "index"),
    [
        ("both", "auto", 1),
        ("both", "emulated", 2),
        ("both", "3", 3),
        ("only", "auto", 2),
        ("card", "auto", 1),
        ("hw/both.xclbin", "auto", 1),
        ("both.xclbin", 3, 3),
    ],
)
def test_the_card_that_is_chosen(overlays, devices, caplog, name, device, index):
    with caplog.at_level(logging.INFO, logger="bttlab.card"):
        overlay = load_overlay(overlays / name if name.endswith(".xclbin") else name, device)
    assert overlay.device is devices[index]
    assert devices[index].name in caplog.text and "xclbin" in caplog.text
    if index == 1:
        assert devices[1].loaded == as_hardware(container())


@pytest.mark.parametrize(
    ("name", "device", "message"),
    [
        ("none", "auto", "no overlay 'none' in .*; there are: both, card, only"),
        ("card", "emulated", "the hw overlay is for the U50, shell xilinx_u50.*choose from are: emulated_u50_"),
        ("only", 1, "built for emulation on the U50, platform xilinx_u50.*choose from are: xilinx_u50"),
        ("both", 0, "choose from are: xilinx_u250"),
        ("both", 9, "no card 9; choose auto, emulated, or the number of one of: 0 xilinx_u250, 1 xilinx_u50"),
        ("both", "best", "no card 'best'"),
        ("missing.xclbin", "auto", "cannot read .*missing.xclbin: No such file"),
    ],
)
def test_a_choice_that_cannot_be_met(overlays, devices, name, device, message):
    with pytest.raises(BttlabError, match=message):
        load_overlay(overlays / name if name.endswith(".xclbin") else name, device)


def test_an_overlay_of_another_card_is_refused_by_name(overlays, devices):
    platform = read_card("U280").platform
    data = pack_xclbin(EmulationOverlay([VADD], {"avx2": image()}, platform))
    path = overlays / "other.xclbin"
    path.write_bytes(data)
    core = ElementTree.fromstring(read_container(data).sections[2]).find("platform")
    assert core is not None and core.get("boardid") == "u280" and core.get("name") == platform
    with pytest.raises(OverlayError, match=rf"built for emulation on the U280, platform {platform}"):
        load_overlay(path, "emulated", trust=True)
    EmulatedU50.trust(path)
    with pytest.raises(OverlayError, match=rf"built for the U280 \(platform {platform}\); the emulated card is a U50"):
        pynq.Overlay(str(path), device=devices[2])
    assert devices[2].bitfile_name is None


def test_a_file_that_is_not_the_manifests(overlays):
    path = overlays / "only.xclbin"
    path.write_bytes(pack_xclbin(EmulationOverlay([VADD, SPIN], {"avx2": image() + b"\0"})))
    with pytest.raises(BttlabError, match=r"not the file that manifest\.json lists"):
        load_overlay("only", "emulated")
    with pytest.raises(BttlabError, match=r"not the file that manifest.json lists \(SHA-256"):
        pynq.Overlay(str(path), device=EmulatedU50())
    assert load_overlay("only", "emulated", trust=True).vadd_1
    card = overlays / "hw" / "card.xclbin"
    card.write_bytes(card.read_bytes() + b"\0")
    with pytest.raises(BttlabError, match=r"hw/card.xclbin is not the file that manifest\.json lists"):
        load_overlay("card", "auto", trust=True)


def test_native_code_is_loaded_only_if_it_is_trusted(overlays, tmp_path_factory, monkeypatch):
    stranger = tmp_path_factory.mktemp("elsewhere") / "stranger.xclbin"
    data = pack_xclbin(EmulationOverlay([VADD], {"avx2": image()}))
    stranger.write_bytes(data)
    card = EmulatedU50()

    def load(path=stranger):
        return pynq.Overlay(str(path), device=card)

    load(overlays / "only.xclbin")
    untrusted = r"is not listed in .*manifest\.json"
    with pytest.raises(BttlabError, match=f"{untrusted}.*--trust.*BTTLAB_TRUST={digest(data)}"):
        load()
    # The card is as it was: its overlay is loaded and described.
    assert card.bitfile_name.endswith("only.xclbin") and "spin_1" in card.ip_dict
    card.read_registers(0x810000, 4)

    monkeypatch.setenv("BTTLAB_TRUST", f"{'0' * 64},{digest(data)}")
    load()
    monkeypatch.delenv("BTTLAB_TRUST")
    write_manifest(stranger.parent, [entry("stranger", stranger.name, "emulation", data)])  # comes with the overlay
    with pytest.raises(BttlabError, match=untrusted):
        load()
    assert EmulatedU50.trust(stranger) == digest(data)
    load()
    stranger.write_bytes(pack_xclbin(EmulationOverlay([VADD], {"avx2": image() + b"\0"})))
    with pytest.raises(BttlabError, match=untrusted):
        load()
    load_overlay(stranger, card, trust=True)
    with pytest.raises(BttlabError, match="cannot read"):
        EmulatedU50.trust("/nonexistent")


def test_a_hardware_overlay_by_path_is_loaded_only_if_it_is_trusted(overlays, devices, tmp_path_factory, monkeypatch):
    path, listed = tmp_path_factory.mktemp("elsewhere") / "own.xclbin", overlays / "hw" / "card.xclbin"
    path.write_bytes(listed.read_bytes())
    load_overlay(path)  # the same bytes
    own = bytearray(listed.read_bytes())
    for changed in (1, 2):
        own[-1] ^= changed
        path.write_bytes(own)
        with pytest.raises(BttlabError, match=r"own.xclbin programs the card and is not listed in .*; .*--trust"):
            load_overlay(path)
        assert devices[1].loaded != own
        load_overlay(path, trust=True)
        assert devices[1].loaded == own


def test_a_damaged_overlay_leaves_the_card_as_it_was(overlays):
    card = EmulatedU50()
    path = overlays / "damaged.xclbin"
    path.write_bytes(container()[:-100])
    EmulatedU50.trust(path)
    for _ in range(2):
        with pytest.raises(BttlabError, match=r"damaged.xclbin: truncated"):
            pynq.Overlay(str(path), device=card)
    assert card.bitfile_name is None and card.mem_dict == {}
    overlay = load_overlay("only", card)
    with pytest.raises(BttlabError, match="truncated"):
        pynq.Overlay(str(path), device=card)
    assert overlay.is_loaded() and card.bitfile_name.endswith("only.xclbin") and overlay.spin_1.read(0) == 4


def test_an_image_that_is_no_library(overlays):
    path = overlays / "text.xclbin"
    path.write_bytes(pack_xclbin(EmulationOverlay([VADD], {"avx2": b"not a library"})))
    EmulatedU50.trust(path)
    with pytest.raises(BttlabError, match="cannot load the compiled kernels"):
        pynq.Overlay(str(path), device=EmulatedU50())
    path.write_bytes(pack_xclbin(EmulationOverlay([VADD.__class__("absent", VADD.arguments)], {"avx2": image()})))
    EmulatedU50.trust(path)
    with pytest.raises(BttlabError, match="no kernel absent"):
        pynq.Overlay(str(path), device=EmulatedU50())


# --- the processor


def test_the_image_follows_the_processor(monkeypatch, tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(images, "CPUINFO", cpuinfo)
    monkeypatch.delenv("BTTLAB_IMAGE", raising=False)
    both = {"avx2", "avx512"}

    def processor(*flags):
        cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu " + " ".join(flags) + "\n\nprocessor\t: 1\n")

    processor("avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl")
    assert images.choose_image(both) == "avx512" and images.choose_image({"avx2"}) == "avx2"
    processor("avx2", "avx512f")
    assert images.choose_image(both) == "avx2"
    with pytest.raises(BttlabError, match="lacks avx512bw, avx512dq, avx512vl, which image avx512"):
        images.choose_image({"avx512"})
    with pytest.raises(BttlabError, match="images, sse, are unknown"):
        images.choose_image({"sse"})
    processor("sse4_2")
    with pytest.raises(
        BttlabError, match="this processor lacks avx2, which image avx2 of the overlay needs; use a machine"
    ):
        images.choose_image(both)
    cpuinfo.unlink()
    with pytest.raises(BttlabError, match="lacks avx2"):
        images.choose_image(both)


# --- the manifest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: "nonsense", "not a valid manifest"),
        (lambda rows: rows[0].update(sha256="ABC"), "sha256 is 'ABC'"),
        (lambda rows: rows[0].update(file="../x.xclbin"), "file is '\\.\\./x"),
        (lambda rows: rows[0].update(file="/x.xclbin"), "file is"),
        (lambda rows: rows[0].update(kind="magic"), "kind is 'magic'"),
        (lambda rows: rows[0].update(colour="red"), "colour"),
    ],
)
def test_a_manifest_that_is_none(overlays, change, message):
    path = overlays / "manifest.json"
    rows = json.loads(path.read_bytes())["overlays"]
    changed = change(rows)
    path.write_text(changed if isinstance(changed, str) else json.dumps({"overlays": rows}))
    with pytest.raises(BttlabError, match=message):
        read_manifest(overlays)


@pytest.mark.parametrize(
    ("platform", "chosen_before", "expected"),
    [
        (None, False, "emulated"),
        ("other_card", False, "emulated"),
        (U50.platform, False, "real"),
        ("other_card", True, "real"),
    ],
)
def test_the_active_device_is_one_that_has_an_overlay(overlays, monkeypatch, platform, chosen_before, expected):
    cards = {"emulated": EmulatedU50()}
    if platform:
        cards["real"] = RealCard(platform)
    monkeypatch.setattr(pynq.Device, "_devices", list(reversed(cards.values())))
    monkeypatch.delattr(pynq.Device, "_active_device", raising=False)
    if chosen_before:
        monkeypatch.setattr(pynq.Device, "_active_device", cards["real"], raising=False)
    choose_active_device()
    assert pynq.Device.active_device is cards[expected]
    if expected == "emulated":
        assert pynq.Overlay(str(overlays / "both.xclbin")).device is cards["emulated"]
