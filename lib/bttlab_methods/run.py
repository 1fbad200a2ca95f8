"""Running a combination of methods: train, measure, score."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from threading import Event
from typing import Any

from bttlab.baseline.energy import EnergyWindow, find_meter
from bttlab.baseline.machine import load_average
from bttlab.data import encode
from bttlab.data.metrics import score
from bttlab.experiments.provenance import versions
from bttlab.model import predict_in_batches
from bttlab.quantities import measured
from bttlab_methods.memory import measure_memory
from bttlab_methods.method import Method
from bttlab_methods.setting import SCORED_AT_ONCE, MethodError, Setting
from bttlab_methods.training import OnBatch, Training, describe


@dataclass(frozen=True)
class Result:
    """Result of a run with some methods.

    Parameters
    ----------
    methods : str
        As `bttlab_methods.parse` takes it.
    corpus, encoders, samples, batch, seed, device
        The setting, as asked for.
    parameters, trained : int
        Numbers of the model, all and those that were trained.
    losses : list of float
        Mean loss of each batch, before its update.
    scores : dict
        By split, the fields of `bttlab.data.metrics.Scores`; measured.
    memory : dict
        As `measure_memory` returns it.
    seconds_per_epoch, joules_per_epoch : dict
        Figures; value null where nothing tells the energy.
    facts : dict
        What the methods say came out.
    load : list of float or None
        The machine's load averages (1, 5, 15 minutes) when it ended.
    versions : dict of str to str
    model : dict
        Fields of the model's configuration that are not the paper's.
    """

    methods: str
    corpus: str
    encoders: int
    samples: int
    batch: int
    seed: int
    device: str
    parameters: int
    trained: int
    losses: list[float]
    scores: dict[str, dict[str, Any]]
    memory: dict[str, Any]
    seconds_per_epoch: dict[str, Any]
    joules_per_epoch: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    load: list[float] | None = None
    versions: dict[str, str] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return asdict(self)


def run_methods(
    setting: Setting,
    methods: Sequence[Method],
    on_batch: OnBatch | None = None,
    stop: Event | None = None,
    splits: Sequence[str] = ("dev", "test"),
    on_training: Callable[[Training], None] | None = None,
) -> Result:
    """Train with a combination of methods, measure its time, energy and memory, and score it.

    Parameters
    ----------
    setting : Setting
    methods : sequence of Method
        From `bttlab_methods.parse`; none for dense training with AdamW.
    on_batch, stop
        As for `Training.run`.
    splits : sequence of {"dev", "test"}
        To score at the end.
    on_training : callable, optional
        Gets the run before its first step.

    Returns
    -------
    Result

    Raises
    ------
    MethodError
        If the methods do not combine, one does not run here, or a loss is not finite.
    """
    training = Training(setting, methods)
    if on_training is not None:
        on_training(training)
    losses: list[float] = []

    def noted(batch) -> None:
        losses.append(float(batch.mean()))
        if on_batch is not None:
            on_batch(batch)

    meter, reason = find_meter(training.device)
    window = None if meter is None else EnergyWindow(meter)
    if window is not None:
        training.aside = window.aside
    with window or nullcontext():
        training.run(noted, stop)
    if not training.count:
        raise MethodError("stopped before the first step: there is nothing to tell; train again")
    epochs = training.count / len(training.samples)
    energy = {"value": None, "unit": "J", "provenance": None, "how": reason}
    if window is not None:
        energy = measured(window.joules / epochs, "J", f"{meter.how}, idle power included")
    memory = measure_memory(training)
    facts = training.finish()
    return Result(
        methods=describe(methods),
        corpus=setting.corpus.name,
        encoders=setting.config.encoders,
        samples=training.count,
        batch=setting.batch,
        seed=setting.seed,
        device=setting.device,
        parameters=sum(parameter.numel() for parameter in training.model.parameters()),
        trained=sum(parameter.numel() for parameter in training.trained),
        losses=losses,
        scores={split: score_split(training, split) for split in splits},
        memory=memory,
        seconds_per_epoch=measured(training.seconds_spent / epochs, "s", training.clock),
        joules_per_epoch=energy,
        facts=facts,
        load=load_average(),
        versions=versions(),
        model=setting.own_sizes,
    )


def score_split(training: Training, split: str) -> dict[str, Any]:
    """Return the scores of a split, with the model as it is."""
    corpus, config = training.setting.corpus, training.setting.config
    samples = encode(corpus.split(split), training.vocabulary, corpus, config)
    return asdict(score(corpus, corpus.split(split), predict_in_batches(training.model, samples, SCORED_AT_ONCE)))
