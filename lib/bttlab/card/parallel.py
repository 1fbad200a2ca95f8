"""Data-parallel training: the samples of an update on several cards, with the same bits whatever their number."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np

from bttlab.card.trainer import TrainerDriver
from bttlab.compiler.program import ModelProgram
from bttlab.model import (
    FAULTS,
    ConfigError,
    ModelConfig,
    NumericalFault,
    Optimizer,
    Predictions,
    check_label_smoothing,
    check_learning_rates,
)
from bttlab.model.module import ModuleConfig
from bttlab.model.trainer import SQUARE_LIMIT, STATE_LIMIT, UpdateFactors
from bttlab.util.errors import BttlabError

NO_LOSSES = np.zeros(0, np.float32)
LIMITS = (STATE_LIMIT, STATE_LIMIT, SQUARE_LIMIT)  # of parameters, first and second moments


class State(NamedTuple):
    """What a card has on chip, in host memory."""

    blocks: np.ndarray  # as of `TrainerDriver.store_state`
    step: int
    moments: tuple[str, ...]
    batch_size: int


class PartResult(NamedTuple):
    """What a card found of its part of an update."""

    losses: np.ndarray  # float32, (samples,); up to a fault
    sums: np.ndarray | None = None  # of the optimizer's moments, (moments, vectors, LANES); None without samples
    fault: tuple[int, str] | None = None  # sample of the update's samples in the call, key of `FAULTS`


class ParallelTrainer:
    """Trains one model on several cards, by updates of several samples; a `bttlab.model.Trainer`.

    The samples that a call has of one update are cut into parts of consecutive samples. A card trains on its part with
    learning rate 0, so that its first moment becomes the sum of the part's gradients. The host adds the sums in the
    order of the parts, and changes the parameters as the card would. So the order of sums follows from `parts` and
    from where calls end, not from the number of cards: two cards and one card that trains two parts give the same
    bits. An update of two samples has the order of sums of one card without parts, if the program does not sum
    gradients itself (`ModelProgram.sums`).

    A sample whose loss or gradient is not finite ends the training before its update: the `losses` of the
    `NumericalFault` are those of the updates before.

    Parameters
    ----------
    drivers : sequence of TrainerDriver
        Of cards with the same program.
    parts : int, optional
        Parts of an update, of all processes together; by default one for each card.
    group : process group, optional
        With `torch.distributed`, such as `torch.distributed.group.WORLD`: each process has the same number of cards,
        and all call the methods with the same arguments.

    Raises
    ------
    ConfigError
        If the parts cannot be divided among the cards, or the cards have different programs.
    """

    whole_updates = True  # a call needs the samples of a whole update, to divide them

    def __init__(self, drivers: Sequence[TrainerDriver], parts: int | None = None, group: Any = None):
        self.drivers, self._group = list(drivers), group
        if not self.drivers:
            raise ConfigError("no cards to train on: give at least one driver")
        if len({driver.program.sha256 for driver in self.drivers}) > 1:
            raise ConfigError("the cards have different programs: open all for the same model and optimizer")
        ranks, rank = 1, 0
        if group is not None:
            ranks, rank = group.size(), group.rank()
        self.parts = ranks * len(self.drivers) if parts is None else parts
        if self.parts < 1 or self.parts % (ranks * len(self.drivers)):
            raise ConfigError(
                f"parts is {self.parts}: it must be a multiple of the {ranks * len(self.drivers)} cards, so that each "
                "has as much to do"
            )
        own = self.parts // ranks
        self._own = range(rank * own, rank * own + own)
        self._known: State | None = None  # of the training; None if only the first card has it
        self._current: set[int] = set()  # numbers of the cards that have it

    # --- what a trainer offers

    @property
    def config(self) -> ModelConfig | ModuleConfig:
        return self.drivers[0].config

    @property
    def program(self) -> ModelProgram:
        program = self.drivers[0].program
        assert isinstance(program, ModelProgram)  # `config` raises StateError if it is not
        return program

    @property
    def device(self) -> Any:
        """The first card."""
        return self.drivers[0].device

    @property
    def overlay_sha256(self) -> str:
        return self.drivers[0].overlay_sha256

    def load_parameters(
        self, parameters: Mapping[str, np.ndarray], optimizer_state: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """Load parameters and state on all cards; errors are those of `TrainerDriver.load_parameters`."""
        self._known = None
        for driver in self.drivers:
            driver.load_parameters(parameters, optimizer_state)
        self._current = set(range(len(self.drivers)))

    def store_parameters(self) -> dict[str, np.ndarray]:
        self._load(0)
        return self.drivers[0].store_parameters()

    def store_optimizer_state(self) -> dict[str, np.ndarray]:
        self._load(0)
        return self.drivers[0].store_optimizer_state()

    def train(
        self, samples, optimizer: Optimizer, learning_rate: float | np.ndarray, label_smoothing: float = 0.0
    ) -> np.ndarray:
        """Train on samples, in order; arguments and losses are those of `TrainerDriver.train`.

        Samples of an update that come in two calls are summed call by call. Raises ConfigError if an update has one
        sample.
        """
        if optimizer.batch_size == 1:
            raise ConfigError(
                f"an update of one sample cannot be divided among {self.parts} cards or parts: choose a batch_size of "
                f"{self.parts} or more, or one card"
            )
        rates = np.asarray(check_learning_rates(learning_rate, len(samples)), np.float32)
        check_label_smoothing(label_smoothing)
        self.drivers[0].check_train(samples, optimizer, rates)
        losses: list[np.ndarray] = []
        begin = 0
        while begin < len(samples):
            place = self._state().step % optimizer.batch_size
            segment = slice(begin, min(len(samples), begin + optimizer.batch_size - place))
            try:
                losses.append(self._train_segment(samples[segment], rates[segment], optimizer, label_smoothing))
            except NumericalFault as fault:
                raise fault.at(begin + fault.sample, np.concatenate([NO_LOSSES, *losses])) from None
            begin = segment.stop
        return np.concatenate([NO_LOSSES, *losses])

    def predict(self, samples) -> Predictions:
        """Return losses and labels of samples without training; each card predicts a part of them."""

        def work(number: int, cut: slice) -> Callable[[], list[Predictions]]:
            def predict() -> list[Predictions]:
                self._load(number)
                return [self.drivers[number].predict(samples[cut])]

            return predict

        found = self._on_cards(list(starmap(work, enumerate(_cuts(len(samples), len(self.drivers))))))
        return Predictions(
            np.concatenate([one.losses for one in found]),
            np.concatenate([one.intents for one in found]),
            np.concatenate([one.slots for one in found]),
        )

    # --- helpers

    def _state(self) -> State:
        if self._known is None:
            first = self.drivers[0]
            self._known = State(first.store_state(), first.step, first.moments, first.batch_size)
        return self._known

    def _load(self, number: int) -> None:
        """Load the state on a card that has another."""
        if number not in self._current:
            self.drivers[number].load_state(*self._state())
            self._current.add(number)

    def _train_segment(self, samples, rates: np.ndarray, optimizer: Optimizer, label_smoothing: float) -> np.ndarray:
        """Train on samples of one update and return their losses; a fault leaves the state as it is."""
        before, cuts = self._state(), _cuts(len(samples), self.parts)
        names, is_in_place = tuple(optimizer.moments), 0 in self._current
        kept = slice(1, 1 + len(names))  # of the blocks of the state
        self._current = set()

        def train_part(driver: TrainerDriver, part: int) -> PartResult:
            cut = cuts[part]
            if cut.start == cut.stop:
                return PartResult(NO_LOSSES)
            if part:  # its sums begin at zero
                driver.load_state(before.blocks[:1], before.step + cut.start, names, optimizer.batch_size)
            elif not is_in_place:
                driver.load_state(*before)
            try:
                losses = driver.train(samples[cut], optimizer, np.zeros(cut.stop - cut.start), label_smoothing)
            except NumericalFault as fault:
                return PartResult(fault.losses, fault=(cut.start + fault.sample, fault.fault))
            return PartResult(losses, driver.store_state(kept))

        def work(driver: TrainerDriver, parts: Sequence[int]) -> Callable[[], list[PartResult]]:
            return lambda: [train_part(driver, part) for part in parts]

        turns = [self._own[number :: len(self.drivers)] for number in range(len(self.drivers))]
        done = self._on_cards([work(driver, turn) for driver, turn in zip(self.drivers, turns, strict=True)])
        by_part = dict(zip((part for turn in turns for part in turn), done, strict=True))
        found = self._of_all([by_part[part] for part in self._own], cuts, before.blocks[kept].shape)
        faults, step = [part.fault for part in found if part.fault is not None], before.step + len(samples)
        if not faults:
            factors = UpdateFactors.of(optimizer, rates, before.step)[-1]
            sums = [part.sums for part in found if part.sums is not None]
            trained = self._trained if step % optimizer.batch_size == 0 else None
            blocks = combined(before.blocks, sums, optimizer, factors, trained)
            if blocks is None or not factors.are_bounded(optimizer):
                faults = [(len(samples) - 1, "update")]
            else:
                self._known = State(blocks, step, names, optimizer.batch_size)
        if faults:
            sample, name = min(faults)
            raise NumericalFault(name, sample, NO_LOSSES, float(rates[sample]))
        return np.concatenate([part.losses for part in found])

    def _on_cards(self, works: Sequence[Callable[[], list]]) -> list:
        """Run a function for each card at the same time; return their results in one list."""
        if len(works) == 1:
            return works[0]()
        with ThreadPoolExecutor(len(works), "bttlab-card") as pool:
            futures = [pool.submit(work) for work in works]
        return [result for future in futures for result in future.result()]

    def _of_all(self, own: list[PartResult], cuts: Sequence[slice], shape: tuple[int, ...]) -> list[PartResult]:
        """Return all parts in order: those of the other processes come through the group, as numbers alone."""
        if self._group is None:
            return own
        largest, names = max(cut.stop - cut.start for cut in cuts), list(FAULTS)
        told, sums = np.full((len(own), 4 + largest), -1, np.float32), np.zeros((len(own), *shape), np.float32)
        for row, total, part in zip(told, sums, own, strict=True):
            row[:2] = part.sums is not None, len(part.losses)
            if part.fault is not None:
                row[2:4] = part.fault[0], names.index(part.fault[1])
            row[4 : 4 + len(part.losses)] = part.losses
            total[:] = 0 if part.sums is None else part.sums
        found = []
        for row, total in zip(self._gathered(told), self._gathered(sums), strict=True):
            fault = None if row[2] < 0 else (int(row[2]), names[int(row[3])])
            found.append(PartResult(row[4 : 4 + int(row[1])], total if row[0] else None, fault))
        return found

    def _gathered(self, own: np.ndarray) -> np.ndarray:
        """Return the arrays of all processes, one after the other along the first axis."""
        import torch  # slow, and only needed here

        arrays = [torch.empty(own.shape) for _ in range(self._group.size())]
        torch.distributed.all_gather(arrays, torch.from_numpy(own), self._group)
        return torch.cat(arrays).numpy()

    @cached_property
    def _trained(self) -> np.ndarray:
        """A mask of what an update changes, of the shape of a block of the state."""
        layout, frozen = self.program.layout, set(getattr(self.config, "frozen", ()))
        return layout.mask(lambda name: name not in frozen)


def combined(
    before: np.ndarray,
    sums: Sequence[np.ndarray],
    optimizer: Optimizer,
    factors: UpdateFactors,
    trained: np.ndarray | None,
) -> np.ndarray | None:
    """Return the state after samples whose sums are added in order; None if a number is too large or not finite.

    `before` is a state, float32 of shape (3, vectors, 16), `sums` has the optimizer's moments, of shape (moments,
    vectors, 16). If the samples end an update, `trained` is the mask of the parameters that it changes.
    """
    after = np.zeros_like(before)
    total = after[1 : 1 + len(sums[0])]
    total[:] = sums[0]
    with subnormals_flushed():
        for each in sums[1:]:
            total += each
    after[0] = before[0] if trained is None else updated((before[0], *after[1:]), factors, optimizer, trained)
    blocks = zip(after[: 1 + len(total)], LIMITS, strict=False)
    return after if all(-limit < block.min() and block.max() < limit for block, limit in blocks) else None


def updated(
    state: Sequence[np.ndarray], factors: UpdateFactors, optimizer: Optimizer, trained: np.ndarray
) -> np.ndarray:
    """Return the parameters after an update, with the card's operations in the card's order (`update.h`).

    `state` has parameters, and first and second moments that are sums over the update's samples, of equal shape.
    """
    p, m, v = state
    with subnormals_flushed(), np.errstate(all="ignore"):
        if optimizer.name == "adamw":
            root = np.sqrt(v)
            root *= factors.root
            root += np.float32(optimizer.epsilon)
            change, after = factors.step * m, p * factors.keep
            change /= root
        else:
            change, after = factors.rate * m, p.copy()
        after -= change
    np.copyto(after, p, where=~trained)
    return after


@contextmanager
def subnormals_flushed() -> Iterator[None]:
    """Take subnormal numbers as zeros in this thread, and give none, as the card does."""
    import torch  # slow, and only needed here

    was = bool(np.float32(1.5e-38) * np.float32(0.5) == 0)
    if not torch.set_flush_denormal(True):
        raise BttlabError("this processor does not flush subnormal numbers as the card does: train on one card")
    try:
        yield
    finally:
        torch.set_flush_denormal(was)


def _cuts(count: int, parts: int) -> list[slice]:
    """Return consecutive ranges of equal size; the last ones may be shorter or empty."""
    size = -(-count // parts)
    return [slice(min(part * size, count), min((part + 1) * size, count)) for part in range(parts)]
