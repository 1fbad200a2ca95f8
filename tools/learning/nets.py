"""Modules of three tasks: PyTorch's encoder layers, compressed, with a classifier of the first token or of each."""

import torch
from torch import nn

from bttlab.tensor import TTMEmbedding, compress


class Net(nn.Module):
    """Two encoder layers over a table of tokens and a table of positions; subclasses have its sizes."""

    sequence_length = 32
    rows, width, outputs = 64, 128, 8  # tokens, features of one, labels
    causal = False

    def __init__(self):
        super().__init__()
        self.table, self.places = self.make_table(), nn.Embedding(self.sequence_length, self.width)
        layer = nn.TransformerEncoderLayer(self.width, 4, 256, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(self.width, self.outputs)
        compress(self, rank=8, embeddings=False, skip=["head"])

    def make_table(self) -> nn.Module:
        """Return the table of tokens."""
        return nn.Embedding(self.rows, self.width)

    def forward(self, tokens):
        """Return logits of a label of the sample, or, causal, of each next token."""
        x = self.table(tokens) + self.places(torch.arange(tokens.shape[-1]))
        if self.causal:
            mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[-1])
            return self.head(self.layers(x, mask=mask, is_causal=True))
        return self.head(self.layers(x)[:, 0])


class Digits(Net):
    """Which digit nine patches of an image show."""

    sequence_length = 10  # [CLS] and the patches
    rows, width, outputs = 67, 64, 11  # 64 patches and 3 special tokens; UNK is a label


class Words(Net):
    """The next word."""

    rows = outputs = 880  # all words of ATIS
    causal = True


class Intents(Net):
    """The intent of an utterance, of a table with room for all words of SNIPS."""

    def make_table(self) -> nn.Module:
        """Return a table in tensor-train-matrix format."""
        return TTMEmbedding(23**3, self.width, (23, 23, 23), (8, 4, 4), 16)
