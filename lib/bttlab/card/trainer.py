"""The driver of the training processor: `overlay.trainer_1` on a real or an emulated card."""

import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from bttlab.card.emulation import EmulatedU50
from bttlab.card.keeper import SLICE_SECONDS
from bttlab.card.kernel import TRAINER_KERNEL, OverlayError
from bttlab.card.kernel_driver import ChipState, KernelDriver
from bttlab.card.manifest import digest, read_file
from bttlab.card.processor import ENDS_SUM, correct_losses, record_dtype, sample_dtype, sample_records, set_rates
from bttlab.card.training_run import TrainingRun
from bttlab.card.waiting import card_errors
from bttlab.compiler.image import check_image
from bttlab.compiler.machine import M
from bttlab.compiler.memory.layout import Layout
from bttlab.compiler.program import ModelProgram, Options, Program, compile
from bttlab.estimate.profile import Profile
from bttlab.model import (
    ModelConfig,
    NumericalFault,
    Optimizer,
    Predictions,
    StateError,
    check_label_smoothing,
    check_learning_rates,
)
from bttlab.model.loop import ends_sum
from bttlab.model.module import ModuleConfig
from bttlab.model.trainer import check_arrays, check_moments, joined_state, split_state

if TYPE_CHECKING:
    from bttlab.compiler.module import ModuleModel

STATUS_NAMES = dict(enumerate(M.enums["Status"]))
MAX_SAMPLES = 1 << 16  # of a call, as in hls_src/processor/samples.h
MOST_OF_RECORDS = 32 << 20  # bytes of the records of a call, which have rows of a table in the host's memory


class TrainerDriver(KernelDriver):
    """Trains the model whose program is loaded, with all parameters on chip, one sample at a time.

    Call `load_program` with a model, then `load_parameters`, then `train` and the other methods of
    `bttlab.model.Trainer`, or `start` to train in the background. Parameters stay on the card from call to call until
    other parameters or another program are loaded.

    Parameters
    ----------
    description : dict
        As PYNQ gives it to the driver of an IP; `load_overlay` and `open_trainer` make drivers.

    Attributes
    ----------
    counted_cycles : int
        Cycles of the machine's loop that the card has counted in all training. The emulated card runs programs without
        that loop, so its count is 0.
    """

    bindto = (TRAINER_KERNEL.vlnv,)
    _profile: Profile  # of the loaded program

    def __init__(self, description: dict[str, Any]):
        self._busy = threading.Lock()
        self._background: TrainingRun | None = None
        self.counted_cycles = 0
        super().__init__(description)

    def load_program(
        self, program: "Program | ModelConfig | ModuleModel", optimizer: Optimizer | None = None
    ) -> Program:
        """Load the program that trains a model in the paper's flow, or another program, without parameters.

        A model is compiled, unless its program is in the cache, as by `bttlab.compiler.program.compile`. The
        program trains by any other optimizer, too. Raises ProgramError if the machine cannot run the model, or the
        program is damaged or made for another machine. The program and parameters on the card do not change then.
        """
        loaded = program if isinstance(program, Program) else compile(program, Options(optimizer=optimizer))
        check_image(loaded.image)
        with self._alone():
            self._on_card(
                lambda: self._replace_program(loaded.image), lambda: setattr(self, "_chip", ChipState(loaded))
            )
        self._profile = Profile(loaded)
        if isinstance(self.device, EmulatedU50):
            self.device.program_loaded(loaded)
        return loaded

    @property
    def program(self) -> Program:
        """The program that is loaded; StateError if there is none."""
        if self._chip.program is None:
            raise StateError("no program is on the card: call load_program first")
        return self._chip.program

    @property
    def state(self) -> object:
        """What stands for program, parameters and optimizer state on the card: another object after each change."""
        return self._chip

    def has_program_for(self, config: ModelConfig, optimizer: Optimizer | None = None) -> bool:
        """Return True if the card has the program that `load_program` would load, with the same constants."""
        wanted, loaded = compile(config, Options(optimizer=optimizer)), self._chip.program
        if not isinstance(loaded, ModelProgram) or not self._has_chip or loaded.sha256 != wanted.sha256:
            return False
        return loaded.layout.has_constants_of(wanted.layout)

    def runs(self, config: ModelConfig, optimizer: Optimizer | None = None) -> bool:
        """Return the same as `has_program_for`, by its name before version 0.2."""
        warnings.warn("trainer.runs(config) is now has_program_for(config)", FutureWarning, stacklevel=2)
        return self.has_program_for(config, optimizer)

    @property
    def config(self) -> ModelConfig | ModuleConfig:
        return self._model_program.config

    @property
    def overlay_sha256(self) -> str:
        return digest(read_file(self.device.bitfile_name))

    def profile(self) -> dict[tuple[str, str], int]:
        """Return the modelled cycles since the last call by stage and layer, without zeros.

        Stages are FP, BP and PU. The cycles are modelled on any card: they follow from the program and the samples'
        lengths. A cycle counts for the first instruction of the list that needs it, so an update that overlaps
        completely with earlier instructions counts no cycles. Cycles outside the loop (records, results, LOAD, STORE)
        do not count.
        """
        self.program  # noqa: B018 - raises StateError if there is none
        return self._profile.take()

    def execute(
        self, vectors: np.ndarray, tokens: int, optimizer: Optimizer | None = None, learning_rate: float = 0.0
    ) -> np.ndarray:
        """Run the FORWARD section of a program that does not train a model once, on a sample of `tokens` tokens.

        The vectors, float32 of shape (n, 16), are loaded on chip first; the same memory after the run is returned. With
        an optimizer the FLUSH section runs, too. OverlayError if the program did not run to its end.
        """
        record = np.zeros(1, sample_dtype())
        record["tokens"] = tokens
        command, chosen = (M.TRAIN, optimizer) if optimizer else (M.PREDICT, Optimizer("sgd"))
        set_rates(record["scalars"], learning_rate, chosen)
        result = np.zeros(1, self._result_record)
        with self._alone():
            self._chip = ChipState(self.program)
            vectors_moved = self.program.transfer_vectors
            before, after = (self._sized(n, vectors_moved) for n in (0, len(self._memories) - 1))
            before[: len(vectors)] = vectors

            def work() -> None:
                self._load(before)
                self._exchange(command, record, chosen, result)
                self._store(after)

            self._on_card(work)
            if result["status"][0] != M.DONE:
                raise OverlayError(f"the kernel ended with {STATUS_NAMES.get(int(result['status'][0]))}; load it again")
        return np.array(after[: len(vectors)])

    def load_parameters(
        self, parameters: Mapping[str, np.ndarray], optimizer_state: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """Load parameters, with the names and shapes of `ModelConfig.parameter_shapes`, and optimizer state on chip.

        The state is from `store_optimizer_state` of this driver or of `bttlab.model.ReferenceTrainer`; by default
        training starts without one. StateError if they belong to another model or are not finite; the card does not
        change then.
        """
        step, moments, size = split_state(optimizer_state)
        shapes = self._layout.shapes
        blocks = [check_arrays(what, arrays, shapes) for what, arrays in ({"parameters": parameters} | moments).items()]
        for name, value in self._layout.folded.items():
            if not np.array_equal(parameters[name], value):
                what = f"{name} is frozen, and the program has constants computed from its values when it was traced"
                raise StateError(f"{what}: trace the module with the values to load")
        with self._alone():
            memory = self._spare_memory(3 * self._layout.vectors)
            memory[:] = 0
            for i, block in enumerate(blocks):
                self._block(memory, i)[:] = self._layout.pack(block)
            self._load_memory(memory)
            loaded = [{name: block[name].copy() for name in self._layout.partial} for block in blocks]
            names, size = (tuple(moments), size) if step else (None, 0)
            self._chip = ChipState(self.program, memory, step, names, loaded, size)

    def store_parameters(self) -> dict[str, np.ndarray]:
        """Return a copy of the parameters on chip, and of what was loaded of rows that no sample reads."""
        stored = self._unpacked(self._stored(), 0)
        return stored | {name: value.copy() for name, value in self._layout.folded.items()}

    def store_optimizer_state(self) -> dict[str, np.ndarray]:
        """Return a copy of the optimizer state on chip: "step", "batch_size" and the moments of every parameter."""
        memory = self._stored()
        moments = enumerate(self._chip.moments or (), 1)
        named = {name: self._unpacked(memory, i) for i, name in moments}
        return joined_state(self._chip.step, named, self._chip.batch_size)

    @property
    def step(self) -> int:
        """Number of samples that the state on chip was trained on."""
        return self._chip.step

    @property
    def moments(self) -> tuple[str, ...]:
        """Names of the moments on chip; none before training."""
        return self._chip.moments or ()

    @property
    def batch_size(self) -> int:
        """Samples of an update of the training that made the state on chip; 0 before, and if it is not known."""
        return self._chip.batch_size

    def store_state(self, blocks: slice = slice(3)) -> np.ndarray:
        """Return a copy of what is on chip, in the order of the banks, float32 of shape (blocks, vectors, 16).

        Block 0 has the parameters, 1 and 2 first and second moments, which are zeros if the optimizer has none.
        """
        memory = self._stored()
        return np.stack([self._block(memory, number) for number in range(3)[blocks]])

    def load_state(self, state: np.ndarray, step: int, moments: tuple[str, ...], batch_size: int = 0) -> None:
        """Load what `store_state` of a driver with the same program returned, of a training of `step` samples.

        `moments` has the names of the state's moments, and `batch_size` is that of the training, 0 if it is not known.
        Blocks that are left out are zeros. Parameters must have been loaded before.
        """
        before = self._chip
        with self._alone():
            memory = self._spare_memory(3 * self._layout.vectors)
            for number in range(3):
                self._block(memory, number)[:] = state[number] if number < len(state) else 0
            self._load_memory(memory)
            names, size = (moments, batch_size) if step else (None, 0)
            self._chip = replace(before, memory=memory, step=step, moments=names, batch_size=size)

    def check_train(self, samples, optimizer: Optimizer, learning_rate: float | np.ndarray) -> None:
        """Raise the BttlabError of `train` if these arguments are not allowed."""
        self._check(samples, optimizer, learning_rate)

    def train(
        self, samples, optimizer: Optimizer, learning_rate: float | np.ndarray, label_smoothing: float = 0.0
    ) -> np.ndarray:
        """Train on samples, in order.

        `learning_rate` is a number or has shape (n,). The optimizer is the one that made the state on chip, with the
        same batch size; any if there is no state yet. Each sample's loss is returned, before its update and without
        label smoothing: float32, shape (n,).

        Raises NumericalFault at the first sample whose loss, gradient or update is not finite; that sample changes
        neither parameters nor state. BttlabError if ids, learning rates or the optimizer are not allowed; nothing
        changes then.

        Ctrl-C takes effect once the kernel has finished the samples of the call; a run of `start` can be stopped
        earlier. If a kernel of a real card does not finish within a second after Ctrl-C, or within its time limit, a
        `bttlab.card.waiting.CardFailedError` is raised.
        """
        rates = self._check(samples, optimizer, learning_rate)
        check_label_smoothing(label_smoothing)
        with self._alone():
            return self._train(samples, rates, optimizer, label_smoothing)

    def predict(self, samples) -> Predictions:
        """Return losses and labels of samples without training; labels that the model does not have are 0."""
        self._check_ready(samples)
        with self._alone():
            results = self._call(M.PREDICT, samples, np.zeros(len(samples)), Optimizer("sgd"))
        labels, intents = results["slots"][:, : self.config.sequence_length].copy(), results["intent"].copy()
        tasks = self.config.task.split(" and ")
        if "classification" not in tasks:
            intents[:] = 0
        if tasks == ["classification"]:
            labels[:] = 0
        return Predictions(results["loss"].copy(), intents, labels)

    def start(self, samples, optimizer: Optimizer, learning_rate: float | np.ndarray) -> TrainingRun:
        """Start training in the background and return at once.

        Parameters and errors are those of `train`, but a NumericalFault is raised by the run's `wait`.
        """
        rates = self._check(samples, optimizer, learning_rate)
        run = TrainingRun(
            len(samples),
            lambda part: self._train(samples[part], rates[part], optimizer),
            self._exclusively(),
            (optimizer.batch_size, self._chip.step),
        )
        self._background = run
        try:
            run.begin()
        except KeyboardInterrupt:
            self.stop()
            raise
        return run

    def stop(self) -> None:
        """Stop the run of `start` and wait for its end; nothing happens if there is none."""
        if self._background is not None:
            self._background.stop()
            self._background.join()

    # --- helpers

    @property
    def _model_program(self) -> ModelProgram:
        """The program of a model; StateError if none is loaded, or a layer's alone."""
        program = self.program
        if not isinstance(program, ModelProgram):
            raise StateError("the program on the card is a layer's alone: call load_program with a model first")
        return program

    @property
    def _layout(self) -> Layout:
        return self._model_program.layout

    @property
    def _table(self) -> np.ndarray | None:
        """The table of tokens in the host's memory; None if it is on chip."""
        name = self._layout.in_records
        return self._chip.loaded[0][name] if name else None

    def _check(self, samples, optimizer: Optimizer, learning_rate: float | np.ndarray) -> np.ndarray:
        self._check_ready(samples)
        self._model_program.check_optimizer(optimizer)
        rates = np.asarray(check_learning_rates(learning_rate, len(samples)), np.float32)
        if self._chip.moments is not None:
            check_moments(self._chip.moments, optimizer, self._chip.batch_size)
        return rates

    def _check_ready(self, samples) -> None:
        if self._chip.memory is None:
            raise StateError("no parameters are on the card: call load_parameters first")
        samples.validate(self.config)

    def _exclusively(self) -> threading.Lock:
        """Return the lock of kernel calls; raise OverlayError if it is locked, or a run is about to lock it."""
        if self._busy.locked() or (self._background is not None and not self._background.done):
            raise OverlayError("the card is training already: wait for that run, or end it with trainer.stop()")
        return self._busy

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of kernel calls, and turn pynq's errors into a CardFailedError."""
        with self._exclusively(), card_errors(self.device):
            yield

    def _train(self, samples, rates: np.ndarray, optimizer: Optimizer, label_smoothing: float = 0.0) -> np.ndarray:
        """Train on samples that have been checked and return their losses."""
        with card_errors(self.device):
            return self._call(M.TRAIN, samples, rates, optimizer, label_smoothing)["loss"].copy()

    def _call(
        self, command: int, samples, rates: np.ndarray, optimizer: Optimizer, label_smoothing: float = 0.0
    ) -> np.ndarray:
        """Train on or predict samples in as many kernel calls as needed, and return their results."""
        done, program = np.zeros(len(samples), self._result_record), self._model_program
        first, records = 0, np.zeros(0)  # of the samples from the first one on
        sums = command == M.TRAIN and program.sums
        ends = ends_sum(self._chip.step + np.arange(len(samples)), optimizer) if sums else None
        for part in self._parts(len(samples), ends):
            if part.stop > first + len(records):  # else they were made with those of the call before
                first, many = part.start, slice(part.start, max(part.stop, part.start + self._most_records))
                records = sample_records(
                    program, samples[many], rates[many], optimizer, label_smoothing, self._chip.step, self._table
                )
            rows = records[part.start - first : part.stop - first]
            if command == M.TRAIN:
                self._train_part(rows, optimizer, done[part])
            else:
                self._on_card(partial(self._exchange, command, rows, optimizer, done[part]))
            correct_losses(program.config, samples[part], done[part])
            bad = np.flatnonzero(done["status"][part] != M.DONE)
            if len(bad):
                self._refuse(done, part.start + int(bad[0]), rates)
        return done

    def _parts(self, count: int, ends: np.ndarray | None) -> Iterator[slice]:
        """Yield ranges of samples, one for each kernel call; on a shared card each takes a time slice.

        `ends` says with which samples a sum of gradients ends: each call ends with one, since FLUSH, at the end of a
        call, clears the sums. It has at least one sum, whatever the time.
        """
        first, largest = 0, self._most_records
        while first < count:
            most = largest if self._share is None else int(SLICE_SECONDS * self._samples_per_second)
            end = min(count, first + max(1, min(most, largest)))
            if ends is not None and end < count:
                whole = first + 1 + np.flatnonzero(ends[first:])  # where sums end
                end = int(whole[max(0, np.searchsorted(whole, end, "right") - 1)]) if len(whole) else count
            yield slice(first, end)
            first = end

    @property
    def _most_records(self) -> int:
        """The most samples whose records are made at a time."""
        return max(1, min(MAX_SAMPLES, MOST_OF_RECORDS // record_dtype(self._model_program).itemsize))

    def _train_part(self, rows: np.ndarray, optimizer: Optimizer, results: np.ndarray) -> None:
        """Train on sample records in one kernel call, then replace memory, step and moments in one assignment."""
        before, memory = self._chip, self._spare_memory(3 * self._layout.vectors)

        def work() -> None:
            self._exchange(M.TRAIN, rows, optimizer, results)
            if self._share is not None:
                self._store(memory)

        def publish() -> None:
            bad = np.flatnonzero(results["status"] != M.DONE)
            done = int(bad[0]) if len(bad) else len(results)
            if done:
                self._chip = replace(
                    before,
                    memory=memory,
                    step=before.step + done,
                    moments=tuple(optimizer.moments),
                    batch_size=optimizer.batch_size,
                )
            self._profile.add(rows["tokens"][:done].tolist(), (rows["scalars"][:done, ENDS_SUM] != 0).tolist())
            cycles = results["cycles"].sum(dtype=np.int64) + results["flush_cycles"].sum(dtype=np.int64)
            self.counted_cycles += int(cycles)

        if self._share is None:
            try:
                work()
            finally:  # the chip has changed, also if Ctrl-C comes after the kernel's end
                publish()
        else:
            self._on_card(work, publish)

    def _refuse(self, results: np.ndarray, sample: int, rates: np.ndarray) -> NoReturn:
        status = STATUS_NAMES.get(int(results["status"][sample]), "an unknown status")
        if status.endswith("_NOT_FINITE"):
            fault = status.removesuffix("_NOT_FINITE").lower()
            raise NumericalFault(fault, sample, results["loss"][:sample].copy(), float(rates[sample]))
        if status == "NO_PROGRAM":
            raise StateError(
                f"{self.device.name} has no program any more, since its overlay was loaded again: call load_program "
                "and load_parameters again"
            )
        raise OverlayError(  # the host's samples are valid: `train` and `predict` check them
            f"the kernel found {status} in sample {sample}, which is valid in host memory: its record did not reach "
            "the card; is a sync_to_device missing? That sample did not change the parameters"
        )

    def _stored(self) -> Any:
        """Return the parameter buffer, updated with the parameters and moments on chip."""
        if self._chip.memory is None:
            self.program  # noqa: B018 - raises StateError if there is none
            raise StateError("no parameters are on the card: call load_parameters first")
        with self._alone():
            if self._share is None:  # on a shared card each call stores them
                self._store(self._chip.memory)
            return self._chip.memory

    def _unpacked(self, memory: Any, number: int) -> dict[str, np.ndarray]:
        """Return the parameters (0), first moments (1) or second moments (2) in a parameter buffer by name."""
        loaded = self._chip.loaded
        return self._layout.unpack(self._block(memory, number), loaded[number] if number < len(loaded) else None)

    def _load_memory(self, memory: Any) -> None:
        """Load parameters and moments from a buffer; on a shared card the next call does it."""
        if self._share is None:
            self._chip = ChipState(self.program)
            self._load(memory)
        else:
            self._share.is_current = False

    def _block(self, memory: Any, number: int) -> np.ndarray:
        """Return the parameters (0), first moments (1) or second moments (2) in a parameter buffer."""
        first = number * self._layout.vectors
        return np.asarray(memory[first : first + self._layout.vectors])
