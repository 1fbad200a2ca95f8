"""Multi-head attention whose four weight matrices are tensor trains."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bttlab.tensor.layers import TTLinear


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
        """Return PyTorch's attention with the same weights, dense."""
        parts: Any = [
            layer.to_linear() if isinstance(layer, TTLinear) else layer
            for layer in (self.query, self.key, self.value, self.output)
        ]
        weight, bias = parts[0].weight, parts[0].bias
        made = nn.MultiheadAttention(
            weight.shape[1],
            self.num_heads,
            self.dropout,
            bias is not None,
            batch_first=self.batch_first,
            device=weight.device,
            dtype=weight.dtype,
        )
        made.in_proj_weight.copy_(torch.cat([part.weight for part in parts[:3]]))
        made.in_proj_weight.requires_grad_(any(part.weight.requires_grad for part in parts[:3]))
        if bias is not None:
            made.in_proj_bias.copy_(torch.cat([part.bias for part in parts[:3]]))
            made.in_proj_bias.requires_grad_(any(part.bias.requires_grad for part in parts[:3]))
            made.out_proj.bias.copy_(parts[3].bias)
            made.out_proj.bias.requires_grad_(parts[3].bias.requires_grad)
        made.out_proj.weight.copy_(parts[3].weight)
        made.out_proj.weight.requires_grad_(parts[3].weight.requires_grad)
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
        mask = None if attn_mask is None else _float_mask(attn_mask, query.dtype)
        if mask is not None and mask.ndim == 3:  # (batch x heads, tokens, tokens)
            mask = mask.unflatten(0, (-1, self.num_heads))
        if key_padding_mask is not None:
            hidden = _float_mask(key_padding_mask, query.dtype)[..., None, None, :]
            mask = hidden if mask is None else mask + hidden
        dropout = self.dropout if self.training else 0.0
        causal = is_causal and mask is None
        context = F.scaled_dot_product_attention(*heads, attn_mask=mask, dropout_p=dropout, is_causal=causal)
        y = self.output(context.transpose(-2, -3).flatten(-2))
        return y if first else y.transpose(0, 1), None


def _float_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to add to scores: -inf where a bool mask is true."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))
