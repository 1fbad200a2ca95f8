"""Record the operations of a PyTorch module: `forward` runs once on real tensors, and each function of torch is seen.

`Recorder` is a mode of PyTorch's function overrides: it sees the functions that layers call, so subclasses, hooks and
reparametrized layers are recorded as what they compute. A function without a rule is not an error in itself: its result
is `Refused`, which is an error if an output depends on it. The rules are in `rules`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.functions import ACTIVATIONS
from bttlab.compiler.graph import Graph
from bttlab.compiler.instruction import max_of
from bttlab.compiler.machine import M
from bttlab.compiler.operation import Matrix, Operation
from bttlab.compiler.ops.elementwise import Activate, FactorsOperand, Multiply, NumberOperand
from bttlab.compiler.trace.calls import IN_PYTHON, Calls, Recorded
from bttlab.compiler.trace.forms import FORMS, Form, X, apply, form_of, known_form
from bttlab.compiler.trace.matrices import Matrices
from bttlab.compiler.trace.names import (
    COMPARISONS,
    COPIES,
    EQUALITIES,
    HINTS,
    LIKE,
    MOVES,
    OF_SHAPE,
    QUERIES,
    QUOTIENTS,
    REMAINDERS,
    Call,
    near,
)
from bttlab.compiler.trace.values import (
    AttentionScores,
    Elements,
    Formula,
    Ids,
    Refusal,
    Refused,
    Weights,
    as_scalar,
    columns_like,
    kind_of,
    moved,
    tensors_in,
)

Value = Ids | Elements | Weights | AttentionScores | Refused
LAYERS = frozenset(("TTLinear", "TTMEmbedding"))  # recorded as one function each
KEEPS_FACTORS = frozenset(("cat", "stack", "mul", "div", "neg"))  # rules that take elements times constants as they are
NEAR_SCORES = "one number for all scores, a constant mask or a learned bias of them, and the softmax over the keys"
EXPANDED: dict[str, Callable] = {}  # functions of one activation that are recorded as others together
RULES: dict[str, Callable[["Recorder", Call], Value | None]] = {}
OF_SCORES: dict[str, Callable[["Recorder", Call], Value | None]] = {}  # rules for attention scores as an operand


def check_precision(call: Call) -> None:
    """Raise Refusal for a result in half precision: a conversion, or autocast."""
    for tensor in tensors_in(call.result):
        if tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.float64):
            kind = str(tensor.dtype).removeprefix("torch.")
            raise Refusal(f"{call.name} in {kind}", "float32, without conversions and autocast")


def _copy(x: Tensor | Form) -> Tensor | Form:
    return x.clone() if isinstance(x, Tensor) else x


def _version(tensor: Tensor) -> int | None:
    """Return how often a tensor was changed in place; None if it is not counted, as in vmap."""
    try:
        return tensor._version
    except (NotImplementedError, RuntimeError):
        return None


def _agree(function: Callable, known: Callable) -> bool:
    """Return True if two functions have the same values over the range of FP32, where both are finite."""
    powers = torch.logspace(-12, 38, 501, dtype=torch.float64)
    x = torch.cat([-powers, torch.linspace(-9, 9, 145, dtype=torch.float64), powers])
    a, b = function(x), known(x)
    is_finite = torch.isfinite(a) & torch.isfinite(b)
    return torch.allclose(a[is_finite], b[is_finite], 1e-6, 1e-8)


def _activation(function: Callable) -> str | None:
    """Return the key of the activation that a function is, by the calls that it is composed of; None for another."""
    if (called := form_of(function)) is None:
        return None
    keys = [key for key, known in ACTIVATIONS.items() if called.is_same(known_form(known.torch))]
    if len(keys) > 1:  # they differ in the derivative at 0; a function of another one is none of them
        keys = [key for key in keys if _slope(ACTIVATIONS[key].torch) == _slope(function)]
    return keys[0] if keys and _agree(function, ACTIVATIONS[keys[0]].torch) else None


def _slope(function: Callable) -> float | None:
    """Return the derivative at 0, by which max(x, 0) has several forms in PyTorch."""
    x = torch.zeros((), dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        y = function(x)
    return float(torch.autograd.grad(y, x)[0]) if y.requires_grad else None


def _are_scores(value: Any) -> bool:
    return isinstance(value, AttentionScores) and not value.is_softmax


def layer(x: Tensor, w: Tensor, is_out_in: bool) -> Tensor:
    """Return x W^T for a weight (out, in), else x W."""
    return F.linear(x, w) if is_out_in else x @ w


class Recorder(Matrices, Calls):
    """Runs a module's `forward`, which takes token ids of shape (1, T), and records the graph."""

    def __init__(self, module: nn.Module, sequence_length: int, divides_layers: bool = True):
        self.parameters = parameters = dict(module.named_parameters())
        shapes = {name: tuple(p.shape) for name, p in parameters.items()}
        super().__init__(module, Graph(shapes, sequence_length), divides_layers)
        self.sequence_length = sequence_length
        self.names = {id(parameter): name for name, parameter in parameters.items()}
        self._trained = {  # by the address of their memory
            p.untyped_storage().data_ptr(): name for name, p in parameters.items() if p.requires_grad and p.numel()
        }
        self.vocabulary, self.types = 0, 1
        # Rows that embeddings do not train, and 0: ids of padding, which no sample has if `forward` compares with them.
        indices = (getattr(layer, "padding_idx", None) for layer in module.modules())
        self.paddings = {0, *(index for index in indices if type(index) is int)}
        self.used_paddings: set[int] = set()
        self._values: dict[int, Value] = {}
        self._tensors: list[Tensor] = []  # whose ids are in use
        self._aliases: set[int] = set()  # those that keep a value from before a change in place
        self.log: list[Recorded] = []  # calls that depend on token ids or parameters

    @property
    def ids(self) -> list[int]:
        """The token ids that samples may have everywhere."""
        words = [word for word in range(1, self.vocabulary) if word not in self.used_paddings] or [0]
        return [kind * self.vocabulary + word for kind in range(self.types) for word in words]

    def run(self, tokens: Tensor) -> Any:
        """Call `forward` and return its result."""
        self._set(tokens, Ids(torch.arange(tokens.numel()).view(tokens.shape)))
        with self.counted(self.module, tokens):
            return self.module(tokens)

    # ---- calls ------------------------------------------------------------------------------------------------------

    def counted_call(self, call: Call) -> Any:
        """Call a function, record it, and note what its results hold."""
        self.log.append(entry := Recorded(call.name))
        result = self.called(call)
        results = list(tensors_in(result))
        entry.values = [self._values.get(id(tensor)) for tensor in results]
        entry.line = self.graph.line
        entry.is_in_place = any(tensor is x for tensor in results for x in call.tensors)
        return result

    def called(self, call: Call) -> Any:
        """Call a function and record it; return its result."""
        name, found = call.name, self._found(call)
        if not found and name in LAYERS:
            return self._layer_of_constant(call)
        if not found or name in QUERIES:
            return super().called(call)
        if name in IN_PYTHON:
            return self.through(call)
        versions = [(tensor, _version(tensor)) for tensor in call.tensors]
        call.result = super().called(call)
        for tensor, version in versions:
            if _version(tensor) != version:
                self._refuse_views(tensor, call)
        if name in OF_SHAPE and (name != "expand_as" or self.value(call.args[0]) is None):
            return call.result
        if next(tensors_in(call.result), None) is not None:
            with self.not_counted():
                self._record(call)
        elif isinstance(call.result, bool | int | float | list | np.ndarray):
            are_frozen = all(isinstance(v, Weights) and self._fold(v.names) for v in found)
            if not are_frozen and not self._is_of_padding(call):
                self._stop(call)
        elif name == "__setitem__":
            self._set(call.args[0], self.refused(Refusal("assignment to elements", "a sum, or torch.where of a mask")))
        return call.result

    def _refuse_views(self, changed: Tensor, call: Call) -> None:
        """Refuse other tensors with the memory of one that a call has changed, if they hold elements of it."""
        before, place = self._values.get(id(changed)), changed.untyped_storage().data_ptr()
        refusal = Refusal(
            f"{call.name.strip('_')} in place of a tensor of which another one is a view",
            "a new tensor, such as x = x * 2, or torch.cat of parts",
        )
        try:
            self._check_in_place(call.name, changed)
        except Refusal as of_parameter:
            refusal = of_parameter
        for tensor in list(self._tensors):
            value = self._values.get(id(tensor))
            if tensor is changed or id(tensor) in self._aliases or isinstance(value, Refused | None):
                continue
            if tensor.untyped_storage().data_ptr() != place:
                continue
            are_elements = (
                isinstance(before, Elements) and isinstance(value, Elements) and value.matrix is before.matrix
            )
            if not are_elements or bool(torch.isin(value.index, before.index).any()):
                self._set(tensor, self.refused(refusal))

    def _check_in_place(self, name: str, changed: Tensor) -> None:
        """Raise Refusal for a call that changes a trained parameter."""
        parameter = self._trained_alias(changed)
        if parameter is not None:
            near = "the parameter as it is: on the card the update alone changes it"
            raise Refusal(f"{name.strip('_')} in place of {parameter}, a trained parameter,", near)

    def _layer_of_constant(self, call: Call) -> Tensor:
        """Call a tensor-train layer on a constant, such as numbers of positions; the result is one if it is frozen."""
        x, layer = call.args
        with torch._C.DisableTorchFunction():
            result = call.function(x, layer)
        names = [name for name, parameter in self.parameters.items() if any(parameter is p for p in layer.parameters())]
        if self._fold(names):
            return result
        path = names[0].rpartition(".cores.")[0]
        what = (
            f"{call.name} of a constant"
            if call.name == "TTLinear"
            else "a table of positions or types in tensor format"
        )
        self._set(result, self.refused(Refusal(what, f'the dense layer: compress(model, ..., skip=["{path}"])')))
        return result

    def _found(self, call: Call) -> list[Value]:
        return [value for tensor in call.tensors if (value := self.value(tensor)) is not None]

    def _record(self, call: Call) -> None:
        """Remember what the result of a call holds."""
        found = self._found(call)
        if not self._is_later:
            self.graph.line = self.line()
        try:
            value = next((value for value in found if isinstance(value, Refused)), None)
            if value is None:
                check_precision(call)
            if value is None and call.name in MOVES:
                self._move(call)
                return
            if value is None and call.is_in_place and call.args:
                self._check_in_place(call.name, call.args[0])
            if value is None:
                value = self._of_ids(call) if all(isinstance(v, Ids) for v in found) else self._by_rule(call)
            if value is None:
                return
        except Refusal as refusal:
            value = self.refused(refusal)
        except ProgramError:
            raise
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):  # of the rule: PyTorch took the call
            value = self.refused(Refusal(f"{call.name} of these arguments"))
        if isinstance(value, Elements):
            value.line = self.graph.line
        for tensor in tensors_in(call.result):
            self._set(tensor, value)

    def _by_rule(self, call: Call) -> Value:
        if call.name != "embedding" and all(isinstance(value, Weights) for value in self._found(call)):
            value = self._of_parameters(call)
            self.check_gradient(call)
            return value
        call = self._with_frozen_scalars(call)
        if call.name not in KEEPS_FACTORS:
            self._record_factors(call)
        are_scores = any(isinstance(value, AttentionScores) for value in self._found(call))
        rule = OF_SCORES.get(call.name) if are_scores else None
        value = (rule or RULES.get(call.name, Recorder._last_step))(self, call)
        self.check_gradient(call)
        return value

    def _with_frozen_scalars(self, call: Call) -> Call:
        """Return a call whose scalars that are frozen are constants, unless it is a sum or product of activations."""
        if call.name in ("add", "mul") and not any(_are_scores(value) for value in self._found(call)):
            return call

        def constant(x: Any) -> Any:
            value = self.value(x)
            is_scalar = isinstance(value, Weights) and value.element is not None and value.is_plain
            return x.detach().clone() if is_scalar and self._fold(value.names) else x

        return replace(call, args=tuple(map(constant, call.args)))

    def _record_factors(self, call: Call) -> None:
        """Record products with constants and scalars that are operands of a call."""
        for tensor in call.tensors:
            value = self.value(tensor)
            if isinstance(value, Elements) and (value.factor is not None or value.scalar is not None):
                self._set(tensor, self.recorded(value))

    def _of_parameters(self, call: Call) -> Weights | None:
        """Return a number times a parameter plus a number, or a sum of products of parameters.

        The result of frozen parameters is a constant: None.
        """
        found = [value for value in self._found(call) if isinstance(value, Weights)]
        names = sorted({name for value in found for name in value.names})
        if self._fold(names):
            return None
        if (of_matrices := self._sum_of_products(call)) is not None:
            return Weights(tuple(names), torch.arange(call.result.numel()).view(call.result.shape), layer=of_matrices)
        w, called = found[0], None
        if len(found) == 1 and call.name in FORMS and call.result.shape == w.index.shape:
            own = w.factor * X + w.offset
            called = form_of(lambda _: apply(call, [as_scalar(x) if self.value(x) is None else own for x in call.args]))
        factor, offset = (called and called.line) or (0.0, 0.0)
        if called is not None and not factor and w.is_plain and w.element is not None:
            name = _activation(lambda x: apply(call, [as_scalar(y) if self.value(y) is None else x for y in call.args]))
            if name is not None:
                return replace(w, function=name)
        if not factor:
            near = "the parameter as it is, or frozen ones, requires_grad_(False)"
            if any(".parametrizations." in name for name in names):
                near = "torch.nn.utils.parametrize.remove_parametrizations(layer, name) before, or frozen parameters"
            if call.name == "linear":
                near = "a row in front of the tokens for a parameter that is a layer's input, torch.cat([row, x], 1)"
            raise Refusal(f"{call.name}: a computed parameter, from {', '.join(names[:2])},", near)
        return replace(w, factor=factor, offset=offset)

    def _fold(self, names: Sequence[str]) -> bool:
        """Make constants of parameters if all of them are frozen; return whether they are."""
        if any(self.parameters[name].requires_grad for name in names):
            return False
        self.graph.folded |= {name: self.parameters[name].detach().cpu().float().numpy().copy() for name in names}
        return True

    def biased(self, scores: AttentionScores, x: Any, factor: float = 1.0) -> AttentionScores:
        """Return scores plus a factor times a constant mask, or times elements of a parameter."""
        value, constant = self.value(x), self.constant(x)
        if isinstance(value, Weights) and self._fold(value.names):
            constant = x.detach().cpu().double()
        elif isinstance(value, Weights) and value.layer is None and not value.function:
            return scores.biased(value, factor)
        elif isinstance(value, Weights):
            frozen = f"a constant, or {value.names[0]} frozen, by requires_grad_(False) before it is traced"
            raise Refusal(f"a learned bias of attention scores, from {value.name},", frozen)
        return scores.masked(None if constant is None else constant * factor)

    def _sum_of_products(self, call: Call) -> Callable[[Tensor, bool], Tensor] | None:
        """Return the layer of a sum or product of matrices that are parameters; None for other calls."""
        matrices = [self._alias(x) for x in call.args if self.value(x) is not None]
        if call.result.ndim != 2 or any(x.shape != call.result.shape for x in matrices if call.name != "matmul"):
            return None
        if len(matrices) == 2 and call.name == "matmul":
            first, last = matrices
            return lambda x, is_out_in: (
                layer(layer(x, last, True), first, True) if is_out_in else layer(layer(x, first, False), last, False)
            )
        if len(matrices) == 2 and call.name in ("add", "sub") and not call.kwargs.keys() - {"alpha"}:
            (a, b), sign = matrices, float(call.kwargs.get("alpha", 1)) * (1 if call.name == "add" else -1)
            return lambda x, is_out_in: layer(x, a, is_out_in) + sign * layer(x, b, is_out_in)
        return None

    def check_gradient(self, call: Call) -> None:
        """Raise Refusal if PyTorch has no gradient of a result that depends on trained parameters."""
        is_cut = not any(tensor.requires_grad for tensor in tensors_in(call.result) if tensor.is_floating_point())
        if is_cut and any(tensor.requires_grad and self.value(tensor) is not None for tensor in call.tensors):
            raise Refusal(f"{call.name} without a gradient", HINTS["gradient"])

    def _of_ids(self, call: Call) -> Value | None:
        if call.name in ("embedding", "TTMEmbedding"):
            return RULES[call.name](self, call)
        if self._is_of_padding(call):
            return None
        if call.name in ("long", "int") and call.result.dtype in (torch.int64, torch.int32):
            return self._found(call)[0]
        if call.name in REMAINDERS | QUOTIENTS and len(call.args) == 2:
            ids, divisor = self.value(call.args[0]), call.args[1]
            if isinstance(ids, Ids) and not ids.divisor and isinstance(divisor, int) and divisor > 0:
                return replace(ids, divisor=divisor, is_type=call.name in QUOTIENTS)
        near = "an embedding of them"
        if call.name in EQUALITIES:
            near += "; the id of padding is the padding_idx of an nn.Embedding, or 0"
        return replace(self.refused(Refusal(f"{call.name} of the token ids", near)), is_of_ids=True)

    def _is_of_padding(self, call: Call) -> bool:
        """Return True if a call compares token ids with an id of padding, which no sample of the model has."""
        others = {x for x in (*call.args, *call.kwargs.values()) if self.value(x) is None}
        paddings = self.paddings if call.name in EQUALITIES else {0}
        is_of_padding = len(others) <= 1 and all(isinstance(x, int) and x in paddings for x in others)
        are_ids = all(isinstance(v, Ids) and not v.divisor for v in self._found(call))
        is_known = call.name in COMPARISONS and is_of_padding and are_ids
        if is_known:
            self.use_padding(*others or {0})
        return is_known

    def use_padding(self, index: int) -> None:
        """Take an id as that of padding; raise Refusal if there are two beside 0."""
        self.used_paddings.add(index)
        if len(self.used_paddings - {0}) > 1:
            raise Refusal(f"padding of the ids {sorted(self.used_paddings)}", "one id of padding")

    def _stop(self, call: Call) -> NoReturn:
        found = self._found(call)
        refused = [v for v in found if isinstance(v, Refused) and not v.is_of_ids]
        bad = next((v.message for v in refused if " without a gradient" not in v.message), None)
        name = call.name.strip("_")
        near = "the same operations for each sample; take numbers for a log outside of forward"
        what = f"control flow on values of activations ({name})"
        if any(isinstance(v, Ids) or getattr(v, "is_of_ids", False) for v in found):
            what = f"control flow on values of the token ids ({name})"
        elif all(isinstance(v, Weights) for v in found):
            what = f"{name} of {found[0].name}, which is trained,"
            near = "the parameter itself, as a factor or a shift of features, or a frozen one, requires_grad_(False)"
        what = Refusal(what, near)
        raise ProgramError(bad or self.refused(what).message)

    def _move(self, call: Call) -> None:
        """Apply a function that only moves elements to the indices."""
        if self.value(call.args[0]) is None and call.name in COPIES | LIKE:
            return  # a constant in the shape or type of what is traced
        if call.name in COPIES:
            self.check_gradient(call)
            self._set(call.result, self._found(call)[0])
            return
        value = self.value(call.args[0])
        others = () if call.name in LIKE else tensors_in(call.args[1:])
        if value is None or any(self.value(x) is not None for x in others):
            if isinstance(value, Weights) and call.name == "__getitem__":
                raise Refusal("rows of a parameter by token ids", "nn.Embedding")
            raise Refusal(f"{call.name} by activations or token ids", "positions that do not depend on the sample")
        if isinstance(value, Elements) and (value.formula or value.scalar) is not None:
            value = self.recorded(value)
        function = torch.Tensor.reshape if call.name == "view" else call.function
        if call.name in ("view", "reshape") and call.args[1:] and isinstance(call.args[1], torch.dtype):
            raise Refusal("view as another type")
        values = moved(value, lambda x: function(x, *call.args[1:], **call.kwargs), call.name)
        self.check_gradient(call)
        for tensor, its in zip(tensors_in(call.result), values, strict=True):
            self._set(tensor, its)

    # ---- values of tensors ------------------------------------------------------------------------------------------

    def _set(self, tensor: Tensor, value: Value) -> None:
        self._tensors.append(tensor)
        self._values[id(tensor)] = value

    def value(self, tensor: Any) -> Value | None:
        """Return what a tensor holds; None for a constant, or if it is not a tensor."""
        if not isinstance(tensor, Tensor):
            return None
        value = self._values.get(id(tensor))
        if value is None and id(tensor) in self.names:
            value = Weights((self.names[id(tensor)],), torch.arange(tensor.numel()).view(tensor.shape))
            self._set(tensor, value)
        elif value is None and tensor.requires_grad:
            what = "a tensor with a gradient that was made outside the module's parameters"
            near = "a parameter, or a layer, that the module has before it is traced: make and register it in __init__"
            if tensor.grad_fn is not None:
                what = f"a tensor with a gradient that was made by {tensor.grad_fn.name()}"
                near = "functions of torch that forward calls itself, not in torch.jit, vmap or a subclass of Tensor"
            value = self.refused(Refusal(what, near))
            self._set(tensor, value)
        elif value is None and self._trained_alias(tensor) is not None:
            what = f"a tensor that shares memory with {self._trained_alias(tensor)}, which is trained,"
            value = self.refused(Refusal(what, "the parameter itself, or a clone()"))
            self._set(tensor, value)
        return value

    def _trained_alias(self, tensor: Tensor) -> str | None:
        """Return the name of a trained parameter whose memory a tensor shares."""
        try:
            return self._trained.get(tensor.untyped_storage().data_ptr())
        except (NotImplementedError, RuntimeError):  # it has no memory of its own, as in vmap
            return None

    def constant(self, x: Any) -> Tensor | None:
        """Return a number or a constant tensor in double precision; None if it is neither."""
        if isinstance(x, bool | int | float):
            return torch.tensor(float(x), dtype=torch.float64)
        if isinstance(x, Tensor) and self.value(x) is None:
            return x.detach().cpu().double()
        return None

    def elements(self, x: Any, what: str) -> Elements:
        """Return the elements of a matrix that a tensor holds, or raise Refusal."""
        value = self.value(x)
        if not isinstance(value, Elements):
            raise Refusal(f"{what} of {kind_of(value)}", NEAR_SCORES if _are_scores(value) else "an activation")
        return self.recorded(value)

    def operands(self, what: str, *tensors: Any) -> tuple[list[Matrix], Tensor]:
        """Return matrices with the elements of tensors of one shape, in the same places, and their index."""
        found = [self.operand(self.elements(x, what)) for x in tensors]
        matrix, index = found[0]
        matrices = [matrix]
        for operand, its_index in found[1:]:
            if not torch.equal(index, its_index):
                is_same = operand.tokens == matrix.tokens and index.shape == its_index.shape
                if not is_same:
                    raise Refusal(f"{what} of tensors of other shapes", "activations of one shape")
                moves = columns_like(its_index, operand.features, index, matrix.features)
                if moves is None:
                    raise Refusal(f"{what} of tensors with tokens in different orders", "the order of the sample")
                operand = self._columns((operand,), moves)
            matrices.append(operand)
        if any((m.tokens, m.features) != (matrix.tokens, matrix.features) for m in matrices):
            raise Refusal(f"{what} of tensors of other shapes", "activations of one shape")
        return matrices, index

    def of_parameter(self, x: Any, what: str) -> Weights:
        """Return the elements of a parameter that a tensor holds, or raise Refusal."""
        value = self.value(x)
        if not isinstance(value, Weights):
            near = "a parameter" if value is None else "a layer"
            raise Refusal(f"{what} that is {kind_of(value)}", near)
        if not value.is_plain:
            raise Refusal(f"{what} that is a computed parameter, from {value.name},", "the parameter as it is")
        return value

    # ---- elementwise functions --------------------------------------------------------------------------------------

    def recorded(self, x: Elements) -> Elements:
        """Record what elements are as elements of a matrix as they are."""
        formula, scalar = x.formula, x.scalar
        if scalar is not None:
            unscaled = self.recorded(replace(x, scalar=None))
            with self.at_line(x.line):
                scalar.recorded = scalar.recorded or scalar.times(unscaled)
            return scalar.recorded
        with self.at_line(x.line):
            if formula is None:
                return x if x.factor is None else self._product(x)
            if formula.recorded is None and formula.norm is not None:
                formula.recorded = self._norm_or_last(x, formula)
            elif formula.recorded is None:
                formula.recorded = self._known(x, formula.function, formula.name) or formula.last()
        return formula.recorded

    def _norm_or_last(self, x: Elements, formula: Formula) -> Elements:
        try:
            return formula.norm(x)
        except Refusal as refusal:
            try:
                return formula.last()
            except Refusal:
                raise refusal from None

    def _product(self, x: Elements) -> Elements:
        matrix, index = self.operand(x)
        factors = torch.zeros(max_of(matrix.tokens), matrix.features, dtype=torch.float64)
        factors.view(-1)[index.reshape(-1)] = x.factor.reshape(-1)
        name, first = self.unique(self.name("mul")), factors[0, 0]
        if bool((factors == first).all()):
            scaled = matrix if first == 1 else self.graph.same(Multiply, matrix, name, NumberOperand(float(first)))
            return Elements(scaled, index)
        factors = factors[:1] if bool((factors == factors[:1]).all()) else factors
        sizes = [size for size in range(M.LANES, matrix.features, M.LANES) if matrix.features % size == 0]
        repeats = (size for size in sizes if torch.equal(factors, factors[:, :size].repeat(1, matrix.features // size)))
        factors = factors[:, : next(repeats, matrix.features)]
        constant = self.graph.constant(factors.float().numpy(), f"factors of {name}")
        return Elements(self.graph.same(Multiply, matrix, name, FactorsOperand(constant)), index)

    def _known(self, x: Elements, function: Callable, name: str) -> Elements | None:
        """Record a function that is x, a multiple of x or an activation, by the calls that it is composed of."""
        called = form_of(function)
        if called is None:
            return None
        factor = called.factor
        found = _activation(function) if factor is None else None
        if found is None and (factor is None or not _agree(function, lambda x: factor * x)):
            return None
        if factor == 1:
            return Elements(x.matrix, x.index)
        matrix, index = self.operand(x)
        kind, option = (Multiply, NumberOperand(factor)) if found is None else (Activate, found)
        return Elements(self.graph.same(kind, matrix, self.unique(name), option), index)

    def linear(self, value: Value) -> Elements | None:
        """Return elements times constants, also where a formula is a product with a number; None for other values."""
        if not isinstance(value, Elements):
            return None
        value = value if value.scalar is None else self.recorded(value)
        if value.factor is not None:
            return value
        formula = value.formula
        called = form_of(formula.function) if formula and not (formula.norm or formula.recorded) else None
        factor = called and called.factor
        value = value if factor else self.recorded(value)
        return Elements(value.matrix, value.index, torch.full(value.index.shape, factor or 1.0, dtype=torch.float64))

    def elementwise(self, call: Call, record: Callable[[Call], Elements] | None = None) -> Elements:
        """Return the formula of a function of one matrix; record one of two, or what is no formula, by `record`."""
        record = record or self._last_step
        self._record_factors(call)
        operands = [(n, self.value(x)) for n, x in enumerate(call.args) if self.value(x) is not None]
        values = [value for _, value in operands]
        if (other := next((value for value in values if not isinstance(value, Elements)), None)) is not None:
            raise Refusal(f"{call.name} of {kind_of(other)}", NEAR_SCORES if _are_scores(other) else "")
        first = values[0]
        is_one = all(v.matrix is first.matrix and torch.equal(v.index, first.index) for v in values)
        others = [x for x in map(as_scalar, call.args) if isinstance(x, Tensor) and x.ndim and self.value(x) is None]
        norm = next((value.formula.norm for value in values if value.formula and value.formula.norm), None)
        shape = first.index.shape if norm is None else (*first.index.shape[:-1], call.result.shape[-1])
        if not is_one or others or call.result.shape != shape:
            return record(call)

        constants = [None if self.value(y) is not None else as_scalar(y) for y in call.args]

        def function(x: Tensor) -> Tensor:
            given = list(constants)
            for n, value in operands:  # a copy, since the function may work in place
                given[n] = value.formula.function(x) if value.formula else _copy(x)
            return apply(call, given)

        # Functions in place give their operand another value, which the last step must not see.
        step = replace(call, args=tuple(map(self._alias, call.args)))
        formula = Formula(function, self.at_this_place(lambda: record(step)), self.name(call.name), norm)
        return Elements(first.matrix, first.index, formula=formula)

    def _alias(self, x: Any) -> Any:
        """Return a tensor that keeps the value that another has now."""
        value = self.value(x)
        if value is None:
            return x
        alias = x.detach()
        self._aliases.add(id(alias))
        self._set(alias, value)
        return alias

    def _last_step(self, call: Call) -> Elements:
        operands = [x for x in call.args if self.value(x) is not None]
        if len(operands) > 1:
            return self.by_operation(call)
        x = self.elements(operands[0], call.name)
        given = [None if self.value(y) is not None else as_scalar(y) for y in call.args]
        if any(isinstance(y, Tensor) and y.ndim for y in given):
            raise Refusal(f"{call.name} of a constant tensor", "a parameter of a layer, a sum or product with it")
        n = given.index(None)
        step = lambda t: apply(call, [*given[:n], _copy(t), *given[n + 1 :]])  # noqa: E731
        found = self._known(x, step, self.name(call.name))
        if found is not None or call.name not in EXPANDED:
            return found or self.by_operation(call)
        given[n] = operands[0].detach()
        self._set(given[n], x)
        with self:
            expanded = EXPANDED[call.name](*given, **call.kwargs)
        return self.elements(expanded, call.name)

    def by_operation(self, call: Call) -> Elements:
        """Record the operation of the graph that computes a function of activations of one shape."""
        if isinstance(call.function, torch._ops.OpOverload) and call.function.namespace != "aten":
            raise Refusal(f"{call.name}, a custom operator,", "the functions of torch that it computes")
        if isinstance(call.function, torch._ops.OpOverload):
            raise Refusal(f"{call.name} of torch.export or of a compiled graph", "the module as it was before")
        kind = Operation.of_function.get(call.name)
        values = [self.value(x) for x in call.args]
        if kind is None or call.kwargs or not all(isinstance(v, Elements) for v in values):
            raise Refusal(call.name, near(call.name, len(self._found(call)) == 1))
        matrices, index = self.operands(call.name, *call.args)
        name = self.unique(self.name(call.name))
        output = Matrix(name, matrices[0].tokens, matrices[0].features)
        return Elements(self.graph.append(kind(name, tuple(matrices), output)), index)
