"""The part of an accuracy record that is of modules, and its table: the emulated card beside PyTorch, seed by seed."""

from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from pages import in_per_cent

from bttlab.baseline.machine import machine_of
from bttlab.runs.record import read_run

CARD = "the emulated U50"
SCORES = {"perplexity": "perplexity", "intent_accuracy": "intent accuracy, %"}
HEADER = [
    *("module", "recipe", "epochs", "seeds", "score on test", "emulated U50", "PyTorch"),
    "largest difference of a seed",
]


def provenance(folder: Path) -> dict[str, Any]:
    """Return where a module's run comes from. Collect it on the machine that it was trained on."""
    run = read_run(folder)
    settings = ("module_sha256", "optimizer", "learning_rate", "samples", "flow")
    return {
        **{name: run.configuration[name] for name in settings},
        "corpus_sha256": run.corpus["sha256"],
        "date": run.ended[:10],
        "processor": machine_of(torch.device("cpu"), []).cpu,
        "versions": {name: run.versions[name] for name in ("bttlab", "python", "torch", "numpy")},
    }


def table(record: dict[str, Any]) -> str:
    """Return a record as a Markdown table, without the runs that a learning rate was chosen by: these have no test."""
    rows = [HEADER, ["---", "---", *["---:"] * (len(HEADER) - 2)]]
    for module in dict.fromkeys(run["module"] for run in record["runs"]):
        rows.append(_row(module, [run for run in record["runs"] if run["module"] == module]))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def by_seed(runs: list[dict[str, Any]], score: str) -> tuple[list[int], list[float], list[float]]:
    """Return the seeds of a module's runs, and the scores on test by seed: on the card, and in PyTorch."""
    card, pytorch = {}, {}
    for run in runs:
        if "test" in run:
            (card if run["device"].startswith(CARD) else pytorch)[run["seed"]] = run["test"][score]
    seeds = sorted(card.keys() & pytorch.keys())
    return seeds, [card[seed] for seed in seeds], [pytorch[seed] for seed in seeds]


def score_of(run: dict[str, Any]) -> str:
    """Return the score that a module's runs are compared by."""
    return next(name for name in SCORES if name in run["epochs"][-1]["dev"])


def _row(module: str, runs: list[dict[str, Any]]) -> list[str]:
    score, finished = score_of(runs[0]), next(run for run in runs if "test" in run)
    seeds, card, pytorch = by_seed(runs, score)
    return [
        *(module, f"`{finished['recipe']}`", str(len(finished["epochs"])), " ".join(map(str, seeds)), SCORES[score]),
        *(_mean(card, score), _mean(pytorch, score)),
        _shown(max(abs(one - other) for one, other in zip(card, pytorch, strict=True)), score),
    ]


def _mean(values: list[float], score: str) -> str:
    if score != "perplexity":
        return in_per_cent(values)
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def _shown(value: float, score: str) -> str:
    return f"{value:.2f}" if score == "perplexity" else f"{100 * value:.1f}"
