"""Write the records of trainings, baselines, methods and estimates."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bttlab.model.choices import PAPER_FLOW
from bttlab.runs.curves import figures_of, read_metrics
from bttlab.runs.index import RunIndex, runs_folder
from bttlab.runs.provenance import git_state, versions
from bttlab.runs.record import COMPLETE, FAILED, LATEST, RUN_FILE, STOPPED, RunRecord, read_run
from bttlab.util.errors import BttlabError
from bttlab.util.files import write_file
from bttlab.util.quantities import measured, to_json
from bttlab.util.terminal import say

OnRecord = Callable[[RunRecord], None]  # called before run.json is written; may add to the record


@contextmanager
def record_run(
    folder: Path,
    settings,
    corpus,
    device: str,
    on_record: OnRecord | None,
    provenance: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[RunRecord]:
    """Write the record of a training into its folder, at the beginning and the end of the context.

    The record of the run's earlier part is continued. A record that cannot be written does not stop the training.

    Parameters
    ----------
    device : str
        Description.
    on_record : callable, optional
        Called with the record before each write; it may add to the record. The run is put into the
        user's index after each write. None: it is not.
    provenance : mapping of str to str
        Overlay and program of the device; part of the configuration.
    """
    record = previous_record(folder) or RunRecord("training", folder.name, {}, device)
    record.configuration, record.device, record.checkpoint = flat(settings) | dict(provenance), device, LATEST
    record.corpus = {"name": corpus.name, "sha256": corpus.sha256}
    record.versions, record.git = versions(), git_state()
    record.status, record.error, record.ended = "running", "", ""

    def write() -> None:
        record.figures |= figures_of(read_metrics(folder), device)
        if on_record is not None:
            on_record(record)
        try:
            record.write(folder)
        except OSError as error:
            say(f"bttlab: note: {folder / RUN_FILE} is not written ({error.strerror})")
        if on_record is not None:  # after the file: an index that is rebuilt meanwhile reads one or the other
            index_run(record, folder)

    write()
    try:
        yield record
        record.end(COMPLETE if record.status != STOPPED else STOPPED)
    except BaseException as error:
        record.end(FAILED, str(error) if isinstance(error, BttlabError) else f"{type(error).__name__}: {error}")
        raise
    finally:
        write()


def previous_record(folder: Path) -> RunRecord | None:
    """Return the record of a run's earlier part, or None."""
    try:
        return read_run(folder)
    except BttlabError:
        return None


def flat(settings) -> dict[str, Any]:
    """Return a run's settings in one level: the model's, the optimizer's and the run's keys.

    Nested settings have a point in their key, such as "schedule.warm_up".
    """
    values = settings.to_dict()
    optimizer = values.pop("optimizer")
    name = optimizer.pop("name")
    used = {"sgd": (), "momentum": ("momentum",)}.get(name, ("beta1", "beta2", "epsilon", "weight_decay"))
    used = *used, "batch_size"
    config = values.pop("config")
    config.pop("shapes", None)  # of a module's parameters: the checkpoint has them
    configuration = config | {"optimizer": name} | {key: optimizer[key] for key in used}
    for key, value in values.items():
        parts = {f"{key}.{part}": one for part, one in value.items()} if isinstance(value, dict) else {key: value}
        configuration |= parts
    return configuration


def u50_callback(config, lengths, optimizer: str, flow: str = PAPER_FLOW) -> OnRecord:
    """Return a callback for `Run.train` that adds what the model of the U50 says of a training to its record.

    Parameters
    ----------
    lengths : ndarray of int, or mapping of int to int
        Real tokens of the training split's samples, or how many there are of each length.
    optimizer, flow : str
        Update rule, and order of contraction.
    """
    estimate = _estimated(config, lengths, optimizer, flow)

    def on_record(record: RunRecord) -> None:
        if estimate is not None:
            record.figures |= card_figures(estimate) | _energy(estimate, record)

    return on_record


def _estimated(config, lengths, optimizer: str, flow: str):
    """Return the U50 estimate; None if it is not installed or does not cover the model."""
    try:
        from bttlab.estimate.card import estimate

        return estimate(config, lengths, optimizer, flow)
    except (ModuleNotFoundError, BttlabError):
        return None


def _energy(estimate, record: RunRecord) -> dict[str, dict[str, Any]]:
    """Return the modelled energy on a U50 of the samples so far."""
    from bttlab.card.constants import modelled

    if "samples" not in record.figures:
        return {}
    band = estimate.energy_per_sample.scaled(record.figures["samples"]["value"])
    return {"u50.joules": {"value": band.value, "low": band.low, "high": band.high} | modelled("J")}


def index_run(record: RunRecord, folder: Path) -> None:
    """Add a run to the user's index; print a note if that fails."""
    try:
        RunIndex().add(record, folder)
    except (BttlabError, OSError) as error:
        say(f"bttlab: note: the run is not in the index: {error}")


SCORES = ("intent_accuracy", "slot_f1", "frame_accuracy")


def keep_baseline(record, begun: str, name: str = "", dev: Mapping[str, float] | None = None) -> None:
    """Write a baseline into the user's runs.

    Parameters
    ----------
    record : bttlab.baseline.Record
    begun : str
        `now()` before the first step.
    name : str
        Of the run; by default made of corpus, format, encoders and device.
    dev : mapping of str to float, optional
        Scores on the dev split, at the end.
    """
    mode = record.measurement
    model = f"enc{record.config['encoders']}" if "encoders" in record.config else record.model
    run = RunRecord(
        "baseline",
        name or f"{record.corpus.name}-{record.format}-{model}-{record.machine.kind}",
        record.config
        | {name: getattr(record, name) for name in ("optimizer", "learning_rate", "seed", "steps", "warmup")}
        | {"format": record.format, "flow": record.flow, "mode": record.best, "data": record.corpus.name},
        record.machine.name,
        begun=begun,
        corpus={"name": record.corpus.name, "sha256": record.corpus.sha256},
        figures={
            "seconds_per_step": asdict(mode.median),
            "joules_per_step": asdict(mode.energy.per_step),
            "memory_bytes": asdict(record.memory.peak),
        }
        | {f"dev.{key}": measured(dev[key], "1", "score on dev") for key in SCORES if dev and key in dev},
    )
    _place(run, {"record.json": to_json(record.to_dict())})


def keep_methods(result, begun: str, learning_rate_factor: float = 1.0) -> None:
    """Write a result (`bttlab_methods.Result`) into the user's runs; the factor is that of all learning rates."""
    configuration = {
        name: getattr(result, name) for name in ("methods", "encoders", "samples", "batch", "seed", "trained")
    }
    figures = {
        "memory_bytes": result.memory["peak"],
        "seconds_per_epoch": result.seconds_per_epoch,
        "joules_per_epoch": result.joules_per_epoch,
    }
    for split, scores in result.scores.items():
        for name in SCORES:
            figures[f"{split}.{name}"] = measured(scores[name], "1", f"score on {split}")
    run = RunRecord(
        "methods",
        f"{result.corpus}-{result.methods}",
        configuration | result.model | {"data": result.corpus, "learning_rate_factor": learning_rate_factor},
        result.device,
        begun=begun,
        corpus={"name": result.corpus},
        figures=figures,
    )
    _place(run, {"result.json": to_json(result.to_dict())})


def keep_estimate(estimate, corpus: Mapping[str, str], model_version: str) -> RunRecord:
    """Write an estimate (`bttlab.estimate.card.Estimate`) into the user's runs; equal questions are one run."""
    configuration = estimate.model.to_dict() | {
        "optimizer": estimate.optimizer,
        "flow": estimate.flow,
        "clock_mhz": estimate.clock_mhz,
        "data": corpus["name"],
    }
    run = RunRecord(
        "estimate",
        f"{estimate.model.slug}-rank{estimate.model.linear_rank}-{estimate.flow}-{estimate.clock_mhz:g}MHz",
        configuration,
        f"a model of the U50 ({model_version})",
        id=digest_of({"kind": "estimate", "model": model_version, **configuration}),
        corpus=dict(corpus),
        figures=card_figures(estimate),
    )
    _place(run, {"estimate.json": to_json(estimate.to_dict())})
    return run


def card_figures(estimate) -> dict[str, dict[str, Any]]:
    """Return the time, energy and memory of an `Estimate` as figures of a run."""
    from bttlab.card.constants import modelled

    energy = estimate.energy_per_epoch
    return {
        "u50.seconds_per_epoch": {"value": estimate.seconds_per_epoch} | modelled("s"),
        "u50.joules_per_epoch": {"value": energy.value, "low": energy.low, "high": energy.high} | modelled("J"),
        "u50.memory_bytes": {"value": estimate.memory.bytes} | modelled("bytes"),
        "u50.lane_utilisation": {"value": estimate.lane_utilisation} | modelled("1"),
    }


def digest_of(values: Mapping[str, Any]) -> str:
    """Return twelve hexadecimal digits of the digest of values, in any order."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def _place(run: RunRecord, files: Mapping[str, str]) -> None:
    """Write a complete run into a folder of the user's runs; print a note if that fails."""
    run.versions, run.git = versions(), git_state()
    run.end(COMPLETE)
    try:
        folder = runs_folder() / run.id
    except ModuleNotFoundError as error:  # a GPU's host needs torch and numpy alone
        say(f"bttlab: note: the run is not kept: {error.name} is not installed")
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_file(folder / name, text + "\n")
        run.write(folder)
    except OSError as error:
        say(f"bttlab: note: the run is not kept: {folder}: {error.strerror}")
    else:
        index_run(run, folder)
