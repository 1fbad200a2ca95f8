"""BTT Lab: tensor-compressed training of transformers on an AMD Alveo U50, card or emulated."""

__version__ = "0.1.0"
