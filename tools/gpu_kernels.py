"""Record the kernels of a training step of the paper's smallest model: python tools/gpu_kernels.py [FILE].

Panels of a modelled GPU then show at once. The sample is as long as the mean utterance of ATIS and of airline.
"""

import json
import sys
from pathlib import Path

import torch

from bttlab.baseline.run import FORMATS
from bttlab.data import load_corpus
from bttlab.estimate import gpu
from bttlab.model import ModelConfig
from bttlab.util.files import write_file


def record() -> dict:
    """Return the record: for each format the kernels (launches, operations, bytes) and the peak bytes of tensors."""
    config, steps = ModelConfig(), []
    sample = gpu.typical_sample(load_corpus("airline"), config)
    for name in FORMATS:
        kernels, peak = gpu.kernels_and_bytes(name, config, sample)
        rows = [[kernel.launches, kernel.flops, kernel.moved] for kernel in kernels]
        steps.append({"format": name, "tokens": int(sample.lengths[0]), "bytes": peak, "kernels": rows})
    return {"torch": torch.__version__.partition("+")[0], "steps": steps}


if __name__ == "__main__":
    write_file(Path(sys.argv[1]) if sys.argv[1:] else gpu.COUNTED, json.dumps(record()) + "\n")
