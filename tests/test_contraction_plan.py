"""Plans of a layer's products, as data: what they sum up to is the layer, and no step reads what is not there yet."""

import numpy as np
import pytest

from bttlab.compiler.builder import vectors_for
from bttlab.compiler.instruction import Register
from bttlab.compiler.layer import LayerShape, compile_layer
from bttlab.compiler.machine import M
from bttlab.compiler.plan.arrangement import Arrangement
from bttlab.compiler.plan.contraction import (
    ADDEND,
    BIAS,
    Add,
    AddToSum,
    Given,
    Load,
    Multiply,
    Permute,
    TakeSum,
    plan_collection,
    plan_gradients,
    plan_y,
    plan_z,
)
from bttlab.compiler.plan.tt_layer import IN, OUT, TTLayer
from bttlab.tensor.order import Order
from bttlab.tensor.shapes import tt_shapes

PAPER = (12, 8, 8), (8, 8, 12), 12
# Names that look like those of gradients and of cores.
OWN = "G56 = G5 G6\nGG = G1 G2\ndata = x G56\nz = data G4\ndelta = G3 z\ny = GG delta"
LAYERS = {
    "paper": (*PAPER, "bidirectional", 32),
    "mixed": (*PAPER, "mixed", 13),
    "from right to left": (*PAPER, "right_to_left", 7),
    "two at each end": (*PAPER, (2, 2), 32),
    "an order of its own": (*PAPER, Order.of(OWN), 32),
    "other modes and ranks": ((16, 3, 4), (4, 6, 8), (5, 7, 12, 9, 3), "bidirectional", 5),
    "ranks above the rows of an engine": ((16, 16), (16, 16), (16, 40, 16), "bidirectional", 9),
    "four modes": ((4, 4, 4, 4), (4, 4, 4, 4), 8, "mixed", 12),
}


class Tensors:
    """Arrays by name, each with the labels of its axes."""

    def __init__(self, shapes, tokens):
        random, half, self.of = np.random.default_rng(7), len(shapes) // 2, {}
        modes = [*(f"i{k}" for k in range(1, half + 1)), *(f"j{k}" for k in range(1, half + 1))]
        bonds = [None, *(f"r{k}" for k in range(1, 2 * half)), None]
        for k, (shape, mode) in enumerate(zip(shapes, modes, strict=True)):
            axes = [(of, n) for of, n in zip((bonds[k], mode, bonds[k + 1]), shape, strict=True) if of]
            self.of[f"G{k + 1}"] = [of for of, _ in axes], random.standard_normal([n for _, n in axes])
        outs, ins = ([shape[1] for shape in part] for part in (shapes[:half], shapes[half:]))
        self.cores = list(self.of)
        for name, labels, sizes in (("x", modes[half:], ins), ("dy", modes[:half], outs), (ADDEND, modes[half:], ins)):
            self.of[name] = ["t", *labels], random.standard_normal((tokens, *sizes))
        self.of[BIAS] = modes[:half], random.standard_normal(outs)

    def product(self, names, labels):
        """Return a product of tensors, summed over all labels but some."""
        letters = {}
        for label in (label for name in names for label in self.of[name][0]):
            letters.setdefault(label, chr(97 + len(letters)))
        code = ["".join(map(letters.get, of)) for of in (*(self.of[name][0] for name in names), labels)]
        arrays = [self.of[name][1] for name in names]
        return labels, np.einsum(",".join(code[:-1]) + "->" + code[-1], *arrays, optimize=True)

    def like(self, name, labels):
        """Return a tensor with its axes in the order of labels; an axis of 1 for those that it does not have."""
        mine, value = self.of[name]
        value = value.transpose([mine.index(label) for label in labels if label in mine])
        return value[tuple(slice(None) if label in mine else None for label in labels)]

    def expected(self, name):
        """Return y, or a gradient by the definition: of all cores at once, with W never cut at z."""
        if name == "y":
            labels, value = self.product([*self.cores, "x"], self.of["dy"][0])
            return labels, value + self.like(BIAS, labels)
        if name == "dx":
            labels, value = self.product([*self.cores, "dy"], self.of["x"][0])
            return labels, value + self.like(ADDEND, labels)
        core = name[1:]
        return self.product([*(other for other in self.cores if other != core), "x", "dy"], self.of[core][0])

    def execute(self, step):
        match step:
            case Multiply():
                result, *operands = step.product
                (left, _), (right, _) = (self.of[name] for name in operands)
                labels = [label for label in (*left, *right) if (label in left) != (label in right)]
                assert sorted(labels) == sorted(step.result.order), str(step)
                labels, value = self.product(operands, labels)
                self.of[result] = labels, value + (self.like(step.addend[0], labels) if step.addend else 0)
            case Add():
                labels, value = self.of[step.tensor]
                self.of[step.tensor] = labels, value + self.like(ADDEND, labels)

    def check(self, *names):
        for name in names:
            labels, value = self.expected(name)
            np.testing.assert_allclose(self.like(name, labels), value, rtol=1e-9, atol=1e-6, err_msg=name)


class Machine:
    """What is in banks and operand buffers while plans of a layer are executed."""

    def __init__(self, layer, keeps_merged):
        self.layer, self.keeps_merged = layer, keeps_merged
        self.loaded, self.merged, self.sums = [set(), set()], {}, {}

    def begin(self, between=None):
        """Return what the next plan begins with; it loads operand buffers from their first vectors on."""
        self.taken = [set(), set()]
        self.banks = {(phase, copy) for phase in (IN, OUT) for copy in (*self.layer.cores.items(), *self.merged)}
        return Given(tuple(self.merged), tuple(map(frozenset, self.loaded)), between, tuple(self.sums.items()))

    def run(self, steps, tensors, *there):
        """Check and execute steps that begin with some copies in banks beside the cores: phase, name, arrangement."""
        self.banks |= {(phase, (name, of)) for phase, name, of in there}
        for step in steps:
            print(step)
            self.check(step)
            tensors.execute(step)
        if self.keeps_merged:
            merges = {name for name, *_ in self.layer.merges}
            self.merged |= dict.fromkeys(copy for _, copy in sorted(self.banks, key=str) if copy[0] in merges)

    def check(self, step):
        phase, sizes = step.phase, self.layer.sizes
        match step:
            case Permute() | Load() | AddToSum():
                self.read(phase, step.tensor, step.source)
            case Add():
                self.read(phase, step.tensor, step.source)
                self.read(phase, ADDEND, step.source)
            case TakeSum():
                assert step.tensor in self.sums
            case Multiply():
                for copy in filter(None, (step.a, step.addend)):
                    self.read(phase, *copy)
                if step.operation == M.ACCUMULATE:
                    self.read(phase, *step.b)
                else:
                    assert step.b in self.loaded[phase], f"{step}: {step.b[0]} is not loaded"
        if isinstance(step, Permute):
            self.banks.add((phase, (step.tensor, step.target)))
        elif isinstance(step, Multiply) and step.loaded is None:
            self.banks.add((phase, (step.product[0], step.result)))
        elif isinstance(step, AddToSum):
            self.sums[step.tensor] = step.source
        elif isinstance(step, Load | Multiply):
            name, of = (step.tensor, step.target) if isinstance(step, Load) else (step.product[0], step.loaded)
            rows, *inside = of.order
            outer = np.prod([sizes[i] for i in inside[: len(inside) - of.lanes]], dtype=int)
            row = outer * vectors_for(np.prod([sizes[i] for i in of.packed], dtype=int))
            places = range(step.offset, step.offset + row * -(-sizes[rows] // M.ROWS))
            assert not self.taken[phase] & set(places), f"{step}: overwrites what is loaded"
            self.taken[phase] |= set(places)
            self.loaded[phase].add((name, of))

    def read(self, phase, name, arrangement):
        views = {(phase, (name, view)) for view in arrangement.views(self.layer.sizes)}
        assert views & self.banks, f"no copy of {name} is arranged as {arrangement}"


def planned(name, keeps=False, has_sums=False, is_loaded=False, without=None):
    """Plan and execute both passes of a layer; return the steps, the tensors and the layer.

    `is_loaded`: whether the operand buffers have in the backward pass what the forward pass has loaded.
    `without`: number of a step that is left out.
    """
    out_modes, in_modes, rank, flow, tokens = LAYERS[name]
    shapes = tuple(tt_shapes(out_modes, in_modes, rank))
    layer, steps = TTLayer(name, tokens, shapes, flow, 0), []
    x, y, z = layer.features("x"), layer.features("y"), layer.z_arrangement
    tensors, machine = Tensors(shapes, tokens), Machine(layer, keeps)

    def run(plan, *there):
        kept = [step for n, step in enumerate(plan, len(steps)) if n != without]
        steps.extend(plan)
        machine.run(kept, tensors, *there)

    run(plan_z(layer, machine.begin(), keeps), (IN, "x", x))
    between = [copy for _, copy in machine.banks if copy[0] in layer.keepable] if keeps else []
    run(plan_y(layer, machine.begin(), True), (OUT, layer.z, z), (OUT, BIAS, Arrangement(y.order[1:], y.lanes)))
    machine.loaded = machine.loaded if is_loaded else [set(), set()]
    given = machine.begin(between[0][1] if between else None)
    there = [(OUT, "dy", y), (OUT, layer.z, z), (IN, "x", x), (IN, ADDEND, x)]
    there += [(IN, *copy) for copy in between]
    d_z = IN, f"d{layer.z}", z
    run(plan_gradients(layer, given, True, True, has_sums), *there, d_z)
    if has_sums:
        machine.loaded, machine.merged = [set(), set()], {}
        of_sums = [(phase, *copy) for copy in machine.sums.items() for phase in (IN, OUT)]
        run(plan_collection(layer, machine.begin()), *of_sums)
    return steps, tensors, layer


@pytest.mark.parametrize("has_sums", [False, True], ids=["a sample", "sums"])
@pytest.mark.parametrize(
    ("keeps", "is_loaded"),
    [(False, False), (True, False), (False, True)],
    ids=["computed again", "kept in banks", "still loaded"],
)
@pytest.mark.parametrize("name", LAYERS)
def test_a_plan_is_the_layer(name, keeps, is_loaded, has_sums):
    steps, tensors, layer = planned(name, keeps, has_sums, is_loaded)
    tensors.check("y", "dx", *(f"d{core}" for core in tensors.cores))
    for step in steps:
        if isinstance(step, Multiply) and step.has_bias:  # its sum is that of dy over the tokens, too
            assert set(step.product[1:]) == {layer.z, "dy"} and step.operation == M.ACCUMULATE
            assert set(tensors.of[layer.z][0]) & set(tensors.of["dy"][0]) == {"t"}


def test_a_plan_without_one_of_its_steps_is_not_the_layer():
    steps, _, _ = planned("paper")
    assert {type(step) for step in steps} >= {Load, Multiply}
    for n, step in enumerate(steps):
        with pytest.raises((AssertionError, KeyError)):
            _, tensors, _ = planned("paper", without=n)
            tensors.check("y", "dx", *(f"d{core}" for core in tensors.cores))
            pytest.fail(f"{step} is not missed")


def test_what_is_kept_or_loaded_is_not_planned_again():
    def products(**options):
        return [step.product[0] for step in planned("paper", **options)[0] if isinstance(step, Multiply)]

    again, kept, loaded = products(), products(keeps=True), products(is_loaded=True)
    assert set(kept) == set(loaded) == set(again)
    assert len(again) > len(kept) >= len(loaded) == len(set(loaded))  # a product that was only loaded is made again


def test_a_plan_depends_on_nothing_else():
    """So layers of one order and shape share it, and those of another flow do not."""

    def plan(name, flow, number, of=plan_gradients):
        layer = TTLayer(name, Register(0, 0, 1, 32), tuple(tt_shapes(*PAPER)), flow, number)
        return of(layer, Given(), True, False, False)

    shared, again = plan("a", "mixed", 0), plan("b", "mixed", 1, plan_gradients.__wrapped__)
    assert plan("b", "mixed", 1) is shared and shared == again
    assert plan("a", (2, 3), 0) == plan("a", (2, 3), 0, plan_gradients.__wrapped__) is not shared


def test_intermediates_may_be_called_as_gradients_and_cores_are():
    usual = "R5 = G5 G6\nL2 = G1 G2\nA = x R5\nz = A G4\nB = G3 z\ny = L2 B"
    shape = LayerShape((12, 8, 8), (8, 8, 12), (12,) * 5)
    assert compile_layer(shape, 13, Order.of(OWN)).sha256 == compile_layer(shape, 13, Order.of(usual)).sha256
