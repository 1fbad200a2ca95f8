"""Run one linear layer on the card, in any flow."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from bttlab.card.trainer import TrainerDriver
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.layer import CORES, LayerProgram, LayerShape, compile_layer
from bttlab.compiler.timing import Timing, time_program
from bttlab.tensor.order import Order

PROGRAMS = 64  # size of the cache


@dataclass(frozen=True)
class LayerRun:
    """Results and cycles of a layer's program.

    Attributes
    ----------
    program : LayerProgram
        That ran.
    y, dx : np.ndarray
        Float32, (tokens, features): the output, and the gradient of the input.
    gradients : list of np.ndarray
        Of the cores, in their shapes.
    bias_gradient : np.ndarray
        Of the bias.
    timing : Timing
        Modelled, exact cycles of the machine's loop for both passes.
    """

    program: LayerProgram
    y: np.ndarray
    dx: np.ndarray
    gradients: list[np.ndarray]
    bias_gradient: np.ndarray
    timing: Timing


def shape_of(layer: Any) -> LayerShape:
    """Return the modes and the internal ranks of a layer.

    Parameters
    ----------
    layer : TTLinear
        Of `bttlab.tensor`.

    Returns
    -------
    LayerShape
        Its modes and ranks.
    """
    ranks = tuple(int(core.shape[2]) for core in layer.used_cores())[:-1]
    return LayerShape(tuple(layer.out_modes), tuple(layer.in_modes), ranks)


def _flow(flow: Any) -> Any:
    is_name = isinstance(flow, str) and "=" not in flow
    if is_name or isinstance(flow, Order) or (isinstance(flow, tuple) and all(isinstance(n, int) for n in flow)):
        return flow
    return Order.of(flow)


@lru_cache(PROGRAMS)
def _compiled(shape: LayerShape, tokens: int, flow: Any) -> LayerProgram:
    program = compile_layer(shape, tokens, flow)
    _ = program.image  # a ProgramError if it has too many registers or constants
    return program


def layer_program(layer: Any, tokens: int, flow: Any = "bidirectional") -> LayerProgram:
    """Return the program of a layer's forward and backward pass.

    Parameters
    ----------
    layer : TTLinear or LayerShape
        The layer, or its shape.
    tokens : int
        Number of rows of x.
    flow : str, tuple of int, Order or sequence of str
        "bidirectional", "right_to_left", "auto", or the number of cores merged at each end, as in a model's program;
        or a custom contraction path: a `bttlab.tensor.Order`, or its steps, such as "z = x R4", one per line.

    Returns
    -------
    LayerProgram
        The program.

    Raises
    ------
    ShapeError
        If the steps are not a valid path.
    ProgramError
        If the machine cannot run it; the message names the reason.
    """
    shape = layer if isinstance(layer, LayerShape) else shape_of(layer)
    return _compiled(shape, tokens, _flow(flow))


def run_layer(trainer: Any, layer: Any, flow: Any, x: Any, dy: Any) -> LayerRun:
    """Run a layer's forward and backward pass on the card.

    This replaces the card's program and parameters. Parameters and arguments are converted to float32.

    Parameters
    ----------
    trainer : TrainerDriver or pynq.Overlay
        The driver, or its overlay.
    layer : TTLinear
        Its cores and bias.
    flow : str, tuple of int, Order or sequence of str
        As for `layer_program`.
    x, dy : array or Tensor
        Shape (tokens, features): the input, and the gradient of a loss with respect to y.

    Returns
    -------
    LayerRun
        Results and cycles.

    Raises
    ------
    ShapeError
        If the steps of a path are not valid.
    ProgramError
        If shapes do not fit the layer, or the machine cannot run it.
    """
    trainer = trainer if isinstance(trainer, TrainerDriver) else trainer.trainer_1
    shape = shape_of(layer)
    x, dy = (_array(values) for values in (x, dy))
    tokens = len(x) if x.ndim == 2 else 0
    for name, array, features in (("x", x, shape.in_features), ("dy", dy, shape.out_features)):
        if array.shape != (tokens, features):
            raise ProgramError(f"{name} has the shape {array.shape}: the layer takes (tokens, {features})")
    _check(layer, x)
    program = _compiled(shape, tokens, _flow(flow))
    cores = [_array(core) for core in layer.used_cores()]
    bias = np.zeros(shape.out_features, np.float32) if layer.bias is None else _array(layer.bias)
    trainer.load_program(program)
    inputs = program.pack({"x": x, "dy": dy, "b": bias, **dict(zip(CORES, cores, strict=True))})
    results = program.unpack(trainer.execute(inputs, tokens))
    return LayerRun(
        program,
        results["y"].reshape(dy.shape),
        results["dx"].reshape(x.shape),
        [results[f"d{name}"].reshape(core.shape) for name, core in zip(CORES, cores, strict=True)],
        results["db"],
        time_program(program.forward, tokens, False),
    )


@torch.no_grad()
def _check(layer: Any, x: np.ndarray) -> None:
    """Raise ProgramError if a layer computes something else than x W^T + b: in a hook, or a `forward` of its own."""
    given = torch.as_tensor(x).to(layer.cores[0])
    wanted = given @ layer.to_dense().T + (0 if layer.bias is None else layer.bias)
    if layer.core_map is not None or not bool((layer(given) - wanted).norm() <= 1e-3 * wanted.norm()):
        raise ProgramError(
            f"{type(layer).__name__} does not compute x W^T + b from its cores: it has a core_map, a hook or a forward "
            "of its own; trace a module that has it"
        )


def autograd_errors(run: LayerRun, layer: Any, x: Any, dy: Any) -> dict[str, float]:
    """Compare a run with PyTorch's autograd in double precision, on the weight W reassembled from the cores.

    Parameters
    ----------
    run : LayerRun
        Of `run_layer`.
    layer : TTLinear
        The layer.
    x, dy : array or Tensor
        What it ran on.

    Returns
    -------
    dict of str to float
        Largest errors of y, dx, dG1 to dG6 and db, relative to the largest element of each.
    """
    cores = [torch.tensor(_array(core), dtype=torch.double, requires_grad=True) for core in layer.used_cores()]
    double_x = torch.tensor(_array(x), dtype=torch.double, requires_grad=True)
    bias = torch.zeros(layer.out_features) if layer.bias is None else layer.bias.detach()
    bias = bias.double().requires_grad_()
    weight = torch.einsum("xia,ajb,bkc,cld,dme,eny->ijklmn", *cores).reshape(layer.out_features, layer.in_features)
    y = double_x @ weight.T + bias
    gradients = torch.autograd.grad(y, [double_x, *cores, bias], torch.tensor(_array(dy), dtype=torch.double))
    expected = [tensor.detach().numpy() for tensor in (y, *gradients)]
    computed = [run.y, run.dx, *run.gradients, run.bias_gradient]
    names = ["y", "dx", *(f"d{name}" for name in CORES), "db"]
    return {n: float(np.abs(a - b).max() / np.abs(b).max()) for n, a, b in zip(names, computed, expected, strict=True)}


def _array(values: Any) -> np.ndarray:
    return np.asarray(values.detach() if hasattr(values, "detach") else values, np.float32)
