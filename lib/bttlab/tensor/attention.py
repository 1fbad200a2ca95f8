"""Multi-head attention whose four weight matrices are tensor trains."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bttlab.tensor.layers import TTLinear
from bttlab.tensor.shapes import ShapeError


class TTAttention(nn.Module):
    """Multi-head attention with the interface of `nn.MultiheadAttention`; it always returns None as weights.

    Parameters
    ----------
    query, key, value, output : nn.Module
        Linear layers, `TTLinear` or dense.
    num_heads : int
        Divides the outputs of the first three.
    batch_first : bool
        Whether x is (batch, tokens, features), else (tokens, batch, features).
    dropout : float
        Probability of dropping an attention probability in training.
    """

    # nn.TransformerEncoder and its layers read these attributes; with these values they call `forward` instead of a
    # fused kernel.
    _qkv_same_embed_dim, in_proj_bias = False, None

    def __init__(
        self,
        query: nn.Module,
        key: nn.Module,
        value: nn.Module,
        output: nn.Module,
        num_heads: int,
        batch_first: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.query, self.key, self.value, self.output = query, key, value, output
        self.num_heads, self.batch_first, self.dropout = num_heads, batch_first, dropout

    @torch.no_grad()
    def to_attention(self) -> nn.MultiheadAttention:
        """Return PyTorch's attention with the same weights, dense.

        Raises ShapeError if query, key and value take features of other sizes.
        """
        parts: Any = [
            layer.to_linear() if isinstance(layer, TTLinear) else layer
            for layer in (self.query, self.key, self.value, self.output)
        ]
        weight = parts[0].weight
        if any(part.weight.shape != weight.shape for part in parts[:3]):
            sizes = [part.in_features for part in parts[:3]]
            raise ShapeError(f"query, key and value take {sizes} features: nn.MultiheadAttention here takes one size")
        with_bias = any(part.bias is not None for part in parts)
        made = nn.MultiheadAttention(
            weight.shape[1],
            self.num_heads,
            self.dropout,
            with_bias,
            batch_first=self.batch_first,
            device=weight.device,
            dtype=weight.dtype,
        )
        made.in_proj_weight.copy_(torch.cat([part.weight for part in parts[:3]]))
        made.in_proj_weight.requires_grad_(any(part.weight.requires_grad for part in parts[:3]))
        made.out_proj.weight.copy_(parts[3].weight)
        made.out_proj.weight.requires_grad_(parts[3].weight.requires_grad)
        if with_bias:  # a layer without one gets zeros
            biases = [weight.new_zeros(part.out_features) if part.bias is None else part.bias for part in parts]
            made.in_proj_bias.copy_(torch.cat(biases[:3]))
            made.in_proj_bias.requires_grad_(any(bias.requires_grad for bias in biases[:3]))
            made.out_proj.bias.copy_(biases[3])
            made.out_proj.bias.requires_grad_(biases[3].requires_grad)
        return made.train(self.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """Return the output and None. A bool mask hides positions where it is true; a float mask is added to scores."""
        first = self.batch_first or query.ndim == 2
        x = [tokens if first else tokens.transpose(0, 1) for tokens in (query, key, value)]
        layers = (self.query, self.key, self.value)
        heads = [
            layer(tokens).unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)
            for layer, tokens in zip(layers, x, strict=True)
        ]
        mask = None if attn_mask is None else _float_mask("attn_mask", attn_mask, query.dtype)
        if mask is not None and mask.ndim == 3 and query.ndim == 3:  # (batch x heads, tokens, tokens)
            mask = mask.unflatten(0, (-1, self.num_heads))
        if mask is None and is_causal and key_padding_mask is not None:
            later = torch.ones(heads[0].shape[-2], heads[1].shape[-2], dtype=torch.bool, device=query.device).triu(1)
            mask = _float_mask("attn_mask", later, query.dtype)
        if key_padding_mask is not None:
            hidden = _float_mask("key_padding_mask", key_padding_mask, query.dtype)[..., None, None, :]
            mask = hidden if mask is None else mask + hidden
        dropout = self.dropout if self.training else 0.0
        causal = is_causal and mask is None
        context = F.scaled_dot_product_attention(*heads, attn_mask=mask, dropout_p=dropout, is_causal=causal)
        y = self.output(context.transpose(-2, -3).flatten(-2))
        return y if first else y.transpose(0, 1), None


def _float_mask(name: str, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to add to scores: -inf where a bool mask is true. Raises ShapeError if it is of integers."""
    if mask.is_floating_point():
        return mask
    if mask.dtype != torch.bool:
        raise ShapeError(f"{name} has {mask.dtype}: a mask is bool, True where hidden, or float, added to the scores")
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))
