"""Compiled programs: cached by model, and checked before they go to the card."""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.machine import M
from bttlab.compiler.program import Flow, Program, compile_program, fastest
from bttlab.compiler.timing import time_program
from bttlab.model.choices import PAPER_FLOW
from bttlab.model.config import ModelConfig

if TYPE_CHECKING:
    from bttlab.compiler.module import ModuleModel

PROGRAMS = 32  # size of the cache: a sweep uses its models several times


@dataclass(frozen=True, eq=False)
class CompiledProgram:
    """A program and its image in HBM, int32 of shape (vectors, 16)."""

    program: Program
    image: np.ndarray

    @functools.cached_property
    def sha256(self) -> str:
        """Digest of the image, for a run's record."""
        return hashlib.sha256(self.image.tobytes()).hexdigest()

    @functools.cached_property
    def most_cycles(self) -> int:
        """Modelled cycles of a sample of the greatest length, for the time limit of a kernel."""
        program, tokens = self.program, np.array([M.SEQUENCE])
        return sum(int(time_program(part, tokens, True).cycles[0]) for part in (program.sample, program.flush) if part)


def compiled_program(
    config: "ModelConfig | ModuleModel", shapes: Mapping[str, Sequence[int]] | None = None, flow: Flow = PAPER_FLOW
) -> CompiledProgram:
    """Return the program of a model, from a cache of the last ones.

    `shapes` are those of the parameters, if linear layers have different ranks; `flow` and the ProgramError are as for
    `bttlab.compiler.program.compile_program`.
    """
    flow = chosen_flow(config, flow, shapes=shapes)
    items = None if shapes is None else tuple((name, tuple(map(int, shape))) for name, shape in shapes.items())
    found = _compiled(config, items, flow)
    if isinstance(found, ProgramError):
        raise found.with_traceback(None)
    return found


def chosen_flow(
    config: "ModelConfig | ModuleModel",
    flow: Flow,
    lengths: Mapping[int, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Flow:
    """Return the flow that "auto" is for samples of these lengths; any other flow as it is.

    Parameters
    ----------
    lengths : mapping of int to int, optional
        Number of samples of each length; by default one of 13 tokens.
    """
    if flow != "auto":
        return flow
    return fastest(lambda flow: compiled_program(config, shapes, flow).program, lengths).model.flow


@functools.lru_cache(PROGRAMS)
def _compiled(
    config: "ModelConfig | ModuleModel", shapes: tuple[tuple[str, tuple[int, ...]], ...] | None, flow: Flow
) -> CompiledProgram | ProgramError:
    try:
        program = compile_program(config, None if shapes is None else dict(shapes), flow)
    except ProgramError as error:  # cached too: the search for a model that fits takes longer than to compile
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
