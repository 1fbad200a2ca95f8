"""Measurements that other projects than Xia et al. published: data/cost/others, all of it published."""

import csv
from functools import cache

from bttlab.places import ROOT
from bttlab_cost.configuration import FineTuning
from bttlab_cost.xia2024 import Throughput

PROJECTS = ("qwen", "llm-foundry")
SHARDS = 8  # GPUs that share the optimizer's work in llm-foundry's runs
_SHAPES = {  # layers, hidden, heads, inner width, vocabulary, heads of keys and values
    "qwen-1.8b": (24, 2048, 16, 5504, 151_936, 0),
    "qwen-7b": (32, 4096, 32, 11_008, 151_936, 0),
    "qwen-14b": (40, 5120, 40, 13_696, 152_064, 0),
    "qwen-72b": (80, 8192, 64, 24_576, 152_064, 0),
    "mpt-1b": (24, 2048, 16, 8192, 50_368, 0),
    "mpt-3b": (32, 2560, 20, 10_240, 50_368, 0),
    "mpt-7b": (32, 4096, 32, 16_384, 50_368, 0),
    "mpt-13b": (40, 5120, 40, 20_480, 50_368, 0),
    "mpt-30b": (48, 7168, 56, 28_672, 50_368, 0),
}


@cache
def throughputs(project: str) -> list[Throughput]:
    """Return a project's throughputs, each of one micro-batch, of the runs that the model describes."""
    with (ROOT / "data" / "cost" / "others" / "throughput.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["project"] == project and _comparable(row)]
    return [
        Throughput(
            row["model"],
            project,
            row["gpu"],
            _configuration(row),
            int(row["batch"]),
            int(row["batch"]) * int(row["accumulation"]) / float(row["seconds_per_update"]),
        )
        for row in rows
    ]


def _comparable(row: dict[str, str]) -> bool:
    """Leave out Q-LoRA on GPTQ weights, and updates by DeepSpeed, which take 2 s at any length: no term has that."""
    return row["method"] != "qlora" and not (row["project"] == "qwen" and row["method"] == "full")


def _configuration(row: dict[str, str]) -> FineTuning:
    layers, hidden, heads, inner, vocabulary, narrow = _SHAPES[row["model"]]
    plain = row["model"].startswith("mpt")
    return FineTuning(
        layers,
        hidden,
        heads,
        1,
        1,
        inner,
        int(row["sequence"]),
        row["method"],
        64,
        vocabulary,
        key_value_heads=narrow,
        precision="bf16",
        checkpointing=row["checkpointing"] == "yes",
        mlp="plain" if plain else "gated",
        tied=plain,
        kernels="flash",
        accumulation=int(row["accumulation"]) * (SHARDS if row["project"] == "llm-foundry" else 1),
    )
