"""The machine a baseline runs on, without its name."""

import os
import platform
import re
from pathlib import Path

import torch

from bttlab.baseline.record import Machine
from bttlab.util.errors import BttlabError

CPUINFO = Path("/proc/cpuinfo")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def open_device(name: str) -> torch.device:
    """Return the device called "cpu" or "cuda"; of several GPUs the current one (CUDA_VISIBLE_DEVICES chooses).

    Raises BttlabError if there is no such device.
    """
    if name not in ("cpu", "cuda"):
        raise BttlabError(f"device {name!r}: choose cpu or cuda")
    if name == "cpu":
        return torch.device("cpu")
    if torch.version.cuda is None:
        raise BttlabError(
            f"device cuda: torch {torch.__version__} is built without CUDA; install a CUDA build, or choose cpu"
        )
    if not torch.cuda.is_available():
        raise BttlabError("device cuda: torch finds no usable NVIDIA GPU (nvidia-smi says what there is); choose cpu")
    torch.cuda.synchronize()  # opens it
    return torch.device("cuda", torch.cuda.current_device())


def load_average() -> list[float]:
    """Return the system's load averages over 1, 5 and 15 minutes."""
    return [round(load, 2) for load in os.getloadavg()]


def machine_of(device: torch.device, load_before: list[float]) -> Machine:
    """Describe the machine; call it when training is over."""
    cpu = _found(CPUINFO, r"^model name\s*:\s*(.+)$") or platform.processor() or platform.machine()
    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    cudnn = torch.backends.cudnn.version() if gpu else None
    return Machine(
        kind=device.type,
        name=gpu.name if gpu else cpu,
        memory_bytes=gpu.total_memory if gpu else None,
        driver=_found(NVIDIA_DRIVER, r"\b(\d{3}\.\d+(?:\.\d+)?)\b") if gpu else None,  # PyTorch does not tell it
        cuda=torch.version.cuda if gpu else None,
        cudnn=str(cudnn) if cudnn else None,
        torch=torch.__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        precision=torch.get_float32_matmul_precision(),
        cpu=cpu,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        load_before=load_before,
        load_after=load_average(),
    )


def _found(path: Path, pattern: str) -> str | None:
    """Return the first match's group in a file of the system; None if there is no such file, or no match."""
    try:
        match = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return match[1].strip() if match else None


def plain(error: BaseException | str) -> str:
    """Return an error in one line, without the folders in it."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, BaseException):
        line = f"{type(error).__name__}: {line}"
    return re.sub(r"(?<![\w/])(?:~|[A-Za-z]:)?[/\\](?:[^\s/\\:'\",;]+[/\\])*", "", line)[:300]


def out_of_memory(error: torch.OutOfMemoryError) -> str:
    """Say in a sentence what was needed and what there was."""
    needed = re.search(r"Tried to allocate ([\d.]+ \w+)", str(error))
    free, total = torch.cuda.mem_get_info()
    return (
        f"the GPU is out of memory: it was to give another {needed[1] if needed else 'block'} with "
        f"{free / 2**20:,.0f} MiB of {total / 2**20:,.0f} MiB free; end what else uses it, or take fewer encoders or "
        "another format"
    )
