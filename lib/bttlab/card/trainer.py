"""The driver of the training processor: what `overlay.trainer_1` is, on a card and on the emulated one."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NoReturn, TypeVar

import numpy as np
from pynq import DefaultIP

from bttlab.card.compiled import CompiledProgram, Flow, check_image, compiled_program
from bttlab.card.emulation import EmulatedU50
from bttlab.card.kernel import TRAINER_KERNEL, OverlayError
from bttlab.card.machine import machine
from bttlab.card.manifest import digest, read_file
from bttlab.card.processor import OPTIMIZERS, result_dtype, sample_dtype, sample_records
from bttlab.card.profile import Profile
from bttlab.card.program.errors import ProgramError
from bttlab.card.program.layout import Layout
from bttlab.card.program.program import Program
from bttlab.card.sharing import CardLostError
from bttlab.card.slices import Slices, line_for
from bttlab.card.training_run import TrainingRun, wait_to_the_end
from bttlab.model import (
    PAPER_FLOW,
    ModelConfig,
    NumericalFault,
    Optimizer,
    Predictions,
    StateError,
    check_finite,
    check_label_smoothing,
    check_learning_rates,
)

M = machine()
T = TypeVar("T")
STATUS_NAMES = dict(enumerate(M.statuses))
MOMENTS = ("first_moment", "second_moment")
MAX_SAMPLES = 1 << 16  # of a call, as in hls_src/processor/samples.h


class Trainer(DefaultIP):
    """Trains the tensor transformer whose program is loaded, all its parameters on chip, one sample a step.

    `load_program` says which model; then come `load_parameters`, `train` and the other methods of
    `bttlab.model.Trainer`, and `start` for training beside other work. Parameters stay on the card from call to call
    until others, or another program, are loaded.

    Attributes
    ----------
    counted_cycles : int
        Of the machine's loop, as it counted them itself in all training so far. The emulated card runs programs
        without that loop: its count is 0.
    """

    bindto = (TRAINER_KERNEL.vlnv,)

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
        widths = len(M.widths)
        self._result_record = result_dtype()
        self._records = self._banks["records"].allocate((M.LANES,), np.int32)
        self._results = self._banks["results"].allocate(((1 + -(-widths // M.LANES)) * M.LANES,), np.int32)
        self._memory = self._banks["memory"].allocate((1, M.LANES), np.float32)
        self._image = self._banks["program_image"].allocate((1, M.LANES), np.int32)
        self._loaded_program: CompiledProgram | None = None
        self._profile: Profile | None = None
        self.counted_cycles = 0
        self._step = 0
        line = line_for(self.device)
        self._slices = Slices(line, self.device, description) if line else None  # of a shared card
        self._samples_per_second = 0.0  # of the last call
        self._on_card(self._check_machine)

    def load_program(
        self,
        program: Program | ModelConfig,
        shapes: Mapping[str, Sequence[int]] | None = None,
        flow: Flow = PAPER_FLOW,
    ) -> CompiledProgram:
        """Load the program that trains a model; then its parameters have to be loaded.

        Parameters
        ----------
        program : Program or ModelConfig
            A model is compiled, unless it was one of the last few.
        shapes : mapping of str to sequence of int, optional
            Of the model's parameters, where linear layers have ranks of their own.
        flow : str or tuple of int
            The model's order of contraction, as for `bttlab.card.program.program.compile_program`.

        Returns
        -------
        CompiledProgram

        Raises
        ------
        bttlab.card.program.errors.ProgramError
            If the machine does not hold the model, or the program was damaged or made for another machine. The card is
            then as before, parameters included.
        """
        if isinstance(program, ModelConfig):
            compiled = compiled_program(program, shapes, flow)
        else:
            compiled = CompiledProgram(program, program.image())
        check_image(compiled.image)
        with self._exclusively():
            self._on_card(lambda: self._replace_program(compiled.image))
        self._loaded_program, self._profile = compiled, Profile(compiled.program)
        if isinstance(self.device, EmulatedU50):
            self.device.program_loaded(compiled.program)
        self._loaded, self._moments, self._step = False, None, 0
        words = 3 * self._layout.words
        if len(self._memory) < words:
            self._memory = self._banks["memory"].allocate((words, M.LANES), np.float32)
        return compiled

    @property
    def program(self) -> CompiledProgram:
        """The program that is loaded.

        Raises
        ------
        StateError
            If there is none.
        """
        if self._loaded_program is None:
            raise StateError("no program is on the card: call load_program first")
        return self._loaded_program

    def runs(self, config: ModelConfig, flow: Flow = PAPER_FLOW) -> bool:
        """Whether the program on the card is the one of a model and a flow."""
        return self._loaded_program is not None and self.program.sha256 == compiled_program(config, flow=flow).sha256

    @property
    def config(self) -> ModelConfig:
        """The model that is trained."""
        return self.program.program.model.config

    @property
    def overlay_sha256(self) -> str:
        """Digest of the overlay that is on the card, as its file has it."""
        return digest(read_file(self.device.bitfile_name))

    def profile(self) -> dict[tuple[str, str], int]:
        """Return the cycles of the samples trained on since the last call, by stage and layer, without what took none.

        Stages are FP, BP and PU. The cycles are modelled, on any card: they follow from the program and the samples'
        lengths. A cycle counts for the first instruction of the list that needs it, so an update that is hidden takes
        none. What passes beside the loop (records, results, LOAD, STORE) is not in it.
        """
        self.program  # noqa: B018 - says so if there is none
        return self._profile.take()

    def execute(self, words: np.ndarray, tokens: int) -> np.ndarray:
        """Run the loaded program's FORWARD section once, on words of its own: for a program that is no model's.

        Parameters
        ----------
        words : ndarray of float32, shape (words, 16)
            What LOAD brings on chip.
        tokens : int
            The sample's length.

        Returns
        -------
        ndarray of float32
            As many words as STORE fetches.

        Raises
        ------
        OverlayError
            If the program did not run to its end.
        """
        record = np.zeros(1, sample_dtype())
        record["tokens"] = tokens
        result = np.zeros(1, self._result_record)

        def work() -> None:
            self._load()
            self._exchange(M.PREDICT, record, Optimizer("sgd"), result)
            self._run(M.STORE)

        with self._exclusively():
            self._loaded, self._moments = False, None
            self._memory[: len(words)] = words
            self._on_card(work)
            if result["status"][0] != M.DONE:
                raise OverlayError(f"the kernel ended with {STATUS_NAMES.get(int(result['status'][0]))}; load it anew")
            self._memory.sync_from_device()
        return np.array(self._memory[: len(words)])

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
            if self._slices is None:
                self._load()
            else:
                self._slices.forget()  # the next call loads them
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
            return self._train(samples, rates, optimizer, label_smoothing)

    def predict(self, samples) -> Predictions:
        """Return losses and labels of the samples; the parameters stay.

        Raises
        ------
        bttlab.errors.BttlabError
            If ids are not allowed.
        """
        self._check_ready(samples)
        with self._exclusively():
            results = self._call(M.PREDICT, samples, np.zeros(len(samples)), Optimizer("sgd"))
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

    # --- the kernel

    @property
    def _start_kernel(self) -> Callable[..., Any]:
        return self._start_ert if self.device.has_capability("ERT") else self._start_sw

    @property
    def _layout(self) -> Layout:
        return self.program.program.model.layout

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(shape) for name, shape in self.program.program.model.shapes.items()}

    def _rows(self, samples, rates: np.ndarray, optimizer: Optimizer, label_smoothing: float) -> np.ndarray:
        return sample_records(self.program.program, samples, rates, optimizer, label_smoothing, self._step)

    def _count(self, rows: np.ndarray, results: np.ndarray) -> None:
        bad = np.flatnonzero(results["status"] != M.DONE)
        done = int(bad[0]) if len(bad) else len(results)
        self._step += done
        self._profile.add(rows["tokens"][:done].tolist())
        self.counted_cycles += int(results["cycles"].sum(dtype=np.int64) + results["flush_cycles"].sum(dtype=np.int64))

    def _on_card(self, work: Callable[[], T], stores: bool = False) -> T:
        """Do work that calls the kernel.

        On a shared card that is done in a slice: first the program and the state come on chip again, if others had the
        card; what changes the state ends with its way back to the host (`stores`), for there it is safe. Work that the
        card was lost in the middle of (this process was stopped) is done again, from the state before it: the same
        samples, so the same bits. Who interrupts it takes it back.
        """
        if self._slices is None:
            return work()
        while True:
            try:
                with self._slices.slice() as is_current:
                    if not is_current:
                        self._bring_back()
                    result = work()
                    if stores:
                        self._run(M.STORE)
                        self._slices.check()
                        self._memory.sync_from_device()
                return result
            except CardLostError:
                continue

    def _bring_back(self) -> None:
        if self._loaded_program is not None:
            self._send(self._loaded_program.image)
        if self._loaded:
            self._load()

    def _load(self) -> None:
        """Bring the host's parameter memory on chip."""
        self._memory.sync_to_device()
        self._run(M.LOAD)

    def _replace_program(self, image: np.ndarray) -> None:
        if not self._send(image):
            # The machine dropped the one before; with it, what lies in the banks has a meaning again.
            if self._loaded_program is not None:
                self._send(self._loaded_program.image)
            raise ProgramError(
                "the machine refuses the program: its sections are not those of docs/processor.md; compile it anew"
            )

    def _send(self, image: np.ndarray) -> bool:
        """Whether the machine takes a program."""
        if len(self._image) < len(image):
            self._image = self._banks["program_image"].allocate(image.shape, np.int32)
        self._results = self._at_least("results", self._results, self._result_record.itemsize)
        part = self._image[: len(image)]
        part[:] = image
        part.sync_to_device()
        self._run(M.LOAD_PROGRAM, len(image))
        self._results.sync_from_device()
        return int(self._results[0]) == M.DONE

    def _check_machine(self) -> None:
        """Raise OverlayError unless the overlay is the machine that this package compiles for."""
        self._run(M.DESCRIBE)
        self._results.sync_from_device()
        magic, version, widths = self._results[:3].tolist()
        if (magic, version, widths) != (M.MAGIC, M.VERSION, M.digest):
            raise OverlayError(
                f"the overlay's machine is version {version} with widths {widths & 0xFFFFFFFF:08x}, bttlab compiles "
                f"for version {M.VERSION} with widths {M.digest:08x}; rebuild the overlay with: make overlays"
            )

    def _check(self, samples, optimizer: Optimizer, learning_rate: float | np.ndarray) -> np.ndarray:
        self._check_ready(samples)
        self.program.program.check_optimizer(optimizer)
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

    def _train(self, samples, rates: np.ndarray, optimizer: Optimizer, label_smoothing: float = 0.0) -> np.ndarray:
        """Train on samples that are checked; returns their losses."""
        return self._call(M.TRAIN, samples, rates, optimizer, label_smoothing)["loss"].copy()

    def _call(
        self, command: int, samples, rates: np.ndarray, optimizer: Optimizer, label_smoothing: float = 0.0
    ) -> np.ndarray:
        """Train on or predict samples, as many kernel calls as that takes; returns their results."""
        if command == M.TRAIN and len(samples):
            self._moments = tuple(optimizer.moments)
        done = np.zeros(len(samples), self._result_record)
        for part in self._parts(len(samples)):
            rows = self._rows(samples[part], rates[part], optimizer, label_smoothing)
            self._do(command, rows, optimizer, done[part])
            bad = np.flatnonzero(done["status"][part] != M.DONE)
            if len(bad):
                self._refuse(done, part.start + int(bad[0]), rates)
        return done

    def _parts(self, count: int) -> Iterator[slice]:
        """Yield parts of samples, a kernel call each; on a shared card as long as what is left of the slice."""
        first = 0
        while first < count:
            most = MAX_SAMPLES if self._slices is None else int(self._slices.left * self._samples_per_second)
            part = slice(first, min(count, first + max(1, min(most, MAX_SAMPLES))))
            yield part
            first = part.stop

    def _do(self, command: int, rows: np.ndarray, optimizer: Optimizer, results: np.ndarray) -> None:
        """Train on records of samples, or predict them, and count what is done."""
        done = self._slices is None  # else an interrupt takes it back
        try:
            self._on_card(lambda: self._exchange(command, rows, optimizer, results), stores=command == M.TRAIN)
            done = True
        finally:
            if command == M.TRAIN and done:
                self._count(rows, results)

    def _exchange(self, command: int, rows: np.ndarray, optimizer: Optimizer, results: np.ndarray) -> None:
        """Run the kernel once on records of samples."""
        self._records = self._at_least("records", self._records, rows.nbytes)
        self._results = self._at_least("results", self._results, results.nbytes)
        on_card, answers = (self._records.view(np.uint8)[: rows.nbytes], self._results.view(np.uint8)[: results.nbytes])
        on_card[:] = rows.view(np.uint8)
        answers[:] = 0
        answers.sync_to_device()
        on_card.sync_to_device()
        begin = time.perf_counter()
        try:
            self._run(command, len(rows), optimizer)
        finally:  # Ctrl-C comes after the kernel's end
            self._samples_per_second = len(rows) / (time.perf_counter() - begin)
            answers.sync_from_device()
            results[:] = np.array(answers).view(self._result_record)

    def _refuse(self, results: np.ndarray, sample: int, rates: np.ndarray) -> NoReturn:
        status = STATUS_NAMES.get(int(results["status"][sample]), "an unknown status")
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
        number = OPTIMIZERS[o.name]
        buffers = (self._records, self._results, self._memory, self._image)
        if self._slices is not None:
            self._slices.check()
        waiting = self.device.waited_for() if isinstance(self.device, EmulatedU50) else nullcontext()
        with waiting:
            handle = self._start_kernel(command, samples, number, beta1, o.beta2, o.epsilon, *buffers)
        wait_to_the_end(handle)

    def _store(self) -> None:
        """Bring parameters and moments to the host's parameter memory, where a shared card's always are."""
        with self._exclusively():
            if self._slices is None:
                self._run(M.STORE)
                self._memory.sync_from_device()

    def _block(self, number: int) -> np.ndarray:
        """Parameters (0), first (1) or second moments (2) in the host's parameter memory."""
        first = number * self._layout.words
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
        given = {name: array.shape for name, array in arrays.items()}
        if given != shapes:
            wrong = next(n for n in (*shapes, *given) if given.get(n) != shapes.get(n))
            raise StateError(
                f"{what} of another model: {wrong} is {given.get(wrong, 'missing')}, but "
                f"{shapes.get(wrong, 'not there')} in the loaded program's model of {self.config.encoders} "
                "encoders; load the program of their model"
            )
        return arrays
