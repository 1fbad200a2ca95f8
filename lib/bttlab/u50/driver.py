"""The driver of the training kernel: what `overlay.train_transformer_1` is, on a card and on the emulated one."""

import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any

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
from bttlab.threads import Thread
from bttlab.u50 import records
from bttlab.u50.kernel import TRAIN_KERNEL, OverlayError
from bttlab.u50.records import ParameterMemory

CHUNK = 32  # samples between two looks at stop: some tens of milliseconds
MOMENTS = ("first_moment", "second_moment")


class TransformerTrainer(DefaultIP):
    """Trains one tensor transformer with all its parameters on chip, one sample a step.

    The methods of `bttlab.model.Trainer`, and `start` for training beside other work. The kernel tells what model it
    was built for (`config`); parameters stay on the card from call to call until others are loaded.
    """

    bindto = (TRAIN_KERNEL.vlnv,)

    def __init__(self, description: dict[str, Any]):
        super().__init__(description)
        # PYNQ's raw calls; `start` is ours. As attributes they would keep this, and its buffers, until Python collects
        # cycles.
        del self.start, self.call, self.start_ert, self.start_sw
        self._banks = {
            name: self.device.get_memory_by_name(self.args[name].mem) for name in self.args if self.args[name].mem
        }
        self._busy = threading.Lock()
        self._results = self._banks["results"].allocate((records.DESCRIPTION_LENGTH,), np.int32)
        self._records = self._banks["sample_records"].allocate((records.LANES,), np.int32)
        self._memory = self._banks["memory"].allocate((1, records.LANES), np.float32)
        self.config = self._describe()
        self._layout = ParameterMemory(self.config)
        words = int(self._results[sum(count for _, count in records.SHAPE_FIELDS)])
        if words != self._layout.words:
            raise OverlayError(
                f"the overlay holds its parameters in {words} words, this version of bttlab in {self._layout.words}: "
                "they are of different versions; rebuild the overlay with: make overlays"
            )
        self._memory = self._banks["memory"].allocate((1 + 3 * words, records.LANES), np.float32)
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
            self._memory[0, :1].view(np.int32)[:] = step
            for i, block in enumerate(blocks):
                self._block(i)[:] = self._layout.pack(block)
            self._memory.sync_to_device()
            self._run(records.LOAD)
        self._moments = moments if step else None
        self._loaded = True

    def store_parameters(self) -> dict[str, np.ndarray]:
        """Return a copy of the parameters on chip."""
        return self._layout.unpack(self._stored(0))

    def store_optimizer_state(self) -> dict[str, np.ndarray]:
        """Return a copy of the optimizer state on chip: "step" and the moments of every parameter."""
        state: dict[str, np.ndarray] = {}
        for i, moment in enumerate(self._moments or (), 1):
            state |= {f"{moment}.{name}": tensor for name, tensor in self._layout.unpack(self._stored(i)).items()}
        if not state:
            self._stored(0)
        return {"step": np.asarray(self._memory[0, :1].view(np.int32)[0], np.int64), **state}

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

    def start(self, samples, optimizer: Optimizer, learning_rate: float | np.ndarray) -> "TrainingRun":
        """Start training and return at once.

        Parameters and errors are those of `train`; a NumericalFault is raised by the run's `wait`.

        Returns
        -------
        TrainingRun
        """
        rates = self._check(samples, optimizer, learning_rate)
        return TrainingRun(self, samples, optimizer, rates)

    def profile(self) -> dict[tuple[str, str], int]:
        """Return the cycles that the kernel has taken since the last call, by stage and unit, without what took none.

        Stages are FP, BP, PU and IO; units are the kinds of linear layer, "embedding", "attention" and so on
        (`records.UNITS`). The emulated card counts what the hardware would take, loop by loop (`hls_src/timing.h`): a
        model, not a measurement. A real card counts nothing, and the table is empty.
        """
        with self._exclusively():
            self._results = self._at_least("results", self._results, 4 * records.PROFILE_LENGTH)
            self._run(records.PROFILE)
            self._results.sync_from_device()
        counters = np.array(self._results[: 2 * len(records.STAGES) * len(records.UNITS)]).view(np.int64).tolist()
        table = dict(zip(itertools.product(records.STAGES, records.UNITS), counters, strict=True))
        return {key: count for key, count in table.items() if count}

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
        done = np.zeros(len(samples), records.result_record(self.config))
        for first in range(0, len(samples), records.MAX_SAMPLES):
            part = slice(first, first + records.MAX_SAMPLES)
            results = self._call_once(command, samples[part], rates[part], optimizer, label_smoothing)
            done[part] = results
            bad = np.flatnonzero(results["status"] != records.STATUS.index("DONE"))
            if len(bad):
                self._refuse(done, first + int(bad[0]), rates)
        return done

    def _call_once(
        self, command: int, samples, rates: np.ndarray, optimizer: Optimizer, label_smoothing: float
    ) -> np.ndarray:
        record, result = records.sample_record(self.config), records.result_record(self.config)
        self._records = self._at_least("sample_records", self._records, len(samples) * record.itemsize)
        self._results = self._at_least("results", self._results, len(samples) * result.itemsize)
        rows = self._records.view(np.uint8)[: len(samples) * record.itemsize].view(record)
        rows["tokens"], rows["intent"], rows["learning_rate"] = samples.lengths, samples.intents, rates
        rows["label_smoothing"] = label_smoothing
        rows["token_ids"] = rows["slots"] = 0
        rows["token_ids"][:, : samples.tokens.shape[1]] = samples.tokens
        rows["slots"][:, : samples.slots.shape[1]] = samples.slots
        results = self._results.view(np.uint8)[: len(samples) * result.itemsize]
        results[:] = 0
        results.sync_to_device()
        rows.view(np.uint8).sync_to_device()
        self._run(command, len(samples), optimizer)
        results.sync_from_device()
        return np.array(results).view(result)

    def _refuse(self, results: np.ndarray, sample: int, rates: np.ndarray) -> None:
        status = records.STATUS[results["status"][sample]]
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
        handle = self._start_kernel(
            command,
            samples,
            number,
            beta1,
            o.beta2,
            o.epsilon,
            o.weight_decay,
            self._records,
            self._results,
            self._memory,
        )
        wait_to_the_end(handle)

    def _describe(self) -> ModelConfig:
        self._run(records.DESCRIBE)
        self._results.sync_from_device()
        values, fields, first = self._results.tolist(), {}, 0
        for name, count in records.SHAPE_FIELDS:
            fields[name] = values[first] if count == 1 else tuple(values[first : first + count])
            first += count
        return ModelConfig(**fields)

    def _stored(self, block: int) -> np.ndarray:
        with self._exclusively():
            self._run(records.STORE)
        self._memory.sync_from_device()
        return np.asarray(self._block(block))

    def _block(self, number: int) -> np.ndarray:
        words = self._layout.words
        return self._memory[1 + number * words : 1 + (number + 1) * words]

    def _at_least(self, argument: str, buffer: np.ndarray, size: int) -> np.ndarray:
        """Return the buffer, or a new one where it is smaller than `size` bytes."""
        if buffer.nbytes >= size:
            return buffer
        return self._banks[argument].allocate((max(size, 2 * buffer.nbytes) // 4,), np.int32)

    def _checked(self, what: str, tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
        shapes = self.config.parameter_shapes()
        arrays = {name: np.asarray(tensor, np.float32) for name, tensor in tensors.items()}
        check_finite(what, arrays)
        found = {name: array.shape for name, array in arrays.items()}
        if found != shapes:
            wrong = next(n for n in (*shapes, *found) if found.get(n) != shapes.get(n))
            raise StateError(
                f"{what} of another model: {wrong} is {found.get(wrong, 'missing')}, but "
                f"{shapes.get(wrong, 'not there')} in the overlay's model of {self.config.encoders} encoders; "
                "load the overlay that was built for them"
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


class TrainingRun:
    """Training that goes on beside the caller, chunk by chunk; a thread of its own ends with it.

    Attributes
    ----------
    total : int
        Number of samples.
    """

    def __init__(self, trainer: TransformerTrainer, samples, optimizer: Optimizer, rates: np.ndarray):
        self.total = len(samples)
        self._losses: list[np.ndarray] = []
        self._stop = threading.Event()
        self._error: Exception | None = None
        lock = trainer._exclusively()
        lock.acquire()
        self._thread = Thread(target=self._train, args=(trainer, lock, samples, optimizer, rates), name="bttlab-train")
        self._thread.start()

    def _train(self, trainer: TransformerTrainer, lock: threading.Lock, samples, optimizer: Optimizer, rates) -> None:
        try:
            for first in range(0, len(samples), CHUNK):
                if self._stop.is_set():
                    return
                part = slice(first, first + CHUNK)
                try:
                    self._losses.append(
                        trainer._call(records.TRAIN, samples[part], rates[part], optimizer)["loss"].copy()
                    )
                except NumericalFault as error:
                    self._losses.append(error.losses)
                    raise error.at(first + error.sample, self.losses) from None
        except Exception as error:  # raised where the caller waits
            self._error = error
        finally:
            lock.release()

    @property
    def losses(self) -> np.ndarray:
        """Losses so far, float32."""
        return np.concatenate([np.zeros(0, np.float32), *self._losses])

    @property
    def done(self) -> bool:
        """Whether training has ended: all samples done, stopped, or failed."""
        return not self._thread.is_alive()

    @property
    def progress(self) -> float:
        """Part of the samples that are trained on, 0 to 1."""
        return sum(map(len, tuple(self._losses))) / self.total if self.total else 1.0

    def stop(self) -> None:
        """Stop at the next chunk's end, within some tens of milliseconds."""
        self._stop.set()

    def wait(self, timeout: float | None = None) -> np.ndarray:
        """Wait for the end and return the losses; Ctrl-C stops the training first.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; `done` tells whether that was enough.

        Raises
        ------
        NumericalFault
            As `TransformerTrainer.train`.
        """
        try:
            self._thread.join(timeout)
        except KeyboardInterrupt:
            self.stop()
            self._thread.join()
            raise
        if self.done and self._error:
            raise self._error
        return self.losses
