"""Compiled programs: cached by model, and checked before they go to the card."""

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bttlab.compiler.banks import WINDOW
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.machine import M
from bttlab.compiler.program import CANDIDATES, Flow, ModelProgram, compile_program, fastest
from bttlab.compiler.timing import time_program
from bttlab.model.choices import PAPER_FLOW
from bttlab.model.config import ModelConfig, Optimizer

if TYPE_CHECKING:
    from bttlab.compiler.module import ModuleModel

PROGRAMS = 32  # size of the cache: a sweep uses its models several times


@dataclass(frozen=True, eq=False)
class CompiledProgram:
    """A program and its image in HBM, int32 of shape (vectors, 16)."""

    program: ModelProgram
    image: np.ndarray

    @functools.cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.image.tobytes()).hexdigest()

    @functools.cached_property
    def most_cycles(self) -> int:
        """Modelled cycles of a sample of the greatest length, for the time limit of a kernel."""
        program, tokens = self.program, np.array([M.SEQUENCE])
        return sum(int(time_program(part, tokens, True).cycles[0]) for part in (program.sample, program.flush) if part)


def compiled_program(
    config: "ModelConfig | ModuleModel",
    flow: Flow = PAPER_FLOW,
    sums: bool = False,
    lengths: Mapping[int, int] | None = None,
    batch_size: int = 1,
) -> CompiledProgram:
    """Return the program of a model, from a cache of the last ones.

    `flow`, `sums` and the ProgramError are as for `bttlab.compiler.program.compile_program`. "auto" is the fastest flow
    for updates of `batch_size` samples of these `lengths`: the number of samples of each length, by default one of 13
    tokens.
    """

    def compiled(flow: Flow, window: int) -> CompiledProgram:
        found = _compiled(config, flow, sums, window)
        if isinstance(found, ProgramError):
            raise found.with_traceback(None)
        return found

    window = WINDOW
    if flow == "auto":
        model = fastest(lambda flow, window: compiled(flow, window).program, lengths, batch_size).model
        flow, window = model.flow, model.window
    return compiled(flow, window)


def chosen_program(
    config: "ModelConfig | ModuleModel",
    flow: Flow = PAPER_FLOW,
    optimizer: Optimizer | None = None,
    lengths: Mapping[int, int] | None = None,
) -> CompiledProgram:
    """Return the program that trains a model by an optimizer in the least modelled time.

    An update of several samples takes a program that sums gradients (`compile_program`) if the banks have space for the
    sums. AdamW takes none, since it squares the gradient of each sample.
    """
    if optimizer and optimizer.batch_size > 1 and optimizer.name != "adamw":
        try:
            found = compiled_program(config, flow, True, lengths, optimizer.batch_size)
            if found.program.sums:  # else the flow merges no cores
                return found
        except ProgramError:
            pass  # the sums do not fit
    return compiled_program(config, flow, lengths=lengths)


def why_no_sums(config: "ModelConfig | ModuleModel", flow: Flow, optimizer: Optimizer | None) -> str:
    """Return why no program sums the gradients of an update of several samples; empty if one does."""
    if optimizer is None or optimizer.batch_size == 1:
        return ""
    if optimizer.name == "adamw":
        return "AdamW squares the gradient of each sample"
    reasons = []
    for candidate in CANDIDATES if flow == "auto" else (flow,):
        try:
            compiled_program(config, candidate, sums=True)
            return ""
        except ProgramError as error:
            reasons.append(f"the sums of gradients do not fit: {error}")
    return reasons[0]


@functools.lru_cache(PROGRAMS)
def _compiled(
    config: "ModelConfig | ModuleModel",
    flow: Flow,
    sums: bool,
    window: int,
) -> CompiledProgram | ProgramError:
    try:
        program = compile_program(config, flow, sums, window)
    except ProgramError as error:  # cached, too
        return ProgramError(str(error))
    return CompiledProgram(program, program.image())


def check_image(image: np.ndarray) -> None:
    """Raise ProgramError unless an image is undamaged and made for this package's machine."""
    if image.dtype != np.int32 or image.ndim != 2 or image.shape[1] != M.LANES or len(image) < 2:
        raise ProgramError(
            f"the program is {image.dtype} of shape {image.shape}, not int32 vectors of {M.LANES} integers; "
            "compile it again"
        )
    magic, version, digest, instructions = (int(value) for value in image[0, :4])
    if magic != M.MAGIC:
        raise ProgramError(f"the program begins with {magic:#x}, not with {M.MAGIC:#x}; compile it again")
    if version != M.VERSION:
        raise ProgramError(
            f"the program is of version {version}, the machine on the card of version {M.VERSION}; compile it again"
        )
    if digest != M.digest:
        raise ProgramError(
            f"the program is for a machine of other widths ({digest:08x}, on the card {M.digest:08x}); compile it again"
        )
    if int(np.sum(image, dtype=np.int64)) % (1 << 32) or not 0 < instructions <= M.PROGRAM_DEPTH:
        raise ProgramError("the program was damaged: its numbers do not add up to 0; compile it again")
