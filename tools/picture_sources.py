"""What the pictures of docs/images are drawn from. Each says it in its text `Description`, so stale ones are found."""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from bttlab.baseline.receipt import Receipt, details_of
from bttlab.estimate.constants import MODEL_VERSION
from bttlab.util.places import ROOT

IMAGES = ROOT / "docs" / "images"
TEXT = "Description"
DIGITS = 16  # of a SHA-256
BENCHMARKS, RACES, METHODS = ROOT / "docs" / "benchmarks.json", ROOT / "data" / "races", ROOT / "data" / "methods"
LAYER_TOKENS, LAYER_FLOWS = 13, ("right_to_left", "bidirectional", (2, 2))  # of notebook 02


def of_programs(*flows: str) -> str:
    """Return the source of a picture of the lab: the 2-encoder model's programs that it shows."""
    from bttlab.compiler.program import Options, compile
    from bttlab.model import ModelConfig

    return _programs(compile(ModelConfig(), Options(flow)) for flow in flows)


def of_first_minute() -> str:
    """Return the source of notebook 00's dashboard: the program, and what it says of a GPU beside the card."""
    from bttlab.baseline.gpus import find_gpu
    from bttlab.data import Samples
    from bttlab.lab.comparison import BATCHES, gpu_over_card

    tokens = np.full((1, 13), 5, np.int32)
    one = Samples(tokens, np.full(1, 13, np.int32), np.zeros(1, np.int32), np.zeros_like(tokens))
    ratios = asdict(gpu_over_card(find_gpu("RTX-3090"), 2, one))
    said = [f"{value:.4g}" for value in (*ratios["energy"]["graphs"], *ratios["memory"], *ratios["blocks"])] + [BATCHES]
    return f"{of_programs('bidirectional')}; beside a GPU, {_digest(repr(said).encode())}"


def of_layer_programs() -> str:
    """Return the source of notebook 02's timeline: the programs of a layer."""
    from bttlab.compiler.layer import LayerShape, compile_layer
    from bttlab.model import ModelConfig

    model = ModelConfig()
    ranks = (model.linear_rank,) * 5
    shape = LayerShape(tuple(model.linear_out_modes), tuple(model.linear_in_modes), ranks)
    return _programs(compile_layer(shape, LAYER_TOKENS, flow) for flow in LAYER_FLOWS)


def of_benchmark(name: str, result: dict[str, Any] | None = None) -> str:
    """Return the source of a benchmark's picture: its part of the record."""
    result = details_of(BENCHMARKS)["benchmarks"][name] if result is None else result
    return f"{name} of docs/benchmarks.json, {_digest(json.dumps(result, sort_keys=True).encode())}"


def of_race() -> str:
    """Return the source of the race's picture: the receipts of its racers, as `bttlab race` names them."""
    from bttlab.commands.race import source_of

    return source_of(Receipt.read(path) for path in sorted(RACES.glob("*.json")))


def of_methods(*records: str) -> str:
    """Return the source of a picture of methods: the records that it shows."""
    return "; ".join(f"data/methods/{name}, {_digest((METHODS / name).read_bytes())}" for name in records)


SOURCES: dict[str, Callable[[], str]] = {
    "race": of_race,
    **{f"bench_{name}": (lambda name=name: of_benchmark(name)) for name in ("layer", "memory", "order", "step")},
    "methods_atis": lambda: of_methods("atis.json"),
    "methods_atis_tensor": lambda: of_methods("atis_tensor.json"),
    **{f"methods_{name}": lambda: of_methods("atis.json") for name in ("scatter", "experts_1", "experts_2")},
    "first_minute": of_first_minute,
    "teach": lambda: of_programs("bidirectional"),
    "schedule": of_layer_programs,
    **{f"film_{name}": lambda: of_programs("bidirectional") for name in ("begin", "forward", "peak", "backward")},
    "film_right_to_left": lambda: of_programs("right_to_left"),
}


def save(picture: Image.Image, name: str) -> None:
    """Write a picture of the lab with its source."""
    text = PngInfo()
    text.add_text(TEXT, SOURCES[name]())
    picture.save(IMAGES / f"{name}.png", optimize=True, pnginfo=text)


def stale(images: Path = IMAGES) -> list[str]:
    """Return the names of the pictures that are drawn from something else, or do not say from what."""
    found = []
    for path in sorted(images.glob("*.png")):
        with Image.open(path) as picture:
            said = picture.info.get(TEXT)
        if path.stem not in SOURCES or said != SOURCES[path.stem]():
            found.append(path.name)
    return found


def _programs(programs: Iterable[Any]) -> str:
    return f"programs {', '.join(program.sha256[:DIGITS] for program in programs)}; the U50 model {MODEL_VERSION}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGITS]
