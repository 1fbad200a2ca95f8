"""Modules for `--model`."""

import torch
from torch import nn

from bttlab.tensor import TTLinear, compress

DRAWN = torch.rand(3)  # a file may draw random numbers before a class is constructed


class Net(nn.Module):
    """PyTorch's encoder layers, compressed; the intent from the first token."""

    sequence_length = 20

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(100, 64)
        layer = nn.TransformerEncoderLayer(64, 2, 256, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 22)
        compress(self, rank=6, embeddings=False, skip=["head"])

    def forward(self, tokens):
        return self.head(self.layers(self.table(tokens))[:, 0])


class Pooled(Net):
    """The card has no maximum over the tokens."""

    def forward(self, tokens):
        return self.head(self.layers(self.table(tokens)).amax(1))


class Small(nn.Module):
    """A layer on the words one by one; what it gives, subclasses say."""

    sequence_length = 8
    outputs = 40

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(40, 64), TTLinear(64, 64, (4, 4, 4), (4, 4, 4), 4)
        self.head = nn.Linear(64, self.outputs)

    def encode(self, tokens):
        x = self.table(tokens)
        return x + torch.relu(self.layer(x))


class Tagger(Small):
    """A tag for each token."""

    def forward(self, tokens):
        return self.head(self.encode(tokens))


class Both(Small):
    """Tags first, then the intent."""

    def __init__(self):
        super().__init__()
        self.intent = nn.Linear(64, 5)

    def forward(self, tokens):
        x = self.encode(tokens)
        return {"tags": self.head(x[:, 1:]), "intent": self.intent(x[:, 0])}


class Language(Small):
    """The next word."""

    def forward(self, tokens):
        x = self.encode(tokens)
        q = x.unflatten(-1, (2, 32)).transpose(1, 2)
        x = x + nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).flatten(2)
        return self.head(x)


class Few(Tagger):
    """Fewer outputs than a corpus has tags."""

    outputs = 4


class Sized(Tagger):
    """Has no sizes of its own."""

    def __init__(self, width):
        super().__init__()


def broken():
    """Makes no module."""
    return undefined  # noqa: F821


class Frozen(Small):
    """A tag for each token, from a table of BERT's size that is not trained: its rows come in the samples' records."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(30522, 64).requires_grad_(False)

    def forward(self, tokens):
        return self.head(self.encode(tokens))
