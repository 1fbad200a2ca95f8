"""What the recorder does with the functions of attention, and with means over the tokens, which are attention, too."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bttlab.compiler.graph import HIDES
from bttlab.compiler.instruction import max_of, min_of
from bttlab.compiler.operation import Matrix
from bttlab.compiler.ops.attention import usual_scale
from bttlab.compiler.ops.elementwise import Multiply, NumberOperand
from bttlab.compiler.trace.names import Call
from bttlab.compiler.trace.norms import axes_of, of_rows
from bttlab.compiler.trace.record import OF_SCORES, Recorder, Value
from bttlab.compiler.trace.rules import dense, rule, times_row
from bttlab.compiler.trace.values import (
    HIDDEN,
    AttentionScores,
    Elements,
    Formula,
    Refusal,
    Weights,
    heads_in,
    in_order,
    refuse,
)

LEAST = -(2.0**62)  # of a constant that the card loads


def _heads(recorder: Recorder, x: Any) -> tuple[Matrix, int, float]:
    """Return a matrix, its number of heads, and the number by which it is to be multiplied."""
    scaled = recorder.linear(recorder.value(x))
    if scaled is None:
        raise Refusal("matmul of something else than activations", "nn.Linear or TTLinear")
    factor = scaled.factor.reshape(-1)[0]
    if bool((scaled.factor == factor).all()):
        value = Elements(scaled.matrix, scaled.index)
    else:
        value, factor = recorder.recorded(scaled), torch.ones(())
    found = heads_in(value.index, value.matrix.features)
    if found is None:
        value = Elements(*recorder.columns(value))
        found = heads_in(value.index, value.matrix.features)
    if found is None or found[1] != max_of(value.matrix.tokens) or found[1] == 1:
        raise Refusal("attention over other axes", "axes (batch, heads, tokens, features of a head)")
    heads, _, column = found
    matrix, size = value.matrix, value.index.shape[-1] * heads
    return (matrix if size == matrix.features else recorder._part(matrix, column, size)), heads, float(factor)


def _repeated(recorder: Recorder, x: Tensor, heads: torch.Size) -> Tensor:
    """Return keys or values of one head as those of each head of the queries."""
    if x.shape[:-2] == heads:
        return x
    with recorder:
        return x.expand(*heads, *x.shape[-2:])


def _scores(recorder: Recorder, result: Tensor, q: Tensor, k: Tensor) -> AttentionScores:
    """Return the scores q k^T of heads; k is not yet transposed."""
    (a, heads, factor), (b, others, its) = _heads(recorder, q), _heads(recorder, _repeated(recorder, k, q.shape[:-2]))
    if (heads, a.features, a.tokens) != (others, b.features, b.tokens):
        raise Refusal("attention of heads of other sizes", "as many heads, features and tokens of q, k and v")
    tokens = max_of(a.tokens)
    mask = torch.zeros(heads, tokens, tokens, dtype=torch.float64)
    return AttentionScores(a, b, heads, factor * its, mask, torch.arange(mask.numel()).view(result.shape))


# ---- between q k^T and the softmax ----------------------------------------------------------------------------------


def _scores_first(recorder: Recorder, *operands: tuple[Any, float]) -> list[tuple[Any, float]]:
    """Return operands and their factors, or powers, the scores first."""
    return sorted(operands, key=lambda operand: not isinstance(recorder.value(operand[0]), AttentionScores))


@rule("add", "sub", "rsub", table=OF_SCORES)
def _biased(recorder: Recorder, call: Call, x, y, *, alpha=1) -> AttentionScores:
    factors = {"add": (1.0, alpha), "sub": (1.0, -alpha), "rsub": (-alpha, 1.0)}[call.name]
    (x, factor), (mask, its) = _scores_first(recorder, (x, factors[0]), (y, factors[1]))
    return recorder.biased(recorder.value(x).scaled(factor), mask, its)


@rule("mul", "div", "neg", table=OF_SCORES)
def _scaled(recorder: Recorder, call: Call, x, y=-1) -> AttentionScores:
    (x, power), (y, its) = _scores_first(recorder, (x, 1), (y, -1 if call.name == "div" else 1))
    scores, factor, w = recorder.value(x), recorder.constant(y), recorder.value(y)
    if isinstance(w, Weights) and w.element is not None and not scores.is_softmax and its > 0:
        return _times_scalar(recorder, scores, w)
    if factor is None or factor.numel() != 1 or scores.is_softmax or power < 0:
        what = f"{call.name} after the softmax" if scores.is_softmax else f"{call.name} of scores by a tensor"
        raise Refusal(what, "one number for all scores, before the softmax")
    return scores.scaled(float(factor) if its > 0 else 1 / float(factor))


def _times_scalar(recorder: Recorder, scores: AttentionScores, w: Weights) -> AttentionScores:
    """Return scores times an element of a parameter, a learned temperature: those of the queries times it."""
    if scores.biases or bool(scores.mask.any()):
        raise Refusal(f"mul of scores by {w.name} after a mask or bias", "the factor before the mask")
    q = Elements(scores.q, torch.arange(max_of(scores.q.tokens) * scores.q.features).view(-1, scores.q.features))
    return replace(scores, q=recorder.rows(times_row(recorder, q, w)))


@rule("maximum", "max", table=OF_SCORES)
def _limited(recorder: Recorder, call: Call, x, y=None, **options) -> AttentionScores:
    """Return the scores: a key that a limit of them would hide is hidden."""
    if not isinstance(y, Tensor) or options:
        raise Refusal(call.name)
    (x, _), (limit, _) = _scores_first(recorder, (x, 1), (y, 1))
    limit = recorder.constant(limit)
    if limit is None or bool((limit > HIDDEN).any()):
        raise Refusal("maximum of scores", "a constant mask; scores as they are")
    return recorder.value(x)


@rule("where")
def _where(recorder: Recorder, call: Call, condition, input, other) -> Value:
    return _masked_fill(recorder, call, input, condition, other)


@rule("masked_fill")
def _masked_fill(recorder: Recorder, call: Call, scores, mask, value) -> Value:
    held, mask, value = recorder.value(scores), recorder.constant(mask), recorder.constant(value)
    hidden = None if mask is None else (mask != 0) ^ (call.name == "where")
    if hidden is not None and not hidden.any():
        return held
    is_mask = hidden is not None and value is not None and value.numel() == 1 and bool(value <= HIDDEN)
    if isinstance(held, AttentionScores) and not held.is_softmax and hidden is not None and not is_mask:
        by = f"with {float(value):g}" if value is not None and value.numel() == 1 else "with these values"
        raise Refusal(f"{call.name} of scores {by}", f"-inf, or a number up to {HIDDEN:g}: the key is hidden")
    if not isinstance(held, AttentionScores) or held.is_softmax or not is_mask:
        near = "for scores a constant mask with -inf, for features their products with a constant, m * x + (1 - m) * y"
        raise Refusal(call.name, near)
    return replace(held, mask=torch.where(held.spread(hidden), float("-inf"), held.mask))


@rule("softmax")
def _softmax(recorder: Recorder, call: Call, x, dim=-1, *_, **__) -> Value:
    scores = recorder.value(x)
    if (
        not isinstance(scores, AttentionScores)
        or not in_order(scores.index)
        or scores.is_softmax
        or dim % call.result.ndim != call.result.ndim - 1
    ):
        raise Refusal(
            "softmax",
            "one softmax, over the keys of attention; a sigmoid as the gate of two experts; as outputs, the logits "
            "before it",
        )
    return replace(scores, is_softmax=True)


@rule("matmul")
def _matmul(recorder: Recorder, call: Call, a, mat2) -> Value:
    left, right = recorder.value(a), recorder.value(mat2)
    if isinstance(right, Weights):
        return dense(recorder, call.result, a, mat2, False)
    if isinstance(left, AttentionScores):
        return _context(recorder, call.result, left, mat2)
    if isinstance(left, Elements) and isinstance(right, Elements):
        transposed = mat2.detach().transpose(-1, -2)
        value = recorder.recorded(right)
        recorder._set(transposed, Elements(value.matrix, value.index.transpose(-1, -2)))
        return _scores(recorder, call.result, a, transposed)
    raise Refusal("matmul", "nn.Linear or TTLinear, or attention of one token sequence")


@rule("baddbmm")
def _baddbmm(recorder: Recorder, call: Call, mask, batch1, batch2, *, beta=1, alpha=1) -> Value:
    scores = _matmul(recorder, call, batch1, batch2)
    if not isinstance(scores, AttentionScores):
        raise Refusal("baddbmm", "a product of q and k")
    scores = scores if alpha == 1 else scores.scaled(float(alpha))
    return recorder.biased(scores, mask, float(beta)) if beta else scores


def _context(recorder: Recorder, result: Tensor, scores: AttentionScores, v: Tensor) -> Elements:
    """Record softmax(scale q k^T + mask) v."""
    if not in_order(scores.index):
        raise Refusal("attention weights that are transposed or in another order", "softmax(q k^T) v")
    values, heads, factor = _heads(recorder, _repeated(recorder, v, result.shape[:-2]))
    sizes = heads, values.features, values.tokens
    if not scores.is_softmax or sizes != (scores.heads, scores.q.features, scores.q.tokens) or factor != 1:
        raise Refusal("attention without a softmax, or of heads of other sizes", "softmax(q k^T) v of as many heads")
    name = recorder.unique(recorder.name("attention"))
    mask, usual = scores.mask, usual_scale(scores.q.features // heads)
    hidden = mask <= HIDES
    is_causal = bool((hidden == _above(hidden.shape[-1])).all()) and not mask[~hidden].any()
    constant, bias, graph = "", None, recorder.graph
    q, scale = scores.q, scores.scale
    if scale < 0:  # the largest score of a row is that of the largest exponent
        q, scale = graph.same(Multiply, q, recorder.unique(recorder.name("minus")), NumberOperand(-1.0)), -scale
    if (mask <= HIDDEN).all(-1).any():
        raise Refusal("attention with a mask that hides all keys of a token", "a mask that shows a key to each token")
    is_masked = bool(mask.any())
    if scores.biases or (is_masked and not is_causal):
        if not scale:
            raise Refusal("attention of scale 0", "a scale that is not 0")
        mask = (mask.clamp(min=HIDES) / scale).clamp(min=LEAST)  # the card multiplies the sum by the scale
    if scores.biases:
        is_causal = False  # the mask is in the bias
        for number, learned in enumerate(scores.biases):
            its_mask = mask.float().numpy() if is_masked and not number else None
            term = _learned_bias(recorder, learned, 1 / scale, its_mask)
            bias = term if bias is None else graph.add(bias, term, recorder.unique(recorder.name("add")))
    elif is_masked and not is_causal:
        mask = mask[0] if bool((mask == mask[:1]).all()) else mask.flatten(0, 1)
        constant = graph.constant(mask.float().numpy(), f"mask of {name}")
    scale = None if math.isclose(scale, usual, rel_tol=1e-6) else scale
    context = graph.attention(q, scores.k, values, heads, name, is_causal, scale, constant, bias)
    tokens, features = max_of(values.tokens), values.features
    size = features // heads
    index = torch.arange(tokens)[:, None] * features + torch.arange(size) + size * torch.arange(heads)[:, None, None]
    return Elements(context, index.view(result.shape))


def _learned_bias(recorder: Recorder, bias: Weights, factor: float, mask: np.ndarray | None) -> Matrix:
    """Record a learned bias of scores, times a factor."""
    shape, heads = recorder.graph.shapes[bias.name], len(bias.index)
    if len(shape) == 2:
        row, column = bias.index // shape[1], bias.index % shape[1]
        of_heads = torch.arange(heads)[:, None, None].expand(row.shape)
        for index, head, is_transposed in ((row, column, False), (column, row, True)):
            count = shape[0 if is_transposed else 1]
            if count == heads and torch.equal(head, of_heads) and bool((index == index[:1]).all()):
                options = heads, is_transposed, bias.factor * factor, mask
                return recorder.graph.score_bias(bias.name, index[0].numpy(), *options)
    near = "a row of a table (rows, heads) for each pair of tokens, such as by their distance; or the bias frozen"
    raise Refusal(f"a learned bias of attention scores of these elements of {bias.name}", near)


@rule("scaled_dot_product_attention")
def _sdpa(
    recorder, call, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
) -> Elements:
    if dropout_p:
        raise Refusal(f"dropout of probability {dropout_p:g}")
    tokens = key.shape[-2]
    result = torch.empty(*query.shape[:-1], tokens)
    if enable_gqa and query.shape != key.shape:
        with recorder:
            key, value = (y.repeat_interleave(query.shape[-3] // y.shape[-3], -3) for y in (key, value))
    scale = usual_scale(query.shape[-1]) if scale is None else scale
    scores = _scores(recorder, result, query, key).scaled(scale)
    if is_causal:
        scores = scores.masked(torch.zeros(tokens, tokens).masked_fill(_above(tokens), float("-inf")).double())
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool and recorder.value(attn_mask) is None:
            attn_mask = torch.zeros(attn_mask.shape).masked_fill(~attn_mask.cpu(), float("-inf"))
        scores = recorder.biased(scores, attn_mask)
    scores.is_softmax = True
    return _context(recorder, call.result, scores, value)


@rule("mean", "sum")
def _pooled(recorder: Recorder, call: Call, x, dim=None, keepdim=False, **_) -> Value:
    """Record the mean over the tokens: attention of equal scores. A sum is to be divided by the length."""
    if dim is not None and keepdim and set(axes_of(dim, x.ndim)) == {x.ndim - 1}:
        return of_rows(recorder, call, *call.args, **call.kwargs)
    matrix, index = recorder.operand(recorder.elements(x, call.name))
    features, tokens = matrix.features, max_of(matrix.tokens)
    axes = axes_of(dim, x.ndim)
    over = index.movedim(tuple(axes), tuple(range(-len(axes), 0))).reshape(call.result.numel(), -1)
    is_all = min_of(matrix.tokens) > 0 and tokens > 1
    if not is_all or not torch.equal(over, torch.arange(features)[:, None] + features * torch.arange(tokens)):
        raise Refusal(f"{call.name} over other axes", "the mean over all tokens, x.mean(1)")
    name = recorder.unique(recorder.name("mean"))
    mean = recorder.like(call.result, recorder.graph.pooled(matrix, name))
    if call.name == "mean":
        return mean
    last = recorder.at_this_place(lambda: refuse("sum over the tokens", "their mean"))
    return replace(mean, formula=Formula(lambda y: y * tokens, last, name))


def _above(tokens: int) -> Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
