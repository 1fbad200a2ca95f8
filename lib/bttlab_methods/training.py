"""The training loop in which methods act: PyTorch, batches of utterances of equal length, a fixed budget."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from itertools import combinations
from threading import Event
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn

from bttlab.data import Samples, Vocabulary, encode, epoch_order
from bttlab.model import Transformer, batch_losses, equal_length_batches
from bttlab.model.loop import train_segments
from bttlab_methods.setting import MethodError, Setting

GPU_CLOCK = "time.perf_counter, the GPU waited for after each step"
THREAD_CLOCK = "processor time of the training's thread (time.thread_time), whatever else the machine does"
CPU_CLOCK = "processor time of the process (time.process_time), whatever else the machine does"
DENSE = "dense"  # the name of no method at all: dense, FP32, AdamW
LEARNING_RATE = 3e-4  # of AdamW, for the dense model in batches of 8

OnBatch = Callable[[np.ndarray], None]


@dataclass(frozen=True)
class Batch:
    """Samples of equal length, and how much each of their losses counts.

    By default the step minimises the mean of the losses; `weights` (n,), float32, count each loss.
    """

    samples: Samples
    weights: np.ndarray | None = None


def combination_name(combination: Sequence) -> str:
    """Return the full names of the methods with "+" between them, or that of dense training."""
    return "+".join(method.full_name() for method in combination) or DENSE


def check_combination(combination: Sequence) -> None:
    """Raise MethodError unless methods combine."""
    for first, second in combinations(combination, 2):
        if first.name == second.name:
            raise MethodError(f"{second.name} is named twice; name it once")
        refusal = f"{first.name} and {second.name} do not combine"
        if shared := first.changes & second.changes:
            raise MethodError(f"{refusal}: both change {_listed(shared)}; leave one out")
        for one, other in ((first, second), (second, first)):
            if one.excludes & (other.changes | {other.name}):
                changed = f"what {other.name} changes ({_listed(other.changes)})"
                raise MethodError(f"{refusal}: {one.name} cannot do with {changed}; leave one out")


def _listed(names: frozenset[str]) -> str:
    return " and ".join(f"the {name}" for name in sorted(names))


def changed(setting: Setting, methods: Sequence) -> Setting:
    """Return the setting as methods change it; MethodError as `check_combination`."""
    check_combination(methods)
    for method in methods:
        setting = method.change_setting(setting)
    return setting


class Training:
    """One run: a model, an optimizer, and the methods that change them.

    Raises MethodError if the methods do not combine, or one does not run here.
    """

    def __init__(self, setting: Setting, methods: Sequence = ()):
        self.methods = tuple(methods)
        self.setting = changed(setting, methods)
        self.extra: dict[str, Any] = {}  # what methods remember, under their names
        # a context for what is done between two steps and is no part of the training: its energy is not counted
        self.aside: Callable[[], AbstractContextManager] = nullcontext
        self.count = self.steps = 0  # samples trained on, and updates
        self.seconds_spent = 0.0  # on steps and on choosing their samples, by `clock`
        # with one thread of PyTorch, other threads of the process do other work, such as drawing a dashboard
        is_alone = torch.get_num_threads() == 1 and not distributed.is_initialized()
        on_cpu = THREAD_CLOCK if is_alone else CPU_CLOCK
        self.clock = GPU_CLOCK if torch.device(setting.device).type == "cuda" else on_cpu
        self.random = np.random.Generator(np.random.PCG64([setting.seed, 1]))  # for whatever a method draws
        torch.manual_seed(setting.seed)
        corpus, config = self.setting.corpus, self.setting.config
        self.vocabulary = Vocabulary.from_sentences(corpus.train.words, config.vocabulary_size)
        self.samples = encode(corpus.train, self.vocabulary, corpus, config)
        self.model: nn.Module = Transformer(config, seed=setting.seed).to(setting.device)
        for method in self.methods:
            method.change_model(self)
        self.restart_optimizer()

    @property
    def device(self) -> torch.device:
        return torch.device(self.setting.device)

    @property
    def progress(self) -> float:
        """Part of the budget that is used, 0 to 1."""
        return min(1.0, self.count / self.setting.samples)

    @property
    def trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def restart_optimizer(self) -> None:
        """Make the optimizer again, without a state: the model has got other parameters."""
        made = [optimizer for method in self.methods if (optimizer := method.make_optimizer(self)) is not None]
        self.optimizer = made[0] if made else torch.optim.AdamW(self.trained, lr=LEARNING_RATE, fused=True)
        for group in self.optimizer.param_groups:
            group["rate_at_start"] = group["lr"]

    def run(self, on_batch: OnBatch | None = None, stop: Event | None = None) -> None:
        """Train until the budget is used, or `stop` is set.

        `on_batch` gets the losses of each batch, float32 of shape (n,), before its update. Raises MethodError if a loss
        is not finite.
        """

        def trained(batch: Batch, losses: np.ndarray, seconds: float) -> None:
            self.seconds_spent += seconds
            if not np.isfinite(losses).all():
                raise MethodError(
                    f"{combination_name(self.methods)}: the loss after {self.count} samples is not finite; take a "
                    "lower learning rate"
                )
            if on_batch is not None:
                on_batch(losses)

        self.model.train()
        train_segments(
            self._all_batches(), self.step, trained, lambda: stop is None or not stop.is_set(), clock=self._now
        )

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            return time.perf_counter()
        return time.thread_time() if self.clock == THREAD_CLOCK else time.process_time()

    def _all_batches(self) -> Iterator[Batch]:
        epoch = 0
        while self.count < self.setting.samples:
            given = (method.batches(self, epoch) for method in self.methods)
            batches = next((batches for batches in given if batches is not None), None)
            for batch in self.epoch_batches(epoch) if batches is None else batches:
                left = self.setting.samples - self.count
                if left <= 0:
                    return
                weights = batch.weights if batch.weights is None else batch.weights[:left]
                yield Batch(batch.samples[:left], weights)
            epoch += 1

    def epoch_batches(self, epoch: int, kept: np.ndarray | None = None) -> Iterator[Batch]:
        """Yield an epoch's batches of equal length: of all samples, or of those with the indices `kept`, int64."""
        seed, kept = self.setting.seed, np.arange(len(self.samples)) if kept is None else kept
        random = np.random.Generator(np.random.PCG64([seed, epoch]))
        order = kept[epoch_order(len(kept), seed, epoch)]
        for indices in equal_length_batches(order, self.samples.lengths, self.setting.batch, random):
            yield Batch(self.samples[indices])

    def step(self, batch: Batch) -> np.ndarray:
        """Learn from a batch; return the losses before the update, float32 of shape (n,)."""
        self.set_rate()
        self.optimizer.zero_grad(set_to_none=True)
        value, losses = self.forward(batch)
        self.backward(value)
        self.update()
        self.count += len(batch.samples)
        self.steps += 1
        for method in self.methods:
            method.after_update(self)
        return losses

    def set_rate(self) -> None:
        place = self.progress
        for method in self.methods:
            place = method.schedule(self, place)
        for group in self.optimizer.param_groups:
            group["lr"] = group["rate_at_start"] * self.setting.rate(place)

    def forward(self, batch: Batch) -> tuple[Tensor, np.ndarray]:
        """Return what a step minimises, and the losses of the samples, float32 of shape (n,)."""
        for method in self.methods:
            batch = method.change_batch(self, batch)
        with ExitStack() as stack:
            for method in self.methods:
                stack.enter_context(method.around_forward(self))
            given = (method.losses(self, batch) for method in self.methods)
            losses = next((answer for answer in given if answer is not None), None)
            if losses is None:
                losses = batch_losses(self.model, batch.samples)
            weighted = losses
            if batch.weights is not None:
                weighted = losses * torch.from_numpy(batch.weights).to(losses)
            value = weighted.mean()
            for method in self.methods:
                value = method.objective(self, value)
        return value, losses.detach().float().cpu().numpy()

    def backward(self, value: Tensor) -> None:
        with ExitStack() as stack:
            for method in self.methods:
                stack.enter_context(method.around_backward(self))
            value.backward()

    def update(self) -> None:
        for method in self.methods:
            method.before_update(self)
        self.optimizer.step()

    def finish(self) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        for method in self.methods:
            facts |= method.finish(self)
        return facts
