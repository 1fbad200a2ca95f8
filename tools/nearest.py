"""Train the same samples on the emulated card and in PyTorch on several kernels, and compare all with float64.

python tools/nearest.py [--samples N …] writes data/nearest.json and the table of docs/accelerator.md; without an
argument the table alone.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from pages import filled
from safetensors.numpy import load_file, save_file

from bttlab.util.files import write_file
from bttlab.util.places import ROOT

RECORD, PAGE = ROOT / "data" / "nearest.json", "docs/accelerator.md"
# PyTorch's own names of its kernels; more threads give the same bits
RUNS = {
    "the card": ("card", {}),
    "PyTorch, AVX-512": ("float32", {"ATEN_CPU_CAPABILITY": "avx512", "OMP_NUM_THREADS": "1"}),
    "PyTorch, AVX2": ("float32", {"ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "1"}),
    "PyTorch, no vectors": ("float32", {"ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "1"}),
    "float64": ("float64", {"OMP_NUM_THREADS": "1"}),
}
LEAST = 1e-9  # that a tensor moved: biases of keys have a gradient of 0, and move by rounding alone
KINDS = {
    "TT cores": lambda name: ".cores." in name and "embedding" not in name,
    "TTM cores": lambda name: ".cores." in name and "embedding" in name,
    "biases": lambda name: name.endswith(".bias") and "norm" not in name,
    "norms": lambda name: "norm" in name,
    "heads": lambda name: "_head.weight" in name,
}


def train(kind: str, samples: int, path: Path) -> None:
    """Train the 2-encoder model with SGD on the built-in corpus, and write its parameters before and after."""
    import torch

    from bttlab.data import load_corpus
    from bttlab.lab import Workload
    from bttlab.model import ModelConfig, Optimizer, initial_parameters
    from bttlab.model.reference import ReferenceTrainer

    config = ModelConfig()
    work = Workload.of(load_corpus("airline"), config)
    if kind == "card":
        from bttlab.card import EmulatedU50, open_trainer

        trainer = open_trainer(config, EmulatedU50())
    else:
        torch.set_default_dtype(getattr(torch, kind))
        trainer = ReferenceTrainer(config)
    start = initial_parameters(config, seed=0)
    trainer.load_parameters(start)
    trainer.train(work.train[work.order(samples)], Optimizer("sgd"), 4e-3)
    save_file({name: np.asarray(array, order="C") for name, array in trainer.store_parameters().items()}, path)


def measured(samples: int) -> dict[str, dict[str, float]]:
    """Train all on the first samples of the epoch, and return the rows of the table."""
    with TemporaryDirectory() as folder:
        ends = {}
        for name, (kind, environment) in RUNS.items():
            path = Path(folder, f"{len(ends)}.safetensors")
            call = [sys.executable, __file__, "--train", kind, "--samples", str(samples), "--into", str(path)]
            subprocess.run(call, env=os.environ | environment, check=True)
            ends[name] = {key: array.astype(np.float64) for key, array in load_file(path).items()}
    return rows(ends)


def rows(ends: dict) -> dict[str, dict[str, float]]:
    """Return by run and kind of parameters the distance to float64's, over the distance that training moved them."""
    from bttlab.model import ModelConfig, initial_parameters

    start = initial_parameters(ModelConfig(), seed=0)
    exact = ends.pop("float64")
    found = {}
    for name, end in ends.items():
        moved = {key: float(np.linalg.norm(exact[key] - start[key])) for key in exact}
        errors = {
            key: float(np.linalg.norm(end[key] - exact[key])) / length
            for key, length in moved.items()
            if length > LEAST
        }
        found[name] = {
            "all, median": float(np.median(list(errors.values()))),
            "all, worst": max(errors.values()),
            **{kind: float(np.median([errors[key] for key in errors if of(key)])) for kind, of in KINDS.items()},
        }
    return found


def table(record: dict) -> str:
    lines = []
    for samples, found in record["rows"].items():
        columns = list(next(iter(found.values())))
        lines += [[samples, name, *(f"{row[column]:.1e}" for column in columns)] for name, row in found.items()]
    lines = [["samples", "", *columns], ["---:", "---", *(["---:"] * len(columns))], *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write(root: Path = ROOT) -> None:
    """Write the table into the page of a folder."""
    page = root / PAGE
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    write_file(page, filled(page.read_text(encoding="utf-8"), {"nearest": table(record)}, PAGE))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, nargs="+")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        return train(options.train, *options.samples, options.into)
    if options.samples:
        record = {
            "about": f"Made by: python tools/nearest.py --samples {' '.join(map(str, options.samples))}",
            "provenance": "measured",
            "rows": {f"{samples:,}": measured(samples) for samples in options.samples},
        }
        write_file(RECORD, json.dumps(record, indent=1) + "\n")
    write()


if __name__ == "__main__":
    main()
