"""The calls of torch of a module's `forward`, by number: what the recorder sees is found again in a later run.

`Calls` numbers the calls that depend on token ids or parameters. `Watch` compares the results of a later run with the
values of the graph, and puts values of its own in their place.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from inspect import signature
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, handle_torch_function

from bttlab.compiler.instruction import value_of
from bttlab.compiler.operation import Matrix, SourceLine
from bttlab.compiler.trace.names import MOVES, QUERIES, Call, name_of
from bttlab.compiler.trace.values import Elements, covers, tensors_in
from bttlab.tensor import TTLinear, TTMEmbedding


def _as_one_function(kind: type[nn.Module]) -> Callable:
    """Return the `forward` of a class of layers as a function that modes see as a whole, as they see torch's."""
    original = kind.forward

    def called(x: Tensor, layer: nn.Module) -> Tensor:
        return original(layer, x)

    def forward(*args: Any, **kwargs: Any) -> Tensor:
        layer, x = signature(original).bind(*args, **kwargs).args
        return handle_torch_function(called, (x,), x, layer)

    called.__name__ = kind.__name__
    return forward


@dataclass
class Recorded:
    """A call that depends on token ids or parameters, and what its results hold."""

    name: str
    line: SourceLine | None = None
    values: list[Any] = field(default_factory=list)
    is_in_place: bool = False
    is_again: bool = False  # the backward pass calls it again, as `torch.utils.checkpoint` does
    whole: Matrix | None = None  # of which the result has all elements, as a new tensor


class Calls(TorchFunctionMode):
    """Numbers the calls of a run that depend on token ids or on parameters; a class says what it does with each."""

    def __init__(self) -> None:
        super().__init__()
        self._held: set[int] = set()
        self._kept: list[Tensor] = []  # whose ids are in use
        self._is_counting = False

    @contextmanager
    def counted(self, module: nn.Module, tokens: Tensor) -> Iterator[None]:
        """Number calls from now on, in a run on these token ids; layers in a tensor-train format are one call each."""
        self._hold((tokens, *module.parameters()))
        with ExitStack() as stack:
            for kind in (TTLinear, TTMEmbedding):
                stack.enter_context(mock.patch.object(kind, "forward", _as_one_function(kind)))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(self)
            self._is_counting = True
            try:
                yield
            finally:
                self._is_counting = False

    @contextmanager
    def not_counted(self) -> Iterator[None]:
        """Call functions of torch that the module does not call."""
        before, self._is_counting = self._is_counting, False
        try:
            yield
        finally:
            self._is_counting = before

    def __torch_function__(self, func: Callable, types: Any, args: Sequence = (), kwargs: dict | None = None) -> Any:
        call = Call(func, name_of(func), tuple(args), kwargs or {})
        is_counted = self._is_counting and call.name not in QUERIES
        if not is_counted or not any(id(tensor) in self._held for tensor in call.tensors):
            return self.called(call)
        result = self.counted_call(call)
        self._hold(result)
        return result

    def _hold(self, result: Any) -> None:
        for tensor in tensors_in(result):
            self._held.add(id(tensor))
            self._kept.append(tensor)

    def called(self, call: Call) -> Any:
        """Call a function, and return its result."""
        return call.function(*call.args, **call.kwargs)

    def counted_call(self, call: Call) -> Any:
        """Call a function whose call has a number, and return its result."""
        return self.called(call)

    def through(self, call: Call) -> Any:
        """Call a function of torch that is written in Python, so that the functions that it calls are seen."""
        with mock.patch.object(F, "has_torch_function", lambda _: False), self:
            return call.function(*call.args, **call.kwargs)


IN_PYTHON = frozenset(("multi_head_attention_forward",))  # what they call is recorded


class Watch(Calls):
    """Compares the results of a run with the values that a graph has for the same parameters and token ids.

    `computed`: the value of each matrix. `seen`: what its readers see, where that is another. `replaced`: matrices
    whose value in the module is to be that in `seen`, with the gradient of the value itself.
    """

    def __init__(
        self,
        module: nn.Module,
        log: Sequence[Recorded],
        computed: Mapping[Matrix, Tensor],
        seen: Mapping[Matrix, Tensor],
        replaced: Collection[Matrix] = (),
    ):
        super().__init__()
        self._module = module
        self._log, self._computed, self._seen, self._replaced = log, computed, seen, replaced
        self._number = 0
        self.is_in_step = True  # the calls so far are those of the log
        self.worst: tuple[float, Recorded, Matrix] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all calls of the log were seen, and no other."""
        return self.is_in_step and self._number == len(self._log)

    def counted_call(self, call: Call) -> Any:
        number, self._number = self._number, self._number + 1
        self.is_in_step = self.is_in_step and number < len(self._log) and self._log[number].name == call.name
        if not self.is_in_step:
            return self.called(call)
        entry = self._log[number]
        entry.is_again = entry.is_again or torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
        if call.name in IN_PYTHON:
            return self.through(call)
        result = self.called(call)
        results = list(tensors_in(result))
        self.is_in_step = len(results) == len(entry.values)
        for tensor, value in zip(results, entry.values, strict=False):
            self._compare(tensor, value, entry)
        if entry.whole in self._replaced and self.is_in_step:
            wanted = self._seen[entry.whole].detach().reshape(-1)[entry.values[0].index.to(result.device)]
            return result + (wanted - result).detach()
        return result

    @torch.no_grad()  # a checkpoint counts what is saved for the backward pass
    def _compare(self, tensor: Tensor, value: Any, entry: Recorded) -> None:
        """Compare a result with what it holds."""
        if isinstance(value, Elements) and (value.scalar or value.formula) is not None:
            value = (value.scalar or value.formula).recorded
        if not isinstance(value, Elements):
            return
        if value.index.shape != tensor.shape:
            self.is_in_step = False
            return
        matrix, shares = value.matrix, []
        for values in (self._computed, self._seen):
            if (matrix.base or matrix) not in values:
                return
            ours = view(values, matrix, self._length).reshape(-1)[value.index.to(tensor.device)]
            ours = ours if value.factor is None else ours * value.factor.to(ours)
            largest = float(tensor.detach().abs().max()) if tensor.numel() else 0.0
            difference = float((ours - tensor).detach().abs().max()) if tensor.numel() else 0.0
            shares.append(difference / (largest + 1e-300))
            if values is self._seen or self._seen is self._computed:
                break
        if min(shares) > (self.worst[0] if self.worst else 0.0):
            self.worst = min(shares), entry, matrix

    @contextmanager
    def watching(self, tokens: Tensor) -> Iterator[None]:
        """Watch a run on token ids (1, T)."""
        self._length = tokens.shape[1]
        with self.counted(self._module, tokens):
            yield


def replaceable(log: Sequence[Recorded], values: Mapping[Matrix, Tensor], kept: Collection[Matrix]) -> list[Matrix]:
    """Return the matrices that a run can have other values of: each call that computes one computes all of it.

    `kept`: matrices that are not to be replaced.
    """
    found, bad = [], set(kept)
    for entry in log:
        for value in entry.values if entry.name not in MOVES else ():
            if not isinstance(value, Elements) or not value.is_plain or value.matrix not in values:
                continue
            is_new = len(entry.values) == 1 and not entry.is_in_place and not entry.is_again
            if is_new and covers(value.index, values[value.matrix].numel()):
                entry.whole = value.matrix
                found.append(value.matrix)
            else:
                bad.add(value.matrix)
    return [matrix for matrix in dict.fromkeys(found) if matrix not in bad]


def view(values: Mapping[Matrix, Tensor], matrix: Matrix, length: int) -> Tensor:
    """Return the rows of a matrix that a matrix is, for samples of this length."""
    if matrix.base is None:
        return values[matrix]
    return values[matrix.base][matrix.first : matrix.first + int(value_of(matrix.tokens, length))]
