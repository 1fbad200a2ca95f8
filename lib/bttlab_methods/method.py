"""The base class of methods: each changes some part of a training run."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import torch

from bttlab_methods.setting import MethodError, Setting
from bttlab_methods.training import Batch, Training

FAMILIES = (
    "tensor compression",
    "optimizers",
    "large batch",
    "initialisation",
    "sparse training",
    "parameter sharing",
    "incremental learning",
    "data",
    "memory",
    "parameter-efficient",
    "gradient compression",
    "subspaces",
    "low precision",
    "hardware view",
    "parallelism",
)


@dataclass(frozen=True)
class Method:
    """A way to train with less: a subclass overrides the hooks that it needs.

    A subclass with parameters is a frozen dataclass, whose fields they are; each has a default. The first line of its
    docstring says what it changes. Raises MethodError if a parameter lies outside its interval.
    """

    name: ClassVar[str]  # under which the command and the notebook know it
    family: ClassVar[str]  # one of `FAMILIES`
    source: ClassVar[str]  # the paper, with its equation or section
    # the parts of training that it needs for itself, such as "optimizer": two methods combine if these have nothing in
    # common
    changes: ClassVar[frozenset[str]]
    # names of methods, or parts that they change, with which it does not combine for another reason
    excludes: ClassVar[frozenset[str]] = frozenset()
    processes: ClassVar[int] = 1  # processes that share a run, as `bttlab_methods.library.parallel` has them
    ranges: ClassVar[tuple[str, ...]] = ()  # intervals of parameters, such as "share in (0, 1]" and "rank in [1, inf)"

    def __post_init__(self) -> None:
        for rule in self.ranges:
            name, _, interval = rule.partition(" in ")
            value, (low, high) = getattr(self, name), map(float, interval[1:-1].split(","))
            ends = [low] * (interval[0] == "[") + [high] * (interval[-1] == "]")  # which belong to the interval
            if not (low < value < high or value in ends):
                raise MethodError(f"method {self.name}: {name} is {value}: it must be in {interval}")

    # --- before training, in this order

    def change_setting(self, setting: Setting) -> Setting:
        """Return the setting with another model configuration, batch size or factor of the learning rate."""
        return setting

    def change_model(self, training: Training) -> None:
        """Change or replace `training.model`, which has its initial parameters and no optimizer yet."""

    def make_optimizer(self, training: Training) -> torch.optim.Optimizer | None:
        """Return an optimizer of `training.trained`, or None if this method leaves that to another.

        Its learning rate is the one of the dense model; the run's factor and schedule multiply it.
        """
        return None

    # --- while training

    def batches(self, training: Training, epoch: int) -> Iterable[Batch] | None:
        """Return an epoch's batches, or None for `training.epoch_batches`: those of all samples, of equal length."""
        return None

    def schedule(self, training: Training, progress: float) -> float:
        """Return the position in the learning rate's schedule, 0 to 1, when a part `progress` of the budget is used."""
        return progress

    def change_batch(self, training: Training, batch: Batch) -> Batch:
        """Return what a step is to learn from in place of a batch."""
        return batch

    def losses(self, training: Training, batch: Batch) -> torch.Tensor | None:
        """Return the losses of a batch's samples, shape (n,), or None to have them from `training.model`."""
        return None

    def objective(self, training: Training, loss: torch.Tensor) -> torch.Tensor:
        """Return what is minimised in place of the batch's loss, both of shape ()."""
        return loss

    def around_forward(self, training: Training) -> AbstractContextManager:
        """Return a context for the forward pass and the loss."""
        return nullcontext()

    def around_backward(self, training: Training) -> AbstractContextManager:
        """Return a context for the backward pass."""
        return nullcontext()

    def before_update(self, training: Training) -> None:
        """Act on the gradients."""

    def after_update(self, training: Training) -> None:
        """Act on the parameters, or on the model: `training.progress` says how much of the budget is used."""

    # --- at the end

    def finish(self, training: Training) -> dict[str, Any]:
        """Return facts about what came out, as JSON-ready values, such as the ranks; the model is then scored."""
        return {}

    # --- what it says of itself

    @classmethod
    def summary(cls) -> str:
        return cls.__doc__.split("\n")[0].strip()

    @classmethod
    def parameters(cls) -> dict[str, Any]:
        return {field.name: field.default for field in fields(cls)}

    def full_name(self) -> str:
        """Return its name and those parameters that are not at their defaults, as the command takes them."""
        defaults = self.parameters()
        other = [f"{key}={value}" for key, value in asdict(self).items() if value != defaults[key]]
        return f"{self.name}:{','.join(other)}" if other else self.name
