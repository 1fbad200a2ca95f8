"""What rank, tolerance, full rank, initial scale and bias mean in libraries of tensor networks."""

import numpy as np
from probe import main, row

SHAPE = (8, 8, 8)
NORM = 100.0


def decaying() -> np.ndarray:
    """Return a tensor of norm 100 whose singular values halve from one to the next, at each bond."""
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.normal(size=(8, 8)))[0] for _ in range(2))
    values = 2.0 ** -np.arange(8)
    middle = np.zeros(SHAPE)
    for k in range(8):
        middle[k, :, k] = np.linalg.qr(rng.normal(size=(8, 8)))[0][0] * values[k]
    tensor = np.einsum("ai,ijk,kb->ajb", left, middle, right)
    return NORM / np.linalg.norm(tensor) * tensor


def rough() -> np.ndarray:
    return np.random.default_rng(0).normal(size=SHAPE)


def error(found, tensor: np.ndarray) -> float:
    """Return the relative error of a tensor in the Frobenius norm."""
    return float(np.linalg.norm(np.asarray(found).reshape(SHAPE) - tensor) / np.linalg.norm(tensor))


def share(rank) -> dict:
    from tensorly.decomposition import tensor_train

    cores = tensor_train(rough(), rank)
    return {
        "ranks": list(cores.rank),
        "numbers": sum(core.size for core in cores),
        "error": error(cores.to_tensor(), rough()),
    }


@row("tensorly", "`tensor_train(x, rank=8)`, 8 x 8 x 8")
def tensorly_integer() -> dict:
    return {"word": "rank", "means": "the rank of each bond", **share(8)}


@row("tensorly", "`tensor_train(x, rank=1.0)`, the same `x`")
def tensorly_one() -> dict:
    return {"word": "full rank", "means": "a share of the dense numbers, rounded down: not exact", **share(1.0)}


@row("tensorly", '`tensor_train(x, rank="same")`')
def tensorly_same() -> dict:
    return {"word": "full rank", "means": "as `rank=1.0`", **share("same")}


def factorized(rank) -> dict:
    import torch
    from tltorch import FactorizedLinear

    torch.manual_seed(0)
    layer = FactorizedLinear((4, 8, 8), (8, 8, 4), rank=rank, factorization="blocktt")
    weight = layer.weight.to_matrix().detach()
    scale = float(weight.std() / torch.nn.Linear(256, 256).weight.std())
    numbers = sum(parameter.numel() for parameter in layer.weight.parameters())
    return {"ranks": list(layer.weight.rank), "numbers": numbers, "scale": scale, "bias": float(layer.bias.abs().max())}


@row("tensorly-torch", '`FactorizedLinear(…, rank=0.5, factorization="blocktt")`, 256 x 256')
def factorized_half() -> dict:
    return {"word": "rank", "means": "a share of the dense numbers", **factorized(0.5)}


@row("tensorly-torch", "the same, `rank=8`")
def factorized_eight() -> dict:
    return {"word": "initial scale", "means": "far below `nn.Linear`'s: the layer starts near 0", **factorized(8)}


@row("torchTT", "`TT(x, eps=0.1)`")
def torchtt_eps() -> dict:
    import torch
    import torchtt

    tensor = torch.from_numpy(decaying())
    found = torchtt.TT(tensor, eps=0.1)
    means = "the largest relative error of the whole tensor, shared by the bonds"
    return {"word": "tolerance", "means": means, "ranks": list(found.R), "error": error(found.full(), decaying())}


def linear_of_torchtt(initializer: str) -> dict:
    import torch
    from torchtt.nn import LinearLayerTT

    torch.manual_seed(0)
    layer = LinearLayerTT([4, 8, 8], [8, 8, 4], [1, 8, 8, 1], initializer=initializer)
    outputs = layer(torch.eye(256).reshape(256, 4, 8, 8)).detach() - layer.bias.detach()
    scale = float(outputs.std() / torch.nn.Linear(256, 256).weight.std())
    return {"scale": scale, "bias": float(layer.bias.abs().max()), "numbers": sum(core.numel() for core in layer.cores)}


@row("torchTT", '`nn.LinearLayerTT(…, initializer="He")`, 256 x 256, rank 8')
def torchtt_he() -> dict:
    return {"word": "initial scale", "means": "He's: √(2 / inputs); the bias is 0", **linear_of_torchtt("He")}


@row("torchTT", '`nn.LinearLayerTT(…, initializer="Glo")`')
def torchtt_glorot() -> dict:
    return {"word": "initial scale", "means": "Glorot's, near `nn.Linear`'s; the bias is 0", **linear_of_torchtt("Glo")}


def teneva_cores(call: str, scale: float) -> dict:
    import teneva

    tensor = scale / NORM * decaying()
    cores = teneva.svd(tensor, e=0.1) if call == "svd" else teneva.truncate(teneva.svd(tensor, e=1e-14), e=0.1)
    ranks = [core.shape[0] for core in cores] + [1]
    return {"ranks": ranks, "error": error(teneva.full(cores), tensor)}


@row("teneva", "`svd(x, e=0.1)`, `x` of norm 100")
def teneva_svd_large() -> dict:
    return {"word": "tolerance", "means": "an absolute error", **teneva_cores("svd", 100.0)}


@row("teneva", "`svd(x, e=0.1)`, `x` of norm 0.1")
def teneva_svd_small() -> dict:
    return {"word": "tolerance", "means": "the same: a small tensor is cut to rank 1", **teneva_cores("svd", 0.1)}


@row("teneva", "`truncate(cores, e=0.1)`, of norm 0.1")
def teneva_truncate() -> dict:
    return {"word": "tolerance", "means": "a relative error", **teneva_cores("truncate", 0.1)}


def quimb_state(**options) -> dict:
    import quimb.tensor as qtn

    state = qtn.MatrixProductState.from_dense(decaying().reshape(-1), dims=list(SHAPE), **options)
    return {"ranks": [1, *state.bond_sizes(), 1], "error": error(state.to_dense(), decaying())}


@row("quimb", "`MatrixProductState.from_dense(x, dims, cutoff=0.01)`")
def quimb_cutoff() -> dict:
    return {
        "word": "cutoff",
        "means": "the share of the squared norm that a bond may lose: its root is the error",
        **quimb_state(cutoff=0.01),
    }


@row("quimb", "the same without `cutoff`")
def quimb_default() -> dict:
    return {"word": "cutoff", "means": "1e-10: the error is up to 1e-5", **quimb_state()}


if __name__ == "__main__":
    main()
