"""The machine compiled for this host and called without PYNQ: the cycle-accurate or the functional model."""

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.layout import Layout
from bttlab.compiler.machine import M
from bttlab.compiler.program import ModelProgram, Program
from bttlab.model.config import Optimizer
from bttlab.model.trainer import UpdateFactors

OPTIMIZERS = {"sgd": 0, "momentum": 1, "adamw": 2}


def sample_dtype() -> np.dtype:
    return np.dtype(
        [
            ("tokens", "<i4"),
            ("intent", "<i4"),
            ("scalars", "<f4", M.SCALARS),
            ("token_offsets", "<i4", (M.OFFSET_TABLES, M.SEQUENCE)),
            ("slots", "<i4", M.SEQUENCE),
        ]
    )


def result_dtype() -> np.dtype:
    return np.dtype(
        [
            ("status", "<i4"),
            ("intent", "<i4"),
            ("loss", "<f4"),
            ("intent_loss", "<f4"),
            ("slot_loss", "<f4"),
            ("cycles", "<i4"),
            ("flush_cycles", "<i4"),
            ("unused", "<i4", M.LANES - 7),
            ("slots", "<i4", M.SEQUENCE),
        ]
    )


def sample_records(program: ModelProgram, samples: Any, rates: np.ndarray, optimizer: Optimizer, smoothing=0.0, step=0):
    """Return the kernel's records of samples, `step` samples after the first; `rates` are of shape (n,)."""
    config = program.model.config
    records = np.zeros(len(samples), sample_dtype())
    lengths = np.asarray(samples.lengths)
    records["tokens"], records["intent"] = lengths, samples.intents
    width = samples.tokens.shape[1]
    offsets = program.model.embedding.token_offsets(samples.tokens.reshape(-1))
    records["token_offsets"][:, :, :width] = offsets.reshape(len(offsets), len(samples), width).transpose(1, 0, 2)
    records["slots"][:, :width] = samples.slots
    scalars = records["scalars"]
    set_rates(scalars, rates, optimizer, step)
    share = 1 / np.maximum(lengths - 1, 1)
    scalars[:, 4] = 1 - smoothing
    scalars[:, 5] = smoothing / config.intents
    scalars[:, 6] = share
    scalars[:, 7] = (1 - smoothing) * share
    scalars[:, 8] = smoothing / config.slots * share
    return records


def set_rates(scalars: np.ndarray, rates: float | np.ndarray, optimizer: Optimizer, step: int = 0) -> None:
    """Write the scalars that the update needs into those of sample records, float32 of shape (n, scalars)."""
    factors = UpdateFactors.of(optimizer, np.broadcast_to(np.asarray(rates, np.float32), len(scalars)), step)
    scalars[:, 0] = factors.rate
    scalars[:, 9] = factors.same_update
    if optimizer.name == "adamw":
        scalars[:, 1] = factors.step
        scalars[:, 2] = factors.root
        scalars[:, 3] = factors.keep


def optimizer_arguments(optimizer: Optimizer) -> tuple[int, float, float, float]:
    return OPTIMIZERS[optimizer.rule], optimizer.decay, optimizer.beta2, optimizer.epsilon


class NativeProcessor:
    """The machine in a shared library, running one program at a time."""

    def __init__(self, library: Path):
        self._library = ctypes.CDLL(str(library))
        self.program: Program | None = None

    def _call(self, command, samples=0, optimizer=None, records=None, results=None, memory=None, image=None) -> None:
        optimizer = optimizer or Optimizer("sgd")
        pointers = [None if a is None else a.ctypes.data_as(ctypes.c_void_p) for a in (records, results, memory, image)]
        name, *constants = optimizer_arguments(optimizer)
        numbers = [ctypes.c_int(n) for n in (command, samples, name)]
        self._library.trainer(*numbers, *(ctypes.c_float(c) for c in constants), *pointers)

    def load_program(self, program: Program) -> None:
        """Load a program; ProgramError if the machine refuses it because it was made for another machine."""
        image = _aligned(program.image())
        result = _aligned(np.zeros(1, result_dtype()))
        self._call(M.LOAD_PROGRAM, len(image), results=result, image=image)
        if result["status"][0] != M.DONE:
            raise ProgramError(
                "the machine refuses the program: it was made for another width or version; compile it again"
            )
        self.program = program

    @property
    def _layout(self) -> Layout:
        assert isinstance(self.program, ModelProgram)
        return self.program.model.layout

    def load(self, *states: Mapping[str, np.ndarray]) -> None:
        """Load parameters, then first and second moments if given, on chip."""
        layout = self._layout
        memory = _aligned(np.zeros((3 * layout.vectors, M.LANES), np.float32))
        for n, state in enumerate(states):
            memory[n * layout.vectors : (n + 1) * layout.vectors] = layout.pack(state)
        self._call(M.LOAD, memory=memory)

    def store(self) -> list[dict[str, np.ndarray]]:
        """Return the parameters, first moments and second moments on chip."""
        layout = self._layout
        memory = _aligned(np.zeros((3 * layout.vectors, M.LANES), np.float32))
        self._call(M.STORE, memory=memory)
        return [layout.unpack(memory[n * layout.vectors : (n + 1) * layout.vectors]) for n in range(3)]

    def train(self, records: np.ndarray, optimizer: Optimizer) -> np.ndarray:
        results = _aligned(np.zeros(len(records), result_dtype()))
        self._call(M.TRAIN, len(records), optimizer, _aligned(records), results)
        return results

    def predict(self, records: np.ndarray) -> np.ndarray:
        results = _aligned(np.zeros(len(records), result_dtype()))
        self._call(M.PREDICT, len(records), None, _aligned(records), results)
        return results


def _aligned(array: np.ndarray) -> np.ndarray:
    buffer = np.zeros(array.nbytes + 64, np.uint8)
    first = -buffer.ctypes.data % 64
    copy = buffer[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
