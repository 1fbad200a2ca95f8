"""Names of version 0.2 for `bttlab.compiler.program.compile`."""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bttlab.compiler.program import Flow, ModelProgram, Options, compile
from bttlab.model.choices import PAPER_FLOW
from bttlab.model.config import ModelConfig, Optimizer

if TYPE_CHECKING:
    from bttlab.compiler.module import ModuleModel


def compiled_program(
    config: "ModelConfig | ModuleModel",
    flow: Flow = PAPER_FLOW,
    sums: bool = False,
    lengths: Mapping[int, int] | None = None,
    batch_size: int = 1,
) -> ModelProgram:
    warnings.warn("compiled_program(model, flow) is now compile(model, Options(flow))", FutureWarning, stacklevel=2)
    return compile(config, Options(flow, Optimizer(batch_size=batch_size), lengths, sums))


def chosen_program(
    config: "ModelConfig | ModuleModel",
    flow: Flow = PAPER_FLOW,
    optimizer: Optimizer | None = None,
    lengths: Mapping[int, int] | None = None,
) -> ModelProgram:
    warnings.warn(
        "chosen_program(model, flow, optimizer, lengths) is now compile(model, Options(flow, optimizer, lengths))",
        FutureWarning,
        stacklevel=2,
    )
    return compile(config, Options(flow, optimizer, lengths))
