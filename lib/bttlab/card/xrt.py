"""XRT's installation, looked at before pynq is imported: what pynq would answer with OSErrors."""

import ctypes
import json
import os
import sys
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

from bttlab.util.errors import BttlabError

VARIABLE = "XILINX_XRT"
OLDEST, NEWEST = (2, 14), (2, 16)  # that PYNQ 3.0.1 is used with; the newest by its issue 1465, which nobody tried here
NEWEST_PYXRT = (2, 21)  # whose source has the calls of pyxrt that `pyxrt_card` makes
LAST_PYNQ = "3.0.1"  # from 3.1 on, PYNQ's XrtDevice lists no card
CHOICE = "BTTLAB_PYXRT"  # 0: no card on pyxrt; 1: also beside those that PYNQ lists
CALLS = (  # of XRT's C library that PYNQ 3.0.1 makes for an Alveo card
    *("xclProbe", "xclOpen", "xclClose", "xclGetDeviceInfo2", "xclLockDevice", "xclUnlockDevice", "xclLoadXclBin"),
    *("xclIPName2Index", "xclOpenContext", "xclCloseContext", "xclAllocBO", "xclMapBO", "xclFreeBO"),
    *("xclGetBOProperties", "xclSyncBO", "xclExecBuf", "xclExecWait"),
)
WAY_OUT = "set it with: source /opt/xilinx/xrt/setup.sh; or unset it to use the emulated card"


def check_xrt() -> None:
    """Raise BttlabError in one line if $XILINX_XRT, where it is set, names no installation that pynq can use."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        return
    library = _library(folder)
    if not library.is_file():
        raise BttlabError(f"{VARIABLE} is {folder!r}, but there is no {library}: {WAY_OUT}")
    if xrt_version() is None:
        raise BttlabError(
            f"{VARIABLE} is {folder!r}, but its version.json names no BUILD_VERSION: without it pynq does not start "
            f"kernels by XRT's scheduler; install XRT again, or {WAY_OUT}"
        )


def _library(folder: str) -> Path:
    emulation = os.environ.get("XCL_EMULATION_MODE") == "hw_emu"
    return Path(folder) / "lib" / ("libxrt_hwemu.so" if emulation else "libxrt_core.so")


def why_not_pynq() -> str | None:
    """Return why PYNQ's own device drives no Alveo card here, where there is an XRT; None if it may."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        return None
    if pynq_version() != LAST_PYNQ:
        return f"PYNQ {pynq_version()} lists no Alveo card"
    try:
        library = ctypes.CDLL(str(_library(folder)))
    except OSError as error:
        return f"PYNQ cannot load XRT's C library ({error})"
    missing = [call for call in CALLS if not hasattr(library, call)]
    return f"{_library(folder)} lacks {missing[0]}, which PYNQ {LAST_PYNQ} calls" if missing else None


def pyxrt_reason() -> str | None:
    """Return why cards are looked for through pyxrt; None if they are not.

    Raises BttlabError if the variable of the choice has another value than 0 or 1.
    """
    choice = os.environ.get(CHOICE)
    if choice not in (None, "0", "1"):
        raise BttlabError(f"{CHOICE} is {choice!r}: 0 lists no card through pyxrt, 1 lists them beside those of PYNQ")
    if choice == "0" or VARIABLE not in os.environ:
        return None
    return why_not_pynq() or (f"{CHOICE} is 1" if choice else None)


def load_pyxrt() -> ModuleType:
    """Import XRT's Python binding; BttlabError if it is missing, or is built for another Python."""
    try:
        return import_module("pyxrt")
    except ImportError as error:
        folder = Path(os.environ.get(VARIABLE, "/opt/xilinx/xrt")) / "python"
        built = sorted(path.name for path in folder.glob("pyxrt*.so"))
        here = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
        if error.name != "pyxrt":
            cause = str(error)
        elif not built:
            cause = f"{folder} has none; install an XRT that has it"
        elif any(f"pyxrt{suffix}" in built for suffix in EXTENSION_SUFFIXES):
            cause = f"{folder} is not on PYTHONPATH: source {folder.parent}/setup.sh"
        else:
            cause = f"{folder} has {', '.join(built)}, for another Python than this {here}: make lab PYTHON=PATH"
        raise BttlabError(f"XRT's Python binding pyxrt cannot be imported: {cause}") from None


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
    found, is_pynq_3 = xrt_version(), pynq_version() == LAST_PYNQ
    least, most = OLDEST, NEWEST if is_pynq_3 else NEWEST_PYXRT
    if found is None or least <= tuple(int(part) for part in found.split(".")[:2]) <= most:
        return None
    oldest, newest = (".".join(map(str, bound)) for bound in (least, most))
    older = "older ones lack the U50's shell of 2022.1"
    if not is_pynq_3:
        return f"version {found}: the calls of pyxrt were read in the source of XRT 2.13 to {newest}; {older}"
    return (
        f"version {found}: PYNQ 3.0.1 is used with XRT {oldest} to {newest}. Newer ones lack calls that it makes "
        f"(github.com/Xilinx/PYNQ issue 1465), {older}"
    )
