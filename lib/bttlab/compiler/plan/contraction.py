"""Plan the tensor products of a linear layer: each by its cheapest candidate, with its operands rearranged before.

`plan` returns steps as data; `emitter` emits their instructions. A product of cores alone is planned where it is first
read. If the engine produces it in the arrangement that an operand buffer needs, it is written there directly.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import NamedTuple

from bttlab.compiler.builder import ROWS, row_passes
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.machine import M
from bttlab.compiler.plan.arrangement import Arrangement, rearranging_steps
from bttlab.compiler.plan.candidates import Candidate, Candidates, Copy, Tensor
from bttlab.compiler.plan.tt_layer import IN, OUT, TTLayer
from bttlab.tensor.order import Product

BIAS, ADDEND = "the bias", "the addend"  # two words: no tensor of an order has such a name


class Permute(NamedTuple):
    """A copy of a tensor in another arrangement, in a bank, by the shuffle unit."""

    phase: int
    tensor: str
    source: Arrangement
    target: Arrangement
    is_final: bool = False  # whether it goes to where the tensor is wanted, in place of a buffer of its own

    def __str__(self) -> str:
        return f"{self.tensor}: {self.source} to {self.target}"


class Load(NamedTuple):
    """A copy of a tensor in the operand buffer of the phase's engine; its outermost index counts rows."""

    phase: int
    tensor: str
    source: Arrangement
    target: Arrangement
    offset: int  # of its first vector, from the first one that the plan loads there
    is_by_engine: bool  # else by the shuffle unit

    def __str__(self) -> str:
        return f"{self.tensor}: {self.source} to {self.target}, loaded"


class Multiply(NamedTuple):
    """C = addend + A B by an operation of the phase's engine."""

    phase: int
    product: Product
    operation: int
    a: Copy
    b: Copy  # in the operand buffer; for ACCUMULATE in a bank
    contracted: Sequence[str]  # as for `Candidate`
    result: Arrangement
    is_final: bool = False  # as for `Permute`
    # If it goes to the operand buffer: its arrangement there, of which `result` is a view, and `Load.offset`.
    loaded: Arrangement | None = None
    offset: int = 0
    addend: Copy | None = None
    flags: int = 0
    has_bias: bool = False  # whether one more row is the gradient of the bias

    def __str__(self) -> str:
        result, left, right = self.product
        name = ("EXPAND", "REDUCE", "ACCUMULATE")[(M.EXPAND, M.REDUCE, M.ACCUMULATE).index(self.operation)]
        added = f" + {self.addend[0]}" if self.addend else ""
        return f"{result} = {left} {right}{added}: {name}, {self.a[1]} by {self.b[1]} to {self.result}"


class Add(NamedTuple):
    """The addend added to a tensor, which then is where it is wanted."""

    phase: int
    tensor: str
    source: Arrangement


class AddToSum(NamedTuple):
    """A gradient added to its sum over the samples of an update."""

    phase: int
    tensor: str
    source: Arrangement


class TakeSum(NamedTuple):
    """The sum over the samples of an update copied to the gradient of a core."""

    phase: int
    tensor: str


Step = Permute | Load | Multiply | Add | AddToSum | TakeSum


@dataclass(frozen=True)
class Given:
    """What a plan begins with, beside the cores.

    `merged`: the copies of products of cores in the banks.
    `loaded`: of each phase: what the operand buffer of its engine has.
    `between`: arrangement of the kept intermediate between x and z (`TTLayer.keepable`), if there is one.
    `sums`: the gradients that are summed over samples.
    """

    merged: tuple[Copy, ...] = ()
    loaded: tuple[frozenset[Copy], ...] = (frozenset(), frozenset())
    between: Arrangement | None = None
    sums: tuple[Copy, ...] = ()


def _shared(plan: Callable[..., list[Step]]) -> Callable[..., list[Step]]:
    """Let layers of one order and shape share their plans: a plan depends on nothing else of a layer."""

    @wraps(plan)
    def shared(layer: TTLayer, *arguments) -> list[Step]:
        key = plan.__name__, *arguments
        if key not in layer.plans:
            layer.plans[key] = plan(layer, *arguments)
        return layer.plans[key]

    return shared


@_shared
def plan_z(layer: TTLayer, given: Given, keeps_between: bool = False) -> list[Step]:
    """Return the steps from x to z; with `keeps_between` those of the intermediate between them, too."""
    p, (*before, last) = _Phase(layer, IN, given), layer.of_tokens(IN)
    p.add("x", layer.features("x"))
    p.targets[layer.z] = layer.z_arrangement
    if layer.direct:
        merge, last = layer.direct
        p.defer(merge)
    else:
        for step in before:
            p.multiply(step)
    if layer.has_one:  # REDUCE can write an extra element of 1 to each row
        p.multiply(last, p.choose(last, M.REDUCE), flags=M.ONE)
    else:
        p.multiply(last)
    if layer.direct and keeps_between:
        p.multiply(before[0])
    return p.steps


@_shared
def plan_y(layer: TTLayer, given: Given, has_bias: bool) -> list[Step]:
    """Return the steps from z to y."""
    p, features = _Phase(layer, OUT, given), layer.features("y")
    p.add(layer.z, layer.z_arrangement)
    *first, last = layer.of_tokens(OUT)
    for step in first:
        p.multiply(step)
    p.targets["y"] = features
    if has_bias:
        p.add(BIAS, Arrangement(features.order[1:], features.lanes))
    p.multiply(last, p.choose(last, M.EXPAND), addend=BIAS if has_bias else "")
    return p.steps


@_shared
def plan_gradients(layer: TTLayer, given: Given, has_bias: bool, has_addend: bool, has_sums: bool) -> list[Step]:
    """Return the steps from dy and z to dx and the gradients of the cores.

    `has_addend`: whether dx has an addend.
    `has_sums`: whether gradients are summed over samples: those of the cores that follow from them have no step.
    """
    steps: list[Step] = []
    phases = into, out = [_Phase(layer, phase, given, steps) for phase in (IN, OUT)]
    d_z = f"d{layer.z}"
    out.add("dy", layer.features("y"))
    out.add(layer.z, layer.z_arrangement)
    into.add("x", layer.features("x"))
    out.targets[d_z], into.targets["dx"] = layer.z_arrangement, layer.features("x")
    for product in layer.backward_products:
        result, phase = product[0], layer.phase_of(product)
        p = phases[phase]
        if any("t" in layer.indices[n] and n in layer.forward and n not in p.tensors for n in product[1:]):
            if phase == IN and given.between is not None:
                p.add(layer.keepable[0], given.between)
            else:
                for step in layer.of_tokens(phase)[:-1]:
                    p.multiply(step)
        if result == "dx":
            p.multiply_dx(product, has_addend)
        elif result == d_z or not has_sums or "t" in layer.indices[result]:
            p.multiply_back(product, has_bias and result != d_z)
            if result == d_z:
                into.add(d_z, layer.z_arrangement)
        elif layer.has_tokens(product):
            p.multiply_back(product, has_bias)
            steps.append(AddToSum(phase, result, p.targets.get(result) or p.tensors[result].copies[0]))
    return steps


@_shared
def plan_collection(layer: TTLayer, given: Given) -> list[Step]:
    """Return the steps from the sums over samples to the gradients of the cores."""
    steps: list[Step] = []
    phases, sums = [_Phase(layer, phase, given, steps) for phase in (IN, OUT)], dict(given.sums)
    for product in layer.backward_products:
        result, phase = product[0], layer.phase_of(product)
        if result in sums:
            phases[phase].add(result, sums[result])
            if result in phases[phase].targets:  # the sum is a core's gradient
                steps.append(TakeSum(phase, result))
        elif not layer.has_tokens(product):
            phases[phase].multiply(product)
    return steps


class _Phase(Candidates):
    """A plan under construction: the tensors of a phase as the steps so far leave them."""

    def __init__(self, layer: TTLayer, phase: int, given: Given, steps: list[Step] | None = None):
        super().__init__(layer, given.loaded[phase])
        self.phase, self.steps = phase, [] if steps is None else steps
        self.vectors = 0  # that the plan loads into the operand buffer
        for name, arrangement in layer.cores.items():
            if any(name in step for step in layer.steps[phase]):
                self.tensors[name] = Tensor(name, frozenset(arrangement.order), [arrangement], is_parameter=True)
                self.targets[f"d{name}"] = arrangement
        for step in layer.steps[phase]:
            if "t" not in layer.indices[step[0]]:
                self.defer(step)
        for name, arrangement in given.merged:
            if name in self.tensors:
                self.tensors[name].copies.append(arrangement)

    def add(self, name: str, arrangement: Arrangement) -> None:
        """Add a copy of a tensor that is there before."""
        self.tensors.setdefault(name, Tensor(name, frozenset(arrangement.order))).copies.append(arrangement)

    def defer(self, product: Product) -> None:
        """Add the result of a product of cores; the product is planned where the result is first read."""
        self.tensors[product[0]] = self.tensor_of(product)

    # ---- operands ------------------------------------------------------------------------------------------------

    def _arrange(self, tensor: Tensor, arrangement: Arrangement) -> Copy:
        """Let a tensor have a copy in an arrangement: permute the tensor if it has none."""
        self._make(tensor, arrangement)
        if not self._is_stored(tensor.name, arrangement):
            source = self._nearest(tensor.copies, arrangement)
            self.steps.append(Permute(self.phase, tensor.name, source, arrangement))
            tensor.copies.append(arrangement)
        return tensor.name, arrangement

    def _nearest(self, copies: Iterable[Arrangement], to: Arrangement, rows: str = "") -> Arrangement:
        """Return the copy that takes the fewest steps to rearrange."""
        return min(copies, key=lambda copy: rearranging_steps(self.costs, copy, to, rows))

    def _load(self, tensor: Tensor, arrangement: Arrangement) -> Copy:
        """Let the operand buffer have a tensor in an arrangement; its outermost index counts rows."""
        rows = arrangement.order[0]
        if (tensor.name, arrangement) in self.loaded:
            return tensor.name, arrangement
        passes, offset = len(row_passes(self.sizes[rows])), self.vectors
        vectors = arrangement.vectors(self.sizes) // self.sizes[rows]
        self.vectors += vectors * passes
        is_by_engine = tensor.is_parameter and vectors == 1  # rows of one vector are sooner loaded by the engine
        if tensor.is_parameter:
            source = tensor.copies[0]
        elif self._multiply_directly(tensor, arrangement, offset):
            source = None
        else:
            self._make(tensor, arrangement, rows)
            is_cut = passes > 1  # the source, too, must then have the rows as its outermost index
            _, copy = self._load_cost(tensor, arrangement)
            if is_cut or copy is not None:
                self._arrange(tensor, arrangement if is_cut else copy)
            copies = [copy for copy in tensor.copies if not is_cut or copy.order[0] == rows]
            source = self._nearest(copies, arrangement, rows)
        if source is not None:
            self.steps.append(Load(self.phase, tensor.name, source, arrangement, offset, is_by_engine))
        self.loaded.add((tensor.name, arrangement))
        return tensor.name, arrangement

    # ---- products ------------------------------------------------------------------------------------------------

    def multiply(self, product: Product, candidate: Candidate | None = None, **fields) -> None:
        """Plan a product by a candidate, by default the cheapest, and a copy where its result is wanted.

        Raise `ProgramError` if there is no candidate. `fields` are those of `_multiply`.
        """
        candidate = candidate or self.choose(product)
        self.defer(product)
        self._multiply(self.tensors[product[0]], candidate, **fields)

    def multiply_back(self, product: Product, has_bias: bool) -> None:
        """Plan a product of the backward pass, if possible together with the gradient of the bias.

        Rows of z have an extra element of 1, so the sum over tokens of z^T dy has one more row: that gradient.
        """
        is_whole = self.layer.has_one and set(product[1:]) == {self.layer.z, "dy"} and product[0] not in self.targets
        candidate = self.choose(product, M.ACCUMULATE, "dy") if has_bias and is_whole else None
        self.multiply(product, candidate, has_bias=candidate is not None)

    def multiply_dx(self, product: Product, has_addend: bool) -> None:
        """Plan dx: the engine adds the addend if it computes dx as it is wanted, else the vector unit does."""
        candidate, features = self.choose(product, M.EXPAND), self.targets["dx"]
        if not has_addend:
            self.multiply(product, candidate)
            return
        if candidate is not None and self.matches_target(candidate, "dx"):
            self.add(ADDEND, features)
            self.multiply(product, candidate, addend=ADDEND)
            return
        del self.targets["dx"]
        self.multiply(product, self.choose(product, M.EXPAND))
        (copy,) = self.tensors["dx"].copies
        self.steps += Permute(self.phase, "dx", copy, features), Add(self.phase, "dx", features)

    def _make(self, tensor: Tensor, to: Arrangement, rows: str = "") -> None:
        """Plan a deferred product by the candidate that reaches an arrangement at the least total cost."""
        if not tensor.copies:
            self._multiply(tensor, next(iter(self._sorted_candidates(tensor, to, rows)), None))

    def _multiply_directly(self, tensor: Tensor, arrangement: Arrangement, offset: int) -> bool:
        """Plan a product of cores directly into the operand buffer; return False if no arrangement allows it."""
        for a, b, k, view in self._direct_operands(tensor, arrangement):
            operands = self._arrange(*a), self._load(*b)
            where = {"loaded": arrangement, "offset": offset}
            self.steps.append(Multiply(self.phase, tensor.product, M.EXPAND, *operands, k, view, **where))
            return True
        return False

    def _multiply(
        self, tensor: Tensor, candidate: Candidate | None, addend: str = "", flags: int = 0, has_bias: bool = False
    ) -> None:
        """Plan a tensor's product by a candidate.

        `addend`: name of a tensor that is added to the result.
        """
        if candidate is None:
            raise ProgramError(
                f"'{text_of(tensor.product)}': no engine can compute it: an engine has {ROWS} rows, and neither "
                f"operand has an index for them; multiply others first, or take ranks of at most {ROWS}"
            )
        operation, _, _, (left, of_left), (right, of_right), contracted, to = candidate
        place_right = self._arrange if operation == M.ACCUMULATE else self._load
        b = place_right(self.tensors[right], of_right)
        a = self._arrange(self.tensors[left], of_left)
        target, is_final = self.targets.get(tensor.name), self.matches_target(candidate, tensor.name)
        added = None
        if addend:  # in the arrangement of the result; without tokens, if it has none
            term = self.tensors[addend]
            added = self._arrange(term, Arrangement(tuple(i for i in to.order if i in term.indices), to.lanes))
        if self._is_gradient_of_core(tensor.name):
            flags |= M.CHECK
        fields = {"is_final": is_final, "addend": added, "flags": flags, "has_bias": has_bias}
        self.steps.append(Multiply(self.phase, tensor.product, operation, a, b, contracted, to, **fields))
        tensor.copies.append(to)
        if target and not is_final:
            self.steps.append(Permute(self.phase, tensor.name, to, target, True))
            tensor.copies.append(target)


def text_of(product: Product) -> str:
    return f"{product[0]} = {product[1]} {product[2]}"
