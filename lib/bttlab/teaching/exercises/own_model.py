"""Exercises of notebook 08."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.module import ModuleModel
from bttlab.compiler.program import Options, compile
from bttlab.compiler.timing import time_program
from bttlab.compiler.trace import trace
from bttlab.teaching.exercises.answers import called, require_number
from bttlab.teaching.exercises.check import exercise, require
from bttlab.tensor import TTLinear
from bttlab.tensor.shapes import tt_shapes

WIDTH, TOKENS = 64, 16
MODES, RANK = (4, 4, 4), 4  # of the block's layers, at each end


@exercise(
    "08.1",
    "time_program(compile(model, Options(flow)).sample, 20).cycles for two flows; the second over the first.",
)
def longer_sentences(answer: Any, model: ModuleModel) -> str:
    first, second = (
        time_program(compile(model, Options(flow)).sample, 20).cycles for flow in ("bidirectional", "right_to_left")
    )
    require_number(answer, second / first, 5e-3)
    return "What is merged before tokens come is paid once per sample: long sentences pay for it least."


class _Around(nn.Module):
    def __init__(self, layer: nn.Module):
        super().__init__()
        self.table, self.layer, self.head = nn.Embedding(20, WIDTH), layer, nn.Linear(WIDTH, 4)

    def forward(self, tokens):
        return self.head(self.layer(self.table(tokens))[:, 0])


def _require_block(make: Callable, seed: int) -> None:
    torch.manual_seed(seed)
    layer = called(make, WIDTH)
    require(isinstance(layer, nn.Module), f"block({WIDTH}) is {type(layer).__name__}: return an nn.Module")
    try:
        model = trace(_Around(layer), TOKENS)
    except ProgramError as error:
        require(False, f"the card refuses it: {error}")
    kinds = [(op.kind, op.options.get("function"), op.options.get("centred")) for op in model.graph.operations]
    for wanted, what in (
        (("norm", None, False), "RMSNorm"),
        (("function", "silu", None), "SiLU"),
        (("linear", None, None), "TTLinear"),
        (("add", None, None), "x +"),
    ):
        require(wanted in kinds, f"the block has no {what}")
    x = torch.randn(2, 5, WIDTH)
    with torch.no_grad():
        require(layer(x).shape == x.shape, f"of x of shape {tuple(x.shape)} it makes {tuple(layer(x).shape)}")
        norms, layers = (
            [part for part in layer.modules() if isinstance(part, kind)] for kind in (nn.RMSNorm, TTLinear)
        )
        require(len(norms) == 1, f"the block has {len(norms)} nn.RMSNorm, not one")
        require(len(layers) == 2, f"the block has {len(layers)} TT layer{'s' * (len(layers) != 1)}, not two")
        for linear in layers:
            found, asked = [tuple(core.shape) for core in linear.cores], [*map(tuple, tt_shapes(MODES, MODES, RANK))]
            require(found == asked, f"a TT layer has cores of the shapes {found}, not {asked}")
        orders = [x + down(nn.functional.silu(up(norms[0](x)))) for up, down in (layers, layers[::-1])]
        is_right = any(torch.allclose(layer(x), wanted, atol=1e-5) for wanted in orders)
        require(is_right, "it does not compute x + down(silu(up(norm(x))))")


@exercise(
    "08.3",
    "trace both; walk through zip(one.graph.operations, other.graph.operations), and compare op.options.",
)
def look_alikes(answer: Any, first: nn.Module, second: nn.Module) -> str:
    """The name of an option of an operation."""
    pairs = zip(*(trace(module, 12).graph.operations for module in (first, second)), strict=True)
    differ = {key for a, b in pairs for key in a.options if a.options[key] != b.options[key]}
    require(isinstance(answer, str), f"my_difference is {answer!r}: give the name of the option as text")
    require(answer in differ, f"the operations have no {answer!r} of different values")
    require({answer} == differ, f"{answer!r} differs, but so do {', '.join(sorted(differ - {answer}))}")
    return "The graph is what trains: two modules are the same if their operations are, whatever their code looks like."


@exercise(
    "08.2",
    "parts with parameters are made once, in __init__; forward applies the formula from the inside outwards.",
    hidden=lambda block: _require_block(block, 1),
)
def block(answer: Any) -> str:
    """block(width) -> nn.Module."""
    _require_block(answer, 0)
    return "The compiler knew each of its operations: nobody wrote the block's backward pass."
