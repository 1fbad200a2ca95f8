"""Modules in the structure of well-known ones, with few features: nanoGPT's block, and a vision transformer's."""

import math

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, TOKENS = 32, 2, 16


class GPTBlock(nn.Module):
    """Pre-norm and causal, with one layer for q, k and v; attention by PyTorch or written out with a buffer."""

    def __init__(self, fused: bool):
        super().__init__()
        self.fused = fused
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH, bias=False)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.c_fc, self.c_out, self.dropout = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH), nn.Dropout(0.2)
        self.register_buffer("mask", torch.ones(TOKENS, TOKENS).tril().view(1, 1, TOKENS, TOKENS))

    def attend(self, x):
        samples, tokens, width = x.size()
        parts = self.c_attn(x).split(width, dim=2)
        q, k, v = (y.view(samples, tokens, HEADS, width // HEADS).transpose(1, 2) for y in parts)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            scores = scores.masked_fill(self.mask[:, :, :tokens, :tokens] == 0, float("-inf"))
            y = self.dropout(F.softmax(scores, dim=-1)) @ v
        return self.dropout(self.c_proj(y.transpose(1, 2).contiguous().view(samples, tokens, width)))

    def forward(self, x):
        x = x + self.attend(self.ln_1(x))
        return x + self.dropout(self.c_out(F.gelu(self.c_fc(self.ln_2(x)))))


class GPT(nn.Module):
    """A language model whose table is its last layer's weight."""

    def __init__(self, fused: bool):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(40, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks, self.norm = nn.Sequential(GPTBlock(fused), GPTBlock(fused)), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 40, bias=False)
        self.wte.weight = self.head.weight

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], dtype=torch.long, device=tokens.device)
        return self.head(self.norm(self.blocks(self.wte(tokens) + self.wpe(positions))))


class ViTBlock(nn.Module):
    """Pre-norm, with factors for each feature at both residuals."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH, eps=1e-6)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
        self.ls1, self.ls2 = (nn.Parameter(torch.full((WIDTH,), 0.3)) for _ in range(2))

    def attend(self, x):
        samples, tokens, width = x.shape
        qkv = self.qkv(x).reshape(samples, tokens, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        scores = (q * (width // HEADS) ** -0.5) @ k.transpose(-2, -1)
        return self.proj((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(samples, tokens, width))

    def forward(self, x):
        x = x + self.attend(self.norm1(x)).mul(self.ls1)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)))) * self.ls2


class ViT(nn.Module):
    """A vision transformer over tokens: positions with an axis for samples, and the mean of all tokens."""

    def __init__(self):
        super().__init__()
        self.table, self.pos_embed = nn.Embedding(40, WIDTH), nn.Parameter(torch.randn(1, TOKENS, WIDTH) / 8)
        self.blocks, self.norm = nn.Sequential(ViTBlock(), ViTBlock()), nn.LayerNorm(WIDTH, eps=1e-6)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, tokens):
        x = self.table(tokens) + self.pos_embed[:, : tokens.shape[1]]
        return self.head(self.norm(self.blocks(x).mean(dim=1)))
