"""A module for `--model`."""

from torch import nn

from bttlab.tensor import compress


class Net(nn.Module):
    """PyTorch's encoder layers, compressed; the intent from the first token."""

    sequence_length = 20

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(100, 64)
        layer = nn.TransformerEncoderLayer(64, 2, 256, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 9)
        compress(self, rank=6, embeddings=False, skip=["head"])

    def forward(self, tokens):
        return self.head(self.layers(self.table(tokens))[:, 0])


class Pooled(Net):
    """The card has no mean of the tokens."""

    def forward(self, tokens):
        return self.head(self.layers(self.table(tokens)).mean(1))
