"""The tensor layers in other people's models: conversion, derivatives, transforms, and what they import."""

import copy
import functools
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, hessian, jacrev, vmap
from torch.nn.utils import parametrize, prune
from torch.utils.flop_counter import FlopCounterMode

from bttlab.compiler.builder import MAX_RANK
from bttlab.tensor import (
    FLOWS,
    BondGates,
    QuantisedCores,
    ShapeError,
    TTAttention,
    TTLinear,
    TTMEmbedding,
    choose_modes,
    compress,
    padded,
    tt_to_matrix,
)
from bttlab.tensor.compression import CARD_RANK
from bttlab.tensor.shapes import check_row_modes, table_modes
from bttlab.tensor.tt import tt_svd
from bttlab.tensor.ttm import ttm_to_matrix

torch.manual_seed(0)
FLOW_NAMES = [*FLOWS, "auto"]


def small(flow="bidirectional", **options) -> TTLinear:
    return TTLinear(12, 12, (3, 4), (4, 3), 3, flow, dtype=torch.float64, **options)


def within(tensor, ranks, error) -> int | None:
    """The number of elements of a train of these ranks, if its error is allowed."""
    cores = tt_svd(tensor, rank=ranks)
    whole = functools.reduce(lambda a, b: torch.tensordot(a, b, 1), cores).reshape(tensor.shape)
    is_allowed = (whole - tensor).norm() <= error * tensor.norm() * (1 + 1e-9)
    return sum(core.numel() for core in cores) if is_allowed else None


@pytest.mark.parametrize(("error", "most"), [(0.9, 1.2), (0.8, 1.2), (0.6, 1.05), (0.3, 1.05), (0.1, 1.0), (0.02, 1.0)])
def test_an_error_takes_hardly_more_numbers_than_the_best_of_all_ranks(error, most):
    totals = [0, 0]
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        tensor = torch.randn(3, 4, 4, 3, dtype=torch.float64, generator=generator)
        if seed % 2:
            decay = 0.5 ** torch.arange(12, dtype=torch.float64)
            tensor = (tensor.reshape(12, 12) * decay).reshape(tensor.shape)
        cores = tt_svd(tensor, error=error)
        ranks = [core.shape[2] for core in cores[:-1]]
        found = within(tensor, ranks, error)
        assert found == sum(core.numel() for core in cores)  # within the error
        every = itertools.product(range(1, 4), range(1, 13), range(1, 4))
        best = min(filter(None, (within(tensor, ranks, error) for ranks in every)))
        totals = [totals[0] + found, totals[1] + best]
    assert totals[0] <= most * totals[1], totals


def test_a_layer_there_and_back():
    dense = nn.Linear(60, 36, dtype=torch.float64)
    layer = TTLinear.from_linear(dense, error=0.0)
    assert (layer.out_modes, layer.in_modes) == ((4, 3, 3), (3, 4, 5)) and layer.bias is not dense.bias
    x = torch.randn(2, 5, 60, dtype=torch.float64)
    torch.testing.assert_close(layer(x), dense(x))
    torch.testing.assert_close(layer.to_linear().weight, dense.weight)
    torch.testing.assert_close(layer.weight.clone(), dense.weight)
    given = TTLinear.from_linear(nn.Linear(8, 8, bias=False, dtype=torch.bfloat16), rank=2, modes=((8,), (2, 4)))
    assert [core.shape[2] for core in given.cores] == [2, 2, 1]
    assert given.bias is None and given.cores[0].dtype == torch.bfloat16
    for options in ({}, {"rank": 2, "error": 0.1}, {"error": 1.5}):
        with pytest.raises(ShapeError):
            TTLinear.from_linear(dense, **options)


@pytest.mark.parametrize(
    ("size", "modes"), [(768, (12, 8, 8)), (1000, (10, 10, 10)), (7, (7,)), (1, (1,)), (22, (11, 2))]
)
def test_modes_are_as_equal_as_primes_allow(size, modes):
    assert choose_modes(size, 3) == modes


def test_a_model_is_compressed_and_its_report_says_what_was_done():
    model = nn.Sequential(nn.Embedding(100, 64), nn.TransformerEncoderLayer(64, 4, 256, batch_first=True))
    model.add_module("small", nn.Linear(4, 2))
    model.add_module("shared", model[1].linear1)
    model.add_module("head", nn.Linear(64, 100))
    model.head.weight = model[0].weight
    before = sum(parameter.numel() for parameter in model.parameters())
    report = compress(model, rank=4, skip=["1.linear2"])
    by_name = {layer.name: layer for layer in report.layers}
    assert isinstance(model[1].linear1, TTLinear) and model.shared is model[1].linear1
    assert type(model[1].linear2) is nn.Linear and by_name["1.linear2"].note == "skipped"
    assert by_name["head"].note == by_name["0"].note == "shares its weight with another layer"
    assert by_name["small"].note == "cores would not be smaller"
    assert (report.before, report.after) == (before, sum(parameter.numel() for parameter in model.parameters()))
    assert by_name["1.linear1"].ranks == (4,) * 5 and 0 < by_name["1.linear1"].error < 1
    assert "1.linear1" in str(report) and f"{report.after:,}" in str(report)
    x = torch.randn(2, 5, 64)
    with torch.no_grad():  # the encoder's fast path reads weights for itself
        torch.testing.assert_close(model[1].eval()(x), model[1].train(False)(x.clone()))
    assert model[1](x).shape == x.shape
    with pytest.raises(ShapeError, match="skip has nothing: the model has no such layer"):
        compress(model, rank=4, skip=["nothing"])
    with pytest.raises(ShapeError, match="skip is '1': give a list of names"):
        compress(model, rank=4, skip="1")


def test_a_report_says_what_a_large_error_means():
    torch.manual_seed(0)
    random = str(compress(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), rank=4))
    assert "2 of 2 replaced layers have an error above 50%: little of what they had learned is left" in random
    exact = nn.Sequential(TTLinear(64, 64, (4, 4, 4), (4, 4, 4), 4).to_linear())
    assert "error above" not in str(compress(exact, rank=4))


def test_an_error_with_a_largest_rank_gives_layers_that_the_card_trains():
    def made(**options):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(512, 256), nn.Linear(256, 512), nn.Linear(512, 256))
        return compress(model, error=0.6, **options)

    report = made()
    assert CARD_RANK == MAX_RANK == 64
    high = [layer for layer in report.layers if max(layer.ranks) > CARD_RANK]
    assert high and f"{len(high)} of {len(report.layers)} replaced layers have ranks above 64" in str(report)
    limited = made(max_rank=CARD_RANK)
    assert max(rank for layer in limited.layers for rank in layer.ranks) == 64 and "ranks above" not in str(limited)
    assert all(b.error > max(a.error, 0.6) for a, b in zip(report.layers, limited.layers, strict=True) if a in high)
    for options in ({"rank": 4}, {"error": 0.5, "max_rank": 0}):
        with pytest.raises(ShapeError, match="give a rank of at least 1, and an error"):
            compress(nn.Sequential(nn.Linear(16, 16)), **({"max_rank": 8} | options))


def test_an_embedding_is_compressed_and_looks_its_rows_up():
    table = nn.Embedding(30, 14, dtype=torch.float64)
    layer = TTMEmbedding.from_embedding(table, error=0.0)
    assert (layer.row_modes, layer.column_modes) == ((5, 3, 2), (7, 2, 1))
    torch.testing.assert_close(layer(torch.arange(30)), table.weight.detach())


@pytest.mark.parametrize(
    ("rows", "modes"), [(30_522, (32, 31, 31)), (97, (5, 5, 4)), (785, (10, 9, 9)), (800, (10, 10, 8)), (7, (7,))]
)
def test_a_table_of_unequal_factors_is_padded(rows, modes):
    assert table_modes(rows, 3) == check_row_modes(modes, rows) == modes
    with pytest.raises(ShapeError, match="too few; choose"):
        check_row_modes(modes, math.prod(modes) + 1)
    with pytest.raises(ShapeError, match="a mode can be smaller; choose"):
        check_row_modes((modes[0] + 1, *modes[1:]), rows)


def test_rows_beyond_a_padded_table_are_never_read_and_change_nothing():
    table = nn.Embedding(97, 12, dtype=torch.float64)
    layer = TTMEmbedding.from_embedding(table, error=1e-12)
    assert layer.row_modes == (5, 5, 4) and layer.to_dense().shape == (97, 12) == layer.weight.shape
    torch.testing.assert_close(layer(torch.arange(97)), table.weight.detach())
    for wrong in (97, 99, -1):
        with pytest.raises(ShapeError, match=f"ids are from .*{wrong}.*: the table has rows 0 to 96"):
            layer(torch.tensor([[3, wrong]]))
    assert layer(torch.zeros(0, dtype=torch.long)).shape == (0, 12)
    reached = torch.func.vmap(lambda ids: functional_call(layer, dict(layer.named_parameters()), (ids,)))
    torch.testing.assert_close(reached(torch.arange(96).view(2, 48)), table.weight.detach()[:96].view(2, 48, 12))
    other = TTMEmbedding(97, 12, (5, 5, 4), (2, 2, 3), 2)
    other.load_state_dict(TTMEmbedding(97, 12, (5, 5, 4), (2, 2, 3), 4).state_dict())
    assert other.to_dense().shape == (97, 12)


def test_a_state_of_other_ranks_loads():
    source, target = TTLinear(12, 12, (3, 4), (4, 3), 2), TTLinear(12, 12, (3, 4), (4, 3), (1, 3, 2))
    nn.Sequential(target).load_state_dict(nn.Sequential(source).state_dict())
    x = torch.randn(3, 12)
    torch.testing.assert_close(target(x), source(x))
    assert target.extra_repr() == source.extra_repr()
    other = TTLinear(12, 12, (4, 3), (4, 3), 2)
    with pytest.raises(RuntimeError, match="size mismatch"):
        target.load_state_dict(other.state_dict())


@pytest.mark.parametrize("made", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("layer", [lambda: TTLinear(12, 12, (3, 4), (4, 3), 2), lambda: embedding_of_rank(2)])
def test_an_optimizer_made_before_a_state_of_other_ranks_trains_on(layer, made):
    target, source = layer(), layer()
    ranks = [4 * core.shape[-1] for core in source.cores][:-1]
    modes = zip(*([(1, *ranks), (*ranks, 1)]), source.cores, strict=True)
    source.set_cores([torch.randn(before, *core.shape[1:-1], after) for before, after, core in modes])
    parameters = list(target.parameters())
    inputs = torch.arange(12) if isinstance(target, TTMEmbedding) else torch.randn(8, 12)
    earlier = target(inputs)  # its graph is alive until the end
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = made(parameters, 1e-2)
    target.load_state_dict(source.state_dict())
    assert all(new is old for new, old in zip(target.parameters(), parameters, strict=True))
    assert all(core.grad is None for core in target.cores)
    before = target.to_dense().detach()
    optimizer.zero_grad()
    (target(inputs) - 1).square().mean().backward()
    optimizer.step()
    assert (target.to_dense() - before).abs().max() > 1e-3 and earlier.requires_grad
    shapes = [tuple(core.shape) for core in target.cores]
    with pytest.raises(ShapeError, match="cores have the shapes"):
        target.set_cores([core.flatten(0, 1)[None] for core in source.cores])
    assert [tuple(core.shape) for core in target.cores] == shapes


def test_optimizer_state_of_other_ranks_is_an_error_not_a_wrong_step():
    target, source = TTLinear(12, 12, (3, 4), (4, 3), 2), TTLinear(12, 12, (3, 4), (4, 3), 3)
    optimizer = torch.optim.Adam(target.parameters(), 1e-2)
    target(torch.randn(8, 12)).sum().backward()
    optimizer.step()
    target.load_state_dict(source.state_dict())
    target(torch.randn(8, 12)).sum().backward()
    with pytest.raises(RuntimeError, match="size"):
        optimizer.step()


def embedding_of_rank(rank: int) -> TTMEmbedding:
    return TTMEmbedding(12, 6, (3, 4), (3, 2), rank)


WRITES = {
    "init": lambda layer: nn.init.zeros_(layer.weight),
    "init by keyword": lambda layer: nn.init.normal_(layer.weight),
    "copy_": lambda layer: layer.weight.copy_(layer.to_dense()),
    "data": lambda layer: layer.weight.data.mul_(0),
    "row": lambda layer: layer.weight[0].zero_(),
    "transposed": lambda layer: layer.weight.T.fill_(0),
    "chunk": lambda layer: layer.weight.chunk(2)[0].zero_(),
    "index": lambda layer: layer.weight.detach().__setitem__(0, 0.0),
    "augmented": lambda layer: setattr(layer, "weight", layer.weight.__iadd__(1)),
    "out": lambda layer: torch.mul(layer.to_dense(), 2, out=layer.weight),
    "list": lambda layer: torch._foreach_zero_([layer.weight]),
    "freeze": lambda layer: layer.weight.requires_grad_(False),
    "attribute of the tensor": lambda layer: setattr(layer.weight, "data", layer.to_dense()),
    "parameter": lambda layer: setattr(layer, "weight", nn.Parameter(layer.to_dense())),
    "tensor": lambda layer: setattr(layer, "weight", layer.to_dense()),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("layer", [small(), embedding_of_rank(2)], ids=["TTLinear", "TTMEmbedding"])
def test_writing_to_the_weight_is_refused(layer, write):
    before = layer.to_dense().detach().clone()
    made = {TTLinear: "TTLinear.from_linear", TTMEmbedding: "TTMEmbedding.from_embedding"}[type(layer)]
    with torch.no_grad(), pytest.raises(ShapeError, match=f"rebuilt from its cores, .* use {made} or set_cores"):
        WRITES[write](layer)
    assert torch.equal(layer.to_dense(), before)


def test_the_weight_is_read_as_a_tensor_with_gradients():
    layer, dense = small(), nn.Linear(12, 12, dtype=torch.float64)
    x = torch.randn(4, 12, dtype=torch.float64)
    nn.functional.linear(x, layer.weight).sum().backward()
    found = [core.grad.clone() for core in layer.cores]
    layer.zero_grad()
    (x @ layer.to_dense().T).sum().backward()
    torch.testing.assert_close(found, [core.grad for core in layer.cores])
    with torch.no_grad():
        dense.weight.copy_(layer.weight)
        assert torch.equal(dense.weight, layer.to_dense())
        double = layer.weight * 2
        double += 1  # a result is a tensor of its own
        dense.weight.add_(layer.weight)
    assert type(double) is type(layer.weight.clone()) is type(layer.weight.sum()) is torch.Tensor
    assert type(copy.deepcopy(layer.weight.detach())) is torch.Tensor
    with pytest.raises(ValueError, match="read-only"):
        layer.weight.detach().numpy()[0] = 0


@pytest.mark.parametrize("flow", FLOW_NAMES)
def test_forward_mode_derivatives_are_those_of_the_dense_formula(flow):
    layer = small(flow)
    parameters = {name: value.detach() for name, value in layer.named_parameters()}
    x, v = torch.randn(2, 5, 12, dtype=torch.float64)
    wanted = v @ layer.to_dense().detach().T
    torch.testing.assert_close(torch.func.jvp(layer, (x,), (v,))[1], wanted)
    torch.testing.assert_close(torch.func.linearize(layer, x)[1](v), wanted)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, v)
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(layer(dual)).tangent, wanted)

    def curvature(value):  # second derivative of a sample's loss along one direction of the cores
        along = {name: tensor + value * torch.ones_like(tensor) for name, tensor in parameters.items()}
        return functional_call(layer, along, (x[:1],)).square().sum()

    zero, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    forward = torch.func.jvp(torch.func.grad(curvature), (zero,), (one,))[1]
    torch.testing.assert_close(forward, torch.func.grad(torch.func.grad(curvature))(zero))


def test_forward_mode_of_the_embedding():
    layer, ids = embedding_of_rank(2).double(), torch.tensor([0, 5, 5, 11])
    tangents = {name: torch.randn_like(value) for name, value in layer.named_parameters()}
    parameters = {name: value.detach() for name, value in layer.named_parameters()}
    _, found = torch.func.jvp(lambda given: functional_call(layer, given, (ids,)), (parameters,), (tangents,))
    _, table = torch.func.jvp(lambda given: ttm_to_matrix(list(given.values())), (parameters,), (tangents,))
    torch.testing.assert_close(found, table[ids])
    with torch.autograd.forward_ad.dual_level():
        dual = {name: torch.autograd.forward_ad.make_dual(parameters[name], tangents[name]) for name in parameters}
        rows = functional_call(layer, dual, (ids,))
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(rows).tangent, table[ids])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"padding_idx": 0}, "padding_idx 0"),
        ({"max_norm": 1.0}, "max_norm 1.0"),
        ({"scale_grad_by_freq": True}, "scale"),
    ],
)
def test_an_embedding_with_an_option_that_a_ttm_loses_is_refused(options, reason):
    table = nn.Embedding(64, 64, **options)
    with pytest.raises(ShapeError, match=f"the embedding has {reason}.*keep it dense"):
        TTMEmbedding.from_embedding(table, rank=2)
    assert reason in compress(nn.Sequential(table), rank=2).layers[0].note
    if "padding" in reason:
        model = nn.Sequential(table)
        assert compress(model, rank=2, ignore_padding=True).layers[0].ranks == (2, 2)
        torch.testing.assert_close(
            model[0](torch.arange(64)), TTMEmbedding.from_embedding(table, rank=2, ignore_padding=True).to_dense()
        )
    else:
        assert reason in compress(nn.Sequential(table), rank=2, ignore_padding=True).layers[0].note


def second_derivatives(outputs, inputs):
    grads = torch.autograd.grad(outputs.pow(3).sum(), inputs, create_graph=True)
    return torch.autograd.grad(sum(grad.pow(2).sum() for grad in grads), inputs)


@pytest.mark.parametrize("flow", FLOW_NAMES)
def test_second_derivatives_are_those_of_the_dense_formula(flow):
    layer = small(flow)
    nn.init.normal_(layer.bias)
    x = torch.randn(5, 12, dtype=torch.float64, requires_grad=True)
    dense = x @ tt_to_matrix(list(layer.cores), layer.out_modes).T + layer.bias
    found, wanted = (second_derivatives(outputs, (x, *layer.cores)) for outputs in (layer(x), dense))
    torch.testing.assert_close(found, wanted)


def test_second_derivatives_of_the_embedding():
    layer = TTMEmbedding(12, 6, (3, 4), (3, 2), 2, dtype=torch.float64)
    ids = torch.tensor([0, 5, 5, 11])
    found, wanted = (second_derivatives(rows, tuple(layer.cores)) for rows in (layer(ids), layer.to_dense()[ids]))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("flow", FLOW_NAMES)
def test_functions_of_torch_func(flow):
    layer = small(flow)
    parameters = {name: value.detach() for name, value in layer.named_parameters()}
    x = torch.randn(4, 12, dtype=torch.float64)

    def loss(given, sample):
        return functional_call(layer, given, (sample,)).pow(2).sum()

    each = vmap(jacrev(loss), (None, 0))(parameters, x)  # gradients sample by sample
    for k, sample in enumerate(x):
        whole = torch.autograd.grad(layer(sample[None]).pow(2).sum(), list(layer.cores))
        for name, grad in zip(("cores.0", "cores.1", "cores.2", "cores.3"), whole, strict=True):
            torch.testing.assert_close(each[name][k], grad)
    dense = hessian(lambda sample: (sample @ layer.weight.detach().T + layer.bias.detach()).pow(2).sum())(x[0])
    torch.testing.assert_close(hessian(lambda sample: loss(parameters, sample[None]))(x[0]), dense)
    assert dense.abs().sum() > 1


@pytest.mark.parametrize("flow", FLOW_NAMES)
def test_autocast_computes_in_bfloat16_and_leaves_fp32_gradients(flow):
    layer = TTLinear(12, 12, (3, 4), (4, 3), 3, flow)
    x = torch.randn(7, 12)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16 and all(core.grad.dtype == torch.float32 for core in layer.cores)
    torch.testing.assert_close(y.float(), layer(x), rtol=0.1, atol=0.1)


def test_layers_on_device_meta_run_and_get_values_later():
    made = nn.Sequential(TTMEmbedding(12, 6, (3, 4), (3, 2), 2), TTLinear(6, 12, (3, 4), (3, 2), 3))
    with torch.device("meta"):
        meta = nn.Sequential(TTMEmbedding(12, 6, (3, 4), (3, 2), 2), TTLinear(6, 12, (3, 4), (3, 2), 3))
    y = meta(torch.zeros(2, 5, dtype=torch.long, device="meta"))
    y.sum().backward()
    assert y.is_meta and y.shape == (2, 5, 12) and all(p.grad.is_meta for p in meta.parameters())
    filled, ids = meta.to_empty(device="cpu"), torch.arange(12)
    filled.load_state_dict(made.state_dict())
    torch.testing.assert_close(filled(ids), made(ids))
    with pytest.raises(ShapeError, match="the weight has no values, or NaN or infinite ones"):
        TTLinear.from_linear(nn.Linear(6, 6, device="meta"), 2)
    with pytest.raises(ShapeError, match=r"the tensor has torch.int64: cores are no integers; call float\(\) first"):
        tt_svd(torch.arange(36).reshape(6, 6), rank=2)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_pytorchs_encoder_layer_is_compressed_whole(batch_first, norm_first):
    """At full rank nothing changes, masks included; its attention has four matrices of cores."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=batch_first, norm_first=norm_first)
    nn.init.normal_(layer.self_attn.in_proj_bias)
    x = torch.randn(3, 5, 64) if batch_first else torch.randn(5, 3, 64)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    padding = torch.arange(5) >= torch.tensor([[5], [3], [4]])
    masks = {}, {"src_mask": causal, "is_causal": True}, {"src_key_padding_mask": padding}
    wanted = [layer(x, **mask) for mask in masks]
    smaller = copy.deepcopy(layer)
    report = compress(smaller, error=1e-12)
    assert [line.name for line in report.layers] == [
        *(f"self_attn.{part}" for part in ("query", "key", "value", "output")),
        *("linear1", "linear2"),
    ]
    for part in ("query", "key", "value", "output"):
        dense = getattr(smaller.self_attn, part)
        setattr(smaller.self_attn, part, TTLinear.from_linear(dense, error=1e-12))
    for mask, y in zip(masks, wanted, strict=True):
        torch.testing.assert_close(smaller(x, **mask), y, atol=1e-4, rtol=1e-4)
    report = compress(layer, rank=4)
    assert report.after < report.before / 5
    assert sum(isinstance(module, TTLinear) for module in layer.modules()) == 6
    layer(x).square().mean().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_takes_the_masks_of_pytorchs(batch_first):
    """PyTorch's encoder makes numbers of a bool mask before it calls its attention; other modules do not."""
    model = nn.ModuleList([nn.MultiheadAttention(64, 2, batch_first=batch_first)])
    dense, x = copy.deepcopy(model[0]), torch.randn(3, 5, 64)
    compress(model, error=1e-12)
    x = x if batch_first else x.transpose(0, 1)
    causal, padding = torch.ones(5, 5, dtype=torch.bool).triu(1), torch.arange(5) >= torch.tensor([[5], [3], [4]])
    by_head = torch.randn(6, 5, 5)
    for masks in (
        {"attn_mask": causal, "key_padding_mask": padding},
        {"attn_mask": by_head},
        {"attn_mask": by_head > 1, "key_padding_mask": padding},
    ):
        torch.testing.assert_close(model[0](x, x, x, **masks)[0], dense(x, x, x, **masks)[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("skip", [[], ["layers.0.self_attn", "layers.1.self_attn"], ["layers.0.linear1"]])
def test_pytorchs_encoder_is_compressed_with_a_padding_mask_in_eval(skip):
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 512, batch_first=True), 2).eval()
    x, padding = torch.randn(3, 5, 64), torch.arange(5) >= torch.tensor([[5], [3], [4]])
    compress(model, rank=8, skip=skip)
    y = model(x, src_key_padding_mask=padding)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            torch.testing.assert_close(model(x, src_key_padding_mask=padding)[~padding], y[~padding])
    for n, length in enumerate((5, 3, 4)):  # what is hidden is as if it were not there
        torch.testing.assert_close(y[n, :length], model(x[n : n + 1, :length])[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("flow", FLOW_NAMES)
@pytest.mark.parametrize("bias", [True, False])
def test_what_follows_a_layer_may_work_in_place(flow, bias):
    layer, x = small(flow, bias=bias), torch.randn(2, 5, 12, dtype=torch.float64)
    wanted = torch.relu(layer(x)).sum()
    found = nn.ReLU(inplace=True)(layer(x)).sum()
    found.backward()
    gradients = [p.grad.clone() for p in layer.parameters()]
    for gradient, other in zip(gradients, torch.autograd.grad(wanted, list(layer.parameters())), strict=True):
        assert torch.equal(gradient, other)


def test_parametrizations_of_cores_take_effect_and_pruning_is_refused():
    class Twice(nn.Module):
        def forward(self, core):
            return 2 * core

    layer, x = small(bias=False), torch.randn(3, 12, dtype=torch.float64)
    before = layer(x)
    parametrize.register_parametrization(layer.cores, "0", Twice())
    torch.testing.assert_close(layer(x), 2 * before)
    layer = small()
    prune.l1_unstructured(layer.cores, "0", 0.5)
    with pytest.raises(ShapeError, match=r"core 0 is pruned.*prune.remove"):
        layer(x)


def test_each_parameter_keeps_whether_it_is_trained():
    dense = nn.Linear(12, 12)
    dense.weight.requires_grad_(False)
    layer = TTLinear.from_linear(dense, rank=3, modes=((3, 4), (4, 3)))
    layer.set_cores([core.detach().clone() for core in layer.cores])
    assert [p.requires_grad for p in layer.cores] == [False] * 4 and layer.bias.requires_grad
    assert [p.requires_grad for p in layer.to_linear().parameters()] == [False, True]
    model = nn.ModuleList([nn.MultiheadAttention(64, 2)])
    model[0].in_proj_weight.requires_grad_(False)
    model[0].out_proj.bias.requires_grad_(False)
    compress(model, rank=2)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    biases = {f"0.{part}.bias" for part in ("query", "key", "value")}
    assert trained == {f"0.output.cores.{k}" for k in range(6)} | biases


@pytest.mark.parametrize("flow", FLOW_NAMES)
def test_complex_weights_have_the_gradients_of_the_dense_formula(flow):
    layer = TTLinear(12, 12, (3, 4), (4, 3), 3, flow, dtype=torch.complex128)
    x = torch.randn(5, 12, dtype=torch.complex128, requires_grad=True)
    w = torch.randn(5, 12, dtype=torch.complex128)
    leaves = [x, *layer.parameters()]
    dense = x @ layer.to_dense().T + layer.bias
    found, wanted = (torch.autograd.grad((y * w).real.square().sum(), leaves) for y in (layer(x), dense))
    torch.testing.assert_close(found, wanted)
    table, ids = TTMEmbedding(12, 6, (3, 4), (3, 2), 2, dtype=torch.complex128), torch.tensor([0, 5, 5, 11])
    leaves = list(table.cores)
    found, wanted = (torch.autograd.grad(y.abs().square().sum(), leaves) for y in (table(ids), table.weight[ids]))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("flow", FLOW_NAMES)
def test_frozen_cores_cost_no_gradient(flow):
    layer, x = small(flow), torch.randn(5, 12, dtype=torch.float64, requires_grad=True)
    wanted = torch.autograd.grad(layer(x).square().sum(), [x, layer.bias])
    counts = []
    for is_trained in (True, False):
        layer.cores.requires_grad_(is_trained)
        y = layer(x).square().sum()
        with FlopCounterMode(display=False) as counter:
            found = torch.autograd.grad(y, [x, layer.bias])
        counts.append(counter.get_total_flops())
        torch.testing.assert_close(found, wanted)
    assert counts[1] < counts[0]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of the check of the input's shape
def test_other_formats_take_a_layer_or_name_what_does():
    layer, table = small().float(), TTMEmbedding(12, 6, (3, 4), (3, 2), 2)
    x, ids = torch.randn(2, 5, 12), torch.tensor([[1, 5]])
    torch.testing.assert_close(torch.jit.trace(layer, x)(x[:1, :2]), layer(x[:1, :2]))
    torch.testing.assert_close(torch.jit.trace(table, ids)(ids.T), table(ids.T))
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), layer(x))
    for one, given in ((layer, x), (table, ids)):  # what torch.onnx.export begins with: functions of torch alone
        kinds = {node.kind() for node in torch.jit.trace(one, given).inlined_graph.nodes()}
        assert {kind.partition("::")[0] for kind in kinds} <= {"aten", "prim"} and "prim::PythonOp" not in kinds
        assert "autograd_function" not in torch.export.export(one, (given,)).run_decompositions().graph_module.code
    for one in (layer, nn.Sequential(table)):
        with pytest.raises(ShapeError, match=r"torch.jit.script does not take TT.*: use torch.jit.trace"):
            torch.jit.script(one)


def test_what_compression_would_lose_stays_dense_and_is_named():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.padded, self.bounded = nn.Embedding(64, 64, padding_idx=0), nn.Embedding(64, 64, max_norm=1.0)
            self.hooked, self.first = nn.Linear(64, 64), nn.Linear(64, 64)
            self.second = self.first
            self.hooked.register_forward_hook(lambda *_: None)

    net = Net()
    notes = {layer.name: layer.note for layer in compress(net, rank=2).layers}
    assert notes == {
        "padded": "has padding_idx 0: ignore_padding=True replaces it",
        "bounded": "has max_norm 1.0",
        "hooked": "has hooks",
        "first": "",
    }
    assert net.second is net.first and type(net.first) is TTLinear
    nn.init.constant_(net.hooked.weight, float("nan"))
    net.hooked._forward_hooks.clear()
    with pytest.raises(ShapeError, match=r"^hooked: the weight has no values, or NaN"):
        compress(net, rank=2)


def test_torch_fx_keeps_the_layers_whole():
    layers = TTMEmbedding(60, 64, (3, 4, 5), (4, 4, 4), 4), TTLinear(64, 64, (8, 8), (8, 8), 4)
    model, ids = nn.Sequential(*layers), torch.arange(12).view(2, 6)
    traced = torch.fx.symbolic_trace(model)
    assert [node.op for node in traced.graph.nodes] == ["placeholder", "call_module", "call_module", "output"]
    assert torch.equal(traced(ids), model(ids)) and torch.equal(traced(ids[:, :1]), model(ids[:, :1]))
    for layer in layers:
        with pytest.raises(TypeError, match=f"traces {type(layer).__name__} as one call: trace a module around it"):
            torch.fx.symbolic_trace(layer)


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("make", [lambda r: TTLinear(8, 8, (2, 2, 2), (2, 2, 2), r), lambda r: embedding_of_rank(r)])
def test_cores_keep_their_order_after_a_parametrization_or_pruning_is_removed(rank, make):
    class Double(nn.Module):
        def forward(self, core):
            return 2 * core

    layer = make(rank)
    layer.cores[0].data *= 2
    wanted = layer.to_dense()
    layer.cores[0].data /= 2
    parametrize.register_parametrization(layer.cores, "0", Double())
    parametrize.remove_parametrizations(layer.cores, "0")
    torch.testing.assert_close(layer.to_dense(), wanted)
    prune.remove(prune.identity(layer.cores, "0"), "0")
    torch.testing.assert_close(layer.to_dense(), wanted)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
def test_hooks_on_cores_that_do_not_run_are_refused():
    for hook in (nn.utils.weight_norm, nn.utils.spectral_norm):
        layer = small()
        hook(layer.cores, "1")
        with pytest.raises(ShapeError, match=r"core 1 has the parameter 1_.*: use torch\.nn\.utils\.parametrizations"):
            layer(torch.zeros(1, 12, dtype=torch.float64))


def test_writing_to_parametrized_cores_is_refused():
    layer = small()
    cores = [core.detach() for core in layer.cores]
    parametrize.register_parametrization(layer.cores, "1", nn.Identity())
    for write in (lambda: layer.set_cores(cores), layer.reset_parameters):
        with pytest.raises(ShapeError, match="core 1 is parametrized or pruned, so writing to it would be lost"):
            write()


def test_a_conversion_of_parametrized_weights_stays_trained():
    layer = small()
    for k in range(len(layer.cores)):
        parametrize.register_parametrization(layer.cores, str(k), nn.Identity())
    assert layer.to_linear().weight.requires_grad
    with torch.no_grad():
        made = TTLinear.from_linear(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), 2)
    assert all(core.requires_grad for core in made.cores)


@pytest.mark.parametrize("ids", [[59, 60], [-1, 3]])
def test_rows_that_only_pad_a_table_are_refused_in_transforms(ids):
    table = TTMEmbedding(60, 8, (4, 4, 4), (2, 2, 2), 2)
    known = torch.tensor([59, 3])
    for call in (torch.compile(table, backend="eager"), vmap(table), torch.jit.trace(table, known)):
        torch.testing.assert_close(call(known), table(known))
        with pytest.raises((RuntimeError, IndexError)):
            call(torch.tensor(ids))


def test_a_table_has_batched_gradients():
    table = TTMEmbedding(8, 8, (2, 2, 2), (2, 2, 2), 2)
    y, v = table(torch.tensor([1, 5, 5])), torch.randn(4, 3, 8)
    batched = torch.autograd.grad(y, list(table.cores), v, is_grads_batched=True, retain_graph=True)
    for k in range(4):
        single = torch.autograd.grad(y, list(table.cores), v[k], retain_graph=True)
        torch.testing.assert_close([grads[k] for grads in batched], list(single))


def test_dense_weights_under_autocast():
    table, layer = embedding_of_rank(2), TTLinear(12, 12, (3, 2, 2), (2, 2, 3), 3)
    dense = table.to_embedding().weight, layer.to_linear().weight
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close((table.to_embedding().weight, layer.to_linear().weight), dense, rtol=0, atol=0)
        assert TTMEmbedding(8, 8, (2, 2, 2), (2, 2, 2), 2).weight.dtype == torch.bfloat16  # a head that shares it


def test_a_number_as_the_input_and_a_flow_set_later_are_refused():
    layer = small()
    with pytest.raises(ShapeError, match=r"input has shape \(\): its last dimension must be in_features = 12"):
        layer(torch.tensor(1.0))
    layer.flow = "left_to_right"
    with pytest.raises(ShapeError, match="flow is 'left_to_right': choose one of"):
        layer(torch.zeros(1, 12))


def attention_of_linears(**without_bias) -> TTAttention:
    parts = {name: nn.Linear(16, 16, name not in without_bias) for name in ("query", "key", "value", "output")}
    for part in parts.values():
        nn.init.normal_(part.bias) if part.bias is not None else None
    return TTAttention(**parts, num_heads=2)


def test_attention_takes_each_mask_as_pytorch_does():
    made = attention_of_linears()
    dense, x, hidden = made.to_attention(), torch.randn(2, 5, 16), torch.zeros(2, 5, dtype=torch.bool)
    hidden[1, 3:] = True
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    wanted = dense(x, x, x, key_padding_mask=hidden, attn_mask=causal)[0]
    torch.testing.assert_close(made(x, x, x, key_padding_mask=hidden, is_causal=True)[0], wanted)
    heads = torch.randn(2, 5, 5)
    wanted = dense(x[0], x[0], x[0], attn_mask=heads)[0]
    torch.testing.assert_close(made(x[0], x[0], x[0], attn_mask=heads)[0], wanted)
    with pytest.raises(ShapeError, match=r"key_padding_mask has torch\.int64: a mask is bool"):
        made(x, x, x, key_padding_mask=hidden.long())


def test_attention_with_some_biases_becomes_dense():
    x = torch.randn(2, 5, 16)
    for name in ("query", "output"):
        made = attention_of_linears(**{name: False})
        torch.testing.assert_close(made.to_attention()(x, x, x)[0], made(x, x, x)[0])
    made.key = nn.Linear(8, 16)
    with pytest.raises(ShapeError, match=r"take \[16, 8, 16\] features"):
        made.to_attention()


def test_layers_that_share_a_part_or_hook_one_stay_dense():
    layers = [
        nn.Linear(64, 64),
        nn.Linear(64, 64),
        *(nn.MultiheadAttention(64, 2) for _ in range(4)),
        nn.Linear(64, 64),
    ]
    model = nn.Sequential(*layers)
    layers[1].bias = layers[0].bias
    layers[3].in_proj_weight = layers[2].in_proj_weight
    parametrize.register_parametrization(layers[4].out_proj, "weight", nn.Identity())
    layers[5].out_proj.register_full_backward_hook(lambda *_: None)
    layers[6].register_full_backward_pre_hook(lambda *_: None)
    notes = {layer.name: layer.note for layer in compress(model, 2).layers}
    shared = ["shares its bias with another layer"] * 2 + ["shares its in_proj_weight with another layer"] * 2
    wanted = dict(zip("012345", [*shared, "has a parametrization", "has hooks"], strict=True))
    assert notes == wanted | {"6": "has hooks"}
    assert list(model) == layers


def test_the_error_of_a_half_precision_weight_is_that_of_its_values():
    model = nn.Sequential(nn.Linear(256, 256)).half()
    nn.init.normal_(model[0].weight, 0.0, 400.0)  # its norm is larger than float16 has
    error = TTLinear.from_linear(copy.deepcopy(model[0]).float(), 4).requires_grad_(False)
    weight = model[0].weight.detach().float()
    wanted = (error.to_dense() - weight).norm() / weight.norm()
    assert compress(model, 4).layers[0].error == pytest.approx(float(wanted), rel=1e-3)
    with pytest.raises(ShapeError, match=r"too large for torch\.float16"):
        tt_svd(torch.full((64, 64, 4), 3e3, dtype=torch.float16), 2)


@pytest.mark.parametrize("shape", [(), (0, 3), (3, 0)])
def test_a_tensor_without_elements_or_dimensions_has_no_train(shape):
    with pytest.raises(ShapeError, match="it must have a dimension, and none of size 0"):
        tt_svd(torch.zeros(shape), error=0.1)


def test_core_maps_check_their_arguments():
    with pytest.raises(ShapeError, match="bits is 1: it must be an integer from 2 to 24"):
        QuantisedCores(1)
    cores = [torch.ones(1, 2, 3), torch.ones(3, 2, 1)]
    with pytest.raises(ShapeError, match=r"make BondGates\(\[3\]\)"):
        BondGates([1])(cores)
    for shapes in ([(1, 3, 3), (3, 2, 1)], [(1, 2, 2), (2, 2, 1)]):
        with pytest.raises(ShapeError, match="modes stay, ranks are at least as large"):
            padded(cores, shapes)


def test_arrays_and_functions_in_place_do_not_write_to_a_weight():
    layer = small().requires_grad_(False)
    assert not np.asarray(layer.weight).flags.writeable
    with pytest.raises(ShapeError, match="rebuilt from its cores"):
        nn.functional.relu(layer.weight, inplace=True)
