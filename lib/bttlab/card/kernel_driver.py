"""Calls of the training processor's kernel: its buffers in HBM, its commands and its results."""

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pynq import DefaultIP

from bttlab.card import waiting
from bttlab.card.emulation import EmulatedU50
from bttlab.card.kernel import OverlayError
from bttlab.card.kernel_call import CallSignature, start_kernel
from bttlab.card.processor import optimizer_arguments, result_dtype
from bttlab.card.sharing import shared
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.machine import M
from bttlab.compiler.program import Program
from bttlab.model import Optimizer
from bttlab.model.trainer import StateError
from bttlab.util.signals import DeferredSignals

# By card, unless it is shared: the driver whose program and parameters are on the chip.
_drivers: "weakref.WeakKeyDictionary[Any, weakref.ref[KernelDriver]]" = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class ChipState:
    """State of the chip between two calls. A call that changes the state replaces the object in one assignment.

    `memory` is the buffer for parameters and moments, once they are loaded; on a shared card it has a copy of them.
    `step` is the number of samples trained on. `moments` and `batch_size` are those of that training's optimizer; the
    batch size is 0 if it is not known.
    `loaded` has parameters and moments of which the banks have some rows alone, as they were loaded.
    """

    program: Program | None = None
    memory: Any = None
    step: int = 0
    moments: tuple[str, ...] | None = None
    loaded: Sequence[Mapping[str, np.ndarray]] = ()
    batch_size: int = 0


class KernelDriver(DefaultIP):
    """The kernel's buffers and commands, independent of any model."""

    def __init__(self, description: dict[str, Any]):
        super().__init__(description)
        # Raw calls of PYNQ 3.0.1, which this class replaces; PYNQ 4 has none. These attributes are reference cycles:
        # they would keep the driver and its buffers until garbage collection.
        for call in ("start", "call", "start_ert", "start_sw"):
            vars(self).pop(call, None)
        self._call_signature = CallSignature(description["registers"])
        self._banks = {
            argument.name: self.device.get_memory_by_name(argument.mem)
            for argument in self._call_signature.arguments
            if argument.mem
        }
        self._result_record = result_dtype()
        self._records = self._allocate("records", M.LANES * 4)
        self._results = self._allocate("results", (1 + -(-len(M.widths) // M.LANES)) * M.LANES * 4)
        self._image = self._banks["program_image"].allocate((1, M.LANES), np.int32)
        self._chip = ChipState()
        self._description, self._share = description, shared(self.device)  # None if the card is not shared
        # On a shared card, one buffer has the state between two calls and the next call writes the other one.
        self._memories = [
            self._banks["memory"].allocate((1, M.LANES), np.float32) for _ in range(2 if self._share else 1)
        ]
        self._samples_per_second = 0.0  # of the last call
        self._on_card(self._check_machine)

    def _on_card(self, work: Callable[[], None], publish: Callable[[], None] = lambda: None) -> None:
        """Run kernel calls, then make their results the driver's state.

        On a shared card `work` runs again if the card was lost meanwhile, so it may change only scratch buffers, and
        must copy the chip's state to host memory. `publish` makes the scratch buffers the driver's state. It runs once,
        after the last check that this process has the card; nothing is repeated after it.
        """
        if self._share is None:
            work()
            publish()
        else:
            self._share.run(self._description, lambda is_current: (is_current or self._restore(), work()), publish)

    @property
    def _has_chip(self) -> bool:
        """False if another driver of this process has loaded a program since this one did."""
        driver = _drivers.get(self.device)
        return self._share is not None or (driver is not None and driver() is self)

    @property
    def memory_banks(self) -> dict[str, tuple[str, Any]]:
        """Tag and memory bank of each argument that is a buffer, by its name."""
        return {
            argument.name: (argument.mem, self._banks[argument.name])
            for argument in self._call_signature.arguments
            if argument.mem
        }

    def _restore(self) -> None:
        if self._chip.program is not None:
            self._send(self._chip.program.image)
        if self._chip.memory is not None:
            self._load(self._chip.memory)

    def _spare_memory(self, vectors: int) -> Any:
        """Return a parameter buffer of at least `vectors` vectors that, on a shared card, does not have the state."""
        in_use = None if self._share is None else self._chip.memory
        return self._sized(next(n for n, buffer in enumerate(self._memories) if buffer is not in_use), vectors)

    def _sized(self, number: int, vectors: int) -> Any:
        """Return a parameter buffer by its number; replace it if it has fewer than `vectors` vectors."""
        if len(self._memories[number]) < vectors:
            self._memories[number] = self._banks["memory"].allocate((vectors, M.LANES), np.float32)
        return self._memories[number]

    def _load(self, memory: Any) -> None:
        memory.sync_to_device()
        self._run(M.LOAD, memory=memory)

    def _store(self, memory: Any) -> None:
        self._run(M.STORE, memory=memory)
        memory.sync_from_device()

    def _replace_program(self, image: np.ndarray) -> None:
        """Load a program; if the machine refuses it, load the previous one again and raise ProgramError."""
        if not self._send(image):
            # The machine has dropped the previous program, which the parameters on chip belong to.
            if self._chip.program is not None:
                self._send(self._chip.program.image)
            raise ProgramError(
                "the machine refuses the program: its sections are not those of docs/processor.md; compile it again"
                if image[0, 1] == M.VERSION
                else "the machine refuses the program, whose samples bring rows of a table or end sums of gradients: "
                "older overlays take none; rebuild it with: make overlays"
            )

    def _send(self, image: np.ndarray) -> bool:
        """Load a program; return False if the machine refuses it."""
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
        """Raise OverlayError if the overlay is not the machine that this package compiles for."""
        self._run(M.DESCRIBE)
        self._results.sync_from_device()
        magic, version, widths = self._results[:3].tolist()
        if (magic, version, widths) != (M.MAGIC, M.VERSION, M.digest):
            raise OverlayError(
                f"the overlay's machine is version {version} with widths {widths & 0xFFFFFFFF:08x}, bttlab compiles "
                f"for version {M.VERSION} with widths {M.digest:08x}; rebuild the overlay with: make overlays"
            )

    def _exchange(self, command: int, rows: np.ndarray, optimizer: Optimizer, results: np.ndarray) -> None:
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
            if not waiting.is_running(self.device):
                answers.sync_from_device()
                results[:] = np.array(answers).view(self._result_record)

    def _run(self, command: int, samples: int = 0, optimizer: Optimizer | None = None, memory: Any = None) -> None:
        memory = self._memories[0] if memory is None else memory
        buffers = (self._records, self._results, memory, self._image)
        if self._share is not None:
            self._share.check()
        elif command == M.LOAD_PROGRAM:
            _drivers[self.device] = weakref.ref(self)
        elif command != M.DESCRIBE and not self._has_chip:
            raise StateError(
                f"another trainer has replaced the program and parameters on {self.device.name}: call load_program and "
                "load_parameters again, or give each trainer a card of its own"
            )
        arguments = (command, samples, *optimizer_arguments(optimizer or Optimizer("sgd")), *buffers)
        if isinstance(self.device, EmulatedU50):
            with DeferredSignals(), self.device.waited_for():
                start_kernel(self, *arguments, signature=self._call_signature).wait()
        else:
            self._run_on_card(arguments)

    def _run_on_card(self, arguments: tuple) -> None:
        """Run the kernel of a real card, with a time limit from the program's modelled cycles."""
        program, trains = self._chip.program, arguments[0] in (M.TRAIN, M.PREDICT)
        cycles = arguments[1] * program.most_cycles if program is not None and trains else 0
        seconds = waiting.LEAST_SECONDS + waiting.MARGIN * cycles / (M.CLOCK_MHZ * 1e6)
        try:
            waiting.run_kernel(
                self.device, lambda: start_kernel(self, *arguments, signature=self._call_signature), arguments, seconds
            )
        except waiting.CardFailedError:
            self._chip = ChipState(self._chip.program)
            raise

    def _allocate(self, argument: str, size: int) -> Any:
        return self._banks[argument].allocate((size // 4,), np.int32)

    def _at_least(self, argument: str, buffer: Any, size: int) -> Any:
        """Return the buffer, or a new one if it is smaller than `size` bytes."""
        return buffer if buffer.nbytes >= size else self._allocate(argument, max(size, 2 * buffer.nbytes))
