"""A race: the card, PyTorch here and recorded GPUs train one model in one order until the dev split has a slot F1."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field

from bttlab.baseline import Record
from bttlab.baseline.energy import find_meter
from bttlab.baseline.gpus import GpuError, find_gpu
from bttlab.baseline.machine import machine_of, open_device
from bttlab.baseline.memory import measure_memory
from bttlab.baseline.receipt import OF_PYTORCH, READING, SAME, ProgramUsed, Receipt, quantities_of, settings_of
from bttlab.baseline.run import samples_digest
from bttlab.baseline.step import Task
from bttlab.data import Corpus, Samples, Vocabulary, encode, epoch_order, load_corpus
from bttlab.estimate.card import estimate
from bttlab.estimate.constants import MODEL_VERSION
from bttlab.estimate.gpu import MODEL_VERSION as GPU_VERSION
from bttlab.estimate.gpu import batch_figures, model_step, typical_sample
from bttlab.model import ModelConfig, Optimizer, ReferenceTrainer, initial_parameters
from bttlab.model.choices import OptimizerName
from bttlab.runs.devices import open_trainer
from bttlab.runs.evaluation import predict, scores_of
from bttlab.runs.record import versions
from bttlab.runs.scores import SCORES
from bttlab.runs.settings import CorpusRecord
from bttlab.util.digests import tensors_digest
from bttlab.util.errors import BttlabError
from bttlab.util.places import ROOT
from bttlab.util.quantities import Quantity, measured
from bttlab.util.settings import Count, settings

CARD, LIVE = "card", ("card", "cpu", "cuda")
EXTRAPOLATED = "extrapolated"  # provenance of a record's steps times their mean
RECORDS = ROOT / "data" / "baselines"
Band = tuple[float, float, float]  # low, likely, high
PROCESSOR_TIME = "time.thread_time of training on one thread: a busy machine or kernel does not lengthen it"


class RaceError(BttlabError):
    """Raised if a race cannot be run as it is set."""


@settings(RaceError, kw_only=True)
class RaceSetting:
    data: str = "airline"
    config: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerName = "adamw"
    learning_rate: float = Field(default=6e-4, gt=0)
    seed: Count = Field(default=0, ge=0)
    target: float = Field(default=0.8, gt=0, le=1)  # slot F1 on the dev split
    every: Count = Field(default=256, ge=1)  # samples between two scores
    most: Count = Field(default=20_000, ge=1)  # samples after which a racer gives up


@dataclass(frozen=True)
class Lap:
    """A racer after `samples` samples in all; time and energy since the start, without scoring."""

    samples: int
    seconds: float
    joules: Band | None
    loss: float  # mean of this lap's samples
    scores: dict[str, Any]  # on the dev split

    @property
    def slot_f1(self) -> float:
        return self.scores["slot_f1"]


@dataclass
class Racer:
    """What one racer has done so far."""

    name: str  # as in the setting: "card", "cpu", "cuda", or a record
    device: str
    time: Quantity  # of the last lap; its provenance and how are those of all
    energy: Quantity
    memory: Quantity
    counted: str  # what the memory counts: "on the chip", "tensors", "process"
    laps: list[Lap] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    programs: list[ProgramUsed] = field(default_factory=list)
    parameters: str = ""  # SHA-256 of the trained parameters, where their bits are promised
    done: bool = False

    def add(self, lap: Lap, losses: np.ndarray) -> None:
        self.laps.append(lap)
        self.losses += [float(f"{loss:.6g}") for loss in losses]
        self.time = Quantity(lap.seconds, "s", self.time.provenance or "measured", self.time.how)
        if lap.joules is not None:
            low, likely, high = lap.joules
            band = {"low": low, "high": high} if high > low else {}
            self.energy = Quantity(likely, "J", self.energy.provenance or "modelled", self.energy.how, **band)


class Race:
    """A race of several racers, one after the other; each on its own clock.

    Parameters
    ----------
    racers : sequence of str
        "card" (a U50, or the emulated one with modelled time), "cpu", "cuda", or recorded baselines of a GPU: the name
        of one in data/baselines, or the path of a file. A record has no losses to its end: it takes those of the first
        racer, which trains the same model in the same order. Its time and energy are extrapolated from its own mean
        step, which may be of another corpus, and are called so.
    setting : RaceSetting
        Corpus, model, rule, target.
    trainer : optional
        The trainer of a card that is in use here, for "card"; by default one is opened.

    Raises
    ------
    RaceError
        If no racer trains, or a record is not of the race's model.
    """

    def __init__(self, racers: Sequence[str], setting: RaceSetting, trainer: Any = None):
        if len(set(racers)) < len(racers) or not racers:
            raise RaceError(f"racers {', '.join(racers) or 'none'}: name each once, of {', '.join(LIVE)} and records")
        if racers[0] not in LIVE:
            raise RaceError(f"racer {racers[0]}: the first one trains, so it is one of {', '.join(LIVE)}")
        self.setting, self.names = setting, list(racers)
        self.corpus: Corpus = load_corpus(setting.data)
        config = setting.config
        vocabulary = Vocabulary.from_sentences(self.corpus.train.words, config.vocabulary_size)
        self._train, self._dev = (
            encode(split, vocabulary, self.corpus, config) for split in (self.corpus.train, self.corpus.dev)
        )
        self._records = {name: record_of(name, config) for name in racers if name not in LIVE}
        self._rule, self._trainer = Optimizer(setting.optimizer), trainer
        self._start = initial_parameters(config, setting.seed)
        self.racers: list[Racer] = []  # those that have started

    def run(self, on_lap: Callable[["Race"], None] = lambda race: None) -> list[Racer]:
        """Let all racers run to their end; `on_lap` is called after each lap."""
        for _ in self.laps():
            on_lap(self)
        return self.racers

    def laps(self) -> Iterator[Racer]:
        """Run the race; yield a racer after each of its laps."""
        for name in self.names:
            if name in LIVE:
                yield from self._train_racer(*(self._card() if name == CARD else self._pytorch(name)))
            else:
                yield from self._follow(name, self._records[name])

    def receipts(self) -> dict[str, Receipt]:
        """Return the receipt of each racer that is done. Each names the command that runs the racer alone."""
        return {racer.name: self._receipt(racer) for racer in self.racers if racer.done}

    def reached(self, racer: Racer) -> bool:
        return bool(racer.laps) and racer.laps[-1].slot_f1 >= self.setting.target

    # --- racers

    def _card(self) -> tuple[Racer, Any, Callable[[Samples, float], tuple[float, Band | None]]]:
        config, rule = self.setting.config, self._rule
        trainer: Any = self._trainer
        device = "the card of this process"
        if trainer is None:
            opened = open_trainer(config, "auto", optimizer=rule)
            trainer, device = opened.trainer, opened.device
        elif not trainer.has_program_for(config, optimizer=rule):
            trainer.load_program(config, optimizer=rule)
        from bttlab.card import EmulatedU50
        from bttlab.card.telemetry import board_power

        model = f"the U50 model {MODEL_VERSION}"
        longest = int(self._train.lengths.max())
        bytes_ = estimate(config, [longest], rule.name).memory.bytes
        memory = Quantity(bytes_, "bytes", "modelled", f"{model}: bytes on the chip that the program uses")
        emulated = isinstance(trainer.device, EmulatedU50)
        kind = "modelled" if emulated else "measured"
        time_of = f"{model}, 200 MHz" if emulated else "time.perf_counter around training"
        power_of = f"{model}: the whole board" if emulated else "the card's sensors, idle power included"
        program = trainer.program
        racer = Racer(
            CARD,
            "the emulated U50" if emulated else device,
            Quantity(0.0, "s", kind, time_of),
            Quantity(0.0, "J", kind, power_of),
            memory,
            "on the chip",
            programs=[ProgramUsed.of(config, "bidirectional", program.sha256, program.sums)],
        )
        of_length: dict[int, np.ndarray] = {}

        def meter(samples: Samples, seconds: float) -> tuple[float, Band | None]:
            if not emulated:
                watts = board_power(trainer.device)
                return seconds, (watts * seconds, watts * seconds, watts * seconds)
            total = np.zeros(4)
            for length, count in zip(*np.unique(samples.lengths, return_counts=True), strict=True):
                if length not in of_length:
                    one = estimate(config, [int(length)], rule.name)
                    joules = one.energy_at_clocks
                    of_length[length] = np.array([one.seconds_per_sample, joules.low, joules.value, joules.high])
                total += count * of_length[length]
            taken, low, middle, high = total.tolist()
            return taken, (low, middle, high)

        return racer, trainer, meter

    def _pytorch(self, name: str) -> tuple[Racer, Any, Callable[[Samples, float], tuple[float, Band | None]]]:
        device, config = open_device(name), self.setting.config
        if name == "cpu":
            torch.set_num_threads(1)  # at batch 1 a second one waits more than it works
        watts, reason = find_meter(device)
        energy = Quantity.missing("J", reason)
        if watts is not None:
            energy = Quantity.measured(0.0, "J", f"{watts.how}, read after each lap; idle power included")
        here = machine_of(device, [])
        longest = int(self._train.lengths.argmax())
        step = Task(config, "bidirectional", self._train[longest : longest + 1], 1e-3, 0, device)
        peak = measure_memory(step).peak
        state = len(self._rule.moments) * config.parameters_bytes
        memory = Quantity.measured(
            (peak.value or 0.0) + state, "bytes", f"{peak.how}; of SGD, {state:,} bytes of moments are added"
        )
        if name == "cuda":
            memory = process_of(here.name, config, self.corpus) or memory
        racer = Racer(
            name,
            f"PyTorch {here.torch} on {here.name}, eager{', one thread' if name == 'cpu' else ''}",
            Quantity.measured(0.0, "s", PROCESSOR_TIME if name == "cpu" else "time.perf_counter around training"),
            energy,
            memory,
            "process" if name == "cuda" and is_known(here.name) else "tensors",
        )

        def meter(samples: Samples, seconds: float) -> tuple[float, Band | None]:
            if watts is None:
                return seconds, None
            joules = watts.watts() * seconds
            return seconds, (joules, joules, joules)

        return racer, ReferenceTrainer(config, device=device), meter

    def _train_racer(self, racer: Racer, trainer: Any, meter: Callable) -> Iterator[Racer]:
        setting, total = self.setting, np.zeros(4)
        trainer.load_parameters(self._start)
        self.racers.append(racer)
        order = self._order()
        for first in range(0, setting.most, setting.every):
            samples = self._train[order[first : min(first + setting.every, setting.most)]]
            clock = time.thread_time if racer.name == "cpu" else time.perf_counter
            begin = clock()
            losses = trainer.train(samples, self._rule, setting.learning_rate)
            seconds, joules = meter(samples, clock() - begin)
            total += [seconds, *(joules or (0.0, 0.0, 0.0))]
            scores = scores_of(predict(trainer, self._dev, self.corpus), self.corpus, "dev", setting.config)
            sums = tuple(total[1:].tolist()) if joules is not None else None
            done = first + len(samples)
            racer.add(Lap(done, float(total[0]), sums, float(losses.mean(dtype=float)), scores), losses)
            racer.done = self.reached(racer) or done == setting.most
            if racer.done and racer.programs:
                racer.parameters = tensors_digest(trainer.store_parameters())
            yield racer
            if racer.done:
                return

    def _follow(self, name: str, record: Record) -> Iterator[Racer]:
        """Run a recorded GPU beside the first racer: its steps are that one's, their time and energy the record's."""
        leader, done, config = self.racers[0], record.measurement, self.setting.config
        step, joules = done.mean, done.energy.per_step
        is_same = samples_digest(self._train) == record.corpus.sha256
        of_corpus = f"{record.corpus.name}{'' if is_same else ', not on this corpus'}"
        steps = f"extrapolated from the mean step, measured on {of_corpus}: record of {record.date[:10]}, {record.best}"
        steps += "" if record.optimizer == self._rule.name else beside_rule(record, self._rule, self.corpus)
        racer = Racer(
            name,
            f"{record.machine.name}, mean step on {of_corpus}, in {record.best}, losses of {leader.name}",
            Quantity(0.0, "s", EXTRAPOLATED, f"{steps}; samples: {leader.name}'s"),
            Quantity.missing("J", joules.how)
            if joules.value is None
            else Quantity(0.0, "J", EXTRAPOLATED, f"{steps}; {joules.how}"),
            process_of(record.machine.name, config, self.corpus) or _peak_of(record, of_corpus, is_same),
            "process" if is_known(record.machine.name) else "tensors",
        )
        self.racers.append(racer)
        for number, lap in enumerate(leader.laps):
            taken = None if joules.value is None else joules.value * lap.samples
            band = None if taken is None else (taken, taken, taken)
            first = leader.laps[number - 1].samples if number else 0
            racer.add(
                Lap(lap.samples, (step.value or 0.0) * lap.samples, band, lap.loss, lap.scores),
                np.array(leader.losses[first : lap.samples]),
            )
            racer.done = number == len(leader.laps) - 1
            yield racer

    def _order(self) -> np.ndarray:
        """Return the indices of all samples, as `bttlab train` visits them."""
        epochs = -(-self.setting.most // len(self._train))
        orders = [epoch_order(len(self._train), self.setting.seed, epoch) for epoch in range(epochs)]
        return np.concatenate(orders)[: self.setting.most]

    # --- receipts

    def _receipt(self, racer: Racer) -> Receipt:
        setting, last = self.setting, racer.laps[-1]
        on_card = bool(self.racers[0].programs)
        repeats = SAME if on_card and racer.name not in ("cpu", "cuda") else OF_PYTORCH
        how = f"on the dev split, every {setting.every} samples, {racer.device}"
        counted = SAME if repeats == SAME else READING  # on another processor it may be a lap more or less
        steps = READING if racer.time.provenance == "measured" and racer.name in LIVE else SAME
        figures = quantities_of(
            {"samples": Quantity.measured(last.samples, "1", how).to_dict()}
            | {f"dev.{name}": measured(last.scores[name], "1", how) for name in SCORES if name in last.scores},
            counted,
        )
        figures |= quantities_of(
            {"first_loss": Quantity.measured(racer.laps[0].loss, "1", "mean of the first lap").to_dict()}, repeats
        )
        figures |= quantities_of({"seconds": racer.time.to_dict(), "joules": racer.energy.to_dict()}, steps)
        figures |= quantities_of(
            {"bytes": racer.memory.to_dict()}, OF_PYTORCH if racer.name in ("cpu", "cuda") else SAME
        )
        names = [racer.name] if racer.name in LIVE else [self.racers[0].name, racer.name]
        record = CorpusRecord.of(self.corpus, setting.config)
        return Receipt(
            title=f"Race to a dev slot F1 of {setting.target:.0%}: {racer.device}",
            command=["race", *names, *_options(setting)],
            figures=figures,
            programs=racer.programs or ([] if racer.name in LIVE else self.racers[0].programs),
            corpora={record.name: record.sha256},
            initial=tensors_digest(self._start),
            settings=settings_of(
                setting.config,
                **{name: getattr(setting, name) for name in ("optimizer", "learning_rate", "seed")},
                **{name: getattr(setting, name) for name in ("target", "every", "most")},
            ),
            versions=versions(),
            results={"parameters": racer.parameters} if racer.parameters else {},
            details={
                "reached": self.reached(racer),
                "laps": {
                    "samples": [lap.samples for lap in racer.laps],
                    "seconds": [lap.seconds for lap in racer.laps],
                    "joules": [list(lap.joules) if lap.joules else None for lap in racer.laps],
                    "loss": [lap.loss for lap in racer.laps],
                    "slot_f1": [lap.slot_f1 for lap in racer.laps],
                },
            },
        )


def record_of(name: str, config: ModelConfig) -> Record:
    """Return a recorded baseline by its name in data/baselines or its path; RaceError unless it is of the model."""
    path = RECORDS / f"{name}.json"
    record = Record.read(path if path.is_file() else Path(name))
    own, theirs = config.to_dict(), record.config
    others = [f"{field} {theirs.get(field)}, not {own[field]}" for field in own if theirs.get(field) != own[field]]
    if own != theirs or record.batch != 1:
        raise RaceError(
            f"record {name} is of {record.label_of()}{f' ({others[0]})' if others else ''}: the race is of "
            f"{config.title}, one sample a step; name another, or race without one: card cpu"
        )
    return record


def is_known(gpu: str) -> bool:
    """Return whether data/gpus.json has a GPU."""
    try:
        find_gpu(gpu)
    except GpuError:
        return False
    return True


def process_of(gpu: str, config: ModelConfig, corpus: Corpus) -> Quantity | None:
    """Return the modelled memory of a process that trains on a GPU, context and workspace included; None if unknown."""
    if not is_known(gpu):
        return None
    low, likely, high = model_step(find_gpu(gpu), "btt", "graphs", config, typical_sample(corpus, config)).process_bytes
    return Quantity(likely, "bytes", "modelled", f"the GPU model {GPU_VERSION}: context, workspace, tensors", low, high)


def _peak_of(record: Record, of_corpus: str, is_same: bool) -> Quantity:
    """Return the memory of a record at the peak of a step on its longest sample."""
    peak = record.memory.peak
    if is_same or peak.value is None:
        return peak
    return replace(peak, provenance=EXTRAPOLATED, how=f"of {record.memory.tokens} tokens on {of_corpus}: {peak.how}")


def beside_rule(record: Record, rule: Optimizer, corpus: Corpus) -> str:
    """Return words for what another rule than the record's would add to a step, by the model of that GPU."""
    config = ModelConfig(**record.config)
    sample = typical_sample(corpus, config)
    try:
        gpu = find_gpu(record.machine.name)
        rules = record.optimizer, rule.name
        times = [batch_figures(gpu, record.format, record.best, config, sample, name)[0][1] for name in rules]
    except GpuError:
        return f", of {record.optimizer}"
    return f", of {record.optimizer}: {rule.name} would take {100 * (times[1] / times[0] - 1):.0f} % more (modelled)"


def _options(setting: RaceSetting) -> list[str]:
    """Return the options of `bttlab race` that give a setting; a model is named by its encoders."""
    named = {
        "--data": setting.data,
        "--encoders": setting.config.encoders,
        "--optimizer": setting.optimizer,
        "--lr": f"{setting.learning_rate:g}",
        "--seed": setting.seed,
        "--target": f"{setting.target:g}",
        "--every": setting.every,
        "--most": setting.most,
    }
    return [str(each) for pair in named.items() for each in pair]
