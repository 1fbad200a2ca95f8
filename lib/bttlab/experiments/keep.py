"""Keeping runs: the record of a training from its beginning to its end, baselines, and estimates."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bttlab.errors import BttlabError
from bttlab.experiments.curves import figures_of, read_metrics
from bttlab.experiments.index import RunIndex, runs_folder
from bttlab.experiments.provenance import git_state, versions
from bttlab.experiments.record import COMPLETE, FAILED, LATEST, RUN_FILE, STOPPED, RunRecord, read_run
from bttlab.figures import measured, to_json
from bttlab.model.config import PAPER_FLOW
from bttlab.terminal import say

OnRecord = Callable[[RunRecord, Path], None]


@contextmanager
def kept(
    folder: Path,
    settings,
    corpus,
    device: str,
    on_record: OnRecord | None,
    provenance: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[RunRecord]:
    """Keep the record of a training in its folder, from now to the end of the context.

    A record that is there already, of the run's earlier part, is continued. A record that cannot be written does not
    stop the training: the checkpoint, without which a run is lost, says so itself.

    Parameters
    ----------
    folder : path
    settings : bttlab.train.RunSettings
    corpus : bttlab.train.CorpusRecord
    device : str
        In words.
    on_record : callable, optional
        Gets the record and the folder before each time that it is written; may add to it.
    provenance : mapping of str to str
        What the device runs; part of the configuration.
    """
    record = continued(folder) or RunRecord("training", folder.name, {}, device)
    record.configuration, record.device, record.checkpoint = flat(settings) | dict(provenance), device, LATEST
    record.corpus = {"name": corpus.name, "sha256": corpus.sha256}
    record.versions, record.git = versions(), git_state()
    record.status, record.error, record.ended = "running", "", ""

    def write() -> None:
        record.figures |= figures_of(read_metrics(folder), device)
        if on_record is not None:
            on_record(record, folder)
        try:
            record.write(folder)
        except OSError as error:
            say(f"bttlab: note: {folder / RUN_FILE} is not written ({error.strerror})")

    write()
    try:
        yield record
        record.end(COMPLETE if record.status != STOPPED else STOPPED)
    except BaseException as error:
        record.end(FAILED, str(error) if isinstance(error, BttlabError) else f"{type(error).__name__}: {error}")
        raise
    finally:
        write()


def continued(folder: Path) -> RunRecord | None:
    """Return the record of a run's earlier part, if it can be read."""
    try:
        return read_run(folder)
    except BttlabError:
        return None


def flat(settings) -> dict[str, Any]:
    """Return a run's settings as one level of keys: those of the model, of the optimizer and of the run itself.

    What belongs together keeps its name before a point, such as "schedule.warmup".
    """
    values = settings.to_dict()
    optimizer = values.pop("optimizer")
    name = optimizer.pop("name")
    used = {"sgd": (), "momentum": ("momentum",)}.get(name, ("beta1", "beta2", "epsilon", "weight_decay"))
    configuration = values.pop("config") | {"optimizer": name} | {key: optimizer[key] for key in used}
    for key, value in values.items():
        parts = {f"{key}.{part}": one for part, one in value.items()} if isinstance(value, dict) else {key: value}
        configuration |= parts
    return configuration


def entering(config, lengths, optimizer: str, flow: str = PAPER_FLOW) -> OnRecord:
    """Return what puts a training into the user's index, with what the model of the U50 says of it.

    Parameters
    ----------
    config : ModelConfig
    lengths : ndarray of int
        Real tokens of the training split's samples.
    optimizer, flow : str
        Update rule, and order of contraction.
    """
    estimate = _estimated(config, lengths, optimizer, flow)

    def on_record(record: RunRecord, folder: Path) -> None:
        if estimate is not None:
            record.figures |= card_figures(estimate) | _energy(estimate, record)
        enter(record, folder)

    return on_record


def _estimated(config, lengths, optimizer: str, flow: str):
    """What the model of the U50 says; None where it is not installed or does not cover the model."""
    try:
        from bttlab.estimate.card import estimate

        return estimate(config, lengths, optimizer, flow)
    except (ModuleNotFoundError, BttlabError):
        return None


def _energy(estimate, record: RunRecord) -> dict[str, dict[str, Any]]:
    """The modelled energy of all that a run has trained on so far, on a U50."""
    from bttlab.card.constants import modelled

    if "samples" not in record.figures:
        return {}
    band = estimate.energy_per_sample.scaled(record.figures["samples"]["value"])
    return {"u50.joules": {"value": band.mid, "low": band.low, "high": band.high} | modelled("J")}


def enter(record: RunRecord, folder: Path) -> None:
    """Put a run into the user's index; where that cannot be, a note says so, and the run goes on."""
    try:
        RunIndex().add(record, folder)
    except (BttlabError, OSError) as error:
        say(f"bttlab: note: the run is not in the index: {error}")


def keep_baseline(record, begun: str, name: str = "") -> None:
    """Keep a baseline (`bttlab.baseline.Record`) in the user's runs: its record whole, and its losses as a curve.

    Parameters
    ----------
    record : bttlab.baseline.Record
    begun : str
        As `bttlab.experiments.record.now` gave it before the first step.
    name : str, optional
    """
    mode = record.measurement
    run = RunRecord(
        "baseline",
        name or f"{record.corpus.name}-{record.format}-enc{record.config['encoders']}-{record.machine.kind}",
        record.config
        | {name: getattr(record, name) for name in ("optimizer", "learning_rate", "seed", "steps", "warmup")}
        | {"format": record.format, "flow": record.flow, "mode": record.best, "data": record.corpus.name},
        record.machine.name,
        begun=begun,
        corpus={"name": record.corpus.name, "sha256": record.corpus.sha256},
        versions=versions(),
        git=git_state(),
        figures={
            "seconds_per_step": asdict(mode.median),
            "joules_per_step": asdict(mode.energy.per_step),
            "memory_bytes": asdict(record.memory.peak),
        },
    )
    run.end(COMPLETE)
    _place(run, {"record.json": to_json(record.to_dict())})


def keep_methods(result, begun: str, learning_rate_factor: float = 1.0) -> None:
    """Keep a run of the methods lab (`bttlab.methods.Result`) in the user's runs.

    Parameters
    ----------
    result : bttlab.methods.Result
    begun : str
        As for `keep_baseline`.
    learning_rate_factor : float
        Of every method's learning rate, as the run was asked for.
    """
    configuration = {
        name: getattr(result, name) for name in ("methods", "encoders", "samples", "batch", "seed", "trained")
    }
    run = RunRecord(
        "methods",
        f"{result.corpus}-{result.methods}",
        configuration | {"data": result.corpus, "learning_rate_factor": learning_rate_factor},
        result.device,
        begun=begun,
        corpus={"name": result.corpus},
        versions=versions(),
        git=git_state(),
        figures=_method_figures(result),
    )
    run.end(COMPLETE)
    _place(run, {"result.json": to_json(result.to_dict())})


def _method_figures(result) -> dict[str, dict[str, Any]]:
    figures = {
        "memory_bytes": result.memory["peak"],
        "seconds_per_epoch": result.seconds_per_epoch,
        "joules_per_epoch": result.joules_per_epoch,
    }
    for split, scores in result.scores.items():
        for name in ("intent_accuracy", "slot_f1", "frame_accuracy"):
            figures[f"{split}.{name}"] = measured(scores[name], "1", f"score on {split}")
    return figures


def keep_estimate(estimate, corpus: Mapping[str, str], model_version: str) -> RunRecord:
    """Keep what the model of the U50 says (`bttlab.estimate.card.Estimate`); the same question is one run.

    Parameters
    ----------
    estimate : Estimate
    corpus : mapping
        "name" and, if it is one, "sha256" of what an epoch is.
    model_version : str
    """
    configuration = estimate.model.to_dict() | {
        "optimizer": estimate.optimizer,
        "flow": estimate.flow,
        "clock_mhz": estimate.clock_mhz,
        "data": corpus["name"],
    }
    run = RunRecord(
        "estimate",
        f"enc{estimate.model.encoders}-rank{estimate.model.linear_rank}-{estimate.flow}-{estimate.clock_mhz:g}MHz",
        configuration,
        f"a model of the U50 ({model_version})",
        id=digest_of({"kind": "estimate", "model": model_version, **configuration}),
        corpus=dict(corpus),
        versions=versions(),
        git=git_state(),
        figures=card_figures(estimate),
    )
    run.end(COMPLETE)
    _place(run, {"estimate.json": to_json(estimate.to_dict())})
    return run


def card_figures(estimate) -> dict[str, dict[str, Any]]:
    """Return what an `Estimate` says of time, energy and memory on a U50, as figures of a run."""
    from bttlab.card.constants import modelled

    energy = estimate.energy_per_epoch
    return {
        "u50.seconds_per_epoch": {"value": estimate.seconds_per_epoch} | modelled("s"),
        "u50.joules_per_epoch": {"value": energy.mid, "low": energy.low, "high": energy.high} | modelled("J"),
        "u50.memory_bytes": {"value": estimate.memory.bytes} | modelled("bytes"),
        "u50.lane_utilisation": {"value": estimate.lane_utilisation} | modelled("1"),
    }


def digest_of(values: Mapping[str, Any]) -> str:
    """Return twelve hexadecimal digits that equal values share, whatever their order."""
    import json

    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def _place(run: RunRecord, files: Mapping[str, str]) -> None:
    """Give a run a folder among the user's runs; where that cannot be, a note says so."""
    try:
        folder = runs_folder() / run.id
    except ModuleNotFoundError as error:  # a GPU's host needs torch and numpy alone
        say(f"bttlab: note: the run is not kept: {error.name} is not installed")
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text + "\n", encoding="utf-8")
        run.write(folder)
    except OSError as error:
        say(f"bttlab: note: the run is not kept: {folder}: {error.strerror}")
    else:
        enter(run, folder)
