"""XRT's installation, looked at before pynq is imported: what pynq would answer with OSErrors."""

import json
import os
from importlib.metadata import version
from pathlib import Path

from bttlab.util.errors import BttlabError

VARIABLE = "XILINX_XRT"
OLDEST, NEWEST = (2, 14), (2, 16)  # that PYNQ 3.0.1 is used with; the newest by its issue 1465, which nobody tried here
LAST_PYNQ = "3.0.1"  # from 3.1 on, PYNQ's XrtDevice lists no card
WAY_OUT = "set it with: source /opt/xilinx/xrt/setup.sh; or unset it to use the emulated card"


def check_xrt() -> None:
    """Raise BttlabError in one line if $XILINX_XRT, where it is set, names no installation that pynq can use."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        return
    emulation = os.environ.get("XCL_EMULATION_MODE") == "hw_emu"
    library = Path(folder) / "lib" / ("libxrt_hwemu.so" if emulation else "libxrt_core.so")
    if not library.is_file():
        raise BttlabError(f"{VARIABLE} is {folder!r}, but there is no {library}: {WAY_OUT}")
    if xrt_version() is None:
        raise BttlabError(
            f"{VARIABLE} is {folder!r}, but its version.json names no BUILD_VERSION: without it pynq does not start "
            f"kernels by XRT's scheduler; install XRT again, or {WAY_OUT}"
        )


def pynq_version() -> str:
    return version("pynq")


def xrt_version() -> str | None:
    """Return the version of the XRT in $XILINX_XRT, None if there is none."""
    try:
        text = json.loads((Path(os.environ[VARIABLE]) / "version.json").read_text())["BUILD_VERSION"]
        return ".".join(str(int(part)) for part in text.split("."))
    except (OSError, KeyError, ValueError, TypeError, AttributeError):
        return None


def xrt_warning() -> str | None:
    """Return what is known against the version of XRT; None if nothing is, or there is no XRT."""
    found = xrt_version()
    if found is None or OLDEST <= tuple(int(part) for part in found.split(".")[:2]) <= NEWEST:
        return None
    oldest, newest = (".".join(map(str, bound)) for bound in (OLDEST, NEWEST))
    return (
        f"version {found}: PYNQ 3.0.1 is used with XRT {oldest} to {newest}. Newer ones lack calls that it makes "
        "(github.com/Xilinx/PYNQ issue 1465), older ones lack the U50's shell of 2022.1"
    )
