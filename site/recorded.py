"""The data of the page of recorded runs, as JavaScript, from receipts in data/; its text is in recorded_runs.md."""

import json
import shutil
from pathlib import Path
from typing import Any

from bttlab.baseline.receipt import Receipt
from bttlab.baseline.record import Measurement, Record, load_records
from bttlab.data.epoch import EPOCH_SAMPLES
from bttlab.model import ModelConfig
from bttlab.util.quantities import Quantity

BASELINES, CARD, LOSSES, RACES = (
    Path("data", name) for name in ("baselines", "receipts/pages.json", "receipts/card_losses.json", "races")
)
DIGITS = 4  # significant digits of losses and seconds: more than a chart shows
SHOWN_MODES = ("eager", "graphs")
FLOWS = {"tt": "right_to_left", "btt": "bidirectional"}
FORMATS = {
    "dense": "dense matrices",
    "tt": "tensor trains, right to left (TT)",
    "btt": "tensor trains, bi-directional (BTT)",
}
PAGE = Path(__file__).with_name("recorded_runs.md")


def lay_out_recorded_runs(root: Path, tree: Path) -> bool:
    """Write the page and its data into Sphinx's sources; False if the checkout has no records."""
    if not all((root / part).exists() for part in (BASELINES, CARD, LOSSES, RACES)):
        return False
    shutil.copy(PAGE, tree / "recorded_runs.md")
    (tree / "extra").mkdir(exist_ok=True)
    text = json.dumps(recorded_runs(root), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    (tree / "extra" / "recorded_runs_data.js").write_text(f"window.recordedRuns = {text};\n")
    return True


def recorded_runs(root: Path) -> dict[str, Any]:
    """Return what the page shows.

    Numbers of one meaning are lists; a single one is a dict of its value, provenance ("by"), how, and band if it has
    one.
    """
    card, losses = Receipt.read(root / CARD), Receipt.read(root / LOSSES)
    runs = [
        _run(record, name)
        for record in load_records(root / BASELINES)
        for name in record.modes
        if name in SHOWN_MODES and record.format in FORMATS
    ]
    runs += [
        _card_run(encoders, kind, card, losses)
        for kind in FLOWS
        for encoders in sorted({int(name.partition("-")[0]) for name in losses.details["losses"]})
    ]
    return {
        "formats": FORMATS,
        "dates": {"card": card.date[:10], "losses": losses.date[:10]},
        "runs": runs,
        "race": [_race(Receipt.read(path)) for path in sorted((root / RACES).glob("*.json"))],
    }


def _run(record: Record, name: str) -> dict[str, Any]:
    mode: Measurement = record.modes[name]
    memory = record.memory
    parts = {
        category.replace("_", " "): share.at_peak.value
        for category, share in memory.categories.items()
        if share.at_peak.value
    }
    precision = "TF32" if "TF32" in record.setting else "FP32"
    device = record.machine.name
    batch = f"{record.batch} samples" if record.batch > 1 else "1 sample"
    return {
        "encoders": record.config["encoders"],
        "format": record.format,
        "device": device,
        "kind": record.machine.kind,
        "setting": f"{device}: {'CUDA graphs' if name == 'graphs' else name}, batches of {batch}, {precision}",
        "batch": record.batch,
        "losses": [_short(value) for value in mode.losses],
        "lossBy": "measured",
        "seconds": [_short(value) for value in mode.step_seconds],
        "secondsBy": "measured",
        "secondsHow": mode.median.how,
        "joules": _number(mode.energy.per_step),
        "memory": _number(memory.peak) | {"parts": parts},
        "parameters": ModelConfig(**record.config).parameters_bytes,
        "date": record.date[:10],
    }


def _card_run(encoders: int, kind: str, card: Receipt, losses: Receipt) -> dict[str, Any]:
    figures = {name: card.figures[f"{encoders}-ENC, {FLOWS[kind]}.{name}"] for name in ("seconds", "joules", "bytes")}
    seconds, joules, size = figures["seconds"], figures["joules"], figures["bytes"]
    found = losses.details["losses"][f"{encoders}-ENC, {kind}"]
    return {
        "encoders": encoders,
        "format": kind,
        "device": "emulated U50",
        "kind": "card",
        "setting": "emulated U50: 200 MHz, batches of 1 sample, FP32",
        "batch": 1,
        "losses": [_short(value) for value in found],
        "lossBy": "measured",
        "seconds": [_short(seconds.value / EPOCH_SAMPLES)] * len(found),
        "secondsBy": seconds.provenance,
        "secondsHow": f"{seconds.how}: an epoch's mean per sample",
        "joules": {
            "value": joules.value / EPOCH_SAMPLES,
            "low": joules.low / EPOCH_SAMPLES,
            "high": joules.high / EPOCH_SAMPLES,
            "by": joules.provenance,
            "how": f"{joules.how}: the whole board, an epoch's mean per sample",
        },
        "memory": {
            "value": size.value,
            "by": size.provenance,
            "how": f"{size.how}: bytes on the chip that the program uses",
            "parts": {"on the chip": size.value},
        },
        "parameters": ModelConfig(encoders=encoders).parameters_bytes,
        "date": losses.date[:10],
    }


def _race(receipt: Receipt) -> dict[str, Any]:
    laps, figures = receipt.details["laps"], receipt.figures
    energy = figures.get("joules")
    return {
        "device": receipt.title.partition(": ")[2],
        "samples": laps["samples"],
        "f1": [_short(value) for value in laps["slot_f1"]],
        "losses": [_short(value) for value in laps["loss"]],
        "f1By": figures["dev.slot_f1"].provenance,
        "seconds": [_short(value) for value in laps["seconds"]],
        "secondsBy": figures["seconds"].provenance,
        "joules": [band and [_short(value) for value in band] for band in laps["joules"]],
        "joulesBy": energy and energy.provenance,
        "date": receipt.date[:10],
    }


def _number(quantity: Quantity) -> dict[str, Any]:
    return {"value": quantity.value, "by": quantity.provenance, "how": quantity.how}


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
