"""The model of a PyTorch module."""

import math
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.graph import Graph
from bttlab.model.choices import TASKS
from bttlab.model.config import ConfigError
from bttlab.model.module import ModuleConfig
from bttlab.tensor import TTLinear, TTMEmbedding
from bttlab.util.settings import settings


@settings(ConfigError)
class ModuleModel(ModuleConfig):
    """A PyTorch module, its graph, and the limits of its samples; returned by `bttlab.compiler.trace.trace`.

    It may come from a file.
    """

    network: nn.Module = None
    graph: Graph = None
    traced: Any = None  # what the graph has taken from the module: a `bttlab.compiler.trace.state.Traced`
    source: bytes = b""  # content of its file; empty if it does not come from one
    files: Mapping[str, bytes] = field(default_factory=dict)  # those that it imports from there: paths and contents
    path: Path | None = None  # of its file
    seed: int = 0  # of its initial values, if it comes from a file
    values: Mapping[str, np.ndarray] = field(default_factory=dict)  # `values_of` the module as constructed
    names: Mapping[str, str] = field(default_factory=dict)  # `names_in_state` of it

    __eq__, __hash__ = object.__eq__, object.__hash__  # models of equal sizes may have different graphs

    def __str__(self) -> str:
        tasks = " and ".join(f"{task} ({TASKS[task]})" for task in self.tasks)
        frozen = sum(math.prod(self.shapes[name]) for name in self.frozen)
        counted = f"{self.parameters_count:,} parameters" + (f", {frozen:,} of them frozen" if frozen else "")
        types = f" of {self.token_types} types" if self.token_types > 1 else ""
        tokens = f"up to {self.sequence_length} of {self.vocabulary_size:,} tokens{types}"
        return f"{self.title}: {tasks}; {tokens}; {counted}"

    @property
    def unseen(self) -> list[str]:
        """Operations that reached no output in the check of the trace: the gradients through them were 0 each time."""
        return self.graph.unseen

    @property
    def config(self) -> ModuleConfig:
        """The configuration: the module without its code."""
        return ModuleConfig(**self.to_dict())

    @property
    def dense_parameters(self) -> int:
        """Number of parameters if every tensor layer were dense."""
        count = self.parameters_count
        for layer in self.network.modules():
            if isinstance(layer, TTLinear | TTMEmbedding):
                sizes = (
                    ("in_features", "out_features")
                    if isinstance(layer, TTLinear)
                    else ("num_embeddings", "embedding_dim")
                )
                rows, columns = (getattr(layer, size) for size in sizes)
                count += rows * columns - sum(core.numel() for core in layer.cores)
        return count

    def parameters(self) -> dict[str, Any]:
        """Return the module's parameters, as they are now, as float32 arrays.

        Raises
        ------
        ProgramError
            As `check_unchanged`.
        """
        self.check_unchanged()
        return {name: p.detach().cpu().float().numpy().copy() for name, p in self.network.named_parameters()}

    def check_unchanged(self) -> None:
        """Refuse a module that is no longer the one that was traced, but for its parameters' values.

        Compared are buffers, tensors and numbers that `forward` reads as attributes or globals, `requires_grad`, kinds
        of layers, and hooks.

        Raises
        ------
        ProgramError
            If one of them has changed; the message names it.
        """
        changed = self.traced.changed(self.network) if self.traced is not None else None
        if changed is not None:
            what = f"{type(self.network).__name__}: {changed} has changed since the trace"
            raise ProgramError(f"{what}: trace the module again")
