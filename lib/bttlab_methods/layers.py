"""Layers of a model, and what their matrices and tables are made of, in either format."""

from torch import nn

from bttlab.tensor import TTLinear, TTMEmbedding

Train = TTLinear | TTMEmbedding


def linear_layers(model: nn.Module) -> list[nn.Module]:
    """Return the linear layers of the encoders and the poolers; not the heads."""
    parts = (model.encoders, model.intent_pooler, model.slot_pooler)
    return [layer for part in parts for layer in part.modules() if isinstance(layer, nn.Linear | TTLinear)]


def trains(model: nn.Module) -> list[Train]:
    return [layer for layer in model.modules() if isinstance(layer, Train)]


def numbers(layers: list[Train]) -> int:
    return sum(core.numel() for layer in layers for core in layer.cores)


def weights(layer: nn.Module) -> list[nn.Parameter]:
    """Return what a layer's matrix or table is made of: the matrix itself, or its cores; no bias."""
    return list(layer.cores) if isinstance(layer, Train) else [layer.weight]
