"""The reference trainer: PyTorch, one sample at a time."""

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from bttlab.model.config import ModelConfig, Optimizer
from bttlab.model.module import ModuleConfig
from bttlab.model.network import network_of
from bttlab.model.trainer import (
    SQUARE_LIMIT,
    STATE_LIMIT,
    NumericalFault,
    Predictions,
    UpdateFactors,
    check_arrays,
    check_label_smoothing,
    check_learning_rates,
    check_moments,
    joined_state,
    split_state,
)
from bttlab.model.transformer import ignore_index_of, loss
from bttlab.util.errors import BttlabError


@torch.no_grad()
def predict(model: nn.Module, samples, config: ModelConfig | ModuleConfig | None = None) -> Predictions:
    """Return the losses and predicted labels of a model of `network_of`, computed on the model's device.

    Parameters
    ----------
    model : nn.Module
        Of `network_of`.
    samples : Samples
        n samples.
    config : ModelConfig or ModuleConfig, optional
        By default `model.config`.

    Returns
    -------
    Predictions
        Of the n samples.

    Raises
    ------
    BttlabError
        If the samples do not fit the model.
    """
    samples.validate(config or model.config)
    losses = np.zeros(len(samples), np.float32)
    intents = np.zeros(len(samples), np.int32)
    labels = np.zeros(samples.slots.shape, np.int32)
    for i, (tokens, intent, slots) in enumerate(_utterances(samples, next(model.parameters()).device)):
        intent_logits, slot_logits = model(tokens)
        losses[i] = loss(intent_logits, slot_logits, intent, slots, ignore_index=ignore_index_of(model)).item()
        if intent_logits is not None:
            intents[i] = intent_logits.argmax().item()
        if slot_logits is not None:
            labels[i, 1 : len(tokens)] = slot_logits.argmax(1).cpu().numpy()
    return Predictions(losses, intents, labels)


def _utterances(samples, device: torch.device) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield each sample's real tokens (T,), intent () and slots (T - 1,) as int64 on a device."""
    tokens, intents, slots = (
        torch.from_numpy(np.asarray(array, np.int64)).to(device)
        for array in (samples.tokens, samples.intents, samples.slots)
    )
    for i, length in enumerate(samples.lengths.tolist()):
        yield tokens[i, :length], intents[i], slots[i, 1:length]


class ReferenceTrainer:
    """The `Trainer` in PyTorch: autograd in float32, one sample at a time, with torch.optim's fused kernels.

    A module and its parameters are copied. All parameters are views into one array, and all gradients into another.
    The optimizer updates the whole model at once, which at batch 1 takes a third of the time of updating each tensor.
    Its kernels are called as torch.optim does with `fused=True`; torch.optim itself would import torch's compiler
    first, which takes seconds.

    One thread at a time trains: JupyterLab may handle a widget in another thread than the cell that runs.

    Parameters
    ----------
    config : ModelConfig or ModuleModel
        The model.
    flow : str
        Order of contraction of a `ModelConfig`'s TT layers, as for `bttlab.tensor.TTLinear`.
    device : str or torch.device
        Where it trains.
    seed : int
        Of the initial parameters of a `ModelConfig`.
    """

    def __init__(
        self,
        config: ModelConfig | ModuleConfig,
        flow: str = "bidirectional",
        device: str | torch.device = "cpu",
        seed: int = 0,
    ):
        self.config = config
        self.model = network_of(config, flow, seed).to(device)
        parameters = dict(self.model.named_parameters())
        shapes, frozen = config.parameter_shapes(), set(getattr(config, "frozen", ()))
        # Frozen parameters are at the end, after what the optimizer updates.
        self._shapes = {name: shapes[name] for name in sorted(shapes, key=lambda name: name in frozen)}
        self._all = torch.cat([parameters[name].detach().reshape(-1) for name in self._shapes])
        self._flat = nn.Parameter(self._all[: sum(math.prod(shapes[name]) for name in shapes if name not in frozen)])
        self._grad = torch.zeros_like(self._flat)
        self._flat.grad = self._grad
        for name, data in self._views(self._all):
            parameters[name].data = data
        for name, grad in self._views(self._grad):
            parameters[name].grad = grad
        self._step = self._batch_size = 0
        self._moments: dict[str, Tensor] = {}
        self._busy = threading.Lock()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise BttlabError(
                "this trainer is training already: wait until that has ended, or take a trainer of your own"
            )
        try:
            yield
        finally:
            self._busy.release()

    def load_parameters(
        self, parameters: Mapping[str, np.ndarray], optimizer_state: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """See `Trainer.load_parameters`. If they do not fit, raise StateError and change nothing."""
        step, moments, batch_size = split_state(optimizer_state)
        flat = self._flatten("parameters", parameters)
        flats = {moment: self._flatten(moment, arrays) for moment, arrays in moments.items()}
        with self._alone():
            self._all.copy_(flat)
            self._step, self._batch_size = step, batch_size
            self._moments = {moment: flat[: self._flat.numel()].clone() for moment, flat in flats.items()}

    def store_parameters(self) -> dict[str, np.ndarray]:
        return self._unflatten(self._all)

    def store_optimizer_state(self) -> dict[str, np.ndarray]:
        """Return a copy of the optimizer state: "step", "batch_size" and the moments of every parameter."""
        moments = {moment: self._unflatten(flat) for moment, flat in self._moments.items()}
        return joined_state(self._step, moments, self._batch_size)

    def train(
        self, samples, optimizer: Optimizer, learning_rate: float | np.ndarray, label_smoothing: float = 0.0
    ) -> np.ndarray:
        """See `Trainer.train`. If an argument does not fit, or another thread trains, raise and change nothing."""
        samples.validate(self.config)
        rates = check_learning_rates(learning_rate, len(samples))
        check_label_smoothing(label_smoothing)
        with self._alone():
            return self._train(samples, optimizer, rates, label_smoothing)

    def _train(self, samples, optimizer: Optimizer, rates: list[float], label_smoothing: float) -> np.ndarray:
        if self._step == 0 and not self._moments:
            self._moments = {moment: torch.zeros_like(self._flat.data) for moment in optimizer.moments}
        check_moments(self._moments, optimizer, self._batch_size)
        factors = UpdateFactors.of(optimizer, np.asarray(rates), self._step)
        losses, ignored = np.zeros(len(samples), np.float32), ignore_index_of(self.model)
        for i, (tokens, intent, slots) in enumerate(_utterances(samples, self._flat.device)):
            self._grad.zero_()
            intent_logits, slot_logits = self.model(tokens)
            labelled = intent_logits, slot_logits, intent, slots
            value = loss(*labelled, ignore_index=ignored)
            losses[i] = value.item()
            fault = None if np.isfinite(losses[i]) else "loss"
            if fault is None:
                (loss(*labelled, label_smoothing, ignored) if label_smoothing else value).backward()
                fault = self._find_fault(optimizer, factors[i])
            if fault is not None:
                raise NumericalFault(fault, i, losses[:i].copy(), rates[i])
            self._step += 1
            self._batch_size = optimizer.batch_size
            if optimizer.batch_size == 1:
                self._update(optimizer, float(rates[i]))
            else:
                self._accumulate(optimizer, factors[i])
        return losses

    def _find_fault(self, optimizer: Optimizer, factors: UpdateFactors) -> str | None:
        """Return the first fault that prevents an update, in the kernel's order: a key of `FAULTS`, or None."""
        limits = {"first_moment": STATE_LIMIT, "second_moment": SQUARE_LIMIT}
        if not (
            _is_below(self._flat.data, STATE_LIMIT)
            and all(_is_below(flat, limits[moment]) for moment, flat in self._moments.items())
        ):
            return "state"
        if not _is_below(self._grad, STATE_LIMIT):
            return "gradient"
        return None if factors.are_bounded(optimizer) else "update"

    def predict(self, samples) -> Predictions:
        return predict(self.model, samples, self.config)

    @torch.no_grad()
    def _update(self, optimizer: Optimizer, learning_rate: float) -> None:
        """Update parameters and moments from the gradient in step number `self._step`."""
        moments = [[moment] for moment in self._moments.values()]
        if optimizer.name == "adamw":
            torch._fused_adamw_(  # pyright: ignore[reportCallIssue, reportPrivateImportUsage]
                [self._flat],
                [self._grad],
                *moments,
                [],
                [self._flat.new_tensor(float(self._step))],
                lr=learning_rate,
                beta1=optimizer.beta1,
                beta2=optimizer.beta2,
                weight_decay=optimizer.weight_decay,
                eps=optimizer.epsilon,
                amsgrad=False,
                maximize=False,
            )
        else:
            torch._fused_sgd_(  # pyright: ignore[reportCallIssue, reportPrivateImportUsage]
                [self._flat],
                [self._grad],
                *(moments or [[]]),
                weight_decay=0.0,
                momentum=optimizer.momentum if moments else 0.0,
                lr=learning_rate,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
            )

    @torch.no_grad()
    def _accumulate(self, optimizer: Optimizer, factors: UpdateFactors) -> None:
        """Add a sample's gradient to the moments; after the last sample of an update, change the parameters."""
        grad, first, *second = self._grad, *self._moments.values()
        if not factors.same_update:
            first.mul_(optimizer.decay)
            for moment in second:
                moment.mul_(optimizer.beta2)
        if optimizer.name == "adamw":
            first.add_(grad, alpha=1 - optimizer.beta1)
            second[0].addcmul_(grad, grad, value=1 - optimizer.beta2)
            divisor = second[0].sqrt().mul_(float(factors.root)).add_(optimizer.epsilon)
            self._flat.mul_(float(factors.keep)).addcdiv_(first, divisor, value=-float(factors.step))
        else:
            first.add_(grad)
            self._flat.sub_(first, alpha=float(factors.rate))

    def _views(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        start = 0
        for name, shape in self._shapes.items():
            size = math.prod(shape)
            if start + size <= flat.numel():  # else it is frozen, and has neither gradient nor moments
                yield name, flat[start : start + size].view(shape)
            start += size

    def _unflatten(self, flat: Tensor) -> dict[str, np.ndarray]:
        found = {name: view.cpu().numpy().copy() for name, view in self._views(flat)}
        return {name: found.get(name, np.zeros(shape, np.float32)) for name, shape in self._shapes.items()}

    def _flatten(self, what: str, arrays: Mapping[str, np.ndarray]) -> Tensor:
        arrays = check_arrays(what, arrays, self._shapes)
        flat = np.concatenate([arrays[name].reshape(-1) for name in self._shapes])
        return torch.from_numpy(flat).to(self._flat.device)


def _is_below(flat: Tensor, limit: float) -> bool:
    """Return True if all magnitudes are below a limit; False if there is a NaN."""
    lowest, highest = torch.aminmax(flat)
    return max(-lowest.item(), highest.item()) < limit
