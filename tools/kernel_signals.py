"""Record signals of the kernel's Verilog while it runs a layer's program in Verilator: make signals."""

import ctypes
import json
import re
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bttlab.card.layer import layer_program
from bttlab.card.processor import NativeProcessor, sample_dtype
from bttlab.compiler.instruction import UNIT_NAMES
from bttlab.compiler.layer import LayerShape
from bttlab.estimate.recorded import source_digest
from bttlab.util.files import write_file
from bttlab.util.places import ROOT
from bttlab_hardware import SOURCE, UNIT, analyse
from bttlab_hardware.kernel import write_kernel

RECORD = ROOT / "data" / "u50" / "signals.json"
LAYER, FLOW, TOKENS = LayerShape((12, 8, 8), (8, 8, 12), (12,) * 5), "bidirectional", 13  # of notebook 02
TESTBENCH = ROOT / "hls_src" / "testbench"


def collect(processor: NativeProcessor, header: str) -> dict[str, Any]:
    """Return the content of data/u50/signals.json, without the tool's version.

    Parameters
    ----------
    processor : NativeProcessor
        The kernel in Verilator.
    header : str
        kernel_host.h of the kernel.
    """
    program = layer_program(LAYER, TOKENS, FLOW)
    stages = [int(n) for n in re.findall(r"ENTRY\(\d+, \w+__DOT__\w+, (\d+)\)", header)]
    processor.load_program(program)
    words, sample = np.zeros(1 << 16, np.uint32), np.zeros(1, sample_dtype())
    sample["tokens"] = TOKENS
    watch = processor._library.trainer_watch
    watch.argtypes, watch.restype = (ctypes.c_void_p, ctypes.c_longlong), ctypes.c_longlong
    watch(words.ctypes.data, len(words))
    cycles = int(processor.predict(sample)["cycles"][0])
    rows = words[: watch(None, 0)]
    bits = [(rows >> bit & 1)[stage:] for bit, stage in enumerate(stages)]  # by the cycle in which an iteration begins
    return {
        "about": "Signals of the kernel's Verilog while it runs a layer's program in Verilator, by unit. busy: the "
        "cycles in which it changes, from 0 on; ends: in which it is 1. Made by: make signals",
        "provenance": "proven",
        "sources": source_digest(),
        "layer": asdict(LAYER),
        "flow": FLOW,
        "tokens": TOKENS,
        "cycles": cycles,
        "signals": {
            name: {
                "busy": (np.flatnonzero(np.diff(busy)) + 1).tolist(),
                "ends": np.flatnonzero(ends).tolist(),
            }
            for name, ends, busy in zip(UNIT_NAMES, bits[::2], bits[1::2], strict=True)
        },
    }


def main() -> None:
    """Build the kernel in Verilator and write the record."""
    folder = Path(tempfile.mkdtemp(prefix="signals-"))
    files = write_kernel(analyse(SOURCE / UNIT), folder)
    subprocess.run(["make", "-C", TESTBENCH, f"BUILD={folder}", "-j2"], check=True)
    version = subprocess.run(["verilator", "--version"], capture_output=True, text=True, check=True).stdout.split()
    found = collect(NativeProcessor(folder / "trainer_rtl.so"), files["kernel_host.h"])
    write_file(RECORD, json.dumps(found | {"tool": " ".join(version[:2])}) + "\n")


if __name__ == "__main__":
    main()
