"""The overlay container: written as XRT and PYNQ expect it; of any other file the header is read."""

import ctypes
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pynq._3rdparty import xclbin as axlf
from pynq.overlay import _create_call
from pynq.pl_server.xclbin_parser import XclBin

from bttlab.card.kernel import TRAINER_KERNEL, Argument, Kernel, OverlayError
from bttlab.card.xclbin import (
    EMULATION_DATA,
    FIRST_SECTION,
    KIND,
    EmulationOverlay,
    pack_xclbin,
    read_container,
    read_xclbin,
)
from bttlab.estimate.resources import PORTS

from emulated_kernels import SPIN, VADD

ENTRY = ctypes.sizeof(axlf.axlf_section_header)
OVERLAY = EmulationOverlay([VADD, SPIN], {"avx2": b"\x7fELF of avx2", "avx512": b"\x7fELF of avx512"})
PACKED = pack_xclbin(OVERLAY)


def table(data: bytes) -> list[axlf.axlf_section_header]:
    count = axlf.axlf.from_buffer_copy(data).m_header.m_numSections
    return list((axlf.axlf_section_header * count).from_buffer_copy(data, FIRST_SECTION))


def with_header(data: bytes, **values: int) -> bytes:
    copy = bytearray(data)
    header = axlf.axlf.from_buffer(copy).m_header
    for name, value in values.items():
        setattr(header, name, value)
    return bytes(copy)


# --- kernels


def test_registers_are_where_vitis_hls_puts_them():
    # As in the register header that Vitis HLS writes for its vadd example: pointers take 12 bytes, an int 8.
    pointers = (Argument(name, "int*", bank=0) for name in ("in1", "in2", "out"))
    vadd = Kernel("vadd", (*pointers, Argument("size", "int")))
    assert vadd.offsets == (0x10, 0x1C, 0x28, 0x34)
    assert TRAINER_KERNEL.offsets == (0x10, 0x18, 0x20, 0x28, 0x30, 0x38, 0x40, 0x4C, 0x58, 0x64)
    assert TRAINER_KERNEL.vlnv == "xilinx.com:hls:trainer:1.0"
    assert sum(argument.bank is not None for argument in TRAINER_KERNEL.arguments) == PORTS


# --- round trip

names = st.from_regex(r"[a-z][a-z0-9_]{0,9}", fullmatch=True).filter(lambda name: name.isidentifier())
scalars = st.tuples(st.sampled_from(["int", "unsigned int", "float"]), st.none(), st.just(512))
pointers = st.tuples(
    st.sampled_from(["int*", "float*", "void*"]), st.integers(0, 31), st.sampled_from([32, 64, 128, 256, 512])
)


@st.composite
def overlays(draw):
    kernels = []
    for name in draw(st.lists(names, min_size=1, max_size=3, unique=True)):
        types = [draw(pointers), *draw(st.lists(st.one_of(scalars, pointers), max_size=6))]
        kernels.append(Kernel(name, tuple(Argument(f"x{i}", *kind) for i, kind in enumerate(types))))
    images = draw(st.dictionaries(names, st.binary(max_size=40), min_size=1, max_size=3))
    return EmulationOverlay(tuple(kernels), images, clock_mhz=draw(st.integers(1, 999)))


@given(overlays())
def test_what_is_packed_is_read_back_by_us_and_by_pynq(overlay):
    data = pack_xclbin(overlay)
    assert data == pack_xclbin(overlay)
    assert read_xclbin(data) == overlay
    parsed = XclBin("", bytearray(data))
    for kernel in overlay.kernels:
        ip = parsed.ip_dict[kernel.instance]
        assert ip["type"] == kernel.vlnv
        signature, layout, is_pointer, _ = _create_call(ip["registers"])
        assert list(signature.parameters) == [argument.name for argument in kernel.arguments]
        assert is_pointer == [argument.is_pointer for argument in kernel.arguments]
        for argument, offset in zip(kernel.arguments, kernel.offsets, strict=True):
            register = ip["registers"][argument.name]
            assert (register["address_offset"], register["size"]) == (offset, 8 * argument.size)
            if argument.is_pointer:
                assert register["memory"] == f"HBM[{argument.bank}]"
        last = kernel.arguments[-1]
        assert struct.calcsize(layout) == kernel.offsets[-1] + last.size
    used = {argument.bank for kernel in overlay.kernels for argument in kernel.arguments if argument.is_pointer}
    assert {bank["idx"] for bank in parsed.mem_dict.values() if bank["used"]} == used
    assert len(parsed.mem_dict) == 32 and parsed.mem_dict["HBM[31]"]["base_address"] + (256 << 20) == 8 << 30
    assert {clock["frequency"] for clock in parsed.clock_dict.values()} == {overlay.clock_mhz}


def test_the_container_is_well_formed():
    container = read_container(PACKED)
    assert container.mode == "sw_emu"
    assert container.platform == "xilinx_u50_gen3x16_xdma_5_202210_1"
    assert all(entry.m_sectionOffset % 8 == 0 for entry in table(PACKED)) and len(PACKED) % 8 == 0
    other = EmulationOverlay(OVERLAY.kernels, {**OVERLAY.images, "avx2": b"another"})
    assert read_container(pack_xclbin(other)).uuid != container.uuid


# --- bad containers


def outcome(data: bytes) -> str:
    """What is wrong with a container's header, or "" """
    try:
        read_container(data)
    except OverlayError as error:
        return str(error)
    return ""


def boundaries() -> list[int]:
    cuts = {0, 7, 8, FIRST_SECTION, FIRST_SECTION + ENTRY * len(table(PACKED)), len(PACKED) - 1}
    for entry in table(PACKED):
        cuts |= {entry.m_sectionOffset + shift for shift in (-1, 0, 1, entry.m_sectionSize // 2, entry.m_sectionSize)}
    return sorted(cut for cut in cuts if cut < len(PACKED))


@pytest.mark.parametrize("cut", boundaries())
def test_a_truncated_container(cut):
    assert outcome(PACKED[:cut])
    if cut > FIRST_SECTION + ENTRY:
        assert "truncated" in outcome(PACKED[:cut])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an .xclbin"),
        (b"\x7fELF" + PACKED[4:], "not an .xclbin"),
        (PACKED + b"\0", "bytes follow its end"),
        (with_header(PACKED, m_numSections=0), "0 sections"),
        (with_header(PACKED, m_numSections=0xFFFFFFFF), "4294967295 sections"),
        (with_header(PACKED, m_mode=77), "mode 77"),
    ],
)
def test_a_container_with_one_fault(data, message):
    assert message in outcome(data)


def test_only_emulation_overlays_are_read():
    with pytest.raises(OverlayError, match="built for hw, platform xilinx_u50"):
        read_xclbin(with_header(PACKED, m_mode=1))
    copy = bytearray(PACKED)
    row = [entry.m_sectionKind for entry in table(PACKED)].index(EMULATION_DATA)
    struct.pack_into("<I", copy, FIRST_SECTION + row * ENTRY, KIND.DEBUG_DATA)
    with pytest.raises(OverlayError, match="section EMULATION_DATA is missing"):
        read_xclbin(bytes(copy))
