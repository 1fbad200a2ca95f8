"""What a checkpoint has of a user's module beside its parameters, and the comparison with a module of the same file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from bttlab.compiler.module import ModuleModel

TOLERANCE = 1e-4  # of outputs, as a part of the largest: rounding of other versions and processors


@dataclass(frozen=True)
class StoredModule:
    """What a module computes with beside its parameters.

    Parameters
    ----------
    values : mapping of str to np.ndarray
        Buffers, and frozen parameters of another type than float32, by name.
    names : mapping of str to str
        Names in the class's `state_dict`, each with the name of its parameter or buffer.
    graph_sha256 : str
        Digest of the traced graph's operations and constants.
    spreads, outputs : np.ndarray
        As `bttlab.compiler.module_state` has them: outputs for two samples, whatever parameters are trained.
    """

    values: Mapping[str, np.ndarray]
    names: Mapping[str, str]
    graph_sha256: str
    spreads: np.ndarray
    outputs: np.ndarray

    @classmethod
    def of(cls, model: "ModuleModel") -> "StoredModule":
        from bttlab.compiler.module_state import graph_digest, outputs_of, spreads_of

        spreads = spreads_of(model)
        return cls(model.values, model.names, graph_digest(model.graph), spreads, outputs_of(model, spreads))

    def is_same_graph(self, model: "ModuleModel") -> bool:
        """Return whether a module has the same graph, to the bit of each constant."""
        from bttlab.compiler.module_state import graph_digest

        return graph_digest(model.graph) == self.graph_sha256

    def has_same_outputs(self, model: "ModuleModel") -> bool:
        """Return whether a module has the same outputs, up to the rounding of other versions and processors."""
        from bttlab.compiler.module_state import outputs_of, spreads_of

        if self.spreads.shape != spreads_of(model).shape:
            return False
        found, wanted = outputs_of(model, self.spreads), self.outputs
        if found.shape != wanted.shape or not (np.isfinite(found) & np.isfinite(wanted)).all():
            return False
        return bool(np.abs(found - wanted).max(initial=0.0) <= TOLERANCE * np.abs(wanted).max(initial=0.0))
