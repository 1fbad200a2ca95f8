"""One call compiles a model; the program is cached, does not change, and keeps nothing of the compiler."""

import gc
import weakref
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from torch import nn

from bttlab.compiler import compiled
from bttlab.compiler import program as program_module
from bttlab.compiler.builder import Builder
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.layer import LayerShape, compile_layer
from bttlab.compiler.lowering import Lowering
from bttlab.compiler.memory.layout import LayoutBuilder
from bttlab.compiler.operation import Context
from bttlab.compiler.program import Options, compile
from bttlab.compiler.trace import trace
from bttlab.model import ModelConfig, Optimizer
from sample_modules import Tagger

from training_processor import SMALL

MODEL = replace(SMALL, encoders=1, slots=SMALL.slots + 2)  # a model that no other test compiles
DOES_NOT_FIT = replace(MODEL, heads=8)


@pytest.fixture
def workspaces(monkeypatch) -> list[weakref.ref]:
    """References to all workspaces of the compiler that are made in a test."""
    made = []
    for workspace in (Lowering, Builder, LayoutBuilder):

        def noted(self, *arguments, of=workspace.__init__, **options) -> None:
            made.append(weakref.ref(self))
            of(self, *arguments, **options)

        monkeypatch.setattr(workspace, "__init__", noted)
    return made


def alive(workspaces: list[weakref.ref]) -> list[str]:
    gc.collect()
    return [type(found).__name__ for found in (reference() for reference in workspaces) if found is not None]


def test_a_program_does_not_keep_its_compiler_alive(workspaces):
    programs = [compile(MODEL), compile(MODEL, Options("mixed", Optimizer("momentum", batch_size=4)))]
    programs.append(compile_layer(LayerShape((4, 4, 4), (4, 4, 4), (4,) * 5), 7))
    with pytest.raises(ProgramError, match="heads of a multiple of 16"):
        compile(DOES_NOT_FIT)
    assert issubclass(Lowering, Context) and len(workspaces) > 8
    assert all(program.image.any() for program in programs) and alive(workspaces) == []


def test_a_program_is_compiled_once(monkeypatch):
    program = compile(MODEL, Options("auto", lengths={9: 3}))
    with pytest.raises(ProgramError, match="heads of a multiple of 16"):
        compile(DOES_NOT_FIT)
    monkeypatch.setattr(program_module, "Lowerings", None)
    assert compile(MODEL, Options("auto", lengths={9: 3})) is program
    assert compile(MODEL, Options(program.flow, Optimizer("adamw"), window=program.window)) is program
    summed, adamw = (Optimizer(name, batch_size=3) for name in ("sgd", "adamw"))
    with pytest.raises(ProgramError, match="heads of a multiple of 16"):
        compile(DOES_NOT_FIT)
    with pytest.raises(TypeError):  # a program with sums is another one
        compile(MODEL, Options("bidirectional", summed))
    plain = compile(MODEL, Options(program.flow, adamw, window=program.window))
    assert plain.why_no_sums and plain.sha256 == program.sha256 and plain.forward is program.forward


def test_a_cached_program_cannot_be_changed():
    program = compile(MODEL)
    with pytest.raises(FrozenInstanceError):
        program.flush = []  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValueError, match="read-only"):
        program.image[0, 0] = 1


def test_the_regions_are_apart_and_have_all_parameters():
    for model, options in ((MODEL, Options()), (MODEL, Options(sums=True)), (ModelConfig(encoders=1), Options())):
        program = compile(model, options)
        purposes = {"parameters", "gradients", "activations", "optimizer state"}
        assert {region.purpose for region in program.regions} == purposes
        layout = program.layout
        parameters = {(region.bank, n + region.first) for region in program.regions for n in range(region.vectors)}
        for block in layout.blocks:
            assert {(block.bank, n) for n in range(block.base, block.base + block.vectors)} <= parameters
        vectors = [region.vectors for region in program.regions if region.purpose == "optimizer state"]
        assert vectors == [layout.vectors] * 2
        random = np.random.default_rng(0)
        tensors = {name: random.random(shape, np.float32) for name, shape in model.parameter_shapes().items()}
        for name, tensor in layout.unpack(layout.pack(tensors)).items():
            assert np.array_equal(tensor, tensors[name])


def test_names_of_version_0_2():
    program, sums = compile(MODEL), compile(MODEL, Options("mixed", sums=True))
    with pytest.warns(FutureWarning, match=r"compile\(model, Options\(flow\)\)"):
        assert program_module.compile_program(MODEL) is program
    with pytest.warns(FutureWarning, match=r"compile\(model, Options\(flow\)\)"):
        assert compiled.compiled_program(MODEL, "mixed", sums=True) is sums
    with pytest.warns(FutureWarning, match=r"Options\(flow, optimizer, lengths\)"):
        assert compiled.chosen_program(MODEL, "mixed", Optimizer(batch_size=2)) is sums
    with pytest.warns(FutureWarning, match=r"leave out \.program"):
        assert program.program is program


class Unread(Tagger):
    """A module with frozen parameters that `forward` does not read."""

    def __init__(self):
        super().__init__()
        self.more = nn.ParameterList(nn.Parameter(torch.zeros(16), requires_grad=False) for _ in range(9))


def test_parameters_that_nothing_reads_are_in_no_bank():
    layout = compile(trace(Unread(), 12)).layout
    names = {f"more.{n}" for n in range(9)}
    assert layout.partial == names and not names & {block.name for block in layout.blocks}
    assert layout.vectors == compile(trace(Tagger(), 12)).layout.vectors
