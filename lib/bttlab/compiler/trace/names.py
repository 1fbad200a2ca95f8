"""Calls of PyTorch's functions, their names by what the recorder does with them, and what to use instead of some."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from bttlab.compiler.functions import names
from bttlab.compiler.trace.values import tensors_in

NEAR = {
    "conv1d": "nn.Linear for each token, attention between tokens",
    "gt": "F.relu or F.leaky_relu",
    **dict.fromkeys(("rsqrt", "var_mean", "normalize"), "nn.LayerNorm or nn.RMSNorm for a norm"),
    "max": "x.mean(1), or x[:, 0]",
    "amax": "x.mean(1), or x[:, 0]",
    "log_softmax": "the logits before it as outputs: the loss on the card has the softmax",
    "dropout": "eval(), or probability 0: the machine has no random numbers",
    "gradient": "requires_grad_(False) on the parameters before it, not detach() or no_grad(); "
    "checkpoint(..., use_reentrant=False), not an autograd.Function",
}
LIST = "linear layers (TT or dense), embeddings, LayerNorm, RMSNorm, attention, sums, products, "
LIST += names()
LIBRARIES = (*(str(Path(sys.modules[name].__file__).parent) for name in ("torch", "bttlab")), contextlib.__file__)
# Functions that only ask about a tensor.
QUERIES = frozenset(
    "shape size dim ndim ndimension dtype device layout numel nelement stride storage_offset is_contiguous is_leaf "
    "is_floating_point is_complex requires_grad grad_fn is_nested is_sparse is_cuda is_cpu is_mkldnn is_meta is_mps "
    "is_quantized is_xpu is_conj is_neg is_signed is_inference __len__ get_device element_size itemsize nbytes "
    "data_ptr untyped_storage _version output_nr _is_view names __hash__ __repr__ __format__".split()
)
# Its answer only chooses PyTorch's path for inference.
QUERIES |= {"_nested_tensor_from_mask_left_aligned"}
# Functions that only move elements: they are applied to the indices, too.
MOVES = frozenset(
    "view reshape permute transpose swapaxes swapdims movedim moveaxis flatten unflatten squeeze unsqueeze chunk split "
    "split_with_sizes tensor_split unbind narrow select __getitem__ T mT H t expand expand_as repeat repeat_interleave "
    "contiguous clone flip roll index_select gather to float double type_as ravel view_as reshape_as detach "
    "data".split()
)
COPIES = frozenset("contiguous clone to float double type_as detach data".split())
LIKE = frozenset("view_as reshape_as type_as".split())  # of whose second argument only the shape or type counts
# Functions of which only the shape of an argument counts.
OF_SHAPE = frozenset(
    "zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty new_tensor expand_as".split()
)
# What these say of token ids and 0 is known: no id of a sample is 0, which is padding.
REMAINDERS, QUOTIENTS = frozenset(("remainder", "__mod__")), frozenset(("floor_divide", "__floordiv__"))
COMPARISONS = frozenset("eq ne gt __contains__ bool".split())
ALIASES = {f"__{kind}{name}__": name for kind in "i " for name in ("add", "sub", "mul", "truediv", "div", "matmul")}
ALIASES = {key.replace(" ", ""): name for key, name in ALIASES.items()}
ALIASES |= {"__radd__": "add", "__rmul__": "mul", "__rsub__": "rsub", "__rdiv__": "rdiv", "__rtruediv__": "rdiv"}
ALIASES |= {"truediv": "div", "true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub"}
ALIASES |= {"bmm": "matmul", "mm": "matmul", "__eq__": "eq", "__ne__": "ne", "__pow__": "pow", "__neg__": "neg"}
ALIASES |= {"_threshold": "threshold", "_softmax": "softmax", "concat": "cat", "get_data": "data"}


@dataclass
class Call:
    """A call of a function of torch."""

    function: Callable
    name: str  # without the underscore of functions that work in place
    args: tuple
    kwargs: dict[str, Any]
    result: Any = None

    def __post_init__(self) -> None:
        for number, key in enumerate(("input", "other")):  # operands are by position, as rules expect them
            if len(self.args) == number and key in self.kwargs and (number == 0 or "input" not in self.kwargs):
                kwargs = dict(self.kwargs)
                self.args, self.kwargs = (*self.args, kwargs.pop(key)), kwargs

    @property
    def tensors(self) -> Iterator[Tensor]:
        """The tensors among its arguments."""
        return tensors_in((self.args, tuple(self.kwargs.values())))


def name_of(function: Callable) -> str:
    """Return a function's name, without what says that it works in place."""
    name = getattr(function, "__name__", str(function))
    if name == "__get__":
        name = function.__self__.__name__
    name = name if name.endswith("__") else name.removesuffix("_")
    return ALIASES.get(name, name)
