"""Collect scores of finished runs in a JSON record, and make the tables of docs/accuracy.md from it.

python tools/accuracy.py collect RUN… --record data/accuracy/atis.json
python tools/accuracy.py table data/accuracy/atis.json        # or data/published_scores.json
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from learning.table import provenance
from learning.table import table as table_of_modules
from pages import in_per_cent

from bttlab.baseline.receipt import OF_PYTORCH, SAME, ProgramUsed, Receipt, details_of, quantities_of
from bttlab.commands.train import RECIPES as RECIPES_FOLDER
from bttlab.model import ModelConfig
from bttlab.runs.checkpoint import CheckpointStore, tensors_digest
from bttlab.runs.metrics import MetricsLog
from bttlab.runs.record import RUN_FILE, read_run
from bttlab.util.errors import BttlabError
from bttlab.util.quantities import measured
from bttlab.util.terminal import say

SCORES = {"intent_accuracy": "intent", "slot_f1": "slot F1", "frame_accuracy": "frame"}
RECIPES = {path.stem for path in RECIPES_FOLDER.glob("*.toml")}
HOW = "measured: conlleval chunks by seqeval, on the splits as they are written"


class AccuracyError(BttlabError):
    """Runs or a record without the required scores."""


def collect(sources: Iterable[Path], record: dict[str, Any] | None = None, held_out: bool = False) -> dict[str, Any]:
    """Return a record of finished runs: folders of `bttlab train`, and records of `python tools/batches.py`.

    A run replaces one of the same model, recipe and seed in `record`. `held_out` leaves out test: for runs on folds
    (tools/folds.py), and for runs used to choose settings.
    """
    runs = {_key(run): run for run in record["runs"]} if record else {}
    for path in sources:
        run = _from_file(path) if path.is_file() else _from_folder(path)
        if held_out:
            del run["test"]
        runs[_key(run)] = run
    return {"how": HOW, "runs": list(runs.values())}


def _key(run: dict[str, Any]) -> tuple[Any, ...]:
    if "module" in run:
        return run["module"], run["device"], run["learning_rate"], run["seed"]
    return run["format"], run["encoders"], run["recipe"], run["seed"]


def _read(path: Path) -> dict[str, Any]:
    return details_of(path)


def write(path: Path, record: dict[str, Any], date: str | None = None) -> None:
    """Write a record as a receipt: a part for each run, with the command that repeats it if options name its model."""
    figures, parts, results, programs = {}, {}, {}, {}
    for run in record["runs"]:
        name = run_name(run)
        for split in ("dev", "test"):
            scores = run["epochs"][-1]["dev"] if split == "dev" else run.get("test", {})
            words = f"conlleval chunks by seqeval, on {run.get('device', 'PyTorch')}"
            found = {f"{name}.{split}.{key}": measured(scores[key], "1", words) for key in SCORES if key in scores}
            figures |= quantities_of(found, SAME if "parameters" in run else OF_PYTORCH)
        if "parameters" in run:
            results[name] = run["parameters"]
        if run.get("format") == "tensor" and "U50" in run.get("device", ""):
            config = ModelConfig(encoders=run["encoders"])
            used = ProgramUsed.of(config, "bidirectional", run.get("program", ""))
            programs[used.name, used.sha256] = used
            if run["recipe"] in RECIPES and run["corpus"] in ("atis", "snips"):
                options = {"--encoders": run["encoders"], "--data": run["corpus"], "--recipe": run["recipe"]}
                parts[name] = [
                    "train",
                    *(str(each) for pair in options.items() for each in pair),
                    "--seed",
                    str(run["seed"]),
                ]
    receipt = Receipt(
        title=f"accuracy: {path.stem}",
        command=["python", "tools/accuracy.py", "collect"],
        figures=figures,
        programs=list(programs.values()),
        results=results,
        dear="2 to 10 minutes a run",
        parts=parts,
        details=record,
    )
    (replace(receipt, date=date) if date else receipt).write(path, "--record")


def run_name(run: dict[str, Any]) -> str:
    """Return the name of a run's part in the receipt; it has no dot."""
    if "module" in run:
        return f"{run['module']} {run['corpus']} {run['learning_rate']:g} {run['device'][:12]} {run['seed']}".replace(
            ".", "_"
        )
    return f"{run['encoders']}-ENC {run['format']} {run['recipe']} {run['seed']}".replace(".", "_")


def _from_file(path: Path) -> dict[str, Any]:
    row = _read(path)
    if "test" not in row:
        raise AccuracyError(f"{path} has no scores of the test split; name a record of python tools/batches.py")
    return row


def _from_folder(folder: Path) -> dict[str, Any]:
    checkpoint, _ = CheckpointStore(folder).load()
    lines = MetricsLog(folder).lines
    tests = [line["test"] for line in lines if line.get("event") == "test"]
    if not tests:
        raise AccuracyError(f"{folder} is not finished; continue it with: bttlab train --resume {folder}")
    settings = checkpoint.settings
    program = read_run(folder).configuration.get("program.sha256") if (folder / RUN_FILE).is_file() else None
    return {
        **({"format": settings.config.format} if isinstance(settings.config, ModelConfig) else provenance(folder)),
        **settings.config.identity,
        "corpus": checkpoint.corpus.name,
        "recipe": Path(settings.recipe).stem if settings.recipe else None,
        "seed": settings.seed,
        "device": checkpoint.device,
        "decode_tags": settings.decode_tags,
        "epochs": [
            {"epoch": line["epoch"], "mean_loss": line["mean_loss"], "dev": line["dev"]}
            for line in lines
            if line.get("event") == "epoch"
        ],
        "test": tests[-1],
        "parameters": tensors_digest(checkpoint.parameters),
        **({"program": program} if program else {}),
    }


def groups(record: dict[str, Any]) -> dict[tuple[str, int, str], list[dict[str, Any]]]:
    runs: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for run in record["runs"]:
        runs.setdefault((run["format"], run["encoders"], run["recipe"]), []).append(run)
    return runs


def table(record: dict[str, Any]) -> str:
    """Return a record as a Markdown table in per cent: means over the seeds, deviation, and range of five or more."""
    if "module" in record["runs"][0]:
        return table_of_modules(record)
    splits = ["dev", "test"] if all("test" in run for run in record["runs"]) else ["held-out"]
    header = [f"{split} {name}" for split in splits for name in SCORES.values()]
    rows = [["model", "recipe", "epochs", "seeds", *header], ["---", "---", *["---:"] * (2 + len(header))]]
    for (kind, encoders, recipe), runs in groups(record).items():
        seeds = _seeds(sorted(run["seed"] for run in runs))
        scores = [[run["epochs"][-1]["dev"] for run in runs], [run.get("test") for run in runs]][: len(splits)]
        cells = [in_per_cent([one[name] for one in split]) for split in scores for name in SCORES]
        rows.append([f"{encoders}-ENC {kind}", f"`{recipe}`", str(len(runs[0]["epochs"])), seeds, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def published_table(models: Iterable[dict[str, Any]]) -> str:
    """Return published scores as a Markdown table: intent accuracy, slot F1 and frame accuracy on test, per cent."""
    rows = [["published", "pretrained", "ATIS", "SNIPS"], ["---", "---", "---:", "---:"]]
    for one in models:
        scores = [" / ".join(f"{score:.1f}" for score in one[corpus]) for corpus in ("atis", "snips")]
        rows.append([f"[{one['model']}]({one['source']})", "yes" if one["pretrained"] else "no", *scores])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _seeds(seeds: Sequence[int]) -> str:
    in_a_row = len(seeds) > 3 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]} to {seeds[-1]}" if in_a_row else " ".join(map(str, seeds))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Scores of runs.")
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect", help="add finished runs to a record, or begin one")
    collecting.add_argument("sources", nargs="+", type=Path, metavar="RUN")
    collecting.add_argument("--record", type=Path, required=True, metavar="FILE")
    collecting.add_argument("--held-out", action="store_true", help="leave out test: for folds and for tuning")
    printing = commands.add_parser("table", help="print a record, or published scores, as Markdown")
    printing.add_argument("record", type=Path)
    options = parser.parse_args(arguments)
    try:
        if options.command == "collect":
            before = _read(options.record) if options.record.exists() else None
            write(options.record, collect(options.sources, before, options.held_out))
            return 0
        record = _read(options.record)
        print(published_table(record["models"]) if "models" in record else table(record), end="")
    except (BttlabError, OSError, ValueError) as error:
        say(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
