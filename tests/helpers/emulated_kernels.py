"""Small kernels, compiled on the spot, for the tests of the emulated card."""

import functools
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pynq

from bttlab.card import start_kernel
from bttlab.card.build import COMPILE_FLAGS, LINK_FLAGS
from bttlab.card.kernel import Argument, Kernel
from bttlab.card.xclbin import EmulationOverlay, pack_xclbin

from build_library import COMPILER

SOURCE = r"""
#include <time.h>
#define KERNEL extern "C" __attribute__((visibility("default")))

KERNEL void vadd(const float *a, const float *b, float *c, int n, float scale) {
    for (int i = 0; i < n; i++) c[i] = a[i] + scale * b[i];
}

// Counts its calls in static memory, and takes its time.
KERNEL void spin(int *calls, int milliseconds) {
    static int count = 0;
    timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - begin.tv_sec) * 1e3 + (now.tv_nsec - begin.tv_nsec) * 1e-6 < milliseconds);
    calls[0] = ++count;
}
"""
VADD = Kernel(
    "vadd",
    (
        Argument("a", "float*", bank=0, width=32),
        Argument("b", "float*", bank=1, width=512),
        Argument("c", "float*", bank=1, width=32),
        Argument("n", "int"),
        Argument("scale", "float"),
    ),
)
SPIN = Kernel("spin", (Argument("calls", "int*", bank=0, width=32), Argument("milliseconds", "int")))


@functools.cache
def image() -> bytes:
    """The kernels as a shared library."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "kernels.cpp", Path(folder) / "kernels.so"
        source.write_text(SOURCE)
        subprocess.run([COMPILER, *COMPILE_FLAGS, str(source), "-o", str(library), *LINK_FLAGS], check=True)
        return library.read_bytes()


def container() -> bytes:
    """An overlay of both kernels with one image, which runs on any processor with AVX2."""
    return pack_xclbin(EmulationOverlay([VADD, SPIN], {"avx2": image()}))


def call(ip: pynq.DefaultIP, *values: Any) -> None:
    """Start a kernel and wait for its end."""
    start_kernel(ip, *values).wait()
