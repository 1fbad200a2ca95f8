"""A GPU's energy counter by NVML's C library, which comes with the driver: for hosts without zeus."""

import ctypes

import torch


class NvmlCounter:
    """The energy counter of the GPU with PyTorch's index `index`.

    Raises OSError if there is no NVML, or it does not answer.
    """

    how = "NVML: the whole board"

    def __init__(self, index: int):
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._device = ctypes.c_void_p()
        self._call("nvmlInit_v2")
        uuid = f"GPU-{torch.cuda.get_device_properties(index).uuid}".encode()
        self._call("nvmlDeviceGetHandleByUUID", uuid, ctypes.byref(self._device))
        self._joules()  # raises if the board has no counter

    def begin(self) -> None:
        torch.cuda.synchronize()
        self._start = self._joules()

    def end(self) -> float:
        torch.cuda.synchronize()
        return self._joules() - self._start

    def watts(self) -> float:
        """Return the power, on most boards the average over a second."""
        milliwatts = ctypes.c_uint()
        self._call("nvmlDeviceGetPowerUsage", self._device, ctypes.byref(milliwatts))
        return milliwatts.value / 1e3

    def _joules(self) -> float:
        millijoules = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", self._device, ctypes.byref(millijoules))
        return millijoules.value / 1e3

    def _call(self, name: str, *arguments) -> None:
        if code := getattr(self._library, name)(*arguments):
            raise OSError(f"{name} gave NVML's error {code}")
