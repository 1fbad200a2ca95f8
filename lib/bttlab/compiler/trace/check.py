"""Check that a recorded graph computes what its module computes: outputs and the gradient of every parameter.

The graph is executed by PyTorch in double precision, from the formulas of the operations and not from the instructions.
Parameters are shaken first, so that no zero or one hides an omission. The check takes the module in the mode in which
it is, and leaves parameters, buffers and PyTorch's generator as they were.
"""

import math
import re
import types
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.functions import ACTIVATIONS
from bttlab.compiler.graph import Graph
from bttlab.compiler.machine import M
from bttlab.compiler.operation import Matrix, Operation, Values
from bttlab.compiler.ops.attention import Attention
from bttlab.compiler.ops.columns import GatherColumns
from bttlab.compiler.ops.dense import Dense
from bttlab.compiler.ops.elementwise import Activate, Elementwise
from bttlab.compiler.ops.embedding import Embedding
from bttlab.compiler.ops.norm import Norm
from bttlab.compiler.ops.tt_linear import TTLinear
from bttlab.compiler.trace.calls import Recorded, Watch, replaceable, view
from bttlab.compiler.trace.observer import Global, Hook, Hooks, Observer, at, reads_of
from bttlab.compiler.trace.state import State, cause, changes, difference, random_state

TOLERANCE = 3e-6  # of the largest value; constants that a module makes in float32 are off by 1e-7
NOTHING = 1e-10  # of the largest gradient: rounding
SHAKE = 0.3  # of a parameter's root mean square
SMALL = 0.05  # in place of it, for a parameter of zeros
LOOSE = 0.03  # the most of `TOLERANCE` for large values: a softmax multiplies the rounding of constants in float32
# Largest output of a layer, as a part of the interval of the function that reads it. The last one is not for attention,
# whose scores would be as large as those that hide a key.
FAR = (1e-3, 1.0, 30.0, 1e4)

# Part of the largest value by which a value inside of a module may differ from the graph's, and size of values that are
# put in the place of its operations' results. The larger ones are not for attention, as above.
INSIDE = 1e-4
PROBES = (1.0, 1e3)
LARGE = 30.0  # an input of attention above this, and above the module's own, is not compared

# A difference counts if it is this many times that of parameters which are off by `ROUNDING`: deep modules are chaotic.
CHAOS, ROUNDING = 10.0, 1e-8

# A module may make its constants in float32, off by this part of their values, or of 1. Where this changes outputs or
# gradients by more than `TOLERANCE`, the module has to agree to `TOLERANCE` with parameters times one of these factors.
CONSTANTS, DAMPED = 1e-7, (0.5, 0.25, 0.125, 0.0625)


@dataclass
class Run:
    """The calls of the run that was recorded, and matrices of which other operations compute parts again."""

    log: Sequence[Recorded]
    divided: Collection[Matrix]


def check(
    graph: Graph, outputs: list[Matrix], module: nn.Module, ids: Sequence[int], call: Callable, run: Run
) -> "Read":
    """Compare a graph with its module; raise ProgramError at the first difference.

    Returns what the user's functions read.

    `outputs`: logits, in the order in which `call` returns them for token ids (1, T).
    `ids`: token ids of samples.
    """
    most, generator = graph.sequence_length, torch.Generator().manual_seed(0)
    lengths = sorted({most, 2, min(most, max(most // 2 | 1, 2))}, reverse=True)  # no sample has one token
    with _shaken(module, generator, graph.folded) as parameters:
        if not any(p.requires_grad for p in parameters.values()):
            name = type(module).__name__
            raise ProgramError(f"{name}: every parameter is frozen: set requires_grad_(True) on what is to be trained")
        check = _Check(graph, outputs, module, parameters, call, State(module))
        device = next(iter(parameters.values())).device

        def sample_of(length: int) -> Tensor:
            return torch.tensor(ids)[torch.randint(len(ids), (1, length), generator=generator)].to(device)

        samples = [sample_of(length) for length in lengths]
        if not check.agrees(samples):
            check.tolerance = check.measured(samples)
            if check.tolerance == TOLERANCE or not check.agrees(samples):
                check.refuse_one(samples)
        for length in range(2, min(most, M.SEQUENCE)):  # one by one, so that no more than one is in memory
            if length not in lengths:
                tokens, before = sample_of(length), set(check.ways)
                losses = check.losses(tokens)
                found = check.gradients(losses, check.tolerance) if check.ways[-1] not in before else None
                if found is not None:
                    check.refuse(f"the gradient of {found[0]}", found[1], tokens)
        check.evaluation(samples[0], map(sample_of, range(2, min(most, M.SEQUENCE))))
        check.far(sample_of(min(most, 3)))
        check.inside(run, samples[0])
        graph.unseen = [op.name for op in graph.operations if op.output in check.unseen]
    stable = [
        (variable, {key for key, value in variable.values().items() if values.get(key) == value})
        for variable, values in check.globals
    ]
    return Read({name for code in check.codes for name in reads_of(code).attributes}, stable)


class Read(NamedTuple):
    """What functions of the user read: names of attributes, and globals, with the places that calls have left alone."""

    attributes: Collection[str]
    globals: Sequence[tuple[Global, Collection[str]]]


def _nodes(outputs: Sequence[Tensor]) -> list[Any]:
    """Return the functions of autograd by which outputs have gradients, each once."""
    left, found = [y.grad_fn for y in reversed(outputs)], {}
    while left:
        node = left.pop()
        if node is not None and node not in found:
            found[node] = len(found)
            left += [before for before, _ in reversed(node.next_functions)]
    return list(found)


def _own_function(node: Any) -> type | None:
    """Return the class of a node that has a backward of the user's own."""
    function = getattr(type(node), "_forward_cls", None)
    is_own = function is not None and not function.__module__.startswith(("torch.", "bttlab."))
    return function if is_own else None


def _ways(outputs: Sequence[Tensor]) -> tuple:
    """Return by which functions outputs have gradients: equal ones have the same, but for a backward of one's own."""
    nodes = _nodes(outputs)
    number = {node: n for n, node in enumerate(nodes)}
    return tuple(
        (
            object() if _own_function(node) is not None else node.name(),
            id(getattr(node, "variable", None)),
            *(number.get(before, -1) for before, _ in node.next_functions),
        )
        for node in nodes
    )


@dataclass
class _Check:
    """Compares a graph with a module whose parameters are in double precision."""

    graph: Graph
    outputs: list[Matrix]
    module: nn.Module
    parameters: Mapping[str, Tensor]
    call: Callable[..., list[Tensor]]
    state: State

    def __post_init__(self) -> None:
        self.unseen = {op.output for op in self.graph.operations}  # they reached no output so far
        self.ways: list[tuple] = []  # of gradients, for each sample whose outputs were compared
        self.functions: dict[int, dict[int, Any]] = {}  # of the user that samples of a length call
        self.codes: set[types.CodeType] = set()  # of the user's functions
        self.globals: list[tuple[Global, dict[str, str]]] = []  # that they read, and the values in them
        self.tolerance = TOLERANCE  # for the parameters as they are

    def _see(self, values: Mapping[Matrix, Tensor], loss: Tensor) -> None:
        """Take the matrices from `unseen` that reach a sum of the graph's outputs, or have no gradient."""
        self.unseen = {matrix for matrix in self.unseen if values[matrix].requires_grad}
        if self.unseen:
            left = list(self.unseen)
            gradients = torch.autograd.grad(
                loss, [values[matrix] for matrix in left], retain_graph=True, allow_unused=True
            )
            self.unseen = {matrix for matrix, g in zip(left, gradients, strict=True) if g is None or not bool(g.any())}

    def wanted(self, tokens: Tensor, *mode: AbstractContextManager) -> list[Tensor]:
        """Return the module's outputs; raise ProgramError if it fails, or draws random numbers."""
        torch.manual_seed(0)
        before = random_state()
        try:
            outputs = self.call(tokens, *mode)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            what = f"on {tokens.shape[1]} tokens ({type(error).__name__}: {error})"
            is_of_types = any(word in str(error) for word in ("dtype", "Double", "Float", "scalar type"))
            near = (
                "; in double precision, as the check calls it: register its tensors and layers" if is_of_types else ""
            )
            raise ProgramError(f"{type(self.module).__name__}.forward fails in PyTorch {what}{near}") from error
        if random_state() != before:
            raise ProgramError(f"{type(self.module).__name__}: {self.random_cause()}")
        return outputs

    def random_cause(self) -> str:
        mode = "training mode: call eval(), or take out" if self.module.training else "eval mode: take out"
        return f"forward draws random numbers in {mode} what draws them (dropout, noise)"

    def evaluation(self, tokens: Tensor, others: Iterable[Tensor]) -> None:
        """Raise ProgramError if outputs in eval() or without gradients are others, or if calls change what they find.

        `others`: samples of each length at which the module was called before.
        """
        name, modes = type(self.module).__name__, {layer: layer.training for layer in self.module.modules()}
        here = self.wanted(tokens)
        others, known = list(others), self.functions[tokens.shape[1]].keys()
        for sample in [tokens, *(x for x in others if self.functions[x.shape[1]].keys() - known)]:
            remembered = self.remembered(self.wanted, sample, others if sample is tokens else ())
            if remembered is not None:
                raise ProgramError(f"{name}: {remembered}")
        without_gradients = [self.wanted(tokens, torch.no_grad())]
        self.module.eval()
        try:
            there = self.wanted(tokens)
            without_gradients.append(self.wanted(tokens, torch.no_grad()))
        finally:
            for layer, mode in modes.items():
                layer.training = mode
        changed = self.state.changed()
        if changed is not None:
            raise ProgramError(f"{name}: {changes(changed)}")
        if len(here) != len(there) or not all(map(_is_close, here, there)):
            raise ProgramError(
                f"{name}.forward has other outputs in eval() than in train(), in which it is: the card trains and "
                "predicts with one program; call eval() first, or compute the same in both"
            )
        if not all(len(here) == len(found) and all(map(_is_close, here, found)) for found in without_gradients):
            raise ProgramError(
                f"{name}.forward has other outputs under torch.no_grad(): the card trains and predicts with one "
                "program; compute the same whatever torch.is_grad_enabled() and requires_grad are"
            )

    def remembered(self, call: Callable[[Tensor], Any], tokens: Tensor, others: Iterable[Tensor] = ()) -> str | None:
        """Return what a refusal says of a value that calls have changed when `forward` finds it again.

        What a sample leaves for the same sample is no memory, nor is a cache that the first call for a length fills.
        """
        known = {id(layer) for layer in self.module.modules()}
        has_own_gradients = self._changer(tokens) is not None

        def both_ways() -> None:
            outputs = call(tokens)
            if has_own_gradients:  # hooks may count, too
                before = random_state()
                self._gradients_of(self._losses([(y, y) for y in outputs], tokens)[0])
                if random_state() != before:
                    raise ProgramError(f"{type(self.module).__name__}: {self.random_cause()}")

        both_ways()
        before, first = self.state.held(), Observer(known)
        with first:
            both_ways()
        for other in others:
            call(other)
        both_ways()
        after, second = self.state.held(), Observer(known)
        with second:
            both_ways()
        self.codes.update(second.functions)
        self.globals += [(variable, variable.values()) for variable in second.globals]
        place = difference(before, after)
        if first.random is not None:
            return cause(f"the system{at(first.random)}", True)
        return second.cause(first) if place is None else cause(place, place in after.generators)

    def _check_hooks(self, hooks: Sequence[Hook]) -> None:
        """Raise ProgramError if a run has registered a hook on the gradient of a parameter."""
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        for hook in hooks:
            is_of_sum = type(hook.of).__name__ == "AccumulateGrad"  # of a parameter's gradients
            parameter = names.get(id(hook.of.variable if is_of_sum else hook.of))
            if parameter is not None:
                what = f"registers a hook on the gradient of {parameter}, which the card does not call: remove it"
                raise ProgramError(f"{type(self.module).__name__}.forward {what}{at(hook.line)}")

    def inside(self, run: Run, tokens: Tensor) -> None:
        """Compare each value inside of the module with the graph's, and then each operation for values of its own.

        An output does not depend on what is behind a ReLU that is 0, or before it, and a gradient neither. So values at
        random take the place of each operation's result, in the module and in the graph, with the gradient as it was.
        """
        computed = self._executed(tokens)
        watch = Watch(self.module, run.log, computed, computed)
        wanted = self.wanted(tokens, watch.watching(tokens))
        self._check_inside(watch, max(INSIDE, self.tolerance), tokens)
        self._see(computed, self._losses(list(self._pairs(computed, wanted, tokens)), tokens)[1])
        if not watch.is_whole:  # other calls than in the run that was recorded, such as of a module that keeps results
            return
        outputs = {matrix.base or matrix for matrix in self.outputs}
        matrices = replaceable(run.log, computed, outputs.union(run.divided))
        of_attention = {m.base or m for op in self.graph.operations if isinstance(op, Attention) for m in op.inputs}
        small = self._sources(of_attention, matrices)
        for size in PROBES:
            generator, given = torch.Generator().manual_seed(0), {}
            for matrix in matrices:
                values = torch.randn(computed[matrix].shape, generator=generator, dtype=torch.float64)
                given[matrix] = values.to(computed[matrix]) * (1.0 if matrix in small else size)
            seen: dict[Matrix, Tensor] = {}
            own = execute(self.graph, self._used(), tokens[0], given=given, seen=seen)
            if any(_largest(seen[m]) > max(LARGE, _largest(computed[m])) for m in of_attention):
                return
            watch = Watch(self.module, run.log, own, seen, given)
            wanted = self.wanted(tokens, watch.watching(tokens))
            if not watch.is_whole:
                return
            tolerance = INSIDE if size == 1 else LOOSE
            self._check_inside(watch, tolerance, tokens)
            pairs = list(self._pairs(own, wanted, tokens))
            if not all(bool(torch.isfinite(y).all()) for pair in pairs for y in pair):
                return
            found = next((f for f in self._differences(pairs) if not f[1] < tolerance), None)
            if found is None:
                losses = self._losses(pairs, tokens)
                self._see(own, losses[1])
                of_gradient = self.gradients(losses, tolerance, is_far=True)
                found = of_gradient and (f"the gradient of {of_gradient[0]}", of_gradient[1])
            if found is not None:
                self.refuse(f"{found[0]}, with random values in place of those inside,", found[1], tokens)

    def _sources(self, matrices: Collection[Matrix], replaced: Collection[Matrix]) -> set[Matrix]:
        """Return the replaced matrices of which others are computed without a replaced one between them."""
        found, left, seen = set(), list(matrices), set()
        makers = {op.output: op for op in self.graph.operations}
        while left:
            matrix = left.pop()
            if matrix in seen:
                continue
            seen.add(matrix)
            if matrix in replaced:
                found.add(matrix)
            else:
                left += [m.base or m for m in makers[matrix].inputs]
        return found

    def _check_inside(self, watch: Watch, tolerance: float, tokens: Tensor) -> None:
        """Raise ProgramError if a value inside of the module differs by more than the tolerance."""
        if watch.worst is None or not watch.worst[0] > tolerance:
            return
        share, call, matrix = watch.worst
        at = f" ({call.line})" if call.line else ""
        self.refuse(f"{matrix.name}, a value inside{at},", share, tokens)

    def far(self, tokens: Tensor) -> None:
        """Compare outputs and gradients where single layers, of all blocks alike, have small or large outputs."""
        groups: dict[str, list[Operation]] = defaultdict(list)
        for op in self.graph.operations:
            if self._scales(op):
                groups[re.sub(r"\d+", "#", op.name)].append(op)
        with torch.no_grad():
            values = self._executed(tokens)
        for group in groups.values():
            size = max(float(values[op.output].abs().max()) for op in group)
            readers = [reader for op in group for reader in self._readers(op)]
            tables = [ACTIVATIONS[f.function].function for f in readers if isinstance(f, Activate)]
            interval = max((table.high for table in tables if table.has_interval), default=1.0)
            is_score = any(isinstance(reader, Attention) for reader in readers)
            for part in FAR[:-1] if is_score else FAR:
                names = {name for op in group for name in self._scales(op)}
                self._compare_scaled(names, part * interval / (size + 1e-30), part, tokens)

    def _readers(self, op: Operation) -> Iterator[Operation]:
        """Yield operations that read an output, also through sums, products and moves."""
        for reader in self.graph.users(op.output):
            yield reader
            if isinstance(reader, Elementwise | GatherColumns):
                yield from self._readers(reader)

    def _scales(self, op: Operation) -> list[str]:
        """Return parameters that multiply the output of an operation, if all are multiplied alike."""
        names = [self.graph.copies.get(name, name) for name in op.parameters(self._used())]
        cores = [name for name in names if ".cores." in name]
        names = [name for name in names if name not in cores[:-1] and name not in self.graph.folded]
        return names if isinstance(op, TTLinear | Dense | Norm | Embedding) else []

    def _used(self) -> dict[str, Tensor]:
        """Return the parameters by the names that they have in the graph."""
        return {**self.parameters, **{copy: self.parameters[p] for copy, p in self.graph.copies.items()}}

    def _executed(self, tokens: Tensor) -> dict[Matrix, Tensor]:
        return execute(self.graph, self._used(), tokens[0])

    def _compare_scaled(self, names: set[str], factor: float, part: float, tokens: Tensor) -> None:
        """Compare outputs and gradients, of a loss that is scaled, too, where some parameters are scaled."""
        scaled = [self.parameters[name] for name in names if name in self.parameters]
        before = [parameter.data for parameter in scaled]
        tolerance = min(TOLERANCE * max(part, 1.0) ** 2, LOOSE)
        try:
            for parameter in scaled:
                parameter.data = factor * parameter.data
            values, wanted = self._executed(tokens), self.wanted(tokens)
            pairs = list(self._pairs(values, wanted, tokens))
            if not all(bool(torch.isfinite(y).all()) for pair in pairs for y in pair):
                return
            found = next((f for f in self._differences(pairs) if not f[1] < tolerance), None)
            if found is None:
                losses = [part * loss for loss in self._losses(pairs, tokens)]
                self._see(values, losses[1])
                of_gradient = self.gradients(losses, tolerance, is_far=True)
                found = of_gradient and (f"the gradient of {of_gradient[0]}", of_gradient[1])
            what = found[0] if found else None
            if found and found[1] > CHAOS * max(self._change(tokens), self._change_by_constants([tokens])):
                name = type(self.module).__name__
                where = f"{name}: {what} differs from what was traced where {min(names)} is {factor:.0e} times as large"
                near = "forward has a limit, another function, or a hook on gradients, for values of this size"
                changer = self._changer(tokens) if "gradient" in what else None
                raise ProgramError(f"{where}; {changer or near}")
        finally:
            for parameter, data in zip(scaled, before, strict=True):
                parameter.data = data

    def _changer(self, tokens: Tensor) -> str | None:
        """Return what may change gradients, by name: a layer's hook, or a function with a backward of its own."""
        for path, layer in self.module.named_modules():
            if layer._backward_hooks or layer._backward_pre_hooks:
                return f"a backward hook of {path or 'the module'} may change gradients: remove it"
        hooks = Hooks()
        for node in _nodes(self.wanted(tokens, hooks)):
            if (function := _own_function(node)) is not None:
                rule = "call the functions of torch that it computes, whose gradients the card has"
                return f"{function.__name__}, an autograd.Function, has a backward of its own: {rule}"
        if hooks.lines:
            what = f"a hook on gradients, or on what is saved for them, may change them{at(hooks.lines[0])}"
            return f"{what}: remove it"
        return None

    def _pairs(
        self, values: Mapping[Matrix, Tensor], wanted: Sequence[Tensor], tokens: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each output of the graph and of the module."""
        for theirs, matrix in zip(wanted, self.outputs, strict=True):
            yield view(values, matrix, tokens.shape[1]), theirs

    def _differences(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Iterator[tuple[str, float]]:
        """Yield the name of each output, and the part of its largest value by which it differs."""
        for n, (ours, theirs) in enumerate(pairs):
            yield f"output {n + 1}" if len(pairs) > 1 else "the output", _difference_of(ours, theirs)

    def _change(self, tokens: Tensor) -> float:
        """Return by which part outputs or gradients of the module change with parameters that are off by rounding."""
        generator, found = torch.Generator().manual_seed(0), []
        before = [parameter.data for parameter in self.parameters.values()]
        try:
            for change in (0.0, ROUNDING):
                for parameter, data in zip(self.parameters.values(), before, strict=True):
                    noise = torch.randn(data.shape, generator=generator, dtype=torch.float64)
                    parameter.data = data * (1 + change * noise.to(data))
                wanted = self.wanted(tokens)
                loss = self._losses([(theirs, theirs) for theirs in wanted], tokens)[0]
                found.append(([y.detach() for y in wanted], self._gradients_of(loss)))
        finally:
            for parameter, data in zip(self.parameters.values(), before, strict=True):
                parameter.data = data
        return _change_of(*found)

    def _losses(self, pairs: Sequence[tuple[Tensor, Tensor]], tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return a weighted sum of the outputs of the module and of the graph."""
        totals = [0.0, 0.0]
        for n, (ours, theirs) in enumerate(pairs):
            # No two elements of all samples have the same weight, so nothing cancels.
            w = torch.linspace(1, 2, ours.numel(), dtype=torch.float64).mul(7 + n).sin().view(ours.shape)
            w = w.to(ours) * (1 + tokens.shape[1])
            totals = [
                total + (y.reshape(ours.shape) * w).sum() for total, y in zip(totals, (theirs, ours), strict=True)
            ]
        return totals[0], totals[1]

    def _compared(
        self, tokens: Tensor, used: Mapping[str, Tensor], shared: dict[str, Any]
    ) -> list[tuple[Tensor, Tensor]]:
        """Return each output of the graph and of the module; note by which functions they have gradients."""
        hooks = Hooks()
        wanted = self.wanted(tokens, hooks)
        if hooks.lines:
            with Observer() as observer:
                self.wanted(tokens)
            self._check_hooks(observer.hooks)
        self.ways.append((*_ways(wanted), *(object() for _ in hooks.lines)))
        self.functions[tokens.shape[1]] = hooks.functions
        return list(self._pairs(execute(self.graph, used, tokens[0], shared), wanted, tokens))

    def agrees(self, samples: Sequence[Tensor]) -> bool:
        """Return whether outputs and gradients of the module and of the graph agree to the tolerance."""
        used, shared, totals = self._used(), {}, [0.0, 0.0]
        for tokens in samples:
            pairs = self._compared(tokens, used, shared)
            if not all(share < self.tolerance for _, share in self._differences(pairs)):
                return False
            totals = [total + loss for total, loss in zip(totals, self._losses(pairs, tokens), strict=True)]
        return self.gradients(totals, self.tolerance) is None

    def refuse_one(self, samples: Sequence[Tensor]) -> NoReturn:
        """Refuse the first sample of which outputs differ, or else gradients."""
        for tokens, losses in zip(samples, list(map(self.losses, samples)), strict=True):
            key, share = self.gradients(losses, self.tolerance) or (None, 0.0)
            if key is not None:
                self.refuse(f"the gradient of {key}", share, tokens)
        self.refuse("a gradient", math.inf, samples[0])

    def measured(self, samples: Sequence[Tensor]) -> float:
        """Return the tolerance for parameters of which constants' rounding changes outputs or gradients the most.

        It is `TOLERANCE` unless the module agrees to that with smaller parameters, with which rounding changes less.
        """
        tolerance = min(CHAOS * self._change_by_constants(samples), LOOSE)
        if tolerance <= TOLERANCE:
            return TOLERANCE
        parameters = [p for name, p in self.parameters.items() if name not in self.graph.folded]
        before = [parameter.data for parameter in parameters]
        try:
            for factor in DAMPED:
                for parameter, data in zip(parameters, before, strict=True):
                    parameter.data = factor * data
                if CHAOS * self._change_by_constants(samples) <= TOLERANCE:
                    return tolerance if self.agrees(samples) else TOLERANCE
        finally:
            for parameter, data in zip(parameters, before, strict=True):
                parameter.data = data
        return TOLERANCE

    def _change_by_constants(self, samples: Sequence[Tensor]) -> float:
        """Return by which part outputs or gradients of the graph change with constants that are off by rounding."""
        generator, found, used = torch.Generator().manual_seed(0), [], self._used()
        for change in (0.0, CONSTANTS):
            named = dict(used)
            for name, value in self.graph.constants.items():
                constant = torch.from_numpy(value).double()
                noise = torch.randn(constant.shape, generator=generator, dtype=torch.float64)
                size = constant.abs().clamp(min=min(_largest(constant), 1.0))  # a mask has 0 beside -2^60
                named[name] = (constant + change * size * noise).to(next(iter(used.values())).device)
            values = [execute(self.graph, named, tokens[0]) for tokens in samples]
            pairs = [[(y, y) for y, _ in self._pairs(v, self.outputs, t)] for v, t in zip(values, samples, strict=True)]
            loss = sum(self._losses(pair, tokens)[0] for pair, tokens in zip(pairs, samples, strict=True))
            found.append(([y.detach() for pair in pairs for y, _ in pair], self._gradients_of(loss)))
        return _change_of(*found)

    def losses(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Compare outputs, and return a weighted sum of them of the module and of the graph."""
        pairs = self._compared(tokens, self._used(), {})
        for what, share in self._differences(pairs):
            if not share < self.tolerance:
                self.refuse(what, share, tokens)
        return self._losses(pairs, tokens)

    def gradients(
        self, losses: Sequence[Tensor], tolerance: float = TOLERANCE, is_far: bool = False
    ) -> tuple[str, float] | None:
        """Compare gradients; return the parameter and the part of its largest value by which it differs the most.

        `is_far`: whether those that are not finite are left out.
        """
        trained = [key for key, p in self.parameters.items() if p.requires_grad]
        theirs, ours = map(self._gradients_of, losses)
        largest = max((float(g.abs().max()) for g in theirs if g is not None and g.numel()), default=0.0)
        found = []
        for key, a, b in zip(trained, theirs, ours, strict=True):
            zero = torch.zeros(())
            share = _difference(zero if b is None else b, zero if a is None else a, largest)
            if is_far and not math.isfinite(share):  # it overflows, in PyTorch as a rule
                continue
            found.append((share if math.isfinite(share) else math.inf, key))
        share, key = max(found, default=(0.0, ""))
        return None if share < tolerance else (key, share)

    def _gradients_of(self, loss: Tensor) -> Sequence[Tensor | None]:
        """Return the gradient of each trained parameter; None for those that the loss does not depend on."""
        trained = [p for p in self.parameters.values() if p.requires_grad]
        if not loss.requires_grad:
            return [None] * len(trained)
        try:
            return torch.autograd.grad(loss, trained, allow_unused=True)
        except RuntimeError as error:
            raise ProgramError(f"{type(self.module).__name__}: its gradient fails in PyTorch ({error})") from None

    def refuse(self, what: str, share: float, tokens: Tensor) -> NoReturn:
        """Raise the error for a difference: at which length, and the likely cause."""
        runs, changed = [], self.state.changed()
        for seed in (1, 2):
            torch.manual_seed(seed)
            runs.append([y.detach() for y in self.call(tokens)])
        remembered = self.remembered(self.call, tokens) if changed is None else changes(changed)
        if not all(torch.isfinite(y).all() for y in runs[0]):
            reason = "it is not finite in PyTorch: a mask may hide all keys of a token"
        elif remembered is not None:
            reason = remembered
        elif any(not torch.equal(*pair) for pair in zip(*runs, strict=True)):
            reason = self.random_cause()
        elif (changer := self._changer(tokens) if "gradient" in what else None) is not None:
            reason = changer
        elif tokens.shape[1] != self.graph.sequence_length:
            reason = (
                "forward depends on the length: a sum over the tokens (use their mean, x.mean(1)), a condition on the "
                "length, a scale, or rows counted from the end of a table"
            )
        else:
            of_outputs = (
                "draws constants (make them a buffer), asks for the type of numbers, or replaces functions of torch"
            )
            others = "or changes gradients (a hook, a detach)" if "gradient" in what else of_outputs
            reason = f"forward depends on token ids other than by an embedding, changes tensors in place, {others}"
        by = f" by {share:.0e} of its largest value" if math.isfinite(share) else ""
        where = f"{type(self.module).__name__}: {what} for {tokens.shape[1]} tokens"
        raise ProgramError(f"{where} differs from what was traced{by}; {reason}")


def _difference_of(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference of an output as a part of the largest value; infinity for another size."""
    return _difference(ours, theirs.reshape(ours.shape), 0.0) if theirs.numel() == ours.numel() else math.inf


def _largest(x: Tensor) -> float:
    return float(x.detach().abs().max()) if x.numel() else 0.0


def _is_close(ours: Any, theirs: Any) -> bool:
    return isinstance(theirs, Tensor) and _difference_of(ours, theirs) < TOLERANCE


def _difference(ours: Tensor, theirs: Tensor, largest: float) -> float:
    """Return the largest difference as a part of the largest value; rounding of zeros counts as none."""
    if not ours.numel():
        return 0.0
    difference = float((ours - theirs).detach().abs().max())
    return difference / (float(theirs.detach().abs().max()) + NOTHING / TOLERANCE * largest + 1e-300)


def _change_of(before: tuple[Sequence[Tensor], Sequence], after: tuple[Sequence[Tensor], Sequence]) -> float:
    """Return the largest difference of outputs or of gradients, as a part of the largest value; of finite ones."""
    outputs, gradients = (list(zip(*pair, strict=True)) for pair in zip(before, after, strict=True))
    gradients = [(a, b) for a, b in gradients if a is not None and b is not None]
    largest = max((_largest(a) for a, _ in gradients), default=0.0)  # beside it, others are rounding of 0
    changes = [_difference(b, a, 0.0) for a, b in outputs] + [_difference(b, a, largest) for a, b in gradients]
    return max(filter(math.isfinite, changes), default=0.0)


@contextmanager
def _shaken(module: nn.Module, generator: torch.Generator, kept: Collection[str]) -> Iterator[dict[str, Tensor]]:
    """Put parameters and buffers into double precision, and shake the parameters but `kept`; then all are as before."""
    parameters = dict(module.named_parameters())
    tensors = [*parameters.values(), *module.buffers()]
    before = [(tensor, tensor.data) for tensor in tensors]
    default = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        try:
            torch.set_default_dtype(torch.float64)
            for tensor in tensors:
                copy = tensor.data.double() if tensor.is_floating_point() else tensor.data
                tensor.data = copy.clone()
            for parameter in (parameter for name, parameter in parameters.items() if name not in kept):
                size = SHAKE * float(parameter.data.square().mean().sqrt()) if parameter.numel() else 0.0
                noise = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.data += (size or SMALL) * math.sqrt(12) * (noise - 0.5).to(parameter.device)
            yield parameters
        finally:
            torch.set_default_dtype(default)
            for tensor, data in before:
                tensor.data = data


def execute(
    graph: Graph,
    parameters: Mapping[str, Tensor],
    tokens: Tensor,
    shared: dict[str, Any] | None = None,
    given: Mapping[Matrix, Tensor] | None = None,
    seen: dict[Matrix, Tensor] | None = None,
) -> dict[Matrix, Tensor]:
    """Return the value of each matrix of a graph for token ids (T,), by PyTorch.

    `shared`: results of `Values.once`, for further samples of the same parameters.
    `given`: values that the readers of matrices see in place of theirs, with the gradient of theirs.
    `seen`: where to put what readers see.
    """
    like, outputs = next(iter(parameters.values())), {}
    constants = {name: torch.from_numpy(value).to(like) for name, value in graph.constants.items()}
    values = Values({**constants, **parameters}, tokens, {} if shared is None else shared)
    given, seen = given or {}, {} if seen is None else seen
    for op in graph.operations:
        y = op.torch(values, *(view(seen, matrix, len(tokens)) for matrix in op.inputs))
        outputs[op.output] = y
        seen[op.output] = y + (given[op.output] - y).detach() if op.output in given else y
    return outputs


class Calls:
    """Calls a module in double precision, and knows the tensors that are left of it.

    A module may keep what it computes, in a container or by `functools.lru_cache`. In single precision, its own
    `forward` would fail with such a tensor in double precision.
    """

    def __init__(self, module: nn.Module):
        self._module = module
        self._left: dict[int, weakref.ref[Tensor]] = {}

    def __call__(self, tokens: Tensor, mode: AbstractContextManager | None = None) -> list[Any]:
        """Return the module's outputs as a list."""
        with _Double(self._note), mode or nullcontext():
            return outputs_of(self._module(tokens))

    def _note(self, result: Any) -> None:
        for x in result if isinstance(result, tuple | list) else (result,):
            if isinstance(x, Tensor) and x.dtype is torch.float64 and id(x) not in self._left:
                key = id(x)
                self._left[key] = weakref.ref(x, lambda _, key=key: self._left.pop(key, None))

    def restore_precision(self) -> None:
        """Give the tensors that a module in single precision has kept that precision."""
        if any(parameter.dtype is torch.float64 for parameter in self._module.parameters()):
            return
        for found in list(self._left.values()):
            tensor = found()
            if tensor is not None and tensor.dtype is torch.float64:
                tensor.data = tensor.data.float()
        self._left.clear()


class _Double(TorchFunctionMode):
    """Makes double precision of single precision where a module asks for it: `x.float()`, `dtype=torch.float32`.

    `note` gets the result of each function that was not asked for double precision.
    """

    def __init__(self, note: Callable[[Any], None]):
        super().__init__()
        self._note = note

    def __torch_function__(self, func: Callable, types: Any, args: Sequence = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        is_double = func is Tensor.double or any(x is torch.float64 for x in (*args, *kwargs.values()))
        args = [torch.float64 if x is torch.float32 else x for x in args]
        kwargs = {key: torch.float64 if x is torch.float32 else x for key, x in kwargs.items()}
        result = (Tensor.double if func is Tensor.float else func)(*args, **kwargs)
        if not is_double:
            self._note(result)
        return result


def outputs_of(outputs: Any) -> list[Any]:
    """Return a module's outputs as a list, without objects such as a cache of keys and values."""
    if isinstance(outputs, Mapping):
        outputs = [value for value in outputs.values() if value is not None]
    outputs = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
    return [x for x in outputs if isinstance(x, Tensor | tuple | list | Mapping)] or outputs
