"""The compiled images of an emulation overlay: choose one for this processor, and load it."""

import ctypes
import os
import weakref
from _ctypes import dlclose
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bttlab.card.kernel import Kernel, OverlayError

CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Image:
    """A level of vector instructions that kernels are compiled for.

    `features` has the names of /proc/cpuinfo. All flags have -mno-fma: a fused multiply-add would change the bits.
    """

    name: str
    features: frozenset[str]
    flags: tuple[str, ...]


IMAGES = (  # best first
    Image(
        "avx512",
        frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"}),
        (
            *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"),
            *("-mprefer-vector-width=512", "-mno-fma", "-mtune=generic"),
        ),
    ),
    Image("avx2", frozenset({"avx2"}), ("-mavx2", "-mno-fma", "-mtune=generic")),
)


def cpu_features() -> frozenset[str]:
    """Return the processor's features that the Linux kernel has enabled."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())


def choose_image(available: Collection[str]) -> str:
    """Return the best of an overlay's images for this processor, or the one that $BTTLAB_IMAGE names.

    OverlayError if the processor can run none of the images, or $BTTLAB_IMAGE names one that cannot be used.
    """
    features = cpu_features()
    required = os.environ.get("BTTLAB_IMAGE")
    if required and required not in available:
        raise OverlayError(f"BTTLAB_IMAGE is {required!r}: the overlay's images are {', '.join(sorted(available))}")
    candidates = [image for image in IMAGES if image.name in ([required] if required else available)]
    for image in candidates:
        if image.features <= features:
            return image.name
    if not candidates:
        raise OverlayError(f"the overlay's images, {', '.join(sorted(available))}, are unknown; rebuild the overlay")
    least = candidates[-1]
    lacking = ", ".join(sorted(least.features - features))
    hint = "unset BTTLAB_IMAGE" if required else "use a machine that has it, or a real U50"
    raise OverlayError(f"this processor lacks {lacking}, which image {least.name} of the overlay needs; {hint}")


class NativeImage:
    """A loaded shared library of kernels, with static memory of its own, initially zero.

    Garbage collection unloads it. OverlayError if it cannot be loaded.
    """

    def __init__(self, image: bytes) -> None:
        # An anonymous file, which no other process can change. The dynamic loader identifies a library by its file and
        # path. The descriptor stays open so that no other image gets the same path.
        file = os.fdopen(os.memfd_create("bttlab-kernels"), "wb")
        try:
            file.write(image)
            file.flush()
            self._library = ctypes.CDLL(f"/proc/self/fd/{file.fileno()}")
        except OSError as error:
            file.close()
            raise OverlayError(f"cannot load the compiled kernels: {error}; rebuild the overlay") from None
        weakref.finalize(self, _unload, self._library._handle, file).atexit = False

    def function(self, kernel: Kernel) -> Callable[..., Any]:
        try:
            return kernel.prototype((kernel.name, self._library))
        except AttributeError:
            raise OverlayError(f"the compiled image has no kernel {kernel.name}") from None

    def second_thread(self, kernel: Kernel) -> Callable[[int], int] | None:
        """Return the kernel's function for a second host thread (emulation/threads.h); None if it has none."""
        try:
            return self._library[f"{kernel.name}_second"]
        except AttributeError:
            return None

    def moved(self, kernel: Kernel) -> tuple[int, int]:
        """Return the bytes that the kernel's calls moved from HBM to the chip, and back; 0 if the image counts none."""
        bytes_moved = (ctypes.c_longlong * 2)()
        with suppress(AttributeError):
            self._library[f"{kernel.name}_moved"](bytes_moved)
        return bytes_moved[0], bytes_moved[1]

    def reach(self, kernel: Kernel, arguments: Sequence[int | float]) -> list[int]:
        """Return how many bytes a call would access from each of its pointers on; 0 if the image does not report it."""
        pointers = sum(argument.is_pointer for argument in kernel.arguments)
        reach = (ctypes.c_longlong * pointers)()
        try:
            function = getattr(self._library, f"{kernel.name}_reach")  # cached, unlike self._library[name]
        except AttributeError:
            return list(reach)
        function.argtypes, function.restype = [*kernel.prototype._argtypes_, ctypes.POINTER(ctypes.c_longlong)], None
        function(*arguments, reach)
        return list(reach)


def _unload(handle: int, file: IO[bytes]) -> None:
    dlclose(handle)
    file.close()
