"""XRT's own reader, xrt::xclbin, takes the container as one that Vitis linked."""

import os
import subprocess
from pathlib import Path

import pytest

from bttlab.card.kernel import TRAINER_KERNEL
from bttlab.card.xclbin import EmulationOverlay, pack_xclbin, read_container

pytestmark = pytest.mark.long

HEADERS = Path("/usr/include/xrt")
NEEDED = (HEADERS / "experimental" / "xrt_xclbin.h", Path("/usr/include/uuid/uuid.h"))  # libxrt-dev, uuid-dev
INSTALLED = all(header.is_file() for header in NEEDED)
PROGRAM = r"""
#include <experimental/xrt_xclbin.h>
#include <iostream>

using memory_type = xrt::xclbin::mem::memory_type;

int main(int, char **arguments) {
    xrt::xclbin overlay{std::string(arguments[1])};
    std::cout << overlay.get_xsa_name() << " " << overlay.get_uuid().to_string() << " "
              << (overlay.get_target_type() == xrt::xclbin::target_type::sw_emu) << "\n";
    for (auto &kernel : overlay.get_kernels()) {
        for (auto &unit : kernel.get_cus()) std::cout << unit.get_name() << " " << unit.get_base_address() << "\n";
        for (auto &argument : kernel.get_args()) {
            std::cout << argument.get_name() << " " << argument.get_host_type() << " " << argument.get_offset() << " "
                      << argument.get_size();
            for (auto &memory : argument.get_mems()) std::cout << " " << memory.get_tag();
            std::cout << "\n";
        }
    }
    for (auto &memory : overlay.get_mems())
        if (memory.get_used())
            std::cout << memory.get_tag() << " " << memory.get_index() << " " << memory.get_base_address() << " "
                      << memory.get_size_kb() << " " << (memory.get_type() == memory_type::hbm) << "\n";
}
"""


@pytest.mark.skipif(
    not INSTALLED and os.environ.get("CI") != "true", reason="libxrt-dev and uuid-dev are not installed"
)
def test_xrt_reads_the_container(tmp_path):
    source, program, overlay = tmp_path / "read.cpp", tmp_path / "read", tmp_path / "train.xclbin"
    source.write_text(PROGRAM)
    data = pack_xclbin(EmulationOverlay([TRAINER_KERNEL], {"avx2": b"image"}))
    overlay.write_bytes(data)
    command = ["g++", "-std=c++17", f"-I{HEADERS}", str(source), "-o", str(program), "-lxrt_coreutil", "-luuid"]
    subprocess.run(command, check=True)
    printed = subprocess.run(
        [str(program), str(overlay)], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    container = read_container(data)
    platform, uuid, is_emulation = printed[0].split()
    assert (platform, uuid.replace("-", ""), is_emulation) == (container.platform, container.uuid, "1")
    assert printed[1] == f"trainer:trainer_1 {0x800000}"
    for line, argument, offset in zip(printed[2:], TRAINER_KERNEL.arguments, TRAINER_KERNEL.offsets, strict=False):
        memory = [f"HBM[{argument.bank}]"] if argument.is_pointer else []
        assert line.split() == [argument.name, *argument.ctype.split(), str(offset), str(argument.size), *memory]
    assert printed[2 + len(TRAINER_KERNEL.arguments) :] == [f"HBM[{i}] {i} {i << 28} {1 << 18} 1" for i in range(4)]
