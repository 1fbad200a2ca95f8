"""What docs/survey.md names and needs a GPU, beside what it replaces: steps that tools/gpu_record.py times."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Step = Callable[[], object]
NARROW, WIDE = 64, 8192  # features of a layer, on a CPU and on a GPU


def _width(device: torch.device) -> int:
    return WIDE if device.type == "cuda" else NARROW


def two_of_four(weight: Tensor) -> Tensor:
    """Return a matrix with the two smaller of every four neighbours in a row set to 0."""
    fours = weight.unflatten(-1, (-1, 4))
    kept = torch.zeros_like(fours).scatter(-1, fours.abs().topk(2, -1).indices, 1)
    return (fours * kept).flatten(-2)


def sparse_2_4(device: torch.device, folder: Path) -> Iterator[tuple[str, Step]]:
    """Yield products of a layer in FP16, dense and of a weight of which two in four are 0 (torch.sparse)."""
    size = _width(device)
    weight = two_of_four(torch.randn(size, size, dtype=torch.float16, device=device))
    x = torch.randn(size, size, dtype=torch.float16, device=device)
    yield "dense", lambda: F.linear(x, weight)
    sparse = torch.sparse.to_sparse_semi_structured(weight)
    yield "2:4", lambda: F.linear(x, sparse)


def fp8(device: torch.device, folder: Path) -> Iterator[tuple[str, Step]]:
    """Yield training steps of two layers, in BF16 and with products in FP8 (torchao.float8)."""
    size = _width(device)
    layers = [nn.Linear(size, size, bias=False), nn.GELU(), nn.Linear(size, size, bias=False)]
    model = nn.Sequential(*layers).to(device, torch.bfloat16)
    x = torch.randn(size, size, dtype=torch.bfloat16, device=device)

    def step(trained: nn.Module) -> None:
        trained.zero_grad(set_to_none=True)
        trained(x).float().square().mean().backward()

    yield "BF16", partial(step, model)
    from torchao.float8 import convert_to_float8_training

    yield "FP8", partial(step, convert_to_float8_training(copy.deepcopy(model)))


def flash_attention(device: torch.device, folder: Path) -> Iterator[tuple[str, Step]]:
    """Yield training steps of attention, with the matrix of scores in memory and by FlashAttention."""
    shape = (4, 16, 4096, 64) if device.type == "cuda" else (1, 2, 32, 16)  # sequences, heads, tokens, head size
    inputs = [torch.randn(shape, dtype=torch.bfloat16, device=device, requires_grad=True) for _ in range(3)]

    def step(backend: SDPBackend) -> None:
        with sdpa_kernel(backend):
            y = F.scaled_dot_product_attention(*inputs, is_causal=True)
        torch.autograd.grad(y.float().sum(), inputs)

    yield "scores in memory", partial(step, SDPBackend.MATH)
    yield "FlashAttention", partial(step, SDPBackend.FLASH_ATTENTION)


def nvme(device: torch.device, folder: Path) -> Iterator[tuple[str, Step]]:
    """Yield AdamW's updates by the host, with the moments in its memory and in files of `folder` (an NVMe disk)."""
    count = 1 << (28 if device.type == "cuda" else 12)
    folder.mkdir(parents=True, exist_ok=True)

    def update(moments: list[Tensor]) -> Step:
        parameter = nn.Parameter(torch.zeros(count))
        parameter.grad = torch.ones(count)
        optimizer = torch.optim.AdamW([parameter], fused=True)
        state = {"step": torch.zeros(()), "exp_avg": moments[0], "exp_avg_sq": moments[1]}
        optimizer.state[parameter] = state
        return optimizer.step

    yield "host's memory", update([torch.zeros(count) for _ in range(2)])
    with TemporaryDirectory(dir=folder) as draft:
        files = [f"{draft}/moment{number}" for number in range(2)]
        yield "files", update([torch.from_file(name, shared=True, size=count).zero_() for name in files])


TECHNIQUES = {"2:4 sparsity": sparse_2_4, "FP8": fp8, "FlashAttention": flash_attention, "offloading to NVMe": nvme}
