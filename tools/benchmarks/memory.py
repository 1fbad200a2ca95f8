"""Memory while training at batch 1: on the chip, in PyTorch on this CPU, and on GPUs whose runs were recorded."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.result import Result, Table, exact_ratio
from bttlab.baseline import load_records
from bttlab.baseline.memory import COUNTED, measure_memory
from bttlab.baseline.run import FORMATS
from bttlab.baseline.step import Task
from bttlab.data import Samples, Vocabulary, encode, load_corpus
from bttlab.model import ModelConfig
from bttlab.util.places import ROOT
from bttlab.util.quantities import column_metadata

ENCODERS = (2, 4, 6)
RECORDS = ROOT / "data" / "baselines"
ON_CHIP, ON_CHIP_ADAMW = "on chip (U50)", "on chip (U50), AdamW"
NAMES = {"btt": "PyTorch BTT", "tt": "PyTorch right to left", "dense": "PyTorch dense"}
NO_GPU = "No run on a GPU is recorded yet in data/baselines; bttlab baseline --device cuda --record FILE makes one."


def measure(corpus: str = "atis", encoders: Sequence[int] = ENCODERS, records: Path = RECORDS) -> Result:
    """Compare peak memory of a training step on the longest utterance; `records` has records of `bttlab baseline`."""
    rows, ratios = [], {}
    for count in encoders:
        chip, with_moments = (_on_chip(count, optimizer) for optimizer in ("sgd", "adamw"))
        rows.append({"encoders": count, "contender": ON_CHIP, "peak": chip})
        rows.append({"encoders": count, "contender": ON_CHIP_ADAMW, "peak": with_moments})
        for format, name in NAMES.items():
            kind, flow = FORMATS[format]
            config = ModelConfig(encoders=count, format=kind)
            task = Task(config, flow or "", _longest(corpus, config), 1e-3, 0, "cpu")
            peak = measure_memory(task).peak.value
            rows.append({"encoders": count, "contender": name, "peak": int(peak)})
            ratios[f"{count}-ENC: {name}"] = exact_ratio(peak, chip)
    gpus = _recorded(records)
    return Result(
        settings={"data": corpus, "optimizer": "sgd", "tokens": len(_longest(corpus, ModelConfig()).tokens[0])},
        figures={
            "peak": column_metadata(
                "bytes",
                "on chip: modelled; PyTorch on this CPU: measured; on a GPU: measured, from records",
                "on chip: words of the banks that the program touches for any utterance, and the machine's other "
                f"memories whole; PyTorch: {COUNTED}; GPU: peak of torch.cuda's allocator",
            )
        },
        rows=rows + gpus,
        ratios=ratios,
        notes=[] if gpus else [NO_GPU],
        programs=list(encoders),
    )


def _on_chip(encoders: int, optimizer: str) -> int:
    from bttlab.estimate.card import estimate

    return estimate(ModelConfig(encoders=encoders), optimizer=optimizer).memory.bytes


def _longest(corpus: str, config: ModelConfig) -> Samples:
    data = load_corpus(corpus)
    samples = encode(data.train, Vocabulary.from_sentences(data.train.words, config.vocabulary_size), data, config)
    index = int(samples.lengths.argmax())
    return samples[index : index + 1]


def _recorded(folder: Path) -> list[dict[str, Any]]:
    records = load_records(folder)
    return [
        {
            "encoders": record.config["encoders"],
            "contender": f"{NAMES[record.format]} on {record.machine.name}",
            "peak": int(record.measurement.allocated.value),
        }
        for record in records
        if record.machine.kind == "cuda" and not record.setting and record.measurement.allocated.value is not None
    ]


def tables(result: dict[str, Any]) -> list[Table]:
    """Return MB for each contender and number of encoders."""
    rows = result["rows"]
    encoders = list(dict.fromkeys(row["encoders"] for row in rows))
    peaks = {(row["contender"], row["encoders"]): row["peak"] for row in rows}
    lines = [
        [name, *(f"{peaks[name, count] / 1e6:,.2f}" if (name, count) in peaks else "-" for count in encoders)]
        for name in dict.fromkeys(row["contender"] for row in rows)
    ]
    return [Table("Peak memory of a training step in MB (10^6 bytes)", ["", *(f"{n}-ENC" for n in encoders)], lines)]
