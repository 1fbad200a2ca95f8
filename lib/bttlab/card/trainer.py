"""The driver of the training processor: what `overlay.trainer_1` is, on a card and on the emulated one."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bttlab.card.compiled import CompiledProgram, Flow, check_image, compiled_program
from bttlab.card.machine import machine
from bttlab.card.native import result_dtype, sample_dtype, sample_records
from bttlab.card.profile import Profile
from bttlab.card.program.errors import ProgramError
from bttlab.card.program.layout import Layout
from bttlab.card.program.program import Program
from bttlab.model import PAPER_FLOW, ModelConfig, Optimizer, StateError
from bttlab.u50 import records
from bttlab.u50.emulation import EmulatedU50
from bttlab.u50.kernel import TRAINER_KERNEL, OverlayError
from bttlab.u50.manifest import digest, read_file
from bttlab.u50.training import DONE, TrainingDriver

M = machine()
STATUSES = (*records.STATUS, "NO_PROGRAM", "PROGRAM_STUCK")


class Trainer(TrainingDriver):
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
    _statuses: Mapping[int, str] = {M.names[name]: name for name in STATUSES}
    _model_of = "the loaded program's model"
    _way_out = "load the program of their model"

    def __init__(self, description: dict[str, Any]):
        super().__init__(description)
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
        self._check_machine()

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
            if not self._send(compiled.image):
                # The machine dropped the one before; with it, what lies in the banks has a meaning again.
                if self._loaded_program is not None:
                    self._send(self._loaded_program.image)
                raise ProgramError(
                    "the machine refuses the program: its sections are not those of docs/processor.md; compile it anew"
                )
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
        with self._exclusively():
            self._loaded, self._moments = False, None
            self._memory[: len(words)] = words
            self._memory.sync_to_device()
            self._run(M.LOAD)
            result = self._exchange(M.PREDICT, record, Optimizer("sgd"))[0]
            if result["status"] != DONE:
                raise OverlayError(f"the kernel ended with {self._statuses.get(int(result['status']))}; load it anew")
            self._run(M.STORE)
        self._memory.sync_from_device()
        return np.array(self._memory[: len(words)])

    # --- the kernel

    @property
    def _layout(self) -> Layout:
        return self.program.program.model.layout

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(shape) for name, shape in self.program.program.model.shapes.items()}

    def _rows(self, samples, rates: np.ndarray, optimizer: Optimizer, label_smoothing: float) -> np.ndarray:
        return sample_records(self.program.program, samples, rates, optimizer, label_smoothing, self._step)

    def _count(self, rows: np.ndarray, results: np.ndarray) -> None:
        bad = np.flatnonzero(results["status"] != DONE)
        done = int(bad[0]) if len(bad) else len(results)
        self._step += done
        self._profile.add(rows["tokens"][:done].tolist())
        self.counted_cycles += int(results["cycles"].sum(dtype=np.int64) + results["flush_cycles"].sum(dtype=np.int64))

    def _last_arguments(self, optimizer: Optimizer) -> tuple[Any, ...]:
        return self._records, self._results, self._memory, self._image

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
