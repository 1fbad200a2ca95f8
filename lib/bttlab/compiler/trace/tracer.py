"""Trace a PyTorch module to its graph, and check that the graph is the module.

`forward` is called once, on real tensors, and `record` records each function of torch. An operation that the
machine does not have is an error that names the operation, its place in the module, the line, and what is near.
`check` then compares outputs and the gradient of every parameter with PyTorch's.
"""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from numbers import Integral
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.graph import Graph
from bttlab.compiler.instruction import max_of
from bttlab.compiler.module import ModuleModel
from bttlab.compiler.operation import INTENT, SLOTS, Matrix, Operation
from bttlab.compiler.ops.attention import Attention
from bttlab.compiler.ops.dense import Dense
from bttlab.compiler.ops.elementwise import Elementwise, Multiply, NumberOperand, ScalarOperand
from bttlab.compiler.ops.embedding import DenseEmbedding, Embedding, TTMEmbedding
from bttlab.compiler.ops.tt_linear import TTLinear
from bttlab.compiler.trace import attention, rules  # noqa: F401  (register the rules)
from bttlab.compiler.trace.check import Calls, Run, check, outputs_of
from bttlab.compiler.trace.names import Call, name_of
from bttlab.compiler.trace.norms import join_norms
from bttlab.compiler.trace.record import Recorder
from bttlab.compiler.trace.state import Traced, held
from bttlab.compiler.trace.values import Elements, Refusal, Refused
from bttlab.model.choices import IGNORED, LANGUAGE_MODEL, TASKS
from bttlab.model.threads import one_thread

USUAL = 3  # a token id that is neither padding nor special in most vocabularies
OTHER_LOSSES = {  # problem types of transformers, and which classes have their place
    "regression": "a class for each range of values",
    "multi_label_classification": "a class for each set of labels, such as flight#airfare",
}


@one_thread()
def trace(
    module: nn.Module,
    sequence_length: int,
    task: str | None = None,
    ignore_index: int | None = None,
    rows_in_records: bool | None = None,
) -> ModuleModel:
    """Return the model of a module: its graph and the limits of its samples.

    Parameters
    ----------
    module : nn.Module
        `forward(tokens)` maps token ids (batch, T) to logits: (batch, classes) of a label for each sample, (batch, T,
        classes) of a label for each token, or both in a tuple. Logits for each token are those of the words, from the
        second token on; in a language model, those of the next token. It is traced in the mode in which it is.
    sequence_length : int
        Tokens of the longest sample.
    task : {"classification", "tagging", "language model"}, optional
        Of the output, or of the output for each token. By default an output for each token is a language model's if
        attention is causal and it has as many classes as there are token ids, else a tagger's.
    ignore_index : int, optional
        Label of tokens that have neither a loss nor a gradient, such as of subwords that continue a word: 0 (PAD of a
        corpus), or -100, which is none of the classes.
    rows_in_records : bool, optional
        Whether the table of tokens, which must be frozen, stays in the host's memory: the rows of a sample's tokens
        come in its record. By default it does if the banks have no space for it.

    Returns
    -------
    ModuleModel
        What `compile`, `estimate` and `open_trainer` take.

    Raises
    ------
    ProgramError
        If it fails in PyTorch, has an operation that the machine does not have, or computes something else than what
        was recorded.
    """
    name = type(module).__name__
    if not isinstance(module, nn.Module):
        raise ProgramError(f"trace takes a PyTorch module, not {module!r:.60}; make one, as by Net()")
    if not isinstance(sequence_length, Integral) or sequence_length < 2:
        rule = "it must be a number of tokens, such as 32, and at least 2: a first token and a word"
        raise ProgramError(f"sequence_length is {sequence_length!r:.60}: {rule}")
    if task is not None and task not in TASKS:
        raise ProgramError(f"task is {task!r}: choose {', '.join(TASKS)}")
    if ignore_index not in (None, 0, IGNORED):
        raise ProgramError(f"ignore_index is {ignore_index!r}: choose 0 (PAD of a corpus), {IGNORED}, or None")
    _check_values(module, name)
    before = held(module)
    try:
        recorder, outputs = _recorded(module, sequence_length)
    except UsedInPart:
        recorder, outputs = _recorded(module, sequence_length, divides_layers=False)
    graph = recorder.graph
    graph.rows_in_records = rows_in_records
    if rows_in_records and graph.frozen_table is None:
        tables = [op for op in graph.operations if isinstance(op, Embedding)]
        rule = "freeze a dense table that no other layer uses, as by requires_grad_(False)"
        raise ProgramError(f"{name}: rows of {tables[0].name} cannot come in records: {rule}")
    run = Run(recorder.log, recorder.divided)
    call = Calls(module)
    try:
        read = check(graph, outputs, module, recorder.ids, call, run)
    finally:
        call.restore_precision()
    model = _model(module, recorder, outputs, task, ignore_index)
    return replace(model, traced=Traced(module, before, read))


class UsedInPart(ProgramError):
    """A parameter of which a layer uses some rows, and other layers not the others."""


def _recorded(module: nn.Module, length: int, divides_layers: bool = True) -> tuple[Recorder, list[Matrix]]:
    """Return the recorder with the graph of a module, and its logits."""
    recorder, name = Recorder(module, length, divides_layers), type(module).__name__
    recorded = _run(recorder, module, length)
    outputs = [_logits(recorder, output) for output in outputs_of(recorded)]
    if not recorder.vocabulary:
        raise ProgramError(f"{name}.forward does not embed the token ids: use nn.Embedding or TTMEmbedding")
    recorder.graph.drop_unused([matrix.base or matrix for matrix in outputs])
    join_norms(recorder.graph)
    _check_parameters(recorder.graph, module)
    _copy_shared(recorder.graph)
    return recorder, outputs


def _check_values(module: nn.Module, name: str) -> None:
    """Raise ProgramError for parameters without values, and for what would change their gradients unseen."""
    if torch.is_inference_mode_enabled():
        raise ProgramError(f"{name} is traced in torch.inference_mode, which has no gradients: trace it outside")
    if isinstance(module, torch.jit.ScriptModule):
        raise ProgramError(f"{name} is of torch.jit, whose functions are not seen: give the module before torch.jit")
    for path, layer in module.named_modules():
        if isinstance(layer, torch.jit.ScriptModule):
            rule = "take the layer as it was before torch.jit"
            raise ProgramError(f"{name}: {path} is of torch.jit, whose functions are not seen: {rule}")
    if any(hasattr(m, "_orig_mod") or m._compiled_call_impl is not None for m in module.modules()):
        raise ProgramError(f"{name} has layers of torch.compile, which change its functions: trace it before")
    check_loss(module)
    for parameter, values in module.named_parameters():
        if is_lazy(values):
            raise ProgramError(f"{name}: {parameter} has no shape yet: call the module once")
        if values.is_meta:
            raise ProgramError(f"{name}: {parameter} is on device meta, without values: to_empty, then initialize it")
        if values.is_floating_point() and values.dtype not in (torch.float32, torch.float64):
            kind = str(values.dtype).removeprefix("torch.")
            raise ProgramError(f"{name}: {parameter} is {kind}, the card trains float32: call float() first")
        if not bool(torch.isfinite(values).all()):
            raise ProgramError(f"{name}: {parameter} has NaN or infinite values: load or initialize it first")
        if values._backward_hooks or getattr(values, "_post_accumulate_grad_hooks", None):
            raise ProgramError(f"{name}: {parameter} has a hook, which the card does not call: remove it")
    _check_memory(module, name)


def check_loss(module: nn.Module) -> None:
    """Raise ProgramError if a model of transformers is for another loss than the cross-entropy of classes."""
    for layer in module.modules():
        loss = getattr(getattr(layer, "config", None), "problem_type", None)
        if loss in OTHER_LOSSES:
            raise ProgramError(
                f"{type(module).__name__}: problem_type is {loss!r}: the card's loss is the cross-entropy of classes, "
                f"of which each sample or token has one; choose {OTHER_LOSSES[loss]}, and problem_type="
                '"single_label_classification"'
            )


def _check_memory(module: nn.Module, name: str) -> None:
    """Raise ProgramError if an update of a trained parameter would change other elements, too."""
    places = defaultdict(list)
    for parameter, values in module.named_parameters():
        if values.requires_grad and any(n > 1 and not m for n, m in zip(values.shape, values.stride(), strict=True)):
            raise ProgramError(f"{name}: elements of {parameter} share memory (expand): make it of a clone()")
        places[values.untyped_storage().data_ptr()].append(parameter)
    for shared in places.values():
        taken: dict[str, set[int]] = {}
        for parameter in shared if len(shared) > 1 else ():
            values = module.get_parameter(parameter)
            index = torch.arange(values.untyped_storage().nbytes() // values.element_size())
            index = index.as_strided(values.shape, values.stride(), values.storage_offset())
            elements = set(index.flatten().tolist())
            other = next((key for key, those in taken.items() if those & elements), None)
            if other is not None and (values.requires_grad or module.get_parameter(other).requires_grad):
                rule = "use one parameter for both, or make one of a clone()"
                raise ProgramError(f"{name}: {parameter} and {other} share memory: {rule}")
            taken[parameter] = elements


def _run(recorder: Recorder, module: nn.Module, length: int) -> Any:
    """Record `forward` on ids that are neither padding nor special, where there are as many."""
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    last = _table_rows(module, torch.zeros((1, length), dtype=torch.long, device=device)) - 1
    word = next((word for word in (USUAL, *range(last, 0, -1)) if word <= last and word not in recorder.paddings), 0)
    tokens = torch.full((1, length), word, dtype=torch.long, device=device)
    try:
        with torch.random.fork_rng(devices=[]):
            return recorder.run(tokens)
    except (ProgramError, KeyboardInterrupt):
        raise
    except BaseException as error:  # sys.exit in forward must not end the process that traces
        what = f"{type(error).__name__}: {error}"
        rule = f"it must take token ids (1, T) of up to {length} tokens"
        where = f"{type(module).__name__}.forward fails in PyTorch on {length} tokens"
        raise ProgramError(f"{where} ({what}): {rule}") from error


class _Tables(TorchFunctionMode):
    """Counts the rows of the tables that a run reads by its token ids; layers of any class may have them."""

    def __init__(self, tokens: torch.Tensor):
        super().__init__()
        self._tokens, self.rows = tokens, 0

    def __torch_function__(self, func: Any, types: Any, args: Sequence = (), kwargs: dict | None = None) -> Any:
        if name_of(func) == "embedding":
            tensors = list(Call(func, "embedding", tuple(args), kwargs or {}).tensors)
            if any(x is self._tokens for x in tensors):
                self.rows = max(x.shape[0] for x in tensors if x.ndim == 2 and x.is_floating_point())
        return func(*args, **(kwargs or {}))


def _table_rows(module: nn.Module, tokens: torch.Tensor) -> int:
    """Return the rows of the largest table of tokens; those of layers without `num_embeddings` are seen in a run."""
    rows = max((layer.num_embeddings for layer in module.modules() if hasattr(layer, "num_embeddings")), default=1)
    if rows > USUAL:
        return rows
    tables = _Tables(tokens)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), suppress(Exception), tables:
        module(tokens)
    return max(rows, tables.rows)


def _logits(recorder: Recorder, output: Any) -> Matrix:
    """Return the matrix of an output: rows of what a dense layer computes."""
    name, value = type(recorder.module).__name__, recorder.value(output)
    if isinstance(value, Refused):
        raise ProgramError(value.message)
    if not isinstance(value, Elements):
        kind = type(output).__name__ if value is None else "something else"
        raise ProgramError(f"{name}.forward returns {kind}: return logits of nn.Linear layers")
    try:
        matrix = recorder.rows(recorder.recorded(value))
    except Refusal as refusal:
        raise ProgramError(recorder.refused(refusal).message) from None
    _move_factor(recorder.graph, matrix.base or matrix)
    maker = recorder.maker(matrix.base or matrix)
    if isinstance(maker, TTLinear):
        raise ProgramError(
            f"{name}.forward returns the output of {maker.name}, which is in tensor format: the card's last layer is "
            f'dense; compress(model, ..., skip=["{maker.name}"]), or {maker.name}.to_linear()'
        )
    if type(maker) is not Dense or recorder.graph.users(maker.output):
        raise ProgramError(f"{name}.forward returns the output of {maker.name}: return logits of an nn.Linear layer")
    return matrix


def _move_factor(graph: Graph, matrix: Matrix) -> None:
    """Make a number or scalar times logits without a bias, as of a temperature, logits of that times x."""
    product = next((op for op in graph.operations if op.output is matrix), None)
    if type(product) is not Multiply or not isinstance(product.operand, NumberOperand | ScalarOperand):
        return
    layer = next((op for op in graph.operations if op.output is product.inputs[0]), None)
    if type(layer) is not Dense or layer.bias or graph.users(layer.output) != [product] or graph.users(matrix):
        return
    graph.operations.remove(layer)
    graph.operations.insert(graph.operations.index(product) + 1, layer)
    (x,) = layer.inputs
    product.inputs, product.output = (x,), Matrix(product.name, x.tokens, x.features, line=matrix.line)
    layer.inputs, layer.output = (product.output,), matrix


def _element(op: Operation) -> int | None:
    """Return the number of the one element of its parameter that an operation reads; None for other operations."""
    is_scalar = isinstance(op, Elementwise) and isinstance(op.operand, ScalarOperand)
    return op.operand.first if is_scalar else None


def _check_parameters(graph: Graph, module: nn.Module) -> None:
    """Raise ProgramError for a parameter that is trained and not used, or used in part, or as a scalar and as rows."""
    name, uses = type(module).__name__, defaultdict(set)
    first: dict[str, Operation] = {}
    for op in graph.operations:
        for parameter in op.parameters(graph.shapes):
            other = first.setdefault(parameter, op)
            if (_element(op) is None) != (_element(other) is None):
                op = other if _element(op) is None else op
                line = f" ({op.output.line})" if op.output.line else ""
                raise ProgramError(
                    f"{op.name}: an element of {parameter} is a factor or shift of all features, and other layers read "
                    f"{parameter} by rows: use a parameter for each{line}"
                )
    for op in graph.operations:
        # A dense layer may have some rows of a parameter; the weight of a table may be that of a dense layer.
        rows = range(op.first, op.first + op.output.features) if isinstance(op, Dense) else (0,)
        for parameter in op.parameters(graph.shapes):
            uses[parameter].update(() if isinstance(op, DenseEmbedding) else rows)
    graph.frozen = {p for p, tensor in module.named_parameters() if not tensor.requires_grad}
    for op in graph.operations:
        frozen = graph.frozen.intersection(op.parameters(graph.shapes))
        if isinstance(op, TTMEmbedding) and frozen and len(frozen) < len(op.parameters(graph.shapes)):
            raise ProgramError(f"{name}: {min(frozen)} is frozen alone: freeze all cores of {op.name}, or none")
    for parameter, tensor in module.named_parameters():
        dense = next((op for op in graph.operations if isinstance(op, Dense) and op.weight == parameter), None)
        if dense is not None and len(uses[parameter]) < graph.shapes[parameter][dense.transposed]:
            raise UsedInPart(f"{name}.forward uses some rows of {parameter} alone: use a layer of these rows")
        if parameter not in uses and tensor.requires_grad:
            raise ProgramError(
                f"{name}.forward does not use {parameter}: remove this parameter, or freeze it with "
                "requires_grad_(False)"
            )


def _copy_shared(graph: Graph) -> None:
    """Give each further use of a parameter a copy of its own: `name#2`, `name#3`; the lowering adds their gradients."""
    used: dict[str, list[range]] = {}
    for op in graph.operations:
        names = () if isinstance(op, Embedding) else op.parameters(graph.shapes)  # a table shares its bank with a layer
        first = _element(op) or 0
        rows = range(op.first, op.first + op.output.features) if isinstance(op, Dense) else range(first, first + 1)
        again = [name for name in names if any(set(rows) & set(earlier) for earlier in used.get(name, ()))]
        overlapping = [earlier for name in again for earlier in used[name] if set(rows) & set(earlier)]
        if any(earlier != rows for earlier in overlapping):
            transposed = {o.transposed for o in graph.operations if isinstance(o, Dense) and o.weight == again[0]}
            how = "transposed" if len(transposed) > 1 else "in part"
            raise UsedInPart(
                f"{op.name} uses rows of {again[0]} that another layer uses {how}: use a parameter for each"
            )
        for name in names:
            used.setdefault(name, []).append(rows)
        if again:
            number = max(used[name].count(rows) for name in again)
            graph.copies |= op.copy_parameters(names if op.has_prefix else again, number)
    for copy, name in graph.copies.items():
        layers = [op for op in graph.operations if isinstance(op, Dense) and op.bias == copy]
        if layers and sum(op.output.features for op in layers) < graph.shapes[name][0]:
            raise UsedInPart(f"{layers[0].name} uses some rows of {name} again: use a layer of these rows")


def _first_token(recorder: Recorder, x: Matrix) -> int:
    """Return the number of the sample's token to which the first row of a matrix of some tokens belongs."""
    while x.base is None:
        x = recorder.maker(x).inputs[0]
    in_front = max_of(x.base.tokens) - recorder.sequence_length
    return x.first - in_front


def _model(
    module: nn.Module, recorder: Recorder, outputs: Sequence[Matrix], task: str | None, ignore_index: int | None
) -> ModuleModel:
    """Turn the layers of the outputs into classifiers, and return the model."""
    graph, limits, tasks, name = recorder.graph, {}, [], type(module).__name__
    causal = [op.causal for op in graph.operations if isinstance(op, Attention)]
    for matrix in outputs:
        maker = recorder.maker(matrix.base or matrix)
        if maker is None:  # an earlier output's classifier has taken its place
            rule = "call it for each, as head(x[:, 0]), head(x[:, 1:])"
            raise ProgramError(f"{name}.forward returns one output of {matrix.name} twice: {rule}")
        x = maker.inputs[0]
        if matrix.base is not None:  # take these rows of the layer's input instead of its logits
            x = graph.rows(x, matrix.first, matrix.tokens)
        if x.tokens == 1:
            loss, of = INTENT, "classification"
        else:
            is_next = bool(causal) and all(causal) and matrix.features == recorder.vocabulary
            loss, of = SLOTS, LANGUAGE_MODEL if is_next else "tagging"
            of = task if task in ("tagging", LANGUAGE_MODEL) else of
            if x.tokens == graph.tokens - 1 and _first_token(recorder, x) != (of != LANGUAGE_MODEL):
                near = "x[:, :-1]" if of == LANGUAGE_MODEL else "x[:, 1:]"
                raise ProgramError(f"{name}.forward returns logits of other tokens than a {of} task has: return {near}")
            if x.tokens == graph.tokens:
                x = graph.rows(x, 0 if of == LANGUAGE_MODEL else 1, graph.tokens - 1)
            if x.tokens != graph.tokens - 1:
                rows = max_of(x.tokens)
                rule = "return those of the tokens, as x[:, 1:] without a row in front"
                raise ProgramError(f"{name}.forward returns {rows} logits for {graph.sequence_length} tokens: {rule}")
        if matrix.features == 1:
            raise ProgramError(
                f"{name}.forward returns one class ({matrix.name}): the card's loss is the cross-entropy of classes, "
                "which is 0 for one; return two or more logits"
            )
        if loss in limits:
            raise ProgramError(f"{name} returns two outputs for one label: return one")
        graph.classify(maker, x, loss, ignore_index if loss == SLOTS else None)
        limits[loss] = matrix.features
        tasks.append(of)
    if task is not None and task not in tasks:
        raise ProgramError(f"{name} returns logits for {' and '.join(tasks)}, not for {task}")
    if ignore_index is not None and SLOTS not in limits:
        raise ProgramError(
            f"ignore_index is {ignore_index}: {name} returns no logits for tokens, whose labels it is of"
        )
    return ModuleModel(
        name,
        "",
        tasks,
        graph.sequence_length,
        recorder.vocabulary,
        limits.get(INTENT, 1),
        limits.get(SLOTS, 1),
        {key: list(shape) for key, shape in graph.shapes.items()},
        sorted(graph.frozen),
        int(0 in recorder.used_paddings),
        max(recorder.used_paddings - {0}, default=None),
        recorder.types,
        ignore_index,
        module,
        graph,
    )
