"""Subspace training: weights as factors, and activations kept for the backward pass in a subspace that follows them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bttlab.tensor import TTLinear
from bttlab_methods.method import Method
from bttlab_methods.setting import MethodError, Setting
from bttlab_methods.training import Training


class LowRankLinear(nn.Module):
    """Linear layer y = x (left right)^T + b, of shapes (out, r) and (r, in), from the singular values of another.

    The kept ones make up at least `explained`, above 0 and at most 1, of the weight's squared Frobenius norm. Each
    factor has their square roots, times what gives the product the weight's norm.
    """

    def __init__(self, linear: nn.Linear, explained: float):
        super().__init__()
        u, s, vh = torch.linalg.svd(linear.weight.detach(), full_matrices=False)
        parts = s.double().square().cumsum(0) / s.double().square().sum()
        rank = min(len(s), int((parts < explained - 1e-9).sum()) + 1)
        roots = (s[:rank] / parts[rank - 1].sqrt()).to(u.dtype).sqrt()
        self.left = nn.Parameter(u[:, :rank] * roots)
        self.right = nn.Parameter(roots[:, None] * vh[:rank])
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(nn.functional.linear(x, self.right), self.left, self.bias)


def keep_input_in_subspace(layer: nn.Module, features: int, rank: int) -> None:
    """Let a layer that is linear in its input keep that for the backward pass by coordinates in a basis of features.

    The basis follows the inputs by a step of subspace iteration at each forward pass, from where it was. The gradient
    of the input is exact, those of the parameters are of the projected input: exact where the basis spans it. The
    layer's forward pass is replaced; it gets a buffer, `basis`, of shape (features, rank), rank at most features.
    """
    device = next(layer.parameters()).device
    start = torch.randn(features, min(rank, features), device=device)
    layer.register_buffer("basis", torch.linalg.qr(start)[0], persistent=False)
    plain = layer.forward

    def forward(x: Tensor) -> Tensor:
        parameters = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        if not torch.is_grad_enabled() or not parameters:
            return plain(x)
        with torch.no_grad():
            rows = x.detach().reshape(-1, features)
            layer.basis = followed(rows, layer.basis)
        return _InSubspace.apply(plain, layer.basis, x, *parameters)

    layer.forward = forward


def followed(rows: Tensor, basis: Tensor) -> Tensor:
    """Return an orthonormal basis, (features, rank), that is nearer to the first singular vectors of rows.

    One step of subspace iteration: the span of rows^T rows basis (Golub and Van Loan, "Matrix Computations", 8.2.4).
    """
    return torch.linalg.qr(rows.t() @ (rows @ basis))[0]


class _InSubspace(torch.autograd.Function):
    """A layer's forward pass, done again on the projected input when gradients are asked for."""

    @staticmethod
    def forward(ctx, layer: Callable[[Tensor], Tensor], basis: Tensor, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(x.reshape(-1, x.shape[-1]) @ basis, basis, *parameters)
        ctx.layer, ctx.shape = layer, x.shape
        return layer(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor):
        coordinates, basis, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            x = (coordinates @ basis.t()).view(ctx.shape).requires_grad_()
            grads = torch.autograd.grad(ctx.layer(x), (x, *parameters), dy)
        return None, None, *grads


@dataclass(frozen=True)
class Subspace(Method):
    """Train weights as two factors of fixed rank, and keep their inputs by coordinates in a basis that follows.

    Of the published method (WASI) this has the activations' half, of a token's features alone, as in
    `keep_input_in_subspace`. The weights' subspace is not iterated: the two factors are trained like any parameters.
    The paper begins with trained weights, whose spectrum falls. That of random weights is nearly flat: less is
    explained, and the factors are scaled up to the weights' norm. With weights=false layers stay as they are.
    """

    name = "subspace"
    family = "subspaces"
    source = (
        'after Nguyen et al., arXiv 2510.09160, "Efficient Resource-Constrained Training of Vision Transformers via '
        'Subspace Optimization" (WASI): its activations; weights as trained factors instead'
    )
    changes = frozenset({"linear layers", "saved activations"})
    ranges = ("explained in (0, 1]", "activation_rank in [1, inf)")
    excludes = frozenset({"bf16"})  # bases are FP32

    # weights, activations: which of them are kept so
    weights: bool = True
    activations: bool = True
    explained: float = 0.2  # part of a weight's squared norm that its factors have at the start, which gives their rank
    activation_rank: int = 32  # coordinates of a token
    rate_factor: float = 2.0  # of the learning rate, where weights are factors

    def __post_init__(self) -> None:
        if not (self.weights or self.activations):
            raise MethodError("method subspace: weights and activations are both false: set one to true")
        super().__post_init__()
        parts = [("linear layers", self.weights), ("saved activations", self.activations)]
        object.__setattr__(self, "changes", frozenset(part for part, changed in parts if changed))

    def change_setting(self, setting: Setting) -> Setting:
        return setting.scaled(self.rate_factor) if self.weights else setting

    def change_model(self, training: Training) -> None:
        hidden = training.setting.config.hidden_size
        for parent in list(training.model.modules()):
            for name, layer in list(parent.named_children()):
                square = isinstance(layer, nn.Linear) and layer.weight.shape == (hidden, hidden)
                if not square and not isinstance(layer, TTLinear):
                    continue
                if self.weights:
                    layer = LowRankLinear(layer, self.explained)
                    setattr(parent, name, layer)
                if self.activations:
                    keep_input_in_subspace(layer, hidden, self.activation_rank)

    def finish(self, training: Training) -> dict[str, Any]:
        layers = training.model.named_modules()
        ranks = {name: layer.left.shape[1] for name, layer in layers if isinstance(layer, LowRankLinear)}
        return {"weight_ranks": ranks} if ranks else {}
