"""Check that methods combine, and name their combination."""

from collections.abc import Sequence

import torch

from bttlab_methods.setting import MethodError

DENSE = "dense"  # the name of no method at all: dense, FP32, AdamW


def describe(combination: Sequence) -> str:
    """Return a combination as `parse` takes it."""
    return "+".join(method.describe() for method in combination) or DENSE


def check_combination(combination: Sequence, device: str | None = None) -> None:
    """Raise MethodError unless methods combine and, if a device is given, run on it."""
    for i, second in enumerate(combination):
        for first in combination[:i]:
            if first.name == second.name:
                raise MethodError(f"{second.name} is named twice; name it once")
            shared = first.changes & second.changes
            if shared:
                raise MethodError(
                    f"{first.name} and {second.name} do not combine: both change {_listed(shared)}; leave one out"
                )
            for one, other in ((first, second), (second, first)):
                if one.excludes & (other.changes | {other.name}):
                    raise MethodError(
                        f"{first.name} and {second.name} do not combine: {one.name} cannot do with what {other.name} "
                        f"changes ({_listed(other.changes)}); leave one out"
                    )
        if second.needs_cuda and device is not None and torch.device(device).type != "cuda":
            raise MethodError(f"{second.name} needs a GPU with CUDA, not {device}; leave it out, or pass --device cuda")


def _listed(names: frozenset[str]) -> str:
    return " and ".join(f"the {name}" for name in sorted(names))
