"""Read and write overlay files: the AXLF container (.xclbin) of XRT and PYNQ.

An emulation overlay has the same sections as one linked by Vitis, and in section EMULATION_DATA the kernels compiled
for the host's processor, one image for each level of vector instructions. Its bytes are read once their digest is
trusted; the header of any other file is not.
"""

import ctypes
import hashlib
import io
import re
import uuid
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from pynq._3rdparty import xclbin as axlf

from bttlab.card.kernel import CONTROL_RANGE, Argument, Kernel, OverlayError
from bttlab.estimate.facts import NAMES, U50, card_of_platform, read_card

MAGIC = b"xclbin2"
# PYNQ's tables of modes and sections lack these values of XRT's xclbin.h.
TARGETS = {0: "hw", 1: "hw", 2: "hw", 3: "hw", 4: "hw_emu", 5: "sw_emu", 6: "hw_emu"}
SW_EMU = 5
PARTITION_METADATA, EMULATION_DATA = 20, 21

KIND = axlf.AXLF_SECTION_KIND
SECTIONS = {
    KIND.EMBEDDED_METADATA: "EMBEDDED_METADATA",
    KIND.IP_LAYOUT: "IP_LAYOUT",
    KIND.CONNECTIVITY: "CONNECTIVITY",
    KIND.MEM_TOPOLOGY: "MEM_TOPOLOGY",
    KIND.CLOCK_FREQ_TOPOLOGY: "CLOCK_FREQ_TOPOLOGY",
    EMULATION_DATA: "EMULATION_DATA",
}
FIRST_SECTION = axlf.axlf.m_sections.offset
CONTROL_BASE = 0x800000  # where the shell maps the first compute unit's registers
CONTROL_STRIDE = 0x10000
SHELL_CLOCK_MHZ = 300  # data clock that the U50's shell gives unless the overlay requests another (UG1120)
_UUID = re.compile(rb"[0-9a-f]{32}")


@dataclass(frozen=True)
class Container:
    """The header and raw sections of a container with any kind of overlay.

    The mode is "hw", "hw_emu" or "sw_emu", the UUID has 32 hexadecimal digits, `interfaces` has UUIDs of the shell's
    interface.
    """

    mode: str
    platform: str
    uuid: str
    interfaces: tuple[str, ...]
    sections: Mapping[int, bytes] = field(repr=False)

    @property
    def clock_mhz(self) -> int | None:
        """The kernels' clock; None if the container has no entry for it."""
        table, row = self.sections.get(KIND.CLOCK_FREQ_TOPOLOGY, b""), axlf.clock_freq
        first = axlf.clock_freq_topology.m_clock_freq.offset
        count = min(int.from_bytes(table[:2], "little"), (len(table) - first) // ctypes.sizeof(row))
        clocks = (row * max(count, 0)).from_buffer_copy(table, first) if count > 0 else ()
        return next((clock.m_freq_Mhz for clock in clocks if clock.m_type == axlf.CLOCK_TYPE.CT_DATA), None)


@dataclass(frozen=True)
class EmulationOverlay:
    """Content of an emulation overlay: kernels, shared libraries by level of vector instructions, clock on the card."""

    kernels: Sequence[Kernel]
    images: Mapping[str, bytes] = field(repr=False)
    platform: str = U50.platform
    clock_mhz: int = SHELL_CLOCK_MHZ


def control_address(index: int) -> int:
    return CONTROL_BASE + CONTROL_STRIDE * index


def pack_xclbin(overlay: EmulationOverlay) -> bytes:
    """Return the container of an emulation overlay; equal overlays give equal bytes."""
    sections = _described_sections(overlay)
    sections[EMULATION_DATA] = _archive(overlay.images)

    offset = _aligned(FIRST_SECTION + len(sections) * ctypes.sizeof(axlf.axlf_section_header))
    table, body = [], b""
    for kind, data in sections.items():
        name = SECTIONS[kind][:15].lower().encode()
        table.append(axlf.axlf_section_header(kind, name, offset + len(body), len(data)))
        body += data.ljust(_aligned(len(data)), b"\0")

    top = axlf.axlf()
    top.m_magic = MAGIC
    top.m_cipher[:] = [0xFF] * 32  # signature length -1: not signed
    header = top.m_header
    header.m_length = offset + len(body)
    header.m_versionMajor, header.m_versionMinor = 2, 13  # the XRT release of this layout
    header.m_mode = SW_EMU
    header.m_numSections = len(sections)
    _fill(header.m_platformVBNV, overlay.platform)

    def assemble() -> bytes:
        head = bytes(top)[:FIRST_SECTION] + b"".join(map(bytes, table))
        return head.ljust(offset, b"\0") + body

    header.uuid[:] = uuid.UUID(bytes=hashlib.sha256(assemble()).digest()[:16], version=5).bytes
    return assemble()


def read_container(data: bytes) -> Container:
    """Return the header of any .xclbin and the sections that are read here; a section ends with the file."""
    size = len(data)
    if not data.startswith(MAGIC + b"\0"):
        raise OverlayError(f"not an .xclbin: it starts with {bytes(data[:8])!r}, not {MAGIC + bytes(1)!r}")
    if size < ctypes.sizeof(axlf.axlf):
        raise OverlayError(f"truncated: {size} bytes do not hold the header's {ctypes.sizeof(axlf.axlf)}")
    header = axlf.axlf.from_buffer_copy(data).m_header
    if header.m_length != size:
        fault = "truncated" if header.m_length > size else "bytes follow its end"
        raise OverlayError(f"{fault}: its header says {header.m_length} bytes, it has {size}")
    entry = axlf.axlf_section_header
    end_of_table = FIRST_SECTION + header.m_numSections * ctypes.sizeof(entry)
    if header.m_numSections < 1 or end_of_table > size:
        raise OverlayError(f"its header says {header.m_numSections} sections, whose table is not within the file")
    sections: dict[int, bytes] = {}
    for row in (entry * header.m_numSections).from_buffer_copy(data, FIRST_SECTION):
        if row.m_sectionKind not in (
            *SECTIONS,
            PARTITION_METADATA,
        ):
            continue  # else a table of many rows would copy the file as often
        sections[row.m_sectionKind] = bytes(data[row.m_sectionOffset : row.m_sectionOffset + row.m_sectionSize])
    mode = header.m_mode & 0xFFFF  # the upper half is XRT's action mask
    if mode not in TARGETS:
        raise OverlayError(f"its header has mode {mode}, which XRT does not define")
    platform = bytes(header.m_platformVBNV).split(b"\0", 1)[0].decode(errors="replace")
    interfaces = _interfaces(sections.get(PARTITION_METADATA, b""), bytes(header.rom_uuid))
    return Container(TARGETS[mode], platform, bytes(header.uuid).hex(), interfaces, sections)


def read_xclbin(data: bytes) -> EmulationOverlay:
    """Return the content of an emulation overlay that is trusted: `pack_xclbin` wrote its sections."""
    container = read_container(data)
    if container.mode != "sw_emu":
        raise OverlayError(
            f"it is built for {container.mode}, platform {container.platform or 'unknown'}; "
            "the emulated card loads emulation overlays (sw_emu)"
        )
    card = card_of_platform(container.platform)
    if card != U50.short_name:
        raise OverlayError(
            f"it is built for the {card or 'unknown card'} (platform {container.platform or 'unknown'}); the emulated "
            f"card is a {U50.short_name}: build it for that one, with make overlays"
        )
    if EMULATION_DATA not in container.sections:
        raise OverlayError("section EMULATION_DATA is missing: build it with make overlays")
    banks = _argument_banks(container.sections[KIND.CONNECTIVITY])
    kernels, clock_mhz = _parse_metadata(container.sections[KIND.EMBEDDED_METADATA], banks)
    with zipfile.ZipFile(io.BytesIO(container.sections[EMULATION_DATA])) as archive:
        images = {name: archive.read(name) for name in archive.namelist()}
    return EmulationOverlay(kernels, images, container.platform, clock_mhz)


def _interfaces(metadata: bytes, header: bytes) -> tuple[str, ...]:
    """Return the interface UUIDs that an hw overlay needs, from its device tree as in XRT's driver, or its header.

    Since 2023 xclbinutil copies the UUID of the device tree to the header; older files may have another UUID there.
    """
    found = sorted({uuid.decode() for uuid in _UUID.findall(metadata)})
    return tuple(found) if found else (header.hex(),) if any(header) else ()


# --- sections derived from the kernels


def _described_sections(overlay: EmulationOverlay) -> dict[int, bytes]:
    kernels = overlay.kernels
    used = {argument.bank for kernel in kernels for argument in kernel.arguments}
    units, connections = [], []
    for index, kernel in enumerate(kernels):
        unit = axlf.ip_data(axlf.IP_TYPE.IP_KERNEL, 0, control_address(index))
        _fill(unit.m_name, f"{kernel.name}:{kernel.instance}")
        units.append(unit)
        connections += [
            axlf.connection(number, index, argument.bank)
            for number, argument in enumerate(kernel.arguments)
            if argument.is_pointer
        ]
    banks = []
    for index in range(U50.hbm_banks):
        bank = axlf.mem_data(axlf.MEM_TYPE.MEM_HBM, index in used, m_tag=b"HBM[%d]" % index)
        bank.m_size = U50.hbm_bank_bytes // 1024
        bank.m_base_address = index * U50.hbm_bank_bytes
        banks.append(bank)
    clocks = [
        axlf.clock_freq(overlay.clock_mhz, axlf.CLOCK_TYPE.CT_DATA, m_name=b"DATA_CLK"),
        axlf.clock_freq(overlay.clock_mhz, axlf.CLOCK_TYPE.CT_KERNEL, m_name=b"KERNEL_CLK"),
    ]
    return {
        KIND.EMBEDDED_METADATA: _metadata(overlay),
        KIND.IP_LAYOUT: _table(axlf.ip_layout, units),
        KIND.CONNECTIVITY: _table(axlf.connectivity, connections),
        KIND.MEM_TOPOLOGY: _table(axlf.mem_topology, banks),
        KIND.CLOCK_FREQ_TOPOLOGY: _table(axlf.clock_freq_topology, clocks),
    }


def _metadata(overlay: EmulationOverlay) -> bytes:
    """Return the XML that describes kernels, their ports, arguments and compute units."""
    card = card_of_platform(overlay.platform) or U50.short_name
    part = (read_card(card) if card in NAMES else U50).part
    project = ElementTree.Element("project", name="_".join(kernel.name for kernel in overlay.kernels))
    platform = ElementTree.SubElement(project, "platform", vendor="xilinx", boardid=card.lower(), name=overlay.platform)
    device = ElementTree.SubElement(platform, "device", name="fpga0", fpgaDevice=part)
    core = ElementTree.SubElement(device, "core", name="OCL_REGION_0", target="csim", type="clc_region")
    clocks = ElementTree.SubElement(core, "kernelClocks")
    for port in ("DATA_CLK", "KERNEL_CLK"):
        ElementTree.SubElement(clocks, "clock", port=port, frequency=f"{overlay.clock_mhz}MHz")
    for index, kernel in enumerate(overlay.kernels):
        node = ElementTree.SubElement(
            core,
            "kernel",
            name=kernel.name,
            language="c",
            vlnv=kernel.vlnv,
            workGroupSize="1",
            interrupt="false",
            hwControlProtocol="ap_ctrl_hs",
        )
        _port(node, "S_AXI_CONTROL", "slave", CONTROL_RANGE, 32)
        for argument in kernel.arguments:
            if argument.is_pointer:
                _port(node, _port_name(argument), "master", 0xFFFFFFFFFFFFFFFF, argument.width)
        for number, (argument, offset) in enumerate(zip(kernel.arguments, kernel.offsets, strict=True)):
            ElementTree.SubElement(
                node,
                "arg",
                name=argument.name,
                addressQualifier=str(int(argument.is_pointer)),
                id=str(number),
                port=_port_name(argument) if argument.is_pointer else "S_AXI_CONTROL",
                size=hex(argument.size),
                offset=hex(offset),
                hostOffset="0x0",
                hostSize=hex(argument.size),
                type=argument.ctype,
            )
        instance = ElementTree.SubElement(node, "instance", name=kernel.instance)
        ElementTree.SubElement(instance, "addrRemap", base=hex(control_address(index)), port="S_AXI_CONTROL")
    ElementTree.indent(project)
    return ElementTree.tostring(project, encoding="UTF-8", xml_declaration=True)


def _port_name(argument: Argument) -> str:
    return f"M_AXI_{argument.name.upper()}"


def _port(kernel: ElementTree.Element, name: str, mode: str, size: int, width: int) -> None:
    values = {"range": hex(size), "dataWidth": str(width), "portType": "addressable", "base": "0x0"}
    ElementTree.SubElement(kernel, "port", {"name": name, "mode": mode, **values})


def _parse_metadata(data: bytes, banks: Mapping[tuple[int, int], int]) -> tuple[tuple[Kernel, ...], int]:
    """Return the kernels and their clock from the XML."""
    core: Any = ElementTree.fromstring(data.decode()).find("platform/device/core")
    kernels = []
    for index, node in enumerate(core.findall("kernel")):
        ports = {port.attrib["name"]: int(port.attrib["dataWidth"]) for port in node.findall("port")}
        arguments = (
            Argument(arg.attrib["name"], arg.attrib["type"], banks.get((index, number)), ports[arg.attrib["port"]])
            if arg.attrib["type"].endswith("*")
            else Argument(arg.attrib["name"], arg.attrib["type"])
            for number, arg in enumerate(node.findall("arg"))
        )
        kernels.append(Kernel(node.attrib["name"], tuple(arguments)))
    return tuple(kernels), int(core.find("kernelClocks/clock").attrib["frequency"].removesuffix("MHz"))


def _argument_banks(data: bytes) -> dict[tuple[int, int], int]:
    """Return the bank of each (kernel, argument) from section CONNECTIVITY."""
    first = axlf.connectivity.m_connection.offset
    rows = (axlf.connection * int.from_bytes(data[:first], "little")).from_buffer_copy(data, first)
    return {(row.m_ip_layout_index, row.arg_index): row.mem_data_index for row in rows}


# --- images


def _archive(images: Mapping[str, bytes]) -> bytes:
    """Return a zip file of the images, uncompressed and with fixed dates, so that equal images give equal bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, image in sorted(images.items()):
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3
            archive.writestr(entry, image)
    return stream.getvalue()


# --- bytes


def _table(kind: type[ctypes.Structure], rows: Sequence[ctypes.Structure]) -> bytes:
    """Return a table with its row count. xclbin.h declares one row, but the table has as many as the count says."""
    count, first = (field[0] for field in kind._fields_)
    head = kind(**{count: len(rows)})
    return bytes(head)[: getattr(kind, first).offset] + b"".join(map(bytes, rows))


def _aligned(size: int) -> int:
    return -(-size // 8) * 8


def _fill(array: ctypes.Array, text: str) -> None:
    array[:] = text.encode().ljust(len(array), b"\0")
