"""The driver of the contraction kernels: `overlay.contract_right_to_left_1` and `overlay.contract_bidirectional_1`."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pynq import DefaultIP

from bttlab.tensor.shapes import ShapeError
from bttlab.u50.contraction_cycles import STEPS
from bttlab.u50.kernel import CONTRACTION_KERNELS, OverlayError
from bttlab.u50.layer import LayerShape, as_float32
from bttlab.u50.records import LANES
from bttlab.u50.training_run import wait_to_the_end

DESCRIBE, FORWARD, BACKWARD = range(3)
STATUS = ("NOT_REACHED", "DONE", "BAD_TOKENS", "NO_FORWARD")
SHAPE_WORDS, MOST_STEPS = 2, 24  # hls_src/contraction.h, hls_src/steps.h


@dataclass(frozen=True)
class StepRecord:
    """What the emulated card noted of a step: modelled, not measured.

    Attributes
    ----------
    name : str
        The tensor that it makes, as in `bttlab.tensor.flow_cost`, or what it moves.
    begin, end : int
        Cycles from the start of the call.
    multiply_accumulates : int
        That the engines executed, in lanes that carry nothing, too: a row of 12 takes a word of 16.
    """

    name: str
    begin: int
    end: int
    multiply_accumulates: int

    @property
    def cycles(self) -> int:
        """How long it took."""
        return self.end - self.begin


@dataclass(frozen=True)
class Pass:
    """One pass through the layer.

    Attributes
    ----------
    steps : tuple of StepRecord
        In the order of the kernel; steps of the two engines overlap. Empty on a real card, which notes nothing.
    """

    steps: tuple[StepRecord, ...]

    @property
    def cycles(self) -> int:
        """Cycles of the whole call, transfers from and to HBM included (modelled)."""
        return max((step.end for step in self.steps), default=0)


@dataclass(frozen=True)
class Forward(Pass):
    """`y`: float32 of shape (tokens, features)."""

    y: np.ndarray


@dataclass(frozen=True)
class Backward(Pass):
    """`dx`: float32 of shape (tokens, features); `gradients`: of the six cores, in their shapes."""

    dx: np.ndarray
    gradients: list[np.ndarray]


class ContractionKernel(DefaultIP):
    """Contracts one TT linear layer without bias, y = x W^T, in the flow that the kernel is named after.

    Attributes
    ----------
    flow : {"right_to_left", "bidirectional"}
    shape : LayerShape
        Modes, rank and most tokens, as the kernel tells them.
    """

    bindto = tuple(kernel.vlnv for kernel in CONTRACTION_KERNELS.values())

    def __init__(self, description: dict[str, Any]):
        super().__init__(description)
        # PYNQ's raw calls. As attributes they would keep this, and its buffers, until Python collects cycles.
        del self.start, self.call, self.start_ert, self.start_sw
        self.flow = next(flow for flow, kernel in CONTRACTION_KERNELS.items() if kernel.vlnv == description["type"])
        banks = {name: self.device.get_memory_by_name(self.args[name].mem) for name in self.args if self.args[name].mem}
        self._lock = threading.Lock()
        self._tokens: int | None = None  # of the forward pass that is on chip
        self._record = banks["record"].allocate((1 + SHAPE_WORDS + MOST_STEPS, LANES), np.int32)
        self._operands, self._results = (
            banks[name].allocate((1, LANES), np.float32) for name in ("operands", "results")
        )
        self._run(DESCRIBE, 0)
        values = self._record[1 : 1 + SHAPE_WORDS].ravel().tolist()
        self.shape = LayerShape(tuple(values[2:5]), tuple(values[5:8]), values[8], values[1])
        words = self.shape.cores_words + self.shape.tokens * self.shape.features // LANES
        self._operands, self._results = (
            banks[name].allocate((words, LANES), np.float32) for name in ("operands", "results")
        )

    @property
    def _start_kernel(self) -> Callable[..., Any]:
        return self._start_ert if self.device.has_capability("ERT") else self._start_sw

    def forward(self, x: Any, cores: Sequence[Any]) -> Forward:
        """Contract x with the cores.

        Parameters
        ----------
        x : array of shape (tokens, features)
            Arrays and PyTorch tensors are taken as float32.
        cores : sequence of six arrays
            Of the shapes `shape.core_shapes`, as `bttlab.tensor.TTLinear.cores` are.

        Returns
        -------
        Forward

        Raises
        ------
        ShapeError
            If a shape is not the kernel's; nothing is run then.
        """
        x, words = as_float32(x), self.shape.pack(cores)
        if x.ndim != 2 or not 1 <= len(x) <= self.shape.tokens or x.shape[1] != self.shape.features:
            raise ShapeError(
                f"x has the shape {x.shape}: the kernel takes (tokens, {self.shape.features}) with 1 to "
                f"{self.shape.tokens} tokens"
            )
        with self._lock:
            self._tokens = None
            self._operands[: len(words)] = words
            self._tokens_at(self._operands, len(words), len(x))[:] = x
            steps = self._run(FORWARD, len(x))
            self._tokens = len(x)
            return Forward(steps, self._tokens_at(self._results, 0, len(x)).copy())

    def backward(self, dy: Any) -> Backward:
        """Return the gradients of x and the cores of the last `forward`, whose intermediates are on chip.

        Parameters
        ----------
        dy : array of shape (tokens, features)
            Gradient of a loss by y.

        Returns
        -------
        Backward

        Raises
        ------
        OverlayError
            If there was no forward pass.
        ShapeError
            If dy is not of y's shape.
        """
        dy = as_float32(dy)
        with self._lock:
            if self._tokens is None:
                raise OverlayError(f"{self.flow}: no forward pass is on the card; call forward(x, cores) first")
            if dy.shape != (self._tokens, self.shape.features):
                raise ShapeError(f"dy has the shape {dy.shape}, but y has {(self._tokens, self.shape.features)}")
            self._tokens_at(self._operands, 0, len(dy))[:] = dy
            steps = self._run(BACKWARD, len(dy))
            words = self.shape.cores_words
            gradients = self.shape.unpack(np.asarray(self._results[:words]))
            return Backward(steps, self._tokens_at(self._results, words, len(dy)).copy(), gradients)

    def _tokens_at(self, memory: np.ndarray, first: int, tokens: int) -> np.ndarray:
        """View of a matrix (tokens, features) that starts at a word."""
        words = tokens * self.shape.features // LANES
        return np.asarray(memory[first : first + words]).reshape(tokens, self.shape.features)

    def _run(self, command: int, tokens: int) -> tuple[StepRecord, ...]:
        self._operands.sync_to_device()
        wait_to_the_end(self._start_kernel(command, tokens, self._operands, self._results, self._record))
        self._record.sync_from_device()
        status = STATUS[self._record[0, 0]]
        if status != "DONE":
            raise OverlayError(
                f"the kernel {self.flow} ended with {status} for {tokens} tokens: another overlay was loaded, or "
                "another driver used the card, meanwhile; call forward again"
            )
        self._results.sync_from_device()
        if command == DESCRIBE:
            return ()
        names = STEPS[self.flow]["forward" if command == FORWARD else "backward"]
        notes = self._record[1 + SHAPE_WORDS :, :3].tolist()
        steps = (
            StepRecord(name, begin, end, words * LANES) for name, (begin, end, words) in zip(names, notes, strict=False)
        )
        return tuple(step for step in steps if step.end)
