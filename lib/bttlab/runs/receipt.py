"""The receipt of a finished run."""

from collections.abc import Sequence
from typing import Any

from bttlab.baseline.receipt import (
    OF_PYTORCH,
    READING,
    SAME,
    ProgramUsed,
    Receipt,
    ReceiptQuantity,
    quantities_of,
    settings_of,
)
from bttlab.model import ModelConfig, initial_parameters
from bttlab.runs.devices import OpenedTrainer
from bttlab.runs.record import read_run, versions
from bttlab.runs.run import Run, RunResult
from bttlab.util.digests import tensors_digest


def receipt_of_run(run: Run, opened: OpenedTrainer, result: RunResult, command: Sequence[str]) -> Receipt:
    """Return the receipt of a complete run of one of our models: scores, modelled figures, parameters."""
    settings, config = run.settings, run.settings.config
    assert isinstance(config, ModelConfig)
    record, on_card = read_run(run.folder), "program.sha256" in opened.provenance
    trainer: Any = opened.trainer
    programs = []
    if on_card:
        sums = trainer.program.sums
        programs = [ProgramUsed.of(config, settings.flow, opened.provenance["program.sha256"], sums)]
    return Receipt(
        title=f"{run.corpus_record.name}, {config.title}, {settings.optimizer.name}, {settings.epochs} epochs",
        command=list(command),
        figures=quantities_of_run(record.figures, SAME if on_card else OF_PYTORCH),
        programs=programs,
        corpora={run.corpus_record.name: run.corpus_record.sha256},
        initial=tensors_digest(initial_parameters(config, settings.seed)),
        settings=settings_of(
            config,
            optimizer=settings.optimizer.name,
            batch_size=settings.optimizer.batch_size,
            learning_rate=settings.learning_rate,
            seed=settings.seed,
            epochs=settings.epochs,
            samples=settings.samples,
            flow=settings.flow,
        ),
        versions=versions(),
        results={"parameters": result.parameters_sha256} if on_card else {},
    )


def quantities_of_run(figures: Any, of_scores: float) -> dict[str, ReceiptQuantity]:
    """Return a run's figures with what repeats: scores and what is modelled, not the time of this computer."""
    readings = {
        name: one for name, one in figures.items() if one["unit"] in ("s", "J") and one["provenance"] == "measured"
    }
    modelled = {name: one for name, one in figures.items() if one["provenance"] == "modelled"}
    scores = {name: one for name, one in figures.items() if name not in (*readings, *modelled)}
    return quantities_of(scores, of_scores) | quantities_of(modelled, SAME) | quantities_of(readings, READING)
