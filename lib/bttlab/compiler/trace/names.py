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

# What to use instead of functions of a kind; names of functions in torch, torch.nn.functional, or of tensors.
KINDS = {
    "pad constant_pad_nd scatter scatter_add scatter_reduce index_add index_copy index_fill index_put put take "
    "take_along_dim unfold fold diag diagonal diag_embed masked_select masked_scatter rot90 as_strided view_as_complex "
    "view_as_real pixel_shuffle channel_shuffle tile select_scatter slice_scatter diagonal_scatter": (
        "slices and torch.cat of features; rows in front of the tokens, torch.cat([row, x], 1)"
    ),
    "tril triu": "a constant mask on the scores of attention, or on a parameter that is frozen",
    "topk sort argsort msort kthvalue median nanmedian quantile mode unique bincount searchsorted bucketize histc": (
        "attention to choose tokens by their values: the card neither sorts nor counts"
    ),
    "max min amax amin aminmax argmax argmin logsumexp prod nansum nanmean count_nonzero all any": (
        "x.mean(1), x[:, 0], or attention, whose softmax weighs the tokens"
    ),
    "cumsum cumprod cummax cummin logcumsumexp diff trapezoid cumulative_trapezoid": (
        "attention with a causal mask: with equal scores it is the mean of the tokens so far"
    ),
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d avg_pool1d avg_pool2d max_pool1d max_pool2d "
    "max_pool1d_with_indices adaptive_avg_pool1d adaptive_max_pool1d lp_pool1d interpolate": (
        "nn.Linear for each token, attention between tokens"
    ),
    "rsqrt var_mean std_mean norm linalg_norm linalg_vector_norm normalize batch_norm instance_norm group_norm "
    "local_response_norm renorm": "nn.LayerNorm or nn.RMSNorm for a norm",
    "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell": "attention with a causal mask",
    "cdist dist pdist cosine_similarity kron tensordot inner outer cross bilinear svd det inverse cholesky": (
        "nn.Linear, matmul with a parameter, or attention, q k^T of two activations"
    ),
    "isnan isinf isfinite isneginf isposinf isclose allclose equal": (
        "no check of values in forward: the card reports a sample whose values are not finite"
    ),
    "lerp addcmul addcdiv hypot atan2 fmod": "sums and products of two activations",
}
PREFIXES = {  # the same, by the beginning of a name
    "fft": "nn.Linear over the features, or attention between tokens",
    "linalg": "nn.Linear, matmul with a parameter, or attention, q k^T of two activations",
}
HINTS = {
    **{name: near for kind, near in KINDS.items() for name in kind.split()},
    **dict.fromkeys(("gt", "ge", "lt", "le"), "F.relu or F.leaky_relu; for limits, clamp or F.threshold"),
    "log_softmax": "the logits before it as outputs: the loss on the card has the softmax",
    "div": "a product in place of the quotient; in a norm that is written out, multiply by the weight after the "
    "division",
    "dropout": "eval(), or probability 0: the machine has no random numbers",
    "gradient": "requires_grad_(False) on the parameters before it, not detach() or no_grad(); "
    "checkpoint(..., use_reentrant=False), not an autograd.Function",
}
# Functions of each element that are no activation of the card.
OF_ELEMENTS = frozenset(
    "sin cos tan asin acos atan sinh cosh asinh acosh atanh sinc exp exp2 expm1 log log2 log10 log1p erf erfc erfinv "
    "sqrt reciprocal round floor ceil trunc frac sign sgn logit lgamma digamma i0 prelu rrelu hardshrink softshrink "
    "tanhshrink softsign softmin nan_to_num heaviside".split()
)
LIST = "linear layers (TT or dense), embeddings, LayerNorm, RMSNorm, attention, sums, products, "
LIST += names()


def near(name: str, is_of_one: bool = True) -> str:
    """Return what to use instead of a function of torch; `is_of_one` if it is of one activation."""
    if name in HINTS:
        return HINTS[name]
    prefix = next((prefix for prefix in PREFIXES if name.startswith(f"{prefix}_")), None)
    if prefix is not None:
        return PREFIXES[prefix]
    return names() if name in OF_ELEMENTS and is_of_one else f"one of these: {LIST}"


LIBRARIES = (*(str(Path(sys.modules[name].__file__).parent) for name in ("torch", "bttlab")), contextlib.__file__)
# Functions that only ask about a tensor.
QUERIES = frozenset(
    "shape size dim ndim ndimension dtype device layout numel nelement stride storage_offset is_contiguous is_leaf "
    "is_floating_point is_complex requires_grad grad_fn is_nested is_sparse is_cuda is_cpu is_mkldnn is_meta is_mps "
    "is_quantized is_xpu is_conj is_neg is_signed is_inference __len__ get_device element_size itemsize nbytes "
    "data_ptr untyped_storage _version output_nr _is_view names __hash__ __repr__ __format__".split()
)
# Its answer only chooses PyTorch's path for inference.
QUERIES |= {"_nested_tensor_from_mask_left_aligned", "_has_compatible_shallow_copy_type"}
# Functions that only move elements: they are applied to the indices, too.
MOVES = frozenset(
    "view reshape permute transpose swapaxes swapdims movedim moveaxis flatten unflatten squeeze unsqueeze chunk split "
    "split_with_sizes tensor_split unbind narrow select __getitem__ T mT H t expand expand_as repeat repeat_interleave "
    "contiguous clone flip roll index_select gather to float double type_as ravel view_as reshape_as detach "
    "data".split()
)
COPIES = frozenset("contiguous clone to float double type_as detach data".split())
# Of whose second argument only the shape or type counts.
LIKE = frozenset("view_as reshape_as expand_as type_as".split())
# Functions of which only the shape of an argument counts.
OF_SHAPE = frozenset(
    "zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty new_tensor expand_as".split()
)
REMAINDERS, QUOTIENTS = frozenset(("remainder", "__mod__")), frozenset(("floor_divide", "__floordiv__"))
# What these say of token ids and 0 is known: no id of a sample is 0, which is padding. `EQUALITIES` also of other ids.
COMPARISONS, EQUALITIES = frozenset("eq ne gt __contains__ bool".split()), frozenset(("eq", "ne", "__contains__"))
ALIASES = {f"__{kind}{name}__": name for kind in "i " for name in ("add", "sub", "mul", "truediv", "div", "matmul")}
ALIASES = {key.replace(" ", ""): name for key, name in ALIASES.items()}
ALIASES |= {"__radd__": "add", "__rmul__": "mul", "__rsub__": "rsub", "__rdiv__": "rdiv", "__rtruediv__": "rdiv"}
ALIASES |= {"truediv": "div", "true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub"}
ALIASES |= {"bmm": "matmul", "mm": "matmul", "__eq__": "eq", "__ne__": "ne", "__pow__": "pow", "__neg__": "neg"}
ALIASES |= {"_threshold": "threshold", "_softmax": "softmax", "concat": "cat", "clip": "clamp", "get_data": "data"}
OF_NUMPY = {"axis": "dim", "keepdims": "keepdim"}  # names of arguments that functions of torch take, too


@dataclass
class Call:
    """A call of a function of torch."""

    function: Callable
    name: str  # without the underscore of functions that work in place
    args: tuple
    kwargs: dict[str, Any]
    result: Any = None

    def __post_init__(self) -> None:
        self.kwargs = {OF_NUMPY.get(key, key): value for key, value in self.kwargs.items()}
        for number, key in enumerate(("input", "other")):  # operands are by position, as rules expect them
            if len(self.args) == number and key in self.kwargs and (number == 0 or "input" not in self.kwargs):
                kwargs = dict(self.kwargs)
                self.args, self.kwargs = (*self.args, kwargs.pop(key)), kwargs

    @property
    def is_in_place(self) -> bool:
        """Whether it changes its first argument: `add_`, `x += y`, `x[0] = y`."""
        name = getattr(self.function, "__name__", "")
        return name == "__setitem__" or (name[:3] == "__i" and name in ALIASES) or name.rstrip("_") == name[:-1]

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
