"""The protocol of trainers, which the PyTorch reference and the card's driver implement."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

from bttlab.model.config import ConfigError, ModelConfig, Optimizer
from bttlab.model.module import ModuleConfig
from bttlab.util.errors import BttlabError

# Limits that keep parameters and moments finite, as in the kernel (hls_src/processor).
STATE_LIMIT = 2.0**63  # of gradients, parameters and first moments
SQUARE_LIMIT = 2.0**127  # of second moments
RATE_LIMIT = 2.0**30  # of the learning rate
FACTOR_LIMIT = 2.0**60  # of AdamW's factors
MOMENTS = Optimizer("adamw").moments

# Error messages by fault.
FAULTS = {
    "loss": "the loss of {sample} is not finite",
    "state": "a parameter or moment before {sample} is not finite or too large",
    "gradient": "a gradient of {sample} is not finite or too large",
    "update": "the update by {sample} would not be finite",
}


class NumericalFault(BttlabError):
    """A number is not finite, or would not be after a sample's update, which is then left out.

    Parameters
    ----------
    fault : str
        Key of `FAULTS` for the number.
    sample : int
        Index of the sample in the call.
    losses : np.ndarray
        Float32, (sample,): losses of the samples before it, which have all been trained on.
    learning_rate : float
        Of the sample.
    """

    def __init__(self, fault: str, sample: int, losses: np.ndarray, learning_rate: float):
        super().__init__(
            f"{FAULTS[fault].format(sample=f'sample {sample}')} (learning rate {learning_rate:g}): training stopped "
            "before that sample changed the parameters; go on with a lower learning rate, or, if the parameters have "
            "grown too large, from earlier ones"
        )
        self.fault = fault
        self.sample = sample
        self.losses = losses
        self.learning_rate = learning_rate

    def at(self, sample: int, losses: np.ndarray) -> "NumericalFault":
        """Return the same fault with another sample index and losses."""
        return NumericalFault(self.fault, sample, losses, self.learning_rate)


class StateError(BttlabError, ValueError):
    """Parameters or optimizer state do not fit the model or optimizer."""


@dataclass(frozen=True)
class Predictions:
    """Losses and labels of n samples.

    Attributes
    ----------
    losses : np.ndarray
        Float32, (n,).
    intents : np.ndarray
        Int32, (n,): intent label ids.
    slots : np.ndarray
        Int32, (n, sequence_length): slot label ids; 0 at position 0 and at padding.
    """

    losses: np.ndarray
    intents: np.ndarray
    slots: np.ndarray


class Trainer(Protocol):
    """Trains one model, one sample at a time.

    A trainer with a true attribute `whole_updates` divides the samples of an update, and so gets all of them in a call.

    Parameters are float32 arrays with the names of `ModelConfig.parameter_shapes`. The optimizer state is "step" (int64
    scalar array: number of samples trained on), "batch_size" (the same: samples of an update; absent before training
    and in states of earlier versions) and, for each parameter, the optimizer's moments: "first_moment.<name>",
    "second_moment.<name>". A state continues with its own batch size.
    """

    @property
    def config(self) -> ModelConfig | ModuleConfig:
        """The model that is trained."""
        ...

    def load_parameters(
        self, parameters: Mapping[str, np.ndarray], optimizer_state: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """Set the parameters and the optimizer state; by default training starts without a state."""

    def store_parameters(self) -> dict[str, np.ndarray]:
        """Return a copy of the parameters."""
        ...

    def store_optimizer_state(self) -> dict[str, np.ndarray]:
        """Return a copy of the optimizer state."""
        ...

    def train(
        self, samples, optimizer: Optimizer, learning_rate: float | np.ndarray, label_smoothing: float = 0.0
    ) -> np.ndarray:
        """Train on samples, in order, and return the losses before each sample's update, float32 of shape (n,).

        The learning rate is one, or an array of shape (n,). `label_smoothing`, in [0, 1), is the part of each target
        that is spread evenly over all classes; the losses returned do not include it.

        The moments and the batch size of the optimizer are those of the training so far: StateError if they are others.

        Raises NumericalFault at the first sample whose loss, gradient or update is not finite; that sample changes
        neither parameters nor state.
        """
        ...

    def predict(self, samples) -> Predictions:
        """Return losses and labels of samples without training."""
        ...


def check_label_smoothing(label_smoothing: float) -> None:
    """Refuse a label smoothing that is not a number of at least 0 and below 1.

    Parameters
    ----------
    label_smoothing : float
        The part of each target that is spread evenly over all classes.

    Raises
    ------
    ConfigError
        If it is outside the range.
    """
    number = isinstance(label_smoothing, int | float) and not isinstance(label_smoothing, bool)
    if not (number and 0 <= label_smoothing < 1):
        raise ConfigError(f"label_smoothing is {label_smoothing!r}: it must be a number of at least 0 and below 1")


def check_learning_rates(learning_rate: float | np.ndarray, count: int) -> list[float]:
    """Return one learning rate for each sample.

    Parameters
    ----------
    learning_rate : float or np.ndarray
        One for all, or one for each, shape (count,).
    count : int
        Number of samples.

    Returns
    -------
    list of float
        `count` learning rates.

    Raises
    ------
    ConfigError
        If one is negative or not finite, or their number is not `count`.
    """
    rates = np.asarray(learning_rate, np.float64)
    if rates.ndim and rates.shape != (count,):
        raise ConfigError(f"learning_rate has shape {rates.shape}: give one number, or one for each of {count} samples")
    rates = np.broadcast_to(rates, (count,))
    with np.errstate(over="ignore"):
        bad = ~(np.isfinite(rates.astype(np.float32)) & (rates >= 0))
    if bad.any():
        raise ConfigError(f"learning rate is {rates[bad][0]:g}: it must be finite and at least 0")
    return rates.tolist()


def check_finite(what: str, tensors: Mapping[str, np.ndarray]) -> None:
    """Refuse tensors with an infinite or NaN element.

    Parameters
    ----------
    what : str
        Names the tensors in the message.
    tensors : mapping of str to np.ndarray
        By name.

    Raises
    ------
    StateError
        If an element is not finite; the message names its tensor.
    """
    for name, array in tensors.items():
        if not np.isfinite(array).all():
            index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise StateError(
                f"{what}: {name} is {array[index]} at {index}, and must be finite; go back to an earlier state, or "
                "start again"
            )


def check_arrays(
    what: str, arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Return arrays as float32; raise StateError unless they are real, finite and of a model's names and shapes."""
    for name, array in arrays.items():
        if np.iscomplexobj(array):
            raise StateError(
                f"{what}: {name} has complex numbers, and parameters and moments are real; load their real part, "
                f"{name}.real, if that is what you mean"
            )
    arrays = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
    found = {name: array.shape for name, array in arrays.items()}
    if wrong := [name for name in (*shapes, *found) if found.get(name) != shapes.get(name)]:
        name = wrong[0]
        raise StateError(
            f"{what} of another model: {name} is {found.get(name, 'missing')}, but {shapes.get(name, 'not there')} in "
            "this model; load those of this one"
        )
    check_finite(what, arrays)
    return arrays


def check_moments(found: Iterable[str], optimizer: Optimizer, batch_size: int = 0) -> None:
    """Refuse an optimizer that cannot continue from an optimizer state.

    Moments are those of the sum of an update's gradients, and the number of samples counts updates. So a state
    continues with the batch size that it was made with, in the middle of an update and between two.

    Parameters
    ----------
    found : iterable of str
        Names of the state's moments.
    optimizer : Optimizer
        The one to continue with.
    batch_size : int
        Samples of an update of the training that made the state; 0 if it is not known.

    Raises
    ------
    StateError
        If the optimizer needs other moments, or has another batch size.
    """
    way_out = "or load the parameters without a state"
    if batch_size and batch_size != optimizer.batch_size:
        samples = "sample" if batch_size == 1 else "samples"
        raise StateError(
            f"the optimizer state is of updates of {batch_size} {samples}, but the optimizer has batch_size="
            f"{optimizer.batch_size}: continue with batch_size={batch_size}, {way_out}"
        )
    if tuple(found) != optimizer.moments:
        known, needed = (", ".join(moments) or "no moments" for moments in (found, optimizer.moments))
        raise StateError(
            f"the optimizer state has {known} but {optimizer.name} needs {needed}: continue with the optimizer of that "
            f"state, {way_out}"
        )


def split_state(state: Mapping[str, np.ndarray] | None) -> tuple[int, dict[str, dict[str, np.ndarray]], int]:
    """Return the step of an optimizer state, each moment's arrays by parameter, and the batch size, 0 if not known.

    Without a state, all are 0 or empty. Raises StateError if the step or the batch size is not a whole number of at
    least 0, if a moment is unknown, or if a moment before the first sample is not 0.
    """
    if state is None:
        return 0, {}, 0
    if "step" not in state:
        raise StateError("the optimizer state has no 'step': pass what store_optimizer_state returned")
    moments: dict[str, dict[str, np.ndarray]] = {}
    for key, array in state.items():
        moment, _, name = key.partition(".")
        if key not in ("step", "batch_size"):
            moments.setdefault(moment, {})[name] = array
    if unknown := sorted(moments.keys() - set(MOMENTS)):
        raise StateError(f"the optimizer state has {unknown[0]!r}: known are step, batch_size, {', '.join(MOMENTS)}")
    step = _count(state, "step", "the number of samples trained on")
    batch_size = _count(state, "batch_size", "the number of samples of an update") if "batch_size" in state else 0
    trained = [f"{moment}.{name}" for moment, of in moments.items() for name, array in of.items() if np.any(array)]
    if step == 0 and trained:
        raise StateError(
            f"the optimizer state has step 0 and {trained[0]} that is not 0, as before the first sample; pass what "
            "store_optimizer_state returned, or no state to start without moments"
        )
    return step, {moment: moments[moment] for moment in MOMENTS if moment in moments}, batch_size


def _count(state: Mapping[str, np.ndarray], key: str, meaning: str) -> int:
    """Return a whole number of a state; raise StateError for another value."""
    value = np.asarray(state[key])
    if value.shape != () or value.dtype.kind not in "iuf" or not (0 <= value < 2**63 and value % 1 == 0):
        raise StateError(
            f"the optimizer state has {key} {state[key]!r:.60}: it is {meaning}, a whole number of at least 0; pass "
            "what store_optimizer_state returned"
        )
    return int(value)


def joined_state(
    step: int, moments: Mapping[str, Mapping[str, np.ndarray]], batch_size: int = 0
) -> dict[str, np.ndarray]:
    """Return the optimizer state that `split_state` takes apart."""
    named = {f"{moment}.{name}": array for moment, arrays in moments.items() for name, array in arrays.items()}
    size = {"batch_size": np.asarray(batch_size, np.int64)} if step and batch_size else {}
    return {"step": np.asarray(step, np.int64)} | size | named


@dataclass(frozen=True)
class UpdateFactors:
    """Factors of the updates of n samples, float32 of shape (n,) each, or of one sample, of shape ()."""

    # for SGD and momentum: p -= rate m. Like `step`, it is 0 unless the sample is the last one of an update
    rate: np.ndarray
    # step, root, keep: for AdamW: p = keep p - step m / (root sqrt(v) + epsilon)
    step: np.ndarray
    root: np.ndarray
    keep: np.ndarray
    # 1 if the sample belongs to the same update as the previous one, so that the moments do not decay; 0 otherwise
    same_update: np.ndarray

    @classmethod
    def of(cls, optimizer: Optimizer, learning_rates: np.ndarray, samples_before: int) -> "UpdateFactors":
        """Return the factors of samples with these learning rates, after `samples_before` samples of the training."""
        size = optimizer.batch_size
        numbers = samples_before + np.arange(len(learning_rates))
        rates = np.where((numbers + 1) % size == 0, learning_rates, 0.0)
        updates = numbers // size + 1
        factors = (
            rates / size,
            rates / size / (1 - optimizer.beta1**updates),
            1 / (size * np.sqrt(1 - optimizer.beta2**updates)),
            1 - rates * optimizer.weight_decay,
            numbers % size != 0,
        )
        return cls(*(factor.astype(np.float32) for factor in factors))

    def __getitem__(self, sample: int) -> "UpdateFactors":
        return UpdateFactors(*(getattr(self, field.name)[sample] for field in fields(self)))

    def are_bounded(self, optimizer: Optimizer) -> bool:
        """Return True if one sample's update is finite for all gradients and states in their limits.

        docs/accelerator.md derives the limits.
        """
        if not self.rate < RATE_LIMIT:
            return False
        if optimizer.name != "adamw":
            return True
        return bool(self.step < FACTOR_LIMIT * optimizer.epsilon and abs(self.keep) < FACTOR_LIMIT)
