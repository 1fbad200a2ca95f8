"""What drivers of training kernels have in common: parameters, samples and states, on a card and an emulated one."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
from pynq import DefaultIP

from bttlab.model import (
    ModelConfig,
    NumericalFault,
    Optimizer,
    Predictions,
    StateError,
    check_finite,
    check_label_smoothing,
    check_learning_rates,
)
from bttlab.u50 import records
from bttlab.u50.kernel import OverlayError
from bttlab.u50.training_run import TrainingRun

DONE = records.STATUS.index("DONE")
MOMENTS = ("first_moment", "second_moment")


class TrainingDriver(DefaultIP):
    """Trains one tensor transformer with all its parameters on chip, one sample a step.

    The methods of `bttlab.model.Trainer`, and `start` for training beside other work. Parameters stay on the card from
    call to call until others are loaded. A driver says what is the kernel's own: `config`, `_layout` (where parameters
    lie), `_step`, `_rows` and `_last_arguments`.
    """

    _statuses: Mapping[int, str] = dict(enumerate(records.STATUS))
    _head_words = 0  # of the parameter memory, before the parameters
    _model_of = "the overlay's model"
    _way_out = "load the overlay that was built for them"

    _records_argument = "records"  # the kernel's name for the samples' records

    config: ModelConfig
    _layout: Any
    _step: int
    _result_record: np.dtype
    _records: np.ndarray  # buffers on the card
    _results: np.ndarray
    _memory: np.ndarray

    def __init__(self, description: dict[str, Any]):
        super().__init__(description)
        # PYNQ's raw calls; `start` is ours. As attributes they would keep this, and its buffers, until Python collects
        # cycles.
        del self.start, self.call, self.start_ert, self.start_sw
        self._banks = {
            name: self.device.get_memory_by_name(self.args[name].mem) for name in self.args if self.args[name].mem
        }
        self._busy = threading.Lock()
        self._moments: tuple[str, ...] | None = None  # of the optimizer that the state on chip is of
        self._loaded = False

    @property
    def _start_kernel(self) -> Callable[..., Any]:
        return self._start_ert if self.device.has_capability("ERT") else self._start_sw

    def load_parameters(
        self, parameters: Mapping[str, np.ndarray], optimizer_state: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """Put parameters and optimizer state on chip; without a state, training starts from none.

        Parameters
        ----------
        parameters : mapping of str to ndarray
            Under the names and of the shapes of `ModelConfig.parameter_shapes`; PyTorch tensors are taken as well.
        optimizer_state : mapping of str to ndarray, optional
            From `store_optimizer_state`, of this driver or of `bttlab.model.ReferenceTrainer`.

        Raises
        ------
        StateError
            If they are of another model or hold numbers that are not finite; the card is left as it was then.
        """
        blocks = [self._checked("parameters", parameters)]
        step, moments = 0, None
        if optimizer_state is not None:
            step = int(optimizer_state["step"])
            moments = tuple(m for m in MOMENTS if any(key.startswith(f"{m}.") for key in optimizer_state))
            for moment in moments:
                tensors = {
                    k.removeprefix(f"{moment}."): v for k, v in optimizer_state.items() if k.startswith(f"{moment}.")
                }
                blocks.append(self._checked(moment, tensors))
        with self._exclusively():
            self._memory[:] = 0
            for i, block in enumerate(blocks):
                self._block(i)[:] = self._layout.pack(block)
            self._step = step
            self._memory.sync_to_device()
            self._run(records.LOAD)
        self._moments = moments if step else None
        self._loaded = True

    def store_parameters(self) -> dict[str, np.ndarray]:
        """Return a copy of the parameters on chip."""
        self._store()
        return self._layout.unpack(self._block(0))

    def store_optimizer_state(self) -> dict[str, np.ndarray]:
        """Return a copy of the optimizer state on chip: "step" and the moments of every parameter."""
        self._store()
        state: dict[str, np.ndarray] = {"step": np.asarray(self._step, np.int64)}
        for i, moment in enumerate(self._moments or (), 1):
            state |= {f"{moment}.{name}": tensor for name, tensor in self._layout.unpack(self._block(i)).items()}
        return state

    def train(
        self, samples, optimizer: Optimizer, learning_rate: float | np.ndarray, label_smoothing: float = 0.0
    ) -> np.ndarray:
        """Take one step a sample, in order.

        Parameters
        ----------
        samples : bttlab.data.Samples
        optimizer : Optimizer
            The one that the state on chip is of, or any where training starts.
        learning_rate : float or ndarray of shape (n,)
        label_smoothing : float
            As in `bttlab.model.Trainer`.

        Returns
        -------
        ndarray of float32, shape (n,)
            Each sample's loss before its update, without label smoothing.

        Raises
        ------
        NumericalFault
            At the first sample whose loss, gradient or update is not finite; parameters and state are as before it.
        bttlab.errors.BttlabError
            If ids, learning rates or the optimizer are not allowed; nothing is changed then.

        Notes
        -----
        Ctrl-C takes effect once the kernel has finished the samples of the call; `start` can be stopped in between.
        """
        rates = self._check(samples, optimizer, learning_rate)
        check_label_smoothing(label_smoothing)
        with self._exclusively():
            return self._call(records.TRAIN, samples, rates, optimizer, label_smoothing)["loss"].copy()

    def predict(self, samples) -> Predictions:
        """Return losses and labels of the samples; the parameters stay.

        Raises
        ------
        bttlab.errors.BttlabError
            If ids are not allowed.
        """
        self._check_ready(samples)
        with self._exclusively():
            results = self._call(records.PREDICT, samples, np.zeros(len(samples)), Optimizer("sgd"))
        labels = results["slots"][:, : self.config.sequence_length].copy()
        return Predictions(results["loss"].copy(), results["intent"].copy(), labels)

    evaluate = predict

    def start(self, samples, optimizer: Optimizer, learning_rate: float | np.ndarray) -> TrainingRun:
        """Start training and return at once.

        Parameters and errors are those of `train`; a NumericalFault is raised by the run's `wait`.

        Returns
        -------
        TrainingRun
        """
        rates = self._check(samples, optimizer, learning_rate)
        return TrainingRun(self, samples, optimizer, rates)

    # --- what a driver adds

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters on the card."""
        return self.config.parameter_shapes()

    def _rows(self, samples, rates: np.ndarray, optimizer: Optimizer, label_smoothing: float) -> np.ndarray:
        """Return the records of samples, as the kernel reads them."""
        raise NotImplementedError

    def _count(self, rows: np.ndarray, results: np.ndarray) -> None:
        """Take note of what was trained on; a kernel that counts its steps itself needs none."""

    def _last_arguments(self, optimizer: Optimizer) -> tuple[Any, ...]:
        """The arguments behind those that all have: command, samples, and the optimizer's name and constants."""
        raise NotImplementedError

    # --- the kernel

    def _check(self, samples, optimizer: Optimizer, learning_rate: float | np.ndarray) -> np.ndarray:
        self._check_ready(samples)
        rates = np.asarray(check_learning_rates(learning_rate, len(samples)), np.float32)
        if self._moments is not None and self._moments != tuple(optimizer.moments):
            raise StateError(
                f"the optimizer state on chip keeps {', '.join(self._moments) or 'no moments'} but {optimizer.name} "
                f"needs {', '.join(optimizer.moments) or 'none'}: go on with its own optimizer, or load the parameters "
                "anew"
            )
        return rates

    def _check_ready(self, samples) -> None:
        if not self._loaded:
            raise StateError("no parameters are on the card: call load_parameters first")
        samples.validate(self.config)

    def _exclusively(self) -> threading.Lock:
        """The lock that a kernel call holds: one at a time."""
        if self._busy.locked():
            raise OverlayError("the kernel is training already: wait for that run, or stop it, first")
        return self._busy

    def _call(
        self, command: int, samples, rates: np.ndarray, optimizer: Optimizer, label_smoothing: float = 0.0
    ) -> np.ndarray:
        """Train on or predict samples, as many kernel calls as that takes; returns their results."""
        if command == records.TRAIN and len(samples):
            self._moments = tuple(optimizer.moments)
        done = np.zeros(len(samples), self._result_record)
        for first in range(0, len(samples), records.MAX_SAMPLES):
            part = slice(first, first + records.MAX_SAMPLES)
            rows = self._rows(samples[part], rates[part], optimizer, label_smoothing)
            done[part] = self._exchange(command, rows, optimizer)
            bad = np.flatnonzero(done["status"][part] != DONE)
            if len(bad):
                self._refuse(done, first + int(bad[0]), rates)
        return done

    def _exchange(self, command: int, rows: np.ndarray, optimizer: Optimizer) -> np.ndarray:
        """Run the kernel once on records of samples; returns their results."""
        size = len(rows) * self._result_record.itemsize
        self._records = self._at_least(self._records_argument, self._records, rows.nbytes)
        self._results = self._at_least("results", self._results, size)
        on_card, results = (self._records.view(np.uint8)[: rows.nbytes], self._results.view(np.uint8)[:size])
        on_card[:] = rows.view(np.uint8)
        results[:] = 0
        results.sync_to_device()
        on_card.sync_to_device()
        try:
            self._run(command, len(rows), optimizer)
        finally:  # Ctrl-C comes after the kernel's end
            results.sync_from_device()
            found = np.array(results).view(self._result_record)
            if command == records.TRAIN:
                self._count(rows, found)
        return found

    def _refuse(self, results: np.ndarray, sample: int, rates: np.ndarray) -> NoReturn:
        status = self._statuses.get(int(results["status"][sample]), "an unknown status")
        if status.endswith("_NOT_FINITE"):
            fault = status.removesuffix("_NOT_FINITE").lower()
            raise NumericalFault(fault, sample, results["loss"][:sample].copy(), float(rates[sample]))
        raise OverlayError(  # the host's samples are valid: `train` and `predict` check them
            f"the kernel found {status} in sample {sample}, which is right in host memory: its record did not reach "
            "the card; was sync_to_device left out? Parameters are as before that sample"
        )

    def _run(self, command: int, samples: int = 0, optimizer: Optimizer | None = None) -> None:
        """Run the kernel to its end."""
        o = optimizer or Optimizer("sgd")
        beta1 = o.momentum if o.name == "momentum" else o.beta1
        number = records.OPTIMIZER_NUMBERS[o.name]
        arguments = (command, samples, number, beta1, o.beta2, o.epsilon, *self._last_arguments(o))
        wait_to_the_end(self._start_kernel(*arguments))

    def _store(self) -> None:
        """Bring parameters and moments to the host's parameter memory."""
        with self._exclusively():
            self._run(records.STORE)
        self._memory.sync_from_device()

    def _block(self, number: int) -> np.ndarray:
        """Parameters (0), first (1) or second moments (2) in the host's parameter memory."""
        first = self._head_words + number * self._layout.words
        return np.asarray(self._memory[first : first + self._layout.words])

    def _at_least(self, argument: str, buffer: np.ndarray, size: int) -> np.ndarray:
        """Return the buffer, or a new one where it is smaller than `size` bytes."""
        if buffer.nbytes >= size:
            return buffer
        return self._banks[argument].allocate((max(size, 2 * buffer.nbytes) // 4,), np.int32)

    def _checked(self, what: str, tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
        shapes = self._shapes
        arrays = {name: np.asarray(tensor, np.float32) for name, tensor in tensors.items()}
        check_finite(what, arrays)
        found = {name: array.shape for name, array in arrays.items()}
        if found != shapes:
            wrong = next(n for n in (*shapes, *found) if found.get(n) != shapes.get(n))
            raise StateError(
                f"{what} of another model: {wrong} is {found.get(wrong, 'missing')}, but "
                f"{shapes.get(wrong, 'not there')} in {self._model_of} of {self.config.encoders} encoders; "
                f"{self._way_out}"
            )
        return arrays


def wait_to_the_end(handle: Any) -> None:
    """Wait for a kernel call, also through a KeyboardInterrupt, raised then: half a call would leave half a result."""
    interrupt = None
    while True:
        try:
            handle.wait()
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt:
        raise interrupt
