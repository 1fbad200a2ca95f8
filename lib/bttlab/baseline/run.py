"""A baseline: the model of the U50, the same samples in the same order, in every mode that the device has."""

import gc
import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event

import numpy as np
import torch
from pydantic import Field, InstanceOf

import bttlab
from bttlab.baseline.energy import Aside, Meter, find_meter, idle_power, metered
from bttlab.baseline.machine import load_average, machine_of, open_device, out_of_memory, plain
from bttlab.baseline.memory import device_memory, measure_memory
from bttlab.baseline.modes import modes_of, prepare
from bttlab.baseline.record import FORMATS, VERSION, CorpusUsed, Measurement, Record
from bttlab.baseline.step import Task
from bttlab.baseline.timing import OnStep, clock_of, timed_steps
from bttlab.data import Samples, Vocabulary, encode, epoch_order, load_corpus
from bttlab.model import LEARNING_RATES, ModelConfig, ModuleConfig, Transformer
from bttlab.util.errors import BttlabError
from bttlab.util.quantities import Quantity
from bttlab.util.settings import settings

MODULE = "module"  # name of the baseline of a module of the user's own
MOST_STEPS = 10**7
MOST_SAMPLES = 4096  # in a batch
COMPARED_STEPS = 50  # of a mode with eager: later on, differences of rounding have grown
TOLERANCE = 1e-2  # of a loss, relative


@settings(BttlabError)
class BaselineSetting:
    """Settings of a baseline.

    Parameters
    ----------
    format : {"dense", "tt", "btt", "module"}
        "tt" is tensor-compressed and contracted right to left, "btt" bi-directionally; "module" is a `ModuleModel` as
        it is.
    device : {"cpu", "cuda"}
        Where PyTorch trains.
    config : ModelConfig or ModuleModel
        By default the paper's with 2 encoders; a `ModelConfig`'s own format plays no part.
    data : str or path
        Name or folder of the corpus.
    steps : int
        To measure.
    warmup : int
        Steps before these that train on the same samples and are then undone.
    seed : int
        Of the initial parameters and of the order of samples, as on the U50.
    learning_rate : float
        Of SGD.
    modes : list of str, optional
        Some of `modes_of(device)`; by default all.
    batch : int
        Samples per step, all of one length; the loss is their mean. A module takes 1.

    Raises
    ------
    BttlabError
        If a value breaks a rule.
    """

    format: str
    device: str
    config: InstanceOf[ModelConfig] | InstanceOf[ModuleConfig] = field(default_factory=ModelConfig)
    data: str | Path = "airline"
    steps: int = Field(default=500, ge=1, le=MOST_STEPS)
    warmup: int = Field(default=20, ge=0, le=MOST_STEPS)
    seed: int = Field(default=0, ge=0)
    learning_rate: float = Field(default=LEARNING_RATES["sgd"], ge=0)
    modes: list[str] | None = None
    batch: int = Field(default=1, ge=1, le=MOST_SAMPLES)

    def __post_init__(self) -> None:
        variant(self.config, self.format)
        if self.batch > 1 and isinstance(self.config, ModuleConfig):
            raise BttlabError(f"batch is {self.batch}: a module is trained one sample at a time; leave --batch out")


def variant(config: ModelConfig | ModuleConfig, format: str) -> tuple[ModelConfig | ModuleConfig, str | None]:
    """Return a model in a format, and the order of contraction in its TT layers; a module is left as it is.

    Raises BttlabError if the model has no such format.
    """
    if isinstance(config, ModuleConfig):
        if format != MODULE:
            raise BttlabError(f"format {format!r}: a module is trained as it is; leave --format out")
        return config, "bidirectional"
    if format not in FORMATS:
        raise BttlabError(f"format {format!r}: choose one of {', '.join(FORMATS)}")
    kind, flow = FORMATS[format]
    return replace(config, format=kind), flow


@dataclass(frozen=True)
class Listener:
    """Callbacks of a baseline, called in its thread; another thread may stop it. The defaults do nothing.

    Parameters
    ----------
    on_step : callable, optional
        Gets step, loss and seconds, in every mode; on a GPU some 25 steps at a time.
    on_mode : callable, optional
        Gets the name of each mode before its preparation, which may take a minute.
    stop : threading.Event
        If another thread sets it, the baseline ends after the current step; the record has what was measured.
    evaluate : callable, optional
        Gets the number of steps taken and the model, as soon as one of the counts in `evaluate_at` is reached, in
        every mode; on a GPU after some 25 steps at most. Its time and energy count for no step.
    evaluate_at : sequence of int
        Numbers of steps, ascending.
    """

    on_step: OnStep | None = None
    on_mode: Callable[[str], None] | None = None
    stop: Event = field(default_factory=Event)
    evaluate: Callable[[int, Transformer], None] | None = None
    evaluate_at: Sequence[int] = ()


@dataclass(frozen=True)
class _Plan:
    device: torch.device
    build: Callable[[Samples], Task]
    samples: Samples  # of all steps, in order
    warmup: int
    meter: Meter | None
    no_meter: str
    idle: Quantity
    listener: Listener


def run_baseline(setting: BaselineSetting, listener: Listener | None = None) -> Record:
    """Train with PyTorch by SGD in FP32 and measure time, memory and energy.

    Parameters
    ----------
    setting : BaselineSetting
        Model, device and number of steps.
    listener : Listener, optional
        What to call during the baseline.

    Returns
    -------
    Record
        Measured time, memory and energy of each mode, with the machine's description.

    Raises
    ------
    BttlabError
        If the device is not here or too small, there is no such corpus or mode, the learning rate is too high, or the
        baseline was stopped before its first step.
    """
    config, flow = variant(setting.config, setting.format)
    where = open_device(setting.device)
    names = _check_modes(setting.modes, where.type)
    steps, seed = setting.steps, setting.seed
    corpus, every = training_samples(setting.data, config)
    load_before = load_average()
    meter, no_meter = find_meter(where)
    try:
        idle = idle_power(meter, no_meter)
        longest = np.flatnonzero(every.lengths == every.lengths.max())
        batches = _batches(every.lengths, setting)
        options = {"learning_rate": setting.learning_rate, "seed": seed, "device": where, "batch": setting.batch}
        build = partial(Task, config, flow or "bidirectional", **options)
        _release(where)
        memory = measure_memory(build(every[np.resize(longest, setting.batch)]))
        samples, listener = every[batches.ravel()], listener or Listener()
        plan = _Plan(where, build, samples, setting.warmup, meter, no_meter, idle, listener)
        measured, skipped = _run_modes(plan, names)
    except torch.OutOfMemoryError as error:
        raise BttlabError(out_of_memory(error)) from None
    if not measured:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise BttlabError(f"no mode gave a measurement ({reasons}); nothing is recorded")
    return Record(
        version=VERSION,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        bttlab=bttlab.__version__,
        machine=machine_of(where, load_before),
        format=setting.format,
        flow=flow,
        config=config.to_dict(),
        corpus=corpus,
        optimizer="sgd",
        learning_rate=setting.learning_rate,
        seed=seed,
        steps=steps,
        warmup=setting.warmup,
        idle_power=idle,
        memory=memory,
        modes=measured,
        skipped=skipped,
        best=min(measured, key=lambda name: measured[name].median.value),
        batch=setting.batch,
    )


def _check_modes(modes: Sequence[str] | None, device: str) -> list[str]:
    offered = modes_of(device)
    for name in modes or ():
        if name not in offered:
            raise BttlabError(f"mode {name!r}: {device} has {', '.join(offered)}")
    return [name for name in offered if modes is None or name in modes]  # eager first, which the others agree with


def training_samples(data: str | os.PathLike, config: ModelConfig | ModuleConfig) -> tuple[CorpusUsed, Samples]:
    """Return the training samples of a corpus, and their digest."""
    corpus = load_corpus(data)
    vocabulary = Vocabulary.from_sentences(corpus.train.words, config.vocabulary_size)
    samples = encode(corpus.train, vocabulary, corpus, config)
    return CorpusUsed(corpus.name, len(samples), samples_digest(samples)), samples


def samples_digest(samples: Samples) -> str:
    """Return the SHA-256 of encoded samples, as a record's `CorpusUsed` has it."""
    digest = hashlib.sha256()
    for each in fields(samples):
        digest.update(np.ascontiguousarray(getattr(samples, each.name), "<i4"))
    return digest.hexdigest()


def _batches(lengths: np.ndarray, setting: BaselineSetting) -> np.ndarray:
    """Return the indices of each step's samples, (steps, batch): in the order of epochs, each batch of one length."""
    waiting: defaultdict[int, list[int]] = defaultdict(list)
    batches: list[list[int]] = []
    for epoch in count():
        for index in epoch_order(len(lengths), setting.seed, epoch).tolist():
            length = int(lengths[index])
            waiting[length].append(index)
            if len(waiting[length]) == setting.batch:
                batches.append(waiting.pop(length))
            if len(batches) == setting.steps:
                return np.array(batches)
    raise AssertionError("epochs have no end")


def _run_modes(plan: _Plan, names: list[str]) -> tuple[dict[str, Measurement], dict[str, str]]:
    measured: dict[str, Measurement] = {}
    skipped: dict[str, str] = {}
    for name in names:
        if plan.listener.stop.is_set():
            skipped[name] = "stopped before it began"
            continue
        if plan.listener.on_mode is not None:
            plan.listener.on_mode(name)
        try:
            mode = _measure(plan, name, measured.get("eager"))
        except Exception as error:
            if name == "eager":  # no other mode would do better
                raise
            # an operation that cannot be captured, too little memory: what eager gave stands
            skipped[name] = out_of_memory(error) if isinstance(error, torch.OutOfMemoryError) else plain(error)
            continue
        if mode is None:
            skipped[name] = "stopped before its first step"
        elif mode.difference.value is not None and mode.difference.value > TOLERANCE:
            skipped[name] = f"its losses differ from eager's by {mode.difference.value:.1e} relative: not the same run"
        else:
            measured[name] = mode
    return measured, skipped


def _measure(plan: _Plan, name: str, eager: Measurement | None) -> Measurement | None:
    """Measure a mode; None if it was stopped before its first step."""
    listener, stop = plan.listener, plan.listener.stop
    _release(plan.device)
    task = plan.build(plan.samples)  # its own: nothing of the mode before shares its memory or its streams
    step = prepare(task, name, stop)
    task.rewind()
    for index in range(min(plan.warmup, len(task))):
        if stop.is_set():
            return None
        step(index)
    task.restart()
    clock = clock_of(plan.device)
    clock.begin()
    clock.read()  # waits for the device
    traces: tuple[list[float], list[float]] = ([], [])

    pending = list(listener.evaluate_at) if listener.evaluate else []

    def timed(aside: Aside) -> int:
        def between(taken: int) -> None:
            if pending and taken >= pending[0]:
                pending[:] = [count for count in pending if count > taken]
                with aside():
                    listener.evaluate(taken, task.model)

        nonlocal traces
        traces = timed_steps(task, step, clock, listener.on_step, stop, between)
        return len(traces[0])

    def go_on() -> int:
        return 0 if stop.is_set() else _again(task, step, clock)

    energy = metered(plan.meter, plan.no_meter, plan.idle, timed, go_on)
    seconds, losses = traces
    if not seconds:
        return None
    allocated, reserved = device_memory(plan.device)
    lower, median, upper = np.percentile(seconds, (25, 50, 75)).tolist()
    in_seconds = partial(Quantity.measured, unit="s", how=clock.how)
    return Measurement(
        losses=[float(f"{loss:.8g}") for loss in losses],
        step_seconds=[float(f"{value:.6g}") for value in seconds],
        median=in_seconds(median),
        lower_quartile=in_seconds(lower),
        upper_quartile=in_seconds(upper),
        mean=in_seconds(float(np.mean(seconds))),
        difference=_difference(losses, eager),
        allocated=allocated,
        reserved=reserved,
        energy=energy,
    )


def _release(device: torch.device) -> None:
    """Give back what ran before on the device, cuBLAS's workspaces of each stream too, and forget its peaks."""
    if device.type == "cuda":
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _again(task: Task, step: Callable[[int], None], clock) -> int:
    task.rewind()
    clock.begin()
    for index in range(len(task)):
        step(index)
    clock.read()
    return len(task)


def _difference(losses: list[float], eager: Measurement | None) -> Quantity:
    if eager is None:
        return Quantity.missing("relative", "this is eager, or eager was not run")
    pairs = list(zip(losses, eager.losses, strict=False))[:COMPARED_STEPS]
    largest = max(abs(loss - other) / max(abs(other), 1e-6) for loss, other in pairs)
    return Quantity.measured(largest, "relative", f"largest of the first {len(pairs)} losses against eager's")
